"""Escapes what a terminal would obey. Pure. Used in the master and in the processes of commands.

These are control characters, those above ASCII too, and marks that turn the direction of writing.
"""

import json


def visible(text: str) -> str:
    """Return text for people, with `\\x9b` in place of such a character. Newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def visible_json(line: str) -> str:
    """Return one line of JSON of the same value, for programs. JSON needs no escape above U+001F; a terminal does."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
