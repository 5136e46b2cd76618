"""Builds the commands by which others wait for a job's end. Runs in applications and commands. Must not do I/O."""

from typing import NamedTuple

from supervisor.engine.commands.command import Command, now_ms
from supervisor.engine.commands.routes import is_none, to
from supervisor.engine.model import scripts
from supervisor.engine.model.keys import checked_name


class Followed(NamedTuple):
    """The stream of a job: how the job has ended, empty if it has not, and the id of the stream's last entry.

    `state` is "gone" if only the stream is left, which says at its end how the job has ended.
    """

    state: str
    position: str


def wait_for(jid: str, *, now: float | None = None) -> Command[str | None]:
    """Register one more waiter of a job, so that its end adds one more token.

    Answers its state; None if there is none.
    """
    args = now_ms(now), checked_name("jid", jid)
    return Command(scripts.AWAIT, args, lambda reply: None if reply is None else reply.decode(), route=to(jid, is_none))


def follow(jid: str, *, now: float | None = None) -> Command[Followed | None]:
    """Have the end of a job told in its stream. Answers None if there is no such job."""
    args = now_ms(now), checked_name("jid", jid)
    return Command(
        scripts.FOLLOW, args, lambda reply: reply and Followed(*(word.decode() for word in reply)),
        route=to(jid, is_none),
    )  # fmt: skip
