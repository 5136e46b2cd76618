"""deploy/kubernetes: each resource fits its schema, and they fit each other."""

import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import redis
import yaml

import supervisor
from supervisor.cli.lib import parser
from supervisor.config import LAST_EXCHANGE_S, REAP_S, SETTINGS, VARIABLES, RunConfig
from supervisor.engine.model.keys import Namespace
from supervisor.units import parse_duration, parse_size
from supervisor.web.security import PROBE
from tests.deploy import crds, dockerfile

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
RESOURCES = {
    f"{path.stem}:{resource['kind']}": resource
    for path in sorted(FOLDER.glob("*.yaml"))
    if path.name != "kustomization.yaml"
    for resource in yaml.safe_load_all(path.read_text())
}
BUILT_IN = [
    name for name, resource in RESOURCES.items() if (resource["apiVersion"], resource["kind"]) not in crds.SPECS
]
#: The oldest in which the apiVersions are all there, and the newest that is known.
VERSIONS = ["1.27", kubernetes_validate.latest_version()]
DEPLOYMENT = RESOURCES["deployment:Deployment"]
POD = DEPLOYMENT["spec"]["template"]["spec"]
WEB_POD = RESOURCES["web:Deployment"]["spec"]["template"]["spec"]
(SUPERVISOR,), (WEB,) = POD["containers"], WEB_POD["containers"]
SCALED = RESOURCES["keda:ScaledObject"]["spec"]


@pytest.fixture(scope="module")
def built():
    """The resources that `kubectl apply --kustomize` would apply, by kind and name."""
    if shutil.which("kubectl") is None:
        pytest.skip("this machine has no kubectl")
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in yaml.safe_load_all(done.stdout)}


# schemas


@pytest.mark.parametrize("version", VERSIONS)
def test_built_resources_fit_the_schemas_of_kubernetes(built, version):
    ours = ("ServiceAccount", "Deployment", "PodDisruptionBudget", "NetworkPolicy")
    of_the_page = ("Deployment", "Service", "NetworkPolicy")
    assert built.keys() == {f"{each}/leasehold" for each in ours} | {f"{each}/leasehold-web" for each in of_the_page}
    for resource in built.values():
        kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_resource_fits_the_schemas_of_kubernetes(name):
    for version in VERSIONS:
        kubernetes_validate.validate(RESOURCES[name], version, strict=True)


@pytest.mark.parametrize("name", [name for name in RESOURCES if name not in BUILT_IN])
def test_resources_of_others_have_the_fields_that_those_know(name):
    resource = RESOURCES[name]
    assert resource.keys() == {"apiVersion", "kind", "metadata", "spec"}
    jsonschema.validate(resource["spec"], crds.SPECS[resource["apiVersion"], resource["kind"]])


# what fits what


def test_selectors_and_targets_name_the_pods_of_the_deployment(built):
    deployment = built["Deployment/leasehold"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    spread = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    selectors = [
        deployment["spec"]["selector"],
        built["PodDisruptionBudget/leasehold"]["spec"]["selector"],
        built["NetworkPolicy/leasehold"]["spec"]["podSelector"],
        RESOURCES["podmonitor:PodMonitor"]["spec"]["selector"],
        *(each["labelSelector"] for each in spread),
    ]
    assert [each["matchLabels"].items() <= labels.items() for each in selectors] == [True] * len(selectors)
    for scaler in (RESOURCES["hpa:HorizontalPodAutoscaler"]["spec"], SCALED):
        target = scaler["scaleTargetRef"]
        assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    apart = [each for each in RESOURCES.values() if "namespace" in each["metadata"]]
    assert {each["metadata"]["namespace"] for each in apart} == {deployment["metadata"]["namespace"]}
    for pod in (POD, WEB_POD):
        assert pod["serviceAccountName"] == built["ServiceAccount/leasehold"]["metadata"]["name"]


def test_service_and_policy_of_the_page_name_its_pods_alone(built):
    deployment = built["Deployment/leasehold-web"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    service = built["Service/leasehold-web"]["spec"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["selector"]
    assert built["NetworkPolicy/leasehold-web"]["spec"]["podSelector"]["matchLabels"] == labels
    assert labels != built["Deployment/leasehold"]["spec"]["template"]["metadata"]["labels"], "no scaler counts them"
    assert service["ports"][0]["targetPort"] == WEB["ports"][0]["name"]


@pytest.mark.parametrize(("file", "name"), [("networkpolicy", "leasehold"), ("web", "leasehold-web")])
def test_built_policy_admits_the_same_pods_as_the_written_one(built, file, name):
    written = RESOURCES[f"{file}:NetworkPolicy"]["spec"]
    assert built[f"NetworkPolicy/{name}"]["spec"] == written, "a label that kustomize adds to a rule matches nobody"
    assert {"app.kubernetes.io/name": "redis"} in [
        to["podSelector"]["matchLabels"] for rule in written["egress"] for to in rule["to"]
    ]


def test_manifest_leaves_the_number_of_pods_to_the_autoscaler():
    assert "replicas" not in DEPLOYMENT["spec"], "else each apply would take it back from the autoscaler"


def test_the_supervisor_takes_its_arguments_and_its_variables():
    built, _ = parser.build("run")
    flags = parser.given(built.parse_args(["run", *SUPERVISOR["args"]]))
    variables = {each["name"]: each.get("value", "redis://redis:6379/0") for each in SUPERVISOR["env"]}
    assert variables.keys() <= VARIABLES
    config = RunConfig.load(flags, variables, terminal=False)
    assert config.warnings == ()
    assert config.http.port == SUPERVISOR["ports"][0]["containerPort"]


def test_the_address_of_redis_comes_from_a_secret():
    for container in (SUPERVISOR, WEB):
        (address,) = (each for each in container["env"] if each["name"] == "LEASEHOLD_REDIS_URL")
        assert "secretKeyRef" in address["valueFrom"]
    assert not [name for name, each in RESOURCES.items() if each["kind"] == "Secret"]


def test_a_pod_has_time_for_the_whole_ladder():
    default = {setting.flag: setting.default for setting in SETTINGS}
    ladder_s = sum(parse_duration(default[flag]) for flag in ("drain-timeout", "term-grace")) + REAP_S + LAST_EXCHANGE_S
    assert POD["terminationGracePeriodSeconds"] >= ladder_s + 5
    assert "lifecycle" not in SUPERVISOR, "a preStop hook would spend of it"


def test_probes_ask_the_right_page_and_port():
    paths = {name: SUPERVISOR[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert {SUPERVISOR[name]["httpGet"]["port"] for name in paths} == {SUPERVISOR["ports"][0]["name"]}
    startup = SUPERVISOR["startupProbe"]
    boot = next(setting.default for setting in SETTINGS if setting.flag == "boot-timeout")
    assert startup["periodSeconds"] * startup["failureThreshold"] > parse_duration(boot)
    (open_to_others,) = RESOURCES["networkpolicy:NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for port in open_to_others["ports"]] == [SUPERVISOR["ports"][0]["name"]]
    (scraped,) = RESOURCES["podmonitor:PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert (scraped["port"], scraped["path"]) == (SUPERVISOR["ports"][0]["name"], "/metrics")


def test_page_is_one_and_listens_where_its_service_leads():
    deployment = RESOURCES["web:Deployment"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"}), "a session is of one process"
    declared, _ = parser.build("web")
    program, *words = WEB["command"] + WEB["args"]
    asked = declared.parse_args(words)
    assert program == "leasehold" and asked.http == f"0.0.0.0:{WEB['ports'][0]['containerPort']}"
    for probe in ("livenessProbe", "readinessProbe"):
        assert WEB[probe]["httpGet"] == {"path": PROBE, "port": WEB["ports"][0]["name"]}
    (open_to_others,) = RESOURCES["web:NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for port in open_to_others["ports"]] == [WEB["ports"][0]["name"]]


def test_tokens_of_the_page_are_a_file_of_a_secret():
    declared, _ = parser.build("web")
    asked = declared.parse_args(["web", *WEB["args"]])
    (mount,), (volume,) = WEB["volumeMounts"], WEB_POD["volumes"]
    lines = (FOLDER / "kustomization.yaml").read_text()
    secret = f"create secret generic {volume['secret']['secretName']} --from-file="
    assert mount["name"] == volume["name"] and f"{secret}{Path(asked.token_file).name}\n" in lines
    assert asked.token_file == f"{mount['mountPath']}/{Path(asked.token_file).name}"


def test_alerts_tell_namespaces_apart():
    # Without a label to take it from, the operator makes it of the namespace and the name of the monitor.
    assert "jobLabel" not in RESOURCES["podmonitor:PodMonitor"]["spec"]


@pytest.mark.parametrize("pod", [POD, WEB_POD], ids=["supervisor", "web"])
def test_runs_unprivileged_on_a_read_only_root(pod):
    _, stages = dockerfile.read(ROOT / "deploy/Dockerfile")
    uid, gid = map(int, stages[-1].last("USER").text.split(":"))
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": uid,
        "runAsGroup": gid,
        "fsGroup": gid,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False


def test_full_working_directories_fit_into_their_volume():
    (volume,) = POD["volumes"]
    assert [mount["mountPath"] for mount in SUPERVISOR["volumeMounts"]] == ["/tmp"]
    limit = parse_size(SUPERVISOR["args"][SUPERVISOR["args"].index("--workdir-limit") + 1])
    processes = int(SUPERVISOR["resources"]["limits"]["cpu"])
    assert limit * processes < parse_size(volume["emptyDir"]["sizeLimit"].removesuffix("i"))


# scaling


def test_the_triggers_are_what_kedas_scaler_reads():
    references = {each["authenticationRef"]["name"] for each in SCALED["triggers"]}
    account = RESOURCES["keda:TriggerAuthentication"]
    assert references == {account["metadata"]["name"]}
    assert {each["parameter"] for each in account["spec"]["secretTargetRef"]} <= crds.REDIS_ACCOUNT
    for trigger in SCALED["triggers"]:
        assert trigger["type"] == "redis" and trigger["metadata"].keys() <= crds.REDIS_TRIGGER


def test_triggers_watch_the_queues_of_the_deployment():
    served = SUPERVISOR["args"][SUPERVISOR["args"].index("--queue") + 1]
    (name,) = (each["value"] for each in SUPERVISOR["env"] if each["name"] == "LEASEHOLD_AUTOSCALE")
    keys = Namespace(next(setting.default for setting in SETTINGS if setting.flag == "namespace"))
    asked = {each["name"]: each["metadata"] for each in SCALED["triggers"]}
    assert {each: metadata["listName"] for each, metadata in asked.items()} == {
        "desired": f"{keys.prefix}desired:{name}",
        "bell": keys.wakeup(served),
        "pushed": keys.incoming(served),
    }
    assert asked["desired"]["listLength"] == "1", "so that its length is the number of pods"
    assert SCALED["minReplicaCount"] == 0


#: KEDA's script for the length of a key of any type.
LENGTH = """
local lengths = {list = 'llen', hash = 'hlen', set = 'scard', zset = 'zcard', none = 'llen'}
return redis.call(lengths[redis.call('type', KEYS[1]).ok], KEYS[1])
"""


def test_kedas_account_sees_waiting_jobs_and_nothing_else(server, namespace):
    (line,) = re.findall(r"^# +(ACL SETUSER keda .*)$", (FOLDER / "keda.yaml").read_text(), re.MULTILINE)
    asked = {
        each["name"]: each["metadata"]["listName"].replace("{leasehold}", f"{{{namespace}}}")
        for each in SCALED["triggers"]
    }
    try:
        server.redis.execute_command(*line.replace("{leasehold}", f"{{{namespace}}}").split())
        with (
            redis.Redis(unix_socket_path=str(server.socket), username="keda", password="PASSWORD") as keda,
            supervisor.Client(server.url, namespace) as client,
        ):

            def lengths():
                return {name: keda.eval(LENGTH, 1, key) for name, key in asked.items()}

            assert lengths() == {"desired": 0, "bell": 0, "pushed": 0}
            client.queue("default").put("email.send")
            client.queue("default").put("email.send")
            assert lengths() == {"desired": 0, "bell": 1, "pushed": 0}
            server.redis.lpush(asked["pushed"], '{"klass": "email.send"}')
            assert lengths() == {"desired": 0, "bell": 1, "pushed": 1}
            for refused in (["GET", asked["desired"]], ["DEL", asked["bell"]], ["KEYS", "*"]):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    keda.execute_command(*refused)
            with pytest.raises(redis.exceptions.ResponseError):
                keda.eval("return redis.call('rpop', KEYS[1])", 1, asked["bell"])
    finally:
        server.redis.acl_deluser("keda")
