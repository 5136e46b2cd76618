"""`leasehold put`: one job into a queue, from the command's process. Must not write anything before all is checked."""

import argparse
import json
import os
import stat
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from supervisor.cli.connection import add_connection, arguments, connect
from supervisor.cli.parser import Refusal, Subparsers, UsageError
from supervisor.cli.terminal import say
from supervisor.config import parse_duration

#: What the engine takes at most; looked at before a file is read.
LARGEST_BYTES = 256 * 2**20

EXAMPLES = """\
examples:
  leasehold put email.send '{"to": "ada@example.org"}'
  leasehold put report.build --queue slow --delay 10m --retries 2
  leasehold put image.resize --raw --file photo.jpg
  psql -Atc 'select …' | leasehold put import.rows -
  leasehold put billing.invoice '{"month": 7}' --add --jid invoice-2031-07

DATA is JSON (nothing: null). The jid goes to stdout. A jid that is already known is moved and put anew;
with --add it is left alone, and the exit code is 1."""


def add(subparsers: Subparsers) -> None:
    """Declare the flags: put's arguments."""
    parser = subparsers.add_parser("put", description="Put a job into a queue.", epilog=EXAMPLES)
    parser.add_argument("klass", metavar="KLASS", help="the handler: module and function, like email.send")
    parser.add_argument("data", metavar="DATA", nargs="?", help="the payload as JSON; - reads it from stdin")
    parser.add_argument("--queue", metavar="NAME", default="default", help="(default: default)")
    parser.add_argument("--jid", metavar="ID", help="the job's id (default: a new one)")
    parser.add_argument("--priority", metavar="N", help="lower runs sooner (default: 0)")
    parser.add_argument("--delay", metavar="DURATION", help="run it so much later")
    parser.add_argument("--at", metavar="TIME", help="run it then: 2031-07-01T12:00:00+02:00, or unix seconds")
    parser.add_argument("--retries", metavar="N", help="how many exceptions are forgiven (default: 5)")
    parser.add_argument("--timeout", metavar="DURATION", help="its time limit")
    parser.add_argument("--max-deaths", metavar="N", help="deaths of its child that bury it; 0: no limit")
    parser.add_argument("--add", action="store_true", help="only if the jid is new; needs --jid")
    parser.add_argument("--raw", action="store_true", help="the payload is bytes, not JSON")
    parser.add_argument("--file", metavar="PATH", help="read the payload from a file; - is stdin")
    add_connection(parser)


def run(args: argparse.Namespace) -> int:
    """Put it and say its jid."""
    if args.add and not args.jid:
        raise UsageError("--add needs --jid: a new id is always new")
    options = _options(args)
    data = _payload(args)
    with connect(args) as client, arguments():
        queue = client.queue(args.queue)
        if not args.add:
            say(queue.put(args.klass, data, **options))
        elif queue.add(args.klass, data, **options):
            say(args.jid)
        else:
            raise Refusal(f"job {args.jid} exists; nothing was changed")
    return 0


def _options(args: argparse.Namespace) -> dict[str, Any]:
    readers: dict[str, Callable[[str], Any]] = {
        "jid": str,
        "priority": _whole,
        "delay": parse_duration,
        "at": _moment,
        "retries": _whole,
        "timeout": parse_duration,
        "max_deaths": _whole,
    }
    options = {}
    for name, reader in readers.items():
        text = getattr(args, name)
        if text is not None:
            try:
                options[name] = reader(text)
            except ValueError as error:
                raise UsageError(f"--{name.replace('_', '-')} {text!r} {error}") from error
    return options


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("is not a whole number") from None


def _moment(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass  # then it is a date
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ValueError("is not a time; write it like 2031-07-01T12:00:00+02:00, or as unix seconds") from None


def _payload(args: argparse.Namespace) -> Any:
    if args.file is not None and args.data is not None:
        raise UsageError("give DATA or --file, not both")
    source = args.file if args.file is not None else "-" if args.data == "-" else None
    if source is None:
        raw = None if args.data is None else os.fsencode(args.data)
    elif source == "-":
        raw = _read(sys.stdin.buffer, "stdin")
    else:
        try:
            with Path(source).open("rb") as file:
                raw = _read(file, source)
        except OSError as error:  # ENOENT, EACCES, EISDIR …: all are about the name that was given
            raise UsageError(f"cannot read {source}: {error.strerror}") from error
    if args.raw:
        return raw or b""
    return None if raw is None else _json(raw, source or "DATA")


def _read(file: BinaryIO, name: str) -> bytes:
    status = os.fstat(file.fileno())
    size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else 0
    raw = b"" if size_bytes > LARGEST_BYTES else file.read(LARGEST_BYTES + 1)
    if max(size_bytes, len(raw)) > LARGEST_BYTES:
        size = f"{size_bytes / 2**20:.0f} MB" if size_bytes else "more than that"
        raise Refusal(f"a payload may have 256 MB, and {name} has {size}; put it elsewhere and its address in the job")
    return raw


def _json(raw: bytes, name: str) -> Any:
    """The decoded value. What JSON in Redis could not give back exactly is refused, not changed."""
    try:
        return json.loads(raw.decode(), parse_constant=_refuse, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not JSON: byte {error.start + 1} is not UTF-8 (--raw puts bytes)") from error
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno} column {error.colno}"
        raise UsageError(f"{name} is not JSON: {error.msg} at {where} (--raw puts bytes)") from error
    except RecursionError as error:
        raise UsageError(f"{name} is JSON nested too deep") from error
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}") from error


def _refuse(constant: str) -> float:
    raise ValueError(f"it has no {constant}")


def _finite(text: str) -> float:
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        raise ValueError(f"the number {text} is too large")
    return number
