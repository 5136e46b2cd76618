"""Puts and reports of a handler are checked at the call, and kept until the job ends."""

import asyncio

import orjson
import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, use_span

from supervisor import clock
from supervisor.child import context as context_module
from supervisor.child.context import JobCalls, JobContext
from supervisor.engine.model.job_to_put import JobToPut
from supervisor.messages import Blob, Completion, Follower, JobMessage, ProgressReport, Stage, pack_completion

EVERY_BYTE = bytes(range(256))


@pytest.fixture
def reported():
    return []


@pytest.fixture
def stored():
    return []


@pytest.fixture
def new(reported, stored):
    def make(persistent=False, lane=None, trace=None, jid="j", **more):
        message = JobMessage(
            7, jid, "k", "q", 0, 0, 0, 0, [], lane, persistent, 0.0, False, b"{}", trace=trace, **more
        )  # fmt: skip
        calls = JobCalls(lambda _token, said: reported.append(said), lambda _token, state, *_: stored.append(state))
        return JobContext(message, "/tmp", calls)

    return make


# steps


async def later():
    return 1


def test_async_step_without_await_is_refused(new, stored):
    job = new()
    with pytest.raises(TypeError, match="function of step 'charge' is async, and no loop runs here to await it"):
        job.step("charge", later)
    assert stored == []
    assert job.step("charge", int) == 0


# followers


def test_job_without_puts_has_no_followers(new):
    assert new().completion(b"1") is None


def test_put_returns_the_jid_of_the_new_job(new):
    job = new()
    drawn = job.put("other", "a.b", {"n": 1})
    assert job.put("other", "a.b", jid="mine") == "mine"
    result, following, then = job.completion(b"")
    assert (result, following) == (b"", None)
    assert then == [
        Follower("other", "a.b", {"jid": drawn}, Blob("json", b'{"n":1}')),
        Follower("other", "a.b", {"jid": "mine"}, Blob("json", b"null")),
    ]
    assert len(drawn) == 22


def test_bytes_follow_unchanged(new):
    job = new()
    job.put("q", "k", EVERY_BYTE, jid="b")
    job.next("q", bytearray(EVERY_BYTE))
    assert job.completion(b"1") == Completion(
        b"1",
        Stage("q", 0.0, [], Blob("bytes", EVERY_BYTE)),
        [Follower("q", "k", {"jid": "b"}, Blob("bytes", EVERY_BYTE))],
    )


def test_tags_and_jids_may_be_any_iterable(new):
    job = new()
    job.put("q", "k", jid="b", tags=(tag for tag in ("x", "y")), depends={"p"}, delay=5, priority=-1)
    (follower,) = job.completion(b"").then
    assert follower.options == {"jid": "b", "tags": ["x", "y"], "depends": ["p"], "delay": 5, "priority": -1}
    pack_completion(job.completion(b""))


def test_followers_inherit_the_jobs_trace_by_default(new):
    trace, other = f"00-{'ab' * 16}-{'cd' * 8}-01", f"00-{'ef' * 16}-{'01' * 8}-00"
    job = new(trace=trace)
    for given in ({}, {"trace": other}, {"trace": None}):
        job.put("q", "k", jid="b", **given)
    assert job.trace == trace
    assert [follower.options["trace"] for follower in job.completion(b"").then] == [trace, other, None]


def test_followers_belong_to_the_current_span(new):
    job = new(trace=f"00-{'ab' * 16}-{'cd' * 8}-01")
    span = NonRecordingSpan(SpanContext(0x12, 0x34, is_remote=False))
    with use_span(span):
        job.put("q", "k", jid="b")
    (follower,) = job.completion(b"").then
    assert follower.options["trace"] == f"00-{0x12:032x}-{0x34:016x}-00"


def test_next_sets_queue_delay_and_parents(new):
    job = new()
    job.next("later", delay=1.5, depends=(jid for jid in ("a", "b")))
    assert job.completion(b"").next == Stage("later", 1.5, ["a", "b"], Blob("", b""))


@pytest.mark.parametrize(
    ("arguments", "options", "name"),
    [
        (("", "k"), {}, "queue"),
        ((5, "k"), {}, "queue"),
        (("q", "k\n"), {}, "klass"),
        (("q", "k", object()), {}, "data"),
        (("q", "k", float("nan")), {"jid": 5}, "jid"),
        (("q", "k"), {"delay": "soon"}, "delay"),
        (("q", "k"), {"delay": -1}, "delay"),
        (("q", "k"), {"tags": "tag"}, "tags"),
        (("q", "k"), {"retries": -1}, "retries"),
        (("q", "k"), {"tries": 3}, "tries"),
        (("q", "k"), {"at": 1, "delay": 1}, "at"),
    ],
)
def test_bad_put_raises_at_the_call_and_puts_nothing(new, arguments, options, name):
    job = new()
    with pytest.raises((TypeError, ValueError), match=name):
        job.put(*arguments, **options)
    assert job.completion(b"") is None


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"queue": ""}, "queue"),
        ({"queue": None}, "queue"),
        ({"queue": "q", "delay": -1}, "delay"),
        ({"queue": "q", "delay": True}, "delay"),
        ({"queue": "q", "depends": "jid"}, "depends"),
        ({"queue": "q", "depends": [""]}, "depends"),
        ({"queue": "q", "data": object()}, "data"),
    ],
)
def test_bad_next_raises_at_the_call_and_changes_nothing(new, arguments, name):
    job = new()
    with pytest.raises((TypeError, ValueError), match=name):
        job.next(**arguments)
    assert job.completion(b"") is None
    job.next("q")


def test_next_can_be_called_once(new):
    job = new()
    job.next("first")
    with pytest.raises(ValueError, match="'first' already"):
        job.next("second")
    assert job.completion(b"").next.queue == "first"


def test_nothing_can_follow_a_persistent_job(new):
    job = new(persistent=True)
    with pytest.raises(ValueError, match="persistent"):
        job.put("q", "k")
    with pytest.raises(ValueError, match="persistent"):
        job.next("q")


def test_followers_are_limited_in_number(new):
    job = new()
    for _ in range(1000):
        job.put("q", "k")
    with pytest.raises(ValueError, match="1000"):
        job.put("q", "k")
    assert len(job.completion(b"").then) == 1000


def test_followers_are_limited_in_bytes_together(new, monkeypatch):
    monkeypatch.setattr(context_module, "ROOM_BYTES", 1800)
    job = new()
    job.put("q", "k", b"x" * 1500)
    with pytest.raises(ValueError, match="at most 256 MB"):
        job.put("q", "k", b"x" * 300)
    with pytest.raises(ValueError, match="at most 256 MB"):
        job.next("q", b"x" * 300)
    assert len(job.completion(b"").then) == 1


def test_followers_options_are_limited_in_bytes(new, monkeypatch):
    monkeypatch.setattr(context_module, "MAX_HEAD_BYTES", 3800)
    job = new()
    names = [f"{n:064}" for n in range(20)]
    job.next("q", depends=names)
    job.put("q" * 64, '"' * 64, b"x" * 5000, tags=names[:10], jid="\\" * 64)
    with pytest.raises(ValueError, match="MB of options"):
        job.put("q", "k", depends=names)
    with pytest.raises(ValueError, match="MB of options"):
        for _ in range(100):
            job.put("q", "k")
    head_bytes = int.from_bytes(pack_completion(job.completion(b"x" * 65_536))[0], "little")
    assert 3200 < head_bytes <= 3800


def test_job_cannot_put_itself(new):
    job = new()
    with pytest.raises(ValueError, match=r"'j' is this job's own: use job\.next"):
        job.put("q", "k", jid="j")
    assert job.completion(b"") is None


# progress


@pytest.fixture
def time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    return now


def test_progress_is_sent_at_once_then_twice_a_second(new, reported, time):
    job = new()
    for step in range(101):
        job.progress(step / 100, f"step {step}")
        time[0] += 0.125
    assert [text for _fraction, text in reported] == [f"step {step}" for step in range(0, 101, 4)]


def test_last_progress_is_sent_at_the_end_only_if_new(new, reported, time):
    job = new()
    job.progress(0)
    job.progress(0.5)
    job.progress(1, "done")
    job.report_progress()
    job.report_progress()
    assert reported == [ProgressReport(0.0, ""), ProgressReport(1.0, "done")]


def test_without_progress_nothing_is_reported(new, reported):
    new().report_progress()
    assert reported == []


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-0.1,), "fraction"), ((1.1,), "fraction"), (("half",), "fraction"), ((True,), "fraction"),
        ((None,), "fraction"),
        ((float("nan"),), "fraction"), ((0.5, 5), "text"), ((0.5, None), "text"), ((0.5, "\ud800"), "text"),
        ((0.5, "x" * 1001), "text"),
    ],
)  # fmt: skip
def test_bad_progress_raises_at_the_call(new, reported, arguments, name):
    with pytest.raises((TypeError, ValueError), match=name):
        new().progress(*arguments)
    assert reported == []


@pytest.mark.parametrize("fraction", ["half", True, None, 50, -0.1, float("nan"), float("inf")])
def test_error_about_progress_explains_the_fraction(new, fraction):
    with pytest.raises((TypeError, ValueError), match=f"fraction must be a number from 0 to 1.*: {fraction!r}"):
        new().progress(fraction)


def test_should_stop_is_true_once_told(new):
    job = new()
    assert not job.should_stop
    job.tell_to_stop()
    assert job.should_stop


def test_job_knows_its_lane(new):
    assert (new().lane, new(lane="tenant-1").lane) == (None, "tenant-1")


def test_coroutine_can_put_and_report(new, reported):
    job = new()

    async def handler():
        await asyncio.sleep(0)
        job.progress(0.5)
        job.next("q", {"n": 1})
        return job.put("q", "k")

    jid = asyncio.run(handler())
    assert [follower.options["jid"] for follower in job.completion(b"").then] == [jid]
    assert job.completion(b"").next.data == Blob("json", orjson.dumps({"n": 1}))
    assert reported == [ProgressReport(0.5, "")]


# a namespace of several shards


@pytest.fixture
def divided(new):
    return new(jid="order{7}", is_divided=True, batch="import{7}")


def ready():
    """A job that is ready to be put, as `handler.job()` makes it."""
    made = JobToPut({"queue": "q", "klass": "k", "jid": "drawn", "data": None})
    made.draws_jid = True
    return made


def test_job_of_several_shards_puts_jobs_beside_itself(divided):
    jids = [divided.put("q", "k"), divided.put("q", "k", limit="api{7}"), divided.put("q", "k", depends=["a{7}"])]
    jids += [divided.batch.put("q", "k"), divided.put(ready()), divided.batch.put(ready())]
    assert all(jid.endswith("{7}") for jid in jids)
    assert [put.options["jid"] for put in divided.completion(b"1").then] == jids


@pytest.mark.parametrize(
    ("options", "thing"),
    [({"limit": "api"}, "the limit api"), ({"unique": "u"}, "its unique key"), ({"depends": ["a"]}, "its parent a"),
     ({"jid": "own"}, "its jid")],
)  # fmt: skip
def test_job_of_several_shards_puts_nothing_that_is_tied_elsewhere(divided, options, thing):
    with pytest.raises(ValueError, match=f"({thing} and this job|this job and {thing}) may lie in different shards"):
        divided.put("q", "k", **options)
    assert divided.completion(b"1") is None


def test_job_of_several_shards_waits_for_jobs_beside_itself_only(divided):
    with pytest.raises(ValueError, match="its jid and its parent a may lie in different shards"):
        divided.next("q", depends=["a"])
    divided.next("q", depends=[divided.put("q", "k")])


def test_dependent_names_the_jid_that_its_parent_was_put_with(divided):
    parent = ready()
    divided.put(parent)
    divided.put("q", "k", depends=[parent])
    first, second = divided.completion(b"1").then
    assert second.options["depends"] == [first.options["jid"]] == ["drawn{7}"]


def test_jid_of_the_only_shard_stays_as_it_was_drawn(new):
    assert new().put(ready()) == "drawn"
