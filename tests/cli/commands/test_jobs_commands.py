"""put, queues, job and failed on a real server. A refused command changes nothing."""

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from supervisor.cli.lib.parser import dispatch
from supervisor.engine.client.sync_client import Client

ROOT = Path(__file__).parents[3]


UNSERVED = b"no supervisor is running"


@dataclass(frozen=True)
class Done:
    """A command's exit code and output."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Cli:
    """The command line in this process, some ms per call. The environment names the server."""

    def __init__(self, url: str, namespace: str, monkeypatch, capsysbinary) -> None:
        self.url, self.namespace = url, namespace
        self._monkeypatch, self._capsys = monkeypatch, capsysbinary

    def __call__(self, *words, **environ):
        with self._monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("LEASEHOLD_")]:
                patch.delenv(name)
            settings = {"LEASEHOLD_REDIS_URL": self.url, "LEASEHOLD_NAMESPACE": self.namespace, **environ}
            for name, value in settings.items():
                patch.setenv(name, value)
            self._capsys.readouterr()
            code = dispatch(words)
            return Done(code, *self._capsys.readouterr())

    def good(self, *words, **options) -> str:
        done = self(*words, **options)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode()

    def put(self, *words) -> str:
        """Put a job while no supervisor runs, as the one hint says, and return the jid."""
        done = self("put", *words)
        assert done.returncode == 0 and UNSERVED in done.stderr and done.stderr.count(b"\n") == 1
        return done.stdout.decode().removesuffix("\n")

    def refused(self, code, *words, **options) -> str:
        done = self(*words, **options)
        said = done.stderr.decode()
        assert done.returncode == code and done.stdout == b""
        assert said.startswith("leasehold: ") and said.count("\n") == 1, said
        return said


def read_by_a_process(cli, *words, **stdin):
    """Run the real command with this file or pipe as stdin."""
    return subprocess.run(
        [sys.executable, "-m", "supervisor", *words, "--redis-url", cli.url, "--namespace", cli.namespace],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        **stdin,
    )


@pytest.fixture
def cli(server, monkeypatch, capsysbinary):
    return Cli(server.url, f"cli-{uuid.uuid4().hex[:12]}", monkeypatch, capsysbinary)


@pytest.fixture
def client(cli):
    with Client(cli.url, cli.namespace) as client:
        yield client


@pytest.fixture
def keys(cli):
    """Return a dump of the namespace."""
    connection = redis.Redis.from_url(cli.url)

    def dump():
        found = sorted(connection.scan_iter(match=f"{{{cli.namespace}}}:*", count=10_000))
        return {key: connection.dump(key) for key in found}

    yield dump
    connection.close()


def test_put_says_the_jid_and_the_job_is_there(cli, client):
    jid = cli.put("email.send", '{"to": ["ada", 9007199254740993]}', "--queue", "mail")
    job = client.job(jid)
    assert (len(jid), job.state, job.queue, job.klass) == (22, "waiting", "mail", "email.send")
    assert job.data == {"to": ["ada", 9007199254740993]}


def test_put_without_data_puts_null(cli, client):
    assert client.job(cli.put("a.b")).data is None


def test_every_option_arrives(cli, client):
    times = ["--delay", "2h", "--timeout", "90s"]
    numbers = ["--priority", "-3", "--retries", "7", "--max-deaths", "0"]
    assert cli.put("a.b", "1", "--jid", "mine", *times, *numbers) == "mine"
    job = client.job("mine")
    assert (job.state, job.priority, job.retries, job.timeout_s, job.max_deaths) == ("scheduled", -3, 7, 90.0, 0)
    assert job.due_unix - job.put_unix == pytest.approx(7200, abs=5)


@pytest.mark.parametrize("text", ["2031-07-01T12:00:00+02:00", "2031-07-01T10:00:00Z", "1940672400", "1940666400"])
def test_at_takes_dates_with_zones_and_unix_seconds(cli, client, text):
    jid = cli.put("a.b", "--at", text)
    assert client.job(jid).due_unix == (float(text) if text.isdigit() else 1940666400.0)


@pytest.mark.parametrize("source", ["-", "--file=-", "file"])
def test_the_payload_may_come_from_stdin_or_a_file(cli, client, tmp_path, source):
    payload = json.dumps({"text": "x" * 500_000}).encode()
    path = tmp_path / "payload.json"
    path.write_bytes(payload)
    if source == "file":
        jid = cli.put("a.b", f"--file={path}")
    else:
        done = read_by_a_process(cli, "put", "a.b", source, input=payload)
        assert done.returncode == 0 and UNSERVED in done.stderr
        jid = done.stdout.decode()
    assert client.job(jid.strip()).data == json.loads(payload)


def test_raw_bytes_stay_unchanged(cli, client, tmp_path):
    path = tmp_path / "payload"
    path.write_bytes(bytes(range(256)) * 4 + b'{"not": "parsed"')
    job = client.job(cli.put("a.b", "--raw", "--file", str(path)))
    assert job.is_bytes and job.raw == path.read_bytes()
    assert client.job(cli.put("a.b", "{", "--raw")).raw == b"{"
    assert client.job(cli.put("a.b", "--raw")).raw == b""


def test_add_leaves_a_known_jid_alone(cli, client, keys):
    assert cli.put("a.b", "1", "--add", "--jid", "once") == "once"
    before = keys()
    assert "exists" in cli.refused(1, "put", "a.b", "2", "--add", "--jid", "once")
    assert keys() == before and client.job("once").data == 1


BAD = [
    (2, ["put", "a.b", "{nope"]),
    (2, ["put", "a.b", "123456789012345678901234567890"]),
    (2, ["put", "a.b", '"\\ud800"']),
    (2, ["put", "", "1"]),
    (2, ["put", "x" * 65, "1"]),
    (2, ["put", "a\nb", "1"]),
    (2, ["put", "a.b", "1", "--queue", ""]),
    (2, ["put", "a.b", "1", "--jid", ""]),
    (2, ["put", "a.b", "1", "--jid", "x" * 65]),
    (2, ["put", "a.b", "1", "--retries", "-1"]),
    (2, ["put", "a.b", "1", "--max-deaths", "-1"]),
    (2, ["put", "a.b", "1", "--priority", "9" * 30]),
    (2, ["put", "a.b", "1", "--at", "nan"]),
    (2, ["put", "a.b", "1", "--at", "1", "--delay", "1"]),
    (2, ["job", ""]),
    (2, ["job", "x" * 65]),
    (1, ["job", "nobody"]),
    (2, ["failed", ""]),
]


@pytest.mark.parametrize(("code", "words"), BAD, ids=lambda value: repr(value)[:50])
def test_refused_commands_change_nothing(cli, keys, code, words):
    cli.refused(code, *words)
    assert keys() == {}


def test_a_payload_of_50_mb_works(cli, client, tmp_path):
    path = tmp_path / "big"
    path.write_bytes(os.urandom(1 << 20) * 50)
    job = client.job(cli.put("a.b", "--raw", "--file", str(path)))
    assert job.raw == path.read_bytes()


def test_a_payload_of_600_mb_is_refused_unread(cli, keys, tmp_path):
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.truncate(600 * 2**20)
    assert "600 MB" in cli.refused(1, "put", "a.b", "--raw", "--file", str(path))
    assert "600 MB" in cli.refused(1, "put", "a.b", "--file", str(path))
    with open(path, "rb") as file:
        done = read_by_a_process(cli, "put", "a.b", "-", stdin=file)
    assert done.returncode == 1 and b"600 MB" in done.stderr
    assert keys() == {}


@pytest.mark.parametrize("words", [["put", "a.b", "1"], ["queues"], ["job", "x"], ["failed"], ["failed", "g"]])
@pytest.mark.parametrize("url", ["redis://:geheim@127.0.0.1:1/0", "unix://:geheim@/nonexistent/socket"])
def test_an_unreachable_redis_is_69_without_the_password(cli, words, url):
    said = cli.refused(69, *words, LEASEHOLD_REDIS_URL=url)
    assert "geheim" not in said and ("127.0.0.1" in said or "/nonexistent/socket" in said)


def test_queues_shows_every_state(cli, client):
    assert cli("queues").stderr == b"leasehold: no job was ever put here\n"
    assert json.loads(cli.good("queues", "--json")) == []
    high = client.queue("high")
    high.put_many({"klass": "a.b"} for _ in range(1_234))
    high.put("a.b", delay=60)
    high.lease("worker", 2, ttl=60)
    client.queue("low").put("a.b")
    none = {"stalled": 0, "depends": 0, "parked": 0, "recurring": 0, "front": 0, "entries": 0, "paused": False}
    none |= {
        "paused_by": None,
        "paused_unix": None,
        "served_by": None,
        "old_depends": 0,
    }  # "worker" leases, and nobody knows from where
    rows = json.loads(cli.good("queues", "--json"))
    assert all(0 <= row.pop("oldest_s") < 60 for row in rows)
    assert rows == [
        {"queue": "high", "waiting": 1232, "ready": 1232, "running": 2, "scheduled": 1, **none},
        {"queue": "low", "waiting": 1, "ready": 1, "running": 0, "scheduled": 0, **none},
    ]
    head, *_, high_row, low_row = [line for line in cli.good("queues").splitlines() if line.strip()]
    assert head.split()[:5] == ["queue", "waiting", "running", "stalled", "scheduled"]
    *high_cells, _oldest, high_paused, _served = high_row.split()
    *low_cells, _oldest, low_paused, _served = low_row.split()
    assert (high_cells, high_paused) == (["high", "1,232", "2", "0", "1", "0", "0", "0"], "-")
    assert (low_cells, low_paused) == (["low", "1", "0", "0", "0", "0", "0", "0"], "-")


def fail(client, jid, message="boom", group="ValueError"):
    client.queue("q").put("a.b", {"n": 1}, jid=jid)
    (lease,) = client.queue("q").lease("worker-1")
    assert lease.fail(group, message)


def test_job_shows_everything_and_a_failure_with_its_reason(cli, client):
    fail(client, "broken", "boom\n\x1b[31mred")
    text = cli.good("job", "broken")
    for expected in ("broken", "a.b", "failed", 'data       {"n":1}', "ValueError: boom", "worker-1"):
        assert expected in text
    assert "\x1b" not in text
    seen = json.loads(cli.good("job", "broken", "--json"))
    assert (seen["state"], seen["data"], seen["data_is"], seen["failure"]["group"]) == (
        "failed",
        {"n": 1},
        "json",
        "ValueError",
    )


def test_job_shows_running_scheduled_and_complete_jobs(cli, client):
    queue = client.queue("q")
    jid = queue.put("a.b", b"\x00\xff\x1b", jid="mine")
    (lease,) = queue.lease("worker-1", ttl=60)
    text = cli.good("job", jid)
    assert "running at worker-1" in text and "3 bytes" in text and "\\x00\\xff\\x1b" in text
    assert json.loads(cli.good("job", jid, "--json"))["data_hex"] == "00ff1b"
    lease.complete({"answer": 42})
    text = cli.good("job", jid)
    assert "complete" in text and '{"answer":42}' in text
    assert "scheduled for 2031-" in cli.good("job", queue.put("a.b", jid="later", at=1940666400))


def test_a_jid_that_begins_with_a_dash_is_written_after_two_dashes(cli, client):
    client.queue("q").put("a.b", jid="-mine")
    assert "job        -mine" in cli.good("job", "--", "-mine")
    assert cli.good("cancel", "--", "-mine") == "cancelled -mine\n"


def test_failed_shows_the_groups_and_the_jobs_of_one_newest_first(cli, client):
    assert cli("failed").stderr == b"leasehold: nothing has failed\n"
    for number in range(3):
        fail(client, f"job-{number}", f"reason {number}")
    fail(client, "other", group="died:SIGKILL")
    assert json.loads(cli.good("failed", "--json")) == {"ValueError": 3, "died:SIGKILL": 1}
    assert [line.split() for line in cli.good("failed").splitlines() if "3" in line] == [["ValueError", "3"]]
    seen = json.loads(cli.good("failed", "ValueError", "--json", "--limit", "2"))
    assert seen["total"] == 3 and len(seen["jobs"]) == 2
    done = cli("failed", "ValueError", "--limit", "2")
    assert done.stdout.count(b"reason") == 2 and done.stderr == b"leasehold: 2 of 3 failed jobs in group ValueError\n"
    assert json.loads(cli.good("failed", "nobody", "--json")) == {"group": "nobody", "total": 0, "jobs": []}


def test_json_is_the_same_each_time(cli, client):
    fail(client, "broken")
    assert cli.good("job", "broken", "--json") == cli.good("job", "broken", "--json")
    line = cli.good("failed", "ValueError", "--json")
    assert line.count("\n") == 1 and list(json.loads(line)) == sorted(json.loads(line))


def test_without_a_url_the_embedded_server_is_used_and_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("LEASEHOLD_REDIS_URL", raising=False)

    def command(*words):
        return subprocess.run([sys.executable, "-m", "supervisor", *words], capture_output=True, timeout=60)

    done = command("put", "a.b", "1", "--jid", "kept")
    assert (done.returncode, done.stdout) == (0, b"kept\n")
    embedded, hint = done.stderr.splitlines()
    assert str(tmp_path / ".leasehold").encode() in embedded and UNSERVED in hint
    done = command("job", "kept", "--redis-url", "embedded:")
    assert done.returncode == 0 and b"waiting" in done.stdout and done.stderr == b""


def test_job_shows_its_own_retries(shell, jobs):
    jobs.queue("q").put("k", jid="own", retries=2)
    jobs.queue("q").put("k", jid="handlers")
    assert "(2 retries allowed)" in shell.good("job", "own")
    assert "retries allowed" not in shell.good("job", "handlers")
