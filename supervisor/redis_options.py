"""The options of Redis URLs, and the values that each may have. Runs in every process that gets a Redis URL.

Must not connect, or import redis. Options mean what they mean to redis-py, which lacks those of sentinels and of files.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl

Check = Callable[[str], str]

# Each check returns "" for a valid value, else what the value must be, in words.


def _any(_value: str) -> str:
    return ""


def _whole(least: int) -> Check:
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


def _one_of(*words: str) -> Check:
    return lambda value: "" if value in words else " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _flag(value: str) -> str:
    # redis-py takes any other word for true; of these only the usual ones are accepted.
    right = value.lower() in ("0", "f", "false", "n", "no", "1", "t", "true", "y", "yes")
    return "" if right else "true or false"


def _file(value: str) -> str:
    return "" if os.path.isfile(value) and os.access(value, os.R_OK) else "a file that is there and can be read"


def _server_name(value: str) -> str:
    return "" if re.fullmatch(r"[\w.:-]{1,253}", value, re.ASCII) else "the name in the server's certificate"


def _verify_flags(value: str) -> str:
    import ssl  # not above: children load this module

    names = [name.strip() for name in value.strip("[]").split(",")]
    return "" if set(names) <= ssl.VerifyFlags.__members__.keys() else "a list like [VERIFY_X509_STRICT]"


def _directory(value: str) -> str:
    return "" if os.path.isdir(value) else "a directory that is there"


_OF_ALL: Final[Mapping[str, Check]] = {
    "db": _whole(0),
    "username": _any,
    "password": _any,
    "username_file": _file,
    "password_file": _file,
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
_OF_TLS: Final[Mapping[str, Check]] = {
    "ssl_ca_certs": _file,
    "ssl_ca_path": _directory,
    "ssl_ca_data": _any,
    "ssl_certfile": _file,
    "ssl_keyfile": _file,
    "ssl_password": _any,
    "ssl_cert_reqs": _one_of("none", "optional", "required"),
    "ssl_check_hostname": _flag,
    "ssl_server_name": _server_name,
    "ssl_min_version": _one_of("769", "770", "771", "772"),
    "ssl_ciphers": _any,
    "ssl_include_verify_flags": _verify_flags,
    "ssl_exclude_verify_flags": _verify_flags,
}
#: The sentinels may have an account of their own.
_OF_SENTINEL: Final[Mapping[str, Check]] = {
    "sentinel_username": _any,
    "sentinel_password": _any,
    "sentinel_username_file": _file,
    "sentinel_password_file": _file,
}
SECRET: Final = frozenset({"password", "ssl_password", "sentinel_password"})
#: Options that name files with secrets. A certificate's file may hold its key as well.
SECRET_FILES: Final = frozenset({"password_file", "sentinel_password_file", "ssl_certfile", "ssl_keyfile"})
SHOWN: Final = (_OF_ALL.keys() | _OF_TLS.keys() | _OF_SENTINEL.keys()) - SECRET
#: Options that redis-py does not know.
OURS: Final = frozenset({"username_file", "password_file", "ssl_server_name", *_OF_SENTINEL})


def check(query: str, *, is_tls: bool, is_sentinel: bool) -> None:
    """Raise ValueError, with a clause that follows the URL, for the first wrong option. Named files must exist."""
    known = {**_OF_ALL, **(_OF_TLS if is_tls else {}), **(_OF_SENTINEL if is_sentinel else {})}
    seen = set[str]()
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known and name not in _OF_TLS and name not in _OF_SENTINEL:
            # A seeming option may be part of a password.
            if "@" in query:
                raise ValueError("has an unknown option, or a ? in its user or password; write that as %3F")
            if "password" in query:
                raise ValueError("has an unknown option, or a & or = in its password; write that as %26 or %3D")
        if name not in known:
            raise ValueError(f"has {_unknown(name, value, known)}")
        if name in seen:
            raise ValueError(f"has the option {name} twice")
        seen.add(name)
        if not value:
            raise ValueError(f"has the option {name} without a value")
        if expected := known[name](value):
            raise ValueError(f"has the option {name} with a wrong value: it must be {expected}")


def _unknown(name: str, value: str, known: Mapping[str, object]) -> str:
    if name in _OF_TLS:
        return f"the option {name}, which only a URL with TLS (rediss…) has"
    if name in _OF_SENTINEL:
        return f"the option {name}, which only a URL of sentinels (redis+sentinel://…) has"
    import difflib  # not above: children load this module

    near = difflib.get_close_matches(name, known, 1)
    advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
    # A lone word may be a password.
    said = f"an unknown option {name!r:.60}" if near or value else "an unknown option without a value"
    return f"{said}: {advice}"
