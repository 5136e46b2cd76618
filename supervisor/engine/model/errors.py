"""Runs in every process. Owns: the refusals that callers can catch. Must not: import anything of ours."""


class LeaseholdError(Exception):
    """Whatever Leasehold refuses or cannot do."""


class NoServer(LeaseholdError):
    """A client was given no server, and here an embedded one would lose its jobs."""


class LeaseLost(LeaseholdError):
    """The lease is not this worker's any more: it ran out and the job was taken, moved or settled already."""


class JobNotFound(LeaseholdError):
    """There is no job of this jid: it never was, was cancelled, or its retention is over."""


class JobFailed(LeaseholdError):
    """The job that was waited for has failed: `group` is the kind of failure, `message` what was said about it."""

    def __init__(self, jid: str, group: str, message: str) -> None:
        super().__init__(f"job {jid} failed in group {group}: {message}")
        self.jid = jid
        self.group = group
        self.message = message


class DependencyError(LeaseholdError):
    """A job would wait for itself, is not waiting for others, or others wait for it."""


class StoreUnavailable(LeaseholdError):
    """Redis cannot be reached, or would not carry the call out. Nothing has changed."""


class ReadOnlyReplica(StoreUnavailable):
    """The server is a replica that nobody may write to. Looks work there; supervisors cannot be asked by way of it."""


class OutcomeUnknown(LeaseholdError):
    """The connection ended between a call and its answer: it was carried out as a whole, or not at all."""
