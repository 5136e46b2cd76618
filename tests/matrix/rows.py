"""The rows of the matrix: which tests run on which servers, reached in which way, with which redis-py."""

from dataclasses import dataclass

#: The version that a server must say, and how `tests/matrix/fetching.py` gets it.
SERVERS = ("valkey 9.1", "valkey 9.0", "valkey 8.1", "redis 8.2", "redis 7.4", "redis 7.0")
#: Built with TLS. The others cannot be reached in that way.
WITH_TLS = ("redis 7.4", "redis 7.0")
#: Versions of redis-py that pyproject.toml allows.
CLIENTS = ("installed", "oldest", "newest")


@dataclass(frozen=True)
class Row:
    server: str
    way: str = "alone"  # of `tests/reached.py`
    redis_py: str = "installed"

    def __str__(self) -> str:
        return f"{self.server}, {self.way}" + (f", {self.redis_py} redis-py" if self.redis_py != "installed" else "")


#: The rows that run by default. Each server, way and client has one. `--cross` runs all of them with each other.
ROWS = (
    *(Row(server) for server in SERVERS),
    Row("redis 7.0", "tls"),
    Row("redis 7.0", "account"),
    Row("valkey 9.1", "sentinel"),
    Row("valkey 9.1", "cluster"),
    Row("valkey 9.1", redis_py="oldest"),
    Row("valkey 9.1", redis_py="newest"),
)
CROSS = (
    *(
        Row(server, way)
        for server in SERVERS
        for way in ("alone", "tls", "account", "sentinel", "cluster")
        if way != "tls" or server in WITH_TLS
    ),
    *(Row(server, redis_py=client) for server in SERVERS for client in CLIENTS[1:]),
)

#: Paths of tests by the name of the column. The tests of `outages` start servers of their own, of the row's make.
COLUMNS = {
    "row": ["tests/test_reached.py", "tests/docs/test_access.py"],
    "scripts": ["tests/engine/lua", "tests/engine/commands", "tests/engine/worker"],
    "clients": ["tests/engine/client", "tests/engine/transport"],
    "processes": [
        *("tests/process/jobs/test_checkpoints.py", "tests/process/jobs/test_idle.py"),
        *("tests/process/jobs/test_plain_push.py", "tests/process/jobs/test_recurring.py"),
        *("tests/process/crash/test_crash.py", "tests/process/drain/test_drain.py"),
        *("tests/process/limits/test_limits.py", "tests/process/operate/test_pause.py"),
        "tests/process/operate/test_cancel.py",
    ],
    "outages": [
        *("tests/process/outage/test_failover.py", "tests/process/outage/test_accounts.py"),
        *("tests/process/outage/test_redis_loses.py", "tests/process/outage/test_full_redis.py"),
    ],
}
