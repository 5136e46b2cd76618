"""What master, zygote and children say to each other. Runs in all three; owns the wire formats, and the names of the
directories that all of them know; does no I/O.

control  master <-> zygote    one JSON array per packet, its first element the message's name, descriptors beside it
jobs     master  -> child     one job per packet (`pack_job`); the master keeps a duplicate of the receiving end
talk     master <-> child     outcomes, readiness, progress, checkpoints and their answers, notices (`pack_outcome`,
                              `pack_ready`, `pack_progress`, `pack_checkpoint`, `pack_stored`, `pack_notice`);
                              what follows a completion is packed by `pack_completion`
"""

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple

import orjson

from supervisor.engine.model.jobs import MOST_FOLLOWERS
from supervisor.engine.model.validation import STATE_BYTES, checked_progress

#: In place of a control message that is too long for a packet: it is in the memfd beside it.
IN_MEMFD: Final = b"memfd"
#: Where exec hands the zygote its control socket.
CONTROL_FD: Final = 3
#: Where a child writes Python stacks: a file of the master's, which outlives it.
STACKS_FD: Final = 4
#: Larger packets are refused by a default socket buffer; larger payloads travel as a sealed memfd.
MAX_PACKET_BYTES: Final = 200_000
INLINE_PAYLOAD_BYTES: Final = 16 * 1024
MAX_DELAY_S: Final = 1e9
INLINE_COMPLETION_BYTES: Final = 128 * 1024
MAX_RESULT_BYTES: Final = 64 * 1024
MAX_MESSAGE_CHARS: Final = 4 * 1024
MAX_TRACEBACK_CHARS: Final = 16 * 1024
#: What one completion may bring along, of all together.
MAX_COMPLETION_BYTES: Final = 257 * 1024 * 1024
#: Of that, what is said of those jobs beside their data: JSON that is decoded takes many times its size.
MAX_HEAD_BYTES: Final = 16 * 1024 * 1024
#: Of values in that, counted before it is decoded: an empty object is three bytes there, and 72 when it is decoded. Far
#: more than all jobs that may follow have.
MOST_HEAD_PARTS: Final = 1_000_000
_BETWEEN_PARTS: Final = (b"[", b"{", b",")


def zygote_directory(workdir: str, zygote: int) -> str:
    """Where the working directories of its children lie. `workdir`: the master's."""
    return f"{workdir}/zygote-{zygote}"


def child_directory(of_zygote: str, child: int) -> str:
    """The working directory of a child, which it makes itself. `of_zygote`: its zygote's."""
    return f"{of_zygote}/child-{child}"


# control: master -> zygote -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Boot:
    """The first message: what to import and how children run."""

    handlers: str
    workdir: str
    jobs_per_child: int
    on_error: str
    memory_limit_bytes: int  # of a job whose handler has none of its own; 0: none
    open_files: int  # the limit that children have; the master's own is higher
    workdir_limit_bytes: int = 0  # of one file that a job writes; 0: none
    sandbox: str = "basic"  # the level of handlers that have none of their own
    readable: list[str] = field(default_factory=list)  # beside the default list, under strict
    hidden: list[str] = field(default_factory=list)  # not to be readable under strict, wherever they lie
    child_user: list[int] = field(default_factory=list)  # uid and gid; empty: as the level has it
    directory: str = ""  # to go to before anything is imported; empty: stay
    held_back: list[str] = field(default_factory=list)  # names of variables that handlers do not get


class Spawn(NamedTuple):
    """Fork child number `child`. With it: its ends of `jobs` and `talk`, the pipe for its output, and the file for its
    stacks.
    """

    child: int


# control: zygote -> master -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """Handlers are imported. `handlers`: name -> settings (`HandlerSettings` as a dict); `threads`, `descriptors`: what
    they have left running and open, in words; `before_fork`: whether a hook of theirs runs before each fork; `sandbox`:
    each part of it, and "on" or why not; `files`: what the handlers were loaded from.
    """

    handlers: dict[str, dict[str, Any]]
    threads: list[str]
    descriptors: list[str]
    before_fork: bool = False
    sandbox: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BootFailed:
    """The handlers cannot be imported; the zygote exits. `files`: as in Ready, as far as it came, and that in which it
    went wrong.
    """

    message: str
    traceback: str
    files: list[str] = field(default_factory=list)


class Spawned(NamedTuple):
    """With it: the child's pidfd, opened right after the fork."""

    child: int
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """There is no such child. `traceback`: of a hook of the handlers; empty: the kernel refused the fork."""

    child: int
    message: str
    traceback: str = ""


class Reaped(NamedTuple):
    """A child has ended and nothing of its process tree is left. `status` is wait(2)'s."""

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
    # What is said of each child is a tuple: the zygote makes it between two forks, where each page touched is copied.
    values = message if isinstance(message, tuple) else [getattr(message, field.name) for field in fields(message)]
    return orjson.dumps((type(message).__name__, *values))


def unpack_control(packet: bytes) -> Control:
    """Raises ValueError or TypeError for what is no message."""
    name, *values = orjson.loads(packet)
    if name not in _CONTROL:
        raise ValueError(f"no message of the control socket: {name!r:.100}")
    message: Control = _CONTROL[name](*values)
    return message


class Profile(NamedTuple):
    """What a child is confined to with its first job, and stays so: it gets jobs of this profile only."""

    level: str  # of the sandbox
    network: bool


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """What the master knows of a handler; None: the `run` flag, the config or the default decides."""

    timeout_s: float | None = None
    retries: int | None = None
    on_error: str | None = None
    on_death: str | None = None
    max_deaths: int | None = None
    at_most_once: bool = False
    memory_bytes: int | None = None
    sandbox: str | None = None
    network: bool | None = None  # None: as the sandbox has it
    on_cut_off: str | None = None

    def within(self, level: str) -> "HandlerSettings":
        """The same with what the level of the run decides where the handler does not."""
        sandbox = self.sandbox or level
        return replace(self, sandbox=sandbox, network=sandbox != "strict" if self.network is None else self.network)

    @property
    def profile(self) -> Profile:
        """Of the handler in its run. As the zygote tells it, all is decided."""
        return Profile(self.sandbox or "basic", self.network is not False)

    def circle(self, klass: str) -> "tuple[Profile, str]":
        """Whose jobs may share a child with its own. A job can read those that are sent ahead to its child, and answer
        them, and what it leaves in the process sees all that come later. So under strict nobody shares a child with
        another klass; else those of one profile trust each other.
        """
        profile = self.profile
        return profile, klass if profile.level == "strict" else ""


# jobs: master -> child -----------------------------------------------------------------------------------------------

_JOB_HEAD: Final = Struct("<QIB")  # token, length of the meta part, flags
_IN_MEMFD: Final = 1
_IS_BYTES: Final = 2


class JobMessage(NamedTuple):
    """A job as a child receives it. `payload` is None while it waits in the memfd that came with the packet, and the
    `saved_bytes` of its last checkpoint before it.
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

    def filled(self, body: bytes) -> "JobMessage":
        """With what has lain in the memfd, or behind the head: the last checkpoint as JSON, and the payload."""
        if not self.saved_bytes:
            return self._replace(payload=body)
        return self._replace(saved=body[: self.saved_bytes], payload=body[self.saved_bytes :])


Meta = tuple[str, str, str, int, int, int, int, list[str], str | None, bool, float]
_META_LENGTH: Final = 11
_job_message: Final = tuple.__new__  # without the names: JobMessage(...) takes as long as all the rest of unpacking


def pack_job(
    token: int, meta: Meta, payload: bytes | None, is_bytes: bool, saved: bytes | None = None, trace: str | None = None
) -> bytes:
    """`meta`: the fields of JobMessage from jid to waited_s. `payload` None: it is in a memfd, behind `saved`."""
    if saved or trace:
        head = orjson.dumps((*meta, len(saved) if saved else 0, trace))
        payload = saved + payload if saved and payload is not None else payload
    else:
        head = orjson.dumps(meta)
    flags = (_IS_BYTES if is_bytes else 0) | (_IN_MEMFD if payload is None else 0)
    return _JOB_HEAD.pack(token, len(head), flags) + head + (payload or b"")


def unpack_job(packet: bytes) -> JobMessage:
    token, length, flags = _JOB_HEAD.unpack_from(packet)
    body_at = _JOB_HEAD.size + length
    meta = orjson.loads(packet[_JOB_HEAD.size : body_at])
    is_bytes = bool(flags & _IS_BYTES)
    payload = None if flags & _IN_MEMFD else packet[body_at:]
    if len(meta) == _META_LENGTH:
        return _job_message(JobMessage, (token, *meta, is_bytes, payload, None, 0, None))
    *meta, saved_bytes, trace = meta
    message = _job_message(JobMessage, (token, *meta, is_bytes, None, None, saved_bytes, trace))
    return message if payload is None else message.filled(payload)


def token_of(packet: bytes) -> int:
    """The token of a packed job, for what was taken back."""
    token: int = _JOB_HEAD.unpack_from(packet)[0]
    return token


# talk: child -> master -----------------------------------------------------------------------------------------------


class Verb(IntEnum):
    """What a child says on `talk`, as the packet's first byte."""

    READY = 0
    COMPLETED = 1  # body: the result as JSON, or nothing
    RETRIED = 2  # body: Trouble as JSON
    FAILED = 3  # body: Trouble as JSON
    INTERRUPTED = 4  # the notice left the handler
    FOLLOWED = 5  # completed, and something follows; body: a Completion, here or in the memfd that came with the packet
    PROGRESS = 6  # no outcome: how far the job is; body: Progress as JSON
    OVERFLOWED = (
        7  # no outcome: a MemoryError under our limit has left the handler; body: Trouble as JSON; it exits now
    )
    CHECKPOINT = 8  # no outcome: what to store; body: its number and the state as JSON; the handler waits for `Stored`


_OUTCOME_HEAD: Final = Struct("<BQQQQ")  # verb, token, run time in µs, processor time in µs, bytes


class Outcome(NamedTuple):
    """How a job ended, in its child's words. `cpu_s`, `max_rss_bytes`: what the child and all that it has waited for
    have used since its fork.
    """

    verb: int
    token: int
    run_s: float
    body: bytes
    cpu_s: float = 0.0
    max_rss_bytes: int = 0


class Trouble(NamedTuple):
    """Why a handler did not complete, as it travels in an outcome's body."""

    group: str | None
    message: str
    traceback: str | None = None
    delay_s: float | None = None


def pack_outcome(
    verb: int, token: int, run_s: float, body: bytes = b"", cpu_s: float = 0.0, max_rss_bytes: int = 0
) -> bytes:
    return _OUTCOME_HEAD.pack(verb, token, int(run_s * 1e6), int(cpu_s * 1e6), max_rss_bytes) + body


def pack_ready(cpu_s: float = 0.0) -> bytes:
    """It has become itself, and has used so much of the processor for that."""
    return pack_outcome(Verb.READY, 0, 0.0, b"", cpu_s)


def unpack_outcome(packet: bytes) -> Outcome:
    """Raises ValueError for what is too short to be one; the body is judged by who reads it."""
    if len(packet) < _OUTCOME_HEAD.size:
        raise ValueError(f"not an outcome: {packet!r}")
    verb, token, run_us, cpu_us, max_rss_bytes = _OUTCOME_HEAD.unpack_from(packet)
    return Outcome(verb, token, run_us / 1e6, packet[_OUTCOME_HEAD.size :], cpu_us / 1e6, max_rss_bytes)


def pack_trouble(trouble: Trouble) -> bytes:
    traceback = trouble.traceback and sayable(trouble.traceback[-MAX_TRACEBACK_CHARS:])
    group = trouble.group and sayable(trouble.group)
    return orjson.dumps((group, sayable(trouble.message[:MAX_MESSAGE_CHARS]), traceback, trouble.delay_s))


def sayable(text: str) -> str:
    """Text that UTF-8 can carry: an exception may hold lone surrogates, as file names do."""
    return text.encode(errors="backslashreplace").decode()


def unpack_trouble(body: bytes) -> Trouble:
    """Raises ValueError or TypeError for what `pack_trouble` does not make: children may run hostile code."""
    group, message, traceback, delay_s = orjson.loads(body)
    said = all(text is None or type(text) is str for text in (group, traceback)) and type(message) is str
    if not said or (delay_s is not None and (type(delay_s) not in (int, float) or not 0 <= delay_s <= MAX_DELAY_S)):
        raise ValueError(f"not the description of a failure: {body[:100]!r}")
    return Trouble(group, message, traceback, delay_s)


class Blob(NamedTuple):
    """The data of a job to be. `kind`: json, bytes, or nothing where it stays as it is."""

    kind: str
    raw: bytes


class Stage(NamedTuple):
    """Where a completed job goes on."""

    queue: str
    delay_s: float
    depends: list[str]
    data: Blob


class Follower(NamedTuple):
    """A job to put in the same step."""

    queue: str
    klass: str
    options: dict[str, Any]
    data: Blob


class Completion(NamedTuple):
    """A completed job's result as JSON, or nothing, and what follows."""

    result: bytes
    next: Stage | None
    then: list[Follower]


_COMPLETION_HEAD: Final = Struct("<I")  # length of the head; behind it lie the result and all data, one after another


def pack_completion(completion: Completion) -> list[bytes]:
    """Its parts, to be sent one after another."""
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
    """Raises ValueError or TypeError for what `pack_completion` does not make; what is said of jobs is not judged."""
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
    """What is left of a body."""

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


class Progress(NamedTuple):
    """How far a job is, from 0 to 1, and a word about it."""

    fraction: float
    text: str


def pack_progress(token: int, progress: Progress) -> bytes:
    return pack_outcome(Verb.PROGRESS, token, 0.0, orjson.dumps(tuple(progress)))


def unpack_progress(body: bytes) -> Progress:
    """Raises ValueError or TypeError for what `pack_progress` does not make."""
    fraction, text = orjson.loads(body)
    return Progress(*checked_progress(fraction, text))


_CHECKPOINT_HEAD: Final = Struct("<Q")  # its number: one above the last of this child


class Checkpoint(NamedTuple):
    """What a job wants to be stored for its next start, as JSON."""

    number: int
    state: bytes


def pack_checkpoint(token: int, number: int, state: bytes) -> bytes:
    return pack_outcome(Verb.CHECKPOINT, token, 0.0, _CHECKPOINT_HEAD.pack(number) + state)


def unpack_checkpoint(body: bytes) -> Checkpoint:
    """Raises ValueError for what `pack_checkpoint` does not make."""
    if len(body) <= _CHECKPOINT_HEAD.size:
        raise ValueError(f"not a checkpoint: {body!r}")
    state = body[_CHECKPOINT_HEAD.size :]
    if len(state) > STATE_BYTES:
        raise ValueError(f"a checkpoint of {len(state)} bytes, the limit is {STATE_BYTES}")
    orjson.loads(state)
    return Checkpoint(_CHECKPOINT_HEAD.unpack_from(body)[0], state)


# talk: master -> child -----------------------------------------------------------------------------------------------


#: In place of the reason of an interruption: the time limit is near.
TIMEOUT: Final = "timeout"


class Notice(NamedTuple):
    """The job with this token is to stop; `reason` is `Interrupted.reason`, or TIMEOUT for `SoftTimeout`.

    `gently`: nothing is raised, `should_stop` becomes True. `at_checkpoint`: it is raised by the next checkpoint, once
    that is stored; another notice follows if none comes.
    """

    token: int
    reason: str
    message: str = ""
    gently: bool = False
    at_checkpoint: bool = False


def pack_notice(notice: Notice) -> bytes:
    return orjson.dumps(tuple(notice))  # orjson knows tuples, not their subclasses


_STORED: Final = Struct("<BQ?")  # no JSON begins with a byte 0
_STORED_MARK: Final = 0


class Stored(NamedTuple):
    """What has become of the checkpoint with this number, and of all before it: Redis has it, or the lease is lost."""

    number: int
    kept: bool


def pack_stored(stored: Stored) -> bytes:
    return _STORED.pack(_STORED_MARK, *stored)


def unpack_word(packet: bytes) -> Notice | Stored:
    """What the master says on `talk`."""
    if packet[0] == _STORED_MARK:
        _mark, number, kept = _STORED.unpack(packet)
        return Stored(number, kept)
    return Notice(*orjson.loads(packet))
