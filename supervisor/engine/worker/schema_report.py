"""Stores the schemas of the data that a worker's handlers take. Runs in each worker. Does no I/O."""

from collections.abc import Mapping
from typing import Final

from supervisor.engine.commands import data_schemas
from supervisor.engine.worker.exchange import Part

#: Most text of the schemas that one call stores.
_AT_ONCE_CHARS: Final = 128 * 1024


class SchemaReport:
    """The schemas to be stored: one exchange asks which of them Redis lacks, and each of the next ones stores some."""

    def __init__(self) -> None:
        self._schemas: Mapping[str, str] = {}
        self._is_new = False
        self._lacking: list[str] = []

    @property
    def is_due(self) -> bool:
        """True if there is something to ask or to store."""
        return self._is_new or bool(self._lacking)

    def tell(self, schemas: Mapping[str, str]) -> None:
        """Store these, by shape, from the next exchange on. The caller tells them again after a lost connection."""
        self._schemas, self._is_new, self._lacking = schemas, bool(schemas), []

    def parts(self) -> list[Part]:
        """Return what is to be told with the exchange that begins."""
        if self._is_new:
            self._is_new = False
            return [Part(data_schemas.describe(self._schemas), self._on_lacking, {"OOM": _do_without})]
        return [Part(data_schemas.describe((), self._some()), None, {"OOM": _do_without})] if self._lacking else []

    def _on_lacking(self, lacking: list[str]) -> None:
        self._lacking = [shape for shape in lacking if shape in self._schemas]

    def _some(self) -> dict[str, str]:
        some: dict[str, str] = {}
        room = _AT_ONCE_CHARS
        while self._lacking and (room := room - len(self._schemas[self._lacking[-1]])) >= 0:
            shape = self._lacking.pop()
            some[shape] = self._schemas[shape]
        return some


def _do_without(_message: str) -> None:
    """The memory of Redis is full. Schemas only help those who edit data."""
