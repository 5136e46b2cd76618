"""The worker as Redis knows it: its name, the number of its latest exchange, its highest token. Runs in each worker.

Does no I/O.
"""

import os
import secrets
import socket


class Identity:
    def __init__(self) -> None:
        self.name = _new_name()
        self.number = 0
        self.highest_token = 0

    @property
    def next_number(self) -> int:
        """The number that the next exchange will have."""
        return self.number + 1

    def rename(self) -> None:
        """Take another name, under which no exchange has been made. Tokens grow across names."""
        self.name, self.number = _new_name(), 0


def _new_name() -> str:
    """Return host, pid and a suffix that no other start on this host has."""
    return f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(3)}"
