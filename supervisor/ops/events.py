"""What the master says, one line per event, written by the master itself to its stderr.

Owns the table of events (their names and fields are part of the interface), the buffer and a descriptor of its own.
Must not block, whoever reads the other end or does not, and must not change the flags of the stderr it shares.
"""

import errno
import json
import os
import select
import socket
import stat
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, TypeVar

import orjson

from supervisor import clock
from supervisor.ops.repeats import Repeats
from supervisor.ops.visible import visible, visible_json

T = TypeVar("T")

LEVELS: Final = ("debug", "info", "warning", "error")

#: What the end of a job is said with, whichever it is; what nobody knows is left out.
OUTCOME: Final = (
    "jid", "klass", "queue", "attempt", "wait_ms", "run_ms", "cpu_ms", "max_rss_bytes", "child", "trace",
)  # fmt: skip

#: name -> (level, fields). Said in the order of a worker's life.
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
        ("exit_code", "completed", "retried", "failed", "died", "released", "returned", "uptime_s", "reload"),
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
    "child.seen": ("info", ("child", "pid", "jid", "klass", "running_s", "stack")),
    "child.reaped": ("debug", ("child", "pid", "status", "cpu_ms", "max_rss_bytes")),
    "lease.granted": ("debug", ("count",)),
    "lease.lost": ("warning", ("jid", "klass", "child", "reason", "by")),
    "lease.returned": ("debug", ("count",)),
    "job.started": ("debug", ("jid", "klass", "queue", "child", "attempt")),
    "job.completed": ("info", OUTCOME),
    "job.returned": ("info", OUTCOME),
    "job.retried": ("warning", (*OUTCOME, "group", "message", "remaining", "delay_s")),
    "job.failed": ("error", (*OUTCOME, "group", "message")),
    "job.died": ("error", (*OUTCOME, "reason", "deaths", "state", "message", "memory_bytes", "output", "stack")),
    "job.released": ("info", (*OUTCOME, "reason", "message", "memory_bytes", "output", "stack")),
    "job.stale": ("warning", (*OUTCOME, "verb", "reason", "message")),
    "job.unknown": ("warning", ("jid", "klass", "queue")),
    "job.printed": ("info", ("jid", "klass", "child", "line")),
    "worker.deregistered": ("warning", ("old", "new")),
    "http.listening": ("info", ("address", "port")),
    "redis.lost": ("error", ("message", "retry_in_s")),
    "redis.connected": ("info", ("url", "server")),
    "redis.failed": ("error", ("message", "waiting")),
    "log.dropped": ("warning", ("count", "bytes")),
}  # fmt: skip

#: Fields that text leaves out: a person at a terminal wants one line.
JSON_ONLY: Final = {"master.started": frozenset({"processes_reason", "memory_budget_reason", "cells"})}

#: What may wait for a slow reader. What comes then is counted, until all of it has gone out: few gaps, each said once.
BUFFER_BYTES: Final = 2**20
#: Buffered lines are written from here on, even when nobody asks.
WRITE_BYTES: Final = 2**16
#: A pipe takes up to PIPE_BUF whole or not at all: lines are then never torn, nor mixed with another writer's.
PIPE_BYTES: Final = select.PIPE_BUF
#: A line above LINE_BYTES is said again with each of its values cut to VALUE_CHARS.
LINE_BYTES: Final = 2**18
VALUE_CHARS: Final = 2**14


class Events:
    """The event log of one process. Not for several threads."""

    def __init__(self, fd: int, format: str, level: str) -> None:
        """Write to where `fd` leads; it stays open and as it is. `format`: json or text; `level`: the least to say.

        Never raises for a bad descriptor: what cannot be written is counted as dropped.
        """
        self._sink = _open(fd)
        self._encode = _text_line if format == "text" else _json_on_terminal if os.isatty(fd) else _json_line
        least = LEVELS.index(level)
        self._said = {name: each for name, (each, _) in EVENTS.items() if LEVELS.index(each) >= least}
        self._says_debug = level == "debug"
        self._always: dict[str, str] = {}
        self._repeats = Repeats()
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._write_at_bytes = WRITE_BYTES
        self._dropped_count = 0
        self._dropped_bytes = 0
        self._dropped_before = 0  # what has been said of it
        self.counts = dict.fromkeys(EVENTS, 0)  # how often each has happened, whatever the level

    def sign(self, worker: str) -> None:
        """From now on each line of JSON says who says it."""
        self._always = {"worker": worker}

    def emit(self, name: str, /, **fields: object) -> None:
        """Say one event. Fields that are None are left out. Never blocks; what the buffer has no room for is counted.

        The line goes out with the next flush(), or by itself when 64 KiB wait. KeyError for an undeclared event.
        """
        self.counts[name] += 1  # a wrong name is a bug, whatever the level
        level = self._said.get(name)
        if level is not None:
            self._say(name, level, fields)

    def emit_quietly(self, name: str, /, **fields: object) -> None:
        """Emit an event that another line has told already: only at level debug."""
        self.counts[name] += 1
        if self._says_debug:
            self._say(name, "debug", fields)

    def tell(self, name: str, fields_of: Callable[[T], dict[str, object]], about: T) -> None:
        """The same of an event that each job has: its fields are made only if it is said."""
        self.counts[name] += 1
        level = self._said.get(name)
        if level is not None:
            self._say(name, level, fields_of(about))

    def _say(self, name: str, level: str, fields: dict[str, object]) -> None:
        if self._dropped_count:
            self.flush()
        line = self._encode(clock.unix(), name, level, self._always, fields)
        if self._dropped_count or self._bytes + len(line) > BUFFER_BYTES:
            self._dropped_count += 1
            self._dropped_bytes += len(line)
            return
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= self._write_at_bytes:
            self.flush()

    def warn(self, message: str) -> None:
        """Say what people should know, and maybe mend, but nothing has ended of. As `emit_seldom`."""
        self.emit_seldom("master.warned", message)

    def emit_seldom(self, name: str, message: str, /, **fields: object) -> None:
        """Say an event that may come each second. The same message is said less and less often, and always counted."""
        text = self._repeats.heard(name, message, clock.monotonic())
        if text is None:
            self.counts[name] += 1
        else:
            self.emit(name, message=text, **fields)

    def is_over(self, name: str) -> None:
        """End the pauses of an event that `emit_seldom` says: when it comes again, it is said at once."""
        self._repeats.is_over(name)

    @property
    def dropped(self) -> int:
        """How many lines nobody has got or will get, so far."""
        return self._dropped_before + self._dropped_count

    @property
    def pending(self) -> bool:
        """Whether something waits to be written: flush() when fileno() is writable."""
        return bool(self._lines)

    def fileno(self) -> int:
        """The descriptor to await while `pending`. A regular file cannot be awaited and keeps nothing pending."""
        return self._sink.fd

    def flush(self) -> None:
        """Write what the other end takes now. Never blocks; what is left stays `pending`."""
        try:
            while self._lines:
                self._forget(self._sink.write(self._chunk()))
            if self._dropped_count:
                self._say_dropped()
        except BlockingIOError:
            pass
        except OSError:  # EPIPE, EIO, ENOSPC …: nobody gets these lines, and there is nobody else to tell
            self._dropped_count += len(self._lines)
            self._dropped_bytes += self._bytes
            self._lines.clear()
            self._bytes = 0
        self._write_at_bytes = self._bytes + WRITE_BYTES

    def close(self, timeout_s: float) -> None:
        """Write what is left, for at most `timeout_s` seconds, and let go of the descriptor. Idempotent."""
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
        """The first lines that fit into one write; a line that does not fit goes alone."""
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
        """Take what was written out of the buffer. Of a line cut in the middle the rest stays, to be written first."""
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

    def _say_dropped(self) -> None:
        """Called with an empty buffer, so that the line stands where the gap is. The count is kept until it is said."""
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
    """Where lines go: `write` takes bytes, answers how many it took, or raises BlockingIOError at once."""

    fd: int
    write: Callable[[bytes], int]
    chunk_bytes: int
    close: Callable[[], None]


def _open(fd: int) -> _Sink:
    """A way to write to `fd` that never waits and leaves the flags alone that `fd` shares with other processes."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:  # EBADF: started with its stderr closed
        return _nowhere()
    if stat.S_ISREG(mode):
        return _Sink(fd, lambda chunk: os.write(fd, chunk), 2 * WRITE_BYTES, lambda: None)
    if stat.S_ISSOCK(mode):
        peer = socket.socket(fileno=os.dup(fd))
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        return _Sink(peer.fileno(), lambda chunk: peer.send(chunk, flags), PIPE_BYTES, peer.close)
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # EACCES: another user's terminal; ENOENT: no /proc; ENXIO: a pipe that nobody reads
        return _Sink(fd, lambda chunk: _write_if_ready(fd, chunk), PIPE_BYTES, lambda: None)
    return _Sink(own, lambda chunk: os.write(own, chunk), PIPE_BYTES, lambda: os.close(own))


def _nowhere() -> _Sink:
    def refuse(chunk: bytes) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    return _Sink(-1, refuse, PIPE_BYTES, lambda: None)


def _write_if_ready(fd: int, chunk: bytes) -> int:
    """For a descriptor that blocks: a pipe that is ready takes PIPE_BUF bytes without waiting."""
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
        # Made anew by the newline: what orjson answers holds 4 KiB of memory, however short it is, while it waits here.
        line = orjson.dumps(record, _plain) + b"\n"
    except TypeError:  # lone surrogates, an int above 64 bits, nesting: whatever it is, the event is said
        line = json.dumps(record, default=_plain).encode() + b"\n"
    return line if len(line) <= LINE_BYTES else _json_line(time_unix, name, level, always, _shortened(fields))


def _json_on_terminal(time_unix: float, name: str, level: str, always: dict[str, str], fields: dict[str, Any]) -> bytes:
    line = _json_line(time_unix, name, level, always, fields)
    return visible_json(line[:-1].decode()).encode() + b"\n"


def _plain(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _shortened(fields: dict[str, Any]) -> dict[str, Any]:
    """Every value short enough, so that the whole line is; said with its end, where a traceback says what happened."""
    short = {}
    for key, value in fields.items():
        text = value if isinstance(value, str) else _plain(value)
        short[key] = value if len(text) <= VALUE_CHARS else f"… {text[-VALUE_CHARS:]}"
    return short


def _utc(time_unix: float) -> str:
    """As ISO 8601 writes it, to the millisecond."""
    return f"{_utc_second(int(time_unix))}.{int(time_unix % 1 * 1000):03d}Z"


@lru_cache(maxsize=2)
def _utc_second(second_unix: int) -> str:
    return datetime.fromtimestamp(second_unix, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _text_line(time_unix: float, name: str, level: str, always: dict[str, str], fields: dict[str, Any]) -> bytes:
    """`14:03:12.345 job.completed  email.send jid=… run_ms=12  message`, further lines of a value indented below."""
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
    """For a person's terminal: nothing that would move its cursor or change its colours."""
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ",".join(map(_shown, value))
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_shown(each)}" for key, each in value.items())
    return visible(_plain(value).rstrip("\n"))
