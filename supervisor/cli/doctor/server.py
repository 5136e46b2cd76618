"""Checks Redis and the namespace. Runs in the command's process.

Reads only: it judges the answers of the engine's examiner and client.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from supervisor import clock
from supervisor.cli.doctor.findings import Finding, ok, problem, warning
from supervisor.cli.lib.served import ask_servers
from supervisor.cli.lib.shown import by_words
from supervisor.cli.lib.terminal import counted
from supervisor.config import RunConfig
from supervisor.engine.client.examine import Examiner
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import settings, upgrade
from supervisor.engine.commands.queue_counts import Counts, Depths
from supervisor.engine.commands.workers import WorkerInfo
from supervisor.engine.embedded.embedded import EmbeddedError, acquire
from supervisor.engine.model.errors import LeaseholdError, StoreUnavailable, code_and_reason
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.options import Value
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.transport.credentials import load
from supervisor.engine.worker.push_listeners import MOST_LISTENERS
from supervisor.exit_codes import Exit
from supervisor.units import megabytes

_PINGS: Final = 20
_SLOW_S: Final = 0.020
_SKEW_S: Final = 1.0
_NEARLY_FULL: Final = 0.8
#: Longest silence of a connection to the server (deploy/docs/redis.md).
_SILENT_S: Final = 35
#: A supervisor opens two connections, to exchange and to wait, and MOST_LISTENERS more where other programs push.
_CONNECTIONS: Final = 2
#: A supervisor answers within one turn of its loop.
_PATIENCE_S: Final = 1.0
#: Most queues that one line names.
_NAMED: Final = 8
_SHORT_LEASE_S: Final = 5.0
_LONG_LEASE_S: Final = 600.0
_ACCOUNT: Final = "deploy/docs/redis.md has an account with all that it needs"

Info = Mapping[str, str]


def examine(config: RunConfig) -> Iterator[Finding]:
    """Check the server, then the namespace. Without a URL start this directory's embedded server."""
    with contextlib.ExitStack() as held:
        url = config.redis_url
        if url in {None, "embedded:"}:
            try:
                embedded = held.enter_context(acquire())
            except EmbeddedError as error:
                yield problem("redis", str(error), Exit.UNREACHABLE)
                return
            url = embedded.url
            yield ok("redis", f"no other is asked for: the embedded server in {embedded.directory} runs")
        assert url is not None
        credentials = load(config.redis_credentials)
        try:
            examiner = Examiner(url, Namespace(config.namespace), credentials)
            held.callback(examiner.close)
            refused = examiner.greet()
            yield _greeting(examiner, refused)
            for look in _LOOKS:
                yield from look(examiner)
            info = examiner.info()
            if info is None:
                yield _no_info(examiner)
            else:
                for look_into in _LOOKS_INTO_INFO:
                    yield from look_into(examiner, info)
            if refused is not None and _is_of_layout(refused):
                yield problem("namespace", code_and_reason(refused)[1], Exit.UNREACHABLE)
            if refused is None:
                with Client(url, config.namespace, credentials=credentials, poll=config.redis_poll_s) as client:
                    if info is not None:
                        yield from _replicas(client, config, info)
                    yield from _namespace(client, config)
        except StoreUnavailable as error:
            yield problem("redis", str(error), Exit.UNREACHABLE)
        except LeaseholdError as error:
            yield problem("namespace", str(error))


# the server


def _is_of_layout(refused: str) -> bool:
    """Return whether a script has refused the namespace for its layout."""
    return code_and_reason(refused)[0] == "LAYOUT"


def _greeting(examiner: Examiner, refused: str | None) -> Finding:
    server = f"{examiner.version()} at {examiner.shown}"
    if refused is None or _is_of_layout(refused):
        return ok("redis", server)
    return problem("redis", f"{server} refuses what every worker does first: {refused}", Exit.UNREACHABLE)


def _no_info(examiner: Examiner) -> Finding:
    return warning(
        "redis",
        f"account {examiner.account} may not ask INFO: whether the server drops keys, is full, or keeps its data over a"
        " restart cannot be seen; allow it +info",
    )


def _permissions(examiner: Examiner) -> Iterator[Finding]:
    """Report the permissions that the account lacks."""
    account, refused = f"account {examiner.account}", examiner.refused()
    if refused is None:
        yield warning("permissions", f"{account} cannot run the script that would tell what it may do; {_ACCOUNT}")
        return
    if refused.keys:
        yield problem("permissions", f"{account} may not use the keys {examiner.keys}: allow it ~{examiner.keys}")
    if refused.channels:
        yield problem(
            "permissions",
            f"{account} may not publish on {examiner.keys}: programs that follow events hear nothing of its calls;"
            f" allow it &{examiner.keys}",
        )
    if refused.of_a_worker:
        names = ", ".join(refused.of_a_worker)
        yield problem("permissions", f"{account} may not {names}, which a supervisor needs: {_ACCOUNT}")
    if refused.of_commands:
        names = ", ".join(refused.of_commands)
        yield warning("permissions", f"{account} may not {names}, which some commands of leasehold need: {_ACCOUNT}")
    if not (refused.keys or refused.channels or refused.of_a_worker or refused.of_commands):
        yield ok("permissions", f"{account} may do all that Leasehold does")


def _latency(examiner: Examiner) -> Iterator[Finding]:
    median_s = examiner.round_trips_s(_PINGS)[_PINGS // 2]
    words = f"a round trip takes {median_s * 1000:.2f} ms (median of {_PINGS})"
    if median_s > _SLOW_S:
        yield warning("latency", f"{words}: an idle job waits for several of them; run nearer to Redis")
    else:
        yield ok("latency", words)


def _clock(examiner: Examiner) -> Iterator[Finding]:
    ahead_s = examiner.clock_ahead_s()
    if ahead_s is None:
        return  # the account may not call TIME, which the permissions report
    if abs(ahead_s) < _SKEW_S:
        yield ok("clock", f"the server's clock and ours are {abs(ahead_s) * 1000:.0f} ms apart")
        return
    yield warning(
        "clock",
        f"the server's clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's: leases"
        " and schedules go by the server's and are right, but times in logs and times given with --at are not the"
        " same; synchronise both (NTP)",
    )


_LOOKS: Final = (_permissions, _latency, _clock)


def _role(examiner: Examiner, info: Info) -> Iterator[Finding]:
    if info.get("role", "master") != "master":
        yield problem("redis", "the server is a replica, which takes no writes: name its primary")
    elif info.get("cluster_enabled") == "1" and examiner.holds_namespace:
        yield ok("redis", "it is a node of a cluster; the whole namespace lies in one slot, which it holds")


def _replicas(client: Client, config: RunConfig, info: Info) -> Iterator[Finding]:
    """Compare the replicas that must acknowledge with those that there are."""
    configured = client.config.get("acknowledge")
    needed = configured if config.acknowledge is None else config.acknowledge
    there = sum(",state=online," in text for name, text in info.items() if re.fullmatch(r"slave\d+", name))
    assert isinstance(needed, int)
    words = f"acknowledge is {counted(needed, 'replica')}, and {there} {'is' if there == 1 else 'are'} connected"
    if there and "min_slaves_good_slaves" not in info:  # the server tells it only with the setting
        yield warning(
            "replicas",
            "min-replicas-to-write is 0: a primary that is cut off from its replicas takes writes, which are lost when"
            " another is elected; set it to 1",
        )
    if there and not needed:
        yield warning(
            "replicas",
            f"{words}: a failover loses the puts and ends of jobs that only the primary had; set it to {there}, or mark"
            " the puts that matter as durable",
        )
    elif not needed:
        return
    elif there < needed:
        yield problem("replicas", f"{words}: the ends of jobs wait for the others; start them, or set it to {there}")
    elif there > needed:
        yield warning(
            "replicas",
            f"{words}: a failover to one that has not acknowledged loses what the others have; set it to {there},"
            " unless none of the others can be elected (replica-priority 0), which the primary does not know",
        )
    else:
        yield ok("replicas", words)


def _memory(_examiner: Examiner, info: Info) -> Iterator[Finding]:
    """Check how full the server's memory is, and its policy then."""
    check, used, most = "redis-memory", int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    policy, evicted = info.get("maxmemory_policy", "noeviction"), int(info.get("evicted_keys", 0))
    words = f"{megabytes(used)} used of {megabytes(most)}" if most else f"{megabytes(used)} used, no maxmemory"
    if policy.startswith("volatile"):
        yield warning(
            check,
            f"maxmemory-policy is {policy}: when the memory is full the server deletes hints, answers and notes that"
            " expire anyway, which costs time, and no job; noeviction keeps them",
        )
    elif policy != "noeviction" and most:
        yield problem(
            check,
            f"maxmemory-policy is {policy}, and maxmemory {megabytes(most)}: when that is full the server deletes keys,"
            " and with them jobs; set maxmemory-policy to noeviction",
        )
    elif policy != "noeviction":
        yield warning(
            check,
            f"maxmemory-policy is {policy}: with a maxmemory, of which there is none now, the server would delete keys,"
            " and with them jobs; set maxmemory-policy to noeviction",
        )
    if evicted:
        yield warning(
            check,
            f"the server has deleted {counted(evicted, 'key')} since its start, as its memory was full: `leasehold"
            " check` says what is missing here",
        )
    if most and used >= most:
        yield problem(check, f"{words}: it is full, and refuses puts; raise maxmemory, or keep less history")
    elif most and used >= most * _NEARLY_FULL:
        yield warning(check, f"{words}: when it is full, puts are refused; raise maxmemory")
    else:
        yield ok(check, f"{words}, {policy}")


def _persistence(examiner: Examiner, info: Info) -> Iterator[Finding]:
    """Report what a restart of the server would lose."""
    check = "persistence"
    if info.get("aof_last_write_status", "ok") != "ok":
        yield problem(check, "the server cannot write its append-only file, and refuses writes: see its log and disk")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield warning(
            check,
            "the server's last snapshot has failed, and unless stop-writes-on-bgsave-error is off it refuses writes:"
            " see its log and disk",
        )
    if info.get("aof_enabled") == "1":
        yield ok(check, "append-only file on")
        return
    if examiner.setting("save") == "":
        what = "everything"
    else:
        age_s = max(0.0, clock.unix() - int(info.get("rdb_last_save_time", 0)))
        changes = counted(int(info.get("rdb_changes_since_last_save", 0)), "change")
        what = f"what came after its last snapshot: {changes} in {age_s:,.0f} s now"
    yield warning(check, f"the append-only file is off: a restart of the server loses {what}; set appendonly yes")


def _connections(examiner: Examiner, info: Info) -> Iterator[Finding]:
    """Check that the server has connections left, and keeps silent ones."""
    most, now = int(info.get("maxclients", 10_000)), int(info.get("connected_clients", 1)) - 1  # without ours
    if now + _CONNECTIONS > most:
        yield problem(
            "connections",
            f"{now} of maxclients {most} are taken, and a supervisor opens more: raise maxclients",
            Exit.UNREACHABLE,
        )
    elif now + _CONNECTIONS + MOST_LISTENERS > most:
        yield warning(
            "connections",
            f"{now} of maxclients {most} are taken, a supervisor opens up to {_CONNECTIONS + MOST_LISTENERS}: raise it",
        )
    else:
        yield ok("connections", f"{now} of {most} are taken")
    timeout_s = int(examiner.setting("timeout") or 0)
    if 0 < timeout_s < _SILENT_S:
        yield warning(
            "connections",
            f"the server closes one that is silent for {timeout_s} s (timeout), as an idle supervisor's is: it connects"
            f" anew each time; set timeout to 0, or to more than {_SILENT_S}",
        )


_LOOKS_INTO_INFO: Final = (_role, _memory, _persistence, _connections)


# the namespace


def _namespace(client: Client, config: RunConfig) -> Iterator[Finding]:
    found = calls_of(client).run(upgrade.look())
    yield ok("namespace", "it is empty" if found.layout == "new" else f"it has layout {found.layout}, this version's")
    options = client.config.all()
    yield from _options(options, config, calls_of(client).run(settings.setter("paused")))
    queues = client.queues()
    yield from _queues(queues, config)
    yield from _unserved(queues, ask_servers(client, queues, _PATIENCE_S), config)
    yield from _workers(client.workers())


def _options(
    options: Mapping[str, Value], config: RunConfig, paused: tuple[str | None, float | None]
) -> Iterator[Finding]:
    """Check the options in Redis. `paused`: who has paused all queues, and when."""
    heartbeat_s, grace_s = _seconds(options["heartbeat"]), _seconds(options["grace"])
    ttl_s = config.lease_ttl_s or heartbeat_s
    back_s = ttl_s + grace_s
    if ttl_s < _SHORT_LEASE_S:
        yield warning(
            "config",
            f"a lease lasts {ttl_s:g} s: a supervisor that stands still for so long, or whose Redis does, loses its"
            " jobs to others; 30 s is the default (heartbeat, or --lease-ttl)",
        )
    elif ttl_s > _LONG_LEASE_S:
        yield warning(
            "config", f"a lease lasts {ttl_s:g} s: the jobs of a lost host wait for {back_s:g} s; is it meant?"
        )
    if options["max-deaths"] == 0 and not config.max_deaths:
        yield warning("config", "max-deaths is 0: a job that kills its process is started again and again, for ever")
    if _seconds(options["max-worker-age"]) < back_s:
        yield warning(
            "config",
            f"max-worker-age is {options['max-worker-age']} s, less than a lease and its grace ({back_s:g} s): workers"
            " that live are forgotten, and begin anew; raise it",
        )
    if options["failed-history-count"] == 0:
        yield warning("config", "failed-history-count is 0: jobs that have failed are dropped at once")
    if options["paused"]:
        yield warning(
            "config",
            f"paused is set{_by(*paused)}: nothing starts, in any queue; `leasehold config paused --unset` ends it",
        )
    yield ok(
        "config", f"heartbeat {heartbeat_s:g} s, grace {grace_s:g} s: a lost host's jobs run again in {back_s:g} s"
    )


def _seconds(value: Value) -> float:
    assert isinstance(value, int | float)  # each of these options has a default
    return float(value)


def _queues(known: Mapping[str, Counts], config: RunConfig) -> Iterator[Finding]:
    """Report the queues that `run` would serve."""
    served = [name for name in Queues(config.queue, config.order).resolve(tuple(known)) if name in known]
    paused = [name for name in served if known[name].paused]
    if paused:
        named = ", ".join(f"{name}{_by(known[name].paused_by, known[name].paused_unix)}" for name in paused)
        yield warning("queues", f"{named}: paused, nothing starts from there; `leasehold unpause` ends it")
    waiting = sum(known[name].waiting for name in served)
    yield ok(
        "queues", f"{len(served)} of {counted(len(known), 'queue')} would be served, {counted(waiting, 'job')} waiting"
    )


def _by(by: str | None, since_unix: float | None) -> str:
    words = by_words(by, since_unix)
    return f" (by {words})" if by else f" (since {words})" if words else ""


def _unserved(
    known: Mapping[str, Depths], servers: Mapping[str, Sequence[str]] | None, config: RunConfig
) -> Iterator[Finding]:
    """Report queues that neither a running supervisor nor `run` would serve."""
    ours = Queues(config.queue, config.order).resolve(tuple(known))
    left = [name for name, by in (servers or {}).items() if known[name].ready and not by and name not in ours]
    if left:
        waiting = sum(known[name].ready for name in left)
        yield warning(
            "queues",
            f"{', '.join(left[:_NAMED])}: {counted(waiting, 'job')} could start there, and nobody serves"
            f" {'it' if len(left) == 1 else 'them'}; is a name misspelt?",
        )


def _workers(workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Report the workers that exist already."""
    lost = [worker for worker in workers if worker.stalled]
    if lost:
        names = ", ".join(worker.name for worker in lost)
        stalled = sum(worker.stalled for worker in lost)
        yield warning(
            "workers",
            f"{counted(stalled, 'lease')} of {names} are over: it stands still or is lost; others take these jobs over"
            " after the grace",
        )
    running = sum(worker.running for worker in workers)
    yield ok("workers", f"{counted(len(workers), 'worker')} seen, {counted(running, 'job')} running")
