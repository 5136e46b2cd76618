"""The settings of `run`. Read in the command's process before the master starts, and constant afterwards.

Owns the table of settings, the exit codes, and the formats of durations and sizes. Must not talk to Redis, nor import
what a child must not carry: handlers' options use the same parsers.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from supervisor import redis_url
from supervisor.linux import cgroups


class Exit(IntEnum):
    """The exit codes of all commands. The numbers are public."""

    OK = 0
    REFUSED = 1  # the engine refused
    USAGE = 2  # unknown command or flag, missing or malformed argument
    UNREACHABLE = 69  # no Redis at start
    INTERNAL = 70  # a bug of Leasehold
    HANDLERS = 71  # the handlers do not boot
    NOT_HANDED_BACK = 75  # drained without Redis: the leases will expire
    CONFIG = 78  # a setting has a bad value
    INTERRUPTED = 130  # Ctrl-C in a command that has nothing to drain


class ConfigError(Exception):
    """All errors of the settings, one sentence each, in `problems`."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", re.ASCII)
DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)", re.ASCII)
SIZE_UNITS_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
#: Control characters, and the surrogates that Python decodes non-UTF-8 bytes to.
NOT_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
#: The form of a weight in a weighted order. A queue's name may end like this too.
LIKE_A_WEIGHT = re.compile(r":\d+$", re.ASCII)

#: Ten years. A longer duration was meant as 0 (none), or has a wrong unit.
LONGEST_S = 10 * 365 * 86400.0
MOST_PROCESSES = 4096
#: Each look costs a round trip. Where nothing waits in Redis, a request to a supervisor waits for the next look.
SHORTEST_POLL_S = 0.02
SHORTEST_LEASE_S, LONGEST_LEASE_S = 1.0, 86400.0
LONGEST_POLL_S = 30.0
#: Time between TERM and KILL in Kubernetes and systemd's templates. Docker Compose gives 10 s.
CONTAINER_GRACE_S = 30.0
#: Time for a killed process tree to end, and for the last exchange with Redis.
REAP_S = 1.0
LAST_EXCHANGE_S = 1.0


def parse_duration(text: str) -> float:
    """Return the seconds of `30`, `30s`, `500ms`, `5m`, `2h`, `7d`. Raises ValueError saying what is expected."""
    match = DURATION.fullmatch(text)
    if not match:
        raise ValueError("is not a duration; write it like 30, 30s, 500ms, 5m, 2h or 7d")
    seconds = float(match[1]) * DURATION_UNITS_S[match[2]]
    if seconds > LONGEST_S:
        raise ValueError("is longer than ten years; check the unit")
    return seconds


def parse_size(text: str) -> int:
    """Return the bytes of `4096`, `64K`, `256M`, `1G`, `1.5G` (powers of 1024). Raises ValueError saying what is
    expected.
    """
    match = SIZE.fullmatch(text)
    if not match:
        raise ValueError("is not a size; write it like 4096, 64K, 256M or 1G")
    size_bytes = float(match[1]) * SIZE_UNITS_BYTES[match[2]]
    if size_bytes >= 2**63:
        raise ValueError("is more than any machine has; check the unit")
    return int(size_bytes)


def megabytes(size_bytes: float) -> str:
    """Format a size for people."""
    return f"{size_bytes / 2**20:,.1f}".removesuffix(".0") + " MB"


def _positive_duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds == 0:
        raise ValueError("must be more than 0")
    return seconds


def parse_poll(text: str) -> float:
    """Return the seconds of an interval, or 0 for `none`. Raises ValueError saying what is expected."""
    seconds = 0.0 if text == "none" else parse_duration(text)
    if text != "none" and not SHORTEST_POLL_S <= seconds <= LONGEST_POLL_S:
        raise ValueError(f"must be none, or between {SHORTEST_POLL_S * 1000:g}ms and {LONGEST_POLL_S:g}s")
    return seconds


def _lease_ttl(text: str) -> float:
    seconds = parse_duration(text)
    if not SHORTEST_LEASE_S <= seconds <= LONGEST_LEASE_S:
        raise ValueError("must be between 1s and 24h: it is how long a lost host's jobs wait")
    return seconds


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ValueError("is not a whole number of 0 or more")
    return int(text)


def _size_or_none(text: str) -> int:
    return 0 if text == "none" else parse_size(text)


def _size_or_auto(text: str) -> int | None:
    return None if text == "auto" else _size_or_none(text)


def _duration_or_none(text: str) -> float:
    return 0.0 if text == "none" else parse_duration(text)


def parse_processes(text: str) -> tuple[int, int] | None:
    """Return minimum and maximum of `4` or `2:8`, or None for `auto`. Raises ValueError saying what is expected."""
    if text == "auto":
        return None
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text, re.ASCII)
    fewest, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= fewest <= most <= MOST_PROCESSES:
        raise ValueError(f"must be auto, N or MIN:MAX, whole numbers from 1 to {MOST_PROCESSES}")
    return fewest, most


def _switch(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError("must be yes or no")
    return text == "yes"


def _variable(text: str) -> str:
    if not text or "=" in text:
        raise ValueError("must be the name of an environment variable")
    if text.startswith("LEASEHOLD_"):
        raise ValueError("is ours, and no handler ever sees it; give what it is to know another name")
    return text


def _user(text: str) -> tuple[int, int]:
    """Return uid and gid of `USER`, `UID`, `USER:GROUP` or `UID:GID`."""
    import grp
    import pwd

    user, _, group = text.partition(":")
    try:
        known = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        uid, gid = known.pw_uid, known.pw_gid
    except KeyError:
        if not user.isdecimal():
            raise ValueError("is no user of this machine; give a name that there is, or UID:GID") from None
        uid = gid = int(user)
    if group:
        try:
            gid = int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
        except KeyError:
            raise ValueError("has a group that this machine does not know; give its number") from None
    if not 0 < uid < 2**32 - 1 or not 0 < gid < 2**32 - 1:
        raise ValueError("must be neither root nor beyond what an id can be")
    return uid, gid


def _readable(text: str) -> Path:
    path = Path(text).absolute()
    if not path.exists():
        raise ValueError("must be an existing file or directory")
    return path


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be {', '.join(allowed[:-1])} or {allowed[-1]}")
        return text

    return parse


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address of a listener."""

    host: str  # "" for all interfaces
    port: int  # 0 for any free port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_ADDRESS = re.compile(r"(?:(?P<host>[^\[\]:/\s]*|\[(?P<six>[0-9A-Fa-f:.]+)\]):)?(?P<port>\d{1,5})", re.ASCII)


_HOST_NAME = re.compile(r"(?=.{1,253}$)(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?", re.ASCII)


def parse_address(text: str) -> ListenAddress | None:
    """Return the address of `9464` or `:9464` (all interfaces), `127.0.0.1:9464`, `[::1]:9464`, or None for `none`.

    Raises ValueError saying what is expected.
    """
    if text == "none":
        return None
    match = _ADDRESS.fullmatch(text)
    if not match or int(match["port"]) > 65535:
        raise ValueError("must be none, PORT or HOST:PORT, like 9464, 127.0.0.1:9464 or [::1]:9464")
    return ListenAddress(match["six"] or match["host"] or "", int(match["port"]))


def _host_name(text: str) -> str:
    if not _HOST_NAME.fullmatch(text):
        raise ValueError("must be the name of a host, like jobs.example.com, without a port")
    return text.lower().removesuffix(".")


def _idle(text: str) -> float:
    return 0.0 if text == "never" else _positive_duration(text)


def _name_or_none(text: str) -> str:
    if text == "none":
        return ""
    if not text or len(text.encode()) > 64 or NOT_TEXT.search(text):
        raise ValueError("must be none, or a name of at most 64 bytes")
    return text


def _namespace(text: str) -> str:
    if len(text.encode()) > 64 or set(text) & set("{}*?[]\\"):
        raise ValueError("must be at most 64 bytes with none of {}*?[]\\ in it")
    return text


def _module(text: str) -> str:
    dotted = text.removeprefix("./").rstrip("/").removesuffix(".py").replace("/", ".")
    if not all(part.isidentifier() for part in dotted.split(".")):
        raise ValueError("must be the import path of a package, like handlers or app.handlers")
    return dotted


def _function(text: str) -> str:
    module, colon, name = text.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError("must be the import path of a module and a function in it, like cloud.redis:token")
    return text


def _readable_file(text: str) -> str:
    if not os.path.isfile(text) or not os.access(text, os.R_OK):
        raise ValueError("must be a file that is there and can be read")
    return os.path.abspath(text)


def _release(text: str) -> str:
    if not text.isprintable() or len(text.encode()) > 64:
        raise ValueError("must be a name of at most 64 bytes, like 2026-11-24 or v1.7")
    return text


def _queue(text: str) -> str:
    # The engine reads the list of queues and their order.
    return text.strip()


def _directory(text: str) -> Path:
    path = Path(text).absolute()
    if not path.is_dir():
        raise ValueError("must be an existing directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError("must be a directory that this user may write to")
    return path


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of `run`: flag, variable, parser and help."""

    flag: str
    #: Attribute of RunConfig.
    field: str
    parse: Callable[[str], Any]
    #: The value as a user would write it. None: decided elsewhere, as the help says.
    default: str | None
    metavar: str
    help: str
    #: Repeated as a flag, separated by commas in the environment.
    repeatable: bool = False
    #: True if the value may hold a password.
    secret: bool = False
    #: A flag without a value. The variable says yes or no.
    switch: bool = False

    @property
    def variable(self) -> str:
        """The environment variable of the setting."""
        return "LEASEHOLD_" + self.flag.upper().replace("-", "_")

    def shown(self, text: str) -> str:
        """Return the value for an error message, quoted, without a password."""
        return repr(redis_url.redacted(text) if self.secret else text)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "redis-url", "redis_url", redis_url.checked, None, "URL",
        "redis://…, rediss://…, unix:///…, redis+sentinel://…, redis+cluster://… or embedded: (default: a private"
        " server under .leasehold/)", secret=True,
    ),
    Setting(
        "redis-password-file", "redis_password_file", _readable_file, None, "FILE",
        "file with the password of --redis-url, read again for each connection",
    ),
    Setting(
        "redis-credentials", "redis_credentials", _function, None, "MODULE:FUNCTION",
        "function that returns user and password for each connection, like cloud.redis:token",
    ),
    Setting(
        "redis-poll", "redis_poll_s", parse_poll, "none", "DURATION",
        "look for work and requests this often, where a proxy or a service lets no command wait in Redis; none: wait"
        " there",
    ),
    Setting("namespace", "namespace", _namespace, "leasehold", "NAME", "prefix of every key in Redis"),
    Setting("handlers", "handlers", _module, "handlers", "PACKAGE", "package whose modules hold the handlers"),
    Setting(
        "queue", "queue", _queue, "default", "NAME",
        "queue to serve, or a glob like email-*, or !name to leave out; repeat it for several", repeatable=True,
    ),
    Setting(
        "order", "order", _one_of("strict", "round-robin", "random", "weighted"), "strict", "ORDER",
        "how several queues are served: strict (as listed), round-robin, random or weighted (--queue high:3)",
    ),
    Setting(
        "processes", "processes", parse_processes, "auto", "N",
        "jobs that run at once; MIN:MAX: as many as there is work for; auto: the CPUs this process may use (cgroup"
        " quota, affinity), if there is memory for them",
    ),
    Setting(
        "jobs-per-child", "jobs_per_child", _count, "1", "N",
        "jobs a child runs before it is replaced; 0: no limit. With more than 1, handlers that share a child must trust"
        " each other",
    ),
    Setting(
        "child-age", "child_age_s", _duration_or_none, "none", "DURATION",
        "age at which a child is replaced, once its job has ended; none: no limit",
    ),
    Setting(
        "child-memory", "child_memory_bytes", _size_or_none, "none", "SIZE",
        "private memory at which a child is replaced, once its job has ended; none: no limit",
    ),
    Setting(
        "job-timeout", "job_timeout_s", parse_duration, "30m", "DURATION",
        "time limit of a job that has none of its own; 0: none",
    ),
    Setting(
        "on-error", "on_error", _one_of("retry", "fail"), "retry", "WHAT",
        "what an exception in a handler does: retry or fail",
    ),
    Setting(
        "lease-ttl", "lease_ttl_s", _lease_ttl, None, "DURATION",
        "how long a lease lasts without renewal (default: heartbeat of the config in Redis)",
    ),
    Setting(
        "acknowledge", "acknowledge", _count, None, "N",
        "replicas that must have the end of a job before it counts, its checkpoints too, and the lease of a job that"
        " must not start twice (default: `acknowledge` of the config in Redis)",
    ),
    Setting(
        "drain-timeout", "drain_timeout_s", parse_duration, "25s", "DURATION",
        "how long running jobs may go on after SIGTERM",
    ),
    Setting(
        "term-grace", "term_grace_s", parse_duration, "3s", "DURATION",
        "how long an interrupted handler may clean up before it is killed",
    ),
    Setting(
        "on-cut-off", "on_cut_off", _one_of("go-on", "stop"), "go-on", "WHAT",
        "what a job does when this supervisor is cut off from Redis for so long that another one may have the job:"
        " go-on or stop; a persistent job always stops",
    ),
    Setting(
        "reload-timeout", "reload_timeout_s", _duration_or_none, "none", "DURATION",
        "how long running jobs may go on with the old code after a reload; none: to their end",
    ),
    Setting(
        "watch", "watch", _switch, "no", "", "for development: reload when a file of the handlers changes",
        switch=True,
    ),
    Setting(
        "release", "release", _release, None, "NAME",
        "name of the code's release, which workers and peers see (default: its git commit, if there is one)",
    ),
    Setting(
        "debug", "debug", _switch, "no", "",
        "for development: one child at a time, on this terminal and without time limits, so that breakpoint() works",
        switch=True,
    ),
    Setting(
        "max-deaths", "max_deaths", _count, None, "N",
        "crashes of its child after which a job fails for good; 0: no limit (default: max-deaths of the config in"
        " Redis)",
    ),
    Setting(
        "memory-limit", "memory_limit_bytes", _size_or_none, "none", "SIZE",
        "private memory of a job's processes, if the job has no limit of its own; none: no limit",
    ),
    Setting(
        "memory-budget", "memory_budget_bytes", _size_or_auto, "auto", "SIZE",
        "memory of all processes together; no job starts beyond it; auto: nine tenths of the cgroup's limit",
    ),
    Setting(
        "workdir", "workdir", _directory, None, "DIRECTORY",
        "parent of the children's working directories (default: a temporary directory)",
    ),
    Setting(
        "workdir-limit", "workdir_limit_bytes", _size_or_auto, "auto", "SIZE",
        "most bytes in a job's working directory, and in any file that it writes; none: no limit; auto: 10G, under"
        " --sandbox strict 1G",
    ),
    Setting(
        "sandbox", "sandbox", _one_of("none", "basic", "strict"), "basic", "LEVEL",
        "what handlers cannot reach: none, basic (the supervisor's secrets, each other), or strict (the network, and"
        " all files but their working directory and what programs need to read)",
    ),
    Setting(
        "sandbox-read", "sandbox_read", _readable, None, "PATH",
        "what handlers may read beside the default list under --sandbox strict; repeat it for several",
        repeatable=True,
    ),
    Setting(
        "child-user", "child_user", _user, None, "USER[:GROUP]",
        "user of the children of a root supervisor (default: root without capabilities, under --sandbox"
        " strict 65534)",
    ),
    Setting(
        "env", "env", _variable, None, "NAME",
        "a variable of the environment that handlers see beside the basic ones, and no others; repeat it for several"
        " (default: all but ours and what tells the Redis secret)", repeatable=True,
    ),
    Setting("log", "log", _one_of("json", "text"), None, "FORMAT", "json or text (default: text on a terminal)"),
    Setting(
        "log-level", "log_level", _one_of("debug", "info", "warning", "error"), "info", "LEVEL",
        "debug, info, warning or error; info is one line per job",
    ),
    Setting(
        "dispatch-ahead", "dispatch_ahead_s", parse_duration, "20ms", "DURATION",
        "how much work is sent to a busy child ahead of time; 0: none",
    ),
    Setting(
        "boot-timeout", "boot_timeout_s", _positive_duration, "60s", "DURATION",
        "how long the import of the handlers may take",
    ),
    Setting(
        "http", "http", parse_address, "none", "[HOST:]PORT",
        "address of /livez, /readyz, /metrics and /status; a port alone: all interfaces; none: no listener",
    ),
    Setting(
        "http-name", "http_name", _host_name, None, "NAME",
        "a public name under which /metrics and /status may be asked for; repeat it for several (default: addresses,"
        " names without a dot, and those of private domains alone)", repeatable=True,
    ),
    Setting(
        "autoscale", "autoscale", _name_or_none, "none", "NAME",
        "name in Redis of the wanted number of supervisors like this one; none: do not keep it",
    ),
    Setting(
        "exit-when-idle", "exit_when_idle_s", _idle, "never", "DURATION",
        "exit after this long without work, if nothing is due within the same time; never: do not exit",
    ),
)  # fmt: skip

DEFAULT_NAMESPACE: Final = next(setting.default for setting in SETTINGS if setting.flag == "namespace")

#: Settings of the commands that only talk to Redis.
CONNECTION: tuple[Setting, ...] = tuple(
    s
    for s in SETTINGS
    if s.flag in {"redis-url", "redis-password-file", "redis-credentials", "redis-poll", "namespace"}
)
_OF_THE_ACCOUNT: Final = tuple(s for s in SETTINGS if s.flag in {"redis-password-file", "redis-credentials"})

#: Set in the environment of handlers and their subprocesses. Its value does not matter.
IN_POOL: Final = "LEASEHOLD_IN_POOL"
VARIABLES = frozenset(setting.variable for setting in SETTINGS)
#: Kubernetes sets these in every pod for a service named leasehold or leasehold-*.
FROM_KUBERNETES = re.compile(r"LEASEHOLD(_\w+)?_(SERVICE_\w+|PORT\w*)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """All settings of `run`, checked. Durations in seconds."""

    redis_url: str | None = field(repr=False)  # None: the embedded server
    redis_password_file: str | None  # `redis_url` names it, too
    redis_credentials: str | None  # MODULE:FUNCTION
    redis_poll_s: float  # 0: waits in Redis
    namespace: str
    handlers: str
    queue: tuple[str, ...]
    order: str
    processes: int  # the minimum
    processes_most: int
    processes_reason: str
    processes_auto: bool  # as many as the machine has room for
    jobs_per_child: int  # 0: no limit
    child_age_s: float  # 0: no limit
    child_memory_bytes: int  # 0: no limit
    job_timeout_s: float  # 0: none
    on_error: str
    lease_ttl_s: float | None  # None: the config in Redis
    acknowledge: int | None  # None: the config in Redis
    drain_timeout_s: float
    term_grace_s: float
    on_cut_off: str
    reload_timeout_s: float  # 0: none
    watch: bool
    release: str | None  # None: the git commit, if there is one
    debug: bool
    max_deaths: int | None  # None: the config in Redis; 0: no limit
    memory_limit_bytes: int  # 0: none
    memory_budget_bytes: int  # 0: none
    memory_budget_reason: str
    workdir: Path | None  # None: a temporary directory
    workdir_limit_bytes: int  # 0: none
    sandbox: str
    sandbox_read: tuple[Path, ...]
    child_user: tuple[int, int] | None  # uid and gid; None: the sandbox level's default
    env: tuple[str, ...]  # empty: all variables but secrets
    log: str
    log_level: str
    dispatch_ahead_s: float
    boot_timeout_s: float
    http: ListenAddress | None  # no listener without it
    http_name: tuple[str, ...]
    autoscale: str  # empty: no autoscaling
    exit_when_idle_s: float  # 0: never
    warnings: tuple[str, ...] = ()
    terminal: str = ""  # path of the terminal that handlers get; empty: none

    @classmethod
    def load(
        cls, flags: Mapping[str, str | Sequence[str] | None], environ: Mapping[str, str], *, terminal: bool
    ) -> "RunConfig":
        """Return the settings of `run`. A flag beats the environment, and the environment beats the default.

        `flags` is by flag name without dashes, None where not given. `terminal`: the log goes to a terminal. Raises
        ConfigError with all errors.
        """
        values = read(SETTINGS, flags, environ)
        if values["sandbox"] == "strict" and _shows_password(values, flags):
            raise ConfigError([_SHOWS_PASSWORD])
        if values["acknowledge"] and values["redis_poll_s"]:
            raise ConfigError([_WAITS_FOR_REPLICAS])
        values["log"] = values["log"] or ("text" if terminal else "json")
        if values["debug"]:
            values["processes"], values["jobs_per_child"] = (1, 1), 1
        values["processes_auto"] = values["processes"] is None
        if values["processes_auto"]:
            values["processes"], values["processes_reason"] = usable_cpus()
            values["processes_most"] = values["processes"]
        else:
            fewest, most = values["processes"]
            values["processes"], values["processes_most"] = fewest, most
            values["processes_reason"] = "as given" if fewest == most else f"as there is work, from {fewest} to {most}"
        if values["workdir_limit_bytes"] is None:
            values["workdir_limit_bytes"] = {"none": 0, "basic": 10 * 2**30, "strict": 2**30}[values["sandbox"]]
        if values["memory_budget_bytes"] is None:
            values["memory_budget_bytes"], values["memory_budget_reason"] = usable_memory()
        else:
            values["memory_budget_reason"] = "as given"
        return cls(**values, warnings=tuple(_warnings(values, flags, environ)))


def read(
    settings: Iterable[Setting], flags: Mapping[str, str | Sequence[str] | None], environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the values of `settings` by field name. Raises ConfigError with all errors, unknown variables too."""
    problems = list(_unknown_variables(environ))
    values: dict[str, Any] = {}
    for setting in settings:
        name, texts = _given(setting, flags.get(setting.flag), environ)
        parsed = []
        for text in texts:
            try:
                parsed.append(setting.parse(_sound(text)))
            except ValueError as error:
                problems.append(f"{name} {setting.shown(text)} {error}.")
        if setting.repeatable:
            problems += [f"{name} names {text!r} twice; once is enough." for text in _repeated(texts)]
            values[setting.field] = tuple(parsed)
        else:
            values[setting.field] = parsed[0] if parsed else None
    if not problems:
        problems += _find_account(values, flags)
    if problems:
        raise ConfigError(problems)
    return values


def _find_account(values: dict[str, Any], flags: Mapping[str, str | Sequence[str] | None]) -> Iterator[str]:
    """Have the URL of the values name the password file. Yield what is wrong with the account.

    A variable's account belongs to the variable's URL: it is for no other server.
    """
    for setting in _OF_THE_ACCOUNT:
        if flags.get("redis-url") is not None and flags.get(setting.flag) is None:
            values[setting.field] = None
    path, function = values.get("redis_password_file"), values.get("redis_credentials")
    url = values.get("redis_url") or redis_url.EMBEDDED
    if path and function:
        yield f"--redis-password-file {path!r} and --redis-credentials {function!r} are both given; keep one of them."
    elif function and url == redis_url.EMBEDDED:
        yield f"--redis-credentials {function!r} is given, and --redis-url {redis_url.OWN_PASSWORD}."
    elif path:
        try:
            values["redis_url"] = redis_url.with_password_file(url, path)
        except ValueError as error:
            yield f"--redis-password-file {path!r} is given, and --redis-url {error}."


def _given(setting: Setting, flag: str | Sequence[str] | None, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the flag or variable that gives the value, for error messages, and its texts."""
    if flag is not None:
        name, texts = f"--{setting.flag}", [flag] if isinstance(flag, str) else list(flag)
    elif setting.variable in environ:
        name, texts = setting.variable, [environ[setting.variable]]
    else:
        return f"--{setting.flag}", [] if setting.default is None else [setting.default]
    if setting.repeatable:
        texts = [part.strip() for text in texts for part in text.split(",")]
    return name, texts


def _sound(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; give it a value or leave it out")
    if NOT_TEXT.search(text):
        raise ValueError("has a control character or a byte that is not UTF-8")
    return text


def _repeated(texts: Sequence[str]) -> list[str]:
    return sorted({text for text in texts if text and texts.count(text) > 1})


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(environ):
        known = name in VARIABLES or name == IN_POOL or FROM_KUBERNETES.fullmatch(name)
        if name.startswith("LEASEHOLD_") and not known:
            import difflib

            near = difflib.get_close_matches(name, VARIABLES, 1)
            advice = f"did you mean {near[0]}?" if near else "unset it; `leasehold run --help` lists what there is."
            yield f"{name} is not a setting of this version; {advice}"


def _warnings(values: Mapping[str, Any], flags: Mapping[str, object], environ: Mapping[str, str]) -> Iterator[str]:
    last_s = REAP_S + LAST_EXCHANGE_S
    ladder_s = values["drain_timeout_s"] + values["term_grace_s"] + last_s
    if values["debug"]:
        yield "--debug: one job at a time, on this terminal and without a time limit. It is for development only."
    if not values["term_grace_s"]:
        yield (
            "--term-grace 0: what a drain, a reload or a cancellation interrupts is killed in the same moment; nothing"
            " of it can clean up. Give it some time."
        )
    if ladder_s > CONTAINER_GRACE_S and "NOTIFY_SOCKET" not in environ:  # systemd's unit sets its own time
        yield (
            f"drain-timeout {values['drain_timeout_s']:g} s, term-grace {values['term_grace_s']:g} s and"
            f" {last_s:g} s to end what is killed and to hand back make {ladder_s:g} s, more than the"
            f" {CONTAINER_GRACE_S:g} s that a container gets by default before it is killed; give it more, or lower"
            " drain-timeout."
        )
    if values["jobs_per_child"] == 1 and (values["child_age_s"] or values["child_memory_bytes"]):
        yield (
            "--child-age and --child-memory do nothing with --jobs-per-child 1: each child is replaced after its job"
            " anyway."
        )
    for name in values["queue"]:
        if values["order"] != "weighted" and LIKE_A_WEIGHT.search(name):
            yield f"--queue {name!r} is the queue of that name: only --order weighted reads a weight off its end."
    if _shows_password(values, flags):
        yield "--redis-url holds a password that everybody on this machine can read; use LEASEHOLD_REDIS_URL instead."


def _shows_password(values: Mapping[str, Any], flags: Mapping[str, object]) -> bool:
    """Return True if the command line, which every user can read, shows the password."""
    return bool(flags.get("redis-url")) and bool(redis_url.secrets(values["redis_url"]))


_SHOWS_PASSWORD = (
    "--redis-url holds a password, and every handler could read it in our command line: under --sandbox strict give it"
    " as LEASEHOLD_REDIS_URL."
)

_WAITS_FOR_REPLICAS = (
    "--acknowledge waits in Redis for replicas, and with --redis-poll nothing waits there: leave out one of them."
)


def no_workdir(error: OSError) -> str:
    """Say why no working directory can be made, and the remedy."""
    return (
        f"no directory can be made for the children ({error}): set --workdir or TMPDIR to one that this user may write"
        " to"
    )


def usable_cpus(proc: Path = cgroups.PROC, mounted: Path = cgroups.CGROUPS) -> tuple[int, str]:
    """Return the number of usable CPUs and the reason: the affinity mask, or the cgroup's quota if that is less."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroups.cpu_quota(proc, mounted)
    if quota is None or quota > affinity:
        return affinity, f"auto: {affinity} CPU{'s' if affinity > 1 else ''} in the affinity mask"
    return max(1, -int(-quota // 1)), f"auto: the cgroup's quota is {quota:g} CPUs"


def usable_memory(proc: Path = cgroups.PROC, mounted: Path = cgroups.CGROUPS) -> tuple[int, str]:
    """Return the bytes that all processes together may use (0: no limit), and the reason."""
    limit = cgroups.memory_limit(proc, mounted)
    if limit is None:
        return 0, "auto: the cgroup has no memory limit"
    return limit * 9 // 10, f"auto: nine tenths of the cgroup's limit of {megabytes(limit)}"


_FIELDS = {each.name for each in fields(RunConfig)} - {
    "processes_most",
    "processes_reason",
    "processes_auto",
    "memory_budget_reason",
    "terminal",
    "warnings",
}
assert {setting.field for setting in SETTINGS} == _FIELDS, "the table of settings and RunConfig name the same things"
