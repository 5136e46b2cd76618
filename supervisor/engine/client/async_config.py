"""The configuration of a namespace. Runs in applications and commands (never in zygote or child)."""

from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.commands import settings
from supervisor.engine.model import options
from supervisor.engine.model.validation import Duration


class AsyncConfig:
    """The configuration of an AsyncClient's namespace. Options of a queue are also written `<option>-<queue>`."""

    def __init__(self, calls: AsyncCalls) -> None:
        self._calls = calls

    async def get(self, option: str) -> options.Value:
        """Return an option's value: as set, else its default. Raises ValueError for an unknown option."""
        options.checked_option(option)
        return options.value_in(await self._calls.run(settings.read()), option)

    async def set(self, option: str, value: options.Value | Duration, *, by: str | None = None) -> None:
        """Set an option. `by` names who does, and is kept with a pause. A Duration is kept as seconds.

        Raises ValueError for an unknown option, or for a value that it cannot have.
        """
        known, queue = options.checked_option(option)
        await self._calls.act(settings.configure, known.name, queue, options.checked_value(known, value), by=by)

    async def unset(self, option: str) -> None:
        """Return an option to its default, or a queue's option to that of all queues."""
        known, queue = options.checked_option(option)
        await self._calls.act(settings.configure, known.name, queue, None)

    async def all(self) -> dict[str, options.Value]:
        """Return every option's value, then those that are set for queues."""
        return options.values_in(await self._calls.run(settings.read()))
