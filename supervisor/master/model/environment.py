"""Chooses the environment variables that handlers see. Runs in the master, before it execs a zygote.

Does not change the master's own environment.
"""

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import unquote

from supervisor.config import RunConfig
from supervisor.engine.transport.account import NoAccount, account_of, account_of_sentinels
from supervisor.linux import kernel
from supervisor.redis_url import for_redis_py, secrets

#: The master's settings and its sockets to the init system. A child that used those would speak in its name.
_OF_THE_MASTER: Final = ("LEASEHOLD_", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_")
#: Variables that most programs need. A trailing * stands for any text.
BASICS: Final = (
    "PATH", "HOME", "LANG", "LC_*", "TZ", "TMPDIR", "PYTHON*", "VIRTUAL_ENV", "SSL_CERT_*",
)  # fmt: skip
#: A shorter password is searched as a whole value or inside a URL only, because it may be part of any word.
_LONG_PASSWORD_CHARS: Final = 6
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "busybox"})


def of(config: RunConfig) -> tuple[dict[str, str], list[str]]:
    """Return `for_handlers` of this process's environment, by the settings."""
    return for_handlers(os.environ, config.redis_url or "embedded:", allowed_by(config.env, config.sandbox))


def why_held_back(names: Collection[str]) -> str:
    """Return a sentence that names the variables, the reason and the remedy."""
    return (
        f"handlers do not get {', '.join(sorted(names))}: the value tells the address or the password of the queue's"
        " Redis; where they need that server give them an account of their own, and its URL in another variable"
    )


def for_handlers(
    environ: Mapping[str, str], redis_url: str, allowed: Collection[str] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Return the zygote's environment, and the names of variables held back because they contain the Redis secret.

    `allowed`: the only names that pass beside the basics. None: all names pass.
    """
    passwords = {*secrets(redis_url), *_from_files(redis_url)}
    redis_url = for_redis_py(redis_url)
    kept: dict[str, str] = {}
    held_back: list[str] = []
    for name, value in environ.items():
        if name.startswith(_OF_THE_MASTER) or not (allowed is None or name in allowed or _is_basic(name)):
            continue
        if redis_url in value or any(_tells(value, password) for password in passwords):
            held_back.append(name)
        else:
            kept[name] = value
    return kept, held_back


def _from_files(redis_url: str) -> set[str]:
    """Return the passwords that the files of a URL have now. Later ones are not known here."""
    found = set()
    for account in (account_of, account_of_sentinels):
        with suppress(NoAccount):  # the connection tells
            found.add(account(redis_url)[1])
    return found - {""}


def allowed_by(names: Collection[str], sandbox: str) -> Collection[str] | None:
    """Return the names that pass beside the basics, by `--env` and the sandbox level. None: all names pass."""
    return names if names or sandbox == "strict" else None


def _is_basic(name: str) -> bool:
    return any(name.startswith(basic[:-1]) if basic.endswith("*") else name == basic for basic in BASICS)


def _tells(value: str, password: str) -> bool:
    if len(password) >= _LONG_PASSWORD_CHARS:
        return password in value or password in unquote(value)
    return value == password or f":{password}@" in unquote(value)


def shell_above() -> str | None:
    """Return a warning if a shell is PID 1 and our parent, as with `sh -c 'leasehold run …'` in a container."""
    if os.getppid() != 1:
        return None
    shell = kernel.program_of(1)
    if shell not in _SHELLS:  # also if its name is hidden: then PID 1 is the host's init
        return None
    return (
        f"PID 1 is {shell}, which passes no signal on: a stop of the container kills all jobs without a drain; start"
        " with `exec leasehold run …`, or without a shell"
    )
