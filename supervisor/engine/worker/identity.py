"""The worker as Redis knows it: its name, the number of its latest exchange, its highest token. Runs in each worker.

Each shard of a namespace knows the worker by the same name, and counts its exchanges and tokens apart. Does no I/O.
"""

import os
import secrets
import socket


class WorkerName:
    """The name of a worker in all shards. A shard that has forgotten the worker takes the next one."""

    def __init__(self) -> None:
        self.current = _new_name()

    def following(self, name: str) -> str:
        """Return the name that comes after `name`: the current one, or a new one if `name` is current."""
        if name == self.current:
            self.current = _new_name()
        return self.current


class Identity:
    def __init__(self, shared: WorkerName | None = None) -> None:
        """`shared`: the name that all shards have; None: there is no other shard."""
        self._shared = shared or WorkerName()
        self.name = self._shared.current
        self.number = 0
        self.highest_token = 0

    @property
    def next_number(self) -> int:
        """The number that the next exchange will have."""
        return self.number + 1

    @property
    def is_outdated(self) -> bool:
        """True if another shard has forgotten the worker, which has a newer name there."""
        return self.name != self._shared.current

    def rename(self) -> None:
        """Take another name, under which no exchange has been made. Tokens grow across names."""
        self.name, self.number = self._shared.following(self.name), 0


def _new_name() -> str:
    """Return host, pid and a suffix that no other start on this host has."""
    return f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(3)}"
