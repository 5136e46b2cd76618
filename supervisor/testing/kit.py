"""What all tests of one process of pytest share: the server, a client, and the handlers. Used in that process."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from supervisor.child import typed_put
from supervisor.engine.client.connection import Clock, moved_clock
from supervisor.engine.client.sync_client import Client
from supervisor.engine.embedded.private_server import PrivateServer
from supervisor.testing.in_process import InProcess

#: One for all tests, each of which finds it empty: a client that an application keeps goes on working in the next test.
NAMESPACE = "test"


class Kit:
    """`root`: the package of the handlers."""

    def __init__(self, server: PrivateServer, client: Client, root: str, in_process: InProcess) -> None:
        self.server = server
        self.client = client
        self.root = root
        self.in_process = in_process

    @classmethod
    @contextmanager
    def opened(cls, handlers: str) -> Iterator[Self]:
        """Start the server, which blocks for about 100 ms, and stop it at the end. `handlers`: as the ini option."""
        root = handlers or os.environ.get("LEASEHOLD_HANDLERS") or "handlers"
        with ExitStack() as stack:
            workdir = tempfile.mkdtemp(prefix="leasehold-job-")
            stack.callback(shutil.rmtree, workdir, ignore_errors=True)
            server = stack.enter_context(PrivateServer())
            client = stack.enter_context(Client(server.url, NAMESPACE))
            yield cls(server, client, root, InProcess(root, workdir))

    @contextmanager
    def lent(self, clock: Clock, set_variable: Callable[[str, str], None]) -> Iterator[None]:
        """Lend the queue to one test, whose process knows no other meanwhile. Empties it afterwards."""
        set_variable("LEASEHOLD_REDIS_URL", self.server.url)
        set_variable("LEASEHOLD_NAMESPACE", NAMESPACE)
        set_variable("LEASEHOLD_HANDLERS", self.root)
        with moved_clock(clock), typed_put.default_client(self.client):
            try:
                yield
            finally:
                self.server.restore()
                self.server.empty()
