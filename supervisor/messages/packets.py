"""Bounds packets and the texts in them. Runs in master, zygote and child."""

from typing import Final

#: A default socket buffer refuses larger packets. Larger payloads travel as a sealed memfd.
MAX_PACKET_BYTES: Final = 200_000
MAX_MESSAGE_CHARS: Final = 4 * 1024
MAX_TRACEBACK_CHARS: Final = 16 * 1024


def escaped(text: str) -> str:
    """Escape what UTF-8 cannot carry: exceptions may hold lone surrogates, as file names do."""
    return text.encode(errors="backslashreplace").decode()
