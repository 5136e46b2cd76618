"""What a name on the command line stands for, in the command's process. Reads only; must not change anything."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from supervisor.cli.lib.parser import Refusal, near

if TYPE_CHECKING:
    from supervisor.engine.client.handles import Job
    from supervisor.engine.client.sync_client import Client


def job_of(client: "Client", jid: str) -> "Job":
    """The job of a jid; refuses if there is none."""
    return jobs_of(client, [jid])[0]


def jobs_of(client: "Client", jids: Sequence[str]) -> list["Job"]:
    """The jobs of some jids, up to 1,000; refuses if there is none of one of them."""
    jobs = client.jobs(*jids)
    missing = [jid for jid, job in zip(jids, jobs, strict=True) if job is None]
    if missing:
        raise Refusal(f"there is no job {' '.join(missing)}")
    return [job for job in jobs if job is not None]


def queues_of(client: "Client", patterns: Sequence[str]) -> list[str]:
    """The queues that names, globs and exclusions stand for; refuses a list of globs that match none. ValueError: one
    of them is no name.
    """
    from supervisor.engine.model.queue_order import Queues

    wanted = Queues(patterns)
    found = wanted.resolve(list(client.queues()) if wanted.has_globs else ())
    if not found:
        raise Refusal(f"no queue matches {' '.join(patterns)}")
    return list(found)


def no_queue(client: "Client", name: str) -> str | None:
    """A sentence if no job was ever put into a queue of this name, else None."""
    known = client.queues()
    return None if name in known else f"no job was ever put into queue {name}{near(name, known)}"
