"""`leasehold track`: marks jobs for observation. Runs in the command's process. Must not change the jobs themselves."""

import argparse

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.lookup import jobs_of
from supervisor.cli.lib.options import add_json
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError
from supervisor.cli.lib.shown import as_dict, say_jobs
from supervisor.cli.lib.terminal import note, say, say_json

EXAMPLES = """\
examples:
  leasehold track                              # list the tracked jobs, and those that are gone
  leasehold track invoice-2031-07 report
  leasehold track invoice-2031-07 --off
  leasehold events --tracked                   # follow what happens to them"""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("track", description="Mark jobs to keep an eye on.", epilog=EXAMPLES)
    parser.add_argument("jids", metavar="JID", nargs="*", help="the jobs; none: list the tracked jobs")
    parser.add_argument("--off", action="store_true", help="remove the mark; also of jobs that are gone")
    add_json(parser, "jobs, and the jids of those that are gone")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """List the tracked jobs, or change marks."""
    if args.off and not args.jids:
        raise UsageError("--off needs JID")
    if not args.jids:
        return _list(args)
    if args.json:
        raise UsageError("--json is for the list, without JID")
    with connect(args) as client, arguments():
        if not args.off:
            for job in jobs_of(client, args.jids):
                job.track()
            say(f"tracking {' '.join(args.jids)}")
            return 0
        marks = {jid: client.untrack(jid) for jid in args.jids}
    ended = [jid for jid, was in marks.items() if was]
    if ended:
        say(f"no longer tracking {' '.join(ended)}")
    if len(ended) < len(marks):
        raise Refusal(f"not tracked: {' '.join(jid for jid, was in marks.items() if not was)}")
    return 0


def _list(args: argparse.Namespace) -> int:
    with connect(args) as client:
        tracked = client.tracked()
    if args.json:
        say_json({"jobs": [as_dict(job) for job in tracked.jobs], "expired": tracked.expired})
        return 0
    if tracked.jobs or not tracked.expired:
        say_jobs(args, tracked.jobs, {}, "no job is tracked")
    if tracked.expired:
        note(f"tracked, but gone: {' '.join(tracked.expired)}")
    return 0
