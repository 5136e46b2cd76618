"""`leasehold run` before and around the master; what the master does is tested with the pool."""

import os
import subprocess
import sys
from pathlib import Path

import orjson

ROOT = Path(__file__).parents[2]


def run(*words, before=(), cwd=None, **environ):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
    return subprocess.run(
        [*before, sys.executable, "-m", "supervisor", "run", *words],
        env={**clean, "PYTHONPATH": str(ROOT), **environ},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=50,
    )


def test_as_pid_1_the_embedded_server_is_refused_unless_asked_for(as_pid_1, tmp_path):
    done = run(before=as_pid_1, cwd=tmp_path)
    assert done.returncode == 78 and b"--redis-url embedded:" in done.stderr and done.stderr.count(b"\n") == 1
    assert not list(tmp_path.iterdir())


def test_as_pid_1_the_embedded_server_is_started_when_asked_for(as_pid_1, tmp_path):
    done = run("--redis-url", "embedded:", "--handlers", "nowhere", before=as_pid_1, cwd=tmp_path)
    assert done.returncode == 71, "it came as far as to the handlers, of which there are none"
    assert (tmp_path / ".leasehold").is_dir()


def test_an_unreachable_redis_is_69_and_the_log_says_where_without_the_password(tmp_path):
    (tmp_path / "work.py").write_text("from supervisor import handler\n@handler\ndef a(job): ...\n")
    done = run("--handlers", "work", cwd=tmp_path, LEASEHOLD_REDIS_URL="redis://:geheim@127.0.0.1:1/0")
    assert done.returncode == 69 and b"geheim" not in done.stderr
    said = [orjson.loads(line) for line in done.stderr.splitlines() if line.startswith(b"{")]
    assert any(each["event"] == "redis.failed" and "127.0.0.1:1" in each["message"] for each in said)
    assert b"Traceback" not in done.stderr


def test_without_a_url_one_line_says_which_server_it_is(tmp_path):
    done = run("--handlers", "nowhere", cwd=tmp_path)
    assert done.returncode == 71
    assert done.stderr.splitlines()[0].startswith(b"leasehold: no LEASEHOLD_REDIS_URL: using the embedded server (")


def test_settings_come_from_flags_and_variables_as_the_first_event_shows(server, namespace, tmp_path):
    (tmp_path / "work.py").write_text("from supervisor import handler\n@handler\ndef a(job): ...\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "run", "--queue", "one", "--queue", "two", "--log", "json"],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LEASEHOLD_REDIS_URL": server.url,
            "LEASEHOLD_NAMESPACE": namespace,
            "LEASEHOLD_QUEUE": "ignored",
            "LEASEHOLD_HANDLERS": "work",
            "LEASEHOLD_PROCESSES": "3",
            "LEASEHOLD_DRAIN_TIMEOUT": "60s",
        },
        cwd=tmp_path,
        stderr=subprocess.PIPE,
    )
    try:
        said = {}
        while "master.started" not in said or "zygote.ready" not in said:
            event = orjson.loads(process.stderr.readline())
            said[event["event"]] = event
        process.terminate()
        rest = process.communicate(timeout=30)[1]
    finally:
        process.kill()
        process.wait(10)
    assert process.returncode == 0 and b"master.stopped" in rest
    hello = said["master.started"]
    assert (hello["queues"], hello["processes"], hello["processes_reason"]) == (["one", "two"], 3, "as given")
    assert "65 s" in said["master.warned"]["message"]
