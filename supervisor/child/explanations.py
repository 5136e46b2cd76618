"""Adds a hint to exceptions of handlers that our own rules have caused. Runs in zygote and children. Owns the hints."""

from collections.abc import Collection

_DEBUGGER = (
    "a handler has no terminal: breakpoint() reads /dev/null and quits; `leasehold run --debug` gives handlers yours"
)

_held_back: Collection[str] = ()
_has_terminal = True  # of processes that no zygote has made: tests of handlers, applications


def prepare(held_back: Collection[str], has_terminal: bool) -> None:
    """`held_back`: names of environment variables that handlers do not get."""
    global _held_back, _has_terminal
    _held_back, _has_terminal = held_back, has_terminal


def hinted(error: BaseException, message: str) -> str:
    """Return the message of an exception, with a hint if there is one."""
    if type(error).__name__ == "BdbQuit" and not _has_terminal:
        return f"{message} ({_DEBUGGER})"
    missing = next((name for name in _held_back if name in message), None)
    if missing is None:
        return message
    return f"{message} (handlers do not get {missing}: it tells the address or the password of the queue's Redis)"
