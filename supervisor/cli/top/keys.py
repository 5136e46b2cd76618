"""Decodes the keys that a terminal sends. Runs in the process of `leasehold top`. Pure: it reads no terminal."""

import codecs
from collections.abc import Iterator
from typing import Final

#: Byte sequences of special keys. A lone escape is a key too, if nothing follows it.
_SEQUENCES: Final = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[C": "right", "\x1bOC": "right",
    "\x1b[D": "left", "\x1bOD": "left", "\x1b[Z": "back-tab", "\x1b[5~": "page-up", "\x1b[6~": "page-down",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end",
}  # fmt: skip
_SINGLE: Final = {"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "rubout", "\x08": "rubout", " ": "space"}
#: Every escape sequence ends with one of these.
_LAST: Final = range(0x40, 0x7F)

#: Lines of the help page.
HELP: Final = (
    ("Tab, Shift-Tab", "choose a pane; batches are one while there are some"),
    ("Up, Down; k, j", "choose a line of it; PgUp, PgDn, Home and End go far"),
    ("Enter, w", "all of the line; and w: all that is wrong now"),
    ("d", "drain the chosen supervisor: it ends, once its jobs have"),
    ("+, -", "a process more, or fewer, at the chosen supervisor"),
    ("p", "pause the chosen queue, batch or supervisor; again: go on"),
    ("r", "the chosen supervisor loads its handlers anew"),
    ("c", "cancel the job of the chosen child"),
    ("s", "where the chosen child is in its code, as a stack"),
    ("o", "the job of the chosen child or end: why, and all of it"),
    ("g", "the groups of failed jobs, each with its last one"),
    ("f", "only the lines of the pane that contain a text"),
    ("space", "freeze what is shown; again: go on"),
    ("Escape", "back from here; and all lines of a pane again"),
    ("?", "this page"),
    ("q, Ctrl-C", "quit; on a page like this one q goes back"),
    ("", "d and c ask first. Children are those of the chosen"),
    ("", "supervisor. Rates: of the last 5 s; wait (with delays) and"),
    ("", "run: the mean; failed: today's; memory: grown since the"),
    ("", "fork; nobody: no supervisor serves that queue."),
)


class Keys:
    """Turns bytes into names of keys and characters. An incomplete sequence waits for its rest."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    @property
    def waiting(self) -> bool:
        """True if an escape sequence has begun."""
        return bool(self._rest)

    def feed(self, sent: bytes) -> list[str]:
        """Return the keys that these bytes complete."""
        self._rest += self._decoder.decode(sent)
        return list(self._take())

    def flush(self) -> list[str]:
        """Return what an incomplete sequence means if nothing follows it."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest else []

    def _take(self) -> Iterator[str]:
        while self._rest:
            length = _length(self._rest)
            if length == 0:
                return
            one, self._rest = self._rest[:length], self._rest[length:]
            if one[0] == "\x1b":
                name = _SEQUENCES.get(one, "escape" if one == "\x1b" else "")
            else:
                name = _SINGLE.get(one, one if one.isprintable() else "")
            if name:
                yield name


def _length(text: str) -> int:
    """Return the length of the first key's sequence, or 0 while it is incomplete."""
    if text[0] != "\x1b":
        return 1
    if len(text) == 1:
        return 0
    if text[1] == "\x1b":
        return 1
    if text[1] == "O":
        return 3 if len(text) >= 3 else 0
    if text[1] != "[":
        return 2  # a key with Alt, which has no meaning here
    return next((at + 1 for at in range(2, len(text)) if ord(text[at]) in _LAST), 0)
