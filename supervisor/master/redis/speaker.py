"""Base classes of the parts of the master that speak in exchanges with Redis. Runs in the master."""

from collections.abc import Sequence

from supervisor.engine.worker.exchange import Part


class Speaker:
    def connected(self, now_at: float) -> None:
        """The session has begun, or begun again."""

    def parts(self, now_at: float) -> Sequence[Part]:
        """Return what is due, to go with the exchange that begins now."""
        raise NotImplementedError


class TimedSpeaker(Speaker):
    def deadline_at(self) -> float:
        """Return when an exchange is due for it, if nothing happens before (monotonic s)."""
        raise NotImplementedError
