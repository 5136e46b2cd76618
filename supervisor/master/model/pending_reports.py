"""Keeps what running jobs have to tell Redis, and to ask it, until that can be sent. Runs in the master.

No I/O.
"""

import math
from collections.abc import Mapping
from itertools import islice
from typing import Final

from supervisor import clock
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.replay import STEPS_BYTES
from supervisor.engine.model.validation import STATE_BYTES
from supervisor.master.model.held_lease import HeldLease
from supervisor.master.model.pace import SHORT_S
from supervisor.messages import Checkpoint, ProgressReport, ResultsWanted

#: Each job may store checkpoints at this rate: the largest one every 50 ms, small ones without a limit. All of them go
#: into Redis' append-only file.
_CHECKPOINT_BYTES_PER_S: Final = STATE_BYTES / 0.05
#: A job that has stored none for a while may exceed the rate by at most this much time.
_CHECKPOINT_RESERVE_S: Final = 0.5


class PendingReports:
    def __init__(self, held: Mapping[int, HeldLease]) -> None:
        """`held`: all leases by token, except those whose outcome is in the exchange under way."""
        self._held = held
        self._started: list[HeldLease] = []
        self._progressed: dict[int, HeldLease] = {}  # by token
        self._checkpointed: dict[int, HeldLease] = {}  # by token
        # By token, with the last checkpoint's number: in the exchange under way, or in one that got no answer.
        self._storing: dict[int, tuple[HeldLease, int]] = {}
        self._wanted: dict[int, tuple[HeldLease, ResultsWanted]] = {}  # by token

    @property
    def any(self) -> bool:
        """True if there is something for the next exchange."""
        return bool(self._started or self._progressed or self._checkpointed)

    # starts

    def job_started(self, held: HeldLease) -> None:
        """The job has started. Its start is reported, unless its lease did so or it will hardly outlast the report."""
        if not held.start_reported and (held.estimate_s is None or held.estimate_s > SHORT_S):
            self.add_start(held)

    def add_start(self, held: HeldLease) -> None:
        """The job runs, and its lease does not say so yet. Redis must know, because a death counts from now on."""
        held.start_reported = True
        self._started.append(held)

    def take_starts(self) -> list[LeaseRecord]:
        started, self._started = self._started, []
        return [held.lease for held in started if held.lease.token in self._held]

    # progress

    def add_progress(self, held: HeldLease, progress: ProgressReport) -> None:
        """Replace an earlier report that has not gone with an exchange."""
        held.reports.progress = progress
        self._progressed[held.lease.token] = held

    def take_progress(self) -> list[tuple[LeaseRecord, ProgressReport]]:
        """Return the reports of all jobs that are not lost. Jobs that have ended since are among them."""
        told, self._progressed = self._progressed, {}
        return [
            (held.lease, progress)
            for held in told.values()
            if (progress := held.reports.progress) is not None and held.lost_reason is None
        ]

    # checkpoints

    def add_checkpoint(self, held: HeldLease, checkpoint: Checkpoint) -> bool:
        """Have the checkpoint stored by the next exchange, before the job's end.

        A step does not replace others. Return False if the job has not awaited the answer to its last checkpoint.
        Raises ValueError for more steps than a job may have.
        """
        token, reports = held.lease.token, held.reports
        is_awaited = token not in self._checkpointed and token not in self._storing
        if checkpoint.step:
            reports.steps = (*reports.steps, checkpoint)
            if sum(len(step.state) for step in reports.steps) > STEPS_BYTES:
                raise ValueError(f"results of steps of more than {STEPS_BYTES} bytes")
        else:
            reports.checkpoint = checkpoint
        held.has_checkpoint = True
        self._checkpointed[token] = held
        return is_awaited

    def drop_checkpoint(self, token: int) -> None:
        """The lease is lost, so its checkpoint must not be stored."""
        self._checkpointed.pop(token, None)

    def take_checkpoints(self, now_at: float = math.inf) -> list[tuple[LeaseRecord, Checkpoint]]:
        """Take the checkpoints and steps that may be stored by now. They are being stored until `take_stored`.

        The last checkpoint of a job that has ended comes at once, because the end goes with the same exchange.
        """
        told, self._checkpointed = self._checkpointed, {}
        taken = []
        for token, held in told.items():
            reports = held.reports
            if reports.next_checkpoint_at > now_at and held.outcome is None:
                self._checkpointed[token] = held
                continue
            unstored, reports.checkpoint, reports.steps = reports.unstored, None, ()
            if unstored and held.lost_reason is None:
                self._storing[token] = held, unstored[-1].number
                taken += [(held.lease, checkpoint) for checkpoint in unstored]
                size_bytes = sum(len(checkpoint.state) for checkpoint in unstored)
                since_at = max(reports.next_checkpoint_at, min(now_at, clock.monotonic()) - _CHECKPOINT_RESERVE_S)
                reports.next_checkpoint_at = since_at + size_bytes / _CHECKPOINT_BYTES_PER_S
        return taken

    def next_checkpoint_at(self) -> float:
        """When the first waiting checkpoint may be stored (monotonic s). Infinity: none waits."""
        return min((held.reports.next_checkpoint_at for held in self._checkpointed.values()), default=math.inf)

    def take_stored(self, token: int, number: int) -> tuple[HeldLease, int] | None:
        """The checkpoint of this number was answered. Return the job and the number, which stands for all before it;
        None: others of the job are to be answered first.
        """
        return self._storing.pop(token) if self._storing.get(token, (None, 0))[1] == number else None

    def take_unstored(self) -> list[tuple[HeldLease, int]]:
        """The checkpoints that were being stored cannot be any more. Return them."""
        storing, self._storing = self._storing, {}
        return list(storing.values())

    # wanted results of parents

    def add_wanted(self, held: HeldLease, wanted: ResultsWanted) -> bool:
        """Replace what the job wanted last. Return False if that has not been taken."""
        is_first = held.lease.token not in self._wanted
        self._wanted[held.lease.token] = held, wanted
        return is_first

    def keep_wanted(self, held: HeldLease, wanted: ResultsWanted) -> None:
        """The exchange that took it got no answer. What the job has wanted since stays."""
        self._wanted.setdefault(held.lease.token, (held, wanted))

    def take_wanted(self, now_at: float, most: int) -> list[tuple[HeldLease, ResultsWanted]]:
        """Take what at most so many jobs want that may read by now."""
        due = (token for token, (held, _) in self._wanted.items() if held.reports.next_results_at <= now_at)
        return [self._wanted.pop(token) for token in list(islice(due, most))]

    def next_wanted_at(self) -> float:
        """When the first job may read results (monotonic s). Infinity: none wants any."""
        return min((held.reports.next_results_at for held, _ in self._wanted.values()), default=math.inf)
