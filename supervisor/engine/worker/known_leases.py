"""Builds the commands about leases that a worker already has. Runs in each worker. Does no I/O."""

from collections.abc import Iterable

from supervisor.engine.commands import leasing
from supervisor.engine.commands.command import Command
from supervisor.engine.commands.leasing import Renewal, ResumeResult
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.lease_times import LeaseTimes


def started(
    lease: LeaseRecord, *, progress: tuple[float, str] | None = None, state: bytes = b"", step: str = ""
) -> Renewal:
    """Return the renewal of a job that runs, with its progress, or its checkpoint or the result of a step."""
    return Renewal(lease.jid, lease.token, started=True, progress=progress, state=state, step=step)


def resume(identity: Identity, times: LeaseTimes, known: Iterable[LeaseRecord]) -> Command[ResumeResult]:
    """Return the command that resumes the session under the number of the next exchange, with the `known` leases."""
    return leasing.resume(
        identity.name, identity.next_number, [(lease.jid, lease.token) for lease in known],
        highest=identity.highest_token, ttl_s=times.own_ttl_s,
    )  # fmt: skip
