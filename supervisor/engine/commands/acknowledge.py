"""Makes the command that asks how many replicas have a write. Runs in every process that writes durably. No I/O."""

from typing import Any, NamedTuple


class Acknowledgement(NamedTuple):
    """A write counts once so many replicas have it. The server waits for them for so many seconds."""

    replicas: int
    within_s: float

    def commands(self, prefix: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The commands behind a call that may have found its write done by another: a write, and `command`.

        WAIT waits for what its own connection has written. The write makes it wait for all that came before it.
        """
        return ("SET", f"{prefix}waited", "1", "PX", 1000), self.command

    @property
    def command(self) -> tuple[Any, ...]:
        """The command behind the write, on its connection. It blocks that, and answers how many replicas have it."""
        return "WAIT", self.replicas, max(1, round(self.within_s * 1000))  # 0 would be for ever

    def within(self, most_s: float) -> "Acknowledgement":
        """Return it with a wait of at most `most_s`: a connection takes a server that is silent for long for lost."""
        return self._replace(within_s=min(self.within_s, most_s))

    def is_met(self, reply: object) -> bool:
        """`reply`: to the command, or its error."""
        return isinstance(reply, int) and reply >= self.replicas
