"""Reads a payload from DATA, a file or stdin. Runs in the command's process.

Must not read what the engine would refuse, and must not alter what it reads.
"""

import argparse
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, BinaryIO

from supervisor.cli.lib.parser import Refusal, UsageError
from supervisor.engine.model.bounds import DATA_BYTES


def add_payload(parser: argparse.ArgumentParser) -> None:
    """Declare DATA, --raw and --file."""
    parser.add_argument("data", metavar="DATA", nargs="?", help="the payload as JSON; - reads it from stdin")
    parser.add_argument("--raw", action="store_true", help="the payload is bytes, not JSON")
    parser.add_argument("--file", metavar="PATH", help="read the payload from a file; - is stdin")


def add_data_flag(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare --data, --raw and --file, for a command without DATA. `what` the payload is for."""
    parser.add_argument("--data", metavar="DATA", help=f"{what}, as JSON; - reads it from stdin")
    parser.add_argument("--raw", action="store_true", help="that payload is bytes, not JSON")
    parser.add_argument("--file", metavar="PATH", help="read that payload from a file; - is stdin")


def is_given(args: argparse.Namespace) -> bool:
    """Return True if the flags give a payload. --raw alone is an empty one."""
    return args.data is not None or args.file is not None or args.raw


def read_payload(args: argparse.Namespace, name: str = "DATA") -> Any:
    """Return the JSON value, bytes with --raw, or None without a payload. `name`: what messages call DATA."""
    if args.file is not None and args.data is not None:
        raise UsageError(f"give {name} or --file, not both")
    source = args.file if args.file is not None else "-" if args.data == "-" else None
    if source is None:
        raw = None if args.data is None else os.fsencode(args.data)
    elif source == "-":
        raw = _read(sys.stdin.buffer, "stdin")
    else:
        try:
            with Path(source).open("rb") as file:
                raw = _read(file, source)
        except OSError as error:  # ENOENT, EACCES, EISDIR and others all concern the given name
            raise UsageError(f"cannot read {source}: {error.strerror}") from error
    if args.raw:
        return raw or b""
    return None if raw is None else read_json(raw, source or name)


def _read(file: BinaryIO, name: str) -> bytes:
    status = os.fstat(file.fileno())
    size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else 0
    raw = b"" if size_bytes > DATA_BYTES else file.read(DATA_BYTES + 1)
    if max(size_bytes, len(raw)) > DATA_BYTES:
        size = f"{size_bytes / 2**20:.0f} MB" if size_bytes else "more than that"
        raise Refusal(f"a payload may have 256 MB, and {name} has {size}; put it elsewhere and its address in the job")
    return raw


def read_json(raw: bytes, name: str) -> Any:
    """Decode JSON. Refuse what Redis could not give back exactly."""
    try:
        return decoded(raw)
    except ValueError as error:
        hint = " (--raw puts bytes)" if name != "--data" else ""
        raise UsageError(f"{name} {error}{hint}") from error


def decoded(raw: bytes) -> Any:
    """Decode JSON, or raise ValueError with a clause such as `is not JSON: …`."""
    try:
        return json.loads(raw.decode(), parse_constant=_refuse, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not JSON: byte {error.start + 1} is not UTF-8") from error
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno} column {error.colno}"
        raise ValueError(f"is not JSON: {error.msg} at {where}") from error
    except RecursionError as error:
        raise ValueError("is JSON nested too deep") from error
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error


def _refuse(constant: str) -> float:
    raise ValueError(f"it has no {constant}")


def _finite(text: str) -> float:
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        raise ValueError(f"the number {text} is too large")
    return number
