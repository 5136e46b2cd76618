"""Choices of jobs: which ones match, and steps that go on at a cursor."""

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import choices, job_queries
from supervisor.engine.commands.choices import Choice

NOT_ENDED = ("waiting", "scheduled", "depends", "parked", "running", "stalled")


@pytest.fixture
def queue(client):
    return client.queue("q")


def chosen(client, **choice):
    return calls_of(client).follow(choices.found(Choice(**choice), calls_of(client).clock))


def pages(client, choice, count, between=lambda: None):
    """Return the jids of all pages, as a person sees them. `between` runs before each further one."""
    found, cursor = [], None
    while True:
        page = calls_of(client).call(choices.find, choice, cursor, count, as_shown=True)
        found += page.states
        assert len(page.states) == count or page.cursor is None
        if page.cursor is None:
            return found
        cursor = choices.checked_cursor(page.cursor)
        between()


@pytest.fixture
def filled(client, queue):
    """Put one job into each state, named after it, in two lanes and at the front."""
    client.limit("used-up", running=0)
    queue.put("k", jid="parked", limit="used-up")
    assert queue.lease("w") == []
    for jid in ("front", "running", "failed", "complete"):
        queue.put("k", jid=jid, tags=["red"])
    front, _, failed, complete = queue.lease("w", 4, ttl=3600)
    front.release()
    failed.fail("Broken", "boom")
    complete.complete()
    queue.put("k", jid="waiting", tags=["red"])
    queue.put("k", jid="laned", lane="a")
    queue.put("k", jid="scheduled", delay=600)
    queue.put("k", jid="depends", depends=["waiting"])
    client.queue("other").put("k", jid="elsewhere", tags=["red"])


def test_states_to_choose_are_those_of_lists():
    assert set(choices.STATES) == set(job_queries.STATES)


def test_choice_by_queue_finds_each_job_once(client, filled):
    assert chosen(client, queue="q", states=NOT_ENDED) == {
        "depends": "depends", "scheduled": "scheduled", "parked": "parked", "waiting": "waiting", "laned": "waiting",
        "front": "waiting", "running": "running",
    }  # fmt: skip
    assert list(chosen(client, queue="q", states=["waiting"])) == ["waiting", "laned", "front"]
    assert chosen(client, queue="q", states=["failed"]) == {"failed": "failed"}
    assert chosen(client, queue="nowhere", states=NOT_ENDED) == {}


def test_all_conditions_of_a_choice_must_hold(client, filled):
    red = {"front": "waiting", "running": "running", "failed": "failed", "complete": "complete", "waiting": "waiting"}
    assert chosen(client, tag="red", queue="q") == red
    assert chosen(client, tag="red") == red | {"elsewhere": "waiting"}
    assert chosen(client, tag="red", group="Broken") == {"failed": "failed"}
    assert chosen(client, group="Broken", queue="other") == {}


def test_choice_tells_due_and_stalled_jobs_from_scheduled_and_running_ones(client, queue, clock):
    queue.put("k", jid="due", delay=10)
    for jid, ttl in (("runs", 60), ("lost", 5)):
        queue.put("k", jid=jid, priority=-1)
        queue.lease("w", 1, ttl=ttl)
    clock.now += 10
    queue.put("k", jid="later", delay=10)
    states = {"due": "waiting", "later": "scheduled", "lost": "stalled", "runs": "running"}
    assert chosen(client, queue="q") == states
    for jid, state in states.items():
        assert chosen(client, queue="q", states=[state]) == {jid: state}


def test_choice_of_thousands_is_complete(client, queue):
    queue.put_many({"klass": "k", "jid": f"j{number}", "lane": "ab"[number % 2]} for number in range(2_500))
    found = chosen(client, queue="q", states=["waiting"])
    assert len(found) == 2_500 and [jid for jid in found if int(jid[1:]) % 2 == 0][:3] == ["j0", "j2", "j4"]


def test_choice_of_too_many_ends_with_some(client, queue):
    queue.put_many({"klass": "k", "lane": "ab"[n % 2]} for n in range(3_500))
    calls, told = calls_of(client), []
    some = calls.follow(choices.found(Choice("q"), calls.clock, 1_500, told.append))
    assert 1_500 < len(some) <= 2_500 and told[-1] == len(some)


def test_conditions_without_an_index_are_compared_job_by_job(client, queue, clock):
    queue.put("mail", jid="a-old", lane="x", tags=["red"])
    clock.now += 100
    with client.batch("b") as batch:
        batch.put("q", "mail", jid="a-new", lane="x", tags=["red"])
        batch.put("q", "sum", jid="b-new", lane="y", tags=["red"])
    assert set(chosen(client, klass="mail")) == {"a-old", "a-new"}
    assert set(chosen(client, lane="x")) == set(chosen(client, queue="q", lane="x")) == {"a-old", "a-new"}
    assert set(chosen(client, part="new")) == {"a-new", "b-new"}
    assert set(chosen(client, first_put_unix=clock.now)) == {"a-new", "b-new"}
    assert set(chosen(client, last_put_unix=clock.now - 100)) == {"a-old"}
    assert set(chosen(client, batch="b", klass="sum")) == {"b-new"}
    assert set(chosen(client, tag="red", lane="x", first_put_unix=clock.now - 1)) == {"a-new"}


@pytest.mark.parametrize("state", choices.STATES)
def test_state_without_a_queue_is_of_all_queues(client, filled, state):
    client.queue("third").put("k", jid="third")
    found = {jid for jid, one in chosen(client).items() if one == state}
    assert set(chosen(client, states=[state])) == found and (found or state == "stalled")
    assert len(found) == {"waiting": 5, "stalled": 0}.get(state, 1)


def test_members_of_a_batch_are_found_in_all_states(client, queue):
    with client.batch("b") as batch:
        for jid in ("waits", "runs", "fails", "ends"):
            batch.put("q", "k", jid=jid, priority=int(jid == "waits"))
        with batch.batch("nested") as nested:
            nested.put("q", "k", jid="inner", priority=2)
    leases = {lease.jid: lease for lease in queue.lease("w", 3, ttl=3600)}
    leases["fails"].fail("g", "m")
    leases["ends"].complete()
    assert chosen(client, batch="b") == {"waits": "waiting", "runs": "running", "fails": "failed", "ends": "complete"}
    assert chosen(client, batch="b", states=["complete"]) == {"ends": "complete"}


def test_jobs_that_leave_shift_no_page(client, queue):
    queue.put_many({"klass": "k", "jid": f"{n:03}"} for n in range(130))
    found = pages(client, Choice("q", states=["waiting"]), 40, lambda: queue.lease("w", 20))
    assert found == [f"{n:03}" for n in range(130)]


def test_page_goes_on_behind_a_job_that_has_left(client, queue):
    queue.put_many({"klass": "k", "jid": f"{n:03}", "priority": n % 3} for n in range(60))
    order = [f"{n:03}" for n in sorted(range(60), key=lambda n: n % 3)]
    left = iter(order)
    assert pages(client, Choice("q"), 10, lambda: client.cancel(*(next(left) for _ in range(10)))) == order


@pytest.mark.parametrize("choice", [Choice(states=["failed"]), Choice(group="g")])
def test_newest_first_goes_on_behind_a_job_that_has_left_while_others_come(client, queue, clock, choice):
    def fail(jid):
        clock.now += 1
        queue.put("k", jid=jid)
        queue.lease("w")[0].fail("g", "m")

    def change():
        n = next(left)
        client.cancel(f"{n:02}")
        fail(f"new-{n}")

    for n in range(12):
        fail(f"{n:02}")
    left = iter((9, 6, 3, 0))
    assert pages(client, choice, 3, change) == [f"{n:02}" for n in reversed(range(12))]


def test_pages_go_through_queues_lanes_and_places(client, clock):
    expected = []
    for name in ("b", "a", "c"):
        queue = client.queue(name)
        for lane in ("", "y", "x"):
            queue.put_many({"klass": "k", "jid": f"{name}{lane}{n}", "lane": lane or None} for n in range(3))
        queue.put("k", jid=f"{name}-later", delay=60)
        clock.now += 1
        expected += [f"{name}{lane}{n}" for lane in ("", "x", "y") for n in range(3)] + [f"{name}-later"]
    for count in (1, 2, 7, 100):
        assert pages(client, Choice(), count) == expected
    assert pages(client, Choice(lane="x"), 2) == [f"{name}x{n}" for name in "bac" for n in range(3)]


def test_thousands_of_lanes_are_each_visited_once(client, queue):
    lanes = [f"lane-{n * 7919 % 2_600:04}" for n in range(2_600)]
    queue.put_many({"klass": "k", "jid": lane, "lane": lane} for lane in lanes)
    calls, cursor, found = calls_of(client), None, []
    while not found or cursor is not None:
        page = calls.call(choices.find, Choice("q"), cursor)
        assert page.looked_at <= 500  # a lane counts as much as a job
        found, cursor = found + list(page.states), page.cursor
    assert sorted(found) == sorted(lanes)


def test_step_reads_the_lanes_that_it_looks_through_and_no_others(client, queue, server):
    queue.put_many({"klass": "k", "lane": f"lane-{n}"} for n in range(2_600))
    queue.lane("lane-7").pause()
    cursor = None
    for _ in range(3):
        server.redis.config_resetstat()
        cursor = calls_of(client).call(choices.find, Choice("q"), cursor, 5).cursor
        calls = {name: each["calls"] for name, each in server.redis.info("commandstats").items()}
        assert calls["cmdstat_zscan"] <= 50 and "cmdstat_hkeys" not in calls and calls["cmdstat_zrange"] <= 20


def test_lanes_that_are_paused_or_go_shift_nothing(client, queue):
    lanes = [f"lane-{n}" for n in range(600)]
    queue.put_many({"klass": "k", "jid": lane, "lane": lane} for lane in lanes)
    for n in range(0, 600, 3):
        queue.lane(f"lane-{n}").pause()
    gone = [f"lane-{n}" for n in range(1, 600, 30)]

    def one_goes():
        if gone:
            client.job(gone.pop()).cancel()

    found = pages(client, Choice("q"), 25, one_goes)
    assert len(found) == len(set(found)) and {f"lane-{n}" for n in range(600) if n % 30 != 1} <= set(found)


def test_step_is_bounded_and_reports_its_progress(client, queue):
    queue.put_many({"klass": "k", "lane": f"lane-{n}" if n % 2 else None} for n in range(3_000))
    choice, looked, cursor, steps = Choice("q", klass="absent"), 0, None, 0
    while True:
        step = calls_of(client).call(choices.find, choice, cursor, 1)
        looked, steps, cursor = looked + step.looked_at, steps + 1, step.cursor
        assert (step.size, step.looked_at <= 1_000, step.states) == (3_000, True, {})
        if cursor is None:
            break
    assert looked == 3_000 and steps >= 5
    assert calls_of(client).call(choices.find, Choice(klass="absent")).size is None


def test_wrong_choice_or_cursor_is_refused():
    with pytest.raises(ValueError, match=r"states must be some of .*'lost'"):
        Choice("q", states=("lost",))
    with pytest.raises(ValueError, match="queue"):
        Choice("q" * 65)
    with pytest.raises(ValueError, match="lane"):
        Choice(lane="a\nb")
    for cursor in (b"", b"q\n\nwaiting", b"q\n\nwaiting\n\nnan\nx", b"q" * 2000 + b"\n\nwaiting\n\n0\nx"):
        with pytest.raises(ValueError, match="cursor"):
            choices.checked_cursor(cursor)
