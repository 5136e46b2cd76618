"""The meaning of each signal to the master, and its sender. Runs in the master. Acts on none."""

import signal
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from supervisor.linux.kernel import Received, program_of


class Meaning(Enum):
    """A request by a signal."""

    DRAIN = "drain"
    HURRY = "hand back at once"
    RELOAD = "reload"
    MORE = "one process more"
    FEWER = "one process fewer"
    STACKS = "stacks"
    PAUSE = "pause"
    RESUME = "resume"
    REAP = "reap"  # sent by the kernel: a process of ours has ended


MEANINGS: Final = {
    signal.SIGTERM: Meaning.DRAIN,
    signal.SIGINT: Meaning.DRAIN,
    signal.SIGQUIT: Meaning.HURRY,
    signal.SIGHUP: Meaning.RELOAD,
    signal.SIGTTIN: Meaning.MORE,
    signal.SIGTTOU: Meaning.FEWER,
    signal.SIGUSR1: Meaning.STACKS,
    signal.SIGUSR2: Meaning.PAUSE,
    signal.SIGCONT: Meaning.RESUME,
    signal.SIGCHLD: Meaning.REAP,
}

_OUTSIDE: Final = "a process outside this container"
_KERNEL: Final = "the kernel, as for a key on the terminal"


@dataclass(frozen=True, slots=True)
class By:
    """The origin of a request: a signal with its sender, or a command. `str()` makes it part of a sentence."""

    what: str  # for example SIGTERM, or leasehold drain
    is_signal: bool = False
    sender_pid: int | None = None
    sender_uid: int | None = None
    sender: str | None = None  # the name of the sender's program, if known

    @classmethod
    def of(cls, received: Received) -> "By":
        """Describe a received signal. Reads the sender's name from /proc (20 µs)."""
        signo, pid, uid, by_kernel = received
        if by_kernel:
            return cls(signo.name, True, sender=_KERNEL)
        if pid == 0:
            return cls(signo.name, True, sender_uid=uid, sender=_OUTSIDE)
        return cls(signo.name, True, pid, uid, program_of(pid))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an event."""
        named = {"signal": self.what} if self.is_signal else {"by": self.what}
        return {**named, "sender_pid": self.sender_pid, "sender_uid": self.sender_uid, "sender": self.sender}

    def __str__(self) -> str:
        if self.sender_pid is not None:
            return f"{self.what} from pid {self.sender_pid} ({self.sender or 'gone by now'}, uid {self.sender_uid})"
        return f"{self.what} from {self.sender}" if self.sender else self.what
