"""`leasehold run` before and around the master, whose own tests start real pools."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import orjson
import pytest

from tests.environment import without_settings

ROOT = Path(__file__).parents[3]


def run(*words, before=(), cwd=None, **environ):
    clean = without_settings()
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


def test_run_without_redis_is_69_and_logs_no_password(tmp_path):
    (tmp_path / "work.py").write_text("from supervisor import handler\n@handler\ndef a(job): ...\n")
    done = run("--handlers", "work", cwd=tmp_path, LEASEHOLD_REDIS_URL="redis://:geheim@127.0.0.1:1/0")
    assert done.returncode == 69 and b"geheim" not in done.stderr
    said = [orjson.loads(line) for line in done.stderr.splitlines() if line.startswith(b"{")]
    assert any(each["event"] == "redis.failed" and "127.0.0.1:1" in each["message"] for each in said)
    assert b"Traceback" not in done.stderr


def test_without_a_url_the_server_is_named(tmp_path):
    done = run("--handlers", "nowhere", cwd=tmp_path)
    assert done.returncode == 71
    assert done.stderr.splitlines()[0].startswith(b"leasehold: no LEASEHOLD_REDIS_URL: using the embedded server (")


def test_the_first_event_shows_settings_of_flags_and_variables(server, namespace, tmp_path):
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


def overwritten(directory):
    """Install the package beside its dependencies as PyPI's supervisor of the same name leaves it."""
    for path in map(Path, (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))):
        for needed in path.iterdir():
            is_ours = needed.name.startswith(("supervisor", "leasehold", "__editable__"))
            if not (is_ours or needed.name == "__pycache__" or (directory / needed.name).exists()):
                (directory / needed.name).symlink_to(needed)
    shutil.copytree(ROOT / "supervisor", directory / "supervisor", ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "supervisor/__init__.py").write_text("#\n")
    (directory / "supervisor-4.2.5.dist-info").mkdir()
    (directory / "supervisor-4.2.5.dist-info/METADATA").write_text("Name: supervisor\nVersion: 4.2.5\n")


@pytest.mark.parametrize("command", ["run", "doctor"])
@pytest.mark.parametrize("uninstalled", [False, True])
def test_an_installed_supervisord_is_refused_with_the_remedy(tmp_path, command, uninstalled):
    overwritten(tmp_path)
    if uninstalled:
        (tmp_path / "supervisor/__init__.py").unlink()
        shutil.rmtree(tmp_path / "supervisor-4.2.5.dist-info")
    environment = without_settings()
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import sys; from supervisor.__main__ import main; sys.exit(main())", command],
        cwd=tmp_path, env={**environment, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    (sentence,) = [line for line in (done.stdout + done.stderr).splitlines() if "--force-reinstall" in line]
    assert (done.returncode, "Traceback" in done.stderr) == (78, False)
    assert ("supervisord (4.2.5)" in sentence) is not uninstalled
