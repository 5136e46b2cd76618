"""A real primary with replicas, watched by three sentinels, on loopback ports, in a directory that goes with them."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import redis

from tests import servers
from tests.clusters import until

SERVICE = "mymaster"
#: A server that is silent for this long is down, and another one is elected.
DOWN_AFTER_MS = 1000


@dataclass
class Member:
    """A server of the group."""

    directory: Path
    port: int = field(default_factory=servers.free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def redis(self) -> "redis.Redis":
        return redis.Redis(port=self.port, protocol=2, socket_timeout=2.0)

    def start(self, *words: str) -> None:
        program = servers.binary()
        assert program is not None and self.process is None
        command = [program, *words, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.directory]
        self.process = subprocess.Popen([*command, "--logfile", self.directory / f"{self.port}.log"])

    def kill(self) -> None:
        """End it by SIGKILL, also while it is stopped. Idempotent."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def send(self, sent: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(sent)

    def role(self) -> str:
        """Return master or slave; "" if it does not answer."""
        with suppress(redis.RedisError), self.redis as connection:
            return str(connection.role()[0].decode())
        return ""


@dataclass
class Group:
    """Servers and sentinels. The sentinels say which server is the primary."""

    members: list[Member]
    sentinels: list[Member]

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"redis+sentinel://{places}/{SERVICE}/0"

    @property
    def redis(self) -> "redis.Redis":
        """A connection to the primary, for looking at what lies in it."""
        return self.primary().redis

    def primary(self) -> Member:
        """Return the server that most sentinels name."""
        named = []
        for each in self.sentinels:
            with suppress(redis.RedisError), each.redis as connection:
                named.append(int(connection.sentinel_get_master_addr_by_name(SERVICE)[1]))
        port = max(set(named), key=named.count)
        return next(each for each in self.members if each.port == port)

    def replica(self) -> Member:
        """Return the server that is not the primary, of two."""
        primary = self.primary()
        (replica,) = (member for member in self.members if member is not primary)
        return replica

    def fail_over(self) -> Member:
        """Have the sentinels elect another primary. Return the one that is demoted."""
        before = self.primary()
        until(self._begins_failover)
        self.await_election(before)
        until(lambda: before.role() == "slave")  # until then it takes writes that will be lost
        return before

    def _begins_failover(self) -> bool:
        with suppress(redis.ResponseError), self.sentinels[0].redis as connection:  # the one before may go on
            return connection.execute_command("SENTINEL", "FAILOVER", SERVICE) is not None
        return False

    def await_election(self, before: Member) -> Member:
        """Wait until another server than this one is the primary, and return it."""
        until(lambda: self.primary() is not before and self.primary().role() == "master")
        return self.primary()

    def join(self, member: Member, *words: str) -> None:
        """Start a server that was killed again, as a replica.

        Until it has all that the primary has, an election may take it and lose the rest.
        """
        member.start(*_WORDS, *words, "--replicaof", f"127.0.0.1 {self.primary().port}")
        until(lambda: member.role() == "slave")


_WORDS = ("--save", "", "--repl-diskless-sync-delay", "0", "--busy-reply-threshold", "60000")


@contextmanager
def group(directory: Path, replicas: int = 2, down_after_ms: int = DOWN_AFTER_MS) -> Iterator[Group]:
    with ExitStack() as stack:
        members = [Member(_made(directory / f"server-{n}")) for n in range(1 + replicas)]
        sentinels = [Member(_made(directory / f"sentinel-{n}")) for n in range(3)]
        for each in (*members, *sentinels):
            stack.callback(each.kill)
        members[0].start(*_WORDS)
        until(lambda: members[0].role() == "master")
        for replica in members[1:]:
            replica.start(*_WORDS, "--replicaof", f"127.0.0.1 {members[0].port}")
        for each in sentinels:
            path = each.directory / "sentinel.conf"
            path.write_text(
                f"sentinel monitor {SERVICE} 127.0.0.1 {members[0].port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}\n"
                f"sentinel failover-timeout {SERVICE} 4000\n"
            )
            each.start(str(path), "--sentinel")
        made = Group(members, sentinels)
        until(lambda: all(_knows_all(each, replicas) for each in sentinels))
        yield made


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _knows_all(sentinel: Member, replicas: int) -> bool:
    with suppress(redis.RedisError), sentinel.redis as connection:
        (state,) = connection.sentinel_masters().values()
        return state["num-slaves"] == replicas and state["num-other-sentinels"] == 2
    return False
