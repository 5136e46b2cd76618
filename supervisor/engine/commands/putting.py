"""Builds the command that puts jobs. Runs in every process that puts jobs. Must not do I/O."""

from collections.abc import Sequence

from supervisor.engine.commands.command import Argument, Command, checked_batch, now_ms
from supervisor.engine.model import scripts
from supervisor.engine.model.new_jobs import SHORT, NewJob


def put(jobs: Sequence[NewJob], *, now: float | None = None) -> Command[list[bool | str]]:
    """Create or move up to 1,000 jobs, all or none.

    Answers per job whether it changed (add changes no known jid), or the jid of the job that holds its claim.
    """
    checked_batch("jobs", jobs)
    args: list[Argument] = [now_ms(now)]
    head: Argument | None = None
    for job in jobs:
        arguments = job.arguments
        if len(arguments) == SHORT:  # most jobs of a call have the same queue, klass and options
            args += ("" if arguments[0] == head else arguments[0], *arguments[1:])
            head = arguments[0]
        else:
            args += arguments
            head = None
    return Command(scripts.PUT, tuple(args), _parse_puts)


def _parse_puts(reply: list[int | bytes]) -> list[bool | str]:
    return [answer.decode() if isinstance(answer, bytes) else answer == 1 for answer in reply]
