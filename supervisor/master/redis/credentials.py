"""Finds the operator's function that returns the account at Redis. Runs in the master.

Must not call it: that may block, and is done in the thread that connects.
"""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from supervisor.config import ConfigError
from supervisor.engine.transport.account import Credentials

_RETURNS: Final = "must return (user, password), a password, or a provider of redis-py"


def load(path: str) -> Credentials:
    """Return what `--redis-credentials MODULE:FUNCTION` names. Runs that module's code. Raises ConfigError."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as for handlers
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError([f"--redis-credentials {path!r} cannot be imported: {why}."]) from error
    if not callable(function):
        raise ConfigError([f"--redis-credentials {path!r} is {type(function).__name__}; it must be a function."])
    return _checked(function)


def _checked(function: Callable[[], Any]) -> Credentials:
    def credentials() -> tuple[str, str]:
        try:
            given = function()
            if hasattr(given, "get_credentials"):
                given = given.get_credentials()
        except BaseException as error:  # the operator's code may raise anything
            raise ValueError(f"--redis-credentials has failed: {type(error).__name__}") from error
        words = (given,) if isinstance(given, str) else given
        if not isinstance(words, tuple) or not 1 <= len(words) <= 2 or not all(isinstance(word, str) for word in words):
            raise TypeError(f"--redis-credentials {_RETURNS}, not {type(given).__name__}")
        return ("", words[0]) if len(words) == 1 else (words[0], words[1])

    return credentials
