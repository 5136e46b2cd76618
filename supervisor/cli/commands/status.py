"""`leasehold status`: shows how running supervisors are, as they report it. Runs in the command's process.

Must not signal any process.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from supervisor.cli.lib.connection import connect
from supervisor.cli.lib.parser import Refusal, Subparsers
from supervisor.cli.lib.served import is_present, is_status
from supervisor.cli.lib.shown import span, work_of
from supervisor.cli.lib.supervisors import add_query_flags, ask, report_silent
from supervisor.cli.lib.terminal import local_time, note, say, say_json, table
from supervisor.exit_codes import Exit

EXAMPLES = """\
examples:
  leasehold status
  leasehold status web-1-4711-3f2a
  leasehold status --json | jq '.[] | .state'

WORKER is a name from `leasehold workers`; a single one is shown in full. State: booting, serving, paused,
redis-away, reloading, or on the way down draining, interrupting, killing, leaving. Exit code 1 if one of them has not
answered in time. A read-only replica cannot pass a query on: it shows what Redis knows, with exit code 1."""

Status = Mapping[str, Any]


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("status", description="How running supervisors are.", epilog=EXAMPLES)
    add_query_flags(parser, "an object: of each supervisor what it says of itself, or null if it has not answered")


def run(args: argparse.Namespace) -> int:
    """Query the supervisors, and show their answers."""
    from supervisor.engine.model.errors import ReadOnlyReplica

    try:
        answers = ask(args, args.workers, "status")
    except Refusal as refusal:
        if not isinstance(refusal.__cause__, ReadOnlyReplica):
            raise
        return _of_a_replica(args, refusal)
    status = {worker: answer if is_status(answer) else None for worker, answer in answers.items()}
    known = [each for each in status.values() if each is not None]
    if args.json:
        say_json(status)
    elif len(args.workers) == 1 and known:
        _show(known[0])
    elif known:
        table(_HEADS, [_row(each) for each in known])
    return report_silent(args, answers, status)


def _of_a_replica(args: argparse.Namespace, why: Exception) -> int:
    """Show what a replica knows about the supervisors, which cannot be queried through it."""
    with connect(args) as client:
        workers = [each for each in client.workers() if is_present(each)]
    if args.workers:
        workers = [each for each in workers if each.name in args.workers]
    if args.json:
        say_json(dict.fromkeys((each.name for each in workers), None))
    elif workers:
        rows = [(each.name, each.running, each.stalled, f"{span(each.unseen_s)} ago") for each in workers]
        table(("worker", "running", "stalled", "seen"), rows)
    note(f"{why} Supervisors cannot be asked here: their own answers are missing")
    return Exit.REFUSED


_HEADS = ("worker", "state", "busy", "idle", "processes", "up", "left", "completed", "reload", "queues")


def _row(status: Status) -> tuple[object, ...]:
    return (
        status.get("worker"), status["state"], status.get("busy"), status.get("idle"), _processes(status["processes"]),
        _duration(status.get("uptime_s")), _duration(status.get("left_s")), status["counts"].get("completed"),
        _outcome(status.get("reload")), _joined(status["queues"]),
    )  # fmt: skip


def _answering(redis: Mapping[str, Any]) -> str:
    if not redis.get("connected"):
        away, shards = redis.get("shards_away") or (), redis.get("shards") or 1
        return f"shards {', '.join(map(str, away))} of {shards} are away" if shards > 1 and away else "away"
    exchange_ms = redis.get("exchange_ms")
    return f"answers in {exchange_ms:.3g} ms" if isinstance(exchange_ms, float | int) else "connected"


def _show(status: Status) -> None:
    processes, redis, reload = status["processes"], status["redis"], status.get("reload")
    lines = {
        "worker": status.get("worker"),
        "version": status.get("version"),
        "state": status["state"]
        + (f", {_duration(status['left_s'])} left" if status.get("left_s") is not None else ""),
        "up": _duration(status.get("uptime_s")),
        "processes": f"{_processes(processes)} ({processes.get('reason')})",
        "busy": f"{status.get('busy')}, and {status.get('idle')} idle",
        "queues": f"{_joined(status['queues'])} ({status.get('order')})",
        "redis": f"{redis.get('url')}, {redis.get('server')}, {_answering(redis)}",
        "ended": "  ".join(f"{name} {count}" for name, count in status["counts"].items()),
    }
    if (turn := _duration(status.get("longest_turn_s"))) is not None:
        lines["loop"] = f"its longest turn of the last minute took {turn}"
    if isinstance(work := status.get("autoscaling"), Mapping):
        jobs = f"{work.get('ready')} ready and {work.get('running')} running jobs"
        lines["desired"] = f"{work.get('desired')}, for {jobs}, seen {_duration(work.get('age_s'))} ago"
    if isinstance(reload, Mapping):
        lines["reload"] = f"{local_time(reload.get('at_unix'))} by {reload.get('by')}: {_outcome(reload)}"
        if reload.get("message"):
            lines[""] = str(reload["message"])
    klasses = [zygote.get("handlers") for zygote in status["zygotes"] if zygote.get("state") == "current"]
    if klasses and isinstance(klasses[0], list):
        lines["klasses"] = _joined(klasses[0])
    if isinstance(levels := status.get("sandbox_levels"), list):
        lines["sandbox"] = _joined(levels)
    sandbox = status.get("sandbox")
    if isinstance(sandbox, Mapping):
        lines |= {f"sandbox {part}": text for part, text in sandbox.items()}
    width = max(map(len, lines))
    for name, value in lines.items():
        say(f"{name.ljust(width)}  {'-' if value is None else value}")
    rows = [_child_row(child) for child in status["children"]]
    if rows:
        table(("child", "pid", "zygote", "state", "klass", "jid", "runs for"), rows)


def _child_row(child: Status) -> tuple[object, ...]:
    return (
        child.get("child"), _pid(child.get("pid")), child.get("zygote"), _state_of(child), work_of(child),
        child.get("jid"), _duration(child.get("running_s")),
    )  # fmt: skip


def _state_of(child: Status) -> str:
    """Return what a child does. For one that is being stopped, add the reason and when it is killed."""
    state, why = str(child.get("state")), child.get("stopping")
    if not why:
        return state
    kill_in = _duration(child.get("kill_in_s"))
    return f"{state}: {why}, killed in {kill_in}" if kill_in else f"{state}: {why}"


def _pid(pid: Any) -> str | None:
    """Return the pid without thousands separators, as other programs write it."""
    return None if pid is None else str(pid)


def _processes(processes: Status) -> str:
    now, fewest, most = (processes.get(name) for name in ("now", "fewest", "most"))
    return f"{now}" if fewest == most else f"{now} of {fewest}:{most}"


def _outcome(reload: Any) -> str | None:
    return str(reload.get("outcome")) if isinstance(reload, Mapping) else None


def _joined(names: Any) -> str:
    return " ".join(map(str, names))


def _duration(seconds: Any) -> str | None:
    return span(seconds) if isinstance(seconds, int | float) else None
