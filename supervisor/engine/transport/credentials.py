"""Asks a function of the operator or of the application for the account at Redis, again for each connection.

Runs in the master, in commands and in applications. Must not keep a secret, nor wait for a function that hangs.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from supervisor.config import ConfigError
from supervisor.engine.transport.account import Credentials, NoAccount

#: The longest wait for the function. Connecting ends in time, and no second call begins while one hangs.
_PATIENCE_S: Final = 5.0
_RETURNS: Final = "(user, password), a password, or a provider of redis-py"


def load(path: str | None) -> Credentials | None:
    """Return what `--redis-credentials MODULE:FUNCTION` names. Runs that module's code. Raises ConfigError."""
    if path is None:
        return None
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
    return AskedAccount(function, "--redis-credentials")


def checked_credentials(given: Any) -> Credentials | None:
    """Return the argument of a client as credentials. Raises TypeError."""
    if given is None or isinstance(given, AskedAccount):
        return given
    if hasattr(given, "get_credentials"):
        return AskedAccount(lambda: given, "credentials")
    if callable(given):
        return AskedAccount(given, "credentials")
    raise TypeError(f"credentials must be a function that returns {_RETURNS}, not {type(given).__name__}")


class AskedAccount:
    """Credentials by a function. Any thread may ask; all that ask while a call is under way share its answer."""

    def __init__(self, function: Callable[[], Any], name: str) -> None:
        self._function = function
        self._name = name
        self._under_way: tuple[int, Future[tuple[str, str]]] | None = None  # with the process that called

    def __call__(self) -> tuple[str, str]:
        """Return user and password. Waits for at most `_PATIENCE_S`. Raises NoAccount."""
        under_way = self._under_way
        if under_way is None or under_way[0] != os.getpid():  # a fork has no thread that would answer
            under_way = self._under_way = os.getpid(), Future()
            try:
                threading.Thread(target=self._ask, args=(under_way[1],), name="redis-account", daemon=True).start()
            except RuntimeError as error:  # the limit of processes, or memory, is used up: the next call tries again
                self._under_way = None
                under_way[1].set_exception(NoAccount(f"{self._name} cannot be called: {error}"))
        try:
            return under_way[1].result(_PATIENCE_S)
        except TimeoutError:
            raise NoAccount(f"{self._name} has not returned within {_PATIENCE_S:g} s") from None

    def _ask(self, answer: "Future[tuple[str, str]]") -> None:
        try:
            account = self._account()
        except BaseException as error:  # noqa: BLE001 -- a foreign function may raise anything
            self._under_way = None
            known = isinstance(error, NoAccount)
            answer.set_exception(error if known else NoAccount(f"{self._name} has failed: {type(error).__name__}"))
        else:
            self._under_way = None
            answer.set_result(account)

    def _account(self) -> tuple[str, str]:
        given = self._function()
        if hasattr(given, "get_credentials"):
            given = given.get_credentials()
        words = (given,) if isinstance(given, str) else given
        if not isinstance(words, tuple) or not 1 <= len(words) <= 2 or not all(isinstance(word, str) for word in words):
            what = f"a tuple of {len(words)}" if isinstance(words, tuple) else type(given).__name__
            raise NoAccount(f"{self._name} must return {_RETURNS}, not {what}")
        if any("\ud800" <= character <= "\udfff" for word in words for character in word):
            raise NoAccount(f"{self._name} has returned text that cannot be sent: it has surrogates")
        return ("", words[0]) if len(words) == 1 else (words[0], words[1])
