"""The event log: the master's lines on stderr, one per event. Runs in the master.

Owns the table of events (names and fields are public), the buffer and its own descriptor. Must not block, and must not
change the flags of the shared stderr.
"""

import errno
import json
import os
import select
import socket
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import orjson

from supervisor import clock
from supervisor.ops.repeat_filter import RepeatFilter
from supervisor.ops.visible import visible, visible_json

T = TypeVar("T")

LEVELS: Final = ("debug", "info", "warning", "error")

#: Fields of every outcome of a job. Unknown ones are left out.
OUTCOME: Final = (
    "jid", "klass", "queue", "attempt", "wait_ms", "run_ms", "cpu_ms", "max_rss_bytes", "child", "trace",
)  # fmt: skip

#: name -> (level, fields), in the order of a worker's life.
EVENTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "master.started": (
        "info",
        (
            "worker", "pid", "queues", "order", "processes", "processes_reason", "memory_budget_mb",
            "memory_budget_reason", "cells", "redis", "server",
        ),
    ),
    "master.scaled": (
        "info",
        ("processes", "before", "fewest", "most", "reason", "signal", "by", "sender_pid", "sender_uid", "sender"),
    ),
    "master.paused": ("info", ("running", "signal", "by", "sender_pid", "sender_uid", "sender")),
    "master.resumed": ("info", ("signal", "by", "sender_pid", "sender_uid", "sender")),
    "queues.changed": ("info", ("queues", "order", "count")),
    "recurring.declared": ("info", ("put", "removed")),
    "queues.resolved": ("info", ("added", "removed", "count")),
    "master.warned": ("warning", ("message",)),
    "signal.received": ("info", ("signal", "sender_pid", "sender_uid", "sender", "effect")),
    "master.idle": ("info", ("idle_s",)),
    "master.draining": ("info", ("signal", "by", "sender_pid", "sender_uid", "sender", "left_s", "running", "jobs")),
    "master.hurried": ("warning", ("signal", "by", "sender_pid", "sender_uid", "sender", "left_s", "running")),
    "master.interrupting": ("info", ("left_s", "running", "jobs")),
    "master.killing": ("warning", ("left_s", "running", "jobs")),
    "master.leaving": ("info", ("left_s", "running")),
    "master.stopped": (
        "info",
        (
            "exit_code", "completed", "retried", "failed", "died", "released", "returned", "suspended", "uptime_s",
            "reload",
        ),
    ),
    "master.crashed": ("error", ("message", "traceback")),
    "zygote.spawned": ("debug", ("zygote", "pid")),
    "zygote.ready": ("info", ("zygote", "pid", "handlers", "boot_ms", "threads", "descriptors")),
    "sandbox.reported": ("info", ("zygote", "sandbox", "parts")),
    "zygote.failed": ("error", ("zygote", "message", "traceback")),
    "zygote.lost": ("error", ("zygote", "status", "running")),
    "zygote.retired": ("warning", ("zygote", "reason")),
    "reload.requested": ("info", ("by",)),
    "reload.completed": ("info", ("zygote", "boot_ms", "added", "removed", "by")),
    "reload.failed": ("error", ("message", "traceback")),
    "child.spawned": ("debug", ("child", "pid")),
    "child.ready": ("debug", ("child", "pid")),
    "child.killed": ("warning", ("child", "pid", "reason", "message", "jid")),
    "child.recycled": ("info", ("child", "pid", "reason")),
    "child.divided": ("warning", ("child", "pid", "reason", "jobs", "at_once", "klasses")),
    "child.seen": ("info", ("child", "pid", "jid", "klass", "running_s", "stack")),
    "child.reaped": ("debug", ("child", "pid", "status", "cpu_ms", "max_rss_bytes")),
    "lease.granted": ("debug", ("count",)),
    "lease.lost": ("warning", ("jid", "klass", "child", "reason", "by")),
    "lease.returned": ("debug", ("count",)),
    "job.started": ("debug", ("jid", "klass", "queue", "child", "attempt")),
    "job.completed": ("info", OUTCOME),
    "job.returned": ("info", OUTCOME),
    "job.suspended": ("info", (*OUTCOME, "signal", "timeout_s")),
    "job.retried": ("warning", (*OUTCOME, "group", "message", "remaining", "delay_s")),
    "job.failed": ("error", (*OUTCOME, "group", "message")),
    "job.died": ("error", (*OUTCOME, "reason", "deaths", "state", "message", "memory_bytes", "output", "stack")),
    "job.released": ("info", (*OUTCOME, "reason", "message", "memory_bytes", "output", "stack")),
    "job.stale": ("warning", (*OUTCOME, "verb", "reason", "message")),
    "job.cancelled": ("info", ("jid", "klass", "queue", "by")),
    "job.unknown": ("warning", ("jid", "klass", "queue")),
    "job.misfit": ("info", (*OUTCOME, "message")),
    "job.printed": ("info", ("jid", "klass", "child", "line")),
    "worker.deregistered": ("warning", ("old", "new")),
    "http.listening": ("info", ("address", "port")),
    "redis.lost": ("error", ("message", "retry_in_s")),
    "redis.connected": ("info", ("url", "server")),
    "redis.failed": ("error", ("message", "waiting")),
    "redis.unacknowledged": ("error", ("message",)),
    "redis.acknowledged": ("info", ("message", "replicas")),
    "log.dropped": ("warning", ("count", "bytes")),
}  # fmt: skip

#: Fields that text leaves out, for one line on a terminal.
JSON_ONLY: Final = {"master.started": frozenset({"processes_reason", "memory_budget_reason", "cells"})}

#: Buffer for a slow reader. Overflow is counted until the buffer is empty, so that gaps are few and reported once.
BUFFER_BYTES: Final = 2**20
#: The buffer is written from this size on without a flush.
WRITE_BYTES: Final = 2**16
#: A pipe takes up to PIPE_BUF bytes whole or not at all, so that lines are never torn or mixed.
PIPE_BYTES: Final = select.PIPE_BUF
#: A line above LINE_BYTES is made again with each value cut to VALUE_CHARS.
LINE_BYTES: Final = 2**18
VALUE_CHARS: Final = 2**14


_Encode = Callable[[float, str, str, dict[str, str], dict[str, Any]], bytes]


class Events:
    """The event log of one process. Not thread-safe."""

    def __init__(self, fd: int, format: str, level: str) -> None:
        """Write to what `fd` leads to; `fd` stays open and unchanged. `format`: json or text. `level`: the lowest to
        write.

        Never raises for a bad descriptor: lines that cannot be written are counted as dropped.
        """
        self._sink = _open(fd)
        self._encode = _text_line if format == "text" else _json_on_terminal if os.isatty(fd) else _json_line
        self._encode_each = _json_lines if self._encode is _json_line else partial(_one_by_one, self._encode)
        least = LEVELS.index(level)
        self._levels = {name: each for name, (each, _) in EVENTS.items() if LEVELS.index(each) >= least}
        self._logs_debug = level == "debug"
        self._always: dict[str, str] = {}
        self._repeats = RepeatFilter()
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._write_at_bytes = WRITE_BYTES
        self._dropped_count = 0
        self._dropped_bytes = 0
        self._dropped_before = 0  # those that a log.dropped line has reported
        self.counts = dict.fromkeys(EVENTS, 0)  # events so far, whatever the level

    def set_worker(self, worker: str) -> None:
        """Add the worker's name to each later line of JSON."""
        self._always = {"worker": worker}

    def emit(self, name: str, /, **fields: object) -> None:
        """Log one event without fields that are None. Never blocks; what the full buffer cannot take is counted.

        The line goes out with the next flush(), or by itself when 64 KiB wait. KeyError for an undeclared event.
        """
        self.counts[name] += 1  # an unknown name is a bug at any level
        level = self._levels.get(name)
        if level is not None:
            self._write(name, level, fields)

    def emit_quietly(self, name: str, /, **fields: object) -> None:
        """Log an event that another line has told already, at level debug."""
        self.counts[name] += 1
        if self._logs_debug:
            self._write(name, "debug", fields)

    def emit_lazily(self, name: str, fields_of: Callable[[T], dict[str, object]], about: T) -> None:
        """Log an event of each job. Its fields are made only if the level is logged."""
        self.counts[name] += 1
        level = self._levels.get(name)
        if level is not None:
            self._write(name, level, fields_of(about))

    def emit_each(self, name: str, fields_of: Callable[[T], dict[str, object]], abouts: Sequence[T]) -> None:
        """Log the same event of many jobs, as of now. No field of it is None or has a name that all lines have.

        The fields are made only if the level is logged.
        """
        self.counts[name] += len(abouts)
        level = self._levels.get(name)
        if level is not None:
            for line in self._encode_each(clock.unix(), name, level, self._always, map(fields_of, abouts)):
                self._add(line)

    def _write(self, name: str, level: str, fields: dict[str, object]) -> None:
        self._add(self._encode(clock.unix(), name, level, self._always, fields))

    def _add(self, line: bytes) -> None:
        if self._dropped_count:
            self.flush()
        if self._dropped_count or self._bytes + len(line) > BUFFER_BYTES:
            self._dropped_count += 1
            self._dropped_bytes += len(line)
            return
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= self._write_at_bytes:
            self.flush()

    def warn(self, message: str) -> None:
        """Log a problem that people may want to fix and that has ended nothing. Throttled as by `emit_throttled`."""
        self.emit_throttled("master.warned", message)

    def emit_throttled(self, name: str, message: str, /, **fields: object) -> None:
        """Log an event that may come each second. Repetitions are logged less and less often, and always counted."""
        text = self._repeats.admit(name, message, clock.monotonic())
        if text is None:
            self.counts[name] += 1
        else:
            self.emit(name, message=text, **fields)

    def end_throttling(self, name: str) -> None:
        """End the throttling of an event: its next occurrence is logged at once."""
        self._repeats.forget(name)

    @property
    def dropped(self) -> int:
        """Lines that were lost so far."""
        return self._dropped_before + self._dropped_count

    @property
    def pending(self) -> bool:
        """True if lines wait: call flush() when fileno() is writable."""
        return bool(self._lines)

    def fileno(self) -> int:
        """Return the descriptor to await while `pending`. A regular file keeps nothing pending."""
        return self._sink.fd

    def flush(self) -> None:
        """Write what the other end takes now. Never blocks; the rest stays `pending`."""
        try:
            while self._lines:
                self._forget(self._sink.write(self._chunk()))
            if self._dropped_count:
                self._report_dropped()
        except BlockingIOError:
            pass
        except OSError:  # EPIPE, EIO, ENOSPC …: the lines are lost, and there is no other place to report it
            self._dropped_count += len(self._lines)
            self._dropped_bytes += self._bytes
            self._lines.clear()
            self._bytes = 0
        self._write_at_bytes = self._bytes + WRITE_BYTES

    def close(self, timeout_s: float) -> None:
        """Write the rest for at most `timeout_s` seconds, and close the descriptor. Idempotent."""
        deadline_at = clock.monotonic() + timeout_s
        self.flush()
        while self._lines and (left_s := deadline_at - clock.monotonic()) > 0:
            waiter = select.poll()  # select() takes no descriptor above 1023
            waiter.register(self._sink.fd, select.POLLOUT)
            waiter.poll(left_s * 1000)
            self.flush()
        self._sink.close()
        self._sink = _nowhere()

    def _chunk(self) -> bytes:
        """Return the first lines that fit into one write. A line that does not fit goes alone."""
        if self._bytes <= self._sink.chunk_bytes:
            return b"".join(self._lines)
        size_bytes, taken = 0, 0
        for line in self._lines:
            size_bytes += len(line)
            if taken and size_bytes > self._sink.chunk_bytes:
                break
            taken += 1
        return b"".join([self._lines[i] for i in range(taken)])

    def _forget(self, written: int) -> None:
        """Remove the written bytes from the buffer. The rest of a cut line stays first."""
        self._bytes -= written
        if not self._bytes:
            self._lines.clear()
            return
        while written:
            line = self._lines.popleft()
            if len(line) > written:
                self._lines.appendleft(line[written:])
                return
            written -= len(line)

    def _report_dropped(self) -> None:
        """Report the gap. Called with an empty buffer, so that the line stands at the gap. The count is kept until
        then.
        """
        dropped = {"count": self._dropped_count, "bytes": self._dropped_bytes}
        line = self._encode(clock.unix(), "log.dropped", "warning", self._always, dropped)
        rest = line[self._sink.write(line) :]
        self._dropped_before += self._dropped_count
        self._dropped_count = self._dropped_bytes = 0
        if rest:
            self._lines.append(rest)
            self._bytes += len(rest)


@dataclass(frozen=True, slots=True)
class _Sink:
    """The target of lines. `write` returns the number of bytes taken, or raises BlockingIOError at once."""

    fd: int
    write: Callable[[bytes], int]
    chunk_bytes: int
    close: Callable[[], None]


def _open(fd: int) -> _Sink:
    """Return a sink that never waits, and leaves the flags alone that `fd` shares with other processes."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:  # EBADF: stderr was closed at start
        return _nowhere()
    if stat.S_ISREG(mode):
        return _Sink(fd, lambda chunk: os.write(fd, chunk), 2 * WRITE_BYTES, lambda: None)
    if stat.S_ISSOCK(mode):
        peer = socket.socket(fileno=os.dup(fd))
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        return _Sink(peer.fileno(), lambda chunk: peer.send(chunk, flags), PIPE_BYTES, peer.close)
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # EACCES: another user's terminal; ENOENT: no /proc; ENXIO: a pipe without reader
        return _Sink(fd, lambda chunk: _write_if_ready(fd, chunk), PIPE_BYTES, lambda: None)
    return _Sink(own, lambda chunk: os.write(own, chunk), PIPE_BYTES, lambda: os.close(own))


def _nowhere() -> _Sink:
    def refuse(chunk: bytes) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    return _Sink(-1, refuse, PIPE_BYTES, lambda: None)


def _write_if_ready(fd: int, chunk: bytes) -> int:
    """Write to a blocking descriptor. A pipe that is ready takes PIPE_BUF bytes without waiting."""
    waiter = select.poll()
    waiter.register(fd, select.POLLOUT)
    if not waiter.poll(0):
        raise BlockingIOError
    return os.write(fd, chunk[:PIPE_BYTES])


def _json_line(time_unix: float, name: str, level: str, always: dict[str, str], fields: dict[str, Any]) -> bytes:
    if None in fields.values():
        fields = _without_none(fields)
    record = {"time": time_unix, "at": _utc(time_unix), "event": name, "level": level, **always, **fields}
    try:
        # The newline makes a copy: orjson's own result occupies 4 KiB, however short it is.
        line = orjson.dumps(record, _plain) + b"\n"
    except TypeError:  # lone surrogates, an int above 64 bits, nesting: the event is logged all the same
        line = json.dumps(record, default=_plain).encode() + b"\n"
    return line if len(line) <= LINE_BYTES else _json_line(time_unix, name, level, always, _shortened(fields))


def _json_lines(
    time_unix: float, name: str, level: str, always: dict[str, str], each: Iterable[dict[str, Any]]
) -> Iterator[bytes]:
    """Yield the line for each of the fields. What all lines begin with is encoded once."""
    head = orjson.dumps({"time": time_unix, "at": _utc(time_unix), "event": name, "level": level, **always})
    begin = head[:-1] + b","
    for fields in each:
        try:
            line = begin + orjson.dumps(fields, _plain, orjson.OPT_APPEND_NEWLINE)[1:]
        except TypeError:
            line = _json_line(time_unix, name, level, always, fields)
        yield line if len(line) <= LINE_BYTES else _json_line(time_unix, name, level, always, fields)


def _one_by_one(
    encode: _Encode, time_unix: float, name: str, level: str, always: dict[str, str], each: Iterable[dict[str, Any]]
) -> Iterator[bytes]:
    return (encode(time_unix, name, level, always, fields) for fields in each)


def _json_on_terminal(time_unix: float, name: str, level: str, always: dict[str, str], fields: dict[str, Any]) -> bytes:
    line = _json_line(time_unix, name, level, always, fields)
    return visible_json(line[:-1].decode()).encode() + b"\n"


def _plain(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _shortened(fields: dict[str, Any]) -> dict[str, Any]:
    """Cut each value so that the line is short enough. The end is kept: a traceback's end says what happened."""
    short = {}
    for key, value in fields.items():
        text = value if isinstance(value, str) else _plain(value)
        short[key] = value if len(text) <= VALUE_CHARS else f"… {text[-VALUE_CHARS:]}"
    return short


def _utc(time_unix: float) -> str:
    """Format a time as ISO 8601, to the millisecond."""
    return f"{_utc_second(int(time_unix))}.{int(time_unix % 1 * 1000):03d}Z"


@lru_cache(maxsize=2)
def _utc_second(second_unix: int) -> str:
    return datetime.fromtimestamp(second_unix, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _text_line(time_unix: float, name: str, level: str, always: dict[str, str], fields: dict[str, Any]) -> bytes:
    """Return `14:03:12.345 job.completed  email.send jid=… run_ms=12  message`, with further lines of a value below."""
    words: list[str] = []
    last = blocks = ""
    left_out = JSON_ONLY.get(name, ())
    for key, value in _without_none(_shortened(fields)).items():
        if key in left_out:
            continue
        text = _shown(value)
        if "\n" in text:
            blocks += f"\n  {key}:" + "".join(f"\n    {line}" for line in text.splitlines())
        elif key in {"message", "line"}:
            last = f"  {text}"
        elif key == "klass":
            words.insert(0, text)
        elif key.endswith("_bytes"):
            words.append(f"{key.removesuffix('_bytes')}={int(text) / 2**20:.3g}MB")
        else:
            words.append(f"{key}={text}")
    head = f"{_clock_time(int(time_unix))}.{int(time_unix % 1 * 1000):03d} {name}"
    return f"{head}  {' '.join(words)}{last}{blocks}\n".encode("utf-8", "backslashreplace")


@lru_cache(maxsize=2)
def _clock_time(second_unix: int) -> str:
    return datetime.fromtimestamp(second_unix).strftime("%H:%M:%S")


def _shown(value: object) -> str:
    """Return a value for a terminal, without characters that move its cursor or change its colours."""
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ",".join(map(_shown, value))
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_shown(each)}" for key, each in value.items())
    return visible(_plain(value).rstrip("\n"))
