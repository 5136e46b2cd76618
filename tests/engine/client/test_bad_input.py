"""Bad values of every argument of every public call of both clients: an error that names the argument and shows the
value, and a namespace in which not a byte has changed.
"""

import asyncio
import datetime
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from supervisor.engine.client import (
    async_client,
    async_config,
    async_doors,
    async_handles,
    async_queues,
    sync_client,
    sync_config,
    sync_doors,
    sync_handles,
    sync_queues,
)
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.keys import GROUP_BYTES, NAME_BYTES
from supervisor.engine.model.new_jobs import MOST_LIMITS, MOST_PARENTS, MOST_TAGS, PutOptions
from supervisor.engine.model.options import OPTIONS
from supervisor.engine.model.outcomes import RESULT_BYTES, Completed, Released
from supervisor.engine.model.recurring import RecurChanges, RecurOptions
from supervisor.engine.model.replay import SIGNAL_BYTES
from supervisor.engine.model.validation import DATA_BYTES, STATE_BYTES

AWAY: Any = object()  # of an argument that a call needs: it is not given
NAN, INFINITE = float("nan"), float("inf")


@dataclass(frozen=True)
class Bad:
    """A value; what the message shows of it if that is not its repr, and names if that is not the argument."""

    value: Any
    shown: str | None = None
    called: str | None = None


# Bad values by what an argument is. A value that is none of Bad is shown as its repr, of which 100 characters fit.


def names(*allowed: Any, most_bytes: int = NAME_BYTES) -> list[Any]:
    long = "n" * (most_bytes + 1), "ü" * (most_bytes // 2 + 1)
    bad = [None, 5, True, b"q", ["q"], "", *long, "a\nb", "a\0", "\x7f", "\ud800"]
    return [value for value in bad if value not in allowed]


def ints(least: int, most: int | None = None) -> list[Any]:
    return [None, "1", 1.0, True, NAN, INFINITE, [1], least - 1, 2**53 + 1 if most is None else most + 1]


TEXTS = [None, 5, True, b"m", ["m"], "\ud800"]
ANY_SECONDS = ["soon", True, [1], NAN, INFINITE, -INFINITE, 1e300, 2**53]
SECONDS = [*ANY_SECONDS, -1, -0.001]
SPANS = [*ANY_SECONDS, -1, 0]
BOOLS = [None, 0, 1, "yes"]
#: Shown is what is wrong with them: they may be large.
JSON = [
    Bad(object(), "object"), Bad({1, 2}, "set"), Bad({"a": [object()]}, "object"), Bad("\ud800", "surrogates"),
    Bad({1: 2}, "str"), Bad(1j, "complex"),
]  # fmt: skip
BAD_CHUNKS = [
    *(Bad(["fine", bad.value], bad.shown, "chunk") for bad in JSON), Bad([b"x" * 65_537], "65537", "chunk"),
    Bad([b""] * 100_000, "131072"),
]  # fmt: skip
DATA = [*JSON, Bad(memoryview(bytearray(DATA_BYTES + 1)), str(DATA_BYTES + 1))]
#: Values that are no list of names.
NO_LISTS = [None, 5, True, "q", b"q"]
SHOWN_NAMES = [Bad([name], repr(name)) for name in names()]


def many(n: int) -> Bad:
    return Bad([f"n-{i}" for i in range(n)], str(n))


TAGS = [*NO_LISTS, *SHOWN_NAMES, many(MOST_TAGS + 1)]
PARENTS = [*NO_LISTS, *SHOWN_NAMES, many(MOST_PARENTS + 1)]
#: Positional: a list of each bad one, after a good one.
SOME_JIDS = [*(Bad(["fine", name], repr(name)) for name in names()), many(1001)]
JIDS = [*SOME_JIDS, Bad([], "0")]
SOME_TAGS = [*(Bad(["fine", name], repr(name)) for name in names()), many(MOST_TAGS + 1), Bad([], "0")]
POLICIES = [None, 5, "", "never", "\ud800", ["wait"]]
QUEUES = [
    *NO_LISTS, *SHOWN_NAMES, many(1001), Bad([], "0"), Bad(["!a"], "!a"), Bad(["a", "!a"], "a, !a"),
    Bad(["!" + "n" * 65, "a"], "n" * 65),
]  # fmt: skip
GROUPS = names(most_bytes=GROUP_BYTES)
PAGE = {"offset": ints(0), "count": ints(0, 1000)}
TRACES = [
    5, True, b"00", ["00"], "", "00", "\ud800", f"00-{'a' * 32}-{'b' * 16}-01\n", f"00-{'A' * 32}-{'b' * 16}-01",
    f"00-{'a' * 32}-{'b' * 16}", f"00-{'0' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'0' * 16}-01",
    f"ff-{'a' * 32}-{'b' * 16}-01", f"00-{'a' * 31}-{'b' * 17}-01", f"00-{'a' * 32}-{'b' * 16}-01-more",
    "00-" + "\u0661" * 32 + "-00f067aa0ba902b7-01",
]  # fmt: skip
CALLBACKS = [5, True, "q", b"q", ["q"], {"klass": "k"}, {"queue": "q"}]
LIMITS = [
    *(name for name in names(None) if name != ["q"]), [], {"q": 1}, *SHOWN_NAMES, many(MOST_LIMITS + 1),
]  # fmt: skip
BOTH = {
    "lane": names(None), "limit": LIMITS, "unique": names(None, True), "expires": SECONDS,
    "at_most_once": [0, 1, "yes", [True]], "trace": TRACES,
}  # fmt: skip
NEW_JOB = {
    "jid": names(), "priority": ints(-(2**53)), "delay": [None, *SECONDS], "at": [None, *SECONDS], "retries": ints(0),
    "timeout": [None, *SECONDS], "max_deaths": ints(0), "tags": TAGS, "depends": PARENTS, "on_parent_failure": POLICIES,
    "persistent": [0, 1, "yes", [True]], "batch": names(),
    "together": [*names(most_bytes=40), "{a}", "a}"], **BOTH,
    "debounce": SPANS, "throttle": SPANS, "collect": SPANS, "most": [0, 1, 10_001, "two", [1]],
}  # fmt: skip
IN_LANE = {**NEW_JOB, "lane": [*names(), "another"]}
OF_COMING_JOBS = {
    "priority": ints(-(2**53)), "retries": ints(0), "timeout": [None, *SECONDS], "max_deaths": ints(0), "tags": TAGS,
    **BOTH,
}  # fmt: skip
RATES = [
    5, True, b"1/s", ["1/s"], "", "10", "10/", "/s", "ten/s", "10 / s", "10/S", "10/sec", "-1/s", "1.5/s", "0/s",
    "10001/s", "1/0s", "1/31d", "1/1.5s", "1/s\n", "\u0661/s", "1/2592000001ms", "9" * 200 + "/s",
]  # fmt: skip
ENDINGS = [None, 5, True, "", "kill", "STOP", ["stop"], "\ud800"]
CRONS = [None, 5, "", "* * * *", "* * * * * *", "61 * * * *", "a b c d e", "* " * 300, "\ud800 * * * *", "0 0 30 2 *"]
ZONES = [5, True, "", "Nowhere/Land", "../etc/passwd", "\ud800", "n" * 65]
RHYTHM = {
    "every": [None, *ANY_SECONDS, 0, -1, 0.0001], "missed": [None, 5, "", "never"],
    "backlog": [value for value in ints(0, 999) if value is not None],
}  # fmt: skip
JOBS = [
    None, 5, Bad(["k"], "'k'"), Bad([None], "None"), Bad([{}], "{"), Bad([{"klass": "k"}, {"klass": 5}], "5", "klass"),
    Bad([{"klass": "k"}, {"klass": "k", "delay": -1}], "-1", "delay"),
    Bad([{"klass": "k", "colour": 1}], "'colour'", "option"),
]  # fmt: skip
FOLLOWERS = [
    None, 5, Bad(["k"], "'k'"), Bad([{"klass": "k"}], "queue"), Bad([{"queue": "q"}], "klass"),
]  # fmt: skip
OUTCOMES = [None, 5, Bad(["done"], "'done'"), Bad([None], "None")]
DATES = [
    True, b"2026-01-01", "", "yesterday", "2026-13-01", [1], NAN, INFINITE, -1, 1e300, 253402300800,
    datetime.datetime(2026, 1, 1),
]  # fmt: skip
REASONS = [None, 5, "", "bored", "SIGKILL\n", "sigkill", "exit-", "\ud800", "SIG" + "X" * 20]
NO_OPTIONS = [None, 5, b"grace", ["grace"], "", "graze", "graze-q", "jobs-history-q", "\ud800"]
BAD_OPTIONS = [*NO_OPTIONS, Bad("grace-", "''"), Bad("grace-" + "n" * 65, "n" * 65), Bad("paused-a\nb", repr("a\nb"))]
BYS = [5, b"kim", "", "a\nb", "\ud800", Bad("k" * 129, "129"), "login:kim"]
STATES = [None, 5, "", "lost", "WAITING", ["waiting"]]

#: The arguments that each call needs, and the values that it must refuse, by argument.
CALLS: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "Client": (
        {},
        {
            "url": [5, True, b"redis://", Bad("http://localhost", "redis://"), Bad("nonsense", "redis://")],
            "namespace": [*names(None), "a{b", "a}b", "a*", "a?", "[a]", "a\\b"],
            "clock": [5, "now", True],
            "redis": [5, "redis://localhost", object],
            "acknowledge": ints(0),
            "credentials": [Bad(5, "int"), Bad("token", "str"), Bad(("user", "password"), "tuple")],
            "poll": [-1, 31, 0.001, "soon", True],
            "actor": BYS,
        },
    ),
    "Client.close": ({}, {}),
    "Client.lease": (
        {"worker": "w", "queues": ["q"]},
        {
            "worker": names(), "queues": QUEUES, "count": ints(0, 1000), "ttl": ANY_SECONDS,
            "order": [None, 5, "", "fifo", "\ud800"], "block": [None, *SECONDS],
        },
    ),
    "Client.settle": ({}, {"outcomes": OUTCOMES}),
    "Client.sweep": ({}, {"count": ints(1, 1000)}),
    "Client.job": ({}, {"jid": names()}),
    "Client.jobs": ({}, {"jids": SOME_JIDS}),
    "Client.cancel": ({"jids": ["waiting"]}, {"jids": JIDS, "by": BYS}),
    "Client.signal": (
        {"jid": "waiting", "name": "s"},
        {"jid": names(), "name": names(), "value": [*JSON, Bad("s" * SIGNAL_BYTES, str(SIGNAL_BYTES))]},
    ),
    "Client.cancelled": ({}, {"jid": names()}),
    "Client.acting_as": ({}, {"actor": BYS}),
    "Client.audit": ({}, {**PAGE, "subject": names(None)}),
    "Client.completed": ({}, PAGE),
    "Client.failed": ({"group": "g"}, {"group": GROUPS[1:], "start": ints(0), "limit": ints(0, 1000)}),
    "Client.wait": ({"jid": "waiting", "timeout": 0}, {"jid": names(), "timeout": [None, *SECONDS]}),
    "Client.unfail": (
        {"group": "g"},
        {"group": GROUPS, "queue": names(None), "count": ints(1, 1000), "klass": names(None), "data": DATA},
    ),
    "Client.limit": (
        {"key": "k", "running": 1},
        {"key": names(), "running": [value for value in ints(0) if value is not None], "rate": RATES, "by": BYS},
    ),
    "Client.unlimit": ({"key": "k"}, {"key": names(), "half": ["starts", "", 1]}),
    "Client.limits": ({}, {}),
    "Client.limit_jobs": ({"key": "k"}, {"key": names(), **PAGE}),
    "Client.serve": (
        {"worker": "w", "queues": ["q"]},
        {"worker": names(), "queues": QUEUES, "order": [5, "", "fifo", ["strict"], "\ud800"]},
    ),
    "Client.ask": (
        {"workers": "w", "what": "stacks", "timeout": 0},
        {
            "workers": [*names(None, ["q"]), *JIDS],
            "what": names(), "timeout": [None, *SECONDS], "argument": [*JSON, Bad("a" * 4097, "4096")],
        },
    ),
    "Client.log": (
        {"jid": "waiting", "message": "m"},
        {"jid": names(), "message": [*TEXTS, Bad("m" * 4097, "4096")], "data": [*JSON, Bad("d" * 4097, "4096")]},
    ),
    "Client.track": ({}, {"jid": names()}),
    "Client.untrack": ({}, {"jid": names()}),
    "Client.tracked": ({}, {}),
    "Client.tagged": ({"tag": "t"}, {"tag": names(), **PAGE}),
    "Client.tags": ({}, PAGE),
    "Client.queue": ({}, {"name": names()}),
    "Client.queues": ({}, {}),
    "Client.concerns": ({}, {}),
    "Client.why_worker": ({"name": "w", "timeout": 0}, {"name": names(), "timeout": [None, *SECONDS]}),
    "Client.why": ({"jid": "waiting", "timeout": 0}, {"jid": names(), "timeout": [None, *SECONDS]}),
    "Client.batch": (
        {},
        {
            "id": names(None), "on_success": CALLBACKS, "on_failure": CALLBACKS, "on_complete": CALLBACKS,
            "description": [*TEXTS, Bad("d" * 1025, "1024")],
        },
    ),
    "Client.batches": ({}, PAGE),
    "Client.batch_counts": ({}, {}),
    "Client.recurring": ({}, {"jid": names()}),
    "Client.unrecur": ({}, {"jid": names()}),
    "Client.workers": ({}, {}),
    "Client.worker": ({}, {"name": names()}),
    "Client.deregister": ({}, {"worker": names()}),
    "Client.check": ({}, {"repair": BOOLS}),
    "Client.around_put": ({"around": print}, {"around": [None, 5, "f"]}),
    "Client.events": (
        {},
        {"queue": names(None), "jid": names(None), "worker": names(None), "tracked": BOOLS},
    ),
    "Client.stream": (
        {"jid": "j"},
        {"jid": names(), "position": [None, 5, b"end", "", "1", "1-", "-1-1"], "timeout": ["soon", b"1", [], True]},
    ),
    "Queue.put": ({"klass": "k"}, {"klass": names(), "data": DATA, "durable": BOOLS, **NEW_JOB}),
    "Queue.add": ({"klass": "k"}, {"klass": names(), "data": DATA, "durable": BOOLS, **NEW_JOB}),
    "Queue.put_many": ({"jobs": []}, {"jobs": JOBS, "durable": BOOLS}),
    "Queue.recur": (
        {"klass": "k", "every": 60},
        {
            "klass": names(), "data": DATA, "jid": names(), "offset": [None, *SECONDS], "cron": CRONS, "tz": ZONES,
            **RHYTHM, **OF_COMING_JOBS,
        },
    ),
    "Queue.lease": (
        {"worker": "w"},
        {"worker": names(), "count": ints(0, 1000), "ttl": ANY_SECONDS, "block": [None, *SECONDS]},
    ),
    "Queue.jobs": ({"state": "waiting"}, {"state": STATES, **PAGE}),
    "Queue.peek": ({}, {"n": ints(0, 1000)}),
    "Queue.counts": ({}, {}),
    "Queue.length": ({}, {}),
    "Queue.why": ({"timeout": 0}, {"timeout": [None, *SECONDS]}),
    "Queue.stats": ({}, {"date": DATES}),
    "Queue.recent": ({}, {}),
    "Queue.pause": ({}, {"by": BYS}),
    "Queue.unpause": ({}, {}),
    "Queue.forget": ({}, {}),
    "Queue.cancel": ({"data": 1}, {"data": DATA, "by": BYS}),
    "Queue.delete": ({}, {"running": ENDINGS, "by": BYS}),
    "Queue.lane": ({}, {"name": names()}),
    "Queue.lanes": ({}, {}),
    "Lane.put": ({"klass": "k"}, {"klass": names(), "data": DATA, "durable": BOOLS, **IN_LANE}),
    "Lane.add": ({"klass": "k"}, {"klass": names(), "data": DATA, "durable": BOOLS, **IN_LANE}),
    "Lane.put_many": (
        {"jobs": []},
        {"jobs": [*JOBS, Bad([{"klass": "k", "lane": "another"}], "'another'", "lane")], "durable": BOOLS},
    ),
    "Lane.length": ({}, {}),
    "Lane.counts": ({}, {}),
    "Lane.pause": ({}, {"by": BYS}),
    "Lane.unpause": ({}, {}),
    "Lane.weight": ({}, {"n": ints(1, 1000)}),
    "Lane.delete": ({}, {"running": ENDINGS, "by": BYS}),
    "Doors.add": (
        {"name": "d", "format": "celery", "source": "s", "queue": "q"},
        {
            "name": names(), "format": [None, 5, "tube"], "source": names(most_bytes=512), "queue": names(),
            "klass": names(None), "klasses": [5, "a", Bad({}, "0"), Bad({"a": 5}, "5"), Bad({"a\tb": "k"}, "'a\\tb'")],
        },
    ),
    "Doors.list": ({}, {}),
    "Doors.remove": ({}, {"name": names()}),
    "Doors.take": ({"name": "d"}, {"name": names(), "most": ints(1, 1000)}),
    "Config.get": ({}, {"option": BAD_OPTIONS}),
    "Config.set": (
        {"option": "grace", "value": 1},
        {"option": BAD_OPTIONS, "value": [None, "soon", True, [1], NAN, INFINITE, -1, 1e300], "by": BYS},
    ),
    "Config.unset": ({}, {"option": BAD_OPTIONS}),
    "Config.all": ({}, {}),
    "Lease.renew": ({}, {"data": DATA}),
    "Lease.checkpoint": ({"state": 1}, {"state": [*JSON, Bad("s" * STATE_BYTES, str(STATE_BYTES))]}),
    "Lease.stream": ({"chunks": [1]}, {"chunks": BAD_CHUNKS}),
    "Lease.complete": (
        {},
        {
            "result": [*JSON, Bad("r" * RESULT_BYTES, str(RESULT_BYTES))], "data": DATA, "next": names(None),
            "delay": [None, *SECONDS], "depends": PARENTS, "then": FOLLOWERS,
        },
    ),
    "Lease.retry": (
        {},
        {"delay": SECONDS, "group": names(None), "message": [value for value in TEXTS if value is not None]},
    ),
    "Lease.fail": ({"group": "g", "message": "m"}, {"group": names(), "message": TEXTS, "data": DATA}),
    "Lease.release": ({}, {"started": BOOLS}),
    "Lease.suspend": ({"name": "s"}, {"name": names(), "timeout": SECONDS}),
    "Lease.died": ({}, {"reason": REASONS}),
    "Job.why": ({"timeout": 0}, {"timeout": [None, *SECONDS]}),
    "Job.cancel": ({}, {"by": BYS}),
    "Job.fail": ({"group": "g", "message": "m"}, {"group": names(), "message": TEXTS}),
    "Job.unfail": ({}, {"queue": names(None), "klass": names(None), "data": DATA}),
    "Job.move": ({"queue": "q"}, {"queue": names(), "delay": [None, *SECONDS]}),
    "Job.set_priority": ({}, {"priority": ints(-(2**53))}),
    "Job.release": ({}, {}),
    "Job.tag": ({}, {"tags": SOME_TAGS}),
    "Job.untag": ({}, {"tags": SOME_TAGS}),
    "Job.track": ({}, {}),
    "Job.untrack": ({}, {}),
    "Job.depend": ({}, {"jids": JIDS}),
    "Job.undepend": ({}, {"jids": JIDS, "all": BOOLS}),
    "RecurringJob.update": (
        {},
        {
            "queue": names(), "klass": names(), "data": DATA, "offset": [None, *SECONDS], "cron": CRONS, "tz": ZONES,
            **RHYTHM, **OF_COMING_JOBS,
        },
    ),
    "RecurringJob.tag": ({}, {"tags": SOME_TAGS}),
    "RecurringJob.untag": ({}, {"tags": SOME_TAGS}),
    "RecurringJob.cancel": ({}, {}),
}  # fmt: skip

#: The name of an argument in messages, if it differs.
CALLED = {
    ("Lane.weight", "n"): "weight",
    ("Queue.lane", "name"): "lane",
    ("Client.queue", "name"): "queue",
    ("Config.set", "value"): "grace",
    ("Client.jobs", "jids"): "jids?",
}

#: Arguments that need or exclude others, for the values of one to be reached.
BESIDE = {
    ("Queue.recur", "cron"): {"every": AWAY}, ("Queue.recur", "tz"): {"every": AWAY, "cron": "* * * * *"},
    ("RecurringJob.update", "tz"): {"cron": "* * * * *"}, ("Lease.complete", "delay"): {"next": "q"},
    ("Lease.complete", "depends"): {"next": "q"},
}  # fmt: skip

#: Contradicting arguments: the call, its arguments, and the message.
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "delay and at": ("Queue.put", {"delay": 1, "at": 2}, "at and delay exclude each other"),
    "delay and at of add": ("Queue.add", {"delay": 1, "at": 2}, "at and delay exclude each other"),
    "delay and at of many": ("Queue.put_many", {"jobs": [{"klass": "k", "delay": 1, "at": 2}]}, "at and delay"),
    "persistent and at_most_once": ("Queue.put", {"persistent": True, "at_most_once": True}, "persistent"),
    "persistent recurring": ("Queue.recur", {"persistent": True}, "recur has no option 'persistent'"),
    "no lane in a lane": ("Lane.put", {"lane": None}, "lane must be 'l', or not be given: None"),
    "an unknown option": ("Queue.put", {"colour": "red"}, "put has no option 'colour'"),
    "an unknown option of add": ("Queue.add", {"colour": "red"}, "add has no option 'colour'"),
    "an unknown option of recur": ("Queue.recur", {"colour": "red"}, "recur has no option 'colour'"),
    "an option of put": ("Queue.recur", {"depends": ["a"]}, "recur has no option 'depends'"),
    "an unknown change": ("RecurringJob.update", {"colour": "red"}, "update has no option 'colour'"),
    "another jid": ("RecurringJob.update", {"jid": "a"}, "update has no option 'jid'"),
    "no change": ("RecurringJob.update", {}, "changes must be given"),
    "every and cron": ("Queue.recur", {"every": 1, "cron": "* * * * *"}, "every and cron"),
    "neither every nor cron": ("Queue.recur", {"every": AWAY}, "every and cron"),
    "a change to every and cron": ("RecurringJob.update", {"every": 1, "cron": "* * * * *"}, "every and cron"),
    "backlog and once": ("Queue.recur", {"missed": "once", "backlog": 1}, "backlog goes with .*, not with once"),
    "backlog and skip": ("Queue.recur", {"missed": "skip", "backlog": 1}, "backlog goes with .*, not with skip"),
    "offset and cron": ("Queue.recur", {"every": AWAY, "cron": "* * * * *", "offset": 1}, "offset goes with every"),
    "tz and every": ("Queue.recur", {"tz": "Europe/Berlin"}, "tz goes with cron"),
    "tz of an interval": ("RecurringJob.update", {"tz": "Europe/Berlin"}, "tz goes with cron"),
    "delay without next": ("Lease.complete", {"delay": 1}, "delay must not be given without next: 1"),
    "depends without next": ("Lease.complete", {"depends": ["a"]}, r"depends must not be given without next: \['a'\]"),
    "an unknown option of a follower": (
        "Lease.complete", {"then": [{"queue": "q", "klass": "k", "colour": 1}]}, "no option 'colour'",
    ),
    "jids and all": ("Job.undepend", {"jids": ["a"], "all": True}, r"jids must not be given with all: \('a',\)"),
    "a weight of 0": ("Client.lease", {"queues": ["q:0"], "order": "weighted"}, "queues must have weights .* not 0"),
    "a weight of 1.5": ("Client.lease", {"queues": ["q:1.5"], "order": "weighted"}, "queues .* not 1.5"),
    "a weight of 1001": ("Client.lease", {"queues": ["q:1001"], "order": "weighted"}, "queues .* not 1001"),
    **{
        f"{name} of a wrong kind: {value!r}": ("Config.set", {"option": name, "value": value}, f"^{name} must .*: ")
        for name, option in OPTIONS.items()
        for value in {
            "seconds": ["soon", True, None, NAN, INFINITE, -1],
            "count": ["1", True, None, 1.5, -1],
            "flag": ["1", None, 2, -1, 0.5],
            "name": ["", 5, None, "n" * 65, "a\nb"],
        }[option.kind]
    },
    "a heartbeat of 0": ("Config.set", {"option": "heartbeat", "value": 0}, "heartbeat must be .*: 0"),
    "a heartbeat of a queue": ("Config.set", {"option": "heartbeat-q", "value": 0}, "heartbeat must be .*: 0"),
    "a max-worker-age of 0": ("Config.set", {"option": "max-worker-age", "value": 0}, "max-worker-age must be .*: 0"),
}  # fmt: skip

#: Not for applications: they take what was checked before.
WITHIN = {"Client.call", "Client.run", "Client.follow", "Client.put_jobs", "Client.put_batches"}
CLASSES = {
    "Client": (sync_client.Client, async_client.AsyncClient),
    "Queue": (sync_queues.Queue, async_queues.AsyncQueue),
    "Lane": (sync_queues.Lane, async_queues.AsyncLane),
    "Config": (sync_config.Config, async_config.AsyncConfig),
    "Doors": (sync_doors.Doors, async_doors.AsyncDoors),
    "Lease": (sync_handles.Lease, async_handles.AsyncLease),
    "Job": (sync_handles.Job, async_handles.AsyncJob),
    "RecurringJob": (sync_handles.RecurringJob, async_handles.AsyncRecurringJob),
}
OPTIONS_OF = {
    "Queue.put": PutOptions, "Queue.add": PutOptions, "Lane.put": PutOptions, "Lane.add": PutOptions,
    "Queue.recur": RecurOptions, "RecurringJob.update": RecurChanges,
}  # fmt: skip


def parameters(call: str, function: Callable[..., Any]) -> Iterator[str]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            # One that takes a jid's place says so by refusing it.
            yield from (
                name for name in OPTIONS_OF[call].__annotations__ if (call, name) != ("RecurringJob.update", "jid")
            )
        elif parameter.name != "self":
            yield parameter.name


@pytest.mark.parametrize("kind", [0, 1], ids=["sync", "async"])
def test_the_table_has_every_public_call_and_each_of_its_arguments(kind):
    public = {
        f"{name}.{method}": set(parameters(f"{name}.{method}", function))
        for name, kinds in CLASSES.items()
        for method, function in vars(kinds[kind]).items()
        if not method.startswith("_") and callable(function) and f"{name}.{method}" not in WITHIN
    }
    public["Client"] = set(parameters("Client", CLASSES["Client"][kind].__init__))
    assert {call: set(refused) for call, (_, refused) in CALLS.items()} == public


@dataclass
class Caller:
    """Calls things of one of the clients, awaited if they must be."""

    client: Any
    wait: Callable[[Any], Any]
    targets: dict[str, Any] = field(default_factory=dict)

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        answer = function(*args, **kwargs)
        return self.wait(answer) if inspect.isawaitable(answer) else answer

    def call(self, call: str, arguments: dict[str, Any]) -> Any:
        name, _, method = call.partition(".")
        if not method:
            return type(self.client)(**{"url": None, **arguments})
        function = getattr(self.targets[name], method)
        positional: list[Any] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional = arguments.get(parameter.name, [])
                arguments = {key: value for key, value in arguments.items() if key != parameter.name}
        return self.do(function, *positional, **arguments)


@pytest.fixture(params=["sync", "async"])
def caller(request: Any, server: Any, namespace: str) -> Iterator[Caller]:
    """A client, and one of everything that it gives: a lease, a job that waits for another, a recurring one."""
    loop = asyncio.new_event_loop()
    if request.param == "sync":
        it = Caller(Client(server.url, namespace, lambda: 1_000_000.0), lambda awaited: awaited)
    else:
        it = Caller(AsyncClient(server.url, namespace, lambda: 1_000_000.0), loop.run_until_complete)
    queue = it.client.queue("q")
    for jid in ("leased", "waiting"):
        it.do(queue.put, "k", jid=jid, tags=["t"])
    (lease,) = it.do(queue.lease, "w")
    it.do(queue.put, "k", jid="depends", depends=["waiting"])
    it.do(queue.recur, "k", every=60, offset=60, jid="recurring")
    it.targets = {
        "Client": it.client,
        "Queue": queue,
        "Lane": queue.lane("l"),
        "Config": it.client.config,
        "Doors": it.client.doors,
        "Lease": lease,
        "Job": it.do(it.client.job, "depends"),
        "RecurringJob": it.do(it.client.recurring, "recurring"),
    }
    yield it
    it.do(it.client.close)
    loop.close()


def together(needed: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call: those that it needs, but for what is taken away."""
    return {name: value for name, value in {**needed, **given}.items() if value is not AWAY}


def shown(value: Any) -> str:
    if isinstance(value, Bad) and value.shown is not None:
        return value.shown
    return f"{value.value if isinstance(value, Bad) else value!r:.100}"


ARGUMENTS = [(call, argument) for call, (_, refused) in CALLS.items() for argument in refused]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("call", "argument"), ARGUMENTS, ids=[f"{call}({name})" for call, name in ARGUMENTS])
def test_a_bad_value_is_refused_by_its_name_and_nothing_changes(server, namespace, caller, call, argument):
    needed, refused = CALLS[call]
    before = server.dump(namespace)
    wrong = []
    for bad in refused[argument]:
        value = bad.value if isinstance(bad, Bad) else bad
        arguments = together(needed, {**BESIDE.get((call, argument), {}), argument: value})
        try:
            caller.call(call, arguments)
        except (TypeError, ValueError) as error:
            message = str(error)
            name = (isinstance(bad, Bad) and bad.called) or CALLED.get((call, argument), argument)
            if not re.search(rf"\b{name}\b", message):
                wrong.append(f"{shown(bad)}: {name} is not named: {message:.200}")
            if shown(bad) not in message:
                wrong.append(f"{shown(bad)} is not shown: {message:.200}")
        except LeaseholdError as error:
            wrong.append(f"{shown(bad)} was sent: {error}")
        else:
            wrong.append(f"{shown(bad)} is taken")
        if server.dump(namespace) != before:
            wrong.append(f"{shown(bad)} has changed something")
            before = server.dump(namespace)
    assert wrong == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", REFUSED)
def test_contradicting_options_are_refused_and_change_nothing(server, namespace, caller, what):
    call, arguments, message = REFUSED[what]
    before = server.dump(namespace)
    with pytest.raises((TypeError, ValueError), match=message):
        caller.call(call, together(CALLS[call][0], arguments))
    assert server.dump(namespace) == before


def test_outcomes_of_two_workers_are_refused_and_nothing_changes(server, namespace, caller):
    (other,) = caller.do(caller.client.lease, "other", ["q"])
    before = server.dump(namespace)
    with pytest.raises(ValueError, match="outcomes must all be of one worker's leases, not of other, w"):
        caller.do(caller.client.settle, [Completed(caller.targets["Lease"]), Released(other)])
    assert server.dump(namespace) == before


@pytest.mark.parametrize("reason", names(None))
def test_the_reason_of_a_release_is_a_short_text(server, namespace, caller, reason):
    before = server.dump(namespace)
    with pytest.raises((TypeError, ValueError), match="reason"):
        caller.do(caller.client.settle, [Released(caller.targets["Lease"], reason=reason)])
    assert server.dump(namespace) == before


def test_a_url_and_a_connection_are_refused(server, caller):
    with pytest.raises(ValueError, match="redis excludes url and credentials"):
        type(caller.client)(server.url, redis=server.redis)
