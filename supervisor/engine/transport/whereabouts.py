"""Finds the server that has a namespace, among those that sentinels watch or in a Cluster. Blocks while it looks.

Runs in a thread of the master, and in applications. redis-py asks the sentinels and the nodes; a process whose URL
names one server never imports it here.
"""

from functools import partial
from typing import Any, Final

from supervisor.engine.transport.account import Credentials, account_of
from supervisor.engine.transport.dial import Unreachable
from supervisor.redis_url import Nodes, for_redis_py

#: A sentinel or node that hangs costs a look no more, so that a failover is followed within 5 s.
_PATIENCE_S: Final = 1.0


class Whereabouts:
    """Remembers the nodes of a Cluster. Any thread may look, and no look waits for another."""

    def __init__(self, nodes: Nodes, key: str, credentials: Credentials | None = None) -> None:
        """`key`: any of the namespace. `credentials` returns the account in place of the URL's."""
        self._nodes = nodes
        self._key = key
        self._credentials = credentials or partial(account_of, nodes.url)
        self._known = nodes.places

    def find(self) -> tuple[str, int]:
        """Return host and port of the server that is to be used now. Raises Unreachable."""
        redis, nodes = _redis_py(), self._nodes
        # The text of an error of redis-py may show the arguments of connections, with the password.
        try:
            return self._owner() if nodes.is_cluster else self._primary()
        except redis.sentinel.MasterNotFoundError:
            why = f"none of the sentinels knows a primary of {nodes.service!r} that is up"
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
            why = f"a node does not let us in, or look: {type(error).__name__}"
        except (redis.RedisError, redis.exceptions.RedisClusterException, OSError, ValueError) as error:
            why = f"no node of the Cluster tells who has the namespace: {type(error).__name__}"
        asked = ", ".join(f"{host}:{port}" for host, port in nodes.places)
        raise Unreachable(f"{why}; asked were {asked}")

    def server(self) -> str:
        """Return the URL of the server that is to be used now. Raises Unreachable."""
        return self._nodes.server(*self.find())

    def _primary(self) -> tuple[str, int]:
        options = self._nodes.options
        account = options.get("sentinel_username", ""), options.get("sentinel_password", "")
        sentinels = _redis_py().sentinel.Sentinel(self._nodes.places, sentinel_kwargs=self._arguments(*account))
        try:
            host, port = sentinels.discover_master(self._nodes.service)
        finally:
            for each in sentinels.sentinels:
                each.close()
        return str(host), int(port)

    def _owner(self) -> tuple[str, int]:
        library = _redis_py().cluster
        arguments = self._arguments(*self._credentials())
        seeds = [library.ClusterNode(host, port) for host, port in self._known]
        cluster = library.RedisCluster(startup_nodes=seeds, require_full_coverage=False, **arguments)
        try:
            found = [(str(node.host), int(node.port)) for node in cluster.get_nodes()]
            self._known = tuple(dict.fromkeys([*found, *self._nodes.places]))
            owner = cluster.get_node_from_key(self._key)
        finally:
            cluster.close()
        if owner is None:
            raise ValueError(f"no node has the slot of {self._key!r}")
        return str(owner.host), int(owner.port)

    def _arguments(self, user: str, password: str) -> dict[str, Any]:
        """Return redis-py's arguments for connections to nodes. The URL's account is that of the servers."""
        redis = _redis_py()
        options = redis.connection.parse_url(for_redis_py(self._nodes.server("", 0)))
        kept = {name: value for name, value in options.items() if name.startswith("ssl_") or name == "client_name"}
        return {
            **kept, "ssl": self._nodes.is_tls, "username": user or None, "password": password or None,
            "socket_timeout": _PATIENCE_S, "socket_connect_timeout": _PATIENCE_S,
            "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        }  # fmt: skip


def _redis_py() -> Any:
    """Return redis-py, without its types: most of what is called here has none."""
    import redis.cluster
    import redis.sentinel

    return redis
