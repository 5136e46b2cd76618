"""`leasehold failed`, `leasehold retry` and `leasehold unfail`: list failed jobs, and put them back into queues.

They run in the command's process. `failed` reads only. Must not put back a job that was neither named nor chosen.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from supervisor import clock
from supervisor.cli.lib.bulk import HELP, add_choice, choice, is_choice, run_bulk
from supervisor.cli.lib.bulk_words import Operation
from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.lookup import jobs_of
from supervisor.cli.lib.options import MOST, add_json, read_options, within
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError, near
from supervisor.cli.lib.payload import add_data_flag, is_given, read_payload
from supervisor.cli.lib.shown import age, as_dict
from supervisor.cli.lib.terminal import counted, note, say, say_json, table
from supervisor.engine.client.sync_calls import calls_of
from supervisor.units import parse_duration

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.client.sync_handles import Job

#: Jobs that one call reads with their data, and the most that a filter reads.
_SIFT_STEP: Final = 100
_MOST_SIFTED: Final = 10_000

FAILED_EXAMPLES = """\
examples:
  leasehold failed
  leasehold failed ValueError --limit 100
  leasehold failed died:SIGKILL --json
  leasehold failed ValueError --klass email.send --since 1h

A group is the kind of failure: an exception's class, died:<reason>, failed-retries-<queue>, or a handler's own word."""

RETRY_EXAMPLES = f"""\
examples:
  leasehold retry invoice-2031-07
  leasehold retry --group ValueError --dry-run
  leasehold retry --group ValueError --yes
  leasehold retry --group died:SIGKILL --queue slow
  leasehold retry --tag nightly
  leasehold retry --group TimeoutError --klass email.send --since 2h --yes

Each job goes back into its own queue with all its retries, its data and its history. `leasehold unfail` changes data,
handler or queue.
{HELP}"""

UNFAIL_EXAMPLES = """\
examples:
  leasehold unfail ValueError
  leasehold unfail died:SIGKILL --queue slow --count 1000
  leasehold unfail broken --klass email.send --data '{"to": "ada@example.org"}'

The oldest failures go first. Each job goes back to its own queue, or to --queue, with all its retries.
An unreadable entry of another program is read again; if it is still unreadable it stays failed."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags of both."""
    parser = subparsers.add_parser("failed", description="What has failed, by kind of failure.", epilog=FAILED_EXAMPLES)
    parser.add_argument("group", metavar="GROUP", nargs="?", help="show the jobs of this group, newest first")
    parser.add_argument("--offset", metavar="N", default="0", help="number of jobs to skip (default: 0)")
    parser.add_argument("--limit", metavar="N", default="25", help=f"most jobs to show, up to {MOST} (default: 25)")
    _add_filters(parser)
    add_json(parser, "counts by group, or total and jobs")
    add_connection(parser)
    parser = subparsers.add_parser("retry", description="Put failed jobs back.", epilog=RETRY_EXAMPLES)
    parser.add_argument("jids", metavar="JID", nargs="*", help="the jobs; or choose jobs by:")
    add_choice(parser, "tag", "group", queue="all failed jobs of this queue", state=False)
    _add_filters(parser)
    add_connection(parser, acts=True)
    parser = subparsers.add_parser("unfail", description="Put failed jobs back into a queue.", epilog=UNFAIL_EXAMPLES)
    parser.add_argument("group", metavar="GROUP", help="the group, as `leasehold failed` shows it")
    parser.add_argument("--queue", metavar="NAME", help="put them into this queue (default: each into its own)")
    parser.add_argument("--count", metavar="N", default="25", help=f"most jobs to show, up to {MOST} (default: 25)")
    parser.add_argument("--klass", metavar="KLASS", help="the new handler of each job")
    add_data_flag(parser, "the new payload of each job")
    add_connection(parser, acts=True)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--klass", metavar="KLASS", help="only jobs of this klass")
    parser.add_argument("--since", metavar="DURATION", help="only jobs that failed in the last 30m, 2h …")


@dataclass(frozen=True, slots=True)
class _Filter:
    """The failed jobs that --klass and --since choose. None in a field chooses all."""

    klass: str | None
    since_unix: float | None
    words: str

    def fits(self, job: "Job") -> bool:
        return self.klass in {None, job.klass} and not self.is_older(job)

    def is_older(self, job: "Job") -> bool:
        when = (job.failure or {}).get("when") or 0.0
        return self.since_unix is not None and when < self.since_unix


def _filter(args: argparse.Namespace, klass: str | None) -> _Filter | None:
    """Return the filter that the flags describe; None where neither was given."""
    if klass is None and args.since is None:
        return None
    since_s = read_options(args, {"since": parse_duration}).get("since")
    words = ([f"klass {klass}"] if klass else []) + ([f"the last {args.since}"] if args.since else [])
    return _Filter(klass, None if since_s is None else clock.unix() - since_s, f", of {' and '.join(words)}")


def run(args: argparse.Namespace) -> int:
    """List groups or one group's jobs, or put jobs back."""
    if args.command == "unfail":
        return _unfail(args)
    if args.command == "retry":
        return _retry(args)
    limit, offset = within("--limit", args.limit, 1, MOST), within("--offset", args.offset, 0, 2**53)
    if args.group is None and offset:
        raise UsageError("--offset needs GROUP")
    if args.group is None and _filter(args, args.klass):
        raise UsageError("--klass and --since need GROUP")
    return _groups(args) if args.group is None else _jobs(args, offset, limit)


def _groups(args: argparse.Namespace) -> int:
    with connect(args) as client:
        groups = client.failed()
    if args.json:
        say_json(groups)
    elif groups:
        largest_first = sorted(groups, key=lambda group: (-groups[group], group))
        table(("group", "jobs"), [(group, groups[group]) for group in largest_first])
    else:
        note("nothing has failed")
    return 0


def _jobs(args: argparse.Namespace, offset: int, limit: int) -> int:
    with connect(args) as client, arguments():
        total, jobs = _found(client, args, offset, limit)
        meant = "" if total else near(args.group, client.failed())
    if args.json:
        say_json({"group": args.group, "total": total, "jobs": [as_dict(job) for job in jobs]})
        return 0
    if jobs:
        failures = [(job, job.failure or {}) for job in jobs]
        rows = [(job.jid, job.klass, job.queue, age(why.get("when")), why.get("message", "")) for job, why in failures]
        table(("jid", "klass", "queue", "when", "message"), rows)
    if total > len(jobs) or not jobs:
        note(f"{len(jobs):,} of {total:,} failed jobs in group {args.group}{meant}")
    return 0


def _found(client: "Client", args: argparse.Namespace, offset: int, limit: int) -> "tuple[int, list[Job]]":
    """Return the group's size and the jobs to show. A filter reads the newest _MOST_SIFTED jobs from `offset` on."""
    wanted = _filter(args, args.klass)
    if wanted is None:
        return client.failed(args.group, offset, limit)
    found: list[Job] = []
    for first in range(offset, offset + _MOST_SIFTED, _SIFT_STEP):
        total, jobs = client.failed(args.group, first, _SIFT_STEP)
        found += filter(wanted.fits, jobs)
        if len(found) >= limit or not jobs or wanted.is_older(jobs[-1]):  # the newest come first
            break
    return total, found[:limit]


def _retry(args: argparse.Namespace) -> int:
    if bool(args.jids) == is_choice(args):
        raise UsageError("give JID, or --group, --queue or --tag, one of the two")
    if args.jids and _filter(args, args.klass):
        raise UsageError("--klass and --since go with --queue, --tag or --group, and not with JID")
    return _retry_named(args) if args.jids else _retry_chosen(args)


def _retry_named(args: argparse.Namespace) -> int:
    from supervisor.engine.commands import job_changes

    with connect(args) as client, arguments():
        before = jobs_of(client, args.jids)
        failed = [job.jid for job in before if job.state == "failed"]
        moved = calls_of(client).act(job_changes.unfail_jobs, failed) if failed else 0
        after = dict(zip(args.jids, client.jobs(*args.jids), strict=True)) if moved < len(args.jids) else {}
    if moved:
        say(f"put back {' '.join(failed) if moved == len(failed) else counted(moved, 'job')}")
    left = [f"{job.jid} ({job.state})" for job in before if job.jid not in failed]
    left += [f"{jid} (as it is)" for jid in failed if (job := after.get(jid)) and job.state == "failed"]
    if left:
        raise Refusal(f"not put back, as only what has failed and can be read is: {' '.join(left)}")
    return 0


def _retry_chosen(args: argparse.Namespace) -> int:
    from supervisor.engine.commands import bulk

    with connect(args) as client, arguments():
        chosen = choice(args, ("failed",))
        wanted = _filter(args, None)  # the choice has the klass
        run_bulk(
            args, client, chosen, Operation("retry", "put back", wanted.words if wanted else ""),
            partial(bulk.retry, chosen),
            None if wanted is None else lambda jids: _sifted(client, wanted, jids),
        )  # fmt: skip
    return 0


def _sifted(client: "Client", wanted: _Filter, jids: Sequence[str]) -> list[str]:
    steps = (client.jobs(*jids[first : first + _SIFT_STEP]) for first in range(0, len(jids), _SIFT_STEP))
    return [job.jid for step in steps for job in step if job is not None and wanted.fits(job)]


def _unfail(args: argparse.Namespace) -> int:
    count = within("--count", args.count, 1, MOST)
    changes: dict[str, Any] = {} if args.klass is None else {"klass": args.klass}
    if is_given(args):
        changes["data"] = read_payload(args, "--data")
    with connect(args) as client, arguments():
        moved = client.unfail(args.group, args.queue, count, **changes)
        groups = client.failed()
    if not moved and groups.get(args.group):
        note(f"none of the {counted(groups[args.group], 'failed job')} of group {args.group} can be put back as it is")
        return 0
    if not moved:
        note(f"no job has failed in group {args.group}{near(args.group, groups)}")
        return 0
    where = f"into queue {args.queue}" if args.queue else "into its queue" if moved == 1 else "into their queues"
    left = groups.get(args.group, 0)
    say(f"put {counted(moved, 'failed job')} of group {args.group} back {where}; {left:,} left in the group")
    return 0
