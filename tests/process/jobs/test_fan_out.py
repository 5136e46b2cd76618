"""Much work in nested batches whose results are joined, while children, zygotes and masters are killed."""

import pytest
from watched import FULL, Killer

#: Jobs of each innermost batch, such batches, and kills.
WIDTH, BATCHES, KILLS = (1000, 10, 300) if FULL else (100, 4, 12)
KINDS, WEIGHTS = ("child", "zygote", "master"), (88, 6, 6)


def callbacks(name):
    """Callbacks that tell which of them was put, and of which batch."""
    return {
        when: {"queue": "default", "klass": "batches.told", "data": f"{name} {when}", "tags": ["told"], "max_deaths": 0}
        for when in ("on_success", "on_failure", "on_complete")
    }


def put_fan_out(stage):
    """Put squares in batches of a batch of a batch, their sums, and the sum of these. Return the three, and its jid."""
    lasting = {"max_deaths": 0}  # one job may be at many of the kills
    with stage.client.batch(**callbacks("outer")) as outer:
        with outer.batch(**callbacks("middle")) as middle:
            sums = []
            for number in range(BATCHES):
                with middle.batch(**callbacks(f"inner {number}")) as inner:
                    numbers = range(number * WIDTH, (number + 1) * WIDTH)
                    jobs = [{"klass": "batches.square", "data": n, **lasting} for n in numbers]
                    squares = inner.put_many("default", jobs)
                sums.append(middle.put("default", "batches.add_up", depends=squares, **lasting))
        total = outer.put("default", "batches.add_up", depends=sums, **lasting)
    return outer, middle, total


def told(stage):
    return sorted(job.data for job in stage.client.tagged("told", count=1000)[1] if job.state == "complete")


@pytest.mark.sampled(3)
def test_results_of_nested_batches_are_joined_once_under_random_kills(stage, measured):
    """TEST_FULL=1: 10,000 jobs and 300 kills."""
    stage.config(grace=0.5)
    killer = Killer(stage, lambda: stage.start(processes=2, jobs_per_child=0, lease_ttl="5s"), seed=3).fill(3)
    for pool in killer.pools:
        pool.wait_ready()
    outer, middle, total = put_fan_out(stage)
    count = BATCHES * WIDTH
    for number in range(1, KILLS + 1):
        due = count * number // (KILLS + 1)
        stage.wait_until_counted(lambda due=due: stage.queue.stats().run.count >= due, 120)
        while not killer.kill(killer.draw.choices(KINDS, WEIGHTS)[0]):
            stage.let_time_pass(0.005)
    wanted = sorted(
        f"{name} {when}"
        for name in ("outer", "middle", *(f"inner {number}" for number in range(BATCHES)))
        for when in ("on_complete", "on_success")
    )
    stage.wait_until_counted(lambda: len(told(stage)) >= len(wanted), 120)
    for pool in killer.pools:
        pool.wait_for("master.started")  # until then a signal has its default effect
    assert [pool.drain() for pool in killer.pools] == [0] * len(killer.pools)

    assert told(stage) == wanted
    assert stage.client.job(total).result == [count, sum(n**2 for n in range(count))]
    assert (middle.complete, middle.total) == (2 * BATCHES, 2 * BATCHES)  # each inner batch counts as one
    assert (outer.complete, outer.total) == (2, 2)
    assert stage.queue.stats().run.count == count + BATCHES + 1 + len(wanted)
    assert stage.client.failed() == {}
    assert stage.client.check() == []
    measured(f"{killer.counts()} killed in {count} jobs; a sum of {count} results, {len(wanted)} callbacks, each once")
    killer.forget_dead()
    stage.assert_nothing_left(directories=True)
