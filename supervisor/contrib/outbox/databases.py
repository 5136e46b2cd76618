"""The tables of an outbox in SQLite or PostgreSQL, for a relay. Runs in the process of `leasehold outbox`.

Owns the connection, and the lock that lets one relay at a time have its turn. Must not hold a lock that a producer
waits for.
"""

import fcntl
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote

from supervisor.contrib.outbox.schema import POSTGRESQL, SQLITE
from supervisor.engine.model.new_jobs import new_jid

#: A batch has at most about so many characters, but for one entry that is longer.
BATCH_CHARACTERS: Final = 16 * 2**20
#: How long a statement waits for another writer, and a connection for its server.
_PATIENCE_S: Final = 5

_NEXT: Final = f"""\
SELECT id, job FROM (
    SELECT position, id, job, SUM(LENGTH(job)) OVER (ORDER BY position) - LENGTH(job) AS ahead FROM (
        SELECT position, id, job FROM leasehold_outbox WHERE refused IS NULL ORDER BY position LIMIT {{most}}
    ) AS head
) AS counted WHERE ahead < {BATCH_CHARACTERS} ORDER BY position"""


class DatabaseUnavailable(Exception):
    """The database is unreachable or refused a statement, as one sentence."""


class Database(Protocol):
    """An outbox. Each call is a turn's, but for `create` and `close`. Raises DatabaseUnavailable."""

    def create(self) -> None:
        """Create the tables that are missing."""

    def turn(self) -> AbstractContextManager[bool]:
        """Lock the outbox, and commit at the end. False: another relay has its turn."""

    def name(self) -> str:
        """Return the outbox's own name, which no other has."""

    def next(self, most: int) -> list[tuple[str, str]]:
        """Return id and job of the first entries that were not set aside."""

    def forget(self, ids: Sequence[str]) -> int:
        """Delete these entries. Return how many there were."""

    def set_aside(self, id: str, reason: str) -> None:
        """Keep an entry that cannot be put, with the reason."""

    def close(self) -> None:
        """Close the connection, if there is one. A later turn connects again."""


def opened(url: str) -> Database:
    """Return the outbox of `sqlite:///PATH` or `postgresql://…`. Connects to nothing yet. Raises ValueError."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return SqliteOutbox(Path(unquote(rest[1:])))
    if scheme in {"postgresql", "postgres"}:
        return PostgresOutbox(url)
    raise ValueError("the database must be sqlite:///PATH (with four slashes for /PATH) or postgresql://…")


class _Statements:
    """The part that both databases do alike. `mark`: how a statement names a parameter."""

    mark: str

    def _execute(self, statement: str, *values: object) -> Any:
        raise NotImplementedError

    def name(self) -> str:
        """Return the outbox's own name. The first turn chooses it."""
        row = self._execute("SELECT name FROM leasehold_outbox_name").fetchone()
        if row is None:
            self._execute(f"INSERT INTO leasehold_outbox_name (name) VALUES ({self.mark})", new_jid())
            return self.name()
        return str(row[0])

    def next(self, most: int) -> list[tuple[str, str]]:
        """Return id and job of the first entries that were not set aside."""
        return [(str(id), str(job)) for id, job in self._execute(_NEXT.format(most=most)).fetchall()]

    def forget(self, ids: Sequence[str]) -> int:
        """Delete these entries. Return how many there were."""
        marks = ", ".join([self.mark] * len(ids))
        return int(self._execute(f"DELETE FROM leasehold_outbox WHERE id IN ({marks})", *ids).rowcount) if ids else 0

    def set_aside(self, id: str, reason: str) -> None:
        """Keep an entry that cannot be put, with the reason."""
        self._execute(f"UPDATE leasehold_outbox SET refused = {self.mark} WHERE id = {self.mark}", reason, id)


class SqliteOutbox(_Statements):
    """An outbox in a file, which only `create` makes.

    A file beside it is the lock: one in the database would hold up its writers.
    """

    mark = "?"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def create(self) -> None:
        """Create the tables that are missing."""
        with _as_unavailable(sqlite3.Error):
            self._connect("rwc")
            for statement in SQLITE:
                self._execute(statement)

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Lock the outbox. False: another relay has its turn. Each statement is committed at once."""
        with _as_unavailable(sqlite3.Error, OSError), open(f"{self._path}-outbox", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _execute(self, statement: str, *values: object) -> Any:
        return self._connect("rw").execute(statement, values)  # a wrong path makes no file

    def _connect(self, mode: str) -> sqlite3.Connection:
        if self._connection is None:
            address = f"file:{quote(str(self._path))}?mode={mode}"
            self._connection = sqlite3.connect(address, timeout=_PATIENCE_S, isolation_level=None, uri=True)
        return self._connection

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresOutbox(_Statements):
    """An outbox in PostgreSQL. A lock of the transaction, on a table that no producer uses, works through poolers."""

    mark = "%s"

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as missing:
            raise ValueError("PostgreSQL needs the package psycopg: pip install 'leasehold[postgresql]'") from missing
        self._psycopg: Any = psycopg
        self._url = url
        self._connection: Any = None

    def create(self) -> None:
        """Create the tables that are missing."""
        with self._transaction():
            for statement in POSTGRESQL:
                self._execute(statement)

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Begin a transaction with the lock. False: another relay has its turn."""
        with self._transaction():
            try:
                with self._connection.transaction():
                    self._execute("LOCK TABLE leasehold_outbox_name IN EXCLUSIVE MODE NOWAIT")
            except self._psycopg.errors.LockNotAvailable:
                yield False
                return
            yield True

    @contextmanager
    def _transaction(self) -> Generator[None]:
        with _as_unavailable(self._psycopg.Error):
            if self._connection is None or self._connection.closed:
                self._connection = self._psycopg.connect(self._url, autocommit=True, connect_timeout=_PATIENCE_S)
            with self._connection.transaction():
                yield

    def _execute(self, statement: str, *values: object) -> Any:
        return self._connection.execute(statement, values or None)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextmanager
def _as_unavailable(*kinds: type[Exception]) -> Generator[None]:
    try:
        yield
    except kinds as error:
        text = " ".join(str(error).split())
        raise DatabaseUnavailable(f"the outbox's database: {text or type(error).__name__}") from error
