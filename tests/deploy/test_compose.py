"""compose.yaml: it fits the schema of Compose, what it names is there, and it gives a supervisor what that needs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
import yaml

from supervisor.cli.lib import parser
from supervisor.config import LAST_EXCHANGE_S, REAP_S, SETTINGS, RunConfig
from supervisor.units import parse_duration, parse_size
from supervisor.web import Tokens
from tests import servers
from tests.deploy import dockerfile

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy/compose.yaml"
#: The password that deploy/.env would set.
PASSWORD = "0123456789abcdef"


def interpolated(text):
    """Replace variables as Compose does."""
    return re.sub(r"\$(?:(\$)|\{REDIS_PASSWORD:\?[^}]+\})", lambda found: found[1] or PASSWORD, text)


COMPOSE = yaml.safe_load(interpolated(RECIPE.read_text()))
SERVICES = COMPOSE["services"]
SUPERVISOR, WEB = SERVICES["supervisor"], SERVICES["web"]
_, STAGES = dockerfile.read(ROOT / "deploy/Dockerfile")
LISTENER = STAGES[-1].last("ENV").pairs()["LEASEHOLD_HTTP"]


def test_recipe_fits_the_schema_of_compose():
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(RECIPE)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_named_file_and_volume_exists():
    build = SUPERVISOR["build"]
    assert (RECIPE.parent / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    mounts = [each.split(":")[0] for service in SERVICES.values() for each in service.get("volumes", ())]
    for source in mounts:
        assert (RECIPE.parent / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], source
    for service in SERVICES.values():
        assert service.get("depends_on", {}).keys() <= SERVICES.keys()
        assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys()


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_unprivileged_pinned_and_probed(name):
    service = SERVICES[name]
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    if "image" in service:
        assert service["image"].rpartition(":")[2][:2] not in ("", "la"), "a version, and not the latest"
        assert service["healthcheck"]["test"][0] == "CMD"
    else:
        assert STAGES[-1].last("HEALTHCHECK").command()
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:"), "there is no password in front of it"


def test_redis_keeps_acknowledged_writes_and_evicts_nothing():
    command = SERVICES["redis"]["command"][-1]
    assert "--appendonly yes" in command and "--maxmemory-policy noeviction" in command
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]
    assert SUPERVISOR["depends_on"]["redis"] == {"condition": "service_healthy"}


@pytest.fixture
def redis_at(tmp_path):
    """The socket of a server that the command of the service has started, and a PATH of its programs."""
    if shutil.which("redis-cli") is None:
        pytest.skip("this machine has no redis-cli")
    programs = {
        "redis-server": f'exec {servers.binary()} --port 0 --unixsocket {tmp_path}/s --dir {tmp_path} "$@"',
        "redis-cli": f'exec {shutil.which("redis-cli")} -s {tmp_path}/s "$@"',
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **SERVICES["redis"]["environment"]}
    with subprocess.Popen(SERVICES["redis"]["command"], env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert any("eady to accept connections" in line for line in server.stdout)
        yield server, tmp_path / "s", environment
        server.terminate()


def test_redis_password_is_shared_and_on_no_command_line(redis_at):
    server, socket, environment = redis_at
    with redis.Redis(unix_socket_path=str(socket)) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    password = urlsplit(SUPERVISOR["environment"]["LEASEHOLD_REDIS_URL"]).password
    with redis.Redis(unix_socket_path=str(socket), password=password) as ours:
        assert ours.ping()
    assert PASSWORD.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    _, *healthcheck = SERVICES["redis"]["healthcheck"]["test"]
    assert subprocess.run(healthcheck, env=environment, timeout=60, check=False).returncode == 0
    wrong = {**environment, "REDIS_PASSWORD": "another"}
    assert subprocess.run(healthcheck, env=wrong, timeout=60, check=False, stderr=subprocess.DEVNULL).returncode != 0


def test_supervisors_and_the_page_alone_share_a_network_with_redis():
    assert SERVICES["redis"]["networks"] == ["jobs"]
    sharing = [name for name, service in SERVICES.items() if "jobs" in service.get("networks", ())]
    assert sharing == ["redis", "supervisor", "web"] and "default" in SUPERVISOR["networks"]


@pytest.mark.parametrize("name", SERVICES)
def test_no_log_fills_the_disk(name):
    logging = SERVICES[name]["logging"]
    assert logging["driver"] == "json-file" and logging["options"].keys() == {"max-size", "max-file"}


def test_compose_refuses_to_start_without_a_password():
    needed = [line for line in RECIPE.read_text().splitlines() if "${REDIS_PASSWORD" in line]
    assert len(needed) == 2 and all("${REDIS_PASSWORD:?the head of compose.yaml" in line for line in needed)
    assert "> deploy/.env\n" in RECIPE.read_text().partition("services:")[0]


def test_two_supervisors_start_clean_and_have_time_to_drain():
    variables = {"LEASEHOLD_HTTP": LISTENER, **SUPERVISOR["environment"]}
    assert RunConfig.load({}, variables, terminal=False).warnings == ()
    assert SUPERVISOR["deploy"]["replicas"] == 2
    assert not {"container_name", "hostname", "ports"} & SUPERVISOR.keys(), "it could not be scaled"
    default = {setting.flag: setting.default for setting in SETTINGS}
    ladder_s = sum(parse_duration(default[flag]) for flag in ("drain-timeout", "term-grace")) + REAP_S + LAST_EXCHANGE_S
    assert parse_duration(SUPERVISOR["stop_grace_period"]) >= ladder_s + 5


def test_supervisor_writes_only_where_full_directories_fit():
    assert SUPERVISOR["read_only"] is True
    (mount,) = SUPERVISOR["tmpfs"]
    path, _, options = mount.partition(":")
    size = dict(each.split("=") for each in options.split(","))["size"]
    limits = SUPERVISOR["deploy"]["resources"]["limits"]
    needed = parse_size(SUPERVISOR["environment"]["LEASEHOLD_WORKDIR_LIMIT"]) * int(limits["cpus"])
    assert path == "/tmp" and needed < parse_size(size.upper()) < parse_size(limits["memory"])


def test_page_listens_where_its_port_leads_and_knows_visitors_by_the_file():
    declared, _ = parser.build("web")
    program, *words = WEB["entrypoint"] + WEB["command"]
    asked = declared.parse_args(words)
    (port,) = WEB["ports"]
    assert program == "leasehold" and f"127.0.0.1:{asked.http.rpartition(':')[2]}" == port.rpartition(":")[0]
    assert WEB["healthcheck"]["test"][1:] == ["leasehold", "healthcheck", "--http", port.rpartition(":")[2]]
    assert WEB["build"] == SUPERVISOR["build"] and WEB["read_only"] is True
    assert WEB["environment"]["LEASEHOLD_REDIS_URL"] == SUPERVISOR["environment"]["LEASEHOLD_REDIS_URL"]
    (secret,) = WEB["secrets"]
    assert asked.allow_actions and asked.token_file == f"/run/secrets/{secret}"


def test_tokens_of_the_page_are_made_by_the_first_lines_and_stay_out_of_the_repository():
    file = (RECIPE.parent / COMPOSE["secrets"]["web-tokens"]["file"]).relative_to(ROOT)
    (made,) = re.findall(rf"^#   (echo .*) > {file}$", RECIPE.read_text(), re.MULTILINE)
    done = subprocess.run(["sh", "-c", made], capture_output=True, text=True, timeout=60, check=True)
    assert Tokens(done.stdout.splitlines())
    assert str(file) in (ROOT / ".gitignore").read_text().splitlines()
    assert file not in dockerfile.context(ROOT)


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
