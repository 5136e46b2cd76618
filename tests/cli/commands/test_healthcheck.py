"""`leasehold healthcheck` reports quickly, in one sentence, whether a supervisor is well."""

import re
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.cli.commands import healthcheck
from supervisor.ops import http, pages
from supervisor.setting_values import ListenAddress
from tests.environment import without_settings
from tests.lengths import PATIENCE
from tests.ops.listening import Site

ROOT = Path(__file__).parents[3]


def check(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = without_settings()
    return subprocess.run(
        [sys.executable, "-m", "supervisor", "healthcheck", *words],
        cwd=ROOT, env=clean | environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(http, "PROBE_S", http.PROBE_S * PATIENCE)
    site = Site()
    yield site
    site.close()


def test_a_supervisor_that_is_well_says_so(site):
    done = check(LEASEHOLD_HTTP=f"127.0.0.1:{site.port}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    done = check("--ready", "--http", f"127.0.0.1:{site.port}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "serving\n", "")


def test_supervisor_that_is_not_ready_says_why(site):
    site.loop.answers["/readyz"] = (False, "redis-away")
    done = check("--ready", LEASEHOLD_HTTP=f"127.0.0.1:{site.port}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"leasehold: the supervisor at 127.0.0.1:{site.port} is not ready: redis-away\n"


def test_a_standing_supervisor_is_not_well(site, monkeypatch):
    monkeypatch.setattr(pages, "LIVE_S", 0.0)
    monkeypatch.setattr(http, "PROBE_S", 0.05)
    site.loop.turns.clear()
    done = check("--http", f"127.0.0.1:{site.port}")
    assert done.returncode == 1
    assert re.fullmatch(
        rf"leasehold: the supervisor at 127\.0\.0\.1:{site.port} is not well: the master's loop stands still:.*\n",
        done.stderr,
    )


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_a_listener_on_all_interfaces_is_asked_by_loopback(host):
    if host == "[::]" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    site = Site(ListenAddress(host.strip("[]"), 0))
    try:
        assert check(LEASEHOLD_HTTP=f"{host}:{site.port}").stdout == "ok\n"
    finally:
        site.close()


def test_healthcheck_without_a_listener_fails_with_a_hint():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        done = check(LEASEHOLD_HTTP=str(port))
    assert done.returncode == 1
    assert done.stderr == (
        f"leasehold: nobody answers at :{port} ([Errno 111] Connection refused): does a supervisor run with this"
        " --http?\n"
    )


@pytest.mark.parametrize("said", [b"", b"+PONG\r\n", b"220 mail.example ESMTP\r\n", b"HTTP/1.1"])
def test_another_server_is_no_supervisor(said):
    address = ListenAddress("127.0.0.1", 1)
    with pytest.raises(Exception, match="is no supervisor"):
        healthcheck._parsed(said, address)


def test_a_stopped_supervisor_does_not_answer(monkeypatch):
    monkeypatch.setattr(healthcheck, "_PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = ListenAddress("127.0.0.1", deaf.getsockname()[1])
        with pytest.raises(Exception, match=r"has not answered within 0.2 s: it is stopped, or starved"):
            healthcheck._ask(address, "/livez")


@pytest.mark.parametrize(
    ("environment", "code", "sentence"),
    [
        ({}, 2, "nothing says where the supervisor listens"),
        ({"LEASEHOLD_HTTP": "none"}, 2, "nothing says where the supervisor listens"),
        ({"LEASEHOLD_HTTP": "0"}, 2, "--http with port 0 is any port"),
        ({"LEASEHOLD_HTTP": "yes"}, 78, "LEASEHOLD_HTTP 'yes' must be none, PORT or HOST:PORT"),
    ],
)
def test_healthcheck_without_an_address_names_the_remedy(environment, code, sentence):
    done = check(**environment)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"leasehold: {sentence}")
    assert done.stderr.count("\n") == 1


def test_healthcheck_loads_little_and_is_quick(site, measured):
    code = (
        "import sys; from supervisor.cli.lib.parser import dispatch; code = dispatch(sys.argv[1:]);"
        " print(*sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "healthcheck", "--http", f"127.0.0.1:{site.port}"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    loaded = done.stdout.split()
    assert not {"redis", "hiredis", "http.client", "email", "psutil", "rich", "asyncio"} & set(loaded)
    assert not [name for name in loaded if name.startswith(("supervisor.engine", "supervisor.master", "handlers"))]
    took_s, before_s = [], _children_cpu_s()
    for _ in range(5):
        began_at = time.monotonic()
        assert check(LEASEHOLD_HTTP=f"127.0.0.1:{site.port}").returncode == 0
        took_s.append(time.monotonic() - began_at)
    cpu_s = (_children_cpu_s() - before_s) / len(took_s)
    measured(f"healthcheck: {1000 * min(took_s):.0f} ms at best, {1000 * cpu_s:.0f} ms of processor time")
    assert min(took_s) < 3.0


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
