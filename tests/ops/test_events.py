"""The event log never blocks, tears no line, reports dropped lines, and leaves its descriptor unchanged."""

import ast
import contextlib
import fcntl
import json
import os
import pty
import socket
import time
from datetime import datetime
from pathlib import Path

import pytest

import supervisor.ops.events
from supervisor.ops.events import BUFFER_BYTES, EVENTS, LEVELS, Events
from tests.lengths import PATIENCE

DONE = {"jid": "j" * 22, "klass": "email.send", "queue": "default", "attempt": 1, "wait_ms": 1.5, "run_ms": 12.25}


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    for fd in (reading, writing):
        with contextlib.suppress(OSError):
            os.close(fd)


def drain(fd: int) -> bytes:
    parts = []
    while True:
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def events_of(raw: bytes) -> list[dict]:
    assert not raw or raw.endswith(b"\n")
    return [json.loads(line) for line in raw.splitlines()]


def test_a_json_line_leaves_out_fields_that_are_none(pipe):
    reading, writing = pipe
    events = Events(writing, "json", "info")
    before = time.time()
    events.emit("job.completed", **DONE, child=None)
    events.flush()
    (said,) = events_of(drain(reading))
    assert before <= said.pop("time") <= time.time() and said.pop("at")
    assert said == {"event": "job.completed", "level": "info", **DONE}


def test_json_lines_name_the_worker_and_text_lines_do_not(pipe):
    reading, writing = pipe
    for format in ("json", "text"):
        events = Events(writing, format, "info")
        events.set_worker("host-1-abc")
        events.emit("job.completed", **DONE, max_rss_bytes=3 * 2**20)
        events.set_worker("host-1-def")
        events.emit("worker.deregistered", old="host-1-abc", new="host-1-def")
        events.flush()
        raw = drain(reading)
        if format == "json":
            assert [each["worker"] for each in events_of(raw)] == ["host-1-abc", "host-1-def"]
        else:
            assert b"worker=" not in raw and b" max_rss=3MB\n" in raw


def test_no_event_has_a_field_that_hides_a_common_one():
    assert {name for name, (_, fields) in EVENTS.items() if {"time", "event", "level"} & set(fields)} == set()


def test_events_below_the_level_are_not_written(pipe):
    reading, writing = pipe
    events = Events(writing, "json", "warning")
    for name, (_level, fields) in EVENTS.items():
        if name != "log.dropped":
            events.emit(name, **dict.fromkeys(fields, 1))
    events.flush()
    said = {each["event"] for each in events_of(drain(reading))}
    assert said == {name for name, (level, _) in EVENTS.items() if level in ("warning", "error")} - {"log.dropped"}


@pytest.mark.parametrize("level", LEVELS)
def test_an_undeclared_event_is_a_bug_at_every_level(pipe, level):
    with pytest.raises(KeyError, match=r"job\.exploded"):
        Events(pipe[1], "json", level).emit("job.exploded")


def test_every_event_is_named_by_noun_and_participle_and_has_a_level():
    for name, (level, fields) in EVENTS.items():
        noun, participle = name.split(".")
        assert noun.isalpha() and participle.isalpha() and level in LEVELS and len(set(fields)) == len(fields)
        assert not {"time", "at", "event", "level", "name"} & set(fields)


def _called(call):
    return getattr(call.func, "attr", None) or getattr(call.func, "id", None)


def test_every_emit_in_the_package_names_declared_fields_only():
    root = Path(supervisor.ops.events.__file__).parents[1]
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and node.args and _called(node) in ("emit", "emit_quietly")):
                continue
            name = node.args[0]
            if isinstance(name, ast.Constant):
                given = {keyword.arg for keyword in node.keywords if keyword.arg}
                assert given <= set(EVENTS[name.value][1]), f"{path}:{node.lineno} {name.value}"


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\x00bytes",
        "lone \udcff surrogate",
        2**80,
        float("nan"),
        {"nested": b"\xff"},
        ("a", "b"),
        Path("/x"),
        {1: 2},
    ],
    ids=repr,
)
def test_an_event_with_any_value_is_written(pipe, value):
    reading, writing = pipe
    for format in ("json", "text"):
        events = Events(writing, format, "info")
        events.emit("master.warned", message=value)
        events.flush()
        raw = drain(reading)
        assert b"master.warned" in raw and raw.endswith(b"\n")
        if format == "json":
            assert events_of(raw)[0]["event"] == "master.warned"


def test_bytes_are_decoded_with_replacement(pipe):
    reading, writing = pipe
    events = Events(writing, "json", "info")
    events.emit("job.printed", jid="j", klass="k", child=1, line=b"caf\xc3\xa9 \xff")
    events.flush()
    assert events_of(drain(reading))[0]["line"] == "café �"


def test_a_huge_value_is_cut_to_its_end(pipe):
    reading, writing = pipe
    events = Events(writing, "json", "info")
    events.emit("job.failed", jid="j", message="x" * 3_000_000 + " the end", run_ms=3)
    events.flush()
    (said,) = events_of(drain(reading))
    assert len(said["message"]) < 20_000 and said["message"].endswith(" the end") and said["run_ms"] == 3


def test_a_json_line_has_an_iso_time(pipe):
    reading, writing = pipe
    events = Events(writing, "json", "info")
    events.warn("now")
    events.flush()
    (said,) = map(json.loads, os.read(reading, 100_000).splitlines())
    assert datetime.fromisoformat(said["at"]).timestamp() == pytest.approx(said["time"], abs=0.001)
    assert said["at"].endswith("Z")


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("klass", ["k", "lone \udcff surrogate", "x" * 3_000_000, 2**80], ids=["plain", *"abc"])
def test_many_events_at_once_are_written_as_each_alone(pipe, monkeypatch, format, klass):
    monkeypatch.setattr(supervisor.ops.events.clock, "unix", lambda: 1_700_000_000.125)
    reading, writing = pipe
    jobs = [{**DONE, "jid": f"j{n}", "klass": klass if n == 1 else "k"} for n in range(3)]
    written = []
    for many in (False, True):
        events = Events(writing, format, "info")
        events.set_worker("w-1")
        if many:
            events.emit_each("job.completed", dict, jobs)
        else:
            for job in jobs:
                events.emit("job.completed", **job)
        assert events.counts["job.completed"] == 3
        events.flush()
        written.append(drain(reading))
    assert written[0] == written[1] != b""


def test_fields_of_many_events_are_made_only_for_written_events(pipe):
    reading, writing = pipe
    events = Events(writing, "json", "info")
    events.emit_each("job.started", pytest.fail, ["a", "b"])
    events.emit_each("job.completed", pytest.fail, [])
    events.flush()
    assert (events.counts["job.started"], drain(reading)) == (2, b"")


def test_many_events_at_once_drop_what_the_buffer_cannot_take(pipe):
    reading, writing = pipe
    events = Events(writing, "json", "info")
    jobs = [{**DONE, "klass": "x" * 1000, "jid": str(n)} for n in range(4 * BUFFER_BYTES // 1000)]
    events.emit_each("job.completed", dict, jobs)
    assert 0 < events.dropped < len(jobs)
    said = b""
    while events.pending:
        events.flush()
        said += drain(reading)
    lines = events_of(said)
    assert [line["jid"] for line in lines[:-1]] == [str(n) for n in range(len(lines) - 1)]
    assert (lines[-1]["event"], lines[-1]["count"]) == ("log.dropped", len(jobs) - len(lines) + 1)


@pytest.mark.parametrize(("level", "count"), [("info", 0), ("debug", 1)])
def test_a_quiet_event_is_written_at_debug_and_counted(pipe, level, count):
    reading, writing = pipe
    events = Events(writing, "json", level)
    events.emit_quietly("child.recycled", child=1)
    events.warn("the end")
    events.flush()
    said = [json.loads(line) for line in os.read(reading, 100_000).splitlines()]
    assert [line["level"] for line in said] == ["debug"] * count + ["warning"]
    assert events.counts["child.recycled"] == 1


def test_a_terminal_gets_one_short_line_of_a_start(pipe):
    reading, writing = pipe
    events = Events(writing, "text", "info")
    events.emit("master.started", pid=1, cells="x" * 200, processes_reason="as given", memory_budget_reason="none")
    events.flush()
    assert os.read(reading, 100_000)[13:] == b"master.started  pid=1\n"


@pytest.mark.parametrize(("wait_ms", "text"), [(461.0, "461"), (461, "461"), (12.345, "12.3"), (0.1234, "0.123")])
def test_durations_look_alike(pipe, wait_ms, text):
    reading, writing = pipe
    events = Events(writing, "text", "info")
    events.emit("job.completed", wait_ms=wait_ms)
    events.flush()
    assert os.read(reading, 100_000)[13:] == f"job.completed  wait_ms={text}\n".encode()


def test_a_text_line_is_for_people(pipe):
    reading, writing = pipe
    events = Events(writing, "text", "info")
    events.emit("job.completed", jid="abc", klass="email.send", queue="default", run_ms=12.0)
    events.emit("job.failed", jid="abc", klass="email.send", message="line 1\n  line 2", group="ValueError")
    events.emit("job.printed", jid="abc", klass="email.send", line="hello \x1b[31mred\r")
    events.emit("sandbox.reported", zygote=1, parts={"user": "on", "files": "off"})
    events.flush()
    lines = drain(reading).decode().splitlines()
    stamps, texts = [line[:12] for line in lines], [line[13:] for line in lines]
    assert stamps[0].count(":") == 2 and stamps[0][8] == "."
    assert texts[0] == "job.completed  email.send jid=abc queue=default run_ms=12"
    assert texts[1] == "job.failed  email.send jid=abc group=ValueError"
    assert lines[2:5] == ["  message:", "    line 1", "      line 2"]
    assert texts[5] == "job.printed  email.send jid=abc  hello \\x1b[31mred\\x0d"
    assert texts[6] == "sandbox.reported  zygote=1"
    assert lines[7:] == ["  parts:", "    user: on", "    files: off"]


def test_lines_are_pending_until_flush(pipe):
    reading, writing = pipe
    events = Events(writing, "json", "info")
    assert not events.pending
    events.emit("job.completed", **DONE)
    assert events.pending and drain(reading) == b""
    events.flush()
    assert not events.pending and len(events_of(drain(reading))) == 1


def test_a_full_buffer_is_flushed(tmp_path):
    with open(tmp_path / "log", "wb") as file:
        events = Events(file.fileno(), "json", "info")
        for _ in range(1_000):
            events.emit("job.completed", **DONE)
        assert (tmp_path / "log").stat().st_size > 100_000


def test_a_stuck_reader_never_blocks_and_learns_what_was_dropped(pipe):
    reading, writing = pipe
    events = Events(writing, "json", "info")
    began = time.monotonic()
    total = 20_000
    for number in range(total):
        events.emit("job.completed", **{**DONE, "attempt": number})
        if number % 100 == 0:
            events.flush()
    assert time.monotonic() - began < 5 * PATIENCE
    assert events.pending
    raw = b""
    while events.pending:
        raw += drain(reading)
        events.flush()
    raw += drain(reading)
    events.emit("job.completed", **{**DONE, "attempt": total})
    events.flush()
    said = events_of(raw + drain(reading))
    dropped = [each for each in said if each["event"] == "log.dropped"]
    assert len(dropped) == 1 and said[-2] == dropped[0] and dropped[0]["level"] == "warning"
    completed = [each["attempt"] for each in said if each["event"] == "job.completed"]
    assert completed[:-1] == list(range(len(completed) - 1)), "what was kept is whole and in order"
    assert dropped[0]["count"] + len(completed) == total + 1
    assert dropped[0]["bytes"] / dropped[0]["count"] == pytest.approx(len(raw) / len(said), rel=0.1)
    assert len(raw) <= BUFFER_BYTES + 2**17, "the buffer, and what the pipe held"


def test_lines_of_two_writers_to_one_pipe_are_never_torn(pipe):
    reading, writing = pipe
    one, two = Events(writing, "json", "info"), Events(writing, "json", "info")
    raw = b""
    for number in range(3_000):
        one.emit("job.completed", **{**DONE, "attempt": number})
        two.emit("job.completed", **{**DONE, "attempt": number, "queue": "other"})
        if number % 7 == 0:
            one.flush()
            two.flush()
        if number % 400 == 0:
            raw += drain(reading)
    while one.pending or two.pending:
        raw += drain(reading)
        one.flush()
        two.flush()
    said = events_of(raw + drain(reading))
    for queue in ("default", "other"):
        assert [each["attempt"] for each in said if each["queue"] == queue] == list(range(3_000))


def test_flags_of_the_shared_descriptor_stay(pipe):
    _, writing = pipe
    before = fcntl.fcntl(writing, fcntl.F_GETFL)
    events = Events(writing, "json", "info")
    events.emit("job.completed", **DONE)
    events.flush()
    assert fcntl.fcntl(writing, fcntl.F_GETFL) == before and not before & os.O_NONBLOCK
    assert events.fileno() != writing and not os.get_inheritable(events.fileno())
    events.close(1)
    os.write(writing, b"still open")


def test_a_regular_file_is_appended_to(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    with open(path, "ab") as file:
        events = Events(file.fileno(), "json", "info")
        for _ in range(10):
            events.emit("job.completed", **DONE)
        events.close(1)
        file.write(b"after\n")
    lines = path.read_bytes().splitlines()
    assert lines[0] == b"before" and lines[-1] == b"after" and len(lines) == 12


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_socket_is_written_without_waiting_and_stays_blocking(kind):
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    theirs.setblocking(False)
    with ours, theirs:
        events = Events(ours.fileno(), "json", "info")
        for number in range(20_000):
            events.emit("job.completed", **{**DONE, "attempt": number})
        events.flush()
        assert events.pending
        assert not fcntl.fcntl(ours.fileno(), fcntl.F_GETFL) & os.O_NONBLOCK
        raw = drain(theirs.fileno())
        while events.pending:
            events.flush()
            raw += drain(theirs.fileno())
        said = events_of(raw)
        assert [each["attempt"] for each in said if each["event"] == "job.completed"] == list(
            range(sum(each["event"] == "job.completed" for each in said))
        )
        events.close(0)


def test_a_terminal_is_written_without_waiting():
    leader, follower = pty.openpty()
    try:
        events = Events(follower, "text", "info")
        for _ in range(5_000):
            events.emit("job.completed", **DONE)
        events.flush()
        assert events.pending and os.get_blocking(follower)
        assert b"job.completed" in os.read(leader, 4096)
        events.close(0)
    finally:
        os.close(leader)
        os.close(follower)


#: C1's CSI, DEL, a mark that turns the direction of writing, a character beyond U+FFFF; and harmless text.
WICKED, HARMLESS = "\x9b31m \x7f \u202egnp.exe \U000e0041", "é 注 😀"


def test_json_on_a_terminal_has_no_control_characters():
    leader, follower = pty.openpty()
    try:
        events = Events(follower, "json", "info")
        events.emit("master.warned", message=WICKED + HARMLESS)
        events.close(1)
        raw = os.read(leader, 4096)
    finally:
        os.close(leader)
        os.close(follower)
    assert json.loads(raw)["message"] == WICKED + HARMLESS
    assert raw.decode().strip().isprintable() and HARMLESS in raw.decode()


def test_json_elsewhere_is_unescaped(pipe):
    reading, writing = pipe
    events = Events(writing, "json", "info")
    events.emit("master.warned", message=WICKED)
    events.flush()
    assert WICKED in drain(reading).decode()
    events.close(0)


def test_a_reader_that_has_gone_is_no_error_and_no_wait(pipe):
    reading, writing = pipe
    events = Events(writing, "json", "info")
    os.close(reading)
    for _ in range(10_000):
        events.emit("job.completed", **DONE)
    events.flush()
    assert not events.pending
    late = Events(writing, "json", "info")  # the pipe cannot even be opened again
    late.emit("job.completed", **DONE)
    late.flush()
    assert not late.pending
    events.close(1)
    late.close(1)


def test_a_stderr_that_was_closed_at_the_start_is_no_error():
    fd = os.open("/dev/null", os.O_WRONLY)
    os.close(fd)
    events = Events(fd, "json", "info")
    events.emit("job.completed", **DONE)
    events.flush()
    assert not events.pending
    events.close(1)


def test_a_full_disk_leaves_a_reported_gap():
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        events = Events(fd, "json", "info")
        for _ in range(3):
            events.emit("job.completed", **DONE)
            events.flush()
        assert not events.pending and events._dropped_count == 3
    finally:
        os.close(fd)


def test_a_pipe_that_cannot_be_reopened_never_blocks(pipe, monkeypatch):
    reading, writing = pipe

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("supervisor.ops.log_sink.os.open", refuse)
    events = Events(writing, "json", "info")
    for number in range(2_000):
        events.emit("job.completed", **{**DONE, "attempt": number})
    events.flush()
    assert events.pending and events.fileno() == writing
    raw = b""
    while events.pending:
        raw += drain(reading)
        events.flush()
    assert [each["attempt"] for each in events_of(raw + drain(reading))] == list(range(2_000))


def test_close_waits_for_a_slow_reader_until_its_timeout(pipe):
    _, writing = pipe
    events = Events(writing, "json", "info")
    for _ in range(3_000):
        events.emit("job.completed", **DONE)
    began = time.monotonic()
    events.close(0.3)
    assert 0.25 < time.monotonic() - began < 5
    events.close(0.3)
    events.emit("job.completed", **DONE)
    events.flush()


def test_an_event_costs_microseconds_of_processor_time(tmp_path):
    with open("/dev/null", "wb") as sink:
        events = Events(sink.fileno(), "json", "info")
        best_said = best_unsaid = 1.0
        for _ in range(5):
            began = time.process_time()
            for _ in range(5_000):
                events.emit("job.completed", **DONE)
            middle = time.process_time()
            for _ in range(5_000):
                events.emit("job.started", **DONE)
            best_said = min(best_said, (middle - began) / 5_000)
            best_unsaid = min(best_unsaid, (time.process_time() - middle) / 5_000)
    assert best_said < 20e-6 and best_unsaid < 3e-6, "measured: 1.3 µs and 0.15 µs"
