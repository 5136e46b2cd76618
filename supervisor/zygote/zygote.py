"""The zygote: imports the handlers once, forks children on request, collects their end. Started by the master's exec.

Owns the children and their process trees. One thread, for ever. Must not know Redis, nor decide what a child's end
means; the end of its control socket is the master's death, and then nothing below it may live on.
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
from typing import Final, NoReturn

from supervisor import clock, messages, sandbox
from supervisor.child import child, explanations, handlers, printing, talk
from supervisor.linux import huge_pages, kernel, removal, strays, title
from supervisor.messages import Boot, BootFailed, Ready, Reaped, Spawn, Spawned, SpawnFailed
from supervisor.sandbox import confinement as confinements
from supervisor.sandbox import preloaded
from supervisor.zygote import rehearsal, sources

#: While there are leftovers that do not end, or jobs can have processes beside their child: a short look now and then,
#: beside the other work.
_AGAIN_MS: Final = 100
_LOOK_S: Final = 0.005
#: How much sooner than the master the zygote and its children are taken by the kernel's OOM killer.
_OOM_POINTS: Final = 300


def main() -> NoReturn:
    """Started by `zygotes.Zygote`: MASTER_PID NUMBER as arguments, the control socket on messages.CONTROL_FD."""
    master_pid, number = int(sys.argv[1]), sys.argv[2]
    # Foreign code is about to run: until the loop turns, only the kernel can tell us of the master's death.
    kernel.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != master_pid:
        os._exit(1)
    sandbox.ignore_group_signals()
    # The others that the master handles stay blocked: sent to the whole group, they must not end us.
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
    title.introduce(f"leasehold: zygote {number} {boot.handlers}")
    explanations.prepare(boot.held_back)
    sandbox.tell_stacks()
    printing.write_lines_at_once()
    rehearsal.rehearse(boot)
    our_own = huge_pages.private()
    guard = sandbox.Guard()
    gc.enable()  # it was not needed to import what is ours
    loaded, confinement, ready = _load(control, boot, guard)
    sandbox.prepare()
    confinement.prepare()
    child.prepare(loaded)
    talk.heed_notices()
    title.find()
    gc.collect()
    gc.freeze()
    if boot.jobs_per_child == 1:  # else forks are few
        huge_pages.gather(our_own)
    _say(control, ready)
    kernel.set_parent_death_signal(0)
    if os.getppid() != master_pid:
        os._exit(1)
    Zygote(control, boot, loaded, guard, confinement, master_pid).serve()


def _load(
    control: socket.socket, boot: Boot, guard: sandbox.Guard
) -> tuple[dict[str, handlers.Handler], confinements.Confinement, Ready]:
    """Import the handlers, and answer what is to be said of them; if that fails in any way, say so and exit."""
    before = preloaded.open_descriptors().keys()
    sources.distrust_young_bytecode()
    try:
        _go_to(boot.directory)
        loaded = handlers.load(boot.handlers, boot.sandbox)
    except BaseException as error:  # noqa: BLE001  foreign code: whatever it raises is reported, then this process ends
        _say(control, _describe(error, [*sources.loaded(), *sources.named_by(error)]))
        os._exit(1)
    settings = {name: asdict(loaded_handler.settings) for name, loaded_handler in loaded.items()}
    # What a before_fork hook is there for is its business: it may let go of all that is open.
    opened = [] if handlers.hooks.before_fork else preloaded.opened(before)
    threads, descriptors = [*map(messages.sayable, preloaded.running())], [*map(messages.sayable, opened)]
    files = [*map(messages.sayable, sources.loaded())]
    profiles = {loaded_handler.settings.profile for loaded_handler in loaded.values()}
    confinement = confinements.Confinement(boot, profiles, guard.bind)
    report = {part: messages.sayable(state) for part, state in confinement.report.items()}
    ready = Ready(settings, threads, descriptors, bool(handlers.hooks.before_fork), report, files)
    return loaded, confinement, ready


def _go_to(directory: str) -> None:
    try:
        if directory:
            os.chdir(directory)
    except OSError as error:
        raise handlers.HandlersError(
            f"the working directory {directory!r} cannot be entered ({error.strerror}); look where it is gone"
        ) from error


def _describe(error: BaseException, files: list[str]) -> BootFailed:
    files = [*map(messages.sayable, files)]
    if isinstance(error, handlers.HandlersError):
        return BootFailed(str(error), "", files)
    return BootFailed(*_told("the handlers cannot be imported", error), files)


def _told(what: str, error: BaseException) -> tuple[str, str]:
    """A sentence about an exception of foreign code, and its traceback."""
    text = "".join(traceback.format_exception(type(error), error, handlers.foreign_part(error.__traceback__)))
    try:
        why = str(error)
    except Exception as second:  # noqa: BLE001  foreign __str__ may raise anything
        why = f"its text cannot be had ({type(second).__name__})"
    message = explanations.hinted(error, f"{what}: {type(error).__name__}: {why}")[: messages.MAX_MESSAGE_CHARS]
    return messages.sayable(message), messages.sayable(text[-messages.MAX_TRACEBACK_CHARS :])


def _say(control: socket.socket, message: messages.Control) -> None:
    """While nothing is below us: if the master is gone, so are we."""
    memfd = kernel.sealed_memfd((messages.pack_control(message),))  # the names of all handlers may not fit a packet
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
        loaded: dict[str, handlers.Handler],
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
        self._preloaded = kernel.children_of_self()  # processes that the import has started: nobody's leftovers
        self._left: set[int] = set()  # leftovers that did not end when they were killed
        self._children: dict[int, tuple[int, int, float]] = {}  # pidfd -> (pid, child's number, when it was forked)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> NoReturn:
        while True:
            for fd, _events in self._poll.poll(_AGAIN_MS if self._looks else None):
                if fd != self._control.fileno():
                    self._bury(fd)
                elif not self._obey():
                    self._end()
            if self._looks:
                self._end_the_rest()

    @property
    def _looks(self) -> bool:
        """Whether there may be strangers below us that no event tells of."""
        return bool(self._left or (self._children and not self._confinement.keeps_trees))

    def _obey(self) -> bool:
        """Carry out one request; False: there will be no more, the master is gone or has let us go."""
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
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # the kernel had no room for them
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
            self._say(SpawnFailed(number, refusal, where))
        else:
            self._children[pidfd] = (pid, number, clock.unix())
            self._poll.register(pidfd, select.POLLIN)
            self._say(Spawned(number, pid), (pidfd,))

    def _fork(self) -> tuple[int, int]:
        """The child's pid and pidfd; in the child itself (0, -1)."""
        clock.time_of_day()  # found out once a second here, and not in each child
        pid = self._guard.fork()
        if pid == 0:
            return 0, -1
        try:
            return pid, os.pidfd_open(pid)
        except OSError:  # no descriptor is left for it: nobody could see its end
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def _run_before_fork(self) -> tuple[str, str]:
        """Answers what has gone wrong, and where; two empty strings: nothing."""
        if not handlers.hooks.before_fork:
            return "", ""
        # As at the import: while foreign code runs, only the kernel can tell us of the master's death.
        kernel.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != self._master_pid:
            self._end()
        try:
            own_pid = os.getpid()
            for hook in handlers.hooks.before_fork:
                hook()
                if os.getpid() != own_pid:
                    os._exit(0)  # a fork that it made has returned from it
        except BaseException as error:  # noqa: BLE001  foreign code: whatever it raises is reported
            return _told("a before_fork hook failed", error)
        finally:
            kernel.set_parent_death_signal(0)
        return "", ""

    def _become_child(self, number: int, fds: list[int]) -> NoReturn:
        # What a socket of the standard library does in Python beside the calls costs a fork twenty pages.
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

    def _bury(self, pidfd: int) -> None:
        """A child has ended: end what it left running, and only then reap it: so long its pid and group are its own."""
        pid, number, forked_unix = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _kill_group(pid)
        self._end_strangers({pid})
        strays.remove_segments(pid, forked_unix)
        _pid, status, usage = os.wait4(pid, 0)
        self._say(Reaped(number, pid, status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024))

    def _end_strangers(self, dying: set[int]) -> None:
        """Kill what has become our child without being one: the leftovers of dead children."""
        _ended, left = strays.end_strangers(self._own | dying | self._left, clock.monotonic() + strays.TRY_S)
        self._left |= left

    def _end_the_rest(self) -> None:
        _ended, self._left = strays.end_strangers(self._own, clock.monotonic() + _LOOK_S)

    @property
    def _own(self) -> set[int]:
        return self._preloaded | {pid for pid, _number, _forked_unix in self._children.values()}

    def _say(self, message: messages.Control, fds: tuple[int, ...] = ()) -> None:
        try:
            kernel.send(self._control, messages.pack_control(message), fds)
        except (BrokenPipeError, ConnectionResetError):
            self._end()  # the master is gone

    def _end(self) -> NoReturn:
        """The master is gone: nothing below us may outlive it."""
        for pidfd in self._children:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pid, _number, _forked_unix in self._children.values():
            _kill_group(pid)
        self._children.clear()
        self._preloaded.clear()
        self._left.clear()
        self._end_strangers(set())
        removal.remove(self._boot.workdir)
        try:
            Path(self._boot.workdir).parent.rmdir()
        except OSError as error:
            # There: another zygote's, or the master lives and sees to it. Gone: the master was quicker.
            assert error.errno in (errno.ENOTEMPTY, errno.ENOENT)
        os._exit(0)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it died before it had a group of its own
