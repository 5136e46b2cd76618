"""`leasehold top` where nothing can be drawn: everything once, from a real server; the supervisors are played."""

import pytest

pytest.importorskip("rich")

from supervisor import clock
from supervisor.cli.top.looking import Looker
from tests.cli.top_parts import child, end, told


def words_of(out, first):
    return next(words for line in out.splitlines() if (words := line.split())[:1] == [first])


def test_everything_is_written_once_with_rates_between_two_looks(shell, jobs, played):
    jobs.queue("emails").put("email.send")
    jobs.queue("slow").put("k", delay=3600)
    jobs.queue("slow").pause()
    worker = played(
        told(children=[child(1, "email.send", 2.0, jid="j1")], completed=7, ends=[end("died", "oom", "k", 1)])
    )
    out = shell.good("top", "--every", "0.2s")
    assert words_of(out, "emails")[1] == "1" and words_of(out, "slow")[-1] == "paused"
    assert words_of(out, worker.name)[1:3] == ["serving", "1/4"]
    assert f"children of {worker.name}" in out
    assert "1    4001 busy     email.send" in out and " j1 " in out
    assert "oom" in out and "1/4 busy" in out and "0 jobs/s" in out
    assert "\x1b" not in out and "▸" not in out
    assert len(worker.asked) == 2 and {ask.what for ask in worker.asked} == {"status"}


def test_an_empty_namespace_is_no_failure(shell):
    out = shell.good("top", "--every", "0.2s")
    assert "no job was ever put here" in out and "no supervisor is running here" in out


def test_who_does_not_answer_is_shown_as_such_beside_the_others(shell, played, silent):
    worker = played(told())
    out = shell.good("top", "--every", "0.3s")
    assert words_of(out, worker.name)[1] == "serving"
    assert words_of(out, silent.name)[1:3] == ["no", "answer"]
    assert "1 silent" in out


def test_an_answer_that_is_none_counts_as_none(shell, played):
    worker = played({"error": "what is status?"})
    assert words_of(shell.good("top", "--every", "0.2s"), worker.name)[1:3] == ["no", "answer"]


def test_only_of_the_queues_that_are_shown_the_figures_are_looked_at(jobs):
    for number in range(5):
        jobs.queue(f"q{number}").put("k")
    looker = Looker(jobs, 0.2)
    assert set(looker.look().figures) == {f"q{number}" for number in range(5)}
    looker.queues = ["q3", "gone"]
    look = looker.look()
    assert set(look.figures) == {"q3"} and set(look.queues) == {f"q{number}" for number in range(5)}


def test_a_look_at_twenty_supervisors_and_two_hundred_queues_takes_less_than_the_time_between_two(
    jobs, played, server, measured
):
    for number in range(200):
        jobs.queue(f"queue-{number:03}").put("k")
    answer = told(children=[child(number, "email.send", 1.0) for number in range(16)])
    for _ in range(20):
        played(answer)
    looker = Looker(jobs, 5.0)
    looker.queues = [f"queue-{number:03}" for number in range(30)]
    before_us = server.redis.info("commandstats")["cmdstat_evalsha"]["usec"]
    began_at = clock.monotonic()
    look = looker.look()
    took_s = clock.monotonic() - began_at
    redis_us = server.redis.info("commandstats")["cmdstat_evalsha"]["usec"] - before_us
    assert (len(look.queues), len(look.figures), len(look.told)) == (200, 30, 20)
    assert None not in look.told.values()
    assert took_s < 5.0
    measured(f"a look took {1000 * took_s:.0f} ms, and scripts {redis_us / 1000:.1f} ms of Redis")
