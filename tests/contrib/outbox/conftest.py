"""Gives the tests of the outbox its tables in SQLite and in PostgreSQL, as an application uses them."""

import sqlite3
from contextlib import closing

import pytest

from supervisor.contrib.outbox import entry
from supervisor.contrib.outbox.databases import opened
from supervisor.engine.client.sync_client import Client
from tests.contrib.outbox import postgresql


class Application:
    """An application with an outbox in its database. `connect()`: a connection that commits when it is told to."""

    def __init__(self, url, mark, connect):
        self.url = url
        self.connect = connect
        self._mark = mark

    def insert(self, connection, *arguments, **options):
        """Insert an entry in the connection's transaction, and return its id."""
        row = entry(*arguments, **options)
        self.insert_text(connection, row["id"], row["job"])
        return row["id"]

    def insert_text(self, connection, id, job):
        statement = f"INSERT INTO leasehold_outbox (id, job) VALUES ({self._mark}, {self._mark})"
        connection.cursor().execute(statement, (id, job))

    def commit(self, *arguments, **options):
        """Insert an entry in a transaction of its own, and return its id."""
        with closing(self.connect()) as connection:
            id = self.insert(connection, *arguments, **options)
            connection.commit()
        return id

    def rows(self):
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT id, refused FROM leasehold_outbox ORDER BY position")
            return [tuple(row) for row in cursor.fetchall()]


@pytest.fixture(scope="session")
def postgresql_url():
    pytest.importorskip("psycopg", reason="psycopg is not installed here")
    folder = postgresql.programs()
    if folder is None:
        pytest.skip("this machine has no PostgreSQL (Debian: apt-get install postgresql)")
    with postgresql.running(folder) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def application(request, tmp_path):
    if request.param == "sqlite":
        path = tmp_path / "app.db"
        sqlite3.connect(path).close()
        made = Application(f"sqlite:///{path}", "?", lambda: sqlite3.connect(path))
    else:
        psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed here")

        url = request.getfixturevalue("postgresql_url")
        with psycopg.connect(url) as connection:
            connection.execute("DROP TABLE IF EXISTS leasehold_outbox, leasehold_outbox_name")
        made = Application(url, "%s", lambda: psycopg.connect(url))
    with closing(opened(made.url)) as database:
        database.create()
        database.create()  # what is there stays
    return made


@pytest.fixture
def client(server, namespace):
    with Client(server.url, namespace) as client:
        yield client
