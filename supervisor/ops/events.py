"""The event log: the master's lines on stderr, one per event. Runs in the master.

Owns the table of events (names and fields are public) and the buffer. Must not block.
"""

import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from supervisor import clock
from supervisor.ops.log_lines import json_line, json_lines, json_on_terminal, one_by_one, text_line
from supervisor.ops.log_sink import nowhere, open_sink
from supervisor.ops.repeat_filter import RepeatFilter

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
            "memory_budget_reason", "cells", "redis", "server", "shards",
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
    "redis.connected": ("info", ("url", "server", "shard")),
    "shards.changed": ("info", ("shards",)),
    "shards.moving": ("warning", ()),
    "redis.failed": ("error", ("message", "waiting")),
    "redis.unacknowledged": ("error", ("message",)),
    "redis.acknowledged": ("info", ("message", "replicas")),
    "log.dropped": ("warning", ("count", "bytes")),
}  # fmt: skip

#: Buffer for a slow reader. Overflow is counted until the buffer is empty, so that gaps are few and reported once.
BUFFER_BYTES: Final = 2**20
#: The buffer is written from this size on without a flush.
WRITE_BYTES: Final = 2**16


class Events:
    """The event log of one process. Not thread-safe."""

    def __init__(self, fd: int, format: str, level: str) -> None:
        """Write to what `fd` leads to; `fd` stays open and unchanged. `format`: json or text. `level`: the lowest to
        write.

        Never raises for a bad descriptor: lines that cannot be written are counted as dropped.
        """
        self._sink = open_sink(fd)
        self._encode = text_line if format == "text" else json_on_terminal if os.isatty(fd) else json_line
        self._encode_each = json_lines if self._encode is json_line else partial(one_by_one, self._encode)
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
        self.dropped_at: float | None = None  # the last one (monotonic s)
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
            self.dropped_at = clock.monotonic()
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
            self.dropped_at = clock.monotonic()
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
        self._sink = nowhere()

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
