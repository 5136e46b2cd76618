"""A real primary with replicas, watched by three sentinels, on loopback ports, in a directory that goes with them."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import redis

from tests import passing_on, servers
from tests.clusters import until
from tests.engine import played_nodes

SERVICE = "mymaster"
#: A server that is silent for this long is down, and another one is elected.
DOWN_AFTER_MS = 1000


@dataclass
class Member:
    """A server of the group. If it is wired, others reach it only through a process that can be stopped."""

    directory: Path
    is_wired: bool = False
    port: int = field(default_factory=servers.free_port)
    process: "subprocess.Popen[bytes] | None" = None
    wire: "subprocess.Popen[bytes] | None" = None

    @property
    def redis(self) -> "redis.Redis":
        return redis.Redis(port=self.port, protocol=2, socket_timeout=2.0)

    def start(self, *words: str) -> None:
        program = servers.binary()
        assert program is not None and self.process is None
        listen = servers.free_port() if self.is_wired else self.port
        command = [program, *words, "--port", str(listen), "--bind", "127.0.0.1", "--dir", self.directory]
        self.process = subprocess.Popen([*command, "--logfile", self.directory / f"{self.port}.log"])
        if self.is_wired:
            self._lay_wire(listen)

    def _lay_wire(self, port: int) -> None:
        command = [sys.executable, passing_on.__file__, str(self.port), str(port)]
        self.wire = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.wire.stdout is not None and self.wire.stdout.readline() == b"ready\n"

    def cut_off(self) -> None:
        """Let nothing come through to it, until `reconnect`."""
        assert self.wire is not None
        self.wire.send_signal(signal.SIGSTOP)

    def reconnect(self) -> None:
        assert self.wire is not None
        self.wire.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it by SIGKILL, also while it is stopped. Idempotent."""
        for process in (self.process, self.wire):
            if process is not None:
                process.kill()
                process.communicate(timeout=10)
        self.process = self.wire = None

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
        _start(member, *words, "--replicaof", f"127.0.0.1 {self.primary().port}")
        until(lambda: member.role() == "slave")

    def demote(self, member: Member) -> None:
        """Have a server that was silent copy the one that was elected, as sentinels do within 25 s."""
        with member.redis as connection:
            until(lambda: connection.replicaof("127.0.0.1", self.primary().port))

    def await_priority(self, member: Member, priority: int) -> None:
        """Wait until each sentinel knows the priority of a replica. They ask for it every 10 s."""

        def is_known(sentinel: Member) -> bool:
            with sentinel.redis as connection:
                known = connection.sentinel_slaves(SERVICE)
            return any(each["port"] == member.port and each["slave-priority"] == priority for each in known)

        until(lambda: all(map(is_known, self.sentinels)))

    def await_replicas(self) -> None:
        """Wait until all servers but the primary copy it, and each sentinel would elect any of them."""
        count = len(self.members) - 1
        until(lambda: _copied_by(self.primary()) == count)
        until(lambda: all(_knows_all(each, count) for each in self.sentinels))


_WORDS = ("--save", "", "--repl-diskless-sync-delay", "0", "--busy-reply-threshold", "60000")


@contextmanager
def group(
    directory: Path, replicas: int = 2, *, down_after_ms: int = DOWN_AFTER_MS, is_wired: bool = False
) -> Iterator[Group]:
    """`is_wired`: each server can be cut off from all others."""
    with ExitStack() as stack:
        members = [Member(_made(directory / f"server-{n}"), is_wired) for n in range(1 + replicas)]
        sentinels = [Member(_made(directory / f"sentinel-{n}")) for n in range(3)]
        for each in (*members, *sentinels):
            stack.callback(each.kill)
        _start(members[0])
        until(lambda: members[0].role() == "master")
        for replica in members[1:]:
            _start(replica, "--replicaof", f"127.0.0.1 {members[0].port}")
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


class PlayedSentinel:
    """Tells all that ask which server is the primary. Real ones would make the servers agree."""

    def __init__(self, primary: Member) -> None:
        self.primary = primary
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis+sentinel://127.0.0.1:{self._listener.getsockname()[1]}/{SERVICE}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                threading.Thread(target=self._answer, args=(self._listener.accept()[0],), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while said := connection.recv(4096):
                known = played_nodes.primary("127.0.0.1", self.primary.port)
                connection.sendall(b"+PONG\r\n" if b"PING" in said else known)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def deserted(directory: Path, *words: str) -> Iterator[tuple[PlayedSentinel, Member, Member]]:
    """A primary whose only replica can be made another primary, of which the first hears nothing. `words`: of both."""
    with ExitStack() as stack:
        old, new = (Member(_made(directory / name)) for name in ("old", "new"))
        for each in (old, new):
            stack.callback(each.kill)
        _start(old, *words)
        _start(new, *words, "--replicaof", f"127.0.0.1 {old.port}")
        sentinel = PlayedSentinel(old)
        stack.callback(sentinel.close)
        until(lambda: _copied_by(old) == 1)
        yield sentinel, old, new


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _start(member: Member, *words: str) -> None:
    member.start(*_WORDS, "--replica-announce-port", str(member.port), *words)


def _copied_by(primary: Member) -> int:
    """Return how many replicas have all that the primary has written until now."""
    with suppress(redis.RedisError), primary.redis as connection:
        connection.publish("test", "")  # WAIT counts what was written by its own connection
        return int(connection.wait(9, 100))
    return 0


def _knows_all(sentinel: Member, replicas: int) -> bool:
    with suppress(redis.RedisError), sentinel.redis as connection:
        (state,) = connection.sentinel_masters().values()
        known = connection.sentinel_slaves(SERVICE)
        is_up = all(not each["is_sdown"] and each["master-link-status"] == "ok" for each in known)
        return is_up and state["num-slaves"] == replicas and state["num-other-sentinels"] == 2
    return False
