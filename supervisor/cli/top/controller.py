"""The selection, pages and dialogs of `leasehold top`, and the meaning of each key. Runs in the command's process.

Must not do I/O: it returns what is to be done as a request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from supervisor.cli.top.keys import HELP
from supervisor.cli.top.model import Model, Pane, Row, Tone, number
from supervisor.cli.top.troubles import troubles

#: Lines that a page key moves.
_PAGE: Final = 10
_FILTER_CHARS: Final = 60
#: A new process count that is not seen after so many polls was refused.
_POLLS: Final = 4


@dataclass(frozen=True, slots=True)
class Action:
    """An action: `what` to do with the supervisor, queue or job named `whom`."""

    what: str
    whom: str
    argument: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActionPrompt:
    """A request that waits for a yes."""

    text: str
    request: Action


@dataclass(slots=True)
class TextPage:
    """Text in place of the panes, or the details of one row. A row names itself: then there is no title."""

    title: str
    text: Sequence[str]
    first: int = 0
    row: tuple[Pane, Row] | None = None
    lines: Sequence[str] = field(init=False)  # the text, wrapped to the screen

    def __post_init__(self) -> None:
        self.lines = self.text


@dataclass(slots=True)
class _PendingScale:
    """The process count that a supervisor was asked for, and the polls since."""

    most: int
    polls: int = 0


class Controller:
    def __init__(self, model: Model) -> None:
        self._model = model
        self.pane = Pane.SUPERVISORS
        self.chosen: dict[Pane, str | None] = dict.fromkeys(Pane)
        self.filters: dict[Pane, str] = dict.fromkeys(Pane, "")
        self.confirmation: ActionPrompt | None = None
        self.typing: str | None = None  # the filter as far as it is typed
        self.page: TextPage | None = None
        self.said: tuple[str, Tone] = ("", Tone.PLAIN)
        self.frozen = False
        self.over = False
        self._pending_scales: dict[str, _PendingScale] = {}

    # what is chosen

    @property
    def panes(self) -> list[Pane]:
        """The panes that the screen may show."""
        has_batches = bool(self._model.rows(Pane.BATCHES, None)) or self.pane is Pane.BATCHES
        return [pane for pane in Pane if pane is not Pane.BATCHES or has_batches]

    @property
    def worker(self) -> str | None:
        """The chosen supervisor, or the first one if none is chosen or it is gone."""
        row = self.row(Pane.SUPERVISORS)
        return row.key if row else None

    def rows(self, pane: Pane) -> list[Row]:
        """Return the rows that the pane shows."""
        worker = self.worker if pane is Pane.CHILDREN else None
        return self._model.rows(pane, worker, self.filters[pane])

    def row(self, pane: Pane) -> Row | None:
        """Return the chosen row."""
        rows = self.rows(pane)
        return next((row for row in rows if row.key == self.chosen[pane]), rows[0] if rows else None)

    def on_snapshot(self) -> None:
        """Drop the process counts that a new snapshot confirms, or that were refused."""
        for worker, pending in list(self._pending_scales.items()):
            pending.polls += 1
            status = self._model.status(worker)
            if status is None or status["processes"].get("most") == pending.most or pending.polls >= _POLLS:
                del self._pending_scales[worker]

    def say(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        self.said = text, tone

    # keys

    def press(self, key: str) -> Action | None:
        """Handle a key. Return the request that it makes, if any."""
        if self.confirmation is not None:
            return self._answer(key)
        if self.typing is not None:
            self._type(key)
        elif self.page is not None:
            self._turn(key)
        else:
            return self._do(key)
        return None

    def _do(self, key: str) -> Action | None:
        match key:
            case "q":
                self.over = True
            case "?":
                self.page = TextPage("keys", [f"{keys.ljust(18)}{what}" for keys, what in HELP])
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
                    self.page = TextPage("", [], row=(self.pane, row))
            case "w":
                wrong = [each.words for each in troubles(self._model)]
                self.page = TextPage("what is wrong now", wrong or ["nothing"])
            case "escape":
                self.filters[self.pane] = ""
            case _:
                return self._request_for(key)
        return None

    def _go(self, step: int) -> None:
        panes = self.panes
        self.pane = panes[(panes.index(self.pane) + step) % len(panes)]

    def _move(self, step: int) -> None:
        rows = self.rows(self.pane)
        if not rows:
            return
        at = next((at for at, row in enumerate(rows) if row.key == self.chosen[self.pane]), 0)
        self.chosen[self.pane] = rows[min(max(at + step, 0), len(rows) - 1)].key
        if self.pane is Pane.SUPERVISORS:
            self.chosen[Pane.CHILDREN] = None

    def _request_for(self, key: str) -> Action | None:
        match key:
            case "p" if self.pane in (Pane.QUEUES, Pane.BATCHES):
                return self._pause_request(self.pane)
            case "d" | "+" | "-" | "p" | "r":
                return self._supervisor_request(key)
            case "c" | "s":
                return self._child_request(key)
            case "o":
                return self._job_to_open()
            case "g":
                return Action("open", "failed groups")
            case _:
                self.say(f"{key} means nothing here; ? lists the keys")
                return None

    def _is_gone(self, pane: Pane) -> bool:
        """Return True if the chosen row is gone: the key must be repeated for the row that has taken its place."""
        chosen, row = self.chosen[pane], self.row(pane)
        self.chosen[pane] = row.key if row else None
        if row is None or chosen in {None, row.key}:
            return False
        self.say(f"{chosen} is gone, and {row.key} is chosen now: nothing was done", Tone.NOTICE)
        return True

    def _pause_request(self, pane: Pane) -> Action | None:
        row, what, ends = self.row(pane), "queue", "unpause"
        if pane is Pane.BATCHES:
            what, ends = "batch", "resume"
        if row is None:
            self.say(f"there is no {what} to be paused")
            return None
        if self._is_gone(pane):
            return None
        return Action(f"{ends if row.values['state'] == 'paused' else 'pause'} {what}", row.key)

    def _supervisor_request(self, key: str) -> Action | None:
        worker = self.worker
        if worker is None:
            self.say("no supervisor is running here")
            return None
        if self._is_gone(Pane.SUPERVISORS):
            return None
        status = self._model.status(worker)
        if status is None:
            self.say(f"{worker} has never said how it is: it is no supervisor, or it hangs", Tone.NOTICE)
            return None
        match key:
            case "d":
                self.confirmation = ActionPrompt(
                    f"Drain {worker}, which runs {number(status.get('busy')):g}? It ends, once its jobs have.",
                    Action("drain", worker),
                )
            case "p":
                return Action("resume" if status.get("paused") else "pause", worker)
            case "r":
                return Action("reload", worker)
            case _:
                return self._scale(worker, status["processes"], 1 if key == "+" else -1)
        return None

    def _scale(self, worker: str, processes: Mapping[str, Any], step: int) -> Action:
        """Return a request for one process more or fewer. A repeated key counts on from the unconfirmed number."""
        fewest, most = int(number(processes.get("fewest"))), int(number(processes.get("most")))
        pending = self._pending_scales.get(worker)
        wanted = max(1, (pending.most if pending else most) + step)
        self._pending_scales[worker] = _PendingScale(wanted)
        return Action("scale", worker, {"fewest": wanted if fewest == most else min(fewest, wanted), "most": wanted})

    def _child_request(self, key: str) -> Action | None:
        worker, row = self.worker, self.row(Pane.CHILDREN)
        if worker is None or row is None:
            self.say("no child is chosen")
            return None
        if key == "s":
            return Action("stacks", worker, {"child": row.values["child"]})
        if not row.values["jid"]:
            self.say(f"child {row.key} is idle: it has no job to be cancelled")
            return None
        jid = str(row.values["jid"])
        self.confirmation = ActionPrompt(
            f"Cancel {jid} ({row.values['klass']})? It is gone then.", Action("cancel", jid)
        )
        return None

    def _job_to_open(self) -> Action | None:
        row = self.row(Pane.ENDS if self.pane is Pane.ENDS else Pane.CHILDREN)
        if row is None or not row.values["jid"]:
            self.say("choose a child that runs a job, or an end")
            return None
        return Action("open job", str(row.values["jid"]))

    # what takes keys for itself

    def _answer(self, key: str) -> Action | None:
        confirmation, self.confirmation = self.confirmation, None
        if confirmation is not None and key in ("y", "Y"):
            return confirmation.request
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
            self.chosen[self.pane] = None  # the filter hides it

    def _turn(self, key: str) -> None:
        page = self.page
        if page is None:
            return
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -_PAGE, "page-down": _PAGE, "space": _PAGE}
        if key in steps:
            page.first = min(max(page.first + steps[key], 0), max(0, len(page.lines) - 1))
        elif key in ("escape", "q", "enter", "s", "?"):
            self.page = None
