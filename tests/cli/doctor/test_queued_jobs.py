"""`leasehold doctor --against-queue` finds code that could not take what is in the queue."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import without_settings

ROOT = Path(__file__).parents[3]
OLD = """from supervisor import handler


@handler
def welcome(job, user: int): ...


@handler
def plain(job): ...
"""
TAKES = "of the jobs that wait, are scheduled or recur, this code can take"
NEW = OLD.replace("user: int", "user: int, country: str")


@pytest.fixture
def doctor(server, namespace, tmp_path):
    """Run the command on a module `work` of handlers, and return its exit code and what it says of queued jobs."""

    def run(text):
        (tmp_path / "work.py").write_text(text)
        environment = {
            **os.environ,
            "LEASEHOLD_REDIS_URL": server.url,
            "LEASEHOLD_NAMESPACE": namespace,
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "supervisor", "doctor", "--handlers", "work", "--against-queue", "--json"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert "Traceback" not in done.stderr, done.stderr
        found = [each for each in json.loads(done.stdout) if each["check"] == "queued-jobs"]
        return done.returncode, [(each["level"], each["message"]) for each in found]

    return run


@pytest.fixture
def jobs(server, namespace):
    """Jobs in all states that the next release will start."""
    from supervisor import Client

    with Client(server.url, namespace) as client:
        queue = client.queue("mail")
        first = queue.put("work.welcome", {"user": 1}, jid="first")
        queue.put("work.welcome", {"user": 2, "note": "x" * 100_000}, jid="large")
        queue.put("work.welcome", {"user": 3}, delay="1h")
        queue.put("work.welcome", {"user": 4}, depends=[first])
        queue.recur("work.welcome", {"user": 5}, every="1h", offset="1h")
        queue.put("work.plain", b"\x00\xff")
        yield queue
        queue.delete()


def named(text):
    return text.replace("@handler\ndef welcome", '@handler(name="work.welcome")\ndef welcome').replace(
        "@handler\ndef plain", '@handler(name="work.plain")\ndef plain'
    )


def test_code_that_takes_all_jobs_is_told(doctor, jobs):
    lax = named(OLD).replace("user: int", "user: int, **others")
    assert doctor(lax) == (0, [("ok", f"{TAKES} 6")])


def test_jobs_of_the_wrong_shape_are_counted_with_the_first_reason(doctor, jobs):
    code, [(level, said), rest] = doctor(named(NEW).replace("country: str", "country: str, **others"))
    assert (code, level) == (1, "problem")
    assert said.startswith("5 of 5 jobs of work.welcome could not be taken by this code; the first is ")
    assert "country: " in said
    assert rest == ("ok", f"{TAKES} 1")


def test_large_data_is_read(doctor, jobs):
    _, [(_, said), _] = doctor(named(OLD))
    assert "1 of 5 jobs of work.welcome could not be taken by this code; the first is large: note: " in said


def test_klass_without_a_handler_is_named(doctor, jobs):
    code, found = doctor(named(OLD.partition("\n\n\n@handler\ndef welcome")[0] + "\n\n\n@handler\ndef plain(job): ..."))
    assert code == 1
    lacking = "no handler in this code for 5 jobs of work.welcome; deploy it beside code that has one, or cancel them"
    assert ("problem", lacking) in found


def test_entries_of_other_programs_count_as_jobs(doctor, server, namespace):
    from supervisor import Client

    pushed = [f'{{"klass":"work.welcome","jid":"e-{n}","data":{{"user":{n}}}}}' for n in range(250)]
    pushed[130] = '{"klass":"work.welcome","data":{"user":"five"}}'
    with Client(server.url, namespace) as client:
        assert client.queues() == {}
        server.redis.lpush(f"{{{namespace}}}:in:pushed", *pushed)
        server.redis.lpush(f"{{{namespace}}}:in:lines", "ada@example.org")
        client.config.set("klass-lines", "work.plain")
        code, [(_, said), rest] = doctor(named(OLD))
        assert code == 1
        assert said.startswith(
            "1 of 250 jobs of work.welcome could not be taken by this code; the first is an entry of in:pushed: user: "
        )
        assert rest == ("ok", f"{TAKES} 1")


def test_arguments_by_position_count_as_the_parameters_in_their_order(doctor, server, namespace):
    from supervisor import Client

    source = f"foreign-{namespace}:queue:mail"
    with Client(server.url, namespace) as client:
        client.doors.add("mail", format="sidekiq", source=source, queue="mail")
        for jid, args in (("one", [1]), ("two", [1, 2])):
            server.redis.lpush(source, json.dumps({"class": "work.welcome", "args": args, "jid": jid, "queue": "mail"}))
        client.doors.take("mail")
        _, [(_, said)] = doctor(named(OLD))
        assert said.startswith("1 of 2 jobs of work.welcome could not be taken by this code; the first is two: ")
        client.queue("mail").delete()


def test_embedded_server_is_told_of_in_a_finding_only(tmp_path):
    (tmp_path / "work.py").write_text(named(OLD))
    command = [sys.executable, "-m", "supervisor", "doctor", "--handlers", "work", "--against-queue", "--json"]
    environment = {**without_settings(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the embedded server in" in done.stdout and f"{TAKES} 0" in done.stdout


def test_empty_queue_and_broken_code_are_told(doctor):
    assert doctor(named(OLD)) == (0, [("ok", f"{TAKES} 0")])
    code, found = doctor("import nothing_of_this_name")
    assert (code, found) == (71, [("problem", "not tried: the handlers cannot be imported")])
