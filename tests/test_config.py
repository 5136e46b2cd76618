"""Settings of `run`: precedence, refused values, and the words of the errors."""

import ast
import pwd
from pathlib import Path

import pytest

from supervisor import config, setting_values, units
from supervisor.cli.lib.parser import dispatch
from supervisor.config import SETTINGS, ConfigError, RunConfig
from supervisor.engine.model.queue_order import ORDERS
from supervisor.linux import cgroups
from supervisor.units import parse_duration, parse_size


def load(flags=None, environ=None, terminal=False):
    return RunConfig.load(flags or {}, environ or {}, terminal=terminal)


def problems(flags=None, environ=None):
    with pytest.raises(ConfigError) as caught:
        load(flags, environ)
    return list(caught.value.problems)


def test_settings_have_documented_defaults():
    told = load({"processes": "3", "memory-budget": "1G"})
    assert told == RunConfig(
        redis_url=None,
        redis_password_file=None,
        redis_credentials=None,
        redis_poll_s=0.0,
        namespace="leasehold",
        shards=None,
        handlers="handlers",
        queue=("default",),
        order="strict",
        processes=3,
        processes_most=3,
        processes_reason="as given",
        processes_auto=False,
        jobs_per_child=1,
        child_age_s=0.0,
        child_memory_bytes=0,
        job_timeout_s=1800.0,
        on_error="retry",
        lease_ttl_s=None,
        acknowledge=None,
        drain_timeout_s=25.0,
        term_grace_s=3.0,
        on_cut_off="go-on",
        reload_timeout_s=0.0,
        watch=False,
        release=None,
        debug=False,
        max_deaths=None,
        memory_limit_bytes=0,
        memory_budget_bytes=2**30,
        memory_budget_reason="as given",
        workdir=None,
        workdir_limit_bytes=10 * 2**30,
        sandbox="basic",
        sandbox_read=(),
        child_user=None,
        env=(),
        log="json",
        log_level="info",
        dispatch_ahead_s=0.020,
        boot_timeout_s=60.0,
        http=None,
        http_name=(),
        autoscale="",
        exit_when_idle_s=0.0,
        warnings=(),
    )


def test_a_flag_beats_the_environment_and_the_environment_beats_the_default():
    environ = {"LEASEHOLD_JOB_TIMEOUT": "5m", "LEASEHOLD_NAMESPACE": "other"}
    told = load({"job-timeout": "90s"}, environ)
    assert (told.job_timeout_s, told.namespace, told.on_error) == (90.0, "other", "retry")


def test_queues_are_repeated_flags_or_a_comma_separated_variable():
    assert load({"queue": ["a", "b"]}).queue == ("a", "b")
    assert load({}, {"LEASEHOLD_QUEUE": "a, b,c"}).queue == ("a", "b", "c")
    assert load({"queue": ["x"]}, {"LEASEHOLD_QUEUE": "a,b"}).queue == ("x",)


def test_globs_exclusions_and_weights_stay_text():
    told = load({"queue": ["high:3", " email-* ", "!email-bulk"], "order": "weighted"})
    assert (told.queue, told.order, told.warnings) == (("high:3", "email-*", "!email-bulk"), "weighted", ())


def test_the_orders_are_those_of_the_engine():
    assert [load({"order": order}).order for order in ORDERS] == list(ORDERS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--queue", "!a"], "--queue: queues only excludes: !a"),
        (["--queue", "a", "--queue", "!*"], "--queue: queues excludes all it names"),
        (["--queue", "x" * 65], "--queue: queues must have 1 to 64 bytes in UTF-8, not 65"),
        (["--queue", "a:0", "--order", "weighted"], "--queue: queues must have weights from 1 to 1000"),
        (["--order", "fifo"], "--order 'fifo' must be strict, round-robin, random or weighted"),
    ],
)
def test_queues_that_contradict_their_order_are_refused(capsys, words, said):
    assert dispatch(["run", *words]) == 78
    told = capsys.readouterr().err
    assert told.startswith(f"leasehold: {said}") and told.count("\n") == 1


def test_bad_queues_are_refused_by_variable(capsys, monkeypatch):
    monkeypatch.setenv("LEASEHOLD_QUEUE", "!a,!b")
    assert dispatch(["run"]) == 78
    assert capsys.readouterr().err.startswith("leasehold: LEASEHOLD_QUEUE: queues only excludes: !a, !b")


def test_a_weight_without_weighted_order_is_a_warning():
    (said,) = load({"queue": ["high:3", "low"]}).warnings
    assert "'high:3'" in said and "--order weighted" in said


def test_the_log_defaults_to_text_on_a_terminal_and_json_elsewhere():
    assert load(terminal=True).log == "text"
    assert load(terminal=False).log == "json"
    assert load({"log": "json"}, terminal=True).log == "json"


def test_zero_means_none_where_there_may_be_none():
    told = load({"job-timeout": "0", "jobs-per-child": "0", "max-deaths": "0", "dispatch-ahead": "0"})
    assert (told.job_timeout_s, told.jobs_per_child, told.max_deaths, told.dispatch_ahead_s) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "fewest", "most", "reason"),
    [("4", 4, 4, "as given"), ("1:4", 1, 4, "as there is work, from 1 to 4"), ("3:3", 3, 3, "as given")],
)
def test_processes_are_a_number_or_a_range(text, fewest, most, reason):
    told = load({"processes": text})
    assert (told.processes, told.processes_most, told.processes_reason) == (fewest, most, reason)


def test_the_workdir_limit_defaults_by_sandbox():
    limits = {level: load({"sandbox": level}).workdir_limit_bytes for level in ("none", "basic", "strict")}
    assert limits == {"none": 0, "basic": 10 * 2**30, "strict": 2**30}
    assert load({"sandbox": "strict", "workdir-limit": "none"}).workdir_limit_bytes == 0
    assert load({"workdir-limit": "64M"}).workdir_limit_bytes == 2**26


@pytest.mark.parametrize("user", ["65534:65534", "65534", pwd.getpwuid(65534).pw_name])
def test_the_child_user_is_a_name_or_a_number(user):
    assert load({"child-user": user}).child_user == (65534, 65534)


def test_an_unknown_uid_is_also_the_gid():
    assert load({"child-user": "54321"}).child_user == (54321, 54321)
    assert load({"child-user": "54321:12345"}).child_user == (54321, 12345)


def test_a_switch_is_a_bare_flag_or_a_yes_no_variable():
    assert load({"watch": "yes"}).watch
    assert load({}, {"LEASEHOLD_WATCH": "yes"}).watch
    assert not load({}, {"LEASEHOLD_WATCH": "no"}).watch


def test_debugging_takes_one_process_and_one_job_a_child():
    told = load({"debug": "yes", "processes": "2:8", "jobs-per-child": "0"})
    assert (told.debug, told.processes, told.processes_most, told.jobs_per_child) == (True, 1, 1, 1)
    assert [warning for warning in told.warnings if warning.startswith("--debug:")] != []


def test_names_and_paths_are_repeated_flags_or_a_comma_separated_variable(tmp_path):
    told = load({"env": ["HOME", "STAGE"]}, {"LEASEHOLD_SANDBOX_READ": f"/usr, {tmp_path}"})
    assert (told.env, told.sandbox_read) == (("HOME", "STAGE"), (Path("/usr"), tmp_path))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("30s", 30), ("500ms", 0.5), ("5m", 300), ("2h", 7200), ("1.5s", 1.5), ("0", 0), ("20ms", 0.02)],
)
def test_durations_are_read_with_their_units(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-1", "1w", "5 m", "m", "1e3", "nan", "inf", "1.", ".5s", "1h30m", "٣s", "9" * 400]
)
def test_an_invalid_duration_is_refused(text):
    with pytest.raises(ValueError, match=r"write it like|longer than"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("64K", 65536), ("256M", 2**28), ("1G", 2**30), ("1.5G", 3 * 2**29), ("0", 0)]
)
def test_sizes_are_read_with_their_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1MB", "M", "1 G", "1e9", "nan", "9" * 400 + "T"])
def test_an_invalid_size_is_refused(text):
    with pytest.raises(ValueError, match=r"write it like|more than any"):
        parse_size(text)


BAD = [
    ("redis-url", "http://localhost"),
    ("redis-url", "redis://"),
    ("redis-url", "redis://host:port"),
    ("redis-url", "unix:"),
    ("redis-url", "localhost:6379"),
    ("redis-url", ""),
    ("redis-password-file", "/nowhere/password"),
    ("redis-credentials", "cloud.redis"),
    ("redis-credentials", "cloud-redis:token"),
    ("redis-poll", "0"),
    ("redis-poll", "10ms"),
    ("redis-poll", "31s"),
    ("redis-poll", "often"),
    ("namespace", "a{b}"),
    ("namespace", "x" * 65),
    ("namespace", ""),
    ("namespace", "a\nb"),
    ("handlers", "/app/handlers"),
    ("handlers", "../handlers"),
    ("handlers", "hand lers"),
    ("handlers", "a..b"),
    ("handlers", ""),
    ("queue", ["a", ""]),
    ("queue", ["a\x1bb"]),
    ("queue", ["a\udcff"]),
    ("queue", ["a", "b", "a"]),
    ("order", "fifo"),
    ("order", "Strict"),
    ("order", ""),
    ("processes", "0"),
    ("processes", "-1"),
    ("processes", "many"),
    ("processes", "1.5"),
    ("processes", "4:1"),
    ("processes", "0:4"),
    ("processes", "1:"),
    ("processes", "1:4:8"),
    ("processes", "1:99999"),
    ("processes", "99999"),
    ("jobs-per-child", "-1"),
    ("jobs-per-child", "x"),
    ("child-age", "old"),
    ("child-memory", "-1"),
    ("job-timeout", "5x"),
    ("job-timeout", "-5"),
    ("on-error", "ignore"),
    ("lease-ttl", "0"),
    ("lease-ttl", "500ms"),
    ("lease-ttl", "25h"),
    ("drain-timeout", "soon"),
    ("term-grace", "-1s"),
    ("on-cut-off", "goon"),
    ("reload-timeout", "never"),
    ("watch", "true"),
    ("debug", "true"),
    ("release", "a\nb"),
    ("release", "x" * 65),
    ("watch", ""),
    ("memory-limit", "256 MB"),
    ("memory-budget", "half"),
    ("shards", "0"),
    ("shards", "65"),
    ("shards", "four"),
    ("acknowledge", "-1"),
    ("acknowledge", "all"),
    ("max-deaths", "-1"),
    ("max-deaths", "1.0"),
    ("workdir", "/nonexistent/directory"),
    ("workdir", "/dev/null"),
    ("workdir-limit", "1 GB"),
    ("sandbox", "Strict"),
    ("sandbox-read", ["/nonexistent/directory"]),
    ("child-user", "root"),
    ("child-user", "0"),
    ("child-user", "nobody:root"),
    ("child-user", "nobody-of-this-name"),
    ("child-user", "1000:nobody-of-this-name"),
    ("child-user", "4294967295"),
    ("env", ["PATH=/bin"]),
    ("env", ["PATH", ""]),
    ("env", ["LEASEHOLD_QUEUE"]),
    ("log", "xml"),
    ("log-level", "INFO"),
    ("log-level", "trace"),
    ("dispatch-ahead", "20 ms"),
    ("boot-timeout", "0"),
    ("boot-timeout", "x"),
    ("http", "yes"),
    ("http", "65536"),
    ("http", "::1:9464"),
    ("http", "localhost"),
    ("http", "http://localhost:9464"),
    ("http-name", "jobs.example.com:9464"),
    ("http-name", "http://jobs.example.com"),
    ("autoscale", ""),
    ("autoscale", "x" * 65),
    ("exit-when-idle", "0"),
    ("exit-when-idle", "none"),
]


@pytest.mark.parametrize("name", ["redis-password-file", "redis-credentials"])
def test_account_of_a_variable_is_for_the_url_of_the_variable(tmp_path, name):
    (tmp_path / "password").write_text("x")
    value = {"redis-password-file": str(tmp_path / "password"), "redis-credentials": "tokens:token"}[name]
    environ = {"LEASEHOLD_REDIS_URL": "redis://h/0", f"LEASEHOLD_{name.upper().replace('-', '_')}": value}
    field = name.replace("-", "_")
    assert getattr(RunConfig.load({}, environ, terminal=False), field)
    other = RunConfig.load({"redis-url": "redis://other/0"}, environ, terminal=False)
    assert (getattr(other, field), other.redis_url) == (None, "redis://other/0")
    both = RunConfig.load({"redis-url": "redis://other/0", name: value}, environ, terminal=False)
    assert getattr(both, field)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, r"--redis-credentials 'tokens:token' is given, and --redis-url is the embedded server"),
        ({"redis-url": "redis://h", "redis-password-file": "PASSWORD"}, "are both given; keep one of them"),
    ],
)
def test_function_that_would_not_be_asked_is_refused(tmp_path, more, why):
    (tmp_path / "password").write_text("x")
    flags = {name: value.replace("PASSWORD", str(tmp_path / "password")) for name, value in more.items()}
    with pytest.raises(ConfigError, match=why):
        RunConfig.load({"redis-credentials": "tokens:token", **flags}, {}, terminal=False)


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("9464", "", 9464, ":9464"),
        (":0", "", 0, ":0"),
        ("127.0.0.1:80", "127.0.0.1", 80, "127.0.0.1:80"),
        ("probes.example:9464", "probes.example", 9464, "probes.example:9464"),
        ("[::1]:9464", "::1", 9464, "[::1]:9464"),
    ],
)
def test_a_listener_has_a_port_and_may_have_a_host(text, host, port, shown):
    address = load({"http": text}).http
    assert (address.host, address.port, str(address)) == (host, port, shown)


@pytest.mark.parametrize(("flag", "value"), BAD, ids=lambda value: str(value)[:20].encode("unicode_escape").decode())
def test_a_bad_value_is_refused_by_flag_and_by_variable(flag, value):
    (said,) = problems({flag: value})
    assert said.startswith(f"--{flag} ") and said.endswith(".") and "\n" not in said

    variable = "LEASEHOLD_" + flag.upper().replace("-", "_")
    (said,) = problems({}, {variable: value if isinstance(value, str) else ",".join(value)})
    assert said.startswith(f"{variable} ")


def test_the_table_of_bad_values_covers_every_setting():
    assert {flag for flag, _ in BAD} == {setting.flag for setting in SETTINGS}


def test_all_problems_are_reported_together():
    said = problems(
        {"processes": "x", "queue": ["a", "a", "b*"], "order": "fifo"},
        {"LEASEHOLD_LOG": "xml", "LEASEHOLD_PROCESES": "3", "LEASEHOLD_PROCESSES": "ignored: the flag is given"},
    )
    assert len(said) == 5
    assert "did you mean LEASEHOLD_PROCESSES?" in said[0]


def test_unknown_variables_are_refused_except_those_of_kubernetes():
    assert "LEASEHOLD_BOGUS" in problems({}, {"LEASEHOLD_BOGUS": "1"})[0]
    load(
        {},
        {
            "LEASEHOLD_SERVICE_HOST": "10.0.0.1",
            "LEASEHOLD_SERVICE_PORT_HTTP": "80",
            "LEASEHOLD_PORT": "tcp://10.0.0.1:80",
            "LEASEHOLD_PORT_80_TCP_ADDR": "10.0.0.1",
            "LEASEHOLD_REDIS_SERVICE_HOST": "10.0.0.2",
            "LEASEHOLD_REDIS_PORT": "tcp://10.0.0.2:6379",
            "LEASEHOLD_REDIS_PORT_6379_TCP": "tcp://10.0.0.2:6379",
            "OTHER_BOGUS": "1",
        },
    )


def test_a_shutdown_longer_than_a_containers_grace_is_a_warning():
    assert load({"drain-timeout": "25s"}).warnings == ()
    (said,) = load({"drain-timeout": "25s", "term-grace": "3500ms"}).warnings
    assert "30.5 s" in said and "30 s" in said


def test_under_systemd_a_longer_shutdown_is_no_warning():
    assert load({"drain-timeout": "80s"}, {"NOTIFY_SOCKET": "/run/systemd/notify"}).warnings == ()


def test_a_term_grace_of_0_is_a_warning():
    (said,) = load({"term-grace": "0"}).warnings
    assert "--term-grace 0" in said and "clean up" in said


def test_recycling_limits_with_one_job_per_child_are_a_warning():
    for flag, value in (("child-age", "1h"), ("child-memory", "1G")):
        (said,) = load({flag: value}).warnings
        assert f"--{flag}" in said
        assert load({flag: value, "jobs-per-child": "0"}).warnings == ()


def test_a_password_in_a_flag_is_a_warning():
    (said,) = load({"redis-url": "redis://:geheim@host/0"}).warnings
    assert "LEASEHOLD_REDIS_URL" in said and "geheim" not in said
    assert load({}, {"LEASEHOLD_REDIS_URL": "redis://:geheim@host/0"}).warnings == ()


def test_replicas_cannot_be_waited_for_where_nothing_waits():
    with pytest.raises(ConfigError, match="--acknowledge waits in Redis for replicas"):
        load({"acknowledge": "1", "redis-poll": "1s"})
    assert load({"acknowledge": "0", "redis-poll": "1s"}).acknowledge == 0


def test_under_strict_a_password_in_a_flag_is_refused():
    with pytest.raises(ConfigError, match="LEASEHOLD_REDIS_URL") as refused:
        load({"redis-url": "redis://:geheim@host/0", "sandbox": "strict"})
    assert "geheim" not in str(refused.value)
    assert load({"redis-url": "redis://host/0", "sandbox": "strict"}).sandbox == "strict"
    assert load({"sandbox": "strict"}, {"LEASEHOLD_REDIS_URL": "redis://:geheim@host/0"}).warnings == ()


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:geheim@",
        "redis://:gehe/im@host",
        "http://:geheim@host",
        "unix:?password=geheim",
        "redis://:p@geheim@:x",
    ],
)
def test_no_message_shows_a_password(url):
    said = problems({"redis-url": url})
    assert "geheim" not in said[0] and "gehe/im" not in said[0]
    assert "geheim" not in repr(load({"redis-url": "redis://:geheim@host"}))


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("handlers", "handlers"),
        ("./app/handlers/", "app.handlers"),
        ("app.jobs", "app.jobs"),
        ("jobs/email.py", "jobs.email"),
    ],
)
def test_handlers_may_be_a_relative_path(text, module):
    assert load({"handlers": text}).handlers == module


def test_a_workdir_may_be_relative(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load({"workdir": "work"}).workdir == tmp_path / "work"


def cgroup(tmp_path: Path, lines: str, files: dict[str, str]) -> tuple[Path, Path]:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(lines)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "proc", tmp_path / "cgroup"


@pytest.mark.parametrize(
    ("lines", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/the/hosts/path\n", {"cpu.max": "250000 100000\n"}, 2.5),
        (
            "4:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "200000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("4:cpu:/x\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("4:cpuset:/\n0::/\n", {}, None),
        ("", {}, None),
    ],
)
def test_the_cpu_quota_is_the_least_of_all_parent_cgroups(tmp_path, lines, files, quota):
    assert cgroups.cpu_quota(*cgroup(tmp_path, lines, files)) == quota


def test_auto_is_the_smaller_of_affinity_and_quota(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    where = cgroup(tmp_path, "0::/\n", {"cpu.max": "250000 100000\n"})
    assert config.usable_cpus(*where) == (3, "auto: the cgroup's quota is 2.5 CPUs")
    (tmp_path / "cgroup/cpu.max").write_text("max 100000\n")
    assert config.usable_cpus(*where) == (8, "auto: 8 CPUs in the affinity mask")
    (tmp_path / "cgroup/cpu.max").write_text("1000 100000\n")
    assert config.usable_cpus(*where)[0] == 1


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_small_container_has_few_processes_and_a_budget(tmp_path, monkeypatch, version):
    """A machine of 80 CPUs, with a cgroup of 2 CPUs and 1 GB of memory."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(80)))
    v1 = {
        "cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": str(2**30),
    }  # fmt: skip
    if version == "v1":
        where = cgroup(tmp_path, "4:cpu:/docker/x\n5:memory:/docker/x\n", v1)
    else:
        where = cgroup(tmp_path, "0::/\n", {"cpu.max": "200000 100000\n", "memory.max": f"{2**30}\n"})
    assert config.usable_cpus(*where) == (2, "auto: the cgroup's quota is 2 CPUs")
    assert config.usable_memory(*where) == (2**30 * 9 // 10, "auto: nine tenths of the cgroup's limit of 1,024 MB")


def test_parsers_are_light_enough_for_children():
    trees = [ast.parse(Path(module.__file__).read_text()) for module in (setting_values, units)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    imported.remove("supervisor.units")
    assert not {name for name in imported if name.split(".")[0] in {"redis", "psutil", "supervisor", "argparse"}}
