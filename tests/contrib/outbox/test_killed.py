"""A relay is killed at each call that it makes, or its connection is, and each entry is put exactly once."""

import os
import signal
import sys
import time
from contextlib import closing, contextmanager

import pytest

from supervisor.contrib.outbox.databases import opened
from supervisor.contrib.outbox.relay import NOTHING, Relay
from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.errors import OutcomeUnknown, StoreUnavailable
from tests.lengths import LONG, SOON_S

_RELAY = ("contrib/outbox/databases.py", "contrib/outbox/relay.py", "client/sync_store.py", "client/sync_calls.py")
_REDIS = ("client/sync_store.py", "redis/connection.py")
ENTRIES = 4
#: The short run leaves out seven of eight boundaries.
STRIDE = 1 if LONG else 12


@contextmanager
def at_boundary(number, modules, act):
    """Call `act` at one of the calls and returns of functions of these modules. Yield a list, which then has it."""
    reached = []
    left = number

    def count(frame, event, _):
        nonlocal left
        if event in {"call", "return"} and frame.f_code.co_filename.endswith(modules):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                reached.append(frame.f_code.co_qualname)
                act()

    sys.setprofile(count)
    try:
        yield reached
    finally:
        sys.setprofile(None)


def killed_at(boundary, application, server, namespace):
    """Relay in a fork that kills itself there. Return whether it came to its end before that."""
    pid = os.fork()
    if pid == 0:
        try:
            with Client(server.url, namespace) as client:
                relay = Relay(opened(application.url), client, batch=3)
                with at_boundary(boundary, _RELAY, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                    while relay.turn() != NOTHING:
                        pass
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in {0, -signal.SIGKILL}
    return status == 0


def leave(application):
    with closing(application.connect()) as connection:
        ids = [application.insert(connection, "q", "k", number) for number in range(ENTRIES)]
        connection.commit()
    return ids


def relay_all(application, relay):
    """Take turns until the table is empty, whatever happens to the connection."""
    deadline = time.monotonic() + SOON_S
    while application.rows():
        try:
            relay.turn()
        except (StoreUnavailable, OutcomeUnknown):
            continue
        finally:
            assert time.monotonic() < deadline


def run_all(client):
    """Run what waits, and forget it at once. Return the jids."""
    leases = client.queue("q").lease("w", 100)
    assert all(lease.complete() for lease in leases)
    return [lease.jid for lease in leases]


@pytest.mark.slow
def test_each_entry_is_put_once_wherever_the_relay_is_killed(application, server, namespace, client, measured):
    client.config.set("jobs-history", 0)  # Redis cannot know a jid again
    boundary = kills = 0
    came_to_its_end = False
    while not came_to_its_end:
        boundary += STRIDE
        ids = leave(application)
        came_to_its_end = killed_at(boundary, application, server, namespace)
        kills += not came_to_its_end
        done = run_all(client)
        with closing(opened(application.url)) as database:
            relay_all(application, Relay(database, client, batch=3))
        assert done + run_all(client) == ids, f"boundary {boundary}"
    assert kills > 100 / STRIDE
    measured(f"{kills} kills")


@pytest.mark.slow
def test_each_entry_is_put_once_wherever_the_connection_ends(application, server, namespace, client, measured):
    client.config.set("jobs-history", 0)
    boundary, kills, reached = 0, 0, ["the first"]
    with closing(opened(application.url)) as database, Client(server.url, namespace) as own:
        relay = Relay(database, own, batch=3)
        while reached:
            boundary += STRIDE
            ids = leave(application)
            with at_boundary(
                boundary, _REDIS, lambda: server.redis.client_kill_filter(_type="normal", skipme=True)
            ) as reached:
                relay_all(application, relay)
            kills += bool(reached)
            with Client(server.url, namespace) as after:
                assert run_all(after) == ids, reached
    assert kills > 100 / STRIDE
    measured(f"{kills} ends of a connection")
