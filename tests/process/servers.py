"""Servers for outages: a Redis that can be killed and restarted, and a proxy that drops replies."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from tests.servers import connected


@contextlib.contextmanager
def stopped(process):
    """Stop a process of the test's own for the block."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


class OwnServer:
    """A server with an append-only file that can be killed and restarted."""

    def __init__(self, directory, binary):
        self.directory = directory
        self.binary = binary
        self.socket = directory / "s"
        self.url = f"unix://{self.socket}"
        self.redis = connected(self.socket)
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [self.binary, "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.directory),
             "--save", "", "--appendonly", "yes", "--appendfsync", "always"],
            stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        deadline_at = time.monotonic() + 30
        while time.monotonic() < deadline_at:
            try:
                if self.redis.ping():
                    return
            except (redis.ConnectionError, redis.BusyLoadingError):
                time.sleep(0.01)  # no event tells that a server has begun to listen
        pytest.fail("the server does not answer")

    def refuse_scripts(self):
        """Refuse scripts, as to an account without the right. Blocked commands go on waiting."""
        self.redis.execute_command("ACL", "SETUSER", "default", "-evalsha")

    def accept_scripts(self):
        self.redis.execute_command("ACL", "SETUSER", "default", "+evalsha")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.redis.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()


class Proxy:
    """`dropping.py` in front of a server."""

    def __init__(self, listen, upstream, every, reply=""):
        self.url = f"unix://{listen}"
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "dropping.py"), str(listen), str(upstream), str(every), reply],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"

    def counts(self):
        """Return its counts so far: exchanges, dropped, batches."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        words = self.process.stdout.readline().split()
        return {words[n]: int(words[n + 1]) for n in (0, 2, 4)}

    def wait_until_quiet(self):
        """Wait until nothing has been sent for half a second. Return the number of batches."""
        batches = -1
        while batches != (batches := self.counts()["batches"]):
            time.sleep(0.5)
        return batches

    def close(self):
        self.process.kill()
        self.process.communicate()
