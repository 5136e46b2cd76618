"""`leasehold put`: puts a job into a queue. Runs in the command's process.

Must not write before all input is checked.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from supervisor.cli.lib.connection import add_connection, arguments, connect
from supervisor.cli.lib.hints import hints
from supervisor.cli.lib.options import PUT_OPTIONS, add_job_options, read_options
from supervisor.cli.lib.parser import Refusal, Subparsers, UsageError
from supervisor.cli.lib.payload import add_payload, read_payload
from supervisor.cli.lib.terminal import note, say

EXAMPLES = """\
examples:
  leasehold put email.send '{"to": "ada@example.org"}'
  leasehold put report.build --queue slow --delay 10m --retries 2 --tag nightly
  leasehold put report.send --depends invoice-2031-07 --on-parent-failure fail
  leasehold put image.resize --raw --file photo.jpg
  psql -Atc 'select …' | leasehold put import.rows -
  leasehold put billing.invoice '{"month": 7}' --add --jid invoice-2031-07
  leasehold put email.send '{"to": 7}' --lane customer-7 --limit smtp --expires 1h
  leasehold put cache.warm --unique            # only while no equal job waits or runs; --unique=KEY: by a key
  leasehold put search.index '{"page": 7}' --unique=page-7 --debounce 5s
  leasehold put stats.write '{"clicks": 1}' --unique=clicks --collect 10s --most 500
  leasehold put ticker.follow '"EUR"' --persistent
  jq -c '.[] | {jid: .id, data: .}' rows.json | leasehold put email.send --lines
  leasehold put --lines --file jobs.ndjson --add --skip-bad

DATA is JSON (none: null). The jid goes to stdout. A job with a known jid is moved and put again; options
that are not given keep their values. With --add a known job is left alone, and the exit code is 1.
A hint on stderr says that no supervisor is running, that none serves the queue or has the klass, or that no job has a
jid of --depends. The job is put all the same.
--depends: the job waits until those jobs are complete. A job that does not exist counts as complete.
--unique: if another job that has not ended holds the key, nothing is put, and the printed jid is
that job's.
--debounce: that job gets the data and starts this long after the last put. --throttle: nothing is put for this long,
also if that job has ended. --collect: that job gets a list of all data. It starts after this, or with --most data.
--persistent: a job without an end. When its handler returns or dies it starts again elsewhere, until it is cancelled.
--lines: each line is an object with put's arguments: klass, queue, data (or data_b64: bytes), jid, priority, delay, at,
retries, timeout, tags … (times in seconds, or like "10m"). KLASS and the flags are defaults for all lines. A
thousand are put in one call. A bad line stops at its thousand: neither it nor later lines are put, and the exit code is
1. With jids in the lines and --add, a second run puts what the first one did not."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags: put's arguments."""
    parser = subparsers.add_parser("put", description="Put a job into a queue.", epilog=EXAMPLES)
    parser.add_argument("klass", metavar="KLASS", nargs="?", help="the handler: module and function, like email.send")
    add_payload(parser)
    parser.add_argument("--queue", metavar="NAME", default="default", help="(default: default)")
    parser.add_argument("--delay", metavar="DURATION", help="start it no earlier than this from now")
    parser.add_argument(
        "--at", metavar="TIME", help="start it no earlier than this time: 2031-07-01T12:00:00+02:00, or unix seconds"
    )
    add_job_options(parser)
    parser.add_argument("--depends", metavar="JID", action="append", help="wait for this job; repeat it for several")
    parser.add_argument(
        "--on-parent-failure", metavar="WHAT", help="what to do if one of them fails: wait, fail or run (default: fail)"
    )
    parser.add_argument("--together", metavar="KEY", help="end the jid in {KEY}: all such jobs lie in one shard")
    parser.add_argument("--debounce", metavar="DURATION", help="with --unique: start it so long after the last put")
    parser.add_argument("--throttle", metavar="DURATION", help="with --unique: at most one job of the key in this time")
    parser.add_argument("--collect", metavar="DURATION", help="with --unique=KEY: one job for all data put within this")
    parser.add_argument("--most", metavar="N", help="with --collect: start it as soon as it has N data (default: 500)")
    parser.add_argument(
        "--persistent", action="store_true", help="a job without an end, which always runs at some supervisor"
    )
    parser.add_argument("--add", action="store_true", help="only if the jid is new; needs --jid")
    parser.add_argument("--lines", action="store_true", help="put a job for each line of stdin, or of --file")
    parser.add_argument("--skip-bad", action="store_true", help="with --lines: go on after a bad line")
    parser.add_argument("--print-jids", action="store_true", help="with --lines: say the jid of each job")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Put the job, and print its jid."""
    _check(args)
    options = read_options(args, PUT_OPTIONS)
    if args.depends is not None:
        options["depends"] = args.depends
    if args.lines:
        from supervisor.cli.lib.lines import put_lines

        return put_lines(args, options)
    data = read_payload(args)
    from supervisor.engine.model.new_jobs import fresh_jid

    with connect(args) as client, arguments():
        queue = client.queue(args.queue)
        if not args.add:
            if "jid" not in options:
                options["jid"] = fresh_jid(args.queue, args.klass, data, options)
            jid = options["jid"]
            holder = queue.put(args.klass, data, **options)
            say(holder)
            if holder != jid:
                note(_why_not_put(holder, options))
                return 0
        elif queue.add(args.klass, data, **options):
            say(args.jid)
        elif "unique" in options and client.job(args.jid) is None:
            raise Refusal("another job holds what is to be unique; nothing was changed")
        else:
            raise Refusal(f"job {args.jid} exists; nothing was changed")
        for hint in hints(client, args.queue, args.klass, args.depends or ()):
            note(hint)
    return 0


def _why_not_put(holder: str, options: Mapping[str, Any]) -> str:
    if "debounce" in options or "collect" in options:
        return f"no job was made: job {holder} of this key takes the data, if it was put in this mode"
    return f"nothing was put: job {holder} holds what is to be unique"


def _check(args: argparse.Namespace) -> None:
    """Refuse flags that exclude each other."""
    if args.lines:
        if args.data is not None or args.raw or args.jid is not None:
            raise UsageError("--lines takes data and jid from each line: no DATA, --raw or --jid goes with it")
        return
    for name in ("skip_bad", "print_jids"):
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')} goes with --lines")
    if args.klass is None:
        raise UsageError("KLASS is missing: what is to run?")
    if args.add and not args.jid:
        raise UsageError("--add needs --jid: a new id is always new")
