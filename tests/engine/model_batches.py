"""Batches of the model: their members, and when they have ended. No Redis. Times are whole ms."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

#: The name of a batch's pause among the limits.
PAUSE = "\v"


def as_member(id: str) -> str:
    """Return the name of a batch among the members of the one around it."""
    return f"\n{id}"


@dataclass
class Batch:
    """A batch, its members that have not ended, and those that have failed, each with its time."""

    id: str
    opened_at: int
    parent: str | None = None
    calls: list[str] = field(default_factory=lambda: ["on_complete", "on_success", "on_failure"])  # not put yet
    is_closed: bool = False
    paused: bool = False
    state: str | None = None  # once it has ended
    total: int = 0
    members: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the number of members, and how many of them are pending, complete, failed and cancelled."""
        ended = [self.ended[state] for state in ("complete", "failed", "cancelled")]
        return self.total, self.total - sum(ended), *ended

    def final_state(self) -> str | None:
        if not self.is_closed or self.numbers[1] > 0:
            return None
        return next((state for state in ("failed", "cancelled") if self.ended[state]), "complete")


class Batches:
    """All batches of a namespace, and which of them must be looked at before the end of a call."""

    def __init__(self) -> None:
        self.known: dict[str, Batch] = {}
        self._touched: list[str] = []

    def open(self, id: str, parent: str | None, now: int) -> None:
        self.known[id] = Batch(id, now, parent)
        if parent:
            self.join(parent, as_member(id), now)

    def join(self, id: str, member: str, now: int) -> None:
        self.known[id].members[member] = now
        self.known[id].total += 1
        self._touched.append(id)

    def close(self, id: str, aborted: bool = False) -> None:
        self.known[id].is_closed = True
        if aborted:
            self.known[id].calls = []
        self._touched.append(id)

    def member_ended(self, id: str, member: str, state: str, now: int) -> None:
        batch = self.known[id]
        if batch.members.pop(member, None) is None:
            return
        if state == "failed":
            batch.failed[member] = now
        batch.ended[state] += 1
        self._touched.append(id)

    def member_back(self, id: str, member: str, state: str, now: int, put_at: int | None = None) -> None:
        """Count a member that begins anew. One that was put before the batch was opened was in another one."""
        batch = self.known[id]
        if (put_at is not None and put_at < batch.opened_at) or member in batch.members or not batch.ended[state]:
            return
        batch.members[member] = now
        if state == "failed":
            batch.failed.pop(member, None)
        batch.ended[state] -= 1
        self._touched.append(id)

    def evaluate(self, now: int) -> Iterator[tuple[str, str]]:
        """Find the batches that have ended, or go on. Yield batch and name of each callback that is put now."""
        while self._touched:
            batch = self.known[self._touched.pop()]
            before, batch.state = batch.state, batch.final_state()
            if batch.state == before:
                continue
            if batch.parent and before:
                self.member_back(batch.parent, as_member(batch.id), before, now)
            if batch.parent and batch.state:
                self.member_ended(batch.parent, as_member(batch.id), batch.state, now)
            named = {"complete": "on_success", "failed": "on_failure"}.get(batch.state or "")
            for name in ("on_complete", named) if batch.state else ():
                if name in batch.calls:
                    batch.calls.remove(name)
                    yield batch.id, name

    def pause_over(self, id: str | None) -> str | None:
        """Return the batch whose pause holds back the members of this one: itself, or one around it."""
        while id is not None:
            if self.known[id].paused:
                return id
            id = self.known[id].parent
        return None
