"""A `leasehold web` on a server, and a browser that asks it."""

import http.client
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests import servers
from tests.bench.benchmark import Unmeasured
from tests.bench.pool import SOURCE
from tests.bench.server import NAMESPACE, Server

PATIENCE_S = 30.0


class WebServer:
    """One process, and a connection that is kept. With a `token` programs may lease."""

    def __init__(self, on: Server, directory: Path, url: str | None = None, token: str | None = None) -> None:
        self.port = servers.free_port()
        self._on = on
        environment = {key: value for key, value in os.environ.items() if not key.startswith("LEASEHOLD_")}
        environment |= {"PYTHONPATH": str(SOURCE), "LEASEHOLD_REDIS_URL": url or on.url}
        command = [sys.executable, "-m", "supervisor", "web", "--namespace", NAMESPACE]
        command += ["--http", f"127.0.0.1:{self.port}"]
        if token is not None:
            (directory / "tokens").write_text(f"worker:bench:{token}\n")
            command += ["--allow-actions", "--token-file", str(directory / "tokens")]
        self._process = subprocess.Popen(
            command, cwd="/", env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        self.pid = self._process.pid
        self._browser = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            self._await_answer()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._browser.close()
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def get(self, path: str) -> bytes:
        self._browser.request("GET", path)
        answer = self._browser.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise Unmeasured(f"{path} is answered by {answer.status}")
        return body

    def timed(self, path: str) -> tuple[float, float, int]:
        """Ask for a page: seconds until its last byte, seconds of the server's processor, bytes."""
        spent_s, began = self._on.spent_s(), time.perf_counter()
        body = self.get(path)
        return time.perf_counter() - began, self._on.spent_s() - spent_s, len(body)

    def _await_answer(self) -> None:
        deadline_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_at:
            with suppress(ConnectionRefusedError):
                self.get("/static/icon.svg")  # asks nothing of Redis
                return
            self._browser.close()
            if self._process.poll() is not None:
                raise Unmeasured("`leasehold web` has ended: install the extra `web`")
            time.sleep(0.01)  # no event tells that it listens
        raise Unmeasured("`leasehold web` does not answer")
