"""`leasehold top` in a pipe, and the outcome of requests to played supervisors."""

import os
import select
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("rich")

from rich.text import Text

from supervisor import clock
from supervisor.cli.top import requests
from supervisor.cli.top.controller import Action
from supervisor.cli.top.model import Tone
from supervisor.cli.top.polling import Poller
from supervisor.cli.top.requests import Result, carry_out
from supervisor.cli.top.terminal import Terminal
from tests.cli.top.parts import child, end, status


def words_of(out, first):
    return next(words for line in out.splitlines() if (words := line.split())[:1] == [first])


def test_a_pipe_gets_everything_once_with_rates(shell, jobs, played):
    jobs.queue("emails").put("email.send")
    jobs.queue("slow").put("k", delay=3600)
    jobs.queue("slow").pause(by="kim@web-1")
    worker = played(
        status(children=[child(1, "email.send", 2.0, jid="j1")], completed=7, ends=[end("died", "oom", "k", 1)])
    )
    out = shell.good("top", "--every", "1s")
    assert words_of(out, "emails")[1] == "1" and words_of(out, "slow")[13:15] == ["paused", "kim@web-1,"]
    assert words_of(out, worker.name)[1:3] == ["serving", "1/4"]
    assert f"children of {worker.name}" in out
    assert "1    4001 busy     email.send" in out and " j1 " in out
    assert "oom" in out and "1/4 busy" in out and "0 jobs/s" in out
    assert "\x1b" not in out and "▸" not in out
    assert len(worker.asked) == 2 and {ask.what for ask in worker.asked} == {"status"}


def test_an_empty_namespace_is_no_failure(shell):
    out = shell.good("top", "--every", "0.2s")
    assert "no job was ever put here" in out and "no supervisor is running here" in out


def test_a_silent_supervisor_is_marked(shell, played, silent):
    worker = played(status())
    out = shell.good("top", "--every", "0.3s")
    assert words_of(out, worker.name)[1] == "serving"
    assert words_of(out, silent.name)[1:3] == ["no", "answer"]
    assert "1 silent" in out


def test_an_answer_that_is_none_counts_as_none(shell, played):
    worker = played({"error": "what is status?"})
    assert words_of(shell.good("top", "--every", "0.2s"), worker.name)[1:3] == ["no", "answer"]


def test_only_shown_queues_have_stats_read(jobs):
    for number in range(5):
        jobs.queue(f"q{number}").put("k")
    poller = Poller(jobs, 0.2)
    assert set(poller.poll().stats) == {f"q{number}" for number in range(5)}
    poller.queues = ["q3", "gone"]
    snapshot = poller.poll()
    assert set(snapshot.stats) == {"q3"} and set(snapshot.queues) == {f"q{number}" for number in range(5)}


def test_a_poll_of_200_queues_is_faster_than_the_interval(jobs, played, server, measured):
    for number in range(200):
        jobs.queue(f"queue-{number:03}").put("k")
    answer = status(children=[child(number, "email.send", 1.0) for number in range(16)])
    for _ in range(20):
        played(answer)
    poller = Poller(jobs, 5.0)
    poller.queues = [f"queue-{number:03}" for number in range(30)]
    before_us = server.redis.info("commandstats")["cmdstat_evalsha"]["usec"]
    began_at = clock.monotonic()
    snapshot = poller.poll()
    took_s = clock.monotonic() - began_at
    redis_us = server.redis.info("commandstats")["cmdstat_evalsha"]["usec"] - before_us
    assert (len(snapshot.queues), len(snapshot.stats), len(snapshot.status)) == (200, 30, 20)
    assert None not in snapshot.status.values()
    assert took_s < 15.0
    measured(f"a snapshot took {1000 * took_s:.0f} ms, and scripts {redis_us / 1000:.1f} ms of Redis")


# outcomes of requests


@pytest.mark.parametrize("what", ["drain", "reload", "scale", "pause", "resume"])
def test_a_request_shows_the_supervisors_answer(jobs, played, what):
    worker = played({"did": "does so"})
    assert carry_out(jobs, Action(what, worker.name, {"most": 3})) == Result(f"{worker.name} does so")
    (ask,) = worker.asked
    assert (ask.what, ask.argument["most"]) == (what, 3)
    assert " at " in ask.argument["by"]


def test_page_of_a_job_tells_why_it_stands_so_and_all_of_it(jobs):
    jobs.queue("emails").put("email.send", {"to": "ann@example.org"}, jid="j")
    page = carry_out(jobs, Action("open job", "j")).page
    assert (page.title, page.text[0]) == ("job j", "no living worker serves queue emails")
    assert 'data       {"to":"ann@example.org"}' in page.text
    jobs.cancel("j", by="kim@web-1")
    page = carry_out(jobs, Action("open job", "j")).page
    assert page.text[0].startswith("job j was cancelled by kim@web-1")


def test_page_of_failed_groups_has_the_largest_first_with_its_newest_job(jobs):
    assert carry_out(jobs, Action("open", "failed groups")).page.text == ["nothing has failed"]
    jobs.queue("q").put_many({"klass": "k", "jid": jid} for jid in "abc")
    for group, lease in zip(("Busy", "Broken", "Broken"), jobs.queue("q").lease("w", 3), strict=True):
        lease.fail(group, "boom")
    lines = carry_out(jobs, Action("open", "failed groups")).page.text
    assert [line.split()[:2] for line in lines] == [["2", "Broken"], ["c", "k,"], ["1", "Busy"], ["a", "k,"]]
    assert lines[1].endswith(" ago: boom")


def test_a_refusal_is_said_with_its_reason(jobs, played):
    worker = played({"error": "this supervisor drains"})
    assert carry_out(jobs, Action("scale", worker.name)) == Result(
        f"{worker.name} refuses: this supervisor drains", Tone.ALARM
    )
    broken = played({"error": "SyntaxError in email.py", "traceback": "…"})
    said = carry_out(jobs, Action("reload", broken.name))
    assert said == Result(f"{broken.name} does not run the new code: SyntaxError in email.py", Tone.ALARM)


def test_no_answer_in_time_is_said(jobs, silent, monkeypatch):
    monkeypatch.setattr(requests, "_TIMEOUT_S", 0.1)
    for what in ("pause", "stacks"):
        said = carry_out(jobs, Action(what, silent.name, {"child": 1}))
        assert (said.text, said.tone) == (f"{silent.name} has not answered within 5s", Tone.ALARM)


def test_a_supervisor_that_has_left_meanwhile_is_said(jobs):
    said = carry_out(jobs, Action("drain", "gone-1"))
    assert "gone-1" in said.text and said.tone is Tone.ALARM


def test_a_stack_is_a_page_of_its_lines(jobs, played):
    children = [
        {"child": 1, "pid": 11, "jid": "j", "klass": "k", "running_s": 1.0, "stack": "  File a\n    File b"},
        {"child": 2, "pid": 12, "jid": None, "klass": None, "running_s": None, "stack": ""},
    ]
    worker = played({"children": children})
    page = carry_out(jobs, Action("stacks", worker.name, {"child": 1})).page
    assert (page.title, page.text) == (f"child 1 of {worker.name}, pid 11: k j", ["File a", "  File b"])
    page = carry_out(jobs, Action("stacks", worker.name, {"child": 2})).page
    assert page.title.endswith("idle") and "has not answered in time" in page.text[0]
    said = carry_out(jobs, Action("stacks", worker.name, {"child": 9}))
    assert (said.text, said.page) == (f"child 9 of {worker.name} has ended meanwhile", None)


def test_a_cancel_reports_success_or_the_reason(jobs):
    jobs.queue("q").put("k", jid="j")
    jobs.queue("q").put("k", jid="done")
    assert carry_out(jobs, Action("cancel", "j")) == Result("cancelled j")
    assert carry_out(jobs, Action("cancel", "j")) == Result("j has ended meanwhile", Tone.NOTICE)
    jobs.queue("q").lease("w")[0].complete()
    assert carry_out(jobs, Action("cancel", "done")) == Result("done was not cancelled: it is complete", Tone.NOTICE)
    jobs.queue("q").put("k", jid="first")
    jobs.queue("q").put("k", jid="second", depends=["first"], on_parent_failure="wait")
    said = carry_out(jobs, Action("cancel", "first"))
    assert "second" in said.text and said.tone is Tone.ALARM


def test_a_queue_is_paused_and_goes_on(jobs):
    jobs.queue("q").put("k")
    carry_out(jobs, Action("pause queue", "q"))
    assert jobs.queue("q").counts().paused
    carry_out(jobs, Action("unpause queue", "q"))
    assert not jobs.queue("q").counts().paused


def test_a_batch_is_paused_and_goes_on(jobs):
    with jobs.batch("b") as batch:
        batch.put("q", "k")
    carry_out(jobs, Action("pause batch", "b"))
    assert batch.look().paused
    carry_out(jobs, Action("resume batch", "b"))
    assert not batch.look().paused


def test_a_non_blocking_terminal_is_waited_for(monkeypatch):
    ours, theirs = os.openpty()
    os.set_blocking(theirs, False)
    with os.fdopen(ours, "rb", buffering=0) as seen, os.fdopen(theirs, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stdin", stream)
        with ThreadPoolExecutor(1) as pool:
            drawing = pool.submit(Terminal().draw, [Text("x" * 200)] * 500, 200)
            drawn = b""
            # Fill the terminal. The kernel calls it writable while it has less room than the end of a line needs.
            full_by_at = time.monotonic() + 1
            while not drawing.done() and select.select([], [stream], [], 0)[1] and time.monotonic() < full_by_at:
                pass
            while not drawing.done() or select.select([seen], [], [], 0)[0]:
                if select.select([seen], [], [], 0.05)[0]:
                    drawn += seen.read(65536)
            drawing.result()
    assert drawn.count(b"x") == 100_000
