"""A supervisor explains each failure between the import of the handlers and a ready child, and retries some."""

import json
import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from apps import flag, start_app, wait_for_arrival
from supervised import await_ends

IN_A_ROW = 6


@pytest.fixture
def app(stage):
    """Write the handlers, and start a supervisor for them."""
    return partial(start_app, stage)


def counted(stage, name):
    path = stage.directory / name
    return path.stat().st_size if path.exists() else 0


def warnings(pool):
    return [event["message"] for event in pool.find("master.warned")]


def wait_for_warning(stage, pool, text, nth=1):
    stage.wait_until(lambda: sum(text in said for said in warnings(pool)) >= nth, f"warning {nth} of {text!r}")
    return [said for said in warnings(pool) if text in said][nth - 1]


def assert_works(stage, pool):
    jids = stage.queue.put_many([{"klass": "noop"} for _ in range(5)])
    stage.wait_until_ended(jids)
    assert set(stage.states(jids)) == {"complete"}
    assert pool.drain() == 0
    stage.assert_nothing_left()


def assert_gave_up(stage, pool):
    """Check exit code 71, and return the last line, which names the cause."""
    assert pool.wait() == 71
    assert pool.events[-1]["event"] == "zygote.failed"
    return pool.events[-1]


# what is held back


def test_import_that_lacks_a_withheld_variable_is_explained(stage, app):
    pool = app("import os; url = os.environ['REDIS_URL']", environment={"REDIS_URL": stage.server.url})
    message = assert_gave_up(stage, pool)["message"]
    assert message.startswith("the handlers cannot be imported: KeyError: 'REDIS_URL' (handlers do not get REDIS_URL")
    (warning,) = (said for said in warnings(pool) if "REDIS_URL" in said)
    assert "an account of their own" in warning and stage.server.url not in warning + message


WANTING = """
@handler(retries=0)
def url(job): os.environ["REDIS_URL"]

@handler(retries=0)
def debugged(job): breakpoint()
"""


def test_job_that_lacks_a_withheld_variable_is_explained(stage, app):
    pool = app(WANTING, environment={"REDIS_URL": stage.server.url}).wait_ready()
    jids = [stage.queue.put(klass) for klass in ("url", "debugged")]
    stage.wait_until_ended(jids)
    wants, debugged = (stage.client.job(jid).failure for jid in jids)
    assert (wants["group"], debugged["group"]) == ("KeyError", "BdbQuit")
    assert "handlers do not get REDIS_URL" in wants["message"] and "no terminal" in debugged["message"]
    assert pool.drain() == 0
    stage.client.cancel(*jids)
    stage.assert_nothing_left()


# zygotes

BROKEN = {
    "raises": ("raise LookupError('no such thing')", "no such thing"),
    "exits": ("os._exit(5)", "exit-5"),
    "segfaults": ("ctypes.string_at(0)", "SIGSEGV"),
    "hangs": ("time.sleep(1000)", "6 s"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_failed_later_zygote_is_retried_and_the_supervisor_stays(stage, app, how):
    source, why = BROKEN[how]
    pool = app(f"if is_set('broken'): {source}", boot_timeout="6s" if how == "hangs" else "60s").wait_ready()
    flag(stage, "broken")
    os.kill(pool.zygote_pid, signal.SIGKILL)
    failures = 1 if how == "hangs" else 3
    failure = pool.wait_for("zygote.failed", nth=failures)
    flag(stage, "broken", on=False)
    assert failure["zygote"] == 1 + failures
    assert why in failure["message"]
    if how == "raises":
        assert "app/__init__.py" in failure["traceback"]
    assert_works(stage, pool)


def test_first_zygote_killed_while_booting_is_retried(stage, app):
    stage.gate("import")
    pool = app("wait_at('import')")
    wait_for_arrival(stage, "import")
    os.kill(pool.zygote_pid, signal.SIGKILL)
    assert pool.wait_for("zygote.failed")["message"].startswith("the process that imports 'app' ended meanwhile")
    stage.open_gate("import")
    assert_works(stage, pool)


def test_always_killed_first_zygotes_make_status_71(stage, app):
    pool = app("os.kill(os.getpid(), signal.SIGKILL)")
    last = assert_gave_up(stage, pool)
    assert "SIGKILL" in last["message"]
    assert len(pool.find("zygote.spawned")) == IN_A_ROW
    stage.assert_nothing_left()


@pytest.mark.parametrize("how", ["segfaults", "hangs"])
def test_last_line_names_where_the_import_crashed_or_hung(stage, app, how):
    pool = app(f"def connect(): {BROKEN[how][0]}\nconnect()", boot_timeout="5s")
    last = assert_gave_up(stage, pool)
    assert "in connect" in last["traceback"]
    assert "app/__init__.py" in last["traceback"]
    assert pool.said == []
    stage.assert_nothing_left()


def test_six_failed_boots_in_a_row_make_status_71(stage, app):
    pool = app("if is_set('broken'): raise LookupError('no such thing')").wait_ready()
    flag(stage, "broken")
    os.kill(pool.zygote_pid, signal.SIGKILL)
    last = assert_gave_up(stage, pool)
    assert "no such thing" in last["message"]
    assert "app/__init__.py" in last["traceback"]
    assert len(pool.find("zygote.spawned")) == 1 + IN_A_ROW
    stage.assert_nothing_left()


def test_zygotes_lost_before_a_ready_child_make_status_71(stage, app):
    source = "@after_fork\ndef bite(): os.kill(os.getppid(), signal.SIGKILL); time.sleep(1000)"
    pool = app(source, sandbox="none")
    last = assert_gave_up(stage, pool)
    assert "SIGKILL" in last["message"]
    assert len(pool.find("zygote.spawned")) == IN_A_ROW
    stage.assert_nothing_left()


@pytest.mark.slow
def test_zygote_killing_job_never_ends_the_supervisor(stage, app):
    source = "@handler\ndef bite(job): os.kill(os.getppid(), signal.SIGKILL); time.sleep(1000)"
    pool = app(source, sandbox="none").wait_ready()
    jid = stage.queue.put("bite", max_deaths=IN_A_ROW - 2)
    stage.wait_until_ended([jid], 50)
    assert stage.client.job(jid).state == "failed"
    assert len(pool.find("zygote.lost")) == IN_A_ROW
    assert not pool.find("zygote.failed")
    assert_works(stage, pool)


NONSENSE = (
    ["Ready", {"noop": {"no_such_setting": 1}}, [], []],
    ["Ready", {"noop": {"timeout_s": "soon"}}, [], []],
    ["Ready", {"noop": None}, [], []],
    ["Ready", [], [], []],
    ["Ready", {}, [1], []],
    ["Ready", {"noop": {}}, [], [], False, {}, [], {}, "", {"a" * 16: {"type": "object"}}],
    ["Ready", {"noop": {}}, [], [], False, {}, [], {}, "", {"a\nb": "{}"}],
    ["Ready", {"noop": {}}, [], [], False, {}, [], {}, "", {"a" * 16: " " * 16_385}],
    ["Reaped", 1, 2, "three", 0.1, 5],
    ["Reaped", 1, 2, 10**12, 0.1, 5],
    ["Reaped", 1, 2, 0, 1e308, 5],
    ["Reaped", 1, 2, 0, 0.1, -5],
    ["Spawn", 1],
    ["Nothing"],
    {},
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda nonsense: str(nonsense)[:99])
def test_nonsense_on_the_control_socket_is_a_failed_boot(stage, app, nonsense):
    pool = app(f"socket.socket(fileno=os.dup(3)).send({json.dumps(nonsense).encode()})\ntime.sleep(1000)")
    last = assert_gave_up(stage, pool)
    assert "nonsense" in last["message"]
    stage.assert_nothing_left()


def test_too_deeply_nested_nonsense_is_a_failed_boot(stage, app):
    deep = "[" * 1000 + "]" * 1000
    said = f'["Reaped",{deep},1,1,1,1]'.encode()
    pool = app(f"socket.socket(fileno=os.dup(3)).send({said})\ntime.sleep(1000)")
    assert "nonsense" in assert_gave_up(stage, pool)["message"]
    stage.assert_nothing_left()


def test_too_long_nonsense_is_a_failed_boot(stage, app):
    pool = app("os.write(3, b'x' * 205_000)\ntime.sleep(1000)")
    assert "nonsense" in assert_gave_up(stage, pool)["message"]
    stage.assert_nothing_left()


def test_endless_descriptor_instead_of_a_memfd_blocks_nothing(stage, app):
    pool = app(
        "ours = socket.socket(fileno=os.dup(3))\nends = os.pipe()\n"
        "socket.send_fds(ours, [b'memfd'], [ends[0]])\ntime.sleep(1000)"
    )
    assert "nonsense" in assert_gave_up(stage, pool)["message"]
    stage.assert_nothing_left()


def test_descriptor_of_no_child_is_nonsense(stage, app):
    pool = app(
        "ours = socket.socket(fileno=os.dup(3))\nfile = os.open('/dev/null', os.O_RDONLY)\n"
        "socket.send_fds(ours, [b'[\"Spawned\",1,2]'], [file])\ntime.sleep(1000)"
    )
    assert "not the descriptor of a child" in assert_gave_up(stage, pool)["message"]
    stage.assert_nothing_left()


# children


def test_always_raising_after_fork_hook_makes_status_71(stage, app, measured):
    pool = app("@after_fork\ndef connect():\n    raise ConnectionError('no database')", processes=3)
    jid = stage.queue.put("noop")
    pool.wait_for("zygote.ready")
    began_at = time.monotonic()
    last = assert_gave_up(stage, pool)
    measured(f"{IN_A_ROW} children in a row that do not get ready: exit after {time.monotonic() - began_at:.1f} s")
    assert "exit-70" in last["message"]
    assert "6 times in a row" in last["message"]
    assert "ConnectionError: no database" in last["traceback"]
    assert "app/__init__.py" in last["traceback"]
    assert len(pool.find("child.spawned")) == 3 + IN_A_ROW - 1, "all that are asked for together count once"
    assert len(warnings(pool)) == IN_A_ROW - 1
    assert stage.states([jid]) == ["waiting"]
    stage.assert_nothing_left(waiting=["default"])


def test_after_fork_hook_that_raises_twice_only_delays(stage, app):
    pool = app("@after_fork\ndef connect():\n    if count('tries') <= 2: raise ConnectionError('not yet')")
    assert "not yet" in wait_for_warning(stage, pool, "before it was ready")
    assert "2 times in a row" in wait_for_warning(stage, pool, "before it was ready", 2)
    assert_works(stage, pool)


def test_occasional_failed_children_never_end_the_supervisor(stage, app):
    pool = app("@after_fork\ndef connect():\n    if count('tries') % 2: raise ConnectionError('every other time')")
    jids = stage.queue.put_many([{"klass": "noop"} for _ in range(IN_A_ROW + 2)])
    stage.wait_until_ended(jids)
    assert counted(stage, "tries") > 2 * IN_A_ROW and warnings(pool)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_hanging_after_fork_hook_is_killed_and_its_zygote_stays(stage, app):
    pool = app(
        "@after_fork\ndef connect_to_nowhere():\n"
        "    first = count('tries') == 1\n"
        "    while first: ctypes.CDLL(None).sleep(1000)",
        boot_timeout="6s",
    )
    warning = wait_for_warning(stage, pool, "before it was ready")
    assert "not ready within 6 s" in warning
    assert "in connect_to_nowhere" in warning
    assert pool.find("child.killed", reason="boot")
    assert not pool.find("zygote.retired")
    assert len(pool.find("zygote.spawned")) == 1
    assert_works(stage, pool)


def test_hook_that_writes_to_our_sockets_is_named_with_status_71(stage, app):
    source = """
@after_fork
def babble():
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            os.write(fd, b"x" * 40) if "socket" in os.readlink(f"/proc/self/fd/{fd}") else None
        except OSError:
            continue
    time.sleep(1000)
"""
    last = assert_gave_up(stage, app(source))
    assert "nonsense" in last["message"]
    stage.assert_nothing_left()


def test_running_jobs_finish_though_no_new_child_gets_ready(stage, app):
    pool = app("@after_fork\ndef connect():\n    if is_set('broken'): raise ConnectionError('gone')", processes=2)
    pool.wait_ready()
    gate = stage.gate("gate")
    jid = stage.queue.put("hold", gate)
    pool.wait_for("job.started", jid=jid)
    flag(stage, "broken")
    for pid in pool.child_pids():
        if pid != pool.find("child.spawned", child=pool.find("job.started", jid=jid)[0]["child"])[-1]["pid"]:
            os.kill(pid, signal.SIGKILL)
    pool.wait_for("master.draining", timeout_s=40)  # for a while it is taken for an outage of what the hook needs
    stage.open_gate(gate)
    last = assert_gave_up(stage, pool)
    assert "ConnectionError: gone" in last["traceback"]
    assert stage.states([jid]) == ["complete"]
    stage.assert_nothing_left()


# hooks


def test_hook_that_unblocks_signals_keeps_jobs_interruptible(stage, app):
    source = """
@after_fork
def as_it_was_at_first():
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signo, signal.SIG_DFL)

@handler
def work(job):
    try:
        (HERE / "begun").touch()
        time.sleep(600)
    except BaseException as error:
        (HERE / "told").write_text(type(error).__name__)
        raise
"""
    pool = app(source, processes=1).wait_ready()
    jid = stage.queue.put("work")
    stage.wait_until(lambda: (stage.directory / "begun").exists(), "the job at work")
    assert stage.client.cancel(jid)
    pool.wait_for("job.stale", jid=jid)
    assert (stage.directory / "told").read_text() == "Interrupted"
    assert_works(stage, pool)


def test_hooks_run_in_their_process_and_as_often_as_documented(stage, app):
    source = """
def say(what): open(HERE / "said", "a").write(f"{what} {os.getpid()}\\n")

@before_fork
def first(): say("before")

@before_fork
def second(): say("before-too")

@after_fork
def connect(): say("after")

@on_exit
def disconnect(): say("exit")

@handler
def work(job): say("job")
"""
    pool = app(source, jobs_per_child=2).wait_ready()
    jids = stage.queue.put_many([{"klass": "work"} for _ in range(4)])
    stage.wait_until_ended(jids)
    stage.wait_until(lambda: len(pool.find("child.ready")) == len(pool.find("child.spawned")) > 2, "the next one")
    zygote = str(pool.zygote_pid)
    assert pool.drain() == 0
    said = [line.split() for line in (stage.directory / "said").read_text().splitlines()]
    befores = [what for what, pid in said if pid == zygote]
    assert befores == ["before", "before-too"] * (len(befores) // 2)
    children = list(dict.fromkeys(pid for _what, pid in said if pid != zygote))
    assert len(befores) // 2 >= len(children), "the drain may come between the hook and the child's own"
    own = {child: [what for what, pid in said if pid == child] for child in children}
    assert [own[child] for child in children[:2]] == [["after", "job", "job", "exit"]] * 2
    assert all(what in ([], ["after", "exit"]) for what in map(own.get, children[2:])), "also in a drain"
    stage.assert_nothing_left()


def test_before_fork_hook_that_raises_twice_only_delays(stage, app):
    source = "@before_fork\ndef let_go():\n    if count('tries') <= 2: raise RuntimeError('still in use')"
    pool = app(source)
    warning = wait_for_warning(stage, pool, "before_fork", 2)
    assert "RuntimeError: still in use" in warning
    assert "app/__init__.py" in warning
    assert_works(stage, pool)


def test_always_raising_before_fork_hook_makes_status_71(stage, app):
    pool = app("@before_fork\ndef let_go():\n    sys.exit('never')")
    last = assert_gave_up(stage, pool)
    assert "before_fork" in last["message"]
    assert "SystemExit: never" in last["message"]
    assert "in let_go" in last["traceback"]
    assert not pool.find("child.spawned")
    stage.assert_nothing_left()


@pytest.mark.slow
def test_hanging_before_fork_hook_costs_a_zygote_and_no_job(stage, app):
    pool = app("@before_fork\ndef let_go():\n    if is_set('hang'): time.sleep(1000)", processes=2).wait_ready()
    gate = stage.gate("gate")
    held = stage.queue.put("hold", gate)
    pool.wait_for("job.started", jid=held)
    hung = pool.zygote_pid
    flag(stage, "hang")
    jids = stage.queue.put_many([{"klass": "noop"} for _ in range(6)])
    pool.wait_for("zygote.retired")
    flag(stage, "hang", on=False)
    stage.wait_until_ended(jids)
    assert stage.states([held]) == ["running"]
    stage.open_gate(gate)
    stage.wait_until_ended([held])
    assert {stage.client.job(jid).deaths for jid in (held, *jids)} == {0}
    assert await_ends([hung], 10.0) == [], "it is not left behind"
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_nothing_survives_a_master_killed_during_a_before_fork_hook(stage, app):
    pool = app("@before_fork\ndef let_go():\n    if count('tries') == 2: time.sleep(1000)", processes=2)
    stage.wait_until_counted(lambda: counted(stage, "tries") == 2)
    pids = [pool.zygote_pid, *pool.child_pids()]
    pool.send(signal.SIGKILL)
    assert await_ends(pids, 20.0) == []
    pool.wait()


# what forks share


def test_preloaded_threads_sockets_and_files_are_named(stage, app):
    source = """
class Reporter(threading.Thread):
    def run(self): time.sleep(1000)

def poll_forever(): time.sleep(1000)

threading.Thread(target=poll_forever, name="poller", daemon=True).start()
Reporter(name="reporter", daemon=True).start()
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
pair = socket.socketpair()
log = open(HERE / "app.log", "a")
ends = os.pipe()
event = os.eventfd(0) if hasattr(os, "eventfd") else None
import select
poll = select.epoll()
harmless = open("/dev/null")
helper = subprocess.Popen(["sleep", "1000"])
"""
    pool = app(source)
    ready = pool.wait_for("zygote.ready")
    threads, descriptors = ready["threads"], ready["descriptors"]
    assert any(said.startswith("poller (app.poll_forever, app/__init__.py:") for said in threads)
    assert any(said.startswith("reporter (app.Reporter.run, app/__init__.py:") for said in threads)
    assert any(said.startswith("process ") for said in threads)
    assert len(threads) == 3
    words = [said.split(": ", 1)[1] for said in descriptors]
    listening = next(
        said.rsplit(" ", 1)[1] for said in words if said.startswith("TCP socket that listens at 127.0.0.1:")
    )
    assert any(said.startswith("TCP socket 127.0.0.1:") and said.endswith(f"-> {listening}") for said in words)
    assert words.count("Unix socket") == 2
    assert str(stage.directory / "app.log") in words
    assert words.count("pipe") == 2
    assert "epoll" in words
    assert "eventfd" in words
    assert not any("/dev/null" in said for said in words)
    said = " ".join(warnings(pool))
    assert "poller" in said
    assert "app.log" in said
    assert said.count("after_fork") == 2
    helper = int(next(said for said in threads if said.startswith("process ")).split()[1])
    jids = stage.queue.put_many([{"klass": "noop"} for _ in range(3)])
    stage.wait_until_ended(jids)
    assert psutil.pid_exists(helper), "what the import has started is no leftover of a job"
    assert pool.drain() == 0
    assert await_ends([helper], 20.0) == []
    stage.assert_nothing_left()


def test_well_behaved_handlers_cause_no_warning(stage, app):
    pool = app("joined = threading.Thread(target=int)\njoined.start()\njoined.join()\nopen(HERE / 'x', 'w').close()")
    ready = pool.wait_for("zygote.ready")
    assert "threads" not in ready
    assert "descriptors" not in ready
    assert warnings(pool) == []
    assert_works(stage, pool)


def test_children_draw_different_random_numbers(stage, app):
    (stage.directory / "numpy").mkdir()
    (stage.directory / "numpy" / "__init__.py").write_text("from numpy import random\n")
    (stage.directory / "numpy" / "random.py").write_text(
        "from random import Random\n_state = Random(1)\n"
        "def seed(value=None): _state.seed(value)\n"
        "def rand(): return _state.random()\n"
    )
    source = """
import ssl, uuid
import numpy

ssl.RAND_bytes(8)
random.random()

@handler
def draw(job):
    return {"random": random.random(), "numpy": numpy.random.rand(), "uuid": uuid.uuid4().hex,
            "secrets": secrets.token_hex(), "ssl": ssl.RAND_bytes(16).hex(), "pid": os.getpid()}
"""
    pool = app(source, processes=4).wait_ready()
    jids = stage.queue.put_many([{"klass": "draw"} for _ in range(64)])
    stage.wait_until_ended(jids)
    drawn = [job.result for job in stage.client.jobs(*jids)]
    for source in drawn[0]:
        assert len({each[source] for each in drawn}) == 64, source
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(2)
def test_zygote_keeps_one_thread_and_forks_without_warning(stage, app):
    pool = app("", processes=3, environment={"PYTHONWARNINGS": "always::DeprecationWarning"}).wait_ready()
    jids = stage.queue.put_many([{"klass": "noop"} for _ in range(300)])
    looks = 0
    while (seen := len(stage.ended())) < 300:
        with suppress(FileNotFoundError):  # a starved zygote is replaced
            assert len(os.listdir(f"/proc/{pool.zygote_pid}/task")) == 1
            looks += 1
        stage.wait_until(lambda seen=seen: len(stage.ended()) > seen, "another end")
    assert looks > 1
    assert set(stage.states(jids)) == {"complete"}
    assert pool.drain() == 0
    assert pool.said == []
    assert not pool.find("job.printed")
    stage.assert_nothing_left()


def test_kernel_kills_children_before_the_master(stage, app):
    pool = app("").wait_ready()

    def score(pid):
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    assert min(score(pid) for pid in pool.child_pids()) >= min(1000, score(pool.pid) + 100)
    assert_works(stage, pool)


def test_refused_forks_are_retried_for_ever(stage, app):
    """A refused fork is no failed boot, because it says nothing about the handlers."""
    source = """
import errno
fork = os.fork
def refused():
    count("refusals")
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
os.fork = lambda: refused() if is_set("full") else fork()
"""
    flag(stage, "full")
    pool = app(source, processes=3)
    stage.wait_until(lambda: counted(stage, "refusals") > 3 * IN_A_ROW, "more refusals than failed boots may be")
    assert 1 <= len(warnings(pool)) <= 4, "the same is said less and less often"
    flag(stage, "full", on=False)
    assert_works(stage, pool)
