"""Operations on many jobs: counted, confirmed, in steps, and only on jobs that still match."""

import time

import pytest

from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import bulk as engine
from supervisor.engine.commands import choices, job_changes
from supervisor.engine.model.errors import OutcomeUnknown, StoreUnavailable


@pytest.fixture
def queue(jobs):
    return jobs.queue("q")


@pytest.fixture
def filled(jobs, queue):
    """Four waiting jobs, two of them tagged, one running, one scheduled, three failed."""
    queue.put_many({"klass": "k", "jid": jid} for jid in ("f1", "f2", "f3", "running"))
    for lease, group in zip(queue.lease("w", 4, ttl=3600)[:3], ("Broken", "Broken", "Other"), strict=True):
        lease.fail(group, "boom")
    queue.put_many({"klass": "k", "jid": f"w{n}", "tags": ["red"] if n < 2 else []} for n in range(4))
    queue.put("k", jid="later", delay=600)


def states(jobs, *jids):
    return [job.state if job else None for job in jobs.jobs(*jids)]


def test_a_dry_run_counts_and_changes_nothing(shell, jobs, filled, server, namespace):
    before = server.dump(namespace)
    assert shell.line("cancel", "--queue", "q", "--dry-run") == (
        "would cancel 6 jobs of queue q (4 waiting, 1 scheduled, 1 running)"
    )
    assert shell.line("cancel", "--tag", "red", "--dry-run") == "would cancel 2 jobs with tag red (2 waiting)"
    assert shell.line("retry", "--group", "Broken", "--dry-run") == "would retry 2 jobs of group Broken (2 failed)"
    assert shell.line("move", "--queue", "q", "slow", "--dry-run") == (
        "would move 5 jobs of queue q (4 waiting, 1 scheduled) into queue slow"
    )
    assert shell.line("priority", "--tag", "red", "7", "--dry-run") == (
        "would give 2 jobs with tag red (2 waiting) priority 7"
    )
    assert shell.line("fail", "--queue", "q", "--state", "running", "--dry-run") == (
        "would fail 1 job of queue q (1 running) in group by-hand"
    )
    assert server.dump(namespace) == before


def test_cancel_without_a_terminal_is_refused_with_the_count(shell, jobs, filled, server, namespace):
    before = server.dump(namespace)
    said = shell.refused(2, "cancel", "--queue", "q")
    assert said.startswith("Cancel 6 jobs of queue q (4 waiting, 1 scheduled, 1 running)? stdin is not a terminal")
    assert "pass --yes" in said and server.dump(namespace) == before


def test_cancel_asks_on_a_terminal_and_accepts_no(shell, jobs, filled, answer):
    answer("n\n")
    said = shell("cancel", "--tag", "red")
    assert (said.code, said.out) == (1, "")
    assert said.err == "leasehold: Cancel 2 jobs with tag red (2 waiting)? [y/N] leasehold: nothing was changed\n"
    answer("y\n")
    assert shell("cancel", "--tag", "red").out == "cancelled 2 jobs\n"
    assert states(jobs, "w0", "w1", "w2") == [None, None, "waiting"]


def test_cancel_takes_those_of_a_state_and_leaves_the_others(shell, jobs, filled):
    assert shell.line("cancel", "--queue", "q", "--state", "scheduled", "--yes") == "cancelled 1 job"
    assert states(jobs, "later", "w0", "running", "f1") == [None, "waiting", "running", "failed"]
    assert shell.line("cancel", "--queue", "q", "--yes") == "cancelled 5 jobs"
    assert states(jobs, "w0", "running", "f1") == [None, None, "failed"]
    assert shell.line("cancel", "--group", "Broken", "--yes") == "cancelled 2 jobs"
    assert jobs.failed() == {"Other": 1}


def test_cancel_drops_pushed_entries_but_not_later_ones(shell, jobs, queue, server, namespace):
    queue.put("k", jid="j")
    for number in range(3):
        server.redis.lpush(f"{{{namespace}}}:in:q", f'{{"klass":"k","data":{number}}}')
    counted = "1 job of queue q (1 waiting) and 3 entries of other programs"
    assert shell.line("cancel", "--queue", "q", "--dry-run") == f"would cancel {counted}"
    said = shell("priority", "--queue", "q", "3", "--yes")
    assert (said.out, said.err) == (
        "gave 1 job priority 3\n", "leasehold: 3 entries of other programs are not jobs yet, and are left\n",
    )  # fmt: skip
    assert shell.good("cancel", "--queue", "q", "--yes") == "cancelled 1 job\ndropped 3 entries of other programs\n"
    assert queue.counts().total == 0


def test_retry_puts_a_group_back_into_its_queues(shell, jobs, queue, filled):
    assert shell.line("retry", "--group", "Broken", "--yes") == "put back 2 jobs"
    assert states(jobs, "f1", "f2", "f3") == ["waiting", "waiting", "failed"]
    assert jobs.job("f1").queue == "q" and jobs.failed() == {"Other": 1}
    assert shell.line("retry", "--queue", "q", "--yes") == "put back 1 job"


def test_retry_takes_each_job_once_even_after_another_failure(shell, jobs, queue, monkeypatch):
    queue.put_many({"klass": "k", "jid": f"j{number}"} for number in range(5))

    def fail_all():
        for lease in queue.lease("w", 5):
            lease.fail("Broken", "boom")

    fail_all()
    monkeypatch.setattr(engine, "STEP", 2)
    real = job_changes.unfail_jobs

    def unfail_jobs(*args, **more):
        fail_all()
        return real(*args, **more)

    monkeypatch.setattr(job_changes, "unfail_jobs", unfail_jobs)
    assert shell.line("retry", "--group", "Broken", "--yes") == "put back 5 jobs"
    assert jobs.failed() == {"Broken": 4}


def test_retry_of_jids_names_those_left_with_the_reason(shell, jobs, queue, filled):
    assert shell.line("retry", "f1", "f3") == "put back f1 f3"
    said = shell("retry", "f2", "w0", "running")
    assert (said.code, said.out) == (1, "put back f2\n")
    assert said.err == (
        "leasehold: not put back, as only what has failed and can be read is: w0 (waiting) running (running)\n"
    )


def test_unreadable_jobs_stay_failed_and_are_counted(shell, jobs, queue, server, namespace):
    server.redis.lpush(f"{{{namespace}}}:in:q", "nonsense")
    assert queue.lease("w") == []
    said = shell("retry", "--group", "broken", "--yes")
    assert (said.code, said.out) == (0, "put back 0 of 1 job\n")
    assert "1 job cannot be put back as it is" in said.err
    (broken,) = jobs.failed("broken")[1]
    assert f"{broken.jid} (as it is)" in shell.refused(1, "retry", broken.jid)


def test_move_takes_jobs_that_have_not_begun(shell, jobs, queue, filled):
    jobs.queue("slow").put("k", jid="there")
    assert shell.line("move", "--queue", "q", "slow", "--yes") == "moved 5 jobs into queue slow"
    assert states(jobs, "w0", "later", "running", "f1") == ["waiting", "scheduled", "running", "failed"]
    assert [jobs.job(jid).queue for jid in ("w0", "later", "running")] == ["slow", "slow", "q"]
    assert [job.jid for job in jobs.queue("slow").peek(9)] == ["there", "w0", "w1", "w2", "w3"]


def test_move_takes_those_of_a_tag_or_of_a_group(shell, jobs, queue, filled):
    words = ("move", "--queue", "q", "--tag", "red", "--state", "waiting", "slow", "--yes")
    assert shell.line(*words) == "moved 2 jobs into queue slow"
    assert shell.line("move", "--tag", "red", "other", "--yes") == "moved 2 jobs into queue other"
    assert shell.line("move", "--group", "Broken", "other", "--yes") == "moved 2 jobs into queue other"
    assert [job.jid for job in jobs.queue("other").peek(9)] == ["w0", "w1", "f1", "f2"]


def test_a_misspelt_target_queue_is_reported_before_the_question(shell, jobs, filled, answer):
    jobs.queue("slow").put("k", jid="there")
    answer("n\n")
    first, then = shell("move", "--queue", "q", "slwo").err.splitlines()
    assert first == "leasehold: no job was ever put into queue slwo, did you mean slow?"
    assert then.startswith("leasehold: Move 5 jobs of queue q ")


def test_fail_and_priority_take_those_of_a_tag(shell, jobs, queue, filled):
    assert shell.line("priority", "--tag", "red", "-3", "--yes") == "gave 2 jobs priority -3"
    assert [job.jid for job in queue.peek(2)] == ["w0", "w1"] and jobs.job("w0").priority == -3
    words = ("fail", "--tag", "red", "--group", "no-customer", "--message", "has left", "--yes")
    assert shell.line(*words) == "failed 2 jobs in group no-customer"
    assert jobs.job("w1").failure["message"] == "has left"


def test_jobs_that_others_need_are_left_and_named(shell, jobs, queue):
    queue.put("k", jid="parent", tags=["red"])
    queue.put("k", jid="free", tags=["red"])
    queue.put("k", jid="child", depends=["parent"], on_parent_failure="wait")
    said = shell("cancel", "--tag", "red", "--yes")
    assert (said.code, said.out) == (1, "cancelled 1 of 2 jobs\n")
    assert said.err == "leasehold: not cancelled, for other jobs wait for it: parent\n"
    assert shell.line("cancel", "--queue", "q", "--yes") == "cancelled 2 jobs"


def test_a_dependency_chain_is_cancelled_across_steps(shell, jobs, queue, monkeypatch):
    monkeypatch.setattr(engine, "STEP", 2)
    queue.put("k", jid="j0")
    for number in range(1, 7):
        queue.put("k", jid=f"j{number}", depends=[f"j{number - 1}"], on_parent_failure="wait")
    assert shell.line("cancel", "--queue", "q", "--yes") == "cancelled 7 jobs"
    assert queue.counts().total == 0


def test_jobs_that_changed_meanwhile_are_counted(shell, jobs, queue, filled, monkeypatch):
    real = choices.found

    def found(chosen, now):
        jids = yield from real(chosen, now)
        queue.lease("w", 1)
        return jids

    monkeypatch.setattr(choices, "found", found)
    said = shell("cancel", "--queue", "q", "--state", "waiting", "--yes")
    assert (said.code, said.out) == (0, "cancelled 3 of 4 jobs\n")
    assert said.err == "leasehold: 1 job had become something else meanwhile, and is left\n"
    assert states(jobs, "w0", "running") == ["running", "running"]


def test_an_empty_choice_suggests_similar_names(shell, jobs, queue, filled):
    assert shell.noted("cancel", "--queue", "qq", "--yes") == "no job was ever put into queue qq, did you mean q?"
    assert shell.noted("retry", "--group", "Brokn") == "there is no failed job of group Brokn, did you mean Broken?"
    said = shell.noted("cancel", "--tag", "read", "--state", "waiting")
    assert said == "no job with tag read is waiting, did you mean red?"
    assert shell.noted("cancel", "--queue", "q", "--state", "parked") == "no job of queue q is parked"


def test_an_existing_name_without_chosen_jobs_is_not_suggested(shell, jobs, queue, filled):
    jobs.queue("other").put("k", tags=["redo"])
    said = shell.noted("cancel", "--queue", "other", "--tag", "red", "--state", "waiting")
    assert said == "no job of queue other with tag red is waiting"
    assert shell.noted("retry", "--queue", "other", "--group", "Broken") == (
        "there is no failed job of queue other of group Broken"
    )


@pytest.fixture
def ended_by(shell, queue, filled, monkeypatch, capsys):
    """Return the output if the last of four steps ends with an error."""

    def ended_by(error):
        monkeypatch.setattr(engine, "STEP", 1)
        real = engine.cancel

        def cancel(chosen, jids, **more):
            if jids == ["w0"]:
                raise error
            return real(chosen, jids, **more)

        monkeypatch.setattr(engine, "cancel", cancel)
        words = ("cancel", "--queue", "q", "--state", "waiting", "--yes")
        if isinstance(error, Exception):
            return shell(*words).err
        with pytest.raises(type(error)):
            shell(*words)
        return capsys.readouterr().err

    return ended_by


def test_ctrl_c_reports_the_progress(jobs, ended_by):
    assert ended_by(KeyboardInterrupt()) == (
        "leasehold: interrupted: cancelled 3 of 4 jobs, perhaps 1 more; the rest is as it was\n"
    )
    assert states(jobs, "w0", "w1") == ["waiting", None]


@pytest.mark.parametrize(("error", "perhaps"), [(OutcomeUnknown, ", perhaps 1 more"), (StoreUnavailable, "")])
def test_a_lost_redis_reports_the_progress(ended_by, error, perhaps):
    first, then = ended_by(error("Redis is away")).splitlines()
    assert first == f"leasehold: it did not come to its end: cancelled 3 of 4 jobs{perhaps}; the rest is as it was"
    assert then.startswith("leasehold: Redis is away")


@pytest.fixture
def failures(jobs, server, namespace):
    """Three failed jobs: two an hour ago, of two klasses, and one now."""
    an_hour_ago_unix = time.time() - 3600
    with Client(server.url, namespace, clock=lambda: an_hour_ago_unix) as before:
        for jid, klass in (("old-mail", "mail.send"), ("old-sum", "sum.up")):
            before.queue("q").put(klass, jid=jid)
            before.queue("q").lease("w")[0].fail("Broken", "boom")
    jobs.queue("q").put("mail.send", jid="new-mail")
    jobs.queue("q").lease("w")[0].fail("Broken", "boom")


def test_failed_filters_by_klass_and_time(shell, failures):
    def shown(*words):
        return [job["jid"] for job in shell.json("failed", "Broken", *words)["jobs"]]

    assert sorted(shown("--klass", "mail.send")) == ["new-mail", "old-mail"]
    assert shown("--klass", "mail.send", "--limit", "1") == ["new-mail"]
    assert shown("--since", "10m") == ["new-mail"]
    assert shown("--since", "2h", "--klass", "sum.up") == ["old-sum"]
    assert "need GROUP" in shell.refused(2, "failed", "--klass", "sum.up")
    assert "--since 'soon'" in shell.refused(2, "failed", "Broken", "--since", "soon")


def test_retry_filters_by_klass_and_time(shell, jobs, failures):
    words = ("retry", "--group", "Broken", "--klass", "mail.send")
    said = shell.line(*words, "--since", "10m", "--dry-run")
    assert said == "would retry 1 job of group Broken of klass mail.send (1 failed), of the last 10m"
    assert shell.line(*words, "--since", "10m", "--yes") == "put back 1 job, of the last 10m"
    assert [jobs.job(jid).state for jid in ("new-mail", "old-mail", "old-sum")] == ["waiting", "failed", "failed"]
    assert shell.line(*words, "--yes") == "put back 1 job"
    assert "not with JID" in shell.refused(2, "retry", "old-sum", "--klass", "sum.up")
