"""Reports the supervisor's state to a service manager by systemd's protocol, sd_notify(3). Runs in the master.

Owns the socket and the last report. Must not wait: a report that fails is repeated soon.
"""

import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

#: Shortest time between two status texts: each one wakes the service manager.
STATUS_S: Final = 2.0
#: Pause after a report that could not be sent.
AGAIN_S: Final = 1.0
#: Time for the end beside the steps of a drain: zygotes and the last lines of the log.
CLOSING_S: Final = 5.0
#: A smaller change of the promised end is not reported.
_SAME_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state to report."""

    able: bool  # can lease jobs
    reloading: bool
    left_s: float | None  # until the end of a drain
    status: str  # for people


@dataclass(frozen=True, slots=True)
class _Report:
    """The state that was reported, and when the next reports are due."""

    watchdog_at: float
    ready: bool = False  # was reported
    reloading: bool = False
    ends_at: float | None = None  # promised end of a drain
    status: str = ""
    status_at: float = 0.0  # of the next status text


class ServiceNotifier:
    """Reports changes of the state. Call `update` often."""

    def __init__(self, address: str, watchdog_s: float) -> None:
        """`address`: the service manager's socket. `watchdog_s`: its watchdog interval, 0 for none."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._watchdog_s = watchdog_s
        self._report = _Report(0.0 if watchdog_s else math.inf)
        self._wanted = ""  # the current status text
        self._again_at = 0.0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], pid: int) -> "ServiceNotifier | None":
        """Return a notifier as the environment asks for it, or None without a service manager."""
        address = environ.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")) or len(address) < 2:
            return None
        return cls(address, _watchdog_s(environ, pid))

    def promise_ready(self, boot_s: float) -> None:
        """Promise to be ready within `boot_s`."""
        self._send([f"EXTEND_TIMEOUT_USEC={_us(boot_s + CLOSING_S)}"])

    def update(self, now_at: float, state: ServiceState) -> None:
        """Report what has changed since the last report."""
        self._wanted = state.status
        if now_at < self._again_at:
            return
        lines, report = self._changes(now_at, state)
        if state.status != report.status and (lines or now_at >= report.status_at):
            lines.append(f"STATUS={' '.join(state.status.split())}")
            report = replace(report, status=state.status, status_at=now_at + STATUS_S)
        if now_at >= report.watchdog_at:
            lines.append("WATCHDOG=1")
            report = replace(report, watchdog_at=now_at + self._watchdog_s / 2)
        if not lines:
            return
        if self._send(lines):
            self._report = report
        else:
            self._again_at = now_at + AGAIN_S

    def _changes(self, now_at: float, state: ServiceState) -> tuple[list[str], _Report]:
        """Return the lines on which the service manager acts, and the new report."""
        report = self._report
        if state.left_s is not None:
            return self._end_report(now_at, state.left_s)
        if state.reloading != report.reloading and report.ready:
            begun = ["RELOADING=1", f"MONOTONIC_USEC={_us(now_at)}"]
            return begun if state.reloading else ["READY=1"], replace(report, reloading=state.reloading)
        if state.able and not report.ready:
            return ["READY=1"], replace(report, ready=True)
        return [], report

    def _end_report(self, now_at: float, left_s: float) -> tuple[list[str], _Report]:
        """Return the lines about the end: without its time the manager kills the service after the default time."""
        report, ends_at = self._report, now_at + left_s
        if report.ends_at is not None and abs(ends_at - report.ends_at) < _SAME_S:
            return [], report
        lasts = f"EXTEND_TIMEOUT_USEC={_us(left_s + CLOSING_S)}"
        return [lasts] if report.ends_at is not None else ["STOPPING=1", lasts], replace(report, ends_at=ends_at)

    def deadline_at(self) -> float:
        """Return when the next report is due without a change."""
        report = self._report
        due_at = min(report.watchdog_at, report.status_at if self._wanted != report.status else math.inf)
        return max(due_at, self._again_at)

    def _send(self, lines: list[str]) -> bool:
        try:
            self._socket.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except OSError:  # the manager restarts, or has not read earlier reports
            return False
        return True

    def close(self) -> None:
        self._socket.close()


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float:
    wanted, whose = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(pid))
    return int(wanted) / 1e6 if wanted.isdecimal() and whose == str(pid) else 0.0


def _us(seconds: float) -> int:
    return int(seconds * 1e6)
