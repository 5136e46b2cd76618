"""Defines the exceptions that callers can catch. Runs in every process. Must not import anything of this package."""

from typing import NamedTuple


def code_and_reason(error: str) -> tuple[str, str]:
    """Split the error with which a script has refused its call. Redis adds which script that was."""
    code, _, why = error.partition(" ")
    return code, why.partition(" script: ")[0]


class PutJobs(NamedTuple):
    """The fate of the jobs of a put_many that has failed. Each list is in the order in which they were given."""

    put: list[str]  # jids, as put_many would have returned them
    unknown: list[str]  # jids; each batch of them was put as a whole, or not at all
    not_put: list[str]  # jids


class LeaseholdError(Exception):
    """Base class of all that Leasehold refuses or cannot do.

    `jobs`: what became of the jobs, if put_many raised it.
    """

    jobs: PutJobs | None = None


class NoServer(LeaseholdError):
    """The client has no server URL, and an embedded server would lose its jobs here."""


class LeaseLost(LeaseholdError):
    """The worker no longer holds the lease: it expired and the job was taken, or the job was moved or settled."""


class JobNotFound(LeaseholdError):
    """No job has this jid: it never existed, was cancelled, or its retention is over."""


class JobFailed(LeaseholdError):
    """The awaited job has failed: `group` is the kind of failure, `message` its text."""

    def __init__(self, jid: str, group: str, message: str) -> None:
        super().__init__(f"job {jid} failed in group {group}: {message}")
        self.jid = jid
        self.group = group
        self.message = message


class DependencyError(LeaseholdError):
    """The dependency would make a job wait for itself, or does not exist, or still has dependents."""


class LayoutError(LeaseholdError):
    """The namespace has another layout than this Leasehold's: `leasehold upgrade` converts it. Nothing has changed."""


class StoreUnavailable(LeaseholdError):
    """Redis is unreachable or refused the call. Nothing has changed."""


class ReadOnlyReplica(StoreUnavailable):
    """The server is a replica that takes no writes. Queries work there; requests to supervisors do not."""


class OutcomeUnknown(LeaseholdError):
    """The connection ended between a call and its reply: the call was carried out as a whole, or not at all."""
