"""The doors of an AsyncClient: lists of other programs whose entries become jobs. Runs in applications and commands.

Must not: take an entry by itself.
"""

from collections.abc import Mapping, Sequence

from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.commands import doors
from supervisor.engine.commands.doors import TakenEntries
from supervisor.engine.model.doors import Door


class AsyncDoors:
    """The doors of an AsyncClient's namespace. Supervisors that serve a door's queue take what lies
    behind it; a Worker inside of an application does not."""

    __slots__ = ("_calls",)

    def __init__(self, calls: AsyncCalls) -> None:
        self._calls = calls

    async def add(
        self,
        name: str,
        *,
        format: str,
        source: str,
        queue: str,
        klass: str | None = None,
        klasses: Mapping[str, str] | None = None,
    ) -> bool:
        """Add a door, or change the one of this name, and return whether anything has changed.

        `source` is the prefix or the list of the other program, as its `format` needs it. `klass` is that of all jobs.
        Where entries name a class, it is the job's klass, or what `klasses` has in its place. Raises LeaseholdError if
        the list is not on this server, is no list, or has a door already.
        """
        return await self._calls.act(doors.add, name, format, source, queue, klass, klasses)

    async def list(self) -> Sequence[Door]:
        """Return all doors, by name, and how many entries wait behind each."""
        return await self._calls.run(doors.read())

    async def remove(self, name: str) -> bool:
        """Remove a door. Jobs that came by it go on, and end as if it were there. Returns False if there was none."""
        return await self._calls.act(doors.remove, name)

    async def take(self, name: str, most: int = 100) -> TakenEntries:
        """Put up to `most` (1 to 1,000) entries behind a door as jobs now.

        The workers of its queue do so by themselves.
        """
        return await self._calls.follow(doors.find_and_take(name, most, now=self._calls.clock()))
