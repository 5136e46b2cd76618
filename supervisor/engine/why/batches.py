"""Reasons of a batch: why it has not ended, or how it ended. Runs in applications and commands."""

from dataclasses import asdict

from supervisor.engine.commands.batches import BatchRecord
from supervisor.engine.why.ended import Reason
from supervisor.engine.why.record import Why
from supervisor.engine.why.words import actor, counted, moment


def conclude_batch(batch_id: str, batch: BatchRecord | None) -> Why:
    """Return the reason of a batch, also of one that is not there."""
    if batch is None:
        words = f"there is no batch {batch_id}: it was never opened, or has ended more than a week ago"
        return Why("unknown", words, {"batch": batch_id})
    return Why(*_reason(batch), {name: value for name, value in asdict(batch).items() if value is not None})


def _reason(batch: BatchRecord) -> Reason:
    name = f"batch {batch.id}"
    of = f"{batch.pending:,} of {counted(batch.total, 'job')}"
    if batch.ended_unix is not None:
        failed = f"; {counted(batch.failed, 'job')} failed" if batch.failed else ""
        return batch.state, f"{name} ended {batch.state} at {moment(batch.ended_unix)}{failed}"
    if batch.paused:
        return "paused-batch", f"{name} is paused{actor((batch.paused_by, batch.paused_unix))}; {of} have not ended"
    if batch.closed_unix is None:
        return "open", (
            f"{name} is open since {moment(batch.opened_unix)}, so nothing calls back: its program still puts jobs, or"
            f" was killed in the block; {of} have not ended"
        )
    failed = f", {batch.failed:,} failed" if batch.failed else ""
    return "jobs-pending", f"{name} waits for its jobs: {of} have not ended{failed}"
