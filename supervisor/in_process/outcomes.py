"""Says what the end of a run in this process means, by the rules of the master. Runs in applications and their tests.

Must not do I/O.
"""

from typing import NamedTuple

from supervisor import messages
from supervisor.child.answers import Answer
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import Outcome
from supervisor.master.model import outcome_rules
from supervisor.messages import HandlerSettings, JobMessage, Verb


class RunEnd(NamedTuple):
    """How a run has ended. `verb`, `body`: as a child reports it. `verb` None: a child would have died, with the wait
    `status`, or after the MemoryError whose traceback `overflow` is.
    """

    verb: Verb | None
    body: bytes = b""
    status: int | None = None
    overflow: str | None = None

    @property
    def death(self) -> outcome_rules.End:
        return outcome_rules.End(self.status, overflow=self.overflow)


def message_of(lease: LeaseRecord) -> JobMessage:
    """Return a leased job as its handler's process receives it."""
    return JobMessage(
        lease.token, lease.jid, lease.klass, lease.queue, lease.priority, lease.failures, lease.deaths,
        lease.interruptions, lease.tags, lease.lane, lease.persistent, lease.waited_s, lease.is_bytes, lease.raw,
        lease.raw_saved, 0, lease.trace, lease.at_most_once, lease.raw_replay, 0, lease.batch, lease.is_call,
    )  # fmt: skip


def end_of(answer: Answer) -> RunEnd:
    verb, parts = answer
    if verb == Verb.OVERFLOWED:
        return RunEnd(None, overflow=messages.unpack_trouble(parts[0]).traceback)
    return RunEnd(verb, b"".join(parts))


def end_of_exit(leaving: SystemExit) -> RunEnd:
    """Return the end of a run whose handler has called sys.exit: a child would have exited with this status."""
    code = leaving.code
    return RunEnd(None, status=((code & 0xFF) if isinstance(code, int) else int(code is not None)) << 8)


def outcome_of(lease: LeaseRecord, end: RunEnd, settings: HandlerSettings) -> Outcome:
    """Raises ValueError or TypeError for what no handler may answer."""
    if end.verb is None:
        return outcome_rules.of_death(lease, end.death, settings, None)
    return outcome_rules.of_outcome(lease, end.verb, end.body, settings, outcome_rules.NO_END)
