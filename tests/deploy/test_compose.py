"""compose.yaml: it fits the schema of Compose, what it names is there, and it gives a supervisor what that needs."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from supervisor.config import LAST_EXCHANGE_S, REAP_S, SETTINGS, Config, parse_duration, parse_size
from tests.deploy import dockerfile

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy/compose.yaml"
COMPOSE = yaml.safe_load(RECIPE.read_text())
SERVICES = COMPOSE["services"]
SUPERVISOR = SERVICES["supervisor"]
_, STAGES = dockerfile.read(ROOT / "deploy/Dockerfile")
LISTENER = STAGES[-1].last("ENV").pairs()["LEASEHOLD_HTTP"]


def test_it_fits_the_schema_of_compose():
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(RECIPE)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_and_every_volume_that_it_names_is_there():
    build = SUPERVISOR["build"]
    assert (RECIPE.parent / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    mounts = [each.split(":")[0] for service in SERVICES.values() for each in service.get("volumes", ())]
    for source in mounts:
        assert (RECIPE.parent / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], source
    for service in SERVICES.values():
        assert service.get("depends_on", {}).keys() <= SERVICES.keys()


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_without_rights_of_one_version_and_asked_for_its_health(name):
    service = SERVICES[name]
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    if "image" in service:
        assert service["image"].rpartition(":")[2][:2] not in ("", "la"), "a version, and not the latest"
        assert service["healthcheck"]["test"][0] == "CMD"
    else:
        assert STAGES[-1].last("HEALTHCHECK").command()
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:"), "there is no password in front of it"


def test_redis_keeps_what_it_has_acknowledged_and_evicts_nothing():
    command = " ".join(SERVICES["redis"]["command"])
    assert "--appendonly yes" in command and "--maxmemory-policy noeviction" in command
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]
    assert SUPERVISOR["depends_on"]["redis"] == {"condition": "service_healthy"}


def test_the_supervisors_are_two_start_without_a_warning_and_have_time_to_drain():
    variables = {"LEASEHOLD_HTTP": LISTENER, **SUPERVISOR["environment"]}
    assert Config.load({}, variables, terminal=False).warnings == ()
    assert SUPERVISOR["deploy"]["replicas"] == 2
    assert not {"container_name", "hostname", "ports"} & SUPERVISOR.keys(), "it could not be scaled"
    default = {setting.flag: setting.default for setting in SETTINGS}
    ladder_s = sum(parse_duration(default[flag]) for flag in ("drain-timeout", "term-grace")) + REAP_S + LAST_EXCHANGE_S
    assert parse_duration(SUPERVISOR["stop_grace_period"]) >= ladder_s + 5


def test_a_supervisor_writes_nowhere_but_where_full_working_directories_fit():
    assert SUPERVISOR["read_only"] is True
    (mount,) = SUPERVISOR["tmpfs"]
    path, _, options = mount.partition(":")
    size = dict(each.split("=") for each in options.split(","))["size"]
    limits = SUPERVISOR["deploy"]["resources"]["limits"]
    needed = parse_size(SUPERVISOR["environment"]["LEASEHOLD_WORKDIR_LIMIT"]) * int(limits["cpus"])
    assert path == "/tmp" and needed < parse_size(size.upper()) < parse_size(limits["memory"])


def test_prometheus_scrapes_every_supervisor_and_grafana_asks_prometheus():
    told = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (scraped,) = told["scrape_configs"]
    (found,) = scraped["dns_sd_configs"]
    assert found["names"] == ["supervisor"] and str(found["port"]) == LISTENER
    assert "./prometheus:/etc/prometheus:ro" in SERVICES["prometheus"]["volumes"]
    provisioning = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/leasehold.yaml").read_text())["providers"]
    mounts = SERVICES["grafana"]["volumes"]
    assert f"./grafana/leasehold.json:{provider['options']['path']}/leasehold.json:ro" in mounts
