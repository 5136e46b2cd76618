"""Checks the options of new jobs, and packs them for put.lua. Runs in producers, masters and children. No I/O."""

import binascii
import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict

import orjson

from supervisor.engine.model.bounds import MOST, MOST_WORDS
from supervisor.engine.model.job_to_put import JobToPut, as_jids
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.shards import Tie, checked_key, key_of, tied_jid
from supervisor.engine.model.trace_context import checked_trace, current_trace
from supervisor.engine.model.unique_modes import MODE_OPTIONS, MODES, Mode, as_list, checked_mode
from supervisor.engine.model.validation import (
    EXACT_INT,
    Duration,
    checked_flag,
    checked_int,
    checked_lines,
    duration_ms,
    in_seconds,
    in_unix_seconds,
    moment_ms,
    to_data,
)

MOST_TAGS = 100
MOST_PARENTS = 1000
MOST_LIMITS: Final = 8
#: Upper bound of what one completion puts: its tags, plus twice its parents.
MOST_LINES = 3_000
#: Two tags, or one parent, cost the server as much as one plain job. lua/include/entries.lua has the same figure.
LINES_A_JOB: Final = 2
#: One script puts all followers of a completion, and Redis does nothing else meanwhile.
MOST_FOLLOWERS = 1000
POLICIES = ("wait", "fail", "run")  # what happens to a job whose parent fails


class PutOptions(TypedDict, total=False):
    """The options of put and add.

    An option left out keeps its value on a known job, and has its default on a new one.
    """

    jid: str  # 1 to 64 bytes; default: 22 characters, a UUID in URL-safe base64
    priority: int  # lower runs sooner; default 0
    delay: Duration  # how long the job waits before it may run
    at: float | datetime.datetime  # in place of delay: unix seconds, or a datetime with a time zone
    retries: int  # how many failures are followed by another try; default 5
    timeout: Duration  # how long one run may take; 0 = no limit
    max_deaths: int  # the job fails for good after so many deaths; 0 = no limit; default: config max-deaths
    tags: Sequence[str]  # at most 100; they replace the job's present tags
    depends: Sequence[str | JobToPut]  # jobs that must complete first; unknown ones count as complete
    on_parent_failure: Literal[
        "wait", "fail", "run"
    ]  # what a job does when a parent fails or is cancelled; default fail
    lane: str | None  # the job's share of the queue; lanes with jobs take turns, by weight
    limit: str | Sequence[str] | None  # the job starts only while this limit, or each of at most 8, has room
    unique: bool | str | None  # a key (True: klass and data) that no other job may have until this one ends
    expires: Duration | None  # from now; a job that has not started by then fails in group expired
    persistent: bool | None  # the job never completes: whenever a run ends, another worker gets it
    at_most_once: bool | None  # the job never starts twice: a run that ends without an outcome of its own fails it
    trace: str | None  # W3C traceparent of the cause; default: the current OpenTelemetry span
    batch: str  # id of an open batch, of which the job becomes a member
    debounce: Duration | None  # the job of the unique key starts this long after its last put, with that put's data
    throttle: Duration | None  # for so long after the put of a unique key's job, later puts answer its jid
    collect: Duration | None  # one job gets the list of all data put within this, of the unique key
    most: int | None  # with collect: the job starts at once when it has so many data; default 500, at most 10,000
    together: str  # the jid ends in {together}: all such jobs lie in one shard, and may depend on each other


_OPTIONS = frozenset(PutOptions.__annotations__) - MODE_OPTIONS
#: The options of a dense record, by their fields, in the order of lua/include/dense.lua.
_LETTERS: Final = {"priority": "p", "retries": "r", "timeout": "t", "max_deaths": "d", "trace": "c"}
#: Options that tie a job to something.
_TYING: Final = frozenset({"limit", "unique", "depends", "batch", "together"})
#: Translates base64 into its URL-safe alphabet.
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
#: Translate random bytes into those at 6 and at 8 of a random UUID, version 4.
_VERSION: Final = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT: Final = bytes(byte & 0x3F | 0x80 for byte in range(256))
_DRAWN_BYTES: Final = 18
_DRAWN_TOGETHER: Final = 64  # jids
SHORT: Final = 3  # arguments of a job in short


class NewJob(NamedTuple):
    """A checked job, ready for put.lua: in short if it has no options but those of a dense record."""

    jid: str
    size_bytes: int
    arguments: tuple[str | bytes | int, ...]
    lines: int = 0  # number of tags, plus twice the number of parents
    has_parents: bool = False
    ties: tuple[Tie, ...] = ()  # what must lie in one shard with it
    is_own_jid: bool = False  # the jid was given

    @property
    def weight(self) -> int:
        """Return how many plain jobs cost the server, or lengthen a command, as much as this one."""
        words = len(self.arguments)
        return 1 if words == SHORT else max(1 + self.lines // LINES_A_JOB, -(-words * MOST // MOST_WORDS))

    @property
    def things(self) -> set[tuple[str, str]]:
        """Return what must lie in one shard with it, as lua/guests.lua takes it."""
        things = {(tie.kind, tie.name) for tie in self.ties}
        return things | {("job", self.jid)} if self.is_own_jid else things

    def tied(self, *more: Tie) -> "NewJob":
        """Return the job with a jid that lies in one shard with all that it is tied to, in whatever number of shards.

        Raises ValueError if there is none.
        """
        jid = tied_jid(self.jid, self.is_own_jid, (*more, *self.ties))
        if jid == self.jid:
            return self
        place = 1 if len(self.arguments) == SHORT else 2
        return self._replace(jid=jid, arguments=(*self.arguments[:place], jid, *self.arguments[place + 1 :]))


def new_jid() -> str:
    """Return a fresh jid of 22 characters. It never begins with "-", which the command line would take for a flag."""
    while True:
        drawn = bytearray(os.urandom(16))
        drawn[6], drawn[8] = _VERSION[drawn[6]], _VARIANT[drawn[8]]
        jid = binascii.b2a_base64(drawn)[:22].translate(_URL_SAFE).decode()
        if jid[0] != "-":
            return jid


def _new_jids() -> Iterator[str]:
    """Yield what new_jid returns, for a quarter of its time."""
    while True:
        pid = os.getpid()
        # 18 bytes make 24 characters. The jid is the first 22: 16 random bytes, and 4 bits that are zero.
        drawn = bytearray(os.urandom(_DRAWN_BYTES * _DRAWN_TOGETHER))
        drawn[6::_DRAWN_BYTES] = drawn[6::_DRAWN_BYTES].translate(_VERSION)
        drawn[8::_DRAWN_BYTES] = drawn[8::_DRAWN_BYTES].translate(_VARIANT)
        drawn[16::_DRAWN_BYTES] = bytes(_DRAWN_TOGETHER)
        text = binascii.b2a_base64(drawn, newline=False).translate(_URL_SAFE).decode()
        for start in range(0, len(text), 24):
            if os.getpid() != pid:
                break  # a fork must not go on with its parent's
            if text[start] != "-":
                yield text[start : start + 22]


def new_job(verb: Literal["put", "add"], queue: str, klass: str, data: object, options: Mapping[str, Any]) -> NewJob:
    """Check the arguments of put or add. Raises TypeError or ValueError naming the argument."""
    checked_name("queue", queue)
    _checked_klass(klass)
    return _new_job(verb, queue, klass, data, options, current_trace(), new_jid)


class NewJobs:
    """Makes the jobs of one call of put_many, as new_job does. What they share is looked up once."""

    def __init__(self, queue: str) -> None:
        self._queue = checked_name("queue", queue)
        self._klasses: set[str] = set()  # checked ones
        self._trace = current_trace()
        self._new_jid = _new_jids().__next__

    def make(self, klass: str, data: object, options: Mapping[str, Any]) -> NewJob:
        """Check the arguments of put. Raises TypeError or ValueError naming the argument."""
        if type(klass) is not str or klass not in self._klasses:
            self._klasses.add(_checked_klass(klass))
        return _new_job("put", self._queue, klass, data, options, self._trace, self._new_jid)


def _checked_klass(klass: object) -> str:
    if isinstance(klass, str):
        return checked_name("klass", klass)
    cure = ""
    if isinstance(klass, JobToPut):
        cure = "; put_many([…]) puts a job that is ready to be put"
    elif callable(klass) and hasattr(klass, "put"):
        cure = f"; a handler puts its jobs itself: {getattr(klass, '__name__', 'handler')}.put(…)"
    raise TypeError(f"klass must be a str, not {type(klass).__name__}: {klass!r:.100}{cure}")


def _new_job(
    verb: Literal["put", "add"],
    queue: str,
    klass: str,
    data: object,
    options: Mapping[str, Any],
    trace: str | None,
    new_jid: Callable[[], str],
) -> NewJob:
    kind, raw = to_data("data", data)
    if not options and trace is None:  # most jobs have no options
        jid = new_jid()
        return NewJob(jid, len(raw), (f"{verb}\n{queue}\n{klass}\n{kind[0]}\n", jid, raw))
    mode = None
    for option in options:
        if option not in _OPTIONS:
            mode = _checked_mode(verb, option, options)
    jid, is_own_jid = _checked_jid(options, new_jid)
    delay, at = _checked_times(options)
    kept = claim_on(checked_options(options), klass, kind, raw)
    if mode is not None:
        kept["mode"] = mode.stored
        delay = delay if mode.delay_ms is None else mode.delay_ms
        raw = as_list(kind, raw) if mode.name == "collect" else raw
    if trace is not None:
        kept.setdefault("trace", trace)
    ties = ties_of(kept, queue)
    if delay == at == "" and kept.keys() <= _LETTERS.keys() and "" not in kept.values():
        letters = " ".join(f"{letter}{kept[name]}" for name, letter in _LETTERS.items() if name in kept)
        head = f"{verb}\n{queue}\n{klass}\n{kind[0]}\n{letters}"
        return NewJob(jid, len(raw), (head, jid, raw), is_own_jid=is_own_jid)
    more = (part for pair in kept.items() for part in pair)
    arguments = verb, queue, jid, klass, kind, raw, delay, at, len(kept), *more
    parents = _lines_of(kept.get("depends"))
    lines = _lines_of(kept.get("tags")) + 2 * parents
    return NewJob(jid, len(raw), arguments, lines, parents > 0, ties, is_own_jid)


def fresh_jid(queue: str, klass: str, data: object, options: Mapping[str, Any]) -> str:
    """Return a jid for a job that has to be named before it is put, and is to be put in whatever number of shards."""
    if options.keys().isdisjoint(_TYING):
        return new_jid()
    job = new_job("put", queue, klass, data, options)
    try:
        return job.tied().jid
    except ValueError:  # in several shards the put says why there is none
        return job.jid


def _checked_jid(options: Mapping[str, Any], new_jid: Callable[[], str]) -> tuple[str, bool]:
    """Return the jid, and whether it was given. Raises TypeError or ValueError."""
    is_own = "jid" in options
    jid = checked_name("jid", options["jid"]) if is_own else new_jid()
    if "together" not in options:
        return jid, is_own
    key = checked_key("together", options["together"])
    if not is_own:
        return f"{jid}{{{key}}}", True
    if key_of(jid) != key:
        raise ValueError(f"jid must contain {{{key}}}, because together is {key!r}: {jid!r}")
    return jid, is_own


def ties_of(fields: Mapping[str, str | int], queue: str) -> tuple[Tie, ...]:
    """Return what must lie in one shard with a job or a recurring job of these record fields."""
    ties = [Tie(f"the limit {limit}", key_of(limit), "limit", limit) for limit in _texts(fields, "limit", "\t")]
    if unique := str(fields.get("unique") or ""):
        claim = unique[1:]  # behind ":" a key, behind "=" a digest, which has no braces
        stored = claim if unique[0] == ":" else f"\1{claim}"  # as lua/include/claims.lua has it
        ties.append(Tie("its unique key", key_of(claim), "unique", f"{queue}\n{stored}"))
    parents = _texts(fields, "depends", "\n")
    ties += [Tie(f"its parent {parent}", key_of(parent), "job", parent) for parent in parents]
    ties += [Tie("its batch", key_of(batch), "batch", batch) for batch in _texts(fields, "batch", "\n")]
    return tuple(ties)


def _texts(fields: Mapping[str, str | int], name: str, separator: str) -> list[str]:
    text = fields.get(name)
    return text.split(separator) if isinstance(text, str) and text else []


def _checked_mode(verb: str, option: str, options: Mapping[str, Any]) -> Mode | None:
    if option not in MODE_OPTIONS:
        raise TypeError(f"{verb} has no option {option!r}; it has {', '.join(sorted(_OPTIONS | MODE_OPTIONS))}")
    mode = checked_mode(options)
    if mode is not None and verb == "add":
        raise ValueError(f"{mode.name} goes with put: add changes no job that is there: {options[mode.name]!r:.100}")
    return mode


def _lines_of(names: str | int | None) -> int:
    return 1 + names.count("\n") if isinstance(names, str) and names else 0


def _checked_times(options: Mapping[str, Any]) -> tuple[int | str, int | str]:
    if "delay" in options and "at" in options:
        raise ValueError("at and delay exclude each other")
    delay = duration_ms("delay", options["delay"], least=0) if "delay" in options else ""
    at = moment_ms("at", options["at"]) if "at" in options else ""
    return delay, at


def with_plain_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options ready for JSON: times as numbers, parents as jids. Raises ValueError naming the option."""
    plain = dict(options)
    for name in ("delay", "timeout", "expires", *MODES):
        if name in plain:
            plain[name] = in_seconds(name, plain[name])
    if "at" in plain:
        plain["at"] = in_unix_seconds("at", plain["at"])
    if "depends" in plain:
        plain["depends"] = as_jids(plain["depends"])
    return plain


def checked_options(options: Mapping[str, Any]) -> dict[str, str | int]:
    """Return the record fields that these options set, for a job or a recurring job.

    A claim by content is "1" in them, for `claim_on` to complete. Raises TypeError or ValueError naming the option.
    """
    fields: dict[str, str | int] = {}
    if "priority" in options:
        fields["priority"] = checked_int("priority", options["priority"], -EXACT_INT)
    if "retries" in options:
        fields["retries"] = checked_int("retries", options["retries"], 0)
    if "timeout" in options:
        fields["timeout"] = duration_ms("timeout", options["timeout"], least=0)
    if "max_deaths" in options:
        fields["max_deaths"] = checked_int("max_deaths", options["max_deaths"], 0)
    if "tags" in options:
        fields["tags"] = checked_lines("tags", options["tags"], MOST_TAGS)
    if "depends" in options:
        fields["depends"] = checked_lines("depends", as_jids(options["depends"]), MOST_PARENTS)
    if "on_parent_failure" in options:
        fields["policy"] = _checked_policy(options["on_parent_failure"])
    if "lane" in options:
        fields["lane"] = "" if options["lane"] is None else checked_name("lane", options["lane"])
    if "limit" in options:
        fields["limit"] = _checked_limits(options["limit"])
    if "unique" in options:
        fields["unique"] = _checked_claim(options["unique"])
    if "expires" in options:
        expires = options["expires"]
        fields["expires"] = "" if expires is None else duration_ms("expires", expires, least=0.001)
    if "persistent" in options:
        fields["persistent"] = _flag("persistent", options["persistent"])
    if "at_most_once" in options:
        fields["once"] = _flag("at_most_once", options["at_most_once"])
    if "trace" in options:
        fields["trace"] = "" if options["trace"] is None else checked_trace("trace", options["trace"])
    if "batch" in options:
        fields["batch"] = checked_name("batch", options["batch"])
    if fields.get("persistent") == fields.get("once") == "1":
        raise ValueError("persistent and at_most_once exclude each other: True")
    if "batch" in fields and fields.get("persistent") == "1":
        raise ValueError("persistent excludes batch: the batch of a job that never completes would never end")
    return fields


def _flag(name: str, value: object) -> str:
    """Return the stored form of a flag. "" stands for None, which leaves the choice to the default or the handler."""
    return "" if value is None else "1" if checked_flag(name, value) else "0"


def _checked_limits(limit: object) -> str:
    """Return the stored form of one limit or several: their keys, with a tab between two; "" for none."""
    if limit is None:
        return ""
    if isinstance(limit, str):
        return checked_name("limit", limit)
    if not isinstance(limit, Iterable) or isinstance(limit, bytes | Mapping):
        raise TypeError(f"limit must be a str or a list of them, not {type(limit).__name__}: {limit!r:.100}")
    keys = checked_lines("limit", limit, MOST_LIMITS)
    if not keys:
        raise ValueError(f"limit must be 1 to {MOST_LIMITS} names, or None: {limit!r:.100}")
    return keys.replace("\n", "\t")


def _checked_claim(unique: object) -> str:
    """Return the stored form of a claim: ":" and a key, "" for none, "1" for a claim by content (see `claim_on`)."""
    if unique is None or isinstance(unique, bool):
        return "1" if unique else ""
    return ":" + checked_name("unique", unique)


def claim_on(fields: dict[str, str | int], klass: str, kind: str, raw: bytes) -> dict[str, str | int]:
    """Replace a claim by content ("1") by "=" and a digest.

    The order of an object's keys does not change the digest.
    """
    if fields.get("unique") == "1":
        import hashlib  # imported here to keep OpenSSL out of the children, which import this module

        content = orjson.dumps(orjson.loads(raw), option=orjson.OPT_SORT_KEYS) if kind == "json" else raw
        digest = hashlib.sha1(f"{klass}\n{kind}\n".encode() + content, usedforsecurity=False).hexdigest()
        fields["unique"] = "=" + digest
    return fields


def _checked_policy(policy: object) -> str:
    if policy not in POLICIES:
        raise ValueError(f"on_parent_failure must be wait, fail or run: {policy!r:.100}")
    return str(policy)
