"""Writes the place where a list goes on into an address, and reads it there. Runs in the web server's process."""

from dataclasses import dataclass

from supervisor.engine.commands.choices import checked_cursor
from supervisor.web.pages.page import BadParameter


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place of the last job that was looked at, and how many were looked at before. None: at the beginning."""

    place: bytes | None = None
    looked_at: int = 0

    def text(self) -> str:
        """Return the cursor for an address: the number, a dash, and the place in hex."""
        return f"{self.looked_at}-{(self.place or b'').hex()}"


def read_cursor(text: str | None) -> Cursor:
    """Return the cursor of an address. Raises BadParameter."""
    if not text:
        return Cursor()
    number, _, place = text.partition("-")
    try:
        if not number.isascii() or not number.isdecimal() or len(number) > 16:
            raise ValueError(number)
        return Cursor(checked_cursor(bytes.fromhex(place)), int(number))
    except ValueError:
        raise BadParameter(f"cursor must be the `next` of a list, not {text!r:.100}") from None
