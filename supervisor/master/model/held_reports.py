"""Keeps the reports and chunks of one running job until exchanges have taken them. Runs in the master. No I/O."""

from dataclasses import dataclass, field

from supervisor.engine.commands.leasing import Streamed
from supervisor.messages import Checkpoint, ProgressReport


@dataclass(slots=True, eq=False)
class HeldReports:
    """The reports of a running job. Each time is monotonic."""

    count: int = 0  # progress reports, and checkpoints sent before the answer to the last one
    progress: ProgressReport | None = None  # the last one, until it goes with an exchange
    checkpoint: Checkpoint | None = None  # the last one, until it goes with an exchange
    steps: tuple[Checkpoint, ...] = ()  # results of steps, until they go with an exchange
    next_checkpoint_at: float = 0.0  # a checkpoint may not be stored before
    next_results_at: float = 0.0  # results of parents may not be read before

    @property
    def unstored(self) -> list[Checkpoint]:
        """The checkpoint and the steps that have not gone with an exchange, in the order of their numbers."""
        return sorted((*self.steps, self.checkpoint) if self.checkpoint is not None else self.steps)


@dataclass(slots=True, eq=False)
class HeldStream:
    """The stream of a running job. Under way are the chunks that Redis has not taken."""

    taken: int = 0
    sent: int = 0  # taken, refused, or in an exchange that was not answered
    chunks: list[bytes] = field(default_factory=list)  # that wait for their first exchange, as packed
    chunk_bytes: int = 0
    refused: list[Streamed] = field(default_factory=list)  # by a Redis whose memory is full
    next_at: float = 0.0  # none may go before
