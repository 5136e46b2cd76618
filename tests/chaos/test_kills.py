"""Each job ends once while all processes of three supervisors are killed at random, and each death has its reason.

TEST_FULL=1: 1,000 kills in 20,000 jobs.
"""

import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from supervised import quantiles
from watched import FULL

from tests.chaos.accounts import Accounts, is_reason
from tests.chaos.killer import Killer

KILLS, JOBS = (1000, 20_000) if FULL else (40, 2000)
DEATHS = 300 if FULL else 40
SEED = int(os.environ.get("LEASEHOLD_TEST_SEED", "5"))
#: The handlers of a hundred jobs.
MIX = {
    "short": 56,
    "nap": 12,
    "leaves_processes": 8,
    "raises": 8,
    "asks_again": 4,
    "fails": 4,
    "leaves": 4,
    "goes_on": 4,
}
JOBS_PER_CHILD = (1, 0, 5)


@pytest.fixture
def start(stage, runs):
    """Starts a supervisor whose handlers keep the accounts."""

    def start(**flags):
        return stage.start(environment=runs.environment(len(stage.pools) + 1), log_level="info", **flags)

    return start


@pytest.fixture
def busy():
    """Processes that use all the time they get, two for each core."""
    started = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    yield
    for process in started:
        process.kill()
        process.wait()


def put_all(stage):
    """The jobs of the mix, one kind after the other, so that all are there at any time."""
    kinds = [f"chaos.{name}" for name, count in MIX.items() for _ in range(count)]
    wanted = [{"klass": kinds[n * 37 % 100], "jid": f"j{n}"} for n in range(JOBS)]
    return [jid for first in range(0, JOBS, 1000) for jid in stage.queue.put_many(wanted[first : first + 1000])]


def all_jobs(stage):
    """Return all jobs, from the lists of ended ones."""
    found = {}
    groups = stage.client.failed()
    listed = [lambda first: stage.client.completed(first, 1000)]
    listed += [lambda first, group=group: stage.client.failed(group, first, 1000)[1] for group in groups]
    for of in listed:
        first = 0
        while page := of(first):
            found.update((job.jid, job) for job in page)
            first += 1000
    return found


def seconds_to_the_next_run(accounts, runs, jobs):
    """Return the times from a job's first death to its next run, from the kill and from the kernel's word.

    Only children are counted that were killed while their handler ran.
    """
    began = {}
    for run in runs.all:
        began.setdefault(run.jid, []).append(run)
    killed_at = {one.who: one for one in accounts.killed if one.what == "child"}
    others = [(one.pool, one.at) for one in accounts.killed if one.what != "child"]
    found = []
    for jid, each in began.items():
        first_death = next((one for one in jobs[jid].history if one["what"] == "died"), None)
        for run, following in itertools.pairwise(each):
            killed = killed_at.get(run.who)
            if killed is None or run.word is not None or first_death is None:
                continue
            alone = not any(pool == run.pool and killed.at <= at <= following.at for pool, at in others)
            if alone and run.attempt == 1 + _ended_before(jobs[jid].history, first_death):
                found.append((following.at - killed.at, following.at - killed.gone_at))
    return found


def _ended_before(history, entry):
    return sum(one["what"] in ("died", "retried", "released") for one in history[: history.index(entry)])


def kill_until_enough(stage, runs, killer):
    """Kill KILLS processes, spread over the runs of nine tenths of the jobs. Return how long that took."""
    began_at = time.monotonic()
    every = JOBS * 0.9 / KILLS
    while len(killer.killed) < KILLS:
        due = int(every * (len(killer.killed) + 1))
        assert runs.wait_for(due, 60), f"{len(runs.all)} runs, {killer.counts()} killed\n{stage.last_words()}"
        if killer.kill() is None:
            stage.let_time_pass(0.005)
    return time.monotonic() - began_at


def assert_all_have_ended(jobs, put):
    """Assert that each put job, each follow-up of a completed one and no other has ended. Return how many followed."""
    completed = {jid for jid, job in jobs.items() if job.state == "complete"}
    failed = {jid for jid, job in jobs.items() if job.state == "failed"}
    followers = {f"{jid}-{n}" for jid in completed if jobs[jid].klass == "chaos.goes_on" for n in (1, 2)}
    assert completed | failed == {*put, *followers}
    for jid in failed:
        group = jobs[jid].failure["group"]
        assert group == "no-such-customer" or is_reason(group.removeprefix("died:")), jobs[jid].failure
    return len(followers)


def assert_logs_are_right(stage):
    for died in stage.find("job.died"):
        assert is_reason(died["reason"]), died
        assert died["message"]
    completed = Counter(event["jid"] for event in stage.find("job.completed"))
    assert [jid for jid, count in completed.items() if count > 1] == []


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_random_kills_leave_one_end_per_job_and_a_reason_per_death(stage, runs, start, measured):
    stage.config(grace=2)  # longer in all than a server waits for a busy disk

    def start_one(n):
        return start(processes=3, jobs_per_child=JOBS_PER_CHILD[n], lease_ttl="5s")

    killer = Killer(stage, runs, start_one, len(JOBS_PER_CHILD), SEED)
    for pool in killer.pools:
        pool.wait_for("master.started")
    put = put_all(stage)
    took_s = kill_until_enough(stage, runs, killer)
    stage.wait_until_counted(lambda: stage.queue.counts().total == 0, 120)
    assert [pool.drain() for pool in killer.pools] == [0] * len(killer.pools)
    runs.sync()

    jobs = all_jobs(stage)
    followers = assert_all_have_ended(jobs, put)
    accounts = Accounts(runs, killer.killed, killer.workers(), {jid: job.history for jid, job in jobs.items()})
    wrong = accounts.overlaps() + accounts.compare()
    assert not wrong, f"{len(wrong)} times:\n" + "\n".join(wrong[:20])
    assert_logs_are_right(stage)
    assert stage.client.check() == []

    measured(
        f"{killer.counts()} killed in {took_s:.0f} s; {len(put)} jobs, {followers} followers, {len(runs.all)} runs"
    )
    measured(f"how attempts ended: {dict(sorted(accounts.reasons.items()))}")
    again_s, reported_s = zip(*seconds_to_the_next_run(accounts, runs, jobs), strict=True)
    measured(f"SIGKILL to a child at work -> its job runs again: {quantiles(again_s)}")
    measured(f"the kernel's report of its death -> its job runs again: {quantiles(reported_s)}")
    assert len(again_s) >= KILLS // 20
    assert sorted(again_s)[int(len(again_s) * 0.99)] <= 5
    killer.forget_dead()
    stage.assert_nothing_left(directories=True)


@pytest.mark.sampled(3)
def test_a_killed_childs_job_runs_again_at_once_beside_busy_processes(stage, runs, start, busy, measured):
    """Fork per job, and no child has been forked for this one. TEST_FULL=1: 300 deaths."""
    pool = start(processes=2)
    pool.wait_for("master.started")
    killed_s, reported_s = [], []
    for n in range(DEATHS):
        stage.queue.put("chaos.waits_for_its_death", jid=f"j{n}")
        assert runs.wait_for(2 * n + 1, 20)
        pidfd = os.pidfd_open(runs.all[-1].who.pid)
        killed_at = time.monotonic()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], 10.0)
        reported_at = time.monotonic()
        os.close(pidfd)
        assert runs.wait_for(2 * n + 2, 20)
        killed_s.append(runs.all[-1].at - killed_at)
        reported_s.append(runs.all[-1].at - reported_at)
    assert [(run.jid, run.attempt) for run in runs.all] == [(f"j{n}", m) for n in range(DEATHS) for m in (1, 2)]
    measured(f"SIGKILL to a child, beside busy processes -> its job runs again: {quantiles(killed_s)}")
    measured(f"the kernel's report of its death, beside busy processes -> its job runs again: {quantiles(reported_s)}")
    assert sorted(reported_s)[int(DEATHS * 0.99)] <= 3
    stage.wait_until_ended([run.jid for run in runs.all])
    assert pool.drain() == 0
    stage.assert_nothing_left()
