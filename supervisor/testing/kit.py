"""The server, the client and the handlers that all tests of one pytest process share. Used in that process."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from supervisor.child import typed_put
from supervisor.child.handler import DEFAULT_ROOT, module_of
from supervisor.engine.client.connection import Clock, moved_clock
from supervisor.engine.client.sync_client import Client
from supervisor.engine.embedded.private_server import PrivateServer
from supervisor.testing.in_process import InProcess

#: One for all tests, each of which finds it empty: a client that an application keeps goes on working in the next test.
NAMESPACE = "test"


class Kit:
    """`named`: the package of the handlers that the tests name; empty: none is named."""

    def __init__(self, server: PrivateServer, client: Client, named: str, workdir: str) -> None:
        self.root = named or os.environ.get("LEASEHOLD_HANDLERS") or DEFAULT_ROOT
        self.server = server
        self.client = client
        self.in_process = InProcess(module_of(self.root), workdir)

    @classmethod
    @contextmanager
    def opened(cls, handlers: str) -> Iterator[Self]:
        """Start the server, which blocks for about 100 ms, and stop it at the end. `handlers`: as the ini option."""
        with ExitStack() as stack:
            workdir = tempfile.mkdtemp(prefix="leasehold-job-")
            stack.callback(shutil.rmtree, workdir, ignore_errors=True)
            server = stack.enter_context(PrivateServer())
            client = stack.enter_context(Client(server.url, NAMESPACE))
            yield cls(server, client, handlers, workdir)

    @contextmanager
    def lent(self, clock: Clock, set_variable: Callable[[str, str], None]) -> Iterator[None]:
        """Lend the queue to one test, whose process knows no other meanwhile. Empties it afterwards.

        The default root is not written into a variable, so a handler without a klass has none in a test either.
        """
        set_variable("LEASEHOLD_REDIS_URL", self.server.url)
        if "LEASEHOLD_REDIS_PASSWORD_FILE" in os.environ:  # of the developer's own server
            set_variable("LEASEHOLD_REDIS_PASSWORD_FILE", "")
        set_variable("LEASEHOLD_NAMESPACE", NAMESPACE)
        if self.root != (os.environ.get("LEASEHOLD_HANDLERS") or DEFAULT_ROOT):
            set_variable("LEASEHOLD_HANDLERS", self.root)
        with moved_clock(clock), typed_put.default_client(self.client):
            try:
                yield
            finally:
                self.server.restore()
                self.server.empty()
