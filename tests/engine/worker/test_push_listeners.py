"""Listeners for plain pushes leave a server that serves the namespace no more, and those that the kernel refuses."""

import errno
import os
import select
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from supervisor import clock
from supervisor.engine.transport.dial import dial
from supervisor.engine.worker import push_listeners
from supervisor.engine.worker.push_listeners import PushListeners
from supervisor.master.timers import Timers
from tests import servers
from tests.lengths import SOON_S
from tests.parts import refused, until


class Listening:
    """Listeners at one list, in a loop that the test turns. `path`: the socket of the server that is dialled."""

    def __init__(self, path):
        self.path = path
        self._callbacks = {}
        self._poll = select.epoll()
        self._timers = Timers()
        dialer = SimpleNamespace(dial=lambda count, timeout_s: [dial(f"unix://{self.path}", timeout_s)] * count)
        self.listeners = PushListeners(dialer, str, self, self._timers, 1)

    def watch(self, source, callback):
        self._callbacks[source.fileno()] = callback
        self._poll.register(source, select.EPOLLIN)

    def forget(self, source):
        del self._callbacks[source.fileno()]
        self._poll.unregister(source)

    def want_write(self, source, wanted): ...

    def turn_until(self, holds):
        def turned():
            self._timers.run_due(clock.monotonic())
            for fd, _ in self._poll.poll(0.01):
                self._callbacks[fd]()
            return holds()

        until(turned, SOON_S)

    def close(self):
        self.listeners.close()
        self._poll.close()


@pytest.fixture
def both() -> Iterator[list]:
    """The sockets of two servers, with a connection to each."""
    with ExitStack() as stack:
        paths = [stack.enter_context(servers.running(servers.binary() or "")) for _ in range(2)]
        yield [(path, stack.enter_context(servers.connected(path))) for path in paths]


@pytest.fixture
def listening(both) -> Iterator[Listening]:
    made = Listening(both[0][0])
    yield made
    made.close()


def waits(connection):
    return any("b" in each["flags"] for each in connection.client_list())


def test_listener_at_a_demoted_server_goes_to_the_new_one(listening, both):
    (_, old), (path, new) = both
    old.replicaof("127.0.0.1", 1)
    listening.listeners.listen(["in"])
    listening.turn_until(lambda: old.info("errorstats").get("errorstat_READONLY"))
    listening.path = path
    listening.turn_until(lambda: waits(new))
    new.lpush("in", "entry")
    listening.turn_until(listening.listeners.take_pushed)


def test_listener_without_a_free_descriptor_connects_later(listening, both, monkeypatch):
    monkeypatch.setattr(push_listeners, "_WAIT_S", 0.2)
    monkeypatch.setattr(os, "eventfd", refused(2, errno.EMFILE, os.eventfd))
    listening.listeners.listen(["in"])
    listening.turn_until(lambda: waits(both[0][1]))
