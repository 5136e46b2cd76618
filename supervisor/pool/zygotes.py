"""The master's end of a zygote: starting one, asking it for children, reading its reports. Runs in master.

Owns the control socket and the zygote's pid. Must not import what runs in the zygote.
"""

import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from supervisor import clock
from supervisor.pool import kernel, memory, messages
from supervisor.pool.messages import Boot, Control, Spawn

#: Our own modules come from where the master's came from, whatever lies in the working directory.
_START: Final = (
    "import sys; sys.path.insert(0, sys.argv[3]); import supervisor; del sys.path[0];"
    " from supervisor.pool.zygote import main; main()"
)
_ROOT: Final = str(Path(__file__).parents[2])


class Zygote:
    """One started zygote. It is `ready` once its handlers are imported."""

    def __init__(self, number: int, boot: Boot, environment: Mapping[str, str], deadline_at: float) -> None:
        """Starts it, by exec and so from the master's main thread: its parent-death signal is tied to the thread.

        `deadline_at`: when it must be ready.
        """
        self.number = number
        self.workdir = boot.workdir
        self.ready = False
        self.inherited = memory.NOTHING  # what its children have from it
        self.retired = False  # it forks no more, and ends with its last child
        self.started_at = clock.monotonic()
        self.deadline_at: float | None = deadline_at
        self.strangers = kernel.children_of_self()  # adopted before it came: not its children's leftovers
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [sys.executable, "-P", "-c", _START, str(os.getpid()), str(number), _ROOT]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, 2, 1),
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), messages.CONTROL_FD),
            # Taken before anything is imported, so that no preloaded code gets the number that is the children's.
            (os.POSIX_SPAWN_DUP2, 2, messages.STACKS_FD),
        ]
        # The signal mask is inherited, blocked: the zygote opens it when its dispositions are set.
        self.pid = os.posix_spawn(sys.executable, arguments, dict(environment), file_actions=actions)
        theirs.close()
        kernel.send(self.control, messages.pack_control(boot))
        self.control.setblocking(False)

    def spawn(self, child: int, fds: tuple[int, ...]) -> None:
        """Ask for a child, which gets `fds` (`Spawn`). Raises OSError where the request cannot be passed on now."""
        kernel.send(self.control, messages.pack_control(Spawn(child)), fds)

    def read(self) -> Iterator[tuple[Control | None, list[int]]]:
        """Its reports since the last call; None at last where it is gone."""
        while True:
            try:
                packet, fds = kernel.receive(self.control, messages.MAX_PACKET_BYTES, 1)
            except BlockingIOError:
                return
            if not packet:
                yield None, []
                return
            if packet == messages.IN_MEMFD and fds:
                packet = kernel.read_memfd(fds.pop())
            try:
                report = messages.unpack_control(packet)
            except (ValueError, TypeError):
                report = None  # foreign code has written to its socket: it cannot be trusted any more
            yield report, fds
            if report is None:
                return

    def finish(self) -> None:
        """Tell it that there will be no more requests: it ends what is below it and exits."""
        self.control.shutdown(socket.SHUT_WR)

    def let_go(self) -> None:
        """End of its control socket: it kills its children, ends what is left below it, and exits."""
        self.control.close()

    def kill(self) -> None:
        """SIGKILL, where it hangs. Only we reap it, so the pid is its own until then."""
        os.kill(self.pid, signal.SIGKILL)

    def await_end(self, timeout_s: float) -> None:
        """After `let_go`: give it time to end its children, and kill it if that takes too long."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return  # reaped meanwhile
        try:
            if not kernel.await_ends([pidfd], timeout_s):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                kernel.await_ends([pidfd], timeout_s)
        finally:
            os.close(pidfd)
