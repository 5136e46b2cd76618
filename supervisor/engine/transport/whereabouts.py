"""Finds the server that has a namespace, among those that sentinels watch or in a Cluster. Blocks while it looks.

Runs in a thread of the master, and in applications. Must not connect to the server that it finds.
"""

from binascii import crc_hqx
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import hiredis

from supervisor import clock
from supervisor.engine.transport.account import Credentials, NoAccount, account_of, account_of_sentinels
from supervisor.engine.transport.dial import BlockingConnection, Unreachable, dial
from supervisor.redis_url import Nodes, can_be_host, place_of

T = TypeVar("T")
Place = tuple[str, int]

#: Each step of asking a node takes at most this long.
_STEP_S: Final = 1.0
#: A look asks no further node after this long, so that a failover is followed within 5 s.
_LOOK_S: Final = 3.0
_SLOTS: Final = 16384
_DOWN: Final = frozenset({"s_down", "o_down"})


class Whereabouts:
    """Remembers the nodes of a Cluster. Any thread may look, and no look waits for another."""

    def __init__(self, nodes: Nodes, key: str, credentials: Credentials | None = None) -> None:
        """`key`: any of the namespace. `credentials` returns the account in place of the URL's."""
        self._nodes = nodes
        self._slot = _slot_of(key)
        self._account = credentials or partial(account_of, nodes.url)
        if nodes.service:
            self._account = partial(account_of_sentinels, nodes.url)
        self._known = nodes.places

    def find(self) -> Place:
        """Return host and port of the server that is to be used now. Raises Unreachable."""
        return self._told(self._owner if self._nodes.is_cluster else self._primary)

    def electable(self) -> set[Place]:
        """Return the replicas that sentinels may elect, also those that are down. Raises Unreachable."""
        return self._told(self._replicas)

    def _told(self, ask: Callable[[BlockingConnection, Place], T]) -> T:
        """Return what the first node tells that can. `ask(connection, place)` asks one."""
        try:
            account = self._account()
        except NoAccount as error:
            raise Unreachable(f"{error}") from error
        until, said = clock.boottime() + _LOOK_S, dict[str, list[str]]()
        for place in self._known:
            # The next look begins with another node: this one may hang, or be the only one that knows of no failover.
            self._known = (*(each for each in self._known if each != place), place)
            try:
                return self._asked(place, account, ask)
            except Unreachable as error:
                said.setdefault(str(error), []).append(place_of(*place))
            if clock.boottime() > until:
                break
        answers = "; ".join(f"{', '.join(places)}: {why}" for why, places in said.items())
        if self._nodes.is_cluster:
            raise Unreachable(f"no node of the Cluster tells who has the namespace ({answers})")
        raise Unreachable(f"no sentinel knows a primary of {self._nodes.service!r} that is up ({answers})")

    def server(self) -> str:
        """Return the URL of the server that is to be used now. Raises Unreachable."""
        return self._nodes.server(*self.find())

    def _asked(self, place: Place, account: tuple[str, str], ask: Callable[[BlockingConnection, Place], T]) -> T:
        connection = dial(self._nodes.node(*place), _STEP_S, lambda: account)
        try:
            return ask(connection, place)
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # whatever it is that answers there
            raise Unreachable("its answer makes no sense") from error
        finally:
            connection.close()

    def _primary(self, connection: BlockingConnection, _place: Place) -> Place:
        reply = _answer(connection.call("SENTINEL", "MASTER", self._nodes.service))
        state = dict(zip(reply[::2], reply[1::2], strict=True))
        flags = state[b"flags"].decode().split(",")
        if "master" not in flags or _DOWN & set(flags):
            raise Unreachable("it is down")
        return _checked(state[b"ip"].decode(), int(state[b"port"]))

    def _replicas(self, connection: BlockingConnection, _place: Place) -> set[Place]:
        states = [
            dict(zip(each[::2], each[1::2], strict=True))
            for each in _answer(connection.call("SENTINEL", "REPLICAS", self._nodes.service))
        ]
        return {
            _checked(state[b"ip"].decode(), int(state[b"port"])) for state in states if state[b"slave-priority"] != b"0"
        }

    def _owner(self, connection: BlockingConnection, asked: Place) -> Place:
        owner, known = None, list[Place]()
        for first, last, *nodes in _answer(connection.call("CLUSTER", "SLOTS")):
            places = [_checked(_host(node, asked[0]), int(node[1])) for node in nodes]
            known += places
            if first <= self._slot <= last:
                owner = places[0]
        self._known = tuple(dict.fromkeys([*known, *self._nodes.places]))
        if owner is None:
            raise Unreachable(f"no node serves slot {self._slot}, in which the namespace lies")
        return owner


def check_is_primary(shown: str, role: Any) -> None:
    """Raise Unreachable if a server says that it is a replica. `role`: its reply to ROLE, or its error."""
    if isinstance(role, list) and role[:1] != [b"master"]:
        raise Unreachable(f"{shown} is to be the primary, and is a replica as yet")


def _slot_of(key: str) -> int:
    """Return the slot of a key of ours, which its hash tag decides."""
    return crc_hqx(key[key.index("{") + 1 : key.index("}")].encode(), 0) % _SLOTS


def _answer(reply: Any) -> Any:
    if isinstance(reply, hiredis.ReplyError):
        raise Unreachable(f"{reply}")
    return reply


def _host(node: Any, asked: str) -> str:
    """Return the host that a node of a Cluster announces, by address or by name."""
    if not node[0]:  # it does not know, or is to be reached where the node is that was asked
        return asked
    if node[0] == b"?":  # it is to be called by its name, and has none
        details = dict(zip(node[3][::2], node[3][1::2], strict=True))
        return str(details[b"ip"].decode())
    return str(node[0].decode())


def _checked(host: str, port: int) -> Place:
    if not host or not can_be_host(host) or not 0 < port < 65536:
        raise ValueError  # it would become part of a URL
    return host, port
