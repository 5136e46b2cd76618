"""A real Cluster for tests: nodes on loopback ports, in a directory that goes with them."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from tests import servers
from tests.lengths import SOON_S

SLOTS = 16384
#: A node that is silent for this long is down, and its replica takes its place.
NODE_TIMEOUT_MS = 1500


@dataclass(eq=False)
class Node:
    """A node. `redis` is for looking at it alone."""

    port: int
    bus_port: int
    redis: "redis.Redis"
    command: "list[str | Path]"
    process: "subprocess.Popen[bytes]"

    def kill(self) -> None:
        """End it by SIGKILL, also while it is stopped. Idempotent."""
        self.process.kill()
        self.process.wait(10)

    def restart(self) -> None:
        """Start the node again after its end. The node remembers the others, and copies the owner of its slots."""
        self.process = _run(self.command)

    @property
    def id(self) -> str:
        return self.redis.execute_command("CLUSTER", "MYID").decode()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def says(self, what: bytes) -> bool:
        return what in self.redis.execute_command("CLUSTER", "INFO").splitlines()


@contextmanager
def nodes(directory: Path, count: int, node_timeout_ms: int = NODE_TIMEOUT_MS) -> Iterator[list[Node]]:
    """Nodes that answer, without slots, and do not know each other. A cluster has no other sockets than TCP."""
    program = servers.binary()
    assert program is not None
    with ExitStack() as stack:
        made = [_start(program, directory / f"node-{number}", node_timeout_ms, stack) for number in range(count)]
        for node in made:
            until(lambda node=node: node.redis.ping())
        yield made


def _start(program: str, directory: Path, node_timeout_ms: int, stack: ExitStack) -> Node:
    port, bus_port = servers.free_port(), servers.free_port()
    directory.mkdir()
    words = f"--port {port} --cluster-port {bus_port} --bind 127.0.0.1 --cluster-enabled yes".split()
    words += f"--cluster-node-timeout {node_timeout_ms} --repl-diskless-sync-delay 0".split()
    command: list[str | Path] = [program, *words, "--dir", directory, "--save", ""]
    looking = stack.enter_context(redis.Redis(port=port, protocol=2, socket_timeout=servers.PATIENCE_S))
    node = Node(port, bus_port, looking, command, _run(command))
    stack.callback(node.kill)
    return node


def _run(command: "list[str | Path]") -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def join(made: list[Node]) -> None:
    """Have the nodes share the slots, in equal parts, and know each other."""
    parts = [SLOTS * n // len(made) for n in range(len(made) + 1)]
    for node, first, last in zip(made, parts, parts[1:], strict=False):
        node.redis.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
    for node in made[1:]:
        node.redis.execute_command("CLUSTER", "MEET", "127.0.0.1", made[0].port, made[0].bus_port)
    for node in made:
        until(lambda node=node: node.says(b"cluster_slots_ok:%d" % SLOTS) and node.says(b"cluster_state:ok"))


def holder(made: list[Node], namespace: str) -> Node:
    """The node that holds a namespace, of nodes that have been joined."""
    return made[key_slot(f"{{{namespace}}}".encode()) * len(made) // SLOTS]


def port_of_owner(asked: Node, namespace: str) -> int:
    """Return the port of the node that has a namespace, by the word of the one that is asked."""
    slot = key_slot(f"{{{namespace}}}".encode())
    ranges = asked.redis.execute_command("CLUSTER", "SLOTS")
    return next(int(primary[1]) for first, last, primary, *_ in ranges if int(first) <= slot <= int(last))


def owner(made: list[Node], namespace: str) -> Node:
    """Return the node that has a namespace now."""
    port = port_of_owner(made[0], namespace)
    return next(node for node in made if node.port == port)


def replica_of(made: list[Node], primary: Node) -> Node:
    return next(node for node in made if node.redis.role()[0] == b"slave" and node.redis.role()[2] == primary.port)


def url_of(made: list[Node]) -> str:
    """Return the URL of the whole Cluster."""
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in made)


def add_replica(made: list[Node], replica: Node, of: Node) -> None:
    """Have a node without slots copy one of nodes that have been joined."""
    replica.redis.execute_command("CLUSTER", "MEET", "127.0.0.1", made[0].port, made[0].bus_port)
    until(lambda: of.id.encode() in replica.redis.execute_command("CLUSTER", "NODES"))
    replica.redis.execute_command("CLUSTER", "REPLICATE", of.id)
    until(lambda: replica.redis.info("replication")["master_link_status"] == "up")
    for node in made:
        until(
            lambda node=node: replica.id.encode() in b"".join(node.redis.execute_command("CLUSTER", "REPLICAS", of.id))
        )


def move_namespace(made: list[Node], namespace: str, source: Node, target: Node) -> None:
    """Move the slot of a namespace, and all of its keys in one command, as an operator does."""
    slot = key_slot(f"{{{namespace}}}".encode())
    target.redis.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
    source.redis.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
    while keys := source.redis.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000):
        source.redis.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for node in (target, source, *made):
        node.redis.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target.id)


def until(asked: Callable[[], object]) -> None:
    deadline_at = time.monotonic() + 2 * SOON_S
    while time.monotonic() < deadline_at:
        try:
            if asked():
                return
        except redis.ConnectionError:
            pass
        time.sleep(0.01)  # no event tells that a server listens, or that nodes have met
    pytest.fail("the nodes do not answer")
