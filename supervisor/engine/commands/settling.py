"""Builds the command that ends leases, and parses its reply. Runs in every process that leases.

Must not do I/O.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Final

from supervisor import clock
from supervisor.engine.commands.command import Argument, Command, checked_batch, checked_number, now_ms
from supervisor.engine.commands.routes import Asking, by_tokens
from supervisor.engine.commands.steps import Steps
from supervisor.engine.model import scripts
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.outcomes import (
    ENDLESS,
    LATER,
    REFUSED,
    TOO_MANY_QUEUES,
    Answer,
    Completed,
    Outcome,
    needs_memory,
)

_COMPLETE: Final = 4  # arguments of a completion without followers
_ANSWERS: dict[bytes, Answer] = {
    b"1": True,
    b"0": False,
    b"": None,
    b"waiting": "waiting",
    b"scheduled": "scheduled",
    b"failed": "failed",
    b"!": REFUSED,
    b"~": ENDLESS,
    b"#": TOO_MANY_QUEUES,
    b"+": LATER,
}


def settle(
    worker: str, outcomes: Sequence[Outcome], *, number: int | None = None, now: float | None = None
) -> Command[list[Answer]]:
    """End up to 1,000 leases.

    Sent again under the same `number` it changes nothing and gets the same reply; below the worker's last number, every
    outcome is stale. If one outcome puts jobs or brings more than 64 KiB of data, a server with full memory refuses
    them all with an error beginning with OOM.
    """
    checked_batch("outcomes", outcomes)
    when_unix = clock.unix() if now is None else now
    script, in_short = scripts.SETTLE, _InShort()
    order: list[int] = []  # of the outcomes that are not sent in short: the first one, and all behind it
    rest: list[Argument] = []
    for index, outcome in enumerate(outcomes):
        if type(outcome) is not Completed and not isinstance(outcome, Outcome):
            raise TypeError(f"outcomes must be ends of leases, such as Completed or Failed: {outcome!r:.100}")
        arguments = outcome.arguments(worker, when_unix)
        granted_ms = getattr(outcome.lease, "granted_ms", None)
        if not rest and granted_ms is not None and arguments[0] == "complete" and len(arguments) == _COMPLETE:
            in_short.add(index, outcome.lease.queue, granted_ms, arguments)
            continue
        if script is scripts.SETTLE and needs_memory(arguments):
            script = scripts.within_memory(scripts.SETTLE)
        rest += arguments
        order.append(index)
    first, short = in_short.arguments()
    args = now_ms(now), checked_name("worker", worker), checked_number(number), *short, *rest
    route = partial(_by_tokens, worker, outcomes, now)
    return Command(script, args, partial(_parse_answers, [*first, *order]), route=route)


def _by_tokens(
    worker: str, outcomes: Sequence[Outcome], now: float | None, _command: Command[list[Answer]], _shards: int
) -> Asking[list[Answer]]:
    """End each lease in the shard that has granted it."""
    return by_tokens(
        [outcome.lease.token for outcome in outcomes],
        lambda part: settle(worker, [outcomes[index] for index in part], now=now),
    )


class _InShort:
    """The completions of jobs whose records were dense when they were leased, as settle.lua takes them."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int], list[tuple[int, tuple[Argument, ...]]]] = {}

    def add(self, index: int, queue: str, granted_ms: int, arguments: tuple[Argument, ...]) -> None:
        self._groups.setdefault((queue, granted_ms), []).append((index, arguments))

    def arguments(self) -> tuple[list[int], list[Argument]]:
        """Return the indexes of the outcomes in the order in which they are sent, and the arguments."""
        groups = sorted(self._groups.items())
        sent = [one for _, group in groups for one in group]
        if not sent:
            return [], [0]
        results = [(at, one[3]) for at, (_, one) in enumerate(sent, 1) if one[3] != b""]
        args: list[Argument] = [len(sent), *(one[1] for _, one in sent), *(one[2] for _, one in sent)]
        args.append(len(groups))
        for (queue, granted_ms), group in groups:
            args += (queue, granted_ms, len(group))
        args += (len(results), *chain.from_iterable(results))
        return [index for index, _ in sent], args


def _parse_answers(order: Sequence[int], reply: bytes) -> list[Answer]:
    """Return the answers in the order of the outcomes. `order`: the index of each as it was sent."""
    if order and reply == b"1," * (len(order) - 1) + b"1":
        return [True] * len(order)
    sent = [_ANSWERS[word] if word in _ANSWERS else int(word[1:]) for word in reply.split(b",")] if order else []
    if len(sent) != len(order):  # another call had this number
        return sent
    answers: list[Answer] = [None] * len(order)
    for index, answer in zip(order, sent, strict=True):
        answers[index] = answer
    return answers


def settle_in_parts(worker: str, parts: Iterable[Sequence[Outcome]], now: float) -> Steps[list[Answer]]:
    """End leases, one part after the other. All arguments are checked before the first part ends."""
    answers: list[Answer] = []
    for part, command in [(part, settle(worker, part, now=now)) for part in parts]:
        ended: list[Answer] = yield command
        while later := [i for i, answer in enumerate(ended) if answer == LATER]:
            again = yield settle(worker, [part[i] for i in later], now=now)
            for i, answer in zip(later, again, strict=True):
                ended[i] = answer
        answers += ended
    return answers
