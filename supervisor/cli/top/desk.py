"""What whoever sits before `leasehold top` has chosen, and what each key means then. Runs in the command's process.

Must not do I/O: what is to be done at a supervisor, or at Redis, it answers as a wish.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from supervisor.cli.top.keys import HELP
from supervisor.cli.top.model import Model, Pane, Row, Tone, number

#: As far as one page key goes.
_PAGE: Final = 10
_FILTER_CHARS: Final = 60
#: What was asked for and is not seen after so many looks was refused.
_LOOKS: Final = 4


@dataclass(frozen=True, slots=True)
class Wish:
    """Something to be done: `what` of the supervisor, queue or job named `whom`."""

    what: str
    whom: str
    argument: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """A wish that waits for a yes."""

    text: str
    wish: Wish


@dataclass(slots=True)
class Page:
    """Text in place of the panes, until Escape; or all of one row, which names itself: then there is no title."""

    title: str
    text: Sequence[str]
    first: int = 0
    row: tuple[Pane, Row] | None = None
    lines: Sequence[str] = field(init=False)  # as the text fits the screen

    def __post_init__(self) -> None:
        self.lines = self.text


@dataclass(slots=True)
class _Scaled:
    """How many processes a supervisor was asked to have, and how many looks ago."""

    most: int
    looks: int = 0


class Desk:
    def __init__(self, model: Model) -> None:
        self._model = model
        self.pane = Pane.SUPERVISORS
        self.chosen: dict[Pane, str | None] = dict.fromkeys(Pane)
        self.filters: dict[Pane, str] = dict.fromkeys(Pane, "")
        self.question: Question | None = None
        self.typing: str | None = None  # the filter, as far as it is typed
        self.page: Page | None = None
        self.said: tuple[str, Tone] = ("", Tone.PLAIN)
        self.frozen = False
        self.over = False
        self._scaled: dict[str, _Scaled] = {}

    # what is chosen

    @property
    def worker(self) -> str | None:
        """The chosen supervisor; the first one if none was chosen, or it is gone."""
        row = self.row(Pane.SUPERVISORS)
        return row.key if row else None

    def rows(self, pane: Pane) -> list[Row]:
        """What the pane has to show."""
        worker = self.worker if pane is Pane.CHILDREN else None
        return self._model.rows(pane, worker, self.filters[pane])

    def row(self, pane: Pane) -> Row | None:
        """The chosen row."""
        rows = self.rows(pane)
        return next((row for row in rows if row.key == self.chosen[pane]), rows[0] if rows else None)

    def on_look(self) -> None:
        """There is news: perhaps what was asked for has come about."""
        for worker, scaled in list(self._scaled.items()):
            scaled.looks += 1
            told = self._model.told(worker)
            if told is None or told["processes"].get("most") == scaled.most or scaled.looks >= _LOOKS:
                del self._scaled[worker]

    def say(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        self.said = text, tone

    # keys

    def press(self, key: str) -> Wish | None:
        """What is to be done, if anything."""
        if self.question is not None:
            return self._answer(key)
        if self.typing is not None:
            self._type(key)
        elif self.page is not None:
            self._turn(key)
        else:
            return self._do(key)
        return None

    def _do(self, key: str) -> Wish | None:
        match key:
            case "q":
                self.over = True
            case "?":
                self.page = Page("keys", [f"{keys.ljust(18)}{what}" for keys, what in HELP])
            case "tab" | "right":
                self._go(1)
            case "back-tab" | "left":
                self._go(-1)
            case "up" | "k":
                self._move(-1)
            case "down" | "j":
                self._move(1)
            case "page-up":
                self._move(-_PAGE)
            case "page-down":
                self._move(_PAGE)
            case "home":
                self._move(-(10**9))
            case "end":
                self._move(10**9)
            case "space":
                self.frozen = not self.frozen
            case "f" | "/":
                self.typing = self.filters[self.pane]
            case "enter":
                row = self.row(self.pane)
                if row is not None:
                    self.page = Page("", [], row=(self.pane, row))
            case "escape":
                self.filters[self.pane] = ""
            case _:
                return self._act(key)
        return None

    def _go(self, step: int) -> None:
        panes = list(Pane)
        self.pane = panes[(panes.index(self.pane) + step) % len(panes)]

    def _move(self, step: int) -> None:
        rows = self.rows(self.pane)
        if not rows:
            return
        at = next((at for at, row in enumerate(rows) if row.key == self.chosen[self.pane]), 0)
        self.chosen[self.pane] = rows[min(max(at + step, 0), len(rows) - 1)].key
        if self.pane is Pane.SUPERVISORS:
            self.chosen[Pane.CHILDREN] = None

    def _act(self, key: str) -> Wish | None:
        match key:
            case "p" if self.pane is Pane.QUEUES:
                return self._pause_queue()
            case "d" | "+" | "-" | "p" | "r":
                return self._act_on_supervisor(key)
            case "c" | "s":
                return self._act_on_child(key)
            case _:
                self.say(f"{key} means nothing here; ? lists the keys")
                return None

    def _is_gone(self, pane: Pane) -> bool:
        """Whether what was chosen is: then nothing is done to what has taken its place, until the key comes again."""
        chosen, row = self.chosen[pane], self.row(pane)
        self.chosen[pane] = row.key if row else None
        if row is None or chosen in {None, row.key}:
            return False
        self.say(f"{chosen} is gone, and {row.key} is chosen now: nothing was done", Tone.NOTICE)
        return True

    def _pause_queue(self) -> Wish | None:
        row = self.row(Pane.QUEUES)
        if row is None:
            self.say("there is no queue to be paused")
            return None
        if self._is_gone(Pane.QUEUES):
            return None
        return Wish("unpause queue" if row.values["state"] == "paused" else "pause queue", row.key)

    def _act_on_supervisor(self, key: str) -> Wish | None:
        worker = self.worker
        if worker is None:
            self.say("no supervisor is running here")
            return None
        if self._is_gone(Pane.SUPERVISORS):
            return None
        told = self._model.told(worker)
        if told is None:
            self.say(f"{worker} has never said how it is: it is no supervisor, or it hangs", Tone.NOTICE)
            return None
        match key:
            case "d":
                self.question = Question(
                    f"Drain {worker}, which runs {number(told.get('busy')):g}? It ends, once its jobs have.",
                    Wish("drain", worker),
                )
            case "p":
                return Wish("resume" if told.get("paused") else "pause", worker)
            case "r":
                return Wish("reload", worker)
            case _:
                return self._scale(worker, told["processes"], 1 if key == "+" else -1)
        return None

    def _scale(self, worker: str, processes: Mapping[str, Any], step: int) -> Wish:
        """The same key again before it is known to have worked counts on."""
        fewest, most = int(number(processes.get("fewest"))), int(number(processes.get("most")))
        scaled = self._scaled.get(worker)
        wanted = max(1, (scaled.most if scaled else most) + step)
        self._scaled[worker] = _Scaled(wanted)
        return Wish("scale", worker, {"fewest": wanted if fewest == most else min(fewest, wanted), "most": wanted})

    def _act_on_child(self, key: str) -> Wish | None:
        worker, row = self.worker, self.row(Pane.CHILDREN)
        if worker is None or row is None:
            self.say("no child is chosen")
            return None
        if key == "s":
            return Wish("stacks", worker, {"child": row.values["child"]})
        if not row.values["jid"]:
            self.say(f"child {row.key} is idle: it has no job to be cancelled")
            return None
        jid = str(row.values["jid"])
        self.question = Question(f"Cancel {jid} ({row.values['klass']})? It is gone then.", Wish("cancel", jid))
        return None

    # what takes keys for itself

    def _answer(self, key: str) -> Wish | None:
        question, self.question = self.question, None
        if question is not None and key in ("y", "Y"):
            return question.wish
        self.say("nothing was done")
        return None

    def _type(self, key: str) -> None:
        text = self.typing or ""
        match key:
            case "enter":
                self.typing = None
            case "escape":
                self.typing, text = None, ""
            case "rubout":
                self.typing = text = text[:-1]
            case _:
                typed = " " if key == "space" else key
                if len(typed) == 1 and len(text) < _FILTER_CHARS:
                    self.typing = text = text + typed
        self.filters[self.pane] = text
        row = self.row(self.pane)
        if row is None or row.key != self.chosen[self.pane]:
            self.chosen[self.pane] = None  # it is not among those that are shown

    def _turn(self, key: str) -> None:
        page = self.page
        if page is None:
            return
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -_PAGE, "page-down": _PAGE, "space": _PAGE}
        if key in steps:
            page.first = min(max(page.first + steps[key], 0), max(0, len(page.lines) - 1))
        elif key in ("escape", "q", "enter", "s", "?"):
            self.page = None
