"""When the next zygote is started, with the code of which place, and when there is no use in it. Runs in master.

Owns their numbers. What becomes of those that have started is `ZygoteManager`'.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path

from supervisor import clock
from supervisor.config import Config
from supervisor.master.model.breaker import Breaker
from supervisor.master.model.zygote_handle import ZygoteHandle, boot_of
from supervisor.master.processes.crash_loop_guard import AGAIN_S
from supervisor.master.processes.launch_directory import LaunchDirectory
from supervisor.messages import BootFailed, zygote_directory
from supervisor.ops.events import Events


class ZygoteStarts:
    def __init__(self, config: Config, workdir: Path, environment: Mapping[str, str], events: Events) -> None:
        """`environment`: of the zygotes."""
        self._config = config
        self._workdir = workdir.absolute()  # zygotes go elsewhere
        self._environment = environment
        self._events = events
        self._place = LaunchDirectory.here()
        self._started = 0
        self._barren = Breaker()  # zygotes of which no child got ready
        self._directory = self._place.now()  # where the handlers of the current zygote lie
        self._closing = False
        self.due_at = math.inf  # when the next one is started (monotonic s)
        self.proven = False  # there was one that could import the handlers
        self.failure: BootFailed | None = None  # why there is no use in starting more

    def again(self, open_files: int) -> ZygoteHandle | None:
        """One with the code of the one before, as long as that is there: no other has shown yet that it is of use.
        None: not now. Raises OSError if not even the first one can be started. `open_files`: as in `boot_of`.
        """
        self.due_at = math.inf
        try:
            gone = self._directory and not os.path.isdir(self._directory)
            return self._start(self.place() if gone else self._directory, open_files)
        except OSError as error:
            if self._started == 1:
                raise
            self._events.warn(f"no zygote can be started ({error}); trying again in {AGAIN_S:g} s")
            self.plan(AGAIN_S)
            return None

    def place(self) -> str:
        """Where the code lies now."""
        return self._place.now()

    def anew(self, open_files: int) -> ZygoteHandle:
        """One with the code that lies there now. Raises OSError."""
        return self._start(self.place(), open_files)

    def _start(self, directory: str, open_files: int) -> ZygoteHandle:
        self._started += 1
        workdir = Path(zygote_directory(str(self._workdir), self._started))
        workdir.mkdir(mode=0o700, parents=True)
        boot = boot_of(self._config, workdir, open_files, directory)
        return ZygoteHandle(self._started, boot, self._environment, clock.monotonic() + self._config.boot_timeout_s)

    def plan(self, wait_s: float) -> None:
        """The next one is started after that time, unless it is planned already, or none is wanted any more."""
        if self.due_at == math.inf and not self._closing:
            self.due_at = clock.monotonic() + wait_s

    def close(self) -> None:
        """None is started any more."""
        self._closing, self.due_at = True, math.inf

    def prove(self) -> None:
        """One has imported the handlers."""
        self.proven = True

    def follow(self, zygote: ZygoteHandle) -> None:
        """This one forks: those that come after it have its code."""
        self._directory = zygote.directory

    def succeed(self) -> None:
        """One forks of which a child was ready."""
        self.due_at, self.failure = math.inf, None
        self._barren.succeed()

    def give_up(self, failure: BootFailed) -> None:
        self.failure = self.failure or failure

    def count(self, zygote: ZygoteHandle, failure: BootFailed, is_killed: bool = False) -> float:
        """It forks no more. Return how long to wait before the next one is started.

        `failure`: what is wrong if no child of it got ready. `is_killed`: somebody has killed it while it booted, as
        the kernel does when memory runs out. That says nothing about the code, so that the first one is tried again.
        """
        if zygote.proven:
            self._barren.succeed()
            return 0.0
        if not (self.proven or is_killed):
            self.give_up(failure)
            return 0.0
        wait_s = self._barren.fail()
        self._events.emit(
            "zygote.failed", zygote=zygote.number, message=failure.message, traceback=failure.traceback or None
        )
        if self._barren.broken:
            self.give_up(failure)
        else:
            what = f"no child of zygote {zygote.number} was ready{self._barren.in_words}"
            self._events.warn(f"{what}; the next one is started in {wait_s:g} s")
        return wait_s
