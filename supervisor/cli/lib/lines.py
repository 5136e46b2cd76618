"""Puts the jobs of `leasehold put --lines`, a thousand lines per call. Runs in the command's process.

Must not hold more than one batch, and must not write anything of a batch with a bad line.
"""

import argparse
import base64
import binascii
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from supervisor import clock
from supervisor.cli.lib.connection import connect
from supervisor.cli.lib.parser import Refusal, UsageError
from supervisor.cli.lib.payload import decoded
from supervisor.cli.lib.progress import ProgressLine
from supervisor.cli.lib.shown import span
from supervisor.cli.lib.terminal import counted, note, say
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.model.bounds import DATA_BYTES
from supervisor.exit_codes import Exit

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.model.new_jobs import NewJob

MOST_JOBS = 1000
MOST_BYTES = 16 * 2**20
#: Longest line: the largest payload in base64, and its options.
LONGEST_BYTES = DATA_BYTES * 4 // 3 + 2**20
#: Most bad lines that are reported.
SHOWN = 20


@dataclass(slots=True)
class LineBatch:
    """Lines that are put in one call: line numbers, jobs, and what is wrong with the bad lines."""

    first: int
    last: int = 0
    jobs: "list[NewJob]" = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """True if the batch must be put before another line is read."""
        return len(self.jobs) + len(self.bad) >= MOST_JOBS or self.size_bytes >= MOST_BYTES


@dataclass(slots=True)
class Tally:
    """Counts of the lines so far. All lines up to `done` have been put or skipped."""

    put: int = 0
    known: int = 0
    held: int = 0
    bad: int = 0
    done: int = 0
    sending: LineBatch | None = None
    stopped_at: int | None = None


def put_lines(args: argparse.Namespace, options: Mapping[str, Any]) -> int:
    """Put a job for each line of --file or stdin. `options` are defaults. Return 1 if some lines were bad."""
    began = clock.monotonic()
    tally = Tally()
    try:
        with _opened(args.file) as stream, connect(args) as client, ProgressLine(_size_bytes(stream)) as progress:
            reader = _Reader(stream, args, options)
            for batch in reader.batches():
                _take(args, client, batch, tally)
                rate = tally.put / max(clock.monotonic() - began, 0.001)
                progress.show(reader.read_bytes, f"{counted(tally.put, 'job')}, {_rounded(rate):,}/s")
                if tally.stopped_at and tally.bad >= SHOWN:
                    break
    except KeyboardInterrupt:
        note(f"interrupted: {_how_far(tally)}")
        raise
    _conclude(args, tally, clock.monotonic() - began)
    return Exit.REFUSED if tally.bad else Exit.OK


@contextmanager
def _opened(path: str | None) -> Iterator[BinaryIO]:
    if path in {None, "-"}:
        if sys.stdin.isatty():
            note("reading jobs from the terminal, a line of JSON each; Ctrl-D ends")
        yield sys.stdin.buffer
        return
    try:
        file = Path(str(path)).open("rb")  # noqa: SIM115 -- an error inside the block is not about the file's name
    except OSError as error:  # ENOENT, EACCES, EISDIR and others all concern the given name
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    with file:
        yield file


def _size_bytes(stream: BinaryIO) -> int | None:
    """Return the size of a regular file. The length of a pipe is unknown."""
    status = os.fstat(stream.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class _Reader:
    """Turns lines into batches of jobs."""

    def __init__(self, stream: BinaryIO, args: argparse.Namespace, options: Mapping[str, Any]) -> None:
        self.read_bytes = 0
        self._stream = stream
        self._verb = "add" if args.add else "put"
        self._defaults = {"queue": args.queue, **({} if args.klass is None else {"klass": args.klass}), **options}

    def batches(self) -> Iterator[LineBatch]:
        batch = LineBatch(1)
        for number, line in enumerate(self._lines(), start=1):
            batch.last = number
            if line is None:
                batch.bad.append(f"line {number}: is longer than {LONGEST_BYTES / 2**20:.0f} MB")
            elif line.strip():
                self._read(batch, number, line)
            if batch.is_full:
                yield batch
                batch = LineBatch(number + 1)
        if batch.last:
            yield batch

    def _lines(self) -> Iterator[bytes | None]:
        """Yield each line, or None for one that is too long."""
        while line := self._stream.readline(LONGEST_BYTES):
            self.read_bytes += len(line)
            if len(line) < LONGEST_BYTES or line.endswith(b"\n"):
                yield line
                continue
            while line and not line.endswith(b"\n"):
                line = self._stream.readline(LONGEST_BYTES)
                self.read_bytes += len(line)
            yield None

    def _read(self, batch: LineBatch, number: int, line: bytes) -> None:
        try:
            job = self._job(decoded(line))
        except (ValueError, TypeError) as error:
            batch.bad.append(f"line {number}: {error}")
        else:
            batch.jobs.append(job)
            batch.size_bytes += job.size_bytes

    def _job(self, given: Any) -> "NewJob":
        from supervisor.engine.model.new_jobs import new_job

        if not isinstance(given, dict):
            raise TypeError(f"must be an object of put's arguments, not {_kind(given)}")
        options = {**self._defaults, **given}
        for one, other in (("at", "delay"), ("delay", "at")):
            if one in given and other not in given:
                options.pop(other, None)  # a time in the line replaces one from the flags
        klass, queue = options.pop("klass", None), options.pop("queue")
        if klass is None:
            raise ValueError("klass is missing: what is to run?")
        if self._verb == "add" and "jid" not in options:
            raise ValueError("jid is missing, which --add needs: a new id is always new")
        data = _bytes_of(options) if "data_b64" in options else options.pop("data", None)
        return new_job(self._verb, queue, klass, data, options)  # type: ignore[arg-type]


def _bytes_of(options: dict[str, Any]) -> bytes:
    text = options.pop("data_b64")
    if "data" in options:
        raise ValueError("data and data_b64 exclude each other")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ValueError(f"data_b64 is not base64: {error}") from error


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _take(args: argparse.Namespace, client: "Client", batch: LineBatch, tally: Tally) -> None:
    for sentence in batch.bad[: max(SHOWN - tally.bad, 0)]:
        note(sentence)
    tally.bad += len(batch.bad)
    if batch.bad and not args.skip_bad:
        tally.stopped_at = tally.stopped_at or batch.first
    if tally.stopped_at:
        return
    if batch.jobs:
        _put(args, client, batch, tally)
    tally.done = batch.last


def _put(args: argparse.Namespace, client: "Client", batch: LineBatch, tally: Tally) -> None:
    from supervisor.engine.model.errors import LeaseholdError

    tally.sending = batch
    try:
        answers = calls_of(client).put_jobs(batch.jobs)
    except LeaseholdError as error:
        _refuse(error, batch, tally)
    tally.sending = None
    for job, answer in zip(batch.jobs, answers, strict=True):
        if answer is True:
            tally.put += 1
        elif answer is False:
            tally.known += 1
        else:
            tally.held += 1
        if args.print_jids and answer is not False:
            say(job.jid if answer is True else str(answer))


def _refuse(error: Exception, batch: LineBatch, tally: Tally) -> NoReturn:
    from supervisor.engine.model.errors import OutcomeUnknown, StoreUnavailable

    if not isinstance(error, OutcomeUnknown):
        tally.sending = None
    away = isinstance(error, OutcomeUnknown | StoreUnavailable)
    where = "" if away else f"lines {batch.first:,} to {batch.last:,}: "
    raise Refusal(f"{where}{error}; {_how_far(tally)}", Exit.UNREACHABLE if away else Exit.REFUSED) from error


def _how_far(tally: Tally) -> str:
    """Say what was put, and where to continue."""
    words = f"{counted(tally.put, 'job')} put, of all lines up to {tally.done:,}"
    if tally.sending:
        words += f"; perhaps those of lines {tally.sending.first:,} to {tally.sending.last:,}, too"
    return f"{words}; go on with `tail -n +{tally.done + 1}`"


def _conclude(args: argparse.Namespace, tally: Tally, took_s: float) -> None:
    words = f"put {counted(tally.put, 'job')} in {span(took_s)} ({_rounded(tally.put / max(took_s, 0.001)):,}/s)"
    if tally.known:
        words += f"; {tally.known:,} left alone: known already, or not unique"
    if tally.held:
        words += f"; {tally.held:,} not put: other jobs hold what is to be unique"
    if tally.bad and not tally.stopped_at:
        words += f"; {counted(tally.bad, 'bad line')} skipped"
    (note if args.print_jids else say)(words)
    if tally.stopped_at:
        note(
            f"nothing was put from line {tally.stopped_at:,} on, as {counted(tally.bad, 'line')} there"
            f" {'is' if tally.bad == 1 else 'are'} bad{' at least' if tally.bad > SHOWN else ''}: mend that and go on"
            f" with `tail -n +{tally.stopped_at}`, or give --skip-bad"
        )


def _rounded(rate: float) -> int:
    """Round a rate to two digits: more would be noise."""
    return int(float(f"{rate:.2g}"))
