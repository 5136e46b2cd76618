"""Flags that several commands share, and the parsing of their values. Runs in the command's process.

Values stay text until all flags are known, so that each error is one sentence of ours. Must not talk to Redis.
"""

import argparse
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from supervisor.cli.lib.parser import OptionalValue, UsageError, near
from supervisor.engine.model.bounds import MOST as MOST
from supervisor.units import parse_duration

Reader = Callable[[str], Any]


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare --json for a command that reads."""
    parser.add_argument("--json", action="store_true", help=f"one line of JSON: {what}")


def add_paging(parser: argparse.ArgumentParser) -> None:
    """Declare --offset and --count."""
    parser.add_argument("--offset", metavar="N", default="0", help="number of entries to skip (default: 0)")
    parser.add_argument("--count", metavar="N", default="25", help=f"most entries to show, up to {MOST} (default: 25)")


def paging(args: argparse.Namespace) -> tuple[int, int]:
    """Return --offset and --count."""
    return within("--offset", args.offset, 0, 2**53), within("--count", args.count, 1, MOST)


def within(flag: str, text: str, least: int, most: int) -> int:
    """Parse a whole number from least to most."""
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
        raise UsageError(f"{flag} {text!r} must be a whole number from {least} to {most}")
    return int(text)


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that one-time and recurring jobs share."""
    parser.add_argument("--jid", metavar="ID", help="the job's id (default: a new one)")
    parser.add_argument("--priority", metavar="N", help="lower runs sooner (default: 0)")
    parser.add_argument("--retries", metavar="N", help="exceptions after which it still runs again (default: 5)")
    parser.add_argument("--timeout", metavar="DURATION", help="its time limit")
    parser.add_argument(
        "--max-deaths", metavar="N", help="crashes of its child after which it fails for good; 0: no limit"
    )
    parser.add_argument("--tag", metavar="TAG", action="append", help="a word to find it by; repeat it for several")
    parser.add_argument("--lane", metavar="NAME", help="its lane: lanes of a queue take turns ('': none)")
    parser.add_argument(
        "--limit",
        metavar="KEY",
        action="append",
        help="its limit, see `leasehold limit` ('': none); repeat it for several",
    )
    parser.add_argument(
        "--unique",
        metavar="[=KEY]",
        action=OptionalValue,
        help="only if no other job of the queue has this key, or without KEY the same klass and data",
    )
    parser.add_argument("--expires", metavar="DURATION", help="fail it if it has not started by then ('': never)")
    parser.add_argument("--trace", metavar="TRACEPARENT", help="its W3C trace ('': none)")
    parser.add_argument("--at-most-once", action="store_true", help="once started it never starts again")


def whole(text: str) -> int:
    """Parse a whole number of any sign."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("is not a whole number") from None


def moment(text: str) -> float:
    """Parse a date or unix seconds into unix seconds."""
    try:
        return float(text)
    except ValueError:
        pass  # not a number: try a date
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ValueError("is not a time; write it like 2031-07-01T12:00:00+02:00, or as unix seconds") from None


def one_of(*allowed: str) -> Reader:
    """Return a parser of one of some words."""

    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be {', '.join(allowed[:-1])} or {allowed[-1]}{near(text, allowed)}")
        return text

    return read


def or_none(reader: Reader) -> Reader:
    """Return a parser that maps "" to None, which removes the value from a known job."""
    return lambda text: reader(text) if text else None


#: Parsers of what add_job_options declares, by the client's argument names.
JOB_OPTIONS: Mapping[str, Reader] = {
    "jid": str,
    "priority": whole,
    "retries": whole,
    "timeout": parse_duration,
    "max_deaths": whole,
    "lane": or_none(str),
    "unique": lambda key: key or True,
    "expires": or_none(parse_duration),
    "trace": or_none(str),
}
#: Those of a job that is put once.
PUT_OPTIONS: Mapping[str, Reader] = {
    **JOB_OPTIONS,
    "delay": parse_duration,
    "at": moment,
    "on_parent_failure": one_of("wait", "fail", "run"),
    "debounce": parse_duration,
    "throttle": parse_duration,
    "collect": parse_duration,
    "most": whole,
    "together": str,
}
#: Those of a recurring job.
RECUR_OPTIONS: Mapping[str, Reader] = {
    **JOB_OPTIONS,
    "every": parse_duration,
    "cron": str,
    "tz": str,
    "offset": parse_duration,
    "missed": one_of("all", "once", "skip"),
    "backlog": whole,
}


def read_options(args: argparse.Namespace, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Parse the given flags into arguments of the client. Each flag has the name of its argument."""
    options = {}
    for name, reader in readers.items():
        text = getattr(args, name)
        if text is not None:
            try:
                options[name] = reader(text)
            except ValueError as error:
                raise UsageError(f"--{name.replace('_', '-')} {text!r} {error}") from error
    if getattr(args, "tag", None) is not None:
        options["tags"] = args.tag
    if getattr(args, "limit", None) is not None:
        options["limit"] = None if args.limit == [""] else args.limit
    options |= {name: True for name in ("persistent", "at_most_once") if getattr(args, name, False)}
    return options
