"""HTTP probes of a real supervisor in each state of its life."""

import contextlib
import ctypes
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from apps import put, start_app, wait_for_arrival, write_app
from supervised import ROOT
from watched import FULL

from supervisor.master.report.http_answers import LOOKED_S
from supervisor.ops.pages import LIVE_S
from tests.waiting import until_it_waits

WAIT = 'wait_at("{}")\n'
#: Handlers that only a kill ends.
DEAF = """
@handler
def deaf(job):
    (HERE / "deaf").touch()
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass
"""


class Probes:
    """The probes of one supervisor. `watch` also asks for `/livez` all the time."""

    def __init__(self, pool, watch=True) -> None:
        self.pool = pool
        self.port = pool.wait_for("http.listening")["port"]
        self.lives: list[tuple[int, str, float]] = []  # code, word, and how long it took
        self._thread = threading.Thread(target=self._watch)
        if watch:
            self._thread.start()

    def get(self, path: str) -> tuple[int, str]:
        """Return code and text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode().rstrip("\n")
        finally:
            connection.close()

    def ready(self) -> tuple[int, str]:
        """Return the state in `/readyz`. A loop delayed by the machine's load is asked again."""
        while (said := self.get("/readyz"))[1].startswith("the master's loop has not answered"):
            pass
        return said

    def wait_for(self, code: int, state: str, path: str = "/readyz") -> None:
        """Wait until `/readyz` says this."""
        deadline_at = time.monotonic() + 20
        while (said := self.get(path)) != (code, state):
            assert time.monotonic() < deadline_at, f"{said}, and not {code} {state}"
            time.sleep(0.02)  # the change sends no notification

    def _watch(self) -> None:
        while True:
            began_at = time.monotonic()
            try:
                code, said = self.get("/livez")
            except (ConnectionError, http.client.HTTPException):  # it has ended
                return
            self.lives.append((code, re.sub(r" for .*", "", said), time.monotonic() - began_at))
            time.sleep(0.05)

    def assert_lived(self) -> str:
        """Check all answers after the end of the watch, and return how long they took."""
        self._thread.join(10)
        assert not self._thread.is_alive()
        assert {(code, word) for code, word, _took_s in self.lives} <= {(200, "ok"), (200, "busy")}
        took_s = sorted(took_s for _code, _word, took_s in self.lives)
        assert took_s[-1] < 15.0
        return f"{len(took_s)} times /livez: p50 {1000 * took_s[len(took_s) // 2]:.1f}, max {1000 * took_s[-1]:.1f} ms"


@pytest.mark.sampled(2)
def test_livez_always_succeeds_and_readyz_while_leasing(own_stage, measured):
    stage = own_stage
    stage.gate("import"), stage.gate("again"), stage.gate("job")
    # With a shorter lease, a loaded machine's disk could make Redis seem away.
    pool = start_app(stage, WAIT.format("import"), http="127.0.0.1:0", lease_ttl="5s")
    probes = Probes(pool)

    wait_for_arrival(stage, "import")
    probes.wait_for(503, "booting")
    stage.open_gate("import")
    probes.wait_for(200, "serving")

    put(stage, "hold", data="job")
    wait_for_arrival(stage, "job")
    busy_until_at = time.monotonic() + 5.5  # longer than a lease: an hour
    while time.monotonic() < busy_until_at:
        assert probes.ready() == (200, "serving")
        time.sleep(0.1)

    write_app(stage, WAIT.format("again"))
    pool.send(signal.SIGHUP)
    wait_for_arrival(stage, "again")
    probes.wait_for(200, "reloading")
    write_app(stage, "def (:")
    pool.send(signal.SIGHUP)
    pool.wait_for("reload.failed")
    probes.wait_for(200, "serving")

    pool.send(signal.SIGUSR2)
    probes.wait_for(503, "paused")
    pool.send(signal.SIGCONT)
    probes.wait_for(200, "serving")

    stage.server.kill()
    probes.wait_for(503, "redis-away")
    stage.server.start()
    probes.wait_for(200, "serving")
    stage.server.process.send_signal(signal.SIGSTOP)
    probes.wait_for(503, "redis-away")
    stage.server.process.send_signal(signal.SIGCONT)
    probes.wait_for(200, "serving")

    stage.open_gate("job")
    assert pool.drain() == 0
    measured(probes.assert_lived())
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
def test_readyz_names_the_steps_of_a_drain(stage):
    pool = start_app(stage, DEAF, http="127.0.0.1:0", drain_timeout="2s", term_grace="2s")
    probes = Probes(pool)
    put(stage, "deaf")
    stage.wait_until_counted(lambda: (stage.directory / "deaf").exists())
    pool.send(signal.SIGTERM)
    seen = []
    with contextlib.suppress(ConnectionError, http.client.HTTPException):
        while True:
            code, state = probes.ready()
            if [state] != seen[-1:]:
                assert code == 503 or (state, seen) == ("serving", [])
                seen.append(state)
    steps = [state for state in seen if state in ("draining", "interrupting", "killing", "leaving")]
    assert steps[:2] == ["draining", "interrupting"]
    assert pool.wait() == 0
    probes.assert_lived()
    stage.assert_nothing_left(waiting=["default"])


def test_broken_handlers_show_booting_until_the_end(stage):
    pool = start_app(stage, "time.sleep(1000)\n", http="127.0.0.1:0", boot_timeout="3s")
    probes = Probes(pool)
    probes.wait_for(503, "booting")
    assert pool.wait() == 71
    probes.assert_lived()
    stage.assert_nothing_left()


def test_a_continued_supervisor_is_well_again(stage):
    pool = stage.start(http="127.0.0.1:0").wait_ready()
    port = pool.find("http.listening")[0]["port"]
    pool.send(signal.SIGSTOP)
    done = _healthcheck(port)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("has not answered within 3 s: it is stopped, or starved\n")
    pool.send(signal.SIGCONT)
    pool.wait_for("signal.received", signal="SIGCONT")
    assert _healthcheck(port).stdout == "ok\n"
    assert _healthcheck(port, "--ready").stdout == "serving\n"
    assert pool.drain() == 0
    stage.assert_nothing_left()


def _healthcheck(port, *words):
    return subprocess.run(
        [sys.executable, "-m", "supervisor", "healthcheck", "--http", f"127.0.0.1:{port}", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.fixture
def hold_still():
    """Stop one thread of a process, as a debugger does."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    seize, interrupt, detach, wall = 0x4206, 0x4207, 17, 0x40000000

    @contextlib.contextmanager
    def hold(thread):
        if libc.ptrace(seize, thread, None, None) != 0:
            pytest.skip(f"a thread cannot be held here: {os.strerror(ctypes.get_errno())}")
        assert libc.ptrace(interrupt, thread, None, None) == 0
        os.waitpid(thread, wall)
        try:
            yield
        finally:
            libc.ptrace(detach, thread, None, None)

    return hold


def test_livez_tells_a_standing_loop_from_a_busy_one(stage, hold_still):
    pool = stage.start(http="127.0.0.1:0").wait_ready()
    probes = Probes(pool, watch=False)
    probes.wait_for(200, "serving")
    stage.wait_until_idle(1)
    stage.let_time_pass(0.5)
    until_it_waits(pool.process, "poll")  # else it could take Python's lock with it
    with hold_still(pool.pid):
        code, said = probes.get("/livez")
        assert code == 200 and re.fullmatch(r"busy for [\d.]+ s", said)
        code, said = probes.get("/readyz")
        assert code == 503 and said.startswith("the master's loop has not answered for ")
        if FULL:
            stage.let_time_pass(LIVE_S)
            code, said = probes.get("/livez")
            assert code == 503 and said.startswith("the master's loop stands still: no answer for 1")
    probes.wait_for(200, "serving")
    probes.wait_for(200, "ok", "/livez")
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_only_the_master_has_the_listener(stage):
    pool = stage.start(http="127.0.0.1:0", processes=2, jobs_per_child=0).wait_ready()
    port = pool.find("http.listening")[0]["port"]
    jid = stage.queue.put("look.around")
    stage.wait_until_ended([jid])
    seen = stage.client.job(jid).result
    sockets = [target for target in seen["descriptors"].values() if target.startswith("socket:")]
    assert len(sockets) == 2  # of the line to the master, each way

    def listens(pid):
        return [each.laddr.port for each in psutil.Process(pid).net_connections("inet") if each.status == "LISTEN"]

    assert listens(pool.pid) == [port]
    for pid in (pool.zygote_pid, *pool.child_pids()):
        assert listens(pid) == []
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_a_taken_port_is_78_and_starts_nothing(stage):
    pool = stage.start(http="127.0.0.1:0")
    taken = f"127.0.0.1:{pool.wait_for('http.listening')['port']}"
    other = stage.start(http=taken)
    assert other.wait() == 78
    assert other.events == []
    (said,) = other.said
    assert said.startswith(f"leasehold: --http {taken} cannot be had: another process listens there; end it")
    pool.wait_ready()
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_without_the_setting_there_is_no_listener_and_no_thread(stage):
    pool = stage.start().wait_ready()
    assert psutil.Process(pool.pid).net_connections("inet") == []
    names = []
    for thread in Path(f"/proc/{pool.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # those that connect end soon
            names.append((thread / "comm").read_text())
    assert names and not [name for name in names if "http" in name]
    assert not pool.find("http.listening")
    assert pool.drain() == 0
    stage.assert_nothing_left()


def _page(port, path):
    """Return type and text of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.getheader("Content-Type"), answer.read().decode()
    finally:
        connection.close()


def _looked(port, path):
    """Return the same with Redis' latest answer. A late answer leaves the previous one, also to the next query."""
    late = True
    while True:
        began_at = time.monotonic()
        page = _page(port, path)
        was_late, late = late, time.monotonic() - began_at >= LOOKED_S
        if not was_late and not late:
            return page


def test_status_and_metrics_show_current_queues(stage):
    pool = stage.start(http="127.0.0.1:0", processes=1, jobs_per_child=0).wait_ready()
    port = pool.find("http.listening")[0]["port"]
    jid = stage.queue.put("good.hold", stage.gate("job"))
    stage.wait_for_starts(jid)
    for waiting in (1, 2, 3):
        stage.queue.put("good.noop")
        kind, page = _looked(port, "/status")
        told = json.loads(page)
        assert kind == "application/json"
        assert (told["worker"], told["state"], told["busy"]) == (pool.worker, "serving", 1)
        assert told["children"][0]["jid"] == jid
        assert (told["autoscaling"]["ready"], told["autoscaling"]["running"]) == (waiting, 1)
    kind, page = _looked(port, "/metrics")
    assert kind.startswith("text/plain; version=")
    assert re.search(r'^leasehold_queue_jobs\{.*state="waiting".*\} 3\.0$', page, re.MULTILINE)
    stage.open_gate("job")
    stage.wait_until_ended([jid])
    assert pool.drain() == 0
    stage.assert_nothing_left(waiting=["default"])


def test_a_report_without_queues_costs_no_connection(stage):
    pool = stage.start(http="127.0.0.1:0", queue="nothing-*", lease_ttl="6s").wait_ready()
    _kind, page = _page(pool.find("http.listening")[0]["port"], "/metrics")
    assert "\nleasehold_desired_replicas 0.0\n" in page
    stage.let_time_pass(3.0)  # longer than Redis may be silent after an exchange has begun: a third of the lease
    assert pool.find("redis.lost") == []
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_without_the_extra_metrics_name_the_package(stage):
    (stage.directory / "sitecustomize.py").write_text("import sys; sys.modules['prometheus_client'] = None\n")
    pool = stage.start(
        http="127.0.0.1:0", environment={"PYTHONPATH": f"{stage.directory}:{ROOT}:{Path(__file__).parent}"}
    )
    missing = "metrics need the package prometheus-client: pip install 'leasehold[metrics]'"
    pool.wait_for("master.warned", message=f"/metrics is not served: {missing}")
    probes = Probes(pool, watch=False)
    assert probes.get("/metrics") == (501, missing)
    probes.wait_for(200, "serving")
    assert pool.drain() == 0
    stage.assert_nothing_left()
