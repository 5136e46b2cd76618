"""`leasehold doctor` finds what would stop `run`, has its exit code, and leaves nothing behind."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from supervisor.cli.doctor import findings, handlers, machine, server
from supervisor.cli.lib.terminal import local_time
from supervisor.config import RunConfig
from supervisor.engine.client.sync_client import Client
from supervisor.exit_codes import Exit
from supervisor.messages import Ready
from tests import clusters, sentinels, servers
from tests.environment import without_settings
from tests.process.servers import OwnServer
from tests.waiting import until_it_waits

ROOT = Path(__file__).parents[3]
GOOD = "from supervisor import handler\n@handler\ndef a(job): ...\n"
CHECKS = [
    *("configuration", "python", "kernel", "proc", "cgroup", "init", "processes", "files", "memory", "workdir"),
    *("redis", "permissions", "latency", "clock", "redis-memory", "persistence", "connections", "namespace"),
    *("config", "queues", "workers", "sandbox", "handlers"),
]


class Doctor:
    """`leasehold doctor` in a directory with a module `work` of handlers."""

    def __init__(self, directory):
        self.directory = directory
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self.handlers(GOOD)

    def handlers(self, text):
        (self.directory / "work.py").write_text(text)

    def __call__(self, *words, before=(), **environ):
        """Return code and findings. A process left running would hold the output open."""
        done = self.plain(*words, "--json", before=before, **environ)
        assert "Traceback" not in done.stderr and done.stdout.count("\n") == 1, done
        found = json.loads(done.stdout)
        assert all(list(each) == ["check", "level", "message"] for each in found)
        assert {each["level"] for each in found} <= {"ok", "warning", "problem"}
        return done.returncode, found

    def plain(self, *words, before=(), **environ):
        with self.start(*words, before=before, **environ) as process:
            out, err = process.communicate(timeout=50)
        assert list(self.temporary.iterdir()) == []
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def start(self, *words, before=(), **environ):
        clean = without_settings()
        environ = {"LEASEHOLD_HANDLERS": "work", "LEASEHOLD_PROCESSES": "2", **environ}
        return subprocess.Popen(
            [*before, sys.executable, "-m", "supervisor", "doctor", *words],
            env={**clean, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary), **environ},
            cwd=self.directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


@pytest.fixture
def doctor(tmp_path):
    return Doctor(tmp_path)


@pytest.fixture
def own_server():
    """A server of this test alone, with an append-only file. A socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="lh-", dir="/tmp") as directory:
        server = OwnServer(Path(directory), servers.binary())
        server.start()
        yield server
        server.close()


def of(found, level):
    """Return the findings of a level as lines, except latency, which depends on the machine's load."""
    kept = [each for each in found if each["level"] == level and (each["check"], level) != ("latency", "warning")]
    return [f"{each['check']}: {each['message']}" for each in kept]


def only(lines):
    (line,) = lines
    return line


# the whole command, as a user runs it


def test_a_sound_setup_is_0_and_nothing_changes(doctor, own_server):
    with Client(own_server.url, "lh") as client:
        client.queue("default").put("work.a")
    keys = {key: own_server.redis.dump(key) for key in own_server.redis.scan_iter()}
    code, found = doctor(LEASEHOLD_REDIS_URL=own_server.url, LEASEHOLD_NAMESPACE="lh")
    assert (code, of(found, "warning"), of(found, "problem")) == (0, [], [])
    assert [each["check"] for each in found] == CHECKS
    said = {each["check"]: each["message"] for each in found}
    assert said["handlers"].startswith("1 handler imported in ") and said["handlers"].endswith(": a")
    assert said["queues"] == "1 of 1 queue would be served, 1 job waiting"
    assert {key: own_server.redis.dump(key) for key in own_server.redis.scan_iter()} == keys


def test_doctor_prints_a_line_for_each_finding(doctor, own_server):
    done = doctor.plain(LEASEHOLD_REDIS_URL=own_server.url)
    assert done.returncode == 0
    assert [line.split()[1] for line in done.stdout.splitlines()] == CHECKS
    assert all(re.match(r"(ok|warning|problem) +[\w-]+ +\S", line) for line in done.stdout.splitlines())
    assert re.fullmatch(r"leasehold: (nothing is wrong|0 problems, 1 warning)\n", done.stderr)


def test_a_wrong_configuration_is_78_and_starts_nothing(doctor):
    code, found = doctor("--processes", "many", "--queue", "a", LEASEHOLD_PROCESES="3", LEASEHOLD_ORDER="any")
    assert code == 78
    about = of(found, "problem")
    assert [line.split(": ")[0] for line in about] == ["configuration"] * 3
    assert all(any(word in line for line in about) for word in ("--processes", "LEASEHOLD_PROCESES", "LEASEHOLD_ORDER"))
    assert {each["check"] for each in found} == {"configuration", "python", "kernel", "proc", "cgroup", "init"}
    assert not (doctor.directory / ".leasehold").exists()


def test_queues_that_make_no_sense_are_78(doctor):
    code, found = doctor("--order", "weighted", "--queue", "a:0")
    assert code == 78 and "--queue" in only(of(found, "problem"))


def test_warnings_of_run_are_warnings_of_doctor(doctor, server, namespace):
    code, found = doctor("--drain-timeout", "60s", LEASEHOLD_REDIS_URL=server.url, LEASEHOLD_NAMESPACE=namespace)
    assert code == 0
    assert any(line.startswith("configuration: drain-timeout 60 s") for line in of(found, "warning"))


def test_without_a_url_the_embedded_server_is_checked(doctor):
    code, found = doctor()
    assert (code, of(found, "problem")) == (0, [])
    assert any("embedded server" in line for line in of(found, "ok"))


@pytest.mark.parametrize("url", ["redis://:geheim@127.0.0.1:1/0", "unix://:geheim@/nowhere/s"])
def test_a_missing_server_is_69_without_the_password(doctor, url):
    code, found = doctor(LEASEHOLD_REDIS_URL=url)
    assert code == 69
    said = only(of(found, "problem"))
    assert said.startswith("redis: cannot reach Redis at ") and "geheim" not in json.dumps(found)
    assert found[-1]["check"] == "handlers" and found[-1]["level"] == "ok", "they are looked at all the same"


def test_several_problems_give_the_exit_code_of_run(doctor):
    doctor.handlers("1 / 0\n")
    code, found = doctor(LEASEHOLD_REDIS_URL="redis://127.0.0.1:1/0")
    assert code == 69
    assert [line.split(": ")[0] for line in of(found, "problem")] == ["redis", "handlers"]


# handlers


@pytest.fixture
def with_handlers(doctor, server, namespace):
    """Return the findings about the handlers, and the code."""

    def look(text, *words):
        doctor.handlers(text)
        code, found = doctor(*words, LEASEHOLD_REDIS_URL=server.url, LEASEHOLD_NAMESPACE=namespace)
        return code, [each for each in found if each["check"] == "handlers"]

    return look


BROKEN = {
    "raises": ("import os\n\nraise ValueError('no\\nsuch thing')\n", "ValueError: no such thing (", "work.py, line 3)"),
    "wrong use": (
        "from supervisor import handler\n@handler(sandbox='strikt')\ndef a(job): ...\n",
        "write 'basic' or 'strict' (",
        "work.py, line 2)",
    ),
    "has none": ("", "no @handler in 'work'"),
    "no Python": ("def a(:\n", "SyntaxError"),
    "ends it": ("import os\nos._exit(3)\n", "ended meanwhile (exit-3)"),
    "crashes": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "ended meanwhile (SIGSEGV)"),
    "prints, then exits": ("print('x' * 100_000)\nraise SystemExit(2)\n", "SystemExit: 2"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_doctor_says_why_handlers_do_not_boot_and_exits_with_71(with_handlers, text):
    code, found = with_handlers(text[0])
    assert code == 71
    assert all(words in only(of(found, "problem")) for words in text[1:])


@pytest.mark.parametrize(
    ("jobs_per_child", "apart", "named"), [("0", "strict", "a, b"), ("1", "strict", ""), ("0", "basic", "")]
)
def test_handlers_that_share_children_are_named(doctor, server, jobs_per_child, apart, named):
    handlers = f"def a(job): ...\n@handler\ndef b(job): ...\n@handler(sandbox={apart!r})\ndef c(job): ...\n"
    doctor.handlers(f"from supervisor import handler\n@handler\n{handlers}")
    _code, found = doctor("--jobs-per-child", jobs_per_child, LEASEHOLD_REDIS_URL=server.url)
    shared = [line.split(";")[0] for line in of(found, "warning") if "share children" in line]
    assert shared == ([f"sandbox: handlers share children: {named}"] if named else [])


def test_handlers_that_are_not_there_are_71(doctor, server):
    code, found = doctor("--handlers", "nowhere", LEASEHOLD_REDIS_URL=server.url)
    assert code == 71 and "there is no module 'nowhere'" in only(of(found, "problem"))


def test_a_hanging_import_is_71_and_ends_with_its_processes(with_handlers):
    hangs = "import subprocess, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)\n"
    code, found = with_handlers(hangs, "--boot-timeout", "0.5s")
    assert code == 71 and "not imported within 0.5 s" in only(of(found, "problem"))


def test_processes_left_by_the_import_are_ended(with_handlers):
    code, found = with_handlers("import os, subprocess\nsubprocess.Popen(['sleep', '600'])\nos.abort()\n")
    assert code == 71 and "SIGABRT" in only(of(found, "problem"))
    assert "processes running (1)" in only(of(found, "warning"))


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_doctor_and_its_processes(doctor, server, signo):
    doctor.handlers(
        "import subprocess, sys, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('importing', file=sys.stderr, flush=True)\ntime.sleep(600)\n"
    )
    with doctor.start(LEASEHOLD_REDIS_URL=server.url) as process:
        assert process.stderr.readline() == "importing\n"
        until_it_waits(process, "poll")
        process.send_signal(signo)
        _said, complaint = process.communicate(timeout=30)  # a process left running would hold this open
    assert (process.returncode, complaint) == (130, "")
    assert list(doctor.temporary.iterdir()) == []


def test_threads_that_the_import_starts_are_a_warning(with_handlers):
    text = f"import threading, time\nthreading.Thread(target=time.sleep, args=[600], name='poller').start()\n{GOOD}"
    code, found = with_handlers(text)
    assert code == 0
    assert any("poller" in line for line in of(found, "warning"))


def test_files_that_the_import_leaves_open_are_a_warning(with_handlers):
    code, found = with_handlers(f"KEPT = open('kept.log', 'w')\n{GOOD}")
    assert code == 0
    assert "kept.log" in only(of(found, "warning"))


def test_handlers_above_the_memory_budget_are_warnings(with_handlers):
    text = "from supervisor import handler\n@handler(memory='64M')\ndef a(job): ...\n"
    code, found = with_handlers(text, "--memory-budget", "16M")
    assert code == 0
    size, limit = of(found, "warning")
    assert "of the 16 MB that all processes together may have" in size and limit.startswith("handlers: a: ")


def test_a_slow_import_is_a_warning():
    config = RunConfig.load({"boot-timeout": "5s"}, {}, terminal=False)
    ready = Ready({"a": {}}, [], [])
    assert [each.level for each in handlers._about(config, ready, 2.0, 2**20)] == ["ok"]
    said, warned = handlers._about(config, ready, 3.0, 2**20)
    assert said.message == "1 handler imported in 3.00 s, 1 MB: a"
    assert warned.level == "warning" and "took 3.00 s of the 5 s that it may" in warned.message


def test_variables_that_tell_the_password_are_named(doctor, own_server):
    own_server.redis.config_set("requirepass", "sesame-open")
    url = own_server.url.replace("unix://", "unix://:sesame-open@")
    code, found = doctor(LEASEHOLD_REDIS_URL=url, CACHE_URL=url)
    assert code == 0 and "sesame" not in json.dumps(found)
    assert "handlers do not get CACHE_URL: the value tells" in only(of(found, "warning"))


# the machine


def test_too_few_open_files_for_the_processes_are_a_problem(doctor, server):
    if not shutil.which("prlimit"):
        pytest.skip("needs prlimit")
    code, found = doctor("--processes", "50", before=["prlimit", "--nofile=100:100"], LEASEHOLD_REDIS_URL=server.url)
    assert code == 1
    assert only(of(found, "problem")).startswith(
        "files: at most 100 may be open (the hard limit), and 50 children need"
    )


def test_more_memory_than_there_is_for_all_is_a_warning(doctor, server):
    words = "--memory-budget", "1G", "--memory-limit", "600M"
    code, found = doctor(*words, LEASEHOLD_REDIS_URL=server.url)
    assert code == 0
    assert any(line.startswith("memory: 2 processes of up to 600 MB") for line in of(found, "warning"))


def test_a_taken_port_is_78_and_a_free_one_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = RunConfig.load({"http": address}, {}, terminal=False)
        (found,) = machine._http(config)
        assert (found.level, found.code) == ("problem", Exit.CONFIG)
        assert found.message.startswith(f"--http {address} cannot be had: another process listens there")
    found, *_ = machine._http(config)
    assert found.level == "ok"
    assert not list(machine._http(RunConfig.load({}, {}, terminal=False)))


def test_a_refused_system_call_is_a_problem(monkeypatch):
    def refuse():
        raise PermissionError(1, "Operation not permitted")

    calls = {**machine._CALLS, "pidfd": refuse, "signalfd": lambda: machine._in_a_child(refuse)}
    monkeypatch.setattr(machine, "_CALLS", calls)
    (found,) = machine._kernel()
    assert found.level == "problem" and "refuses pidfd ([Errno 1]" in found.message
    assert "signalfd ([Errno 1]" in found.message and "memfd" not in found.message


def test_oom_group_and_oom_kills_are_reported(monkeypatch):
    monkeypatch.setattr("supervisor.linux.cgroups.kills_as_group", lambda: True)
    monkeypatch.setattr("supervisor.linux.cgroups.OomKills.count", lambda _self: 3)
    monkeypatch.setattr("supervisor.linux.cgroups.cpu_quota", lambda: 0.5)
    said, together, slow = machine._control_groups()
    assert said.level == "ok" and "0.5 CPUs, 3 killed by the kernel" in said.message
    assert [each.level for each in (together, slow)] == ["warning", "warning"]
    assert "memory.oom.group is 1" in together.message and "the CPU quota is 0.5" in slow.message


def test_a_hidden_proc_is_a_warning(monkeypatch):
    monkeypatch.setattr(machine, "_mount_option", lambda _where, _name: "ptraceable")
    (hidden,) = machine._proc()
    assert hidden.level == "warning" and "hidepid=ptraceable" in hidden.message
    monkeypatch.setattr("supervisor.master.model.memory.of", lambda _pid: None)
    (hidden,) = machine._proc()
    assert hidden.level == "warning" and "no memory limit holds" in hidden.message
    monkeypatch.setattr("supervisor.linux.kernel.children_of_self", lambda: os.listdir("/nowhere"))
    (missing,) = machine._proc()
    assert missing.level == "problem" and "/nowhere" in missing.message


def test_doctor_as_pid_1_without_a_url_exits_78(doctor, as_pid_1):
    code, found = doctor(before=as_pid_1)
    assert code == 78 and "--redis-url embedded:" in only(of(found, "problem"))
    assert any("this is PID 1" in line for line in of(found, "ok"))
    assert not (doctor.directory / ".leasehold").exists()


def test_a_shell_as_pid_1_is_a_warning(doctor, as_pid_1, server):
    before = [*as_pid_1, "sh", "-c", '"$@"; exit $?', "sh"]
    code, found = doctor(before=before, LEASEHOLD_REDIS_URL=server.url)
    assert code == 0
    assert any(line.startswith("init: PID 1 is ") and "exec" in line for line in of(found, "warning"))


# the server and the namespace


@pytest.fixture
def seen():
    """Return the findings about a server, and the exit code of `run`."""

    def look(url, namespace="lh", **flags):
        words = {"redis-url": url, "namespace": namespace, **{name.replace("_", "-"): flags[name] for name in flags}}
        said = list(server.examine(RunConfig.load(words, {}, terminal=False)))
        return findings.exit_code(said), [
            {"check": each.check, "level": each.level, "message": each.message} for each in said
        ]

    return look


@pytest.fixture
def account(server, namespace):
    """Make an account with these rules, and return its URL."""

    def make(rules):
        words = rules.replace("NS", f"{{{namespace}}}").split()
        server.redis.execute_command("ACL", "SETUSER", "patient", "reset", "on", ">PASSWORD", *words)
        return server.url_with("patient", "PASSWORD")

    yield make
    server.redis.acl_deluser("patient")


def test_the_account_of_the_documents_is_enough(seen, account, namespace):
    text = (ROOT / "deploy/docs/redis.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith("ACL SETUSER leasehold "))
    rules = line.replace("{leasehold}", "NS").partition(">PASSWORD ")[2]
    code, found = seen(account(rules), namespace)
    assert (code, of(found, "problem")) == (0, [])
    assert "permissions: account patient may do all that Leasehold does" in of(found, "ok")


NEEDED = {
    "-zadd": (1, "patient may not ZADD, which a supervisor needs"),
    "-blmove -bzpopmin": (1, "patient may not BLMOVE,"),
    "resetkeys ~other:*": (69, "patient may not use the keys {"),
    "resetchannels": (1, "patient may not publish on {"),
    "-evalsha": (69, "evalsha"),
    "-script": (69, "script|load"),
}


@pytest.mark.parametrize("rules", NEEDED)
def test_missing_rights_of_the_account_are_named(seen, account, namespace, rules):
    code, found = seen(account(f"+@all ~NS:* &NS:* {rules}"), namespace)
    expected, words = NEEDED[rules]
    assert code == expected and any(words in line for line in of(found, "problem")), found


def test_missing_right_to_ask_for_the_primary_is_named(seen, tmp_path):
    with sentinels.group(tmp_path, replicas=0) as group:
        rules = "reset on >PASSWORD +@all ~* &* -role"
        group.redis.execute_command("ACL", "SETUSER", "patient", *rules.split())
        code, found = seen(group.url.replace("://", "://patient:PASSWORD@"))
    assert code == 1 and any("patient may not ROLE, which a supervisor needs" in line for line in of(found, "problem"))


@pytest.mark.parametrize(("rules", "about"), [("-zscan", "ZSCAN, which some commands"), ("-info", "may not ask INFO")])
def test_right_that_only_some_commands_need_is_a_warning(seen, account, namespace, rules, about):
    code, found = seen(account(f"+@all ~NS:* &NS:* {rules}"), namespace)
    assert (code, of(found, "problem")) == (0, [])
    assert any(about in line for line in of(found, "warning"))


def test_a_wrong_password_is_69_and_not_said(seen, own_server):
    own_server.redis.config_set("requirepass", "sesame-open")
    for url in (own_server.url, own_server.url.replace("unix://", "unix://:geheim@")):
        code, found = seen(url)
        assert code == 69 and len(found) == 1 and "geheim" not in found[0]["message"]


def test_server_that_is_not_redis_exits_69(seen, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _address = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        code, found = seen(f"redis://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(10)
    assert code == 69 and only(of(found, "problem")).startswith("redis: ")


def test_a_server_that_does_not_answer_is_69(seen, own_server, monkeypatch):
    monkeypatch.setattr("supervisor.engine.client.examine._TIMEOUT_S", 0.2)
    own_server.process.send_signal(signal.SIGSTOP)
    code, found = seen(own_server.url)
    assert code == 69 and "Timeout" in only(of(found, "problem"))


def test_a_server_that_deletes_what_does_not_fit_is_a_problem(seen, own_server):
    own_server.redis.config_set("maxmemory", "100mb")
    assert seen(own_server.url)[0] == 0
    own_server.redis.config_set("maxmemory-policy", "allkeys-lru")
    code, found = seen(own_server.url)
    assert code == 1
    assert only(of(found, "problem")).startswith("redis-memory: maxmemory-policy is allkeys-lru, and maxmemory 100 MB")
    own_server.redis.config_set("maxmemory", "0")
    code, found = seen(own_server.url)
    assert code == 0 and only(of(found, "warning")).startswith("redis-memory: maxmemory-policy is allkeys-lru")
    own_server.redis.config_set("maxmemory", "100mb")
    own_server.redis.config_set("maxmemory-policy", "volatile-lru")
    code, found = seen(own_server.url)
    assert code == 0 and "expire anyway" in only(of(found, "warning"))


def test_replicas_that_acknowledge_are_compared_with_those_there_are(seen, tmp_path):
    def said(level, **flags):
        return [line for line in of(seen(group.url, **flags)[1], level) if line.startswith("replicas")]

    with sentinels.group(tmp_path, replicas=1) as group:
        assert not said("ok")
        cut_off, unacknowledged = said("warning")
        assert "min-replicas-to-write is 0" in cut_off
        assert "acknowledge is 0 replicas, and 1 is connected: a failover loses the puts" in unacknowledged
        group.redis.config_set("min-replicas-to-write", "1")
        assert said("warning") == [unacknowledged]
        assert "acknowledge is 2 replicas, and 1 is connected: the ends" in only(said("problem", acknowledge="2"))
        assert said("ok", acknowledge="1") == ["replicas: acknowledge is 1 replica, and 1 is connected"]
        with Client(group.url, "lh") as client:
            client.config.set("acknowledge", 1)
        assert said("ok")
        spare = sentinels.Member(tmp_path)
        group.join(spare)
        group.redis.wait(2, 5000)
        assert "acknowledge is 1 replica, and 2 are connected: a failover" in only(said("warning"))
        spare.kill()


def test_a_full_server_is_a_problem_and_a_nearly_full_one_a_warning(seen, own_server):
    own_server.redis.setrange("large", 50_000_000, "x")  # of no buffer on its way there
    used = own_server.redis.info("memory")["used_memory"]
    own_server.redis.config_set("maxmemory", int(used * 1.1))
    code, found = seen(own_server.url)
    assert code == 0 and "when it is full" in only(of(found, "warning"))
    own_server.redis.config_set("maxmemory", 1000)
    code, found = seen(own_server.url)
    assert code == 1 and any("it is full" in line for line in of(found, "problem"))


def test_data_that_a_restart_would_lose_is_a_warning(seen, server, namespace, own_server):
    code, found = seen(server.url, namespace)
    assert code == 0 and "a restart of the server loses everything" in only(of(found, "warning"))
    own_server.redis.config_set("appendonly", "no")
    own_server.redis.config_set("save", "3600 1")
    own_server.redis.set("a", "b")
    _, found = seen(own_server.url)
    assert "after its last snapshot: " in only(of(found, "warning"))


def test_a_replica_is_a_problem(seen, own_server):
    own_server.redis.config_set("masterauth", "")
    own_server.redis.replicaof("127.0.0.1", "1")
    code, found = seen(own_server.url)
    assert code == 1 and any("is a replica" in line for line in of(found, "problem"))


def test_scarce_or_short_lived_connections_are_reported(seen, own_server):
    own_server.redis.config_set("timeout", "20")
    own_server.redis.config_set("maxclients", "12")
    code, found = seen(own_server.url)
    assert code == 0
    assert [line.split()[0] for line in of(found, "warning")] == ["connections:", "connections:"]
    own_server.redis.config_set("maxclients", "2")
    code, found = seen(own_server.url)
    assert code == 69 and any("raise maxclients" in line for line in of(found, "problem"))


def test_a_cluster_without_slots_is_a_problem(seen, tmp_path):
    with clusters.nodes(tmp_path, 1) as (node,):
        code, found = seen(node.url)
    assert code == 69 and "refuses what every worker does first" in only(of(found, "problem"))
    assert not any("in one slot" in line for line in of(found, "ok"))


def test_commands_ask_the_function_for_the_account(shell, own_server, tmp_path, monkeypatch, namespace):
    """Doctor and `put` log in by its answer. A function that is broken is named, by commands and by doctor."""
    (tmp_path / "vault.py").write_text("token = lambda: ('default', 'geheim')\n\ndef broken():\n    raise OSError\n")
    monkeypatch.syspath_prepend(tmp_path)
    own_server.redis.config_set("requirepass", "geheim")
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", own_server.url)
    monkeypatch.setenv("LEASEHOLD_REDIS_CREDENTIALS", "vault:token")
    assert shell("put", "k", "--queue", "q").code == 0
    words = {"redis-url": own_server.url, "redis-credentials": "vault:token", "namespace": namespace}
    found = list(server.examine(RunConfig.load(words, {}, terminal=False)))
    assert findings.exit_code(found) == 0 and found[0].message.endswith(f" at {own_server.url}")
    why = "--redis-credentials has failed: OSError"
    assert why in shell.refused(69, "queues", "--redis-url", own_server.url, "--redis-credentials", "vault:broken")
    found = list(server.examine(RunConfig.load(words | {"redis-credentials": "vault:broken"}, {}, terminal=False)))
    assert findings.exit_code(found) == 69 and found[0].message.startswith("cannot log in to Redis at ")
    assert why in found[0].message
    assert "cannot be imported" in shell.refused(78, "queues", "--redis-credentials", "vault:none")
    said = shell("doctor", "--redis-url", own_server.url, "--redis-credentials", "vault:none")
    assert said.code == 78 and "cannot be imported" in said.out


def test_a_missing_password_is_named(seen, own_server):
    own_server.redis.config_set("requirepass", "geheim")
    code, found = seen(own_server.url)
    assert code == 69
    (message,) = of(found, "problem")
    assert "without the right password" in message and "Authentication required" in message


def test_clock_skew_and_latency_are_warnings(seen, own_server, monkeypatch):
    monkeypatch.setattr("supervisor.clock.unix", lambda: 1_000_000_000.0)
    monkeypatch.setattr(server, "_SLOW_S", -1.0)
    code, found = seen(own_server.url)
    assert code == 0
    assert [each["check"] for each in found if each["level"] == "warning"] == ["latency", "clock"]


OPTIONS = {
    "heartbeat": (2, "a lease lasts 2 s"),
    "max-deaths": (0, "max-deaths is 0"),
    "max-worker-age": (10, "max-worker-age is 10 s"),
    "failed-history-count": (0, "are dropped at once"),
    "paused": (True, "nothing starts, in any queue"),
}


@pytest.mark.parametrize(
    ("key", "mark", "why"),
    [
        ("seq", "7", "has the layout of Leasehold 0.1: stop its supervisors and clients, then run `leasehold upgrade`"),
        ("config", "3", "has a newer layout than this Leasehold knows (3, not 2): use a newer Leasehold"),
    ],
)
def test_another_layout_is_a_problem_with_its_cure(seen, own_server, key, mark, why):
    own_server.redis.set(f"{{lh}}:{key}", mark)
    code, found = seen(own_server.url)
    assert (code, of(found, "problem")) == (69, [f"namespace: namespace lh {why}"])
    assert own_server.redis.keys() == [f"{{lh}}:{key}".encode()]


def test_pause_of_all_queues_names_its_actor(seen, own_server):
    at_unix = int(time.time()) - 100
    with Client(own_server.url, "lh", clock=lambda: at_unix) as client:
        client.config.set("paused", True, by="kim@web-1")
    (said,) = of(seen(own_server.url)[1], "warning")
    assert said.startswith(f"config: paused is set (by kim@web-1, {local_time(at_unix)}): nothing starts")


@pytest.mark.parametrize("option", OPTIONS)
def test_options_in_redis_that_do_harm_are_warnings(seen, own_server, option):
    value, words = OPTIONS[option]
    with Client(own_server.url, "lh") as client:
        client.config.set(option, value)
    code, found = seen(own_server.url)
    assert code == 0 and words in only(of(found, "warning"))


def test_a_lease_as_long_as_a_night_is_a_warning(seen, own_server):
    code, found = seen(own_server.url, lease_ttl="8h")
    assert code == 0 and "a lease lasts 28800 s" in only(of(found, "warning"))


def test_a_queue_that_nobody_serves_is_a_warning(seen, own_server):
    with Client(own_server.url, "lh") as client:
        for name in ("emails", "emials"):
            client.queue(name).put("k")
    code, found = seen(own_server.url, queue=["emails"])
    assert code == 0
    assert only(of(found, "warning")).startswith("queues: emials: 1 job could start there, and nobody serves it")


def test_paused_queues_and_lost_workers_are_warnings(seen, own_server):
    long_ago_unix = int(time.time()) - 100
    with Client(own_server.url, "lh", clock=lambda: long_ago_unix) as client:
        for name in ("emails", "images"):
            client.queue(name).put("k")
            client.queue(name).pause(by="kim@web-1")
        client.queue("default").put("k")
        client.lease("lost-1", ["default"])
    code, found = seen(own_server.url, queue=["email*", "default"])
    assert code == 0
    paused, lost = of(found, "warning")
    when = local_time(long_ago_unix)
    assert paused.startswith(f"queues: emails (by kim@web-1, {when}): paused")
    assert lost.startswith("workers: 1 lease of lost-1 are over")
    assert "queues: 2 of 3 queues would be served, 1 job waiting" in of(found, "ok")
