"""`leasehold tag`: shows and changes tags, and lists the jobs of a tag. Runs in the command's process.

Must not change anything of a job but its tags.
"""

import argparse

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.lookup import job_of
from supervisor.cli.lib.options import add_json, add_paging, paging
from supervisor.cli.lib.parser import Subparsers, UsageError, near
from supervisor.cli.lib.shown import say_jobs
from supervisor.cli.lib.terminal import note, say, say_json, table

EXAMPLES = """\
examples:
  leasehold tag                                # the most used tags
  leasehold tag --get nightly                  # the jobs of a tag, oldest tagged first
  leasehold tag invoice-2031-07                # the tags of a job
  leasehold tag invoice-2031-07 nightly eu     # add tags
  leasehold tag invoice-2031-07 eu --remove    # take tags off"""


def add(subparsers: Subparsers) -> None:
    """Declare the flags."""
    parser = subparsers.add_parser("tag", description="Tags, and the jobs that have them.", epilog=EXAMPLES)
    parser.add_argument("jid", metavar="JID", nargs="?", help="the job")
    parser.add_argument("tags", metavar="TAG", nargs="*", help="tags to add to it")
    parser.add_argument("--remove", action="store_true", help="take them off instead")
    parser.add_argument("--get", metavar="TAG", help="list the jobs that have this tag")
    add_paging(parser)
    add_json(parser, "counts by tag; total and jobs; or the job's tags")
    add_connection(parser, acts=True)


def run(args: argparse.Namespace) -> int:
    """Show or change, as the arguments say."""
    if args.get is not None and args.jid is not None:
        raise UsageError("give JID or --get, not both")
    if args.remove and not args.tags:
        raise UsageError("--remove needs JID and TAG")
    if args.jid is not None:
        return _of_job(args)
    return _most_used(args) if args.get is None else _jobs(args)


def _of_job(args: argparse.Namespace) -> int:
    with connect(args) as client, arguments():
        job = job_of(client, args.jid)
        change = job.untag if args.remove else job.tag
        tags = change(*args.tags) if args.tags else job.tags
    if args.json:
        say_json({"jid": args.jid, "tags": tags})
    elif tags:
        say(f"{args.jid} has {' '.join(tags)}")
    else:
        say(f"{args.jid} has no tags")
    return 0


def _most_used(args: argparse.Namespace) -> int:
    offset, count = paging(args)
    with connect(args) as client, arguments():
        tags = client.tags(offset, count)
    if args.json:
        say_json([{"tag": tag, "jobs": jobs} for tag, jobs in tags.items()])
    elif tags:
        table(("tag", "jobs"), list(tags.items()))
    else:
        note("no job has a tag" if not offset else f"there are not more than {offset:,} tags")
    return 0


def _jobs(args: argparse.Namespace) -> int:
    offset, count = paging(args)
    with connect(args) as client, arguments():
        total, jobs = client.tagged(args.get, offset, count)
        meant = "" if total or args.json else near(args.get, client.tags(0, 1000))
    head = {"tag": args.get, "total": total, "offset": offset}
    none = f"no job has the tag {args.get}{meant}" if not total else f"{total:,} jobs have the tag {args.get}"
    say_jobs(args, jobs, head, none)
    if 0 < len(jobs) < total and not args.json:
        note(f"{len(jobs):,} of {total:,} jobs with the tag {args.get}")
    return 0
