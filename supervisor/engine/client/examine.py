"""Reads the facts about a server for `leasehold doctor`. Runs in the command's process.

Owns its one connection, and the list of what our account must be allowed. Changes nothing, and judges nothing.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis as redis_py

from supervisor import clock, redis_url
from supervisor.engine.client.connection import unreachable
from supervisor.engine.client.pools import pool_of
from supervisor.engine.commands import settings
from supervisor.engine.model import scripts
from supervisor.engine.model.bounds import MOST_WORDS
from supervisor.engine.model.errors import StoreUnavailable, code_and_reason
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.shards import OtherShards
from supervisor.engine.transport.account import Credentials, account_of, without_arguments
from supervisor.engine.transport.dial import Unreachable
from supervisor.engine.transport.whereabouts import Place, Whereabouts

_TIMEOUT_S: Final = 5.0
_LOST = (redis_py.ConnectionError, redis_py.TimeoutError, OSError)

#: Every command that a script may call, whole: `acl_check_cmd` of an EVALSHA with too few arguments crashes the server
#: (Redis 7.0.15, Valkey 9.1.2). K is a key, and C a channel, of the namespace.
_IN_SCRIPTS: Final = tuple(
    line.strip()
    for line in """
    BITFIELD K INCRBY u32 0 1 | DEL K | EXISTS K | GET K | GETRANGE K 0 1 | HDEL K f | HEXISTS K f | HGET K f
    HGETALL K | HKEYS K | HLEN K | HVALS K | HSCAN K 0 | HMGET K f | HSET K f v | HSTRLEN K f | INCRBY K 1 | LINDEX K 0
    LLEN K | LPOS K v | LRANGE K 0 1 | LREM K 1 v | LTRIM K 0 1 | MGET K | MSET K v | PEXPIRE K 1 | PTTL K
    PUBLISH C v | PUBSUB NUMSUB C | RENAME K K | RPUSH K v | SET K v | SETRANGE K 0 v | STRLEN K | TIME | TYPE K
    UNLINK K | ZADD K 1 m | ZCARD K | ZCOUNT K 0 1 | ZMSCORE K m | ZRANGE K 0 1 | ZRANGEBYSCORE K 0 1 | ZRANK K m
    ZREM K m | ZREMRANGEBYRANK K 0 1 | ZREVRANGE K 0 1 | ZREVRANGEBYSCORE K 1 0 | ZSCORE K m | XADD K 1-1 f v | XLEN K
    XRANGE K - + | ZSCAN K 0
    """.replace("\n", "|").split("|")
    if line.strip()
)
_OF_A_WORKER: Final = (
    *("EVALSHA 0 1 K", "BLPOP K 1", "BLMOVE K K RIGHT RIGHT 1", "LLEN K", "UNLINK K", "WAIT 1 1"),
    *("MGET K", "ZRANGEBYSCORE K 0 1"),  # of large payloads
)
_OF_COMMANDS: Final = (
    *("SUBSCRIBE C", "XREAD STREAMS K 0"),  # of `events` and of streams
    "SCAN 0",  # of `check`
)
_ON_CHANNELS: Final = frozenset({"PUBLISH C v", "SUBSCRIBE C"})
#: Asks the server which commands this account may run. ARGV: for each the number of its words, and these.
_MAY: Final = """#!lua flags=no-writes
local answers, at = {}, 1
while ARGV[at] do
  local last = at + tonumber(ARGV[at])
  local known, allowed = pcall(redis.acl_check_cmd, unpack(ARGV, at + 1, last))
  answers[#answers + 1] = (not known or allowed) and 1 or 0
  at = last + 1
end
return answers
"""


@dataclass(frozen=True, slots=True)
class Refused:
    """Missing rights: commands that a worker needs, and commands that only other commands of ours need.

    `keys` and `channels`: all keys, or all channels, of the namespace are closed to the account.
    """

    of_a_worker: Sequence[str]
    of_commands: Sequence[str]
    keys: bool
    channels: bool


class Examiner:
    """A connection to the server of a URL, as a worker would have it.

    Each question is one round trip, and may raise StoreUnavailable.
    """

    def __init__(self, url: str, namespace: Namespace, credentials: Credentials | None = None) -> None:
        """Connect. `credentials` returns the account in place of the URL's. Raises StoreUnavailable."""
        self._namespace = namespace
        several = redis_url.nodes(url)
        self._sentinels = Whereabouts(several, namespace.prefix) if several and several.service else None
        #: The commands by which a worker finds the server among several.
        self._of_finding = () if several is None else ("ROLE", "CLUSTER SLOTS") if several.is_cluster else ("ROLE",)
        self._prefix = namespace.prefix
        self.keys = f"{namespace.prefix}*"
        #: Known after `greet`: in a Cluster another node may.
        self.holds_namespace = False
        self.shown = redis_url.redacted(url)
        try:
            self.account = (credentials() if credentials else account_of(url))[0] or "default"
            self._connection: Any = pool_of(redis_py, url, namespace.prefix, credentials, _TIMEOUT_S).make_connection()
            self._connection.connect()
            self._connection.send_command("PING")
            self._connection.read_response()
        except redis_py.exceptions.NoPermissionError:
            pass  # it has let us in; what we may do comes later
        except (redis_py.RedisError, OSError, ValueError) as error:  # ValueError: a host name that cannot be one
            raise unreachable(self.shown, error) from error

    def close(self) -> None:
        self._connection.disconnect()

    def _ask(self, *command: Any) -> Any:
        """Return the reply. An error reply is a value."""
        try:
            self._connection.send_command(*command)
            return self._connection.read_response()
        except redis_py.ResponseError as error:
            return error
        except _LOST as error:
            raise StoreUnavailable(
                f"Redis at {self.shown} was reached, and then did not answer: {error}; is it overloaded, loading its"
                " data, or something else than Redis?"
            ) from error

    def greet(self) -> str | None:
        """Do what a worker does first. Return the server's error; None if there was none."""
        for script in scripts.OF_A_WORKER:
            reply = self._ask("SCRIPT", "LOAD", script.text)
            if isinstance(reply, Exception):
                return str(reply)
        reply = self._ask(*settings.timing(("*",)).wire(*self._namespace.keys))
        if isinstance(reply, redis_py.ResponseError) and self._learn_of_shards(reply):
            reply = self._ask(*settings.timing(("*",)).wire(*self._namespace.keys))
        if isinstance(reply, redis_py.exceptions.AskError):
            return f"in this cluster the keys of the namespace are at {reply.host}:{reply.port}; name that node"
        self.holds_namespace = not isinstance(reply, Exception)
        return None if self.holds_namespace else str(reply)

    def _learn_of_shards(self, refusal: redis_py.ResponseError) -> bool:
        """Return whether a refusal tells how many shards there are. From then on the last one stands for the others."""
        code, why = code_and_reason(str(refusal))
        count = OtherShards(why).count if code == "SHARDED" else None
        if count is None:
            return False
        name = self._namespace.name
        self._namespace = Namespace(name, 0, count.number)
        if count.number > 1:
            self._prefix, self.keys = Namespace(name, count.number - 1, count.number).prefix, f"{{{name}#*}}:*"
        return True

    def info(self) -> dict[str, str] | None:
        """Return the server's INFO; None if our account may not ask."""
        reply = self._ask("INFO")
        if isinstance(reply, Exception):
            return None
        lines = reply.decode(errors="replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    def version(self) -> str:
        """Return the server's name and version. Raises StoreUnavailable also if it is too old."""
        reply = self._ask("INFO", "server")
        return (
            "a server that does not tell its version" if isinstance(reply, Exception) else scripts.check_server(reply)
        )

    def setting(self, name: str) -> str | None:
        """Return a setting of the server; None if there is none, or our account may not ask, as most may not."""
        reply = self._ask("CONFIG", "GET", name)
        return None if isinstance(reply, Exception) or len(reply) != 2 else str(reply[1].decode())

    def round_trips_s(self, count: int) -> list[float]:
        """Return the seconds of `count` round trips in a row, shortest first."""
        return sorted(self._round_trip_s() for _ in range(count))

    def _round_trip_s(self) -> float:
        began_at = clock.monotonic()
        self._ask("PING")
        return clock.monotonic() - began_at

    def refuses_long_commands(self) -> str | None:
        """Return the server's error to a command with more arguments than a batch has; None if there is none."""
        reply = self._ask("EXISTS", *[f"{self._namespace.prefix}x"] * (MOST_WORDS + 100))
        is_refused = isinstance(reply, Exception) and not isinstance(reply, redis_py.exceptions.NoPermissionError)
        return without_arguments(reply) if is_refused else None

    def electable(self) -> set[Place]:
        """Return the replicas that sentinels may elect. There are none if nobody tells."""
        try:
            return self._sentinels.electable() if self._sentinels is not None else set()
        except Unreachable:  # their account may forbid the question
            return set()

    def clock_ahead_s(self) -> float | None:
        """Return how far the server's clock is ahead of this machine's; None if our account may not ask."""
        before_unix = clock.unix()
        reply = self._ask("TIME")
        if isinstance(reply, Exception):
            return None
        seconds, microseconds = map(int, reply)
        return seconds + microseconds / 1e6 - (before_unix + clock.unix()) / 2

    def refused(self) -> Refused | None:
        """Return what our account may not do; None if it cannot run the script that asks."""
        of_a_worker = sorted({*_OF_A_WORKER, *self._of_finding, *_called_by(scripts.OF_A_WORKER)})
        of_commands = sorted({*_OF_COMMANDS, *_called_by(scripts.ALL)} - set(of_a_worker))
        calls = [*of_a_worker, *of_commands]
        words = [[f"{self._prefix}x" if word in ("K", "C") else word for word in call.split()] for call in calls]
        sha = self._ask("SCRIPT", "LOAD", _MAY)
        if isinstance(sha, Exception):
            return None
        answers = self._ask("EVALSHA", sha, 0, *(part for each in words for part in (len(each), *each)))
        if isinstance(answers, Exception):
            return None
        closed = {call for call, allowed in zip(calls, answers, strict=True) if not allowed}
        keyed = {call for call in calls if "K" in call.split()}
        keys, channels = keyed <= closed, closed >= _ON_CHANNELS
        closed -= (keyed if keys else set()) | (_ON_CHANNELS if channels else set())
        return Refused(_names(of_a_worker, closed), _names(of_commands, closed), keys, channels)


def _called_by(of: Sequence[scripts.Script]) -> Iterator[str]:
    """Return the commands that these scripts call."""
    said = {word for script in of for word in re.findall(r'"([A-Z]+)"', script.text)}
    return (call for call in _IN_SCRIPTS if call.split()[0] in said)


def _names(calls: Sequence[str], closed: set[str]) -> list[str]:
    return [call.split()[0] for call in calls if call in closed]
