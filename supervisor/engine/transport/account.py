"""Reads the account at a Redis server from a URL, or from the files that it names, again for each connection.

Runs in a thread of the master, and in applications. Must not keep a secret: it may be replaced at any time.
"""

import os
import stat
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

from supervisor.redis_url import split

#: Returns user and password for a connection that is to be made, each "" if there is none. It may block for seconds.
#: Raises NoAccount.
Credentials = Callable[[], tuple[str, str]]
#: Largest file with a user or a password. Tokens of cloud services have some kilobytes.
_MOST_BYTES: Final = 64 * 1024


class NoAccount(ValueError):
    """The account cannot be had. The text says why, without a secret."""


def without_arguments(error: Exception) -> str:
    """Return the text of an error reply. To an unknown command Redis repeats its arguments: of AUTH the password."""
    return str(error).partition(", with args")[0]


def account_of(url: str) -> tuple[str, str]:
    """Return user and password, each "" if there is none. Raises NoAccount for a file it cannot read."""
    parts = split(url)
    options = dict(parse_qsl(parts.query))
    return (
        unquote(parts.username or "") or _option(options, "username"),
        unquote(parts.password or "") or _option(options, "password"),
    )


def account_of_sentinels(url: str) -> tuple[str, str]:
    """Return the user and the password that the sentinels of a URL ask for. As `account_of`."""
    options = dict(parse_qsl(split(url).query))
    return _option(options, "sentinel_username"), _option(options, "sentinel_password")


def _option(options: Mapping[str, str], name: str) -> str:
    return _read(options, f"{name}_file") or options.get(name, "")


def _read(options: Mapping[str, str], name: str) -> str:
    """Return the text of the file that the option names, without the end of line that editors leave."""
    if name not in options:
        return ""
    try:
        with open(options[name], "rb", opener=_opened) as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            raw = file.read(_MOST_BYTES + 1) if is_regular else b""
        text = raw.decode().rstrip("\r\n")
    except OSError as error:
        raise NoAccount(f"{name} {options[name]} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise NoAccount(f"{name} {options[name]} is not UTF-8") from None  # its text shows a byte of the password
    if not is_regular:
        raise NoAccount(f"{name} {options[name]} is not a regular file")
    if len(raw) > _MOST_BYTES:
        raise NoAccount(f"{name} {options[name]} has more than {_MOST_BYTES} bytes; is it the right file?")
    if not text:
        raise NoAccount(f"{name} {options[name]} is empty")
    return text


def _opened(path: str, flags: int) -> int:
    """Open a file without waiting: a pipe without a writer would block for ever."""
    return os.open(path, flags | os.O_NONBLOCK)
