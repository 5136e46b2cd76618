"""The zygote: imports the handlers once, forks children on request, collects their end. Started by the master's exec.

Owns the children and their process trees. One thread, for ever. Must not know Redis, nor decide what a child's end
means; the end of its control socket is the master's death, and then nothing below it may live on.
"""

import errno
import gc
import os
import select
import shutil
import signal
import socket
import sys
import threading
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Final, NoReturn

from setproctitle import setproctitle

from supervisor import clock
from supervisor.pool import child, handlers, kernel, messages, sandbox
from supervisor.pool.messages import Boot, BootFailed, Ready, Reaped, Spawn, Spawned, SpawnFailed

#: How long the dead leftovers of a job may keep the kernel busy before they are left to the next look.
_LEFTOVERS_S: Final = 1.0


def main() -> NoReturn:
    """Started by `zygotes.Zygote`: MASTER_PID NUMBER as arguments, the control socket on messages.CONTROL_FD."""
    master_pid, number = int(sys.argv[1]), sys.argv[2]
    # Foreign code is about to run: until the loop turns, only the kernel can tell us of the master's death.
    kernel.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != master_pid:
        os._exit(1)
    sandbox.ignore_group_signals()
    # The others that the master handles stay blocked: sent to the whole group, they must not end us.
    signal.pthread_sigmask(signal.SIG_SETMASK, kernel.HANDLED_SIGNALS - set(sandbox.GROUP_SIGNALS))
    kernel.become_subreaper()
    control = socket.socket(fileno=messages.CONTROL_FD)
    control.set_inheritable(False)
    os.set_inheritable(messages.STACKS_FD, False)
    packet, _fds = kernel.receive(control, messages.MAX_PACKET_BYTES, 0)
    if not packet:
        os._exit(1)
    boot = messages.unpack_control(packet)
    assert isinstance(boot, Boot)
    setproctitle(f"leasehold: zygote {number} {boot.handlers}")
    guard = sandbox.Guard()
    loaded = _load(control, boot)
    kernel.set_parent_death_signal(0)
    if os.getppid() != master_pid:
        os._exit(1)
    sandbox.prepare()
    gc.collect()
    gc.freeze()
    Zygote(control, boot, loaded, guard).serve()


def _load(control: socket.socket, boot: Boot) -> dict[str, handlers.Handler]:
    """Import the handlers; if that fails in any way, say so and exit."""
    try:
        loaded = handlers.load(boot.handlers)
    except BaseException as error:  # noqa: BLE001  foreign code: whatever it raises is reported, then this process ends
        _say(control, _describe(error))
        os._exit(1)
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    settings = {name: asdict(loaded_handler.settings) for name, loaded_handler in loaded.items()}
    _say(control, Ready(settings, threads, []))
    return loaded


def _describe(error: BaseException) -> BootFailed:
    if isinstance(error, handlers.HandlersError):
        return BootFailed(str(error), "")
    text = "".join(traceback.format_exception(type(error), error, handlers.foreign_part(error.__traceback__)))
    message = f"the handlers cannot be imported: {type(error).__name__}: {error}"
    return BootFailed(message[: messages.MAX_MESSAGE_CHARS], text[-messages.MAX_TRACEBACK_CHARS :])


def _say(control: socket.socket, message: messages.Control) -> None:
    """While nothing is below us: if the master is gone, so are we."""
    memfd = kernel.sealed_memfd((messages.pack_control(message),))  # the names of all handlers may not fit a packet
    try:
        kernel.send(control, messages.IN_MEMFD, (memfd,))
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)


class Zygote:
    def __init__(
        self,
        control: socket.socket,
        boot: Boot,
        loaded: dict[str, handlers.Handler],
        guard: sandbox.Guard,
    ) -> None:
        self._control = control
        self._boot = boot
        self._loaded = loaded
        self._guard = guard
        self._children: dict[int, tuple[int, int]] = {}  # pidfd -> (pid, child's number)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> NoReturn:
        while True:
            for fd, _events in self._poll.poll():
                if fd != self._control.fileno():
                    self._bury(fd)
                elif not self._obey():
                    self._end()

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
        try:
            if len(fds) != 4:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # the kernel had no room for them
            pid = self._guard.fork()
        except OSError as error:
            self._say(SpawnFailed(number, f"fork: {error.strerror}"))
            for fd in fds:
                os.close(fd)
            return
        if pid == 0:
            self._become_child(number, fds)
        for fd in fds:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (pid, number)
        self._poll.register(pidfd, select.POLLIN)
        self._say(Spawned(number, pid), (pidfd,))

    def _become_child(self, number: int, fds: list[int]) -> NoReturn:
        self._control.close()
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
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, jobs_fd),
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, talk_fd),
            f"{self._boot.workdir}/child-{number}",
            self._loaded,
            self._boot,
        )

    def _bury(self, pidfd: int) -> None:
        """A child has ended: end what it left running, and only then reap it: so long its pid and group are its own."""
        pid, number = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _kill_group(pid)
        leftovers = self._end_strangers(spare={pid})
        _pid, status, usage = os.wait4(pid, 0)
        self._say(Reaped(number, pid, status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, leftovers))

    def _end_strangers(self, spare: set[int]) -> int:
        """Kill what has become our child without being one: the leftovers of dead children. Answers how many."""
        ended = 0
        deadline_at = clock.monotonic() + _LEFTOVERS_S
        own = spare | {pid for pid, _number in self._children.values()}
        while strangers := kernel.children_of_self() - own:
            for pid in strangers:
                os.kill(pid, signal.SIGKILL)
                if _reap_by(pid, deadline_at):
                    ended += 1
                else:
                    own.add(pid)
        return ended

    def _say(self, message: messages.Control, fds: tuple[int, ...] = ()) -> None:
        try:
            kernel.send(self._control, messages.pack_control(message), fds)
        except (BrokenPipeError, ConnectionResetError):
            self._end()  # the master is gone

    def _end(self) -> NoReturn:
        """The master is gone: nothing below us may outlive it."""
        for pidfd in self._children:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pid, _number in self._children.values():
            _kill_group(pid)
        self._children.clear()
        self._end_strangers(spare=set())
        shutil.rmtree(self._boot.workdir, ignore_errors=True)
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


def _reap_by(pid: int, deadline_at: float) -> bool:
    """Wait for a killed process; False where the kernel does not let go of it in time."""
    pidfd = os.pidfd_open(pid)
    try:
        if not kernel.await_ends([pidfd], deadline_at - clock.monotonic()):
            return False
        os.waitpid(pid, 0)
        return True
    finally:
        os.close(pidfd)
