"""Parses the values of settings. Runs in commands, and in applications.

Each parser takes the text as a user writes it, and raises ValueError saying what is expected. Must not talk to Redis.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor.units import parse_duration, parse_size

#: Control characters, and the surrogates that Python decodes non-UTF-8 bytes to.
NOT_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
MOST_PROCESSES = 4096
MOST_SHARDS = 64
#: Each look costs a round trip. Where nothing waits in Redis, a request to a supervisor waits for the next look.
SHORTEST_POLL_S = 0.02
SHORTEST_LEASE_S, LONGEST_LEASE_S = 1.0, 86400.0
LONGEST_POLL_S = 30.0


def parse_positive_duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds == 0:
        raise ValueError("must be more than 0")
    return seconds


def parse_poll(text: str) -> float:
    """Return the seconds of an interval, or 0 for `none`. Raises ValueError saying what is expected."""
    seconds = 0.0 if text == "none" else parse_duration(text)
    if text != "none" and not SHORTEST_POLL_S <= seconds <= LONGEST_POLL_S:
        raise ValueError(f"must be none, or between {SHORTEST_POLL_S * 1000:g}ms and {LONGEST_POLL_S:g}s")
    return seconds


def parse_lease_ttl(text: str) -> float:
    seconds = parse_duration(text)
    if not SHORTEST_LEASE_S <= seconds <= LONGEST_LEASE_S:
        raise ValueError("must be between 1s and 24h: it is how long a lost host's jobs wait")
    return seconds


def parse_count(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ValueError("is not a whole number of 0 or more")
    return int(text)


def parse_size_or_none(text: str) -> int:
    return 0 if text == "none" else parse_size(text)


def parse_size_or_auto(text: str) -> int | None:
    return None if text == "auto" else parse_size_or_none(text)


def parse_duration_or_none(text: str) -> float:
    return 0.0 if text == "none" else parse_duration(text)


def parse_processes(text: str) -> tuple[int, int] | None:
    """Return minimum and maximum of `4` or `2:8`, or None for `auto`. Raises ValueError saying what is expected."""
    if text == "auto":
        return None
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text, re.ASCII)
    fewest, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= fewest <= most <= MOST_PROCESSES:
        raise ValueError(f"must be auto, N or MIN:MAX, whole numbers from 1 to {MOST_PROCESSES}")
    return fewest, most


def parse_switch(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError("must be yes or no")
    return text == "yes"


def parse_variable(text: str) -> str:
    if not text or "=" in text:
        raise ValueError("must be the name of an environment variable")
    if text.startswith("LEASEHOLD_"):
        raise ValueError("is ours, and no handler ever sees it; give what it is to know another name")
    return text


def parse_user(text: str) -> tuple[int, int]:
    """Return uid and gid of `USER`, `UID`, `USER:GROUP` or `UID:GID`."""
    import grp
    import pwd

    user, _, group = text.partition(":")
    try:
        known = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        uid, gid = known.pw_uid, known.pw_gid
    except KeyError:
        if not user.isdecimal():
            raise ValueError("is no user of this machine; give a name that there is, or UID:GID") from None
        uid = gid = int(user)
    if group:
        try:
            gid = int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
        except KeyError:
            raise ValueError("has a group that this machine does not know; give its number") from None
    if not 0 < uid < 2**32 - 1 or not 0 < gid < 2**32 - 1:
        raise ValueError("must be neither root nor beyond what an id can be")
    return uid, gid


def parse_readable(text: str) -> Path:
    path = Path(text).absolute()
    if not path.exists():
        raise ValueError("must be an existing file or directory")
    return path


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be {', '.join(allowed[:-1])} or {allowed[-1]}")
        return text

    return parse


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address of a listener."""

    host: str  # "" for all interfaces
    port: int  # 0 for any free port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_ADDRESS = re.compile(r"(?:(?P<host>[^\[\]:/\s]*|\[(?P<six>[0-9A-Fa-f:.]+)\]):)?(?P<port>\d{1,5})", re.ASCII)
_HOST_NAME = re.compile(r"(?=.{1,253}$)(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?", re.ASCII)


def parse_address(text: str) -> ListenAddress | None:
    """Return the address of `9464` or `:9464` (all interfaces), `127.0.0.1:9464`, `[::1]:9464`, or None for `none`.

    Raises ValueError saying what is expected.
    """
    if text == "none":
        return None
    match = _ADDRESS.fullmatch(text)
    if not match or int(match["port"]) > 65535:
        raise ValueError("must be none, PORT or HOST:PORT, like 9464, 127.0.0.1:9464 or [::1]:9464")
    return ListenAddress(match["six"] or match["host"] or "", int(match["port"]))


def parse_host_name(text: str) -> str:
    if not _HOST_NAME.fullmatch(text):
        raise ValueError("must be the name of a host, like jobs.example.com, without a port")
    return text.lower().removesuffix(".")


def parse_idle(text: str) -> float:
    return 0.0 if text == "never" else parse_positive_duration(text)


def parse_name_or_none(text: str) -> str:
    if text == "none":
        return ""
    if not text or len(text.encode()) > 64 or NOT_TEXT.search(text):
        raise ValueError("must be none, or a name of at most 64 bytes")
    return text


def parse_namespace(text: str) -> str:
    if len(text.encode()) > 64 or set(text) & set("{}*?[]\\"):
        raise ValueError("must be at most 64 bytes with none of {}*?[]\\ in it")
    if re.search(r"#[0-9]+\Z", text):
        raise ValueError("must not end in # and a number, as the shards of a namespace do")
    return text


def parse_shards(text: str) -> int:
    """Return a number of shards. Raises ValueError saying what is expected."""
    if not re.fullmatch(r"[0-9]{1,2}", text, re.ASCII) or not 1 <= int(text) <= MOST_SHARDS:
        raise ValueError(f"must be a whole number from 1 to {MOST_SHARDS}")
    return int(text)


def parse_module(text: str) -> str:
    dotted = text.removeprefix("./").rstrip("/").removesuffix(".py").replace("/", ".")
    if not all(part.isidentifier() for part in dotted.split(".")):
        raise ValueError("must be the import path of a package, like handlers or app.handlers")
    return dotted


def parse_function(text: str) -> str:
    module, colon, name = text.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError("must be the import path of a module and a function in it, like cloud.redis:token")
    return text


def parse_readable_file(text: str) -> str:
    if not os.path.isfile(text) or not os.access(text, os.R_OK):
        raise ValueError("must be a file that is there and can be read")
    return os.path.abspath(text)


def parse_release(text: str) -> str:
    if not text.isprintable() or len(text.encode()) > 64:
        raise ValueError("must be a name of at most 64 bytes, like 2026-11-24 or v1.7")
    return text


def parse_queue(text: str) -> str:
    # The engine reads the list of queues and their order.
    return text.strip()


def parse_directory(text: str) -> Path:
    path = Path(text).absolute()
    if not path.is_dir():
        raise ValueError("must be an existing directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError("must be a directory that this user may write to")
    return path
