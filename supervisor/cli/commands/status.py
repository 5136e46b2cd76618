"""`leasehold status`: how running supervisors are, by their own word. Runs in the command's process.

Must not signal any process.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from supervisor.cli.lib.asking import add_look, ask, missing
from supervisor.cli.lib.connection import connect
from supervisor.cli.lib.parser import Refusal, Subparsers
from supervisor.cli.lib.served import is_here, is_known
from supervisor.cli.lib.shown import span
from supervisor.cli.lib.terminal import local_time, note, say, say_json, table
from supervisor.config import Exit

EXAMPLES = """\
examples:
  leasehold status
  leasehold status web-1-4711-3f2a
  leasehold status --json | jq '.[] | .state'

WORKER is as `leasehold workers` shows it; of one alone there is more to see. State: booting, serving, paused,
redis-away, reloading, or on the way down draining, interrupting, killing, leaving. Exit code 1 if one of them has not
answered in time. At a read-only replica nobody can be asked: what Redis says of them is shown, with exit code 1."""

Told = Mapping[str, Any]


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("status", description="How running supervisors are.", epilog=EXAMPLES)
    add_look(parser, "an object: of each supervisor what it says of itself, or null if it has not answered")


def run(args: argparse.Namespace) -> int:
    """Ask them, and show what they answer."""
    from supervisor.engine.model.errors import ReadOnlyReplica

    try:
        answers = ask(args, args.workers, "status")
    except Refusal as refusal:
        if not isinstance(refusal.__cause__, ReadOnlyReplica):
            raise
        return _of_a_replica(args, refusal)
    told = {worker: answer if is_known(answer) else None for worker, answer in answers.items()}
    known = [each for each in told.values() if each is not None]
    if args.json:
        say_json(told)
    elif len(args.workers) == 1 and known:
        _show(known[0])
    elif known:
        table(_HEADS, [_row(each) for each in known])
    return missing(args, answers, told)


def _of_a_replica(args: argparse.Namespace, why: Exception) -> int:
    """Show what a replica says of the supervisors, which cannot be asked there."""
    with connect(args) as client:
        workers = [each for each in client.workers() if is_here(each)]
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


def _row(told: Told) -> tuple[object, ...]:
    return (
        told.get("worker"), told["state"], told.get("busy"), told.get("idle"), _processes(told["processes"]),
        _duration(told.get("uptime_s")), _duration(told.get("left_s")), told["counts"].get("completed"),
        _outcome(told.get("reload")), _joined(told["queues"]),
    )  # fmt: skip


def _show(told: Told) -> None:
    processes, redis, reload = told["processes"], told["redis"], told.get("reload")
    lines = {
        "worker": told.get("worker"),
        "version": told.get("version"),
        "state": told["state"] + (f", {_duration(told['left_s'])} left" if told.get("left_s") is not None else ""),
        "up": _duration(told.get("uptime_s")),
        "processes": f"{_processes(processes)} ({processes.get('reason')})",
        "busy": f"{told.get('busy')}, and {told.get('idle')} idle",
        "queues": f"{_joined(told['queues'])} ({told.get('order')})",
        "redis": f"{redis.get('url')}, {redis.get('server')}" + ("" if redis.get("connected") else ", away"),
        "ended": "  ".join(f"{name} {count}" for name, count in told["counts"].items()),
    }
    if isinstance(work := told.get("autoscaling"), Mapping):
        jobs = f"{work.get('ready')} ready and {work.get('running')} running jobs"
        lines["desired"] = f"{work.get('desired')}, for {jobs}, seen {_duration(work.get('age_s'))} ago"
    if isinstance(reload, Mapping):
        lines["reload"] = f"{local_time(reload.get('at_unix'))} by {reload.get('by')}: {_outcome(reload)}"
        if reload.get("message"):
            lines[""] = str(reload["message"])
    klasses = [zygote.get("handlers") for zygote in told["zygotes"] if zygote.get("state") == "current"]
    if klasses and isinstance(klasses[0], list):
        lines["klasses"] = _joined(klasses[0])
    sandbox = told.get("sandbox")
    if isinstance(sandbox, Mapping):
        lines |= {f"sandbox {part}": text for part, text in sandbox.items()}
    width = max(map(len, lines))
    for name, value in lines.items():
        say(f"{name.ljust(width)}  {'-' if value is None else value}")
    rows = [_child_row(child) for child in told["children"]]
    if rows:
        table(("child", "pid", "zygote", "state", "klass", "jid", "runs for"), rows)


def _child_row(child: Told) -> tuple[object, ...]:
    return (
        child.get("child"), _pid(child.get("pid")), child.get("zygote"), _state_of(child), child.get("klass"),
        child.get("jid"), _duration(child.get("running_s")),
    )  # fmt: skip


def _state_of(child: Told) -> str:
    """Describe what a child does; of one that is being stopped also why, and when it is killed."""
    state, why = str(child.get("state")), child.get("stopping")
    if not why:
        return state
    kill_in = _duration(child.get("kill_in_s"))
    return f"{state}: {why}, killed in {kill_in}" if kill_in else f"{state}: {why}"


def _pid(pid: Any) -> str | None:
    """As other programs write it: a name, and no number of anything."""
    return None if pid is None else str(pid)


def _processes(processes: Told) -> str:
    now, fewest, most = (processes.get(name) for name in ("now", "fewest", "most"))
    return f"{now}" if fewest == most else f"{now} of {fewest}:{most}"


def _outcome(reload: Any) -> str | None:
    return str(reload.get("outcome")) if isinstance(reload, Mapping) else None


def _joined(names: Any) -> str:
    return " ".join(map(str, names))


def _duration(seconds: Any) -> str | None:
    return span(seconds) if isinstance(seconds, int | float) else None
