"""An embedded server of this process alone, which can be emptied and cut off. Runs in tests of applications."""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

import redis

from supervisor.engine.embedded import embedded
from supervisor.engine.embedded.embedded import EmbeddedError

_END_S = 30.0


class PrivateServer:
    """A server in a directory of its own. It starts here, and ends with `close` or with this process.

    `url` leads to it, but for the time of a cut.
    """

    def __init__(self) -> None:
        """Block until the server answers, about 100 ms. Raises EmbeddedError."""
        self._directory = Path(tempfile.mkdtemp(prefix="leasehold-"))
        try:
            self._share = embedded.acquire(self._directory / "server")
        except BaseException as error:
            shutil.rmtree(self._directory)
            if isinstance(error, embedded.NoServerProgram):
                said = f"the tests need a server of their own, whatever LEASEHOLD_REDIS_URL says: {error.cure}"
                raise EmbeddedError(said) from None
            raise
        self._redis = redis.Redis.from_url(self._share.url, protocol=2)
        address = urlsplit(self._share.url)
        self._socket = unquote(address.path)
        self._way = self._directory / "s"
        self.url = f"unix://:{address.password}@{self._way}"
        self.restore()

    def empty(self) -> None:
        """Remove everything that lies in the server."""
        self._redis.flushdb()

    def cut(self) -> None:
        """End all connections that were made by `url`, and refuse new ones, until `restore`."""
        self._way.unlink(missing_ok=True)
        for kind in ("normal", "pubsub"):
            self._redis.client_kill_filter(_type=kind, skipme=True)

    def restore(self) -> None:
        """Accept connections again."""
        if not self._way.is_symlink():
            self._way.symlink_to(self._socket)

    def close(self) -> None:
        """Stop the server, and remove its directory. Blocks until it has ended."""
        self._redis.close()
        self._share.release()
        self._share.await_end(_END_S)
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
