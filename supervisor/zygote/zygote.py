"""Imports the handlers once, forks children on request, and reaps them. Runs in the zygote, in one thread.

Owns the children and their process trees. Must not know Redis, nor decide what a child's end means. The end of its
control socket means that the master is gone; then the zygote ends everything below it.
"""

import errno
import gc
import os
import select
import signal
import socket
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

from setproctitle import setproctitle

from supervisor import clock, messages, sandbox
from supervisor.child import child, explanations, loading, printing, talk
from supervisor.child.handler import Handler, HandlersError
from supervisor.child.hooks import registered_hooks
from supervisor.child.schemas import described, published
from supervisor.linux import huge_pages, kernel, removal, strays
from supervisor.messages import Boot, BootFailed, Ready, Reaped, Spawn, Spawned, SpawnFailed
from supervisor.sandbox import confinement as confinements
from supervisor.sandbox import preloaded
from supervisor.zygote import rehearsal, sources
from supervisor.zygote.release import commit_of

#: Pause between looks for strays, while some do not end, or while processes can leave the tree of their child; and
#: between attempts to reap a child that is traced.
_AGAIN_MS: Final = 100
_LOOK_S: Final = 0.005
#: The kernel's OOM killer prefers the zygote and its children to the master by this score.
_OOM_POINTS: Final = 300


def main() -> NoReturn:
    """The master starts it with MASTER_PID NUMBER as arguments, and the control socket on messages.CONTROL_FD."""
    master_pid, number = int(sys.argv[1]), sys.argv[2]
    # Foreign code is about to run: until the loop turns, only the kernel can signal the master's death.
    kernel.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != master_pid:
        os._exit(1)
    sandbox.ignore_group_signals()
    # The master's other signals stay blocked: sent to the whole group, they must not end the zygote.
    signal.pthread_sigmask(signal.SIG_SETMASK, kernel.HANDLED_SIGNALS - sandbox.GROUP_SIGNALS)
    kernel.become_subreaper()
    kernel.raise_oom_score(_OOM_POINTS)
    control = socket.socket(fileno=messages.CONTROL_FD)
    control.set_inheritable(False)
    os.set_inheritable(messages.STACKS_FD, False)
    packet, _fds = kernel.receive(control, messages.MAX_PACKET_BYTES, 0)
    if not packet:
        os._exit(1)
    boot = messages.unpack_control(packet)
    assert isinstance(boot, Boot)
    if boot.sandbox != "none":
        kernel.forbid_dumping()
    setproctitle(f"leasehold: zygote {number} {boot.handlers}")
    explanations.prepare(boot.held_back, has_terminal=bool(boot.terminal))
    sandbox.enable_stack_dumps()
    printing.write_lines_at_once()
    rehearsal.rehearse(boot)
    our_own = huge_pages.private()
    guard = sandbox.Guard()
    gc.enable()  # _START has disabled it: the import of our own modules does not need it
    loaded, confinement, ready = _load(control, boot, guard)
    sandbox.prepare()
    confinement.prepare()
    child.prepare(loaded)
    talk.handle_notices()
    gc.collect()
    gc.freeze()
    if boot.jobs_per_child == 1:  # otherwise forks are rare
        huge_pages.gather(our_own)
    _send(control, ready)
    kernel.set_parent_death_signal(0)
    if os.getppid() != master_pid:
        os._exit(1)
    Zygote(control, boot, loaded, guard, confinement, master_pid).serve()


def _load(
    control: socket.socket, boot: Boot, guard: sandbox.Guard
) -> tuple[dict[str, Handler[..., Any]], confinements.Confinement, Ready]:
    """Import the handlers and return what the master must know. On any failure report it and exit."""
    before = preloaded.open_descriptors().keys()
    sources.distrust_young_bytecode()
    try:
        _enter_directory(boot.directory)
        loaded = loading.load(boot.handlers, boot.sandbox)
    except BaseException as error:  # noqa: BLE001  foreign code: whatever it raises is reported, then this process ends
        _send(control, _describe(error, [*sources.loaded(), *sources.files_of(error)]))
        os._exit(1)
    descriptions = {name: described(handler) for name, handler in loaded.items()}
    settings = {name: asdict(one.settings) | {"shape": descriptions[name][0]} for name, one in loaded.items()}
    # Handlers with a before_fork hook may close all that is open there.
    opened = [] if registered_hooks.before_fork else preloaded.opened(before)
    threads, descriptors = [*map(messages.escaped, preloaded.running())], [*map(messages.escaped, opened)]
    files = [*map(messages.escaped, sources.loaded())]
    profiles = {loaded_handler.settings.profile for loaded_handler in loaded.values()}
    confinement = confinements.Confinement(boot, profiles, guard.bind)
    report = {part: messages.escaped(state) for part, state in confinement.report.items()}
    recurrences = {name: declared for name, handler in loaded.items() if (declared := handler.recurrence) is not None}
    ready = Ready(
        settings, threads, descriptors, bool(registered_hooks.before_fork), report, files, recurrences,
        boot.release or commit_of(Path.cwd()), published(descriptions.values()),
    )  # fmt: skip
    return loaded, confinement, ready


def _enter_directory(directory: str) -> None:
    try:
        if directory:
            os.chdir(directory)
    except OSError as error:
        raise HandlersError(
            f"the working directory {directory!r} cannot be entered ({error.strerror}); look where it is gone"
        ) from error


def _describe(error: BaseException, files: list[str]) -> BootFailed:
    files = [*map(messages.escaped, files)]
    if isinstance(error, HandlersError):
        return BootFailed(str(error), "", files)
    return BootFailed(*_described("the handlers cannot be imported", error), files)


def _described(what: str, error: BaseException) -> tuple[str, str]:
    """Return a sentence about an exception of foreign code, and its traceback."""
    text = "".join(traceback.format_exception(type(error), error, loading.foreign_frames(error.__traceback__)))
    try:
        why = str(error)
    except Exception as second:  # noqa: BLE001  foreign __str__ may raise anything
        why = f"its text cannot be had ({type(second).__name__})"
    message = explanations.hinted(error, f"{what}: {type(error).__name__}: {why}")[: messages.MAX_MESSAGE_CHARS]
    return messages.escaped(message), messages.escaped(text[-messages.MAX_TRACEBACK_CHARS :])


def _send(control: socket.socket, message: messages.Control) -> None:
    """Send to the master. If it is gone, exit: no child exists yet."""
    memfd = kernel.sealed_memfd((messages.pack_control(message),))  # the names of all handlers may exceed a packet
    try:
        kernel.send(control, messages.IN_MEMFD, (memfd,))
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)
    finally:
        os.close(memfd)


class Zygote:
    def __init__(
        self,
        control: socket.socket,
        boot: Boot,
        loaded: dict[str, Handler[..., Any]],
        guard: sandbox.Guard,
        confinement: confinements.Confinement,
        master_pid: int,
    ) -> None:
        self._control = control
        self._boot = boot
        self._loaded = loaded
        self._guard = guard
        self._confinement = confinement
        self._master_pid = master_pid
        self._preloaded = kernel.children_of_self()  # started by the import, so no strays
        self._stuck: set[int] = set()  # strays that did not end when they were killed
        self._children: dict[int, tuple[int, int, float]] = {}  # pidfd -> (pid, child's number, time of the fork)
        self._traced: dict[int, int] = {}  # pid -> child's number, of dead children that a debugger holds
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> NoReturn:
        while True:
            for fd, _events in self._poll.poll(_AGAIN_MS if self._may_have_strays else None):
                if fd != self._control.fileno():
                    self._reap(fd)
                elif not self._carry_out_request():
                    self._end()
            for pid, number in tuple(self._traced.items()):
                self._report(pid, number)
            if self._may_have_strays:
                self._end_strays_left()

    @property
    def _may_have_strays(self) -> bool:
        """True if there may be processes to reap that no event reports."""
        return bool(self._stuck or self._traced or (self._children and not self._confinement.contains_trees))

    def _carry_out_request(self) -> bool:
        """Carry out one request. False: the master is gone, or has dismissed this zygote."""
        packet, fds = kernel.receive(self._control, messages.MAX_PACKET_BYTES, 4)
        if not packet:
            return False
        match messages.unpack_control(packet):
            case Spawn(number):
                self._spawn(number, fds)
            case unexpected:
                raise AssertionError(f"the master may not say {unexpected!r}")
        return True

    def _spawn(self, number: int, fds: list[int]) -> None:
        pid = pidfd = -1
        try:
            if len(fds) != 4:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # the kernel dropped descriptors
            refusal, where = self._run_before_fork()
            if not refusal:
                pid, pidfd = self._fork()
        except OSError as error:
            refusal, where = f"fork: {error.strerror}", ""
        if pid == 0:
            self._become_child(number, fds)
        for fd in fds:
            os.close(fd)
        if refusal:
            self._send(SpawnFailed(number, refusal, where))
        else:
            self._children[pidfd] = (pid, number, clock.unix())
            self._poll.register(pidfd, select.POLLIN)
            self._send(Spawned(number, pid), (pidfd,))

    def _fork(self) -> tuple[int, int]:
        """Return the child's pid and pidfd; in the child itself (0, -1)."""
        clock.time_of_day()  # formatted once a second here instead of in each child
        pid = self._guard.fork()
        if pid == 0:
            return 0, -1
        try:
            return pid, os.pidfd_open(pid)
        except OSError:  # no descriptor is left, so the child's end could not be seen
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def _run_before_fork(self) -> tuple[str, str]:
        """Return what has gone wrong, and the traceback. Empty strings: nothing."""
        if not registered_hooks.before_fork:
            return "", ""
        # As at the import: while foreign code runs, only the kernel can signal the master's death.
        kernel.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != self._master_pid:
            self._end()
        try:
            own_pid = os.getpid()
            for hook in registered_hooks.before_fork:
                hook()
                if os.getpid() != own_pid:
                    os._exit(0)  # a fork made by the hook has returned from it
        except BaseException as error:  # noqa: BLE001  foreign code: whatever it raises is reported
            return _described("a before_fork hook failed", error)
        finally:
            kernel.set_parent_death_signal(0)
        return "", ""

    def _become_child(self, number: int, fds: list[int]) -> NoReturn:
        # os.close instead of socket.close: the Python code of socket.socket would copy twenty pages per fork.
        os.close(self._control.fileno())
        for pidfd in self._children:
            os.close(pidfd)
        jobs_fd, talk_fd, output_fd, stacks_fd = fds
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        os.close(output_fd)
        os.dup2(stacks_fd, messages.STACKS_FD, inheritable=False)
        os.close(stacks_fd)
        child.run(
            number,
            socket.SocketType(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, jobs_fd),
            socket.SocketType(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, talk_fd),
            messages.child_directory(self._boot.workdir, number),
            self._loaded,
            self._boot,
            self._confinement,
        )

    def _reap(self, pidfd: int) -> None:
        """End what a dead child left running, then reap the child. Until then its pid and group are not reused."""
        pid, number, forked_unix = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _kill_group(pid)
        self._end_strays({pid})
        strays.remove_segments(pid, forked_unix)
        self._report(pid, number)

    def _report(self, pid: int, number: int) -> None:
        """Reap a dead child and report its end. Only its tracer can reap a child that is traced: then try again later.

        A child may be traced by a debugger outside, or by another child.
        """
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            self._traced.pop(pid, None)
            self._send(Reaped(number, pid, status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024))
        else:
            self._traced[pid] = number

    def _end_strays(self, dying: set[int]) -> None:
        """Kill direct children that are neither children of ours nor `dying`."""
        _ended, stuck = strays.end_strays(self._own | dying | self._stuck, clock.monotonic() + strays.TRY_S)
        self._stuck |= stuck

    def _end_strays_left(self) -> None:
        _ended, self._stuck = strays.end_strays(self._own, clock.monotonic() + _LOOK_S)

    @property
    def _own(self) -> set[int]:
        children = {pid for pid, _number, _forked_unix in self._children.values()}
        return self._preloaded | self._traced.keys() | children

    def _send(self, message: messages.Control, fds: tuple[int, ...] = ()) -> None:
        try:
            kernel.send(self._control, messages.pack_control(message), fds)
        except (BrokenPipeError, ConnectionResetError):
            self._end()

    def _end(self) -> NoReturn:
        """The master is gone: end everything below the zygote, then exit."""
        for pidfd in self._children:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pid, _number, _forked_unix in self._children.values():
            _kill_group(pid)
        self._children.clear()
        self._preloaded.clear()
        self._stuck.clear()
        self._end_strays(set())
        removal.remove(self._boot.workdir)
        try:
            Path(self._boot.workdir).parent.rmdir()
        except OSError as error:
            # ENOTEMPTY: another zygote's directory, or a living master removes it. ENOENT: the master was quicker.
            assert error.errno in (errno.ENOTEMPTY, errno.ENOENT)
        os._exit(0)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # the child died before it had a group of its own
