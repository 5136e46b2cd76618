"""What all queues together have gone through: waiting jobs, starts, failures, deaths and supervisors, step by step."""

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import course, leasing, maintenance
from supervisor.engine.commands.course import PERIODS, CourseStep
from supervisor.engine.model.outcomes import Died, Failed

MINUTE, HOUR, DAY = 60, 3600, 86_400
NOON = 20_000 * DAY + 12 * HOUR


@pytest.fixture(autouse=True)
def noon(clock):
    clock.now = float(NOON)


@pytest.fixture
def read(client):
    """Read the steps of a period that are not empty, by their ages in steps."""

    def steps(period="hour"):
        found = calls_of(client).call(course.read, period)
        assert len(found) == PERIODS[period][1]
        return {
            len(found) - 1 - at: step
            for at, step in enumerate(found)
            if step != CourseStep(step.since_unix, None, None, 0, 0, 0)
        }

    return steps


def sweep(client, **options):
    calls_of(client).call(maintenance.sweep, **options)


def test_a_new_namespace_has_no_course_and_gets_no_keys(client, read, keys):
    sweep(client)
    assert read() == {} and keys() == set()


def test_sweeps_count_what_waits_in_all_queues(client, clock, read):
    client.queue("a").put_many({"klass": "k", "lane": "l"} for _ in range(3))
    client.queue("b").put_many([{"klass": "k"}, {"klass": "k", "delay": 5}])
    sweep(client)
    client.lease("w", ["a", "b"], 2)
    clock.tick(10)
    sweep(client)
    for period in PERIODS:
        assert read(period)[0].waiting == pytest.approx((4 + 3) / 2)  # one is due by then
    clock.tick(2 * MINUTE)
    assert list(read()) == [2] and read()[2].waiting == pytest.approx(3.5)


def test_starts_are_told_between_two_sweeps(client, clock, read):
    q = client.queue("q")
    q.put_many({"klass": "k"} for _ in range(20))
    q.lease("w", 4)
    sweep(client)
    clock.tick(MINUTE)
    q.lease("w", 5)
    sweep(client)
    clock.tick(3 * MINUTE)  # nobody sweeps for two minutes
    q.lease("w", 6)
    sweep(client)
    assert {age: step.started for age, step in read().items()} == {4: None, 3: 5, 0: 2}


def test_failures_deaths_and_new_workers_are_counted_at_their_time(client, clock, read):
    q = client.queue("q")
    q.put_many({"klass": "k"} for _ in range(3))
    calls_of(client).call(leasing.resume, "w", 1, [], highest=0)
    one, two, three = q.lease("w", 3)
    client.settle([Failed(one, "g", "m"), Died(two, "oom", {})])
    clock.tick(MINUTE)
    calls_of(client).call(leasing.resume, "w", 2, [(three.jid, three.token)], highest=0)
    client.settle([Died(three, "oom", {})])
    seen = {age: (step.failures, step.deaths, step.supervisors) for age, step in read().items()}
    assert seen == {1: (1, 1, 1), 0: (0, 1, 0)}
    assert read("day")[0].deaths == read("month")[0].deaths == 2


def test_a_course_ends_with_its_period(client, clock, server, namespace, read):
    client.queue("q").put("k")
    sweep(client)
    clock.tick(2 * HOUR)
    assert read() == {} and list(read("day")) == [12] and list(read("month")) == [0]
    for key in server.redis.keys(f"{{{namespace}}}:course:*"):
        step_s = int(key.split(b":")[2])
        assert 0 < server.redis.ttl(key) <= (32 * DAY if step_s == DAY else 25 * HOUR)


def test_a_key_of_another_type_is_left_out(client, server, namespace, read):
    server.redis.rpush(f"{{{namespace}}}:course:60:{NOON}", "x")
    client.queue("q").put("k")
    sweep(client)
    assert read() == {} and read("day")[0].waiting == 1
