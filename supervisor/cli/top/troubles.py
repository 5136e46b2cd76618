"""Concludes what is wrong now, in sentences for `leasehold top` and the page alike. Runs in the processes of both.

What alerts of Prometheus wake people for is told here, too, as far as Redis and the supervisors know it.
Must not do I/O.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from supervisor.cli.lib.shown import span
from supervisor.cli.lib.terminal import counted
from supervisor.cli.top.model import LATE_S, Model, Pane, Row, Status, Tone, number
from supervisor.engine.commands.concerns import Concerns, QueueConcerns
from supervisor.engine.commands.queue_counts import Depths
from supervisor.units import megabytes

#: Troubles of one kind that are listed. The other panes and pages have all.
MOST_OF_A_KIND: Final = 20
#: States of supervisors that lease nothing.
_UNABLE: Final = {"booting", "paused", "redis-away", "draining", "interrupting", "killing", "leaving"}
#: From when on a state that should pass is a trouble.
_BOOTING_S: Final = 300.0
_ENDING_S: Final = 60.0
#: A pause of a queue without jobs is told from this age on.
_PAUSED_S: Final = 4 * 3600.0
_PARKED_S: Final = 3600.0
_SLOW_EXCHANGE_MS: Final = 250.0
_SLOW_TURN_S: Final = 1.0
#: So many lost connections since it began are a trouble, for so long after the last one.
_MANY_RECONNECTS: Final = 3
_RECENTLY_S: Final = 900.0
#: The part of its memory from which on Redis counts as full.
_FULL: Final = 0.9
_NO_CONCERNS: Final = QueueConcerns(False, None, 0, 0)


class Complaint(NamedTuple):
    """A thing and what is wrong with it. `kind`: supervisor, queue, group, limit, batches or redis.

    Batches and redis have no name, nor has a supervisor that is missing.
    """

    tone: Tone
    kind: str
    name: str
    sentence: str

    @property
    def words(self) -> str:
        """Return all of it as one line."""
        return f"{self.kind}{self.name and f' {self.name}'}: {self.sentence}"


def troubles(model: Model) -> list[Complaint]:
    """Return what is wrong, alarms first."""
    found: list[Complaint] = []
    for of_a_kind in (_of_supervisors, _of_redis, _of_queues, _of_groups, _of_limits, _of_batches):
        found += islice(of_a_kind(model), MOST_OF_A_KIND)
    return sorted(found, key=lambda each: each.tone is not Tone.ALARM)


# supervisors


def _of_supervisors(model: Model) -> Iterator[Complaint]:
    rows = model.rows(Pane.SUPERVISORS, None)
    if not rows and model.rows(Pane.QUEUES, None):
        yield Complaint(Tone.NOTICE, "supervisor", "", "none is seen: what is put waits")
    if rows and {row.values["state"] for row in rows} <= _UNABLE:
        yield Complaint(Tone.ALARM, "supervisor", "", "none is able to lease")
    for row in rows:
        for tone, sentence in _of_supervisor(row, model.status(row.key) or {}):
            yield Complaint(tone, "supervisor", row.key, sentence)


def _of_supervisor(row: Row, status: Status) -> Iterator[tuple[Tone, str]]:
    values = row.values
    match values["state"]:
        case "no answer":
            yield Tone.ALARM, f"has not answered for {span(values['left'] or 0)}"
            return  # the rest of its status is old
        case "lost":
            yield Tone.ALARM, "is lost: the leases of its jobs have run out"
        case "redis-away":
            yield Tone.ALARM, f"does not reach Redis{_which_shards(status.get('redis', {}))}"
        case "paused":
            yield Tone.NOTICE, "is paused: it starts no jobs"
        case "booting" if values["in_state_s"] >= _BOOTING_S:
            yield Tone.ALARM, f"has been booting for {span(values['in_state_s'])}: its handlers do not start"
        case "killing" | "leaving" if values["in_state_s"] >= _ENDING_S:
            yield Tone.ALARM, f"has been {values['state']} for {span(values['in_state_s'])}: it should have ended"
    if values["reload"] == "failed":
        yield Tone.ALARM, "has refused the new code, and works with the old one"
    if row.tones.get("died") is Tone.ALARM:
        yield Tone.NOTICE, f"children have died within a minute, {int(number(values['died'])):,} since it began"
    redis = status.get("redis", {})
    if number(redis.get("exchange_ms")) > _SLOW_EXCHANGE_MS:
        yield Tone.NOTICE, f"gets slow answers from Redis: an exchange takes {span(redis['exchange_ms'] / 1000)}"
    lost = redis.get("lost") or {}
    if number(redis.get("reconnects")) > _MANY_RECONNECTS and number(lost.get("ago_s")) < _RECENTLY_S:
        yield Tone.NOTICE, f"has lost its connection to Redis {int(redis['reconnects'])} times: {lost.get('message')}"
    if number(status.get("longest_turn_s")) > _SLOW_TURN_S:
        yield Tone.NOTICE, f"is short of processor time: a turn of its loop took {span(status['longest_turn_s'])}"


# queues


def _of_queues(model: Model) -> Iterator[Complaint]:
    snapshot = model.snapshot
    concerns = _concerns(model).queues
    for row in model.rows(Pane.QUEUES, None):
        assert snapshot is not None  # else there are no rows
        depths, its_concerns = snapshot.queues[row.key], concerns.get(row.key, _NO_CONCERNS)
        for tone, sentence in _of_queue(row, depths, its_concerns, snapshot.unix):
            yield Complaint(tone, "queue", row.key, sentence)


def _of_queue(row: Row, depths: Depths, concerns: QueueConcerns, now_unix: float) -> Iterator[tuple[Tone, str]]:
    values = row.values
    if values["stalled"]:
        yield Tone.ALARM, f"{counted(values['stalled'], 'job')} stalled, their leases run out"
    if values["state"] == "nobody":
        yield Tone.ALARM, f"{counted(values['waiting'], 'job')} waiting, and no supervisor serves it"
    elif values["state"] == "paused":
        paused_s = now_unix - depths.paused_unix if depths.paused_unix else 0.0
        if values["waiting"] or paused_s >= _PAUSED_S:
            by = values["paused by"]
            yield Tone.NOTICE, f"paused{f' by {by}' if by else ''}, with {counted(values['waiting'], 'job')} waiting"
    elif values["oldest"] is not None and values["oldest"] >= LATE_S:
        yield Tone.NOTICE, f"its oldest job has waited for {span(values['oldest'])}"
    if values["parked"]:
        parked_s = concerns.parked_s or 0.0
        since = f", the first for {span(parked_s)}" if parked_s >= _PARKED_S else ""
        yield (
            Tone.NOTICE,
            f"{counted(values['parked'], 'job')} waiting for room in a limit, or for a paused batch{since}",
        )
    if depths.old_depends:
        yield Tone.NOTICE, f"{counted(depths.old_depends, 'job')} waiting for other jobs for more than a day"
    if concerns.late:
        yield Tone.NOTICE, f"{counted(concerns.late, 'recurring job')} overdue for more than a minute"
    if concerns.failed_recurrences:
        yield Tone.NOTICE, f"the last job of {counted(concerns.failed_recurrences, 'recurring job')} has failed"


# the namespace


def _concerns(model: Model) -> Concerns:
    return (model.snapshot and model.snapshot.concerns) or Concerns()


def _of_groups(model: Model) -> Iterator[Complaint]:
    for group, count in model.head().groups:
        yield Complaint(Tone.NOTICE, "group", group, f"{counted(count, 'job')} failed")


def _of_limits(model: Model) -> Iterator[Complaint]:
    for key in _concerns(model).closed_limits:
        yield Complaint(Tone.NOTICE, "limit", key, "lets nothing start, and jobs wait for it: it is 0")


def _of_batches(model: Model) -> Iterator[Complaint]:
    if number_open := _concerns(model).open_batches:
        yield Complaint(Tone.NOTICE, "batches", "", f"{number_open:,} open for more than an hour: nothing calls back")


def _of_redis(model: Model) -> Iterator[Complaint]:
    memory = _concerns(model).memory
    if memory is None:
        return
    if memory.most_bytes and memory.used_bytes > _FULL * memory.most_bytes:
        used, most = megabytes(memory.used_bytes), megabytes(memory.most_bytes)
        yield Complaint(Tone.ALARM, "redis", "", f"has used {used} of its {most}: soon it refuses puts")
    if model.evicts:
        yield Complaint(Tone.ALARM, "redis", "", "deletes keys to make room, which may be jobs")


def _which_shards(redis: Mapping[str, Any]) -> str:
    """Return the end of a sentence: which shards a supervisor of several does not reach."""
    away = redis.get("shards_away") or ()
    return f" in shards {', '.join(map(str, away))} of {redis['shards']}" if redis.get("shards", 1) > 1 and away else ""
