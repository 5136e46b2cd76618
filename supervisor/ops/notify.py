"""How a service manager is told, by systemd's protocol (sd_notify(3)), how the supervisor is. Runs in master.

Owns the socket, and what was said last. Must not wait: what cannot be said now is said again soon.
"""

import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

#: How often people are told anew how it is, at the most: each time wakes the service manager.
STATUS_S: Final = 2.0
#: When something that could not be said is said again.
AGAIN_S: Final = 1.0
#: What ending takes beside the steps of a drain: zygotes and the last lines of the log.
CLOSING_S: Final = 5.0
#: A promise that changes by less than this is not told anew.
_SAME_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Told:
    """How it is."""

    able: bool  # to lease jobs
    reloading: bool
    left_s: float | None  # of a drain
    status: str  # for people


@dataclass(frozen=True, slots=True)
class _Said:
    """What the service manager knows, and when it is to hear the rest."""

    watchdog_at: float
    ready: bool = False  # it was, once
    reloading: bool = False
    ends_at: float | None = None  # by when a drain will be over
    status: str = ""
    status_at: float = 0.0  # when it may be another


class Notify:
    """Says what has changed. `tell` often."""

    def __init__(self, address: str, watchdog_s: float) -> None:
        """`address`: of the service manager's socket; `watchdog_s`: it wants to hear from us that often, 0: it does
        not.
        """
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._watchdog_s = watchdog_s
        self._said = _Said(0.0 if watchdog_s else math.inf)
        self._wanted = ""  # the status that is to be said
        self._again_at = 0.0

    @classmethod
    def of(cls, environ: Mapping[str, str], pid: int) -> "Notify | None":
        """As the service manager wishes; None: there is none."""
        address = environ.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")) or len(address) < 2:
            return None
        return cls(address, _watchdog_s(environ, pid))

    def begin(self, boot_s: float) -> None:
        """It is ready within `boot_s`, at the latest."""
        self._send([f"EXTEND_TIMEOUT_USEC={_us(boot_s + CLOSING_S)}"])

    def tell(self, now_at: float, told: Told) -> None:
        """Say what has changed since, if anything has."""
        self._wanted = told.status
        if now_at < self._again_at:
            return
        lines, said = self._news(now_at, told)
        if told.status != said.status and (lines or now_at >= said.status_at):
            lines.append(f"STATUS={' '.join(told.status.split())}")
            said = replace(said, status=told.status, status_at=now_at + STATUS_S)
        if now_at >= said.watchdog_at:
            lines.append("WATCHDOG=1")
            said = replace(said, watchdog_at=now_at + self._watchdog_s / 2)
        if not lines:
            return
        if self._send(lines):
            self._said = said
        else:
            self._again_at = now_at + AGAIN_S

    def _news(self, now_at: float, told: Told) -> tuple[list[str], _Said]:
        """What the service manager acts upon."""
        said = self._said
        if told.left_s is not None:
            return self._end(now_at, told.left_s)
        if told.reloading != said.reloading and said.ready:
            begun = ["RELOADING=1", f"MONOTONIC_USEC={_us(now_at)}"]
            return begun if told.reloading else ["READY=1"], replace(said, reloading=told.reloading)
        if told.able and not said.ready:
            return ["READY=1"], replace(said, ready=True)
        return [], said

    def _end(self, now_at: float, left_s: float) -> tuple[list[str], _Said]:
        """By when: else it is killed after the time that all services get."""
        said, ends_at = self._said, now_at + left_s
        if said.ends_at is not None and abs(ends_at - said.ends_at) < _SAME_S:
            return [], said
        lasts = f"EXTEND_TIMEOUT_USEC={_us(left_s + CLOSING_S)}"
        return [lasts] if said.ends_at is not None else ["STOPPING=1", lasts], replace(said, ends_at=ends_at)

    def deadline_at(self) -> float:
        """When something is to be said, if nothing happens before."""
        said = self._said
        due_at = min(said.watchdog_at, said.status_at if self._wanted != said.status else math.inf)
        return max(due_at, self._again_at)

    def _send(self, lines: list[str]) -> bool:
        try:
            self._socket.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except OSError:  # nobody is there (it is starting anew), or it has not read what it was told before
            return False
        return True

    def close(self) -> None:
        self._socket.close()


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float:
    wanted, whose = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(pid))
    return int(wanted) / 1e6 if wanted.isdecimal() and whose == str(pid) else 0.0


def _us(seconds: float) -> int:
    return int(seconds * 1e6)
