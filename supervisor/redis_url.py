"""Checks Redis URLs, and masks their secrets. Runs in every process that gets a Redis URL.

Must not connect, or import redis. Users and options mean what they mean to redis-py.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qs, parse_qsl, unquote, urlsplit

EMBEDDED: Final = "embedded:"

_FORMS: Final = f"redis://host:port/db, rediss://…, unix:///path/to/socket or {EMBEDDED}"
_DATABASE: Final = re.compile(r"/?\d{0,9}/?", re.ASCII)
_SECRET: Final = frozenset({"password", "ssl_password"})


def checked(url: str) -> str:
    """Return the url if a client can use it. Raises ValueError with a clause that follows its name and `redacted(url)`.

    Files that an option names must exist.
    """
    if url == EMBEDDED:
        return url
    parts = _split(url)
    if re.search(r"[\x00-\x20\x7f]", url):
        raise ValueError("has a space or a control character; write it as %20 or the like")
    if parts.scheme != "unix" and "@" in f"{parts.path}{parts.fragment}":
        raise ValueError("has a / or # in its user or password; write it as %2F or %23")
    if parts.fragment:
        raise ValueError("has a #; write it as %23")
    if parts.scheme != "unix" and not _DATABASE.fullmatch(parts.path):
        raise ValueError("names a database that is no number; write it like redis://host:6379/0")
    _check_options(parts)
    return url


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_good = parts.port != 0
    except ValueError:  # about the port or brackets
        is_good = False
    if is_good and parts.scheme in ("redis", "rediss"):
        is_good = bool(parts.hostname)
    elif is_good:
        is_good = parts.scheme == "unix" and not parts.hostname and len(parts.path) > 1
    if not is_good:
        raise ValueError(f"must be {_FORMS}")
    return parts


def _check_options(parts: SplitResult) -> None:
    known = {**_OPTIONS, **(_OF_TLS if parts.scheme == "rediss" else {})}
    seen = set[str]()
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            # A seeming option may be part of a password.
            if "@" in parts.query:
                raise ValueError("has an unknown option, or a ? in its user or password; write that as %3F")
            if "password" in parts.query:
                raise ValueError("has an unknown option, or a & or = in its password; write that as %26 or %3D")
            raise ValueError(f"has {_unknown(name, value, known)}")
        if name in seen:
            raise ValueError(f"has the option {name} twice")
        seen.add(name)
        if not value:
            raise ValueError(f"has the option {name} without a value")
        expected = known[name](value)
        if expected:
            raise ValueError(f"has the option {name} with a wrong value: it must be {expected}")


def _unknown(name: str, value: str, known: Mapping[str, object]) -> str:
    if name in _OF_TLS:
        return f"the option {name}, which only a rediss:// URL has"
    import difflib  # not above: children load this module

    near = difflib.get_close_matches(name, known, 1)
    advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
    # A lone word may be a password.
    said = f"an unknown option {name!r:.60}" if near or value else "an unknown option without a value"
    return f"{said}: {advice}"


# Each check returns "" for a valid value, else what the value must be, in words.


def _any(_value: str) -> str:
    return ""


def _whole(least: int) -> Callable[[str], str]:
    def check(value: str) -> str:
        right = re.fullmatch(r"\d{1,9}", value, re.ASCII) and int(value) >= least
        return "" if right else f"a whole number from {least} on"

    return check


def _seconds(value: str) -> str:
    try:
        right = 0 < float(value) < math.inf
    except ValueError:
        right = False
    return "" if right else "a number of seconds above 0"


def _one_of(*words: str) -> Callable[[str], str]:
    return lambda value: "" if value in words else " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _flag(value: str) -> str:
    # redis-py takes any other word for true; of these only the usual ones are accepted.
    right = value.lower() in ("0", "f", "false", "n", "no", "1", "t", "true", "y", "yes")
    return "" if right else "true or false"


def _file(value: str) -> str:
    return "" if os.path.isfile(value) and os.access(value, os.R_OK) else "a file that is there and can be read"


def _directory(value: str) -> str:
    return "" if os.path.isdir(value) else "a directory that is there"


_OPTIONS: Final[Mapping[str, Callable[[str], str]]] = {
    "db": _whole(0),
    "username": _any,
    "password": _any,
    "client_name": _any,
    "socket_timeout": _seconds,
    "socket_connect_timeout": _seconds,
    "socket_keepalive": _flag,
    "socket_read_size": _whole(1),
    "health_check_interval": _whole(0),
    "max_connections": _whole(1),
    "retry_on_timeout": _flag,
    "protocol": _one_of("2"),
}
_OF_TLS: Final[Mapping[str, Callable[[str], str]]] = {
    "ssl_ca_certs": _file,
    "ssl_ca_path": _directory,
    "ssl_ca_data": _any,
    "ssl_certfile": _file,
    "ssl_keyfile": _file,
    "ssl_password": _any,
    "ssl_cert_reqs": _one_of("none", "optional", "required"),
    "ssl_check_hostname": _flag,
    "ssl_min_version": _whole(0),
    "ssl_ciphers": _any,
    "ssl_include_verify_flags": _any,
    "ssl_exclude_verify_flags": _any,
}
_SHOWN: Final = (_OPTIONS.keys() | _OF_TLS.keys()) - _SECRET
#: The part of an address that is certainly host, numeric port and database.
_PLACE: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]*\]|[^/:#\[\]]*)(?::\d*(?=/|$))?(?:/[\w-]*/?$)?")
_MISPLACED: Final = re.compile(r":[^/@]*@")


# secrets


def secrets(url: str) -> tuple[str, ...]:
    """Return the passwords in a url: the account's, and that of the client certificate's key."""
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    found = [unquote(parts.password or ""), *(value for name in sorted(_SECRET) for value in options.get(name, ()))]
    return tuple(dict.fromkeys(filter(None, found)))


def redacted(url: str) -> str:
    """Return the url, valid or not, with *** for all that may be secret. Nothing else may show a url.

    An invalid url is hidden generously: all before the last @, all from a port that is no number on, and the values of
    unknown options.
    """
    if url.startswith("unix:///"):  # no account: an @ is part of the path
        path, options_at, options = url.partition("?")
        path, hash_at, _ = path.partition("#")
        place = _MISPLACED.sub(":***@", path) + (f"{hash_at}***" if hash_at else "")
    else:
        account, at, rest = url.rpartition("@")
        whole = account if at else url
        scheme, slashes, account = whole.rpartition("://") if whole.count("://") == 1 else ("", "", whole)
        user, colon, _ = account.partition(":")
        place, options_at, options = (rest if at else account).partition("?")
        plain = _PLACE.match(place)
        if plain and plain.end() < len(place) and scheme != "unix":
            place = f"{plain[0]}***"
        hidden = f"{user + colon if colon and slashes else ''}***@" if at else ""
        place = f"{scheme}{slashes}{hidden}{place}"
    shown = "&".join(map(_redacted_option, options.split("&")))
    return f"{place}{options_at}{shown}"


def _redacted_option(option: str) -> str:
    name, equals, value = option.partition("=")
    if not equals:
        return option if not option or option in _SHOWN else "***"
    # A value with one of these may hold a second option, written with a wrong or an encoded separator.
    harmless = unquote(name) in _SHOWN and not set(unquote(value)) & set("&;#?=%")
    return f"{name}={value if harmless else '***'}"
