"""Checks the handlers by starting a zygote that imports them. Runs in the command's process.

Must not import them itself. Becomes a subreaper, so that no process that they start outlives it.
"""

import contextlib
import os
import re
import resource
import select
import shutil
import signal
import tempfile
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Final

import psutil

from supervisor import clock
from supervisor.cli.doctor.findings import Finding, ok, problem, warning
from supervisor.cli.lib.terminal import counted
from supervisor.config import RunConfig
from supervisor.exit_codes import Exit
from supervisor.linux import kernel
from supervisor.master.model import environment, outcome_rules
from supervisor.master.model.zygote_handle import ZygoteHandle, boot_of, fork_warnings
from supervisor.messages import BootFailed, HandlerSettings, Ready
from supervisor.units import megabytes

_CHECK: Final = "handlers"
#: Time for the zygote to end, and for the processes that it leaves.
_END_S: Final = 3.0
_NAMED: Final = 8
_LATE: Final = object()
_PLACE: Final = re.compile(r'^ *File "(.+?)", line (\d+)', re.MULTILINE)
_OURS: Final = f"{Path(__file__).parents[2]}{os.sep}"


def examine(config: RunConfig) -> Iterator[Finding]:
    """Import the handlers as `run` does, and yield the findings. Takes as long as the import."""
    for_handlers, held_back = environment.of(config)
    if held_back:
        yield warning("environment", environment.why_held_back(held_back))
    kernel.become_subreaper()
    try:
        base = tempfile.mkdtemp(prefix="leasehold-doctor-", dir=config.workdir)
    except OSError as error:
        yield problem(_CHECK, f"not tried: there is no directory to try them in ({error})", Exit.HANDLERS)
        return
    try:
        yield from _boot(config, for_handlers, Path(base, "zygote"))
    except OSError as error:
        yield problem(_CHECK, f"no process can be started to import them ({error})", Exit.HANDLERS)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _boot(config: RunConfig, for_handlers: dict[str, str], workdir: Path) -> Iterator[Finding]:
    workdir.mkdir()
    boot = boot_of(config, workdir, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    zygote = ZygoteHandle(1, boot, for_handlers, clock.monotonic() + config.boot_timeout_s)
    report: object = _LATE
    try:
        report = _report_of(zygote)
        took_s, size_bytes = clock.monotonic() - zygote.started_at, _size_bytes(zygote.pid)
    finally:
        status, left = _end(zygote, 0.0 if report is _LATE else _END_S)
    match report:
        case Ready():
            yield from _sandbox(config, report)
            yield from _about(config, report, took_s, size_bytes)
        case BootFailed(message, traceback):
            yield problem(_CHECK, f"{message}{_place_in(traceback)}", Exit.HANDLERS)
        case _ if report is _LATE:
            yield problem(
                _CHECK,
                f"{config.handlers!r} was not imported within {config.boot_timeout_s:g} s; import less, or raise"
                " --boot-timeout",
                Exit.HANDLERS,
            )
        case _:
            yield problem(
                _CHECK,
                f"the process that imports {config.handlers!r} ended meanwhile ({outcome_rules.death_reason(status)});"
                " look for the module that exits or crashes when it is imported",
                Exit.HANDLERS,
            )
    if left:
        yield warning(
            _CHECK,
            f"their import leaves processes running ({left}): they end with the zygote, and no job can rely on them;"
            " start them in the handler",
        )


def _report_of(zygote: ZygoteHandle) -> object:
    """Return `Ready` or `BootFailed`, None if the zygote ended without a report, _LATE at the deadline."""
    assert zygote.deadline_at is not None
    poll = select.poll()
    poll.register(zygote.control, select.POLLIN)
    while (left_s := zygote.deadline_at - clock.monotonic()) > 0:
        if poll.poll(left_s * 1000):
            for report, fds in zygote.read():
                for fd in fds:
                    os.close(fd)
                return report
    return _LATE


def _size_bytes(pid: int) -> int:
    try:
        size: int = psutil.Process(pid).memory_info().rss
        return size
    except psutil.Error:  # the zygote has ended, or belongs to another user now
        return 0


def _end(zygote: ZygoteHandle, patience_s: float) -> tuple[int, int]:
    """End the zygote and all processes that it left. Return its wait status, and the number of processes left."""
    zygote.let_go()
    if not _ends({zygote.pid}, patience_s):
        zygote.kill()
        _ends({zygote.pid}, _END_S)
    status = os.waitpid(zygote.pid, os.WNOHANG)[1]
    left = 0
    deadline_at = clock.monotonic() + _END_S
    while (strangers := kernel.children_of_self() - zygote.strangers) and clock.monotonic() < deadline_at:
        for pid in strangers:
            with contextlib.suppress(PermissionError):  # the program has changed its user
                os.kill(pid, signal.SIGKILL)
        _ends(strangers, deadline_at - clock.monotonic())
        left += sum(os.waitpid(pid, os.WNOHANG)[0] == pid for pid in strangers)
    return status, left


def _ends(pids: set[int], timeout_s: float) -> bool:
    """Return True if these child processes end in time."""
    pidfds = [os.pidfd_open(pid) for pid in pids]
    try:
        return kernel.await_ends(pidfds, timeout_s)
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


def _about(config: RunConfig, ready: Ready, took_s: float, size_bytes: int) -> Iterator[Finding]:
    names = sorted(ready.handlers)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    yield ok(
        _CHECK,
        f"{counted(len(names), 'handler')} imported in {took_s:.2f} s, {megabytes(size_bytes)}:"
        f" {', '.join(names[:_NAMED])}{more}",
    )
    if took_s > config.boot_timeout_s / 2:
        yield warning(
            _CHECK,
            f"the import took {took_s:.2f} s of the {config.boot_timeout_s:g} s that it may: a busy machine may not"
            " manage; import less, or raise --boot-timeout",
        )
    yield from _memory(config, ready, size_bytes)
    for sentence in fork_warnings(ready):
        yield warning(_CHECK, sentence)


def _sandbox(config: RunConfig, ready: Ready) -> Iterator[Finding]:
    """Report what handlers are kept from, part by part."""
    missing = [part for part, state in ready.sandbox.items() if state.startswith("unavailable")]
    for part in missing:
        yield warning("sandbox", f"{part}: {ready.sandbox[part]}")
    rest = [f"{part}: {state}" for part, state in ready.sandbox.items() if part not in missing]
    yield ok("sandbox", f"{config.sandbox}; {'; '.join(rest)}")
    if config.jobs_per_child != 1:
        yield from _sharing(ready)


def _sharing(ready: Ready) -> Iterator[Finding]:
    """Name the handlers that share reused children, if the operator separates handlers at all."""
    circles: dict[Hashable, list[str]] = {}
    for name, settings in sorted(ready.handlers.items()):
        circles.setdefault(HandlerSettings(**settings).trust_domain(name), []).append(name)
    shared = [names for names in circles.values() if len(names) > 1]
    if shared and len(circles) > 1:
        yield warning(
            "sandbox",
            f"handlers share children: {'; '.join(', '.join(names[:_NAMED]) for names in shared)}; each of them can"
            " read and answer the others' jobs that come to its child; use --jobs-per-child 1 or sandbox='strict' for"
            " those that must not",
        )


def _memory(config: RunConfig, ready: Ready, size_bytes: int) -> Iterator[Finding]:
    """Check that the memory budget has room for the handlers."""
    budget = config.memory_budget_bytes
    if not budget:
        return
    if size_bytes > budget / 2:
        yield warning(
            _CHECK,
            f"their import takes {megabytes(size_bytes)} of the {megabytes(budget)} that all processes together may"
            " have (--memory-budget): little is left for jobs; import less, or give more",
        )
    large = [name for name, settings in ready.handlers.items() if (settings.get("memory_bytes") or 0) > budget]
    if large:
        yield warning(
            _CHECK,
            f"{', '.join(sorted(large))}: the handler's memory limit is above the {megabytes(budget)} of all processes"
            " together (--memory-budget), which ends its jobs first; lower the one, or raise the other",
        )


def _place_in(traceback: str) -> str:
    """Return the innermost place outside Leasehold: the error of a refused @handler is in the handler's file."""
    places = [place for place in _PLACE.findall(traceback) if not place[0].startswith(_OURS)]
    return f" ({places[-1][0]}, line {places[-1][1]})" if places else ""
