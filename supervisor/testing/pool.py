"""A real supervisor for a test: `leasehold run` in a process of its own. Used in the process of pytest."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from supervisor import clock
from supervisor.engine.client.sync_client import Client

_START_S: Final = 60.0
_DRAIN_S: Final = 60.0
_LOOK_S: Final = 0.02
_LAST_CHARS: Final = 4000


class RunningPool:
    """A supervisor that serves all queues of the test. `pid`: of its master. `log`: what it has written so far."""

    def __init__(self, client: Client, log: Path, processes: int, handlers: str, arguments: Sequence[str]) -> None:
        """Block until the supervisor serves. Raises AssertionError with its log if it does not."""
        self._path = log
        command = [sys.executable, "-m", "supervisor", "run", "--handlers", handlers, "--queue", "*"]
        # Nothing but the fixture's variables: those of the shell may be meant for another server.
        ours = {"LEASEHOLD_REDIS_URL", "LEASEHOLD_NAMESPACE"}
        environment = {
            name: value for name, value in os.environ.items() if name in ours or not name.startswith("LEASEHOLD_")
        }
        with open(log, "wb") as written:
            self._process = subprocess.Popen(
                [*command, "--processes", str(processes), "--log", "text", *arguments],
                stdin=subprocess.DEVNULL, stdout=written, stderr=written, env=environment,
            )  # fmt: skip
        try:
            self._await_start(client)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._path.read_text(errors="replace")

    def _await_start(self, client: Client) -> None:
        deadline_at = clock.monotonic() + _START_S
        while not any(worker.klasses for worker in client.workers()):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_S)
            if self._process.returncode is not None or clock.monotonic() > deadline_at:
                raise AssertionError(f"the supervisor does not serve; its log ends:\n{self.log[-_LAST_CHARS:]}")

    def drain(self) -> None:
        """Send SIGTERM, and wait for the end. Raises AssertionError with the log if that is no good end. Idempotent."""
        if self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(_DRAIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no drain within {_DRAIN_S:g} s; the log ends:\n{self.log[-_LAST_CHARS:]}") from None
        if status != 0:
            raise AssertionError(f"the supervisor ended with status {status}; its log ends:\n{self.log[-_LAST_CHARS:]}")

    def kill(self) -> None:
        """End the supervisor at once by SIGKILL, as a lost host would. Idempotent."""
        self._process.kill()
        self._process.wait()
