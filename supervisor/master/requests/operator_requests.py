"""What somebody asks this supervisor for, and what it answers. Runs in master. Must not speak to Redis.

The answers go with the next exchange; who asked has given up after a while, and then they are nobody's. A question
whose answer was lost with a connection comes again: what changes something is done once, and answered as it was.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from supervisor.engine.commands.queries import Request
from supervisor.engine.worker.exchange import Reply
from supervisor.master.model.slots import Slots
from supervisor.master.requests.stack_dump import Seen, StackDump, describe

#: Of all stacks in one answer: with what JSON makes of them it stays below what the engine takes.
_STACKS_CHARS: Final = 400_000
#: Answers that are remembered; as many questions may stand.
_MOST_ANSWERS: Final = 100
_BY_CHARS: Final = 200
#: Those that are not called as what they ask for.
_COMMANDS: Final = {"resume": "unpause"}

Answer = Mapping[str, Any]


class Actions(Protocol):
    """What the master does when it is asked. `by`: by what command, and whose. What cannot be done raises ValueError,
    which says why in a sentence.
    """

    def drain(self, by: str) -> Answer:
        """Begin to drain."""

    def reload(self, by: str, on_done: Callable[[Answer], None]) -> None:
        """Load the handlers anew; `on_done` is called once, with what has come of it."""

    def scale(self, fewest: int | None, most: int, by: str) -> Answer:
        """Have so many processes; None: as many as the machine has room for."""

    def pause(self, by: str) -> Answer:
        """Start no job until `resume`."""

    def resume(self, by: str) -> Answer:
        """Start jobs again."""

    def status(self) -> Answer:
        """Everything that `leasehold status` shows."""


class OperatorRequests:
    def __init__(self, actions: Actions, slots: Slots, survey: StackDump) -> None:
        self._actions = actions
        self._slots = slots
        self._survey = survey
        self._replies: list[Reply] = []
        self._answers: dict[str, Answer | None] = {}  # by question, oldest first; None: it is not known yet

    def on_asked(self, asks: Sequence[Request]) -> None:
        for ask in asks:
            match ask.what:
                case "stacks":
                    self._tell_stacks(ask)
                case "status":
                    self._reply(ask, self._actions.status())
                case "drain" | "reload" | "scale" | "pause" | "resume":
                    self._do_once(ask)
                case _:
                    self._refuse(ask, f"this supervisor knows no answer to {ask.what!r}; is it an older one?")

    @property
    def answered(self) -> bool:
        """Whether there are answers to be sent."""
        return bool(self._replies)

    def take_replies(self) -> list[Reply]:
        replies, self._replies = self._replies, []
        return replies

    def _reply(self, ask: Request, answer: Any) -> None:
        self._replies.append(Reply(ask, answer))

    def _refuse(self, ask: Request, why: str) -> None:
        self._reply(ask, {"error": why})

    # what is looked at

    def _tell_stacks(self, ask: Request) -> None:
        def tell(seen: list[Seen]) -> None:
            most = _STACKS_CHARS // max(1, len(seen))
            self._reply(ask, {"children": [{**describe(child), "stack": stack[:most]} for child, stack in seen]})

        self._survey.ask(self._slots, tell)

    # what is changed

    def _do_once(self, ask: Request) -> None:
        if ask.id in self._answers:
            known = self._answers[ask.id]
            if known is not None:  # else it is answered when it is done
                self._reply(ask, known)
            return
        while len(self._answers) >= _MOST_ANSWERS:
            del self._answers[next(iter(self._answers))]
        self._answers[ask.id] = None
        try:
            answer = self._do(ask)
        except ValueError as error:
            answer = {"error": str(error)}
        if answer is not None:
            self._done(ask, answer)

    def _done(self, ask: Request, answer: Answer) -> None:
        if ask.id in self._answers:
            self._answers[ask.id] = answer
        self._reply(ask, answer)

    def _do(self, ask: Request) -> Answer | None:
        """None: it will be answered. Raises ValueError for what cannot be done, or be meant."""
        wish = ask.argument if isinstance(ask.argument, Mapping) else {}
        by = f"leasehold {_COMMANDS.get(ask.what, ask.what)} of {_who(wish.get('by'))}"
        match ask.what:
            case "drain":
                return self._actions.drain(by)
            case "pause":
                return self._actions.pause(by)
            case "resume":
                return self._actions.resume(by)
            case "scale":
                return self._actions.scale(*_range_of(wish), by)
            case _:
                self._actions.reload(by, lambda answer: self._done(ask, answer))
                return None


def _who(name: Any) -> str:
    """Anybody who reaches Redis may ask, and say anything of himself."""
    return name[:_BY_CHARS] if isinstance(name, str) and name else "somebody by way of Redis"


def _range_of(wish: Answer) -> tuple[int | None, int]:
    if wish.get("auto") is True:
        return None, 0
    fewest, most = wish.get("fewest"), wish.get("most")
    if type(fewest) is not int or type(most) is not int:
        told = {name: value for name, value in wish.items() if name != "by"}
        raise ValueError(f'"fewest" and "most" must be whole numbers, or "auto" true, and not {told!r:.200}')
    return fewest, most
