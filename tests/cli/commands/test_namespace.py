"""Commands about the whole namespace: options, events, check and sweep."""

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.engine.model.options import OPTIONS
from tests.waiting import until_it_waits

ROOT = Path(__file__).parents[3]


def test_config_shows_every_option_with_its_value_and_meaning(shell, jobs):
    seen = shell.json("config")
    assert seen["heartbeat"] == 30 and set(seen) == set(OPTIONS)
    jobs.config.set("heartbeat-emails", 300)
    assert shell.json("config")["heartbeat-emails"] == 300
    text = shell.good("config")
    assert all(option in text for option in OPTIONS)
    assert OPTIONS["grace"].meaning in text


def test_config_sets_shows_and_unsets_one_option(shell, jobs):
    assert shell.line("config", "heartbeat") == "30"
    assert shell.line("config", "heartbeat", "1m") == "heartbeat is 60"
    assert shell.json("config", "heartbeat") == {"heartbeat": 60}
    assert shell.line("config", "heartbeat-emails") == "60"
    assert shell.line("config", "heartbeat-emails", "7.5") == "heartbeat-emails is 7.5"
    assert jobs.config.get("heartbeat-emails") == 7.5
    assert shell.line("config", "heartbeat-emails", "2m") == "heartbeat-emails is 120"
    assert shell.line("config", "grace", "500ms") == "grace is 0.5"
    assert shell.line("config", "heartbeat-emails", "--unset") == "heartbeat-emails is 60 again"
    assert shell.line("config", "heartbeat", "--unset") == "heartbeat is 30 again"


def test_config_of_a_flag_and_of_a_name(shell, jobs):
    assert shell.line("config", "paused-emails", "yes") == "paused-emails is yes"
    assert jobs.queue("emails").counts().paused
    assert shell.line("config", "paused-emails", "--unset") == "paused-emails is no again"
    assert shell.line("config", "klass") == "none"


@contextmanager
def events(server, namespace, *words):
    """`leasehold events` in its own process, listening."""
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "events", *words],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LEASEHOLD_REDIS_URL": server.url,
            "LEASEHOLD_NAMESPACE": namespace,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # a line that Python had read ahead would be none to select
    )
    try:
        assert process.stderr.readline() == b"leasehold: listening; Ctrl-C ends it\n"
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
        process.stderr.close()


def next_line(process):
    assert select.select([process.stdout], [], [], 30)[0], "nothing came for half a minute"
    return process.stdout.readline()


def end(process):
    until_it_waits(process, "poll")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_events_are_printed_at_once_until_ctrl_c(server, namespace, jobs):
    with events(server, namespace, "--json") as process:
        jobs.queue("q").put("a.b", jid="j")
        seen = json.loads(next_line(process))
        assert (seen["name"], seen["jid"], seen["queue"]) == ("job.put", "j", "q")
        assert seen["when_unix"] > 0 and seen["tracked"] is False
        jobs.queue("q").lease("w")[0].complete()
        names = [json.loads(next_line(process))["name"] for _ in range(2)]
        assert names == ["lease.granted", "job.completed"]
        assert end(process) == (0, b"", b"")


def test_events_for_people_have_a_time_a_name_and_fields(server, namespace, jobs):
    with events(server, namespace) as process:
        jobs.queue("q").put("a.b", jid="j")
        words = next_line(process).decode().split()
        assert words[3] == "job.put" and {"jid=j", "queue=q", "klass=a.b"} <= set(words[4:])
        assert end(process) == (0, b"", b"")


@pytest.mark.parametrize(
    "words", [["--queue", "wanted"], ["--jid", "j"], ["--tracked"]], ids=lambda words: words[0].removeprefix("--")
)
def test_events_are_chosen_by_queue_job_or_mark(server, namespace, jobs, words):
    jobs.queue("wanted").put("a.b", jid="j")
    jobs.track("j")
    with events(server, namespace, "--json", *words) as process:
        jobs.queue("other").put("a.b", jid="unwanted")
        jobs.log("unwanted", "something else")
        jobs.queue("wanted").put("a.b", jid="j")
        assert json.loads(next_line(process))["jid"] == "j"


def test_events_are_chosen_by_worker(server, namespace, jobs):
    jobs.queue("q").put_many({"klass": "a.b", "jid": f"j{number}"} for number in range(2))
    with events(server, namespace, "--json", "--worker", "w2") as process:
        jobs.queue("q").lease("w1")
        jobs.queue("q").lease("w2")
        seen = json.loads(next_line(process))
        assert (seen["worker"], seen["name"], seen["jid"]) == ("w2", "lease.granted", "j1")


def test_a_reader_of_events_that_leaves_early_is_no_error(server, namespace, jobs):
    with events(server, namespace) as process:
        jobs.queue("q").put("a.b", jid="j")
        next_line(process)
        process.stdout.close()
        jobs.queue("q").put("a.b", jid="j")
        assert process.stderr.read() == b"" and process.wait(30) == 0


def test_a_lost_connection_is_69_and_one_sentence(server, namespace, jobs):
    with events(server, namespace) as process:
        server.redis.client_kill_filter(_type="pubsub")
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (69, b"")
        assert err.startswith(b"leasehold: Redis at ") and err.count(b"\n") == 1


def test_check_finds_nothing_in_a_sound_namespace(shell, jobs):
    assert shell.line("check") == "nothing is wrong"
    jobs.queue("q").put("a.b")
    jobs.queue("q").lease("w")
    assert shell.json("check") == [] and shell.json("check", "--repair") == []


def test_check_is_1_until_repair_has_mended_all(shell, jobs, server, namespace):
    jobs.queue("q").put("a.b", jid="kept")
    server.redis.zadd(f"{{{namespace}}}:queue:q:waiting", {f"{'f' * 13}ghost": 0})
    before = server.dump(namespace)
    said = shell("check")
    assert said.code == 1 and "ghost" in said.out and said.err == "leasehold: 1 violation left; --repair mends them\n"
    said = shell("check", "--json")
    (violation,) = json.loads(said.out)
    assert said.code == 1 and set(violation) == {"kind", "subject", "detail", "repaired"}
    assert violation["repaired"] is None and server.dump(namespace) == before, "looking changes nothing"
    (mended,) = shell.json("check", "--repair")
    assert mended["repaired"] and mended["kind"] == violation["kind"]
    assert shell.line("check") == "nothing is wrong"
    assert jobs.queue("q").counts().waiting == 1


def test_sweep_prints_the_number_of_its_jobs(shell, jobs):
    assert shell.line("sweep") == "took 0 jobs from lost workers"
    queue = jobs.queue("q")
    queue.put("a.b", jid="j")
    queue.lease("lost", ttl=-60)
    assert shell.line("sweep") == "took 1 job from lost workers"
    assert jobs.job("j").state == "waiting"
