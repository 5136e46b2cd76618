"""Messages between master, zygote and child. Runs in all three. Owns the wire formats and the directories' names.

Must not do I/O. Three sockets carry the messages:

control  master <-> zygote    one JSON array per packet, the message's name first, descriptors beside it
jobs     master  -> child     one job per packet (`pack_job`); the master keeps a duplicate of the receiving end
talk     master <-> child     outcomes, readiness, progress, checkpoints and their answers, notices (`pack_outcome`,
                              `pack_ready`, `pack_progress`, `pack_checkpoint`, `pack_stored`, `pack_wanted`,
                              `pack_page`, `pack_chunk`, `pack_taken`, `pack_notice`);
                              `pack_completion` packs what follows a completion
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple

import orjson

from supervisor.engine.model.jobs import LeaseRecord, ParentResult
from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.new_jobs import MOST_FOLLOWERS
from supervisor.engine.model.validation import STATE_BYTES, checked_progress

#: Stands for a control message that is too long for a packet. The message is in the memfd beside it.
IN_MEMFD: Final = b"memfd"
#: The zygote inherits its control socket at this number.
CONTROL_FD: Final = 3
#: A child writes Python stacks to this descriptor. The file belongs to the master and outlives the child.
STACKS_FD: Final = 4
#: A default socket buffer refuses larger packets. Larger payloads travel as a sealed memfd.
MAX_PACKET_BYTES: Final = 200_000
INLINE_PAYLOAD_BYTES: Final = 16 * 1024
MAX_DELAY_S: Final = 1e9
#: Most jobs that one child runs at once.
MOST_BESIDE: Final = 10_000
INLINE_COMPLETION_BYTES: Final = 128 * 1024
MAX_RESULT_BYTES: Final = 64 * 1024
MAX_MESSAGE_CHARS: Final = 4 * 1024
MAX_TRACEBACK_CHARS: Final = 16 * 1024
#: Most results of parents that a child asks for at once, and how many bytes of them one packet holds beside the first.
MOST_RESULTS: Final = 64
_MOST_PAGE_BYTES: Final = 160 * 1024
#: Upper bounds of the JSON schema of a handler's data, and of all that a zygote reports.
SCHEMA_BYTES: Final = 16 * 1024
MOST_SCHEMAS_BYTES: Final = 1024 * 1024
#: Upper bound of a completion with everything that follows it.
MAX_COMPLETION_BYTES: Final = 257 * 1024 * 1024
#: Upper bound of the head, which holds everything but the data. Decoded JSON takes many times its size.
MAX_HEAD_BYTES: Final = 16 * 1024 * 1024
#: Upper bound of the values in the head, counted before it is decoded: an empty object grows from 3 bytes to 72. Far
#: more than the largest legal head has.
MOST_HEAD_PARTS: Final = 1_000_000
_BETWEEN_PARTS: Final = (b"[", b"{", b",")


def zygote_directory(workdir: str, zygote: int) -> str:
    """Return the directory that holds the working directories of a zygote's children. `workdir`: the master's."""
    return f"{workdir}/zygote-{zygote}"


def child_directory(of_zygote: str, child: int) -> str:
    """Return the working directory of a child, which the child makes itself. `of_zygote`: its zygote's directory."""
    return f"{of_zygote}/child-{child}"


# control: master -> zygote -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Boot:
    """The first message: what to import and how children run."""

    handlers: str
    workdir: str
    jobs_per_child: int
    on_error: str
    memory_limit_bytes: int  # for handlers without a limit of their own; 0: none
    open_files: int  # the children's limit; the master's own is higher
    workdir_limit_bytes: int = 0  # per file that a job writes; 0: none
    sandbox: str = "basic"  # level of handlers without a level of their own
    readable: list[str] = field(default_factory=list)  # paths added to the default list under strict
    hidden: list[str] = field(default_factory=list)  # paths that stay unreadable under strict, wherever they lie
    child_user: list[int] = field(default_factory=list)  # uid and gid; empty: the level decides
    directory: str = ""  # entered before anything is imported; empty: stay
    held_back: list[str] = field(default_factory=list)  # names of variables that handlers do not get
    terminal: str = ""  # path of the terminal that children get as stdin, stdout and stderr; empty: none
    release: str = ""  # empty: the git commit, if there is one


class Spawn(NamedTuple):
    """Fork child number `child`. Four descriptors come along: the child's ends of `jobs` and `talk`, the pipe for its
    output, and the file for its stacks.
    """

    child: int


# control: zygote -> master -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The handlers are imported.

    `handlers`: name -> settings (`HandlerSettings` as a dict). `threads`, `descriptors`: what the import left running
    and open, in words. `before_fork`: True if a hook of the handlers runs before each fork. `sandbox`: each part of the
    sandbox, with "on" or the reason why it is not. `files`: the files that the handlers were loaded from.
    `recurrences`: name -> queue, rhythm and options of the recurring job that a handler declares. `release`: the name
    of the code, empty if it has none. `schemas`: shape -> the JSON schema of such data, within the bounds above.
    """

    handlers: dict[str, dict[str, Any]]
    threads: list[str]
    descriptors: list[str]
    before_fork: bool = False
    sandbox: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    recurrences: dict[str, dict[str, Any]] = field(default_factory=dict)
    release: str = ""
    schemas: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BootFailed:
    """The handlers cannot be imported, and the zygote exits. `files`: those loaded so far, and those that the error
    names.
    """

    message: str
    traceback: str
    files: list[str] = field(default_factory=list)


class Spawned(NamedTuple):
    """The child is forked. Its pidfd comes along, opened right after the fork."""

    child: int
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The fork failed. `traceback`: of a hook of the handlers; empty: the kernel refused the fork."""

    child: int
    message: str
    traceback: str = ""


class Reaped(NamedTuple):
    """A child has ended, and nothing is left of its process tree. `status` is wait(2)'s."""

    child: int
    pid: int
    status: int
    cpu_s: float
    max_rss_bytes: int


Control = Boot | Spawn | Ready | BootFailed | Spawned | SpawnFailed | Reaped
_CONTROL: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (Boot, Spawn, Ready, BootFailed, Spawned, SpawnFailed, Reaped)
}


def pack_control(message: Control) -> bytes:
    # Messages about one child are tuples: the zygote makes them between two forks, where each touched page is copied.
    values = message if isinstance(message, tuple) else [getattr(message, field.name) for field in fields(message)]
    return orjson.dumps((type(message).__name__, *values))


def unpack_control(packet: bytes) -> Control:
    """Raises ValueError or TypeError for anything that is no message."""
    name, *values = orjson.loads(packet)
    if name not in _CONTROL:
        raise ValueError(f"no message of the control socket: {name!r:.100}")
    message: Control = _CONTROL[name](*values)
    return message


class Profile(NamedTuple):
    """A level of confinement. A child takes the profile of its first job, and gets jobs of this profile only."""

    level: str  # none, basic or strict
    network: bool


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """A handler's settings as the master knows them. None: the `run` flag, the config or the default decides."""

    timeout_s: float | None = None
    retries: int | None = None
    on_error: str | None = None
    on_death: str | None = None
    max_deaths: int | None = None
    at_most_once: bool = False
    memory_bytes: int | None = None
    sandbox: str | None = None
    network: bool | None = None  # None: the sandbox level decides
    on_cut_off: str | None = None
    shape: str | None = None  # digest of the data that it takes
    concurrency: int = 1  # how many jobs one child runs at once

    def within(self, level: str) -> "HandlerSettings":
        """Return these settings with the run's sandbox `level` filled in where the handler leaves the choice open."""
        sandbox = self.sandbox or level
        return replace(self, sandbox=sandbox, network=sandbox != "strict" if self.network is None else self.network)

    @property
    def profile(self) -> Profile:
        """The handler's profile in its run. Settings from the zygote leave nothing open."""
        return Profile(self.sandbox or "basic", self.network is not False)

    @property
    def shares_child(self) -> bool:
        """True if a child runs several of its jobs at once."""
        return self.concurrency > 1

    def misses_mark(self, lease: LeaseRecord) -> bool:
        """Return True for a job of an at-most-once handler whose lease does not say so, as of older code.

        The engine may start such a job twice. Only a new lease tells the engine that it must not.
        """
        return self.at_most_once and not (lease.at_most_once or lease.persistent)

    def limit_s(self, lease: LeaseRecord, default_s: float) -> float:
        """Return a job's time limit: its own, else its handler's, else the default, which no persistent job has.

        0: it has none.
        """
        if lease.timeout_s is not None:
            return lease.timeout_s
        if self.timeout_s is not None:
            return self.timeout_s
        return 0.0 if lease.persistent else default_s

    def trust_domain(self, klass: str) -> "tuple[Profile, str, bool]":
        """Return the key of the jobs that may share a child with jobs of this handler.

        A job can read and answer the jobs that were sent ahead to its child, and can leave code behind in the process.
        So under strict each klass has children of its own. Otherwise the handlers of one profile trust each other.
        Jobs that run beside each other have children of their own.
        """
        profile = self.profile
        return profile, klass if profile.level == "strict" else "", self.shares_child


# jobs: master -> child -----------------------------------------------------------------------------------------------

_JOB_HEAD: Final = Struct("<QIB")  # token, length of the meta part, flags
_IN_MEMFD: Final = 1
_IS_BYTES: Final = 2
_IS_ONCE: Final = 4
_IS_CALL: Final = 8


class JobMessage(NamedTuple):
    """A job as a child receives it.

    `payload` is None while it lies in the memfd that came with the packet, behind `saved_bytes` of the last checkpoint
    and `replay_bytes` of what else earlier starts have left.
    """

    token: int
    jid: str
    klass: str
    queue: str
    priority: int
    failures: int
    deaths: int
    interruptions: int
    tags: list[str]
    lane: str | None
    persistent: bool
    waited_s: float
    is_bytes: bool
    payload: bytes | None
    saved: bytes | None = None
    saved_bytes: int = 0
    trace: str | None = None
    at_most_once: bool = False
    replay: bytes | None = None
    replay_bytes: int = 0
    batch: str | None = None
    is_call: bool = False  # the payload has arguments by position; see entries.Payload

    def filled(self, body: bytes) -> "JobMessage":
        """Return the message with `body` split into the last checkpoint (JSON), the replay (JSON) and the payload."""
        if not (self.saved_bytes or self.replay_bytes):
            return self._replace(payload=body)
        replay_at, payload_at = self.saved_bytes, self.saved_bytes + self.replay_bytes
        saved, replay = body[:replay_at] or None, body[replay_at:payload_at] or None
        return self._replace(saved=saved, replay=replay, payload=body[payload_at:])


Meta = tuple[str, str, str, int, int, int, int, list[str], str | None, bool, float]
_META_LENGTH: Final = 11
_job_message: Final = tuple.__new__  # JobMessage(...) with names takes as long as all the rest of unpacking


def pack_job(
    token: int,
    meta: Meta,
    payload: bytes | None,
    is_bytes: bool,
    saved: bytes | None = None,
    trace: str | None = None,
    replay_bytes: int = 0,
    at_most_once: bool = False,
    batch: str | None = None,
    is_call: bool = False,
) -> bytes:
    """`meta`: the fields of JobMessage from jid to waited_s. `payload`: behind its `replay_bytes`. None: it lies in a
    memfd, behind `saved`.
    """
    if saved or trace or replay_bytes or batch:
        head = orjson.dumps((*meta, len(saved) if saved else 0, trace, replay_bytes, batch))
        payload = saved + payload if saved and payload is not None else payload
    else:
        head = orjson.dumps(meta)
    flags = (_IS_BYTES if is_bytes else 0) | (_IN_MEMFD if payload is None else 0) | (_IS_ONCE if at_most_once else 0)
    if is_call:
        flags |= _IS_CALL
    return _JOB_HEAD.pack(token, len(head), flags) + head + (payload or b"")


def unpack_job(packet: bytes) -> JobMessage:
    token, length, flags = _JOB_HEAD.unpack_from(packet)
    body_at = _JOB_HEAD.size + length
    meta = orjson.loads(packet[_JOB_HEAD.size : body_at])
    is_bytes, is_once, is_call = bool(flags & _IS_BYTES), bool(flags & _IS_ONCE), bool(flags & _IS_CALL)
    payload = None if flags & _IN_MEMFD else packet[body_at:]
    if len(meta) == _META_LENGTH:
        return _job_message(
            JobMessage, (token, *meta, is_bytes, payload, None, 0, None, is_once, None, 0, None, is_call)
        )
    *meta, saved_bytes, trace, replay_bytes, batch = meta
    beside = is_bytes, None, None, saved_bytes, trace, is_once, None, replay_bytes, batch, is_call
    message = _job_message(JobMessage, (token, *meta, *beside))
    return message if payload is None else message.filled(payload)


def token_of(packet: bytes) -> int:
    """Return the token of a packed job, which identifies a job that was taken back.

    Raises ValueError if the packet is shorter than any job.
    """
    if len(packet) < _JOB_HEAD.size:
        raise ValueError(f"a job of {len(packet)} bytes")
    token: int = _JOB_HEAD.unpack_from(packet)[0]
    return token


# talk: child -> master -----------------------------------------------------------------------------------------------


class Verb(IntEnum):
    """First byte of a packet on `talk`, from the child."""

    READY = 0
    COMPLETED = 1  # body: the result as JSON, or nothing
    RETRIED = 2  # body: Trouble as JSON
    FAILED = 3  # body: Trouble as JSON
    INTERRUPTED = 4  # the notice's exception left the handler
    FOLLOWED = 5  # completed, with something that follows; body: a Completion, here or in the memfd beside the packet
    PROGRESS = 6  # no outcome; body: ProgressReport as JSON
    #: No outcome: a MemoryError under our limit has left the handler; body: Trouble as JSON; the child exits now.
    OVERFLOWED = 7
    CHECKPOINT = 8  # no outcome; body: a Checkpoint to store; the handler waits for `Stored`
    MISFIT = 9  # the data do not fit the parameters, and the handler was not called; body: Trouble as JSON
    HEARD = 10  # no outcome: a job that runs beside others was interrupted, so it alone is to blame if it does not end
    CHUNK = 11  # no outcome; body: a chunk as `engine/model/chunks.py` packs it; `Taken` follows
    SUSPENDED = 12  # the handler waits for a signal or a time, and starts again then; body: Suspension as JSON
    RESULTS = 13  # no outcome: the handler waits for results of parents (`ResultsPage`); body: ResultsWanted


_OUTCOME_HEAD: Final = Struct("<BQQQQ")  # verb, token, run time in µs, processor time in µs, bytes


class Outcome(NamedTuple):
    """How a job ended, as its child reports it. `cpu_s`, `max_rss_bytes`: used since the fork by the child and by the
    processes that it has waited for.
    """

    verb: int
    token: int
    run_s: float
    body: bytes
    cpu_s: float = 0.0
    max_rss_bytes: int = 0


class Trouble(NamedTuple):
    """Why a handler did not complete, in an outcome's body."""

    group: str | None
    message: str
    traceback: str | None = None
    delay_s: float | None = None


def pack_outcome(
    verb: int, token: int, run_s: float, body: bytes = b"", cpu_s: float = 0.0, max_rss_bytes: int = 0
) -> bytes:
    return _OUTCOME_HEAD.pack(verb, token, int(run_s * 1e6), int(cpu_s * 1e6), max_rss_bytes) + body


def pack_ready(cpu_s: float = 0.0) -> bytes:
    """The child is ready for jobs. `cpu_s`: processor time that it took to get ready."""
    return pack_outcome(Verb.READY, 0, 0.0, b"", cpu_s)


def unpack_outcome(packet: bytes) -> Outcome:
    """Raises ValueError for a packet that is too short. The caller checks the body."""
    if len(packet) < _OUTCOME_HEAD.size:
        raise ValueError(f"not an outcome: {packet!r}")
    verb, token, run_us, cpu_us, max_rss_bytes = _OUTCOME_HEAD.unpack_from(packet)
    return Outcome(verb, token, run_us / 1e6, packet[_OUTCOME_HEAD.size :], cpu_us / 1e6, max_rss_bytes)


def pack_trouble(trouble: Trouble) -> bytes:
    traceback = trouble.traceback and escaped(trouble.traceback[-MAX_TRACEBACK_CHARS:])
    group = trouble.group and escaped(trouble.group)
    return orjson.dumps((group, escaped(trouble.message[:MAX_MESSAGE_CHARS]), traceback, trouble.delay_s))


def escaped(text: str) -> str:
    """Escape what UTF-8 cannot carry: exceptions may hold lone surrogates, as file names do."""
    return text.encode(errors="backslashreplace").decode()


def unpack_trouble(body: bytes) -> Trouble:
    """Raises ValueError or TypeError for anything that `pack_trouble` does not make: children may run hostile code."""
    group, message, traceback, delay_s = orjson.loads(body)
    said = all(text is None or type(text) is str for text in (group, traceback)) and type(message) is str
    if not said or (delay_s is not None and (type(delay_s) not in (int, float) or not 0 <= delay_s <= MAX_DELAY_S)):
        raise ValueError(f"not the description of a failure: {body[:100]!r}")
    return Trouble(group, message, traceback, delay_s)


class Blob(NamedTuple):
    """The data of a job that is to be put. `kind`: json, bytes, or empty where the data stays unchanged."""

    kind: str
    raw: bytes


class Stage(NamedTuple):
    """The queue in which a completed job goes on."""

    queue: str
    delay_s: float
    depends: list[str]
    data: Blob


class Follower(NamedTuple):
    """A job to put in the same step as the completion."""

    queue: str
    klass: str
    options: dict[str, Any]
    data: Blob


class Completion(NamedTuple):
    """A completed job's result as JSON or empty, and the jobs that follow."""

    result: bytes
    next: Stage | None
    then: list[Follower]


_COMPLETION_HEAD: Final = Struct("<I")  # length of the head; the result and all data lie behind the head


def pack_completion(completion: Completion) -> list[bytes]:
    """Return the parts of the body, to be sent one after another."""
    blobs = [each.data for each in completion.then]
    following = None
    if completion.next is not None:
        queue, delay_s, depends, data = completion.next
        following = (queue, delay_s, depends, data.kind, len(data.raw))
        blobs.insert(0, data)
    then = [(one.queue, one.klass, one.options, one.data.kind, len(one.data.raw)) for one in completion.then]
    head = orjson.dumps((len(completion.result), following, then))
    return [_COMPLETION_HEAD.pack(len(head)), head, completion.result, *(blob.raw for blob in blobs)]


def unpack_completion(body: bytes) -> Completion:
    """Raises ValueError or TypeError for anything that `pack_completion` does not make. Names and options of the jobs
    are not checked here.
    """
    if len(body) < _COMPLETION_HEAD.size:
        raise ValueError(f"not a completion: {body!r}")
    head_bytes = _COMPLETION_HEAD.unpack_from(body)[0]
    if head_bytes > MAX_HEAD_BYTES:
        raise ValueError(f"{head_bytes} bytes about what follows, the limit is {MAX_HEAD_BYTES}")
    start = _COMPLETION_HEAD.size + head_bytes
    head = body[_COMPLETION_HEAD.size : start]
    if (parts := sum(map(head.count, _BETWEEN_PARTS))) > MOST_HEAD_PARTS:
        raise ValueError(f"{parts} values in what is said of the jobs that follow, the limit is {MOST_HEAD_PARTS}")
    result_bytes, following, then = orjson.loads(head)
    rest = _Rest(body, start)
    result = rest.take(result_bytes)
    stage = None
    if following is not None:
        queue, delay_s, depends, kind, size_bytes = following
        stage = Stage(queue, delay_s, depends, Blob(_kind(kind, "", "json", "bytes"), rest.take(size_bytes)))
    if type(then) is not list or len(then) > MOST_FOLLOWERS:
        raise ValueError("not a list of jobs to put")
    followers = []
    for queue, klass, options, kind, size_bytes in then:
        if type(options) is not dict:
            raise ValueError(f"not the options of a job: {options!r:.100}")
        followers.append(Follower(queue, klass, options, Blob(_kind(kind, "json", "bytes"), rest.take(size_bytes))))
    rest.check_end()
    return Completion(result, stage, followers)


class _Rest:
    """The unread part of a body."""

    def __init__(self, body: bytes, start: int) -> None:
        self._body = body
        self._at = start

    def take(self, size_bytes: object) -> bytes:
        if type(size_bytes) is not int or not 0 <= size_bytes <= len(self._body) - self._at:
            raise ValueError(f"not a size: {size_bytes!r:.100}")
        self._at += size_bytes
        return self._body[self._at - size_bytes : self._at]

    def check_end(self) -> None:
        if self._at != len(self._body):
            raise ValueError(f"{len(self._body) - self._at} bytes too many")


def _kind(kind: object, *known: str) -> str:
    if type(kind) is not str or kind not in known:
        raise ValueError(f"no kind of data: {kind!r:.100}")
    return kind


class ProgressReport(NamedTuple):
    """How far a job is, from 0 to 1, and a short text."""

    fraction: float
    text: str


def pack_progress(token: int, progress: ProgressReport) -> bytes:
    return pack_outcome(Verb.PROGRESS, token, 0.0, orjson.dumps(tuple(progress)))


def unpack_progress(body: bytes) -> ProgressReport:
    """Raises ValueError or TypeError for anything that `pack_progress` does not make."""
    fraction, text = orjson.loads(body)
    return ProgressReport(*checked_progress(fraction, text))


class Suspension(NamedTuple):
    """The signal that a job waits for, and for how long at the most. None: without an end."""

    name: str
    timeout_s: float | None


def pack_suspension(suspension: Suspension) -> bytes:
    return orjson.dumps(tuple(suspension))


def unpack_suspension(body: bytes) -> Suspension:
    """Raises ValueError or TypeError for anything that `pack_suspension` does not make. The outcome checks the rest."""
    return Suspension(*orjson.loads(body))


_CHECKPOINT_HEAD: Final = Struct("<QB")  # number of the checkpoint, counted per child; length of the step's name


class Checkpoint(NamedTuple):
    """A job's state for its next start, as JSON; or the result of a step of this name."""

    number: int
    state: bytes
    step: str = ""


def pack_checkpoint(token: int, number: int, state: bytes, step: str = "") -> bytes:
    name = step.encode()
    return pack_outcome(Verb.CHECKPOINT, token, 0.0, _CHECKPOINT_HEAD.pack(number, len(name)) + name + state)


def unpack_checkpoint(body: bytes) -> Checkpoint:
    """Raises ValueError for anything that `pack_checkpoint` does not make."""
    if len(body) <= _CHECKPOINT_HEAD.size:
        raise ValueError(f"not a checkpoint: {body!r}")
    number, name_bytes = _CHECKPOINT_HEAD.unpack_from(body)
    state_at = _CHECKPOINT_HEAD.size + name_bytes
    step, state = body[_CHECKPOINT_HEAD.size : state_at].decode(), body[state_at:]
    if len(state) > STATE_BYTES:
        raise ValueError(f"a checkpoint of {len(state)} bytes, the limit is {STATE_BYTES}")
    orjson.loads(state)
    return Checkpoint(number, state, step and checked_name("step", step))


_WANTED: Final = Struct("<QII")


class ResultsWanted(NamedTuple):
    """A job wants what its parents have left, from this one on, and at most `most`."""

    number: int  # of the question, counted per child
    first: int
    most: int


def pack_wanted(token: int, wanted: ResultsWanted) -> bytes:
    return pack_outcome(Verb.RESULTS, token, 0.0, _WANTED.pack(*wanted))


def unpack_wanted(body: bytes) -> ResultsWanted:
    """Raises ValueError for anything that `pack_wanted` does not make."""
    if len(body) != _WANTED.size:
        raise ValueError(f"no question for results: {body[:100]!r}")
    wanted = ResultsWanted(*_WANTED.unpack(body))
    if not 1 <= wanted.most <= MOST_RESULTS:
        raise ValueError(f"a question for {wanted.most} results, the limit is {MOST_RESULTS}")
    return wanted


#: A handler waits in `job.stream` before it sends more than this ahead of the last `Taken`.
MOST_CHUNKS: Final = 64
MOST_CHUNK_BYTES: Final = 128 * 1024


def pack_chunk(token: int, chunk: bytes) -> bytes:
    return pack_outcome(Verb.CHUNK, token, 0.0, chunk)


# talk: master -> child -----------------------------------------------------------------------------------------------


#: Reason of a notice that announces the time limit instead of an interruption.
TIMEOUT: Final = "timeout"


class Notice(NamedTuple):
    """The job with this token has to stop. `reason` is `Interrupted.reason`, or TIMEOUT for `SoftTimeout`.

    `gently`: nothing is raised, and `should_stop` becomes True. `at_checkpoint`: the next checkpoint raises it after
    the state is stored. Another notice follows if no checkpoint comes.
    """

    token: int
    reason: str
    message: str = ""
    gently: bool = False
    at_checkpoint: bool = False


def pack_notice(notice: Notice) -> bytes:
    return orjson.dumps(tuple(notice))  # orjson takes tuples, not their subclasses


_STORED: Final = Struct("<BQ?")  # the mark 0 cannot begin a JSON text
_STORED_MARK: Final = 0


class Stored(NamedTuple):
    """The fate of all checkpoints up to this number. `kept`: Redis has them; otherwise the lease is lost."""

    number: int
    kept: bool


def pack_stored(stored: Stored) -> bytes:
    return _STORED.pack(_STORED_MARK, *stored)


_PAGE_MARK: Final = 2  # cannot begin a JSON text either


class ResultsPage(NamedTuple):
    """The answer to ResultsWanted: as many of the results as one packet holds, one or more."""

    number: int
    total: int  # of the job's parents
    results: Sequence[ParentResult] = ()


def _pack_result(parent: ParentResult) -> bytes:
    jid, result, failure = parent
    if failure is not None:
        failure = failure[0][:MAX_MESSAGE_CHARS], failure[1][:MAX_MESSAGE_CHARS]
    row = orjson.dumps((jid, result and result.decode(errors="replace"), failure))
    if len(row) > _MOST_PAGE_BYTES:  # no JSON of 64 KiB becomes so long
        row = orjson.dumps((jid, None, ("unknown", "what Redis has of the result is no JSON of ours")))
    return row


def pack_page(page: ResultsPage) -> bytes:
    rows: list[orjson.Fragment] = []
    size_bytes = 0
    for each in page.results:
        row = _pack_result(each)
        size_bytes += len(row)
        if rows and size_bytes > _MOST_PAGE_BYTES:
            break
        rows.append(orjson.Fragment(row))
    return bytes((_PAGE_MARK,)) + orjson.dumps((page.number, page.total, rows))


def _unpack_page(packet: bytes) -> ResultsPage:
    number, total, rows = orjson.loads(packet[1:])
    results = [
        ParentResult(jid, result and result.encode(), failure and (failure[0], failure[1]))
        for jid, result, failure in rows
    ]
    return ResultsPage(number, total, results)


_TAKEN: Final = Struct("<BQQ")
_TAKEN_MARK: Final = 1  # cannot begin a JSON text either


class Taken(NamedTuple):
    """Redis has taken so many chunks of the job with this token."""

    token: int
    chunks: int


def pack_taken(taken: Taken) -> bytes:
    return _TAKEN.pack(_TAKEN_MARK, *taken)


def unpack_word(packet: bytes) -> Notice | Stored | ResultsPage | Taken:
    """Unpack a packet that the master sent on `talk`."""
    if packet[0] == _PAGE_MARK:
        return _unpack_page(packet)
    if packet[0] == _TAKEN_MARK:
        _mark, token, chunks = _TAKEN.unpack(packet)
        return Taken(token, chunks)
    if packet[0] == _STORED_MARK:
        _mark, number, kept = _STORED.unpack(packet)
        return Stored(number, kept)
    return Notice(*orjson.loads(packet))
