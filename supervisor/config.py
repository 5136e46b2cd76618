"""The settings of `run`. Read in the command's process before the master starts, and constant afterwards.

Owns the table of settings, and which of a flag, a variable and a default holds. Must not talk to Redis.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from supervisor import redis_url
from supervisor.linux import cgroups
from supervisor.setting_values import (
    NOT_TEXT,
    ListenAddress,
    one_of,
    parse_address,
    parse_count,
    parse_directory,
    parse_duration_or_none,
    parse_function,
    parse_host_name,
    parse_idle,
    parse_lease_ttl,
    parse_module,
    parse_name_or_none,
    parse_namespace,
    parse_poll,
    parse_positive_duration,
    parse_processes,
    parse_queue,
    parse_readable,
    parse_readable_file,
    parse_release,
    parse_shards,
    parse_size_or_auto,
    parse_size_or_none,
    parse_switch,
    parse_user,
    parse_variable,
)
from supervisor.units import megabytes, parse_duration


class ConfigError(Exception):
    """All errors of the settings, one sentence each, in `problems`."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


#: The form of a weight in a weighted order. A queue's name may end like this too.
LIKE_A_WEIGHT = re.compile(r":\d+$", re.ASCII)

#: Time between TERM and KILL in Kubernetes and systemd's templates. Docker Compose gives 10 s.
CONTAINER_GRACE_S = 30.0
#: Time for a killed process tree to end, and for the last exchange with Redis.
REAP_S = 1.0
LAST_EXCHANGE_S = 1.0


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
        "redis-password-file", "redis_password_file", parse_readable_file, None, "FILE",
        "file with the password of --redis-url, read again for each connection",
    ),
    Setting(
        "redis-credentials", "redis_credentials", parse_function, None, "MODULE:FUNCTION",
        "function that returns user and password for each connection, like cloud.redis:token",
    ),
    Setting(
        "redis-poll", "redis_poll_s", parse_poll, "none", "DURATION",
        "look for work and requests this often, where a proxy or a service lets no command wait in Redis; none: wait"
        " there",
    ),
    Setting("namespace", "namespace", parse_namespace, "leasehold", "NAME", "prefix of every key in Redis"),
    Setting(
        "shards", "shards", parse_shards, None, "N",
        "parts that a new namespace is divided into, 1 to 64, which a Cluster spreads over its nodes (default: what"
        " Redis says, and 1 for a new one)",
    ),
    Setting("handlers", "handlers", parse_module, "handlers", "PACKAGE", "package whose modules hold the handlers"),
    Setting(
        "queue", "queue", parse_queue, "default", "NAME",
        "queue to serve, or a glob like email-*, or !name to leave out; repeat it for several", repeatable=True,
    ),
    Setting(
        "order", "order", one_of("strict", "round-robin", "random", "weighted"), "strict", "ORDER",
        "how several queues are served: strict (as listed), round-robin, random or weighted (--queue high:3)",
    ),
    Setting(
        "processes", "processes", parse_processes, "auto", "N",
        "jobs that run at once; MIN:MAX: as many as there is work for; auto: the CPUs this process may use (cgroup"
        " quota, affinity), if there is memory for them",
    ),
    Setting(
        "jobs-per-child", "jobs_per_child", parse_count, "1", "N",
        "jobs a child runs before it is replaced; 0: no limit. With more than 1, handlers that share a child must trust"
        " each other",
    ),
    Setting(
        "child-age", "child_age_s", parse_duration_or_none, "none", "DURATION",
        "age at which a child is replaced, once its job has ended; none: no limit",
    ),
    Setting(
        "child-memory", "child_memory_bytes", parse_size_or_none, "none", "SIZE",
        "private memory at which a child is replaced, once its job has ended; none: no limit",
    ),
    Setting(
        "job-timeout", "job_timeout_s", parse_duration, "30m", "DURATION",
        "time limit of a job that has none of its own; 0: none",
    ),
    Setting(
        "on-error", "on_error", one_of("retry", "fail"), "retry", "WHAT",
        "what an exception in a handler does: retry or fail",
    ),
    Setting(
        "lease-ttl", "lease_ttl_s", parse_lease_ttl, None, "DURATION",
        "how long a lease lasts without renewal (default: heartbeat of the config in Redis)",
    ),
    Setting(
        "acknowledge", "acknowledge", parse_count, None, "N",
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
        "on-cut-off", "on_cut_off", one_of("go-on", "stop"), "go-on", "WHAT",
        "what a job does when this supervisor is cut off from Redis for so long that another one may have the job:"
        " go-on or stop; a persistent job always stops",
    ),
    Setting(
        "reload-timeout", "reload_timeout_s", parse_duration_or_none, "none", "DURATION",
        "how long running jobs may go on with the old code after a reload; none: to their end",
    ),
    Setting(
        "watch", "watch", parse_switch, "no", "", "for development: reload when a file of the handlers changes",
        switch=True,
    ),
    Setting(
        "release", "release", parse_release, None, "NAME",
        "name of the code's release, which workers and peers see (default: its git commit, if there is one)",
    ),
    Setting(
        "debug", "debug", parse_switch, "no", "",
        "for development: one child at a time, on this terminal and without time limits, so that breakpoint() works",
        switch=True,
    ),
    Setting(
        "max-deaths", "max_deaths", parse_count, None, "N",
        "crashes of its child after which a job fails for good; 0: no limit (default: max-deaths of the config in"
        " Redis)",
    ),
    Setting(
        "memory-limit", "memory_limit_bytes", parse_size_or_none, "none", "SIZE",
        "private memory of a job's processes, if the job has no limit of its own; none: no limit",
    ),
    Setting(
        "memory-budget", "memory_budget_bytes", parse_size_or_auto, "auto", "SIZE",
        "memory of all processes together; no job starts beyond it; auto: nine tenths of the cgroup's limit",
    ),
    Setting(
        "workdir", "workdir", parse_directory, None, "DIRECTORY",
        "parent of the children's working directories (default: a temporary directory)",
    ),
    Setting(
        "workdir-limit", "workdir_limit_bytes", parse_size_or_auto, "auto", "SIZE",
        "most bytes in a job's working directory, and in any file that it writes; none: no limit; auto: 10G, under"
        " --sandbox strict 1G",
    ),
    Setting(
        "sandbox", "sandbox", one_of("none", "basic", "strict"), "basic", "LEVEL",
        "what handlers cannot reach: none, basic (the supervisor's secrets, each other), or strict (the network, and"
        " all files but their working directory and what programs need to read)",
    ),
    Setting(
        "sandbox-read", "sandbox_read", parse_readable, None, "PATH",
        "what handlers may read beside the default list under --sandbox strict; repeat it for several",
        repeatable=True,
    ),
    Setting(
        "child-user", "child_user", parse_user, None, "USER[:GROUP]",
        "user of the children of a root supervisor (default: root without capabilities, under --sandbox"
        " strict 65534)",
    ),
    Setting(
        "env", "env", parse_variable, None, "NAME",
        "a variable of the environment that handlers see beside the basic ones, and no others; repeat it for several"
        " (default: all but ours and what tells the Redis secret)", repeatable=True,
    ),
    Setting("log", "log", one_of("json", "text"), None, "FORMAT", "json or text (default: text on a terminal)"),
    Setting(
        "log-level", "log_level", one_of("debug", "info", "warning", "error"), "info", "LEVEL",
        "debug, info, warning or error; info is one line per job",
    ),
    Setting(
        "dispatch-ahead", "dispatch_ahead_s", parse_duration, "20ms", "DURATION",
        "how much work is sent to a busy child ahead of time; 0: none",
    ),
    Setting(
        "boot-timeout", "boot_timeout_s", parse_positive_duration, "60s", "DURATION",
        "how long the import of the handlers may take",
    ),
    Setting(
        "http", "http", parse_address, "none", "[HOST:]PORT",
        "address of /livez, /readyz, /metrics and /status; a port alone: all interfaces; none: no listener",
    ),
    Setting(
        "http-name", "http_name", parse_host_name, None, "NAME",
        "a public name under which /metrics and /status may be asked for; repeat it for several (default: addresses,"
        " names without a dot, and those of private domains alone)", repeatable=True,
    ),
    Setting(
        "autoscale", "autoscale", parse_name_or_none, "none", "NAME",
        "name in Redis of the wanted number of supervisors like this one; none: do not keep it",
    ),
    Setting(
        "exit-when-idle", "exit_when_idle_s", parse_idle, "never", "DURATION",
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
    shards: int | None  # None: Redis says how many
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
