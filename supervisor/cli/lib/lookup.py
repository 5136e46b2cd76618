"""Finds jobs and queues by the names on the command line. Runs in the command's process. Must not change anything."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from supervisor.cli.lib.parser import Refusal, near

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.client.sync_handles import Job


def job_of(client: "Client", jid: str) -> "Job":
    """Return the job of a jid. Refuse if it does not exist."""
    return jobs_of(client, [jid])[0]


def jobs_of(client: "Client", jids: Sequence[str]) -> list["Job"]:
    """Return the jobs of up to 1,000 jids. Refuse if one of them does not exist."""
    jobs = client.jobs(*jids)
    missing = [jid for jid, job in zip(jids, jobs, strict=True) if job is None]
    if missing:
        raise Refusal(f"there is no job {' '.join(missing)}")
    return [job for job in jobs if job is not None]


def queues_of(client: "Client", patterns: Sequence[str]) -> list[str]:
    """Return the queues that names, globs and exclusions select. Refuse globs that match none.

    Raises ValueError for an invalid name.
    """
    from supervisor.engine.model.queue_order import Queues

    wanted = Queues(patterns)
    found = wanted.resolve(list(client.queues()) if wanted.has_globs else ())
    if not found:
        raise Refusal(f"no queue matches {' '.join(patterns)}")
    return list(found)


def no_queue(client: "Client", name: str) -> str | None:
    """Return a sentence if no job was ever put into this queue, else None."""
    known = client.queues()
    return None if name in known else f"no job was ever put into queue {name}{near(name, known)}"
