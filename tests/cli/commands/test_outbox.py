"""`leasehold outbox`: creates its tables, relays until a signal, and outlasts an outage."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
import redis

from supervisor.contrib.outbox import entry
from supervisor.engine.client.sync_client import Client
from tests import servers
from tests.environment import without_settings
from tests.lengths import SOON_S


@pytest.fixture
def path(tmp_path):
    (tmp_path / "app.db").touch()
    return tmp_path / "app.db"


@pytest.fixture
def database(shell, path):
    url = f"sqlite:///{path}"
    assert "leasehold_outbox" in shell.line("outbox", url, "--create")
    return url


def leave(path, *datas):
    with closing(sqlite3.connect(path)) as connection, connection:
        for data in datas:
            connection.execute("INSERT INTO leasehold_outbox (id, job) VALUES (:id, :job)", entry("q", "k", data))


def left(path):
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT refused FROM leasehold_outbox")]


@contextmanager
def relaying(url, namespace, database):
    environment = {**without_settings(), "LEASEHOLD_REDIS_URL": url, "LEASEHOLD_NAMESPACE": namespace}
    command = [sys.executable, "-m", "supervisor", "outbox", database, "--poll", "20ms"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert "relaying" in process.stderr.readline()
            yield process
        finally:
            process.kill()


def test_once_puts_what_is_there_and_ends(shell, jobs, path, database):
    leave(path, 1, 2)
    assert "relaying" in shell.noted("outbox", database, "--once")
    assert [job.data for job in jobs.queue("q").jobs("waiting")] == [1, 2]
    assert left(path) == []


def test_entry_that_is_set_aside_is_told_of(shell, path, database):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO leasehold_outbox (id, job) VALUES ('a', '{')")
    said = shell("outbox", database, "--once")
    assert said.code == 0 and "entry a was set aside" in said.err
    assert len(left(path)) == 1


def test_create_makes_a_file_that_is_missing(shell, tmp_path):
    path = tmp_path / "new.db"
    assert "leasehold_outbox" in shell.line("outbox", f"sqlite:///{path}", "--create")
    assert left(path) == []


def test_wrong_path_makes_no_database(shell, tmp_path):
    path = tmp_path / "wrong.db"
    assert "--create" in shell.refused(69, "outbox", f"sqlite:///{path}", "--once")
    assert not path.exists()


def test_create_in_a_directory_that_is_missing_does_not_advise_itself(shell, tmp_path):
    said = shell.refused(69, "outbox", f"sqlite:///{tmp_path}/none/app.db", "--create")
    assert "unable to open" in said and "--create" not in said


def test_missing_tables_are_69_with_the_remedy(shell, path):
    assert "--create" in shell.refused(69, "outbox", f"sqlite:///{path}", "--once")


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_relay_with_no_put_entry_left(server, namespace, jobs, path, database, ending):
    leave(path, *range(3))
    with relaying(server.url, namespace, database) as process:
        while jobs.queue("q").length() < 3:
            assert process.poll() is None
        process.send_signal(ending)
        assert (process.wait(SOON_S), process.stderr.read()) == (0, "")
    assert left(path) == []


@contextmanager
def redis_at(directory):
    arguments = ["--port", "0", "--unixsocket", directory / "s", "--save", "", "--dir", directory]
    with subprocess.Popen([servers.binary(), *arguments], stdout=subprocess.DEVNULL) as process:
        until_there(directory / "s")
        yield process
        process.kill()


def until_there(socket):
    while True:
        with suppress(redis.ConnectionError), servers.connected(socket) as connection:
            return connection.ping()


def test_outage_of_redis_is_told_once_and_ends_nothing(namespace, path, database, open_directory):
    url = f"unix://{open_directory}/s"
    with ExitStack() as held:
        with redis_at(open_directory):
            process = held.enter_context(relaying(url, namespace, database))
        leave(path, "meanwhile")
        assert "Trying again." in process.stderr.readline()
        with redis_at(open_directory), Client(url, namespace) as client:
            while left(path):
                assert process.poll() is None
            assert [job.data for job in client.queue("q").jobs("waiting")] == ["meanwhile"]
            process.terminate()
            assert (process.wait(SOON_S), process.stderr.read()) == (0, "")
