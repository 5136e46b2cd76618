"""Builds the commands by which a worker takes leases and keeps them, and parses their replies.

Runs in every process that leases. Must not do I/O. settling.py ends leases.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from supervisor.engine.commands.command import Argument, Command, checked_batch, checked_number, checked_queues, now_ms
from supervisor.engine.commands.payloads import LOST as LOST_PAYLOAD
from supervisor.engine.commands.payloads import PAIR, LeftOut, place_of_payload
from supervisor.engine.commands.routes import Asking, by_tokens, concatenated
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.cron_times import DueCron, parse_due
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.jobs import LeaseRecord, dense_lease
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.outcomes import LARGE_DATA_BYTES
from supervisor.engine.model.queue_order import checked_order
from supervisor.engine.model.validation import UNSET, checked_int, checked_progress, milliseconds, to_new_data

#: renew's answers for a lease that is lost, and for one whose job was cancelled.
LOST: Final = 0.0
GONE: Final = -1.0


@dataclass(frozen=True, slots=True)
class Grant:
    """The result of a lease.

    `now_unix` is the time of the reply by the same clock. `next_at_unix`: when to ask again; None if no time is known
    or all jobs asked for were given. `due`: cron recurrences to `spawn`. `unreadable`: jids of damaged records, whose
    leases are left to expire, so that the jobs fail in the end. `request_number`: how many requests
    to this worker there were so far. `starting`: the first so many of `leases` count as started. `acknowledged`: False
    if too few replicas have the leases of jobs that must not start twice.
    """

    now_unix: float
    next_at_unix: float | None
    leases: list[LeaseRecord]
    due: list[DueCron]
    unreadable: Sequence[str] = ()
    request_number: int = 0
    starting: int = 0
    acknowledged: bool = True


class Renewal(NamedTuple):
    """One lease to renew.

    `started`: the job has begun. `data` replaces the job's data. `progress` is a fraction and a text. `state` is a
    checkpoint as JSON, from `to_state`; or the result of the `step` of this name.
    """

    jid: str
    token: int
    started: bool = False
    data: Any = UNSET
    progress: tuple[float, str] | None = None
    state: bytes = b""
    step: str = ""


class Streamed(NamedTuple):
    """`chunks` that one lease streams, as `to_chunk` packs them.

    `before`: how many it has streamed earlier, so that they can be sent again. None: they are sent once.
    """

    jid: str
    token: int
    before: int | None
    chunks: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class ResumeResult:
    """The result of a resume.

    `handed_back`: how many jobs unknown to the worker went back to the front.
    """

    expires: "Renewals"
    handed_back: int


class Renewals(list[float]):
    """The new expiry of each lease in unix seconds, LOST or GONE.

    `now_unix`: the server's time. `cancelled_by`: who cancelled the jobs that are GONE, by index; "" = unknown. A job
    that is GONE for another reason, like a Redis that has lost its data, is not in it.
    """

    def __init__(self, expires: Iterable[float], now_unix: float, cancelled_by: Mapping[int, str]) -> None:
        super().__init__(expires)
        self.now_unix = now_unix
        self.cancelled_by = cancelled_by


def lease(
    worker: str,
    queues: Sequence[str],
    count: int = 1,
    *,
    ttl_s: float | None = None,
    starting: int | None = None,
    number: int | None = None,
    takeover: bool = True,
    order: str = "strict",
    weights: Mapping[str, int] | None = None,
    woken: bool = False,
    waited: bool = False,
    once: Sequence[str] = (),
    first_shard: int | None = None,
    now: float | None = None,
) -> Command[Grant]:
    """Lease up to `count` (0 to 1,000) jobs of the queues, in one of queue_order.ORDERS.

    The first `starting` jobs (default: all) start at once. A `number` below the worker's last one gets nothing; the
    number of a forgotten worker gets an error beginning with DEREGISTERED. `takeover`: jobs of lost workers may be
    taken. `weights` are 1 by default. `woken`: a wake-up key has called. `waited`: the lease is sent behind a wait for
    a wake-up key, so other exchanges may have higher numbers. `once`: klasses whose jobs become at-most-once with this
    lease, unless they were put with at_most_once=False. `first_shard`: of several, whose wake-up key has called.
    """
    checked_int("count", count, 0, MOST)
    starts = count if starting is None else checked_int("starting", starting, 0)
    args: list[Argument] = [
        now_ms(now), checked_name("worker", worker), checked_number(number), count, starts, _ttl(ttl_s),
        "1" if takeover else "", checked_order(order), 0 if order == "strict" else random.getrandbits(31),
        "2" if waited else "1" if woken else "", "\n".join(once),
    ]  # fmt: skip
    for queue in checked_queues(queues):
        args += (queue, weights.get(queue, 1) if weights else 1)
    return Command(
        scripts.LEASE,
        tuple(args),
        lambda reply: _parse_grant(worker, starts, reply),
        lambda prefix, reply: LeftOut(prefix, worker, reply),
        partial(_shard_by_shard, count, first_shard, partial(
            lease, worker, queues, ttl_s=ttl_s, number=number, takeover=takeover, order=order, weights=weights,
            woken=woken, once=once, now=now,
        )),
    )  # fmt: skip


def _shard_by_shard(
    count: int,
    first_shard: int | None,
    build: Callable[[int], Command[Grant]],
    _command: Command[Grant],
    shards: int,
) -> Asking[Grant]:
    """Lease from one shard after the other until there are enough jobs, from the one that has called on, or any."""
    first, grants = random.randrange(shards) if first_shard is None else first_shard % shards, list[Grant]()
    left = count
    for shard in (*range(first, shards), *range(first)):
        try:
            [grant] = yield [(shard, build(left))]
        except LeaseholdError:
            if not any(one.leases for one in grants):
                raise
            break  # no worker would have the jobs of the others until their leases expire
        grants.append(grant)
        left -= len(grant.leases)
        if left <= 0 < count:
            break
    pauses_s = [one.next_at_unix - one.now_unix for one in grants if one.next_at_unix is not None]
    return replace(
        grants[0],  # shards on other servers have other clocks
        next_at_unix=grants[0].now_unix + min(pauses_s) if pauses_s and left > 0 else None,
        leases=concatenated([one.leases for one in grants]),
        due=concatenated([one.due for one in grants]),
        unreadable=concatenated([one.unreadable for one in grants]),
        starting=sum(one.starting for one in grants),
    )


def renew(
    worker: str,
    entries: Sequence[Renewal],
    *,
    number: int | None = None,
    ttl_s: float | None = None,
    now: float | None = None,
) -> Command[Renewals]:
    """Renew up to 1,000 leases. Answers the new expiry of each in unix seconds, LOST, or GONE for a cancelled job.

    A `number` below the worker's last one stores no checkpoint and no step. If one renewal brings more than 64 KiB of
    data, a server with full memory refuses them all with an error beginning with OOM.
    """
    checked_batch("entries", entries)
    args: list[Argument] = [now_ms(now), checked_name("worker", worker), checked_number(number), _ttl(ttl_s)]
    script = scripts.RENEW
    for jid, token, started, data, progress, state, step in entries:
        report: tuple[Argument, ...] = ("", "")
        if progress is not None:
            fraction, text = checked_progress(*progress)
            report = repr(fraction), text
        kind, raw = to_new_data("data", data)
        if len(raw) > LARGE_DATA_BYTES:
            script = scripts.within_memory(scripts.RENEW)
        args += (jid, token, "1" if started else "", kind, raw, *report, step, state)

    def ask(_command: Command[Renewals], _shards: int) -> Asking[Renewals]:
        parts: list[Renewals] = []

        def build(part: Sequence[int]) -> Command[Renewals]:
            return _kept(renew(worker, [entries[index] for index in part], ttl_s=ttl_s, now=now), parts)

        expires = yield from by_tokens([entry.token for entry in entries], build)
        return Renewals(expires, max((one.now_unix for one in parts), default=0.0), {})

    return Command(script, tuple(args), _parse_renewals, route=ask)


def stream(worker: str, entries: Sequence[Streamed], *, now: float | None = None) -> Command[list[bool]]:
    """Append chunks of up to 1,000 leases to the streams of their jobs. Answers of each lease whether it is held.

    What is sent again with its `before` changes nothing. A server with full memory refuses them all with an error
    beginning with OOM.
    """
    checked_batch("entries", entries)
    args: list[Argument] = [now_ms(now), checked_name("worker", worker)]
    for jid, token, before, chunks in entries:
        args += (jid, token, "" if before is None else before, len(chunks), b"".join(chunks))

    def ask(_command: Command[list[bool]], _shards: int) -> Asking[list[bool]]:
        tokens = [entry.token for entry in entries]
        return by_tokens(tokens, lambda part: stream(worker, [entries[index] for index in part], now=now))

    return Command(scripts.STREAM, tuple(args), lambda reply: [answer == ord("1") for answer in reply], route=ask)


def resume(
    worker: str,
    number: int,
    known: Iterable[tuple[str, int]],
    *,
    highest: int = 0,
    ttl_s: float | None = None,
    now: float | None = None,
) -> Command[ResumeResult]:
    """Recover after an exchange without a reply.

    Renews the `known` (jid, token), hands back every other lease of the worker, and refuses what was sent before.
    `number` must be above every earlier one, else Redis answers an error beginning with SUPERSEDED. `highest` is the
    highest token that this worker ever got: later tokens are above it, even if the server has lost its last writes.
    """
    args: list[Argument] = [
        now_ms(now), checked_name("worker", worker), checked_number(number), _ttl(ttl_s),
        checked_int("highest", highest, 0),
    ]  # fmt: skip
    for jid, token in known:
        args += (jid, token)
    return Command(scripts.RESUME, tuple(args), _parse_resumed)


def _kept(command: Command[Renewals], parts: list[Renewals]) -> Command[Renewals]:
    """Return the command, whose answer is also added to `parts`."""

    def parse(reply: Any) -> Renewals:
        parts.append(command.parse(reply))
        return parts[-1]

    return replace(command, parse=parse)


def _parse_renewals(reply: list[Any]) -> Renewals:
    now, *expires = reply
    ends = ((i, each) for i, each in enumerate(expires) if isinstance(each, bytes))
    by = {i: end[5:].decode(errors="replace") for i, end in ends if end[4:5] == b":"}
    return Renewals((ms / 1000 if isinstance(ms, int) else GONE if ms else LOST for ms in expires), now / 1000, by)


def _parse_grant(worker: str, starts: int, reply: list[Any]) -> Grant:
    now_ms, next_ms, token, due, request_number, ends, jids, rows = reply
    expires = {queue: ms / 1000 for queue, ms in zip(ends[::2], ends[1::2], strict=True)}
    leases, unreadable, starting, end = [], [], starts, token + starts
    for jid, row in zip(jids, rows, strict=True):
        lease = None
        try:
            if isinstance(row, bytes):
                lease = dense_lease(worker, token, jid, row, None, expires, now_ms)
            elif row[place_of_payload(row)] is LOST_PAYLOAD:
                pass
            elif len(row) == PAIR:
                record, beside = row
                lease = dense_lease(worker, token, jid, record, beside, expires, now_ms)
            else:
                klass, queue, raw, waited_ms, rest = row
                lease = LeaseRecord(worker, token, jid, klass, queue, raw, expires[queue], waited_ms, rest)
        except ValueError:  # one damaged record must not hide the other leases
            unreadable.append(jid.decode("utf-8", "replace"))
        if lease is not None:
            leases.append(lease)
        elif token < end:
            starting -= 1
        token += 1
    next_at_unix = next_ms / 1000 if next_ms else None
    return Grant(
        now_ms / 1000, next_at_unix, leases, [parse_due(row) for row in due], unreadable, request_number, starting
    )


def _parse_resumed(reply: list[Any]) -> ResumeResult:
    handed_back, *renewed = reply
    return ResumeResult(_parse_renewals(renewed), handed_back)


def _ttl(ttl_s: float | None) -> int | str:
    return "" if ttl_s is None else milliseconds("ttl", ttl_s)
