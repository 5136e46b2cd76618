"""Builds the commands that change a job from outside, for operators and programs. Runs in applications and commands.

Must not do I/O. bulk.py changes many jobs.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from supervisor import clock
from supervisor.engine.commands.command import (
    Argument,
    Command,
    checked_by,
    checked_jids,
    checked_names,
    now_ms,
    parse_names,
    parse_names_or_none,
)
from supervisor.engine.commands.routes import Asking, divided, each, is_none, is_nothing, to, united
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.keys import GROUP_BYTES, checked_name
from supervisor.engine.model.new_jobs import MOST_TAGS
from supervisor.engine.model.outcomes import failure_json
from supervisor.engine.model.replay import SIGNAL_BYTES
from supervisor.engine.model.shards import Tie, key_of, tied_jid
from supervisor.engine.model.validation import (
    EXACT_INT,
    UNSET,
    Duration,
    checked_int,
    checked_text,
    duration_ms,
    to_json,
    to_new_data,
)

LOG_BYTES: Final = 4096


def move(
    jid: str, queue: str, delay: Duration = 0, *, by: str | None = None, now: float | None = None
) -> Command[bool]:
    """Move a job in any state to a queue. Answers False if there is none. `by` names who asks."""
    delay_ms = duration_ms("delay", delay, least=0)
    args = checked_name("queue", queue), checked_name("jid", jid), delay_ms, checked_by(by)
    return Command(scripts.MOVE, (now_ms(now), *args), bool, route=to(jid, is_nothing))


def cancel(jids: Sequence[str], *, by: str | None = None, now: float | None = None) -> Command[list[str]]:
    """Delete up to 1,000 jobs, all or none, except completed ones. Answers those that existed.

    `by` names who asks. Redis answers an error beginning with DEPENDENCY if a job that is not listed waits for one of
    them.
    """
    checked = checked_jids("jids", jids)
    route = divided(checked, partial(cancel, by=by, now=now), united)
    return Command(scripts.CANCEL, (now_ms(now), checked_by(by), *checked), parse_names, route=route)


def fail(jid: str, group: str, message: str, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """Fail a job by hand, in any state. Answers False if there is none. `by` names who asks."""
    failure = failure_json(checked_name("group", group), message, None, clock.unix() if now is None else now, {})
    args = now_ms(now), checked_name("jid", jid), group, failure, checked_by(by)
    return Command(scripts.FAIL, args, bool, route=to(jid, is_nothing))


def unfail(
    group: str,
    queue: str | None = None,
    count: int = 25,
    *,
    klass: str | None = None,
    data: object = UNSET,
    by: str | None = None,
    now: float | None = None,
) -> Command[int]:
    """Put up to `count` (1 to 1,000) failed jobs of a group back, oldest first. Answers how many.

    Each goes to its own queue unless one is given, with the new klass or data if given. An entry that is still no valid
    job stays failed. `by` names who asks.
    """
    name, most = checked_name("group", group, GROUP_BYTES), checked_int("count", count, 1, MOST)

    def ask(_command: Command[int], shards: int) -> Asking[int]:
        done = 0
        for shard in range(shards):
            left = most - done
            done += sum((yield [(shard, unfail(group, queue, left, klass=klass, data=data, by=by, now=now))]))
            if done >= most:
                break
        return done

    args = now_ms(now), name, *_back(queue, most, klass, data, by), ""
    return Command(scripts.UNFAIL, args, int, route=ask)


def unfail_job(
    jid: str,
    queue: str | None = None,
    *,
    klass: str | None = None,
    data: object = UNSET,
    by: str | None = None,
    now: float | None = None,
) -> Command[int]:
    """Put one failed job back, as `unfail` does. Answers 0 if it is not failed, or still no valid job."""
    return unfail_jobs([jid], queue, klass=klass, data=data, by=by, now=now)


def unfail_jobs(
    jids: Sequence[str],
    queue: str | None = None,
    *,
    group: str | None = None,
    klass: str | None = None,
    data: object = UNSET,
    chosen: str = "",
    by: str | None = None,
    now: float | None = None,
) -> Command[int]:
    """Put those of up to 1,000 jobs back that have failed, as `unfail` does. Answers how many.

    Only those of the group, and that match the choice with the lines `chosen`, if given.
    """
    of_group = "" if group is None else checked_name("group", group, GROUP_BYTES)
    back = _back(queue, MOST, klass, data, by)
    checked = checked_jids("jids", jids)
    args = now_ms(now), of_group, *back, chosen, *checked

    def build(part: Sequence[str]) -> Command[int]:
        return unfail_jobs(part, queue, group=group, klass=klass, data=data, chosen=chosen, by=by, now=now)

    return Command(scripts.UNFAIL, args, int, route=divided(checked, build, lambda answers: sum(answers)))


def release(jids: Sequence[str], *, by: str | None = None, now: float | None = None) -> Command[list[bool]]:
    """Take up to 1,000 running jobs from their workers, to the front. Answers False for each that does not run.

    `by` names who asks.
    """
    checked = checked_jids("jids", jids)
    route = each(checked, partial(release, by=by, now=now), is_nothing)
    return Command(scripts.RELEASE, (now_ms(now), checked_by(by), *checked), _parse_bools, route=route)


def signal(
    jid: str, name: str, value: object = None, *, by: str | None = None, now: float | None = None
) -> Command[bool]:
    """Send a job a signal, in place of an earlier one of this name. Answers False if it is gone or complete.

    `by` names who asks.

    Redis answers an error beginning with REFUSED for the 101st signal of a job.
    """
    text = to_json("value", value)
    if len(text) > SIGNAL_BYTES:
        raise ValueError(f"value must have at most {SIGNAL_BYTES} bytes as JSON, not {len(text)}")
    args = now_ms(now), checked_name("jid", jid), checked_name("name", name), text, checked_by(by)
    return Command(scripts.SIGNAL, args, bool, route=to(jid, is_nothing))


def set_priority(jid: str, priority: int, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """Change a job's priority. Answers False if there is none. `by` names who asks."""
    args = now_ms(now), checked_name("jid", jid), checked_int("priority", priority, -EXACT_INT), checked_by(by)
    return Command(scripts.PRIORITY, args, bool, route=to(jid, is_nothing))


def tag(jid: str, tags: Sequence[str], *, by: str | None = None, now: float | None = None) -> Command[list[str] | None]:
    """Add tags to a job. Answers all its tags; None if there is no such job. `by` names who asks."""
    return retag(scripts.TAG, "add", jid, tags, by, now)


def untag(
    jid: str, tags: Sequence[str], *, by: str | None = None, now: float | None = None
) -> Command[list[str] | None]:
    """Remove tags from a job. Answers the tags left; None if there is no such job. `by` names who asks."""
    return retag(scripts.TAG, "remove", jid, tags, by, now)


def retag(
    script: scripts.Script, verb: str, jid: str, tags: Sequence[str], by: str | None, now: float | None
) -> Command[list[str] | None]:
    """Change tags by the script for jobs, or by that for recurring jobs. `verb`: add or remove."""
    args = now_ms(now), verb, checked_name("jid", jid), checked_by(by), *checked_names("tags", tags, MOST_TAGS)
    return Command(script, args, parse_names_or_none, route=to(jid, is_none))


def track(jid: str, *, by: str | None = None, now: float | None = None) -> Command[bool | None]:
    """Track a job. Answers False if it was tracked already, None if there is no such job. `by` names who asks."""
    args = now_ms(now), "track", checked_name("jid", jid), checked_by(by)
    route = to(jid, is_none)
    return Command(scripts.TRACK, args, lambda reply: None if reply is None else bool(reply), route=route)


def untrack(jid: str, *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """End the tracking of a job, also of one that is gone. Answers False if it was not tracked. `by` names who asks."""
    args = now_ms(now), "untrack", checked_name("jid", jid), checked_by(by)
    return Command(scripts.TRACK, args, bool, route=to(jid, is_nothing))


def log(
    jid: str, message: str, data: object = None, *, by: str | None = None, now: float | None = None
) -> Command[bool]:
    """Add a line to a job's history. Answers False if there is no such job. `by` names who asks."""
    line = {"what": "log", "message": checked_text("message", message)}
    if data is not None:
        line["data"] = data  # type: ignore[assignment]  # to_json raises for other values
    text = to_json("data", line)
    if len(text) > LOG_BYTES:
        raise ValueError(f"message and data must have at most {LOG_BYTES} bytes as JSON, not {len(text)}")
    args = now_ms(now), checked_name("jid", jid), checked_by(by), text
    return Command(scripts.LOG, args, bool, route=to(jid, is_nothing))


def depend(jid: str, parents: Sequence[str], *, by: str | None = None, now: float | None = None) -> Command[bool]:
    """Add dependencies to a job in state depends. Answers False if there is none. `by` names who asks.

    Redis answers an error beginning with DEPENDENCY if the job is in another state, or would wait for itself.
    """
    checked = checked_jids("jids", parents)
    args = now_ms(now), checked_name("jid", jid), "on", checked_by(by), *checked

    def ask(command: Command[bool], shards: int) -> Asking[bool]:
        tied_jid(jid, True, (Tie(f"its parent {parent}", key_of(parent)) for parent in checked))
        return to(jid, is_nothing)(command, shards)

    return Command(scripts.DEPEND, args, bool, route=ask)


def undepend(
    jid: str, parents: Sequence[str] | None, *, by: str | None = None, now: float | None = None
) -> Command[bool]:
    """Remove dependencies (None: all) from a job in state depends. Answers as `depend` does."""
    jids = () if parents is None else checked_jids("jids", parents)
    args = now_ms(now), checked_name("jid", jid), "all" if parents is None else "off", checked_by(by), *jids
    return Command(scripts.DEPEND, args, bool, route=to(jid, is_nothing))


def _back(queue: str | None, count: int, klass: str | None, data: object, by: str | None) -> tuple[Argument, ...]:
    into, of_klass = (checked_name(n, v) if v is not None else "" for n, v in (("queue", queue), ("klass", klass)))
    return into, count, of_klass, *to_new_data("data", data), checked_by(by)


def _parse_bools(reply: list[int]) -> list[bool]:
    return [answer == 1 for answer in reply]
