"""A `leasehold web` on a server, and a browser that asks it."""

import http.client
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.benchmark import Unmeasured
from tests.bench.pool import SOURCE
from tests.bench.server import NAMESPACE, Server

PATIENCE_S = 30.0


class WebServer:
    """One process, and a connection that is kept. With a `token` programs may lease."""

    def __init__(self, on: Server, directory: Path, url: str | None = None, token: str | None = None) -> None:
        self._on = on
        environment = {key: value for key, value in os.environ.items() if not key.startswith("LEASEHOLD_")}
        environment |= {"PYTHONPATH": str(SOURCE), "LEASEHOLD_REDIS_URL": url or on.url}
        command = [sys.executable, "-m", "supervisor", "web", "--namespace", NAMESPACE]
        command += ["--http", "127.0.0.1:0"]
        if token is not None:
            (directory / "tokens").write_text(f"worker:bench:{token}\n")
            command += ["--allow-actions", "--token-file", str(directory / "tokens")]
        self._process = subprocess.Popen(
            command, cwd="/", env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
            text=True,
        )  # fmt: skip
        self.pid = self._process.pid
        assert self._process.stderr is not None
        said = self._process.stderr.readline()
        listening = re.search(r"listening at http://127\.0\.0\.1:(\d+)", said)
        if listening is None:
            self._process.communicate(timeout=PATIENCE_S)
            raise Unmeasured(f"`leasehold web` has ended: {said.strip()}")
        self.port = int(listening[1])
        self._browser = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            self.get("/static/icon.svg")  # asks nothing of Redis
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._browser.close()
        self._process.terminate()
        self._process.communicate(timeout=PATIENCE_S)

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
