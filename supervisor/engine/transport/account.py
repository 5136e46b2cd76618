"""Reads the account at a Redis server from a URL, or from the files that it names, again for each connection.

Runs in a thread of the master, and in applications. Must not keep a secret: it may be replaced at any time.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

#: Returns user and password for a connection that is to be made, each "" if there is none. It may block.
Credentials = Callable[[], tuple[str, str]]


def account_of(url: str) -> tuple[str, str]:
    """Return user and password, each "" if there is none. Raises OSError or ValueError for a file it cannot read."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return (
        user or _read(options, "username_file") or options.get("username", ""),
        password or _read(options, "password_file") or options.get("password", ""),
    )


def _read(options: Mapping[str, str], name: str) -> str:
    """Return the text of the file that the option names, without the end of line that editors leave."""
    if name not in options:
        return ""
    text = Path(options[name]).read_text().rstrip("\r\n")
    if not text:
        raise ValueError(f"{name} {options[name]} is empty")
    return text
