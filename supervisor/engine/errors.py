"""Runs in every process. Owns: the refusals that callers can catch. Must not: import anything of ours."""


class LeaseholdError(Exception):
    """Whatever Leasehold refuses or cannot do."""


class LeaseLost(LeaseholdError):
    """The lease is not this worker's any more: it ran out and the job was taken, moved or settled already."""


class JobNotFound(LeaseholdError):
    """There is no job of this jid: it never was, was cancelled, or its retention is over."""


class DependencyError(LeaseholdError):
    """A job would wait for itself, is not waiting for others, or others wait for it."""


class StoreUnavailable(LeaseholdError):
    """Redis cannot be reached, or would not carry the call out. Nothing has changed."""


class OutcomeUnknown(LeaseholdError):
    """The connection ended between a call and its answer: it was carried out as a whole, or not at all."""
