"""Operators change jobs: cancel, fail, release, move, priority, depend, unfail, pause."""

import pytest

from supervisor.cli.lib.actor import user_at_host
from supervisor.cli.lib.terminal import local_time


@pytest.fixture
def queue(jobs):
    return jobs.queue("q")


def state_of(jobs, jid):
    job = jobs.job(jid)
    return job.state if job else None


def test_cancel_names_the_cancelled_jobs(shell, jobs, queue):
    for jid in ("a", "b", "c"):
        queue.put("k", jid=jid)
    assert shell.line("cancel", "a", "c") == "cancelled a c"
    assert [state_of(jobs, jid) for jid in "abc"] == [None, "waiting", None]


def test_cancel_names_jobs_left_and_is_1(shell, jobs, queue):
    queue.put("k", jid="done")
    queue.lease("w")[0].complete()
    queue.put("k", jid="a")
    said = shell("cancel", "a", "done", "nobody")
    assert (said.code, said.out) == (1, "cancelled a\n")
    assert said.err == "leasehold: not cancelled: done (complete) nobody (there is no such job)\n"
    assert state_of(jobs, "done") == "complete"


def test_a_job_is_not_cancelled_without_its_dependent(shell, jobs, queue):
    queue.put("k", jid="parent")
    queue.put("k", jid="child", depends=["parent"], on_parent_failure="wait")
    said = shell.refused(1, "cancel", "parent")
    assert "parent" in said and "child" in said
    assert state_of(jobs, "parent") == "waiting"
    assert sorted(shell.line("cancel", "parent", "child").split()[1:]) == ["child", "parent"]


def test_failing_a_running_job_takes_its_lease(shell, jobs, queue):
    queue.put("k", jid="j")
    (lease,) = queue.lease("w")
    assert shell.line("fail", "j", "--group", "no-customer", "--message", "has left") == "failed j in group no-customer"
    job = jobs.job("j")
    assert (job.state, job.failure["group"], job.failure["message"]) == ("failed", "no-customer", "has left")
    assert lease.complete() is False


def test_fail_needs_no_words(shell, jobs, queue):
    queue.put("k", jid="j")
    assert shell.line("fail", "j") == "failed j in group by-hand"
    assert jobs.failed() == {"by-hand": 1}


def test_release_takes_a_running_job_to_the_front(shell, jobs, queue):
    for jid in ("a", "b", "c"):
        queue.put("k", jid=jid)
    queue.lease("w", 2)
    assert shell.line("release", "b", "a") == "released b a"
    assert [job.jid for job in queue.peek(3)] == ["a", "b", "c"]
    assert jobs.job("a").interruptions == 1


def test_release_names_jobs_that_do_not_run_and_is_1(shell, queue):
    queue.put("k", jid="a")
    queue.lease("w")
    queue.put("k", jid="b")
    said = shell("release", "a", "b")
    assert (said.code, said.out) == (1, "released a\n")
    assert said.err == "leasehold: not released, as it does not run: b (waiting)\n"


def test_nothing_is_released_if_one_of_the_jids_is_wrong(shell, jobs, queue):
    queue.put("k", jid="a")
    queue.lease("w")
    assert "nobody" in shell.refused(1, "release", "a", "nobody")
    assert state_of(jobs, "a") == "running"


def test_move_says_from_where_to_where(shell, jobs, queue):
    queue.put("k", jid="j")
    jobs.queue("slow").put("k")
    assert shell.line("move", "j", "slow") == "moved j from queue q into queue slow"
    assert (jobs.job("j").queue, state_of(jobs, "j")) == ("slow", "waiting")
    shell.line("move", "j", "slow", "--delay", "1h")
    assert state_of(jobs, "j") == "scheduled"


def test_moving_into_a_misspelt_queue_is_done_with_a_note(shell, jobs, queue):
    queue.put("k", jid="j")
    jobs.queue("emails").put("k")
    said = shell("move", "j", "emials")
    assert said.code == 0 and "did you mean emails?" in said.err
    assert jobs.job("j").queue == "emials"


def test_priority_is_said_and_changes_the_order(shell, queue):
    queue.put("k", jid="first")
    queue.put("k", jid="second")
    assert shell.line("priority", "second", "-5") == "the priority of second is -5"
    assert [job.jid for job in queue.peek(2)] == ["second", "first"]


def test_depend_adds_and_takes_away(shell, jobs, queue):
    for jid in ("a", "b", "c"):
        queue.put("k", jid=jid)
    queue.put("k", jid="j", depends=["a"])
    assert shell.line("depend", "j", "--on", "b", "c") == "j waits for a b c"
    assert shell.line("depend", "j", "--off", "b") == "j waits for a c"
    assert shell.line("depend", "j", "--off", "all") == "j waits for no other job: it is waiting"
    assert state_of(jobs, "j") == "waiting"


def test_depend_refuses_itself_circles_and_jobs_without_dependencies(shell, queue):
    queue.put("k", jid="free")
    queue.put("k", jid="a")
    queue.put("k", jid="b", depends=["a"])
    queue.put("k", jid="c", depends=["b"])
    assert "free" in shell.refused(1, "depend", "free", "--on", "a")
    assert "b" in shell.refused(1, "depend", "b", "--on", "b")
    assert "c" in shell.refused(1, "depend", "b", "--on", "c")


def test_put_with_depends_follows_on_parent_failure(shell, jobs, queue):
    queue.put("k", jid="a")
    shell.put("k", "--jid", "j", "--depends", "a", "--on-parent-failure", "run", "--tag", "x", "--tag", "y")
    job = jobs.job("j")
    assert (job.state, job.dependencies, job.on_parent_failure, job.tags) == ("depends", ["a"], "run", ["x", "y"])
    shell.line("fail", "a")
    assert state_of(jobs, "j") == "waiting"


def failures(queue, count):
    for number in range(count):
        queue.put("k", jid=f"f{number}")
        queue.lease("w")[0].fail("Broken", "boom")


def test_unfail_counts_moved_and_remaining_jobs(shell, jobs, queue):
    failures(queue, 3)
    said = shell.line("unfail", "Broken", "--count", "2")
    assert said == "put 2 failed jobs of group Broken back into their queues; 1 left in the group"
    assert [state_of(jobs, f"f{number}") for number in range(3)] == ["waiting", "waiting", "failed"]
    said = shell.line("unfail", "Broken", "--queue", "slow")
    assert said == "put 1 failed job of group Broken back into queue slow; 0 left in the group"
    assert jobs.job("f2").queue == "slow"


def test_unfail_of_an_empty_group_suggests_another(shell, queue):
    failures(queue, 1)
    assert shell.noted("unfail", "Brokn") == "no job has failed in group Brokn, did you mean Broken?"


def test_pause_and_unpause_are_said_and_seen(shell, jobs, queue):
    queue.put("k")
    jobs.queue("emails").put("k")
    assert shell.line("pause", "q", "emails") == "paused q emails"
    assert queue.lease("w") == []
    assert [row["paused"] for row in shell.json("queues")] == [True, True]
    assert shell.line("unpause", "q") == "unpaused q"
    assert len(queue.lease("w")) == 1


def test_a_pattern_pauses_and_names_matching_queues(shell, jobs, queue):
    for name in ("email-eu", "email-us", "email-bulk", "reports"):
        jobs.queue(name).put("k")
    assert shell.line("pause", "email-*", "!email-bulk", "reports") == "paused email-eu email-us reports"
    paused = {row["queue"] for row in shell.json("queues") if row["paused"]}
    assert paused == {"email-eu", "email-us", "reports"}
    assert shell.line("unpause", "*") == "unpaused email-bulk email-eu email-us reports"
    assert not any(row["paused"] for row in shell.json("queues"))


def test_an_unknown_queue_is_paused_with_a_note(shell, jobs):
    jobs.queue("emails").put("k")
    said = shell("pause", "emials")
    assert (said.code, said.out) == (0, "paused emials\n") and "did you mean emails?" in said.err
    assert jobs.queue("emials").counts().paused


def test_jobs_are_cancelled_by_their_data(shell, jobs, queue):
    queue.put("k", {"to": "ada"}, jid="a")
    queue.put("k", {"to": "eve"}, jid="b")
    queue.put("k", b"as it was pushed", jid="c")
    queue.put("k", {"to": "ada"}, jid="running", priority=-1)
    (lease,) = queue.lease("w")
    assert sorted(shell.line("cancel", "--queue", "q", "--data", '{"to": "ada"}').split()) == [
        "a",
        "cancelled",
        "running",
    ]
    assert lease.complete() is False
    assert shell.line("cancel", "--queue", "q", "--raw", "--data", "as it was pushed") == "cancelled c"
    said = shell.noted("cancel", "--queue", "q", "--data", '{"to": "ada"}')
    assert said == "no job of queue q that has not ended has this data"
    assert "did you mean q?" in shell.noted("cancel", "--queue", "qq", "--data", "1")
    assert state_of(jobs, "b") == "waiting"


def test_unfail_gives_other_data_and_another_klass(shell, jobs, queue):
    failures(queue, 2)
    shell.line("unfail", "Broken", "--count", "1", "--klass", "other", "--data", '{"n": 2}')
    job = jobs.job("f0")
    assert (job.state, job.klass, job.data) == ("waiting", "other", {"n": 2})
    shell.line("unfail", "Broken", "--raw", "--data", "bytes")
    job = jobs.job("f1")
    assert (job.state, job.klass, job.data) == ("waiting", "k", b"bytes")


def test_unfail_leaves_jobs_that_are_still_broken(shell, jobs, queue, server, namespace):
    server.redis.lpush(f"{{{namespace}}}:in:q", "nonsense")
    assert queue.lease("w") == []
    said = shell.noted("unfail", "broken")
    assert said == "none of the 1 failed job of group broken can be put back as it is"
    assert shell.line("unfail", "broken", "--klass", "k", "--data", "1").startswith("put 1 failed job")
    assert queue.lease("w")[0].data == 1


def test_nothing_is_paused_if_one_of_the_names_is_wrong(shell, jobs, queue):
    queue.put("k")
    shell.refused(2, "pause", "q", "x" * 65)
    assert not queue.counts().paused


def test_job_names_the_author_of_its_cancel(shell, jobs, queue):
    queue.put("k", jid="x")
    queue.put("k", jid="y")
    shell.line("cancel", "x")
    when = local_time(jobs.cancelled("x").when_unix)
    assert shell.refused(1, "job", "x") == f"there is no job x: it was cancelled by {user_at_host()}, {when}"
    jobs.cancel("y")
    when = local_time(jobs.cancelled("y").when_unix)
    assert shell.refused(1, "job", "y") == f"there is no job y: it was cancelled {when}"
    assert shell.refused(1, "job", "z") == "there is no job z"
