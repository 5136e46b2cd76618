"""Carries out what operators request through Redis, and answers. Runs in the master. Must not speak to Redis.

The answers go with the next exchange. A request whose answer was lost with a connection is told again: what changes
something is done once, and gets the same answer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from supervisor.engine.commands.mailbox import OperatorRequest
from supervisor.master.model.signals import By
from supervisor.master.model.slots import Slots
from supervisor.master.requests.controls import Answer, Controls
from supervisor.master.requests.stack_dump import Seen, StackDump, describe

#: All stacks in one answer: encoded as JSON they stay below the 1 MiB that the engine takes.
_STACKS_CHARS: Final = 400_000
#: At most this many answers are remembered. As many requests may stand in Redis.
_MOST_ANSWERS: Final = 100
_BY_CHARS: Final = 200
#: The command for a request, where the two have different names.
_COMMANDS: Final = {"resume": "unpause"}


class Reply(NamedTuple):
    """The answer to a request: JSON of at most 1 MiB. An object with "error" is a refusal, and says why."""

    request: OperatorRequest
    answer: Any


class OperatorRequests:
    def __init__(self, controls: Controls, status: Callable[[], Answer], slots: Slots, stack_dump: StackDump) -> None:
        self._controls = controls
        self._status = status
        self._slots = slots
        self._stack_dump = stack_dump
        self._replies: list[Reply] = []
        self._answers: dict[str, Answer | None] = {}  # by the request's id, oldest first; None: it is still to come

    def on_asked(self, requests: Sequence[OperatorRequest]) -> None:
        for request in requests:
            match request.what:
                case "stacks":
                    self._tell_stacks(request)
                case "status":
                    self._reply(request, self._status())
                case "drain" | "reload" | "scale" | "pause" | "resume":
                    self._do_once(request)
                case _:
                    self._refuse(request, f"this supervisor knows no answer to {request.what!r}; is it an older one?")

    def take_replies(self) -> list[Reply]:
        replies, self._replies = self._replies, []
        return replies

    def _reply(self, request: OperatorRequest, answer: Any) -> None:
        self._replies.append(Reply(request, answer))

    def _refuse(self, request: OperatorRequest, why: str) -> None:
        self._reply(request, {"error": why})

    # queries

    def _tell_stacks(self, request: OperatorRequest) -> None:
        def tell(seen: list[Seen]) -> None:
            most = _STACKS_CHARS // max(1, len(seen))
            self._reply(request, {"children": [{**describe(child), "stack": stack[:most]} for child, stack in seen]})

        self._stack_dump.ask(self._slots, tell)

    # changes

    def _do_once(self, request: OperatorRequest) -> None:
        if request.id in self._answers:
            known = self._answers[request.id]
            if known is not None:  # else the answer comes when it is done
                self._reply(request, known)
            return
        while len(self._answers) >= _MOST_ANSWERS:
            del self._answers[next(iter(self._answers))]
        self._answers[request.id] = None
        try:
            answer = self._do(request)
        except ValueError as error:
            answer = {"error": str(error)}
        if answer is not None:
            self._done(request, answer)

    def _done(self, request: OperatorRequest, answer: Answer) -> None:
        if request.id in self._answers:
            self._answers[request.id] = answer
        self._reply(request, answer)

    def _do(self, request: OperatorRequest) -> Answer | None:
        """Return the answer, or None if it comes later. Raises ValueError for what is impossible or makes no sense."""
        argument = request.argument if isinstance(request.argument, Mapping) else {}
        by = By(f"leasehold {_COMMANDS.get(request.what, request.what)} of {_who(argument.get('by'))}")
        match request.what:
            case "drain":
                return {"did": self._controls.drain(by)}
            case "pause":
                return {"did": self._controls.pause(by)}
            case "resume":
                return {"did": self._controls.resume(by)}
            case "scale":
                return self._controls.scale(*_range_of(argument), by)
            case _:
                self._controls.reload(by, lambda answer: self._done(request, answer))
                return None


def _who(name: Any) -> str:
    """Return who asks. Whatever reaches Redis may ask, and may call itself anything."""
    return name[:_BY_CHARS] if isinstance(name, str) and name else "an unnamed caller by way of Redis"


def _range_of(argument: Answer) -> tuple[int | None, int]:
    if argument.get("auto") is True:
        return None, 0
    fewest, most = argument.get("fewest"), argument.get("most")
    if type(fewest) is not int or type(most) is not int:
        told = {name: value for name, value in argument.items() if name != "by"}
        raise ValueError(f'"fewest" and "most" must be whole numbers, or "auto" true, and not {told!r:.200}')
    return fewest, most
