"""Acts on all jobs that match: counted and shown first, done in steps, stopped where an operator says so."""

import re
import threading
from contextlib import contextmanager
from time import monotonic

import pytest

from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import bulk
from supervisor.engine.model.outcomes import Completed, Failed
from supervisor.web import bulk_acts
from tests.lengths import LONG
from tests.web.conftest import bearer, ended, key_of, shown, tags, words

COUNT, STEP = (200_000, bulk.STEP) if LONG else (2_000, 5)


def ask(site, path, role="operator", **fields):
    """Ask for an act as a program, and return its answer."""
    answer = site.http.post(f"/api/v1/bulk{path}", json=fields, headers=bearer(role))
    assert answer.status_code == 200, answer.text
    return answer.json()


def chosen(site, **fields):
    """Choose jobs, and return the id of the act when they are counted."""
    act = ended(site, ask(site, "", **fields)["act"])
    assert act["state"] in {"counted", "done"}, act
    return act["act"]


def done(site, act):
    """Let an act on counted jobs go on to its end, and return what has come of it."""
    ask(site, f"/{act}/start")
    found = ended(site, act)
    assert found["state"] == "done", found
    return found["notes"]


def refused(site, path, **fields):
    answer = site.http.post(f"/api/v1/bulk{path}", json=fields, headers=bearer("operator"))
    error: str = answer.json()["error"]
    assert answer.status_code == 429 if "under way: wait" in error else answer.status_code in {400, 404}, answer.text
    return error


@pytest.fixture
def failed(filled):
    """Fail some jobs of two klasses in group Broken."""
    queue = filled.queue("many")
    queue.put_many({"klass": klass, "jid": f"{klass}-{n}"} for n in range(15) for klass in ("mail", "sum"))
    for lease in queue.lease("w-1", 30):
        lease.fail("Broken", "boom")
    return filled


@contextmanager
def without_writes(server):
    """Let the server carry out no write meanwhile."""
    server.redis.client_pause(600_000, all=False)
    try:
        yield
    finally:
        server.redis.client_unpause()


def test_form_counts_and_shows_jobs_before_anything_changes(server, namespace, failed, operator):
    text = operator.page("/jobs?group=Broken&klass=mail")
    before = server.dump(namespace)
    forms = [each for tag, each in tags(text) if tag == "form" and each.get("action") == "/act/bulk"]
    assert len(forms) == 3
    form = {"csrf": key_of(text), "do": "retry", "group": "Broken", "klass": "mail", "queue": "", "state": ""}
    answer = operator.http.post("/act/bulk", data=form)
    shown = words(answer.text)
    assert "retry 15 jobs of group Broken of klass mail (15 failed)" in shown and "The first 15" in shown
    assert server.dump(namespace) == before
    act = answer.url.params["act"]
    answer = operator.http.post("/act/start_bulk", data={"csrf": key_of(answer.text), "act": act})
    assert "put back 15 jobs" in words(answer.text)
    assert failed.failed() == {"Broken": 15, "Late": 1, "ValueError": 1}
    assert failed.audit()[0].actor == "login:operator-1" and failed.audit()[0].number == 15


@pytest.mark.parametrize(
    ("fields", "said", "state"),
    [
        ({"do": "cancel", "group": "Broken"}, "cancelled 30 jobs", None),
        ({"do": "cancel", "queue": "many", "state": "failed"}, "cancelled 30 jobs", None),
        ({"do": "retry", "queue": "many"}, "put back 30 jobs", "waiting"),
        ({"do": "move", "group": "Broken", "into": "other"}, "moved 30 jobs into queue other", "waiting"),
        ({"do": "fail", "queue": "many", "state": "failed", "into_group": "g"}, "failed 30 jobs in group g", "failed"),
    ],
)
def test_all_matching_jobs_are_changed(failed, site, fields, said, state):
    act = chosen(site, **fields)
    assert done(site, act) == [said]
    job = failed.job("mail-3")
    assert (job and job.state) == state


@pytest.mark.parametrize(
    "asked",
    ["state=failed", "group=Broken&klass=mail", "queue=many&lane=x", "batch=b", "since={since}", "text=3&queue=many"],
)
def test_an_act_changes_what_its_list_shows(jobs, operator, asked):
    queue = jobs.queue("many")
    with jobs.batch("b") as batch:
        for n in range(12):
            put = batch.put if n % 2 else lambda queue, *args, **more: jobs.queue(queue).put(*args, **more)
            put("many", "mail" if n < 8 else "sum", jid=f"j{n}", lane="x" if n % 3 else "y")
    for lease in queue.lease("w", 12):
        lease.fail("Broken" if lease.jid < "j5" else "Other", "boom")
    asked = asked.format(since=jobs.job("j6").put_unix)
    listed = [job["jid"] for job in operator.json(f"/jobs?{asked}")["jobs"] if job["state"] == "failed"]
    text = operator.page(f"/jobs?{asked}")
    [form] = re.findall(
        r'<form class="act"[^>]*action="/act/bulk">(?:(?!</form>).)*value="retry".*?</form>', text, re.S
    )
    fields = {each["name"]: each["value"] for tag, each in tags(form) if tag == "input"}
    act = operator.http.post("/act/bulk", data=fields).url.params["act"]
    assert done(operator, act) == [f"put back {len(listed)} job{'s' * (len(listed) != 1)}"]
    every = [f"j{n}" for n in range(12)] + ["broken", "lost-member"]
    assert {job.jid for job in jobs.jobs(*every) if job.state == "waiting"} == set(listed) != set()


def test_job_that_lost_its_tag_or_began_anew_meanwhile_is_left(failed, site):
    jids = [f"mail-{n}" for n in range(4)]
    for jid in jids:
        failed.job(jid).tag("red")
    until = max(job.put_unix for job in failed.jobs(*jids))
    act = chosen(site, do="retry", tag="red", until=str(until))
    failed.job("mail-0").untag("red")
    while failed.job("mail-1").put_unix <= until:
        failed.job("mail-1").move("other")
    failed.queue("other").lease("w-1")[0].fail("Broken", "again")
    assert done(site, act)[0] == "put back 2 of 4 jobs"
    assert [job.state for job in failed.jobs(*jids)] == ["failed", "failed", "waiting", "waiting"]


def test_priority_of_all_that_match_is_set(filled, site):
    assert done(site, chosen(site, do="priority", queue="mail", state="waiting", priority=-4)) == [
        "gave 3 jobs priority -4"
    ]
    assert filled.job("second").priority == -4 and filled.job("later").priority == 0


def test_jobs_that_no_longer_match_are_left(failed, site):
    act = chosen(site, do="retry", group="Broken")
    failed.job("mail-0").unfail()
    failed.job("sum-0").cancel()
    said = done(site, act)
    assert said == ["put back 28 of 30 jobs", "2 jobs cannot be put back as it is, or had been put back meanwhile"]


def test_job_that_others_wait_for_is_left(filled, site):
    filled.queue("q").put("k", jid="needed")
    filled.queue("q").put("k", depends=["needed"], on_parent_failure="wait")
    assert done(site, chosen(site, do="cancel", queue="q", state="waiting")) == [
        "cancelled 0 of 1 job",
        "not cancelled, for other jobs wait for it: needed",
    ]


def fail_many(jobs):
    """Fail jobs of queue work in group Again."""
    jobs.config.set("failed-history-count", 2 * COUNT)
    queue = jobs.queue("work")
    for first in range(0, COUNT, 1000):
        queue.put_many({"klass": "k", "jid": f"j{first + n}"} for n in range(1000))
        jobs.settle([Failed(lease, "Again", "boom") for lease in queue.lease("w", 1000)])


def fails_again(jid):
    return int(jid[1:]) % 2 == 0


@contextmanager
def working(server, namespace):
    """Work queue work off: half of its jobs fail again, in the same group. Yields the jids as they are leased."""
    worked: list[str] = []
    is_over = threading.Event()

    def outcome(lease):
        return Failed(lease, "Again", "boom") if fails_again(lease.jid) else Completed(lease)

    def work():
        with Client(server.url, namespace) as client:
            while True:
                last = is_over.is_set()
                leases = client.queue("work").lease("w", 500)
                worked.extend(lease.jid for lease in leases)
                client.settle([outcome(lease) for lease in leases])
                if last and not leases:
                    return

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield worked
    finally:
        is_over.set()
        worker.join()


def test_each_failed_job_is_put_back_once_while_they_are_worked_on(server, namespace, jobs, site, measured):
    fail_many(jobs)
    began_at = monotonic()
    with working(server, namespace) as worked:
        assert done(site, chosen(site, do="retry", group="Again")) == [f"put back {COUNT:,} jobs"]
    assert len(worked) == len(set(worked)) == COUNT
    assert jobs.failed()["Again"] == COUNT // 2
    measured(f"{COUNT:,} failed jobs are put back, and worked on meanwhile, in {monotonic() - began_at:.1f} s")


def test_stopped_retry_keeps_what_was_done_while_jobs_are_worked_on(
    server, namespace, jobs, site, monkeypatch, measured
):
    monkeypatch.setattr(bulk, "STEP", STEP)
    fail_many(jobs)
    with working(server, namespace) as worked:
        act = chosen(site, do="retry", group="Again")
        ask(site, f"/{act}/start")
        while shown(site, act)["done"] < COUNT // 4:
            pass
        with without_writes(server):
            ask(site, f"/{act}/stop")
        stopped = ended(site, act)
    n = stopped["done"]
    assert stopped["state"] == "stopped" and COUNT // 4 <= n < COUNT
    assert stopped["notes"] == [f"put back {n:,} of {COUNT:,} jobs; the rest is as it was"]
    assert len(worked) == len(set(worked)) == n
    assert jobs.failed()["Again"] == COUNT - n + sum(map(fails_again, worked))
    measured(
        f"a retry of {COUNT:,} jobs, stopped when {n:,} were put back: each of these ran once, the others lie there"
    )


def test_stopped_act_is_stopped_after_its_present_step(server, jobs, operator, monkeypatch):
    site = operator
    monkeypatch.setattr(bulk, "STEP", 100)
    jobs.queue("work").put_many({"klass": "k"} for _ in range(1000))
    act = chosen(site, do="move", queue="work", state="waiting", into="other")
    with without_writes(server):
        assert ask(site, f"/{act}/start")["state"] == "acting"
        assert 'http-equiv="refresh"' in operator.page(f"/bulk?act={act}")
        ask(site, f"/{act}/stop")
    stopped = ended(site, act)
    assert (stopped["state"], stopped["done"]) == ("stopped", 100)
    assert stopped["notes"] == ["moved 100 of 1,000 jobs into queue other; the rest is as it was"]
    assert (len(jobs.queue("other")), len(jobs.queue("work"))) == (100, 900)
    text = site.page(f"/bulk?act={act}")
    assert "What was done stays done" in words(text) and "http-equiv" not in text and "/act/stop_bulk" not in text


def test_overview_tells_of_acts_that_go_on(jobs, operator, monkeypatch):
    monkeypatch.setattr(bulk, "STEP", 1)
    jobs.queue("work").put_many({"klass": "k"} for _ in range(10_000))
    act = chosen(operator, do="move", queue="work", state="waiting", into="other")
    ask(operator, f"/{act}/start")
    assert "Acts under way move 10,000 jobs of queue work" in words(operator.page("/overview"))
    ask(operator, f"/{act}/stop")
    assert ended(operator, act)["state"] == "stopped"
    assert "Acts under way" not in words(operator.page("/overview"))


def test_queue_is_deleted_in_steps_that_can_be_stopped(server, jobs, site):
    jobs.queue("work").put_many({"klass": "k"} for _ in range(3000))
    jobs.queue("work").recur("k", {}, every=3600)
    with without_writes(server):
        fields = {"confirm": "work"}
        answer = site.http.post("/api/v1/queues/work/delete", json=fields, headers=bearer("operator"))
        assert answer.json()["state"] == "acting"
        ask(site, f"/{answer.json()['act']}/stop")
    stopped = ended(site, answer.json()["act"])
    assert (stopped["state"], stopped["done"]) == ("stopped", 1)
    assert (jobs.queue("work").counts().recurring, len(jobs.queue("work"))) == (0, 3000)


def test_batch_is_cancelled_and_retried_in_steps(jobs, site):
    with jobs.batch("new") as batch:
        jids = [batch.put("q", "k") for _ in range(4)]
    for lease in jobs.queue("q").lease("w", 2):
        lease.fail("g", "m")
    for act, said in (("retry", "put back 2 failed jobs"), ("cancel", "cancelled 4 jobs")):
        answer = site.http.post(f"/api/v1/batches/new/{act}", json={}, headers=bearer("operator"))
        assert ended(site, answer.json()["act"])["notes"] == [said]
    assert jobs.jobs(*jids) == [None] * 4


def test_more_than_one_act_takes_are_left_to_another_one(jobs, site, monkeypatch):
    monkeypatch.setattr(bulk_acts, "MOST_JOBS", 1000)
    jobs.queue("work").put_many({"klass": "k"} for _ in range(1500))
    act = chosen(site, do="cancel", queue="work")
    assert done(site, act)[0] == "More jobs match. One act takes 1,000; repeat it for the others."
    assert len(jobs.queue("work")) == 500


def test_act_that_breaks_says_how_far_it_came(server, namespace, failed, site):
    act = chosen(site, do="retry", group="Broken")
    kept = server.redis.dump(f"{{{namespace}}}:audit")
    server.redis.set(f"{{{namespace}}}:audit", "of another program")
    ask(site, f"/{act}/start")
    broken = ended(site, act)
    server.redis.restore(f"{{{namespace}}}:audit", 0, kept, replace=True)
    assert broken["state"] == "broken" and "put back 0 of 30 jobs" in broken["notes"][0]
    assert failed.failed()["Broken"] == 30


def test_act_is_started_once_and_only_while_it_is_kept(failed, site):
    act = chosen(site, do="retry", group="Broken")
    done(site, act)
    assert f"act {act} is done" in refused(site, f"/{act}/start")
    assert "there is no act x" in refused(site, "/x/start")
    left = chosen(site, do="retry", queue="quiet")
    assert ask(site, f"/{left}/stop")["state"] == "stopped"
    assert f"act {left} is stopped" in refused(site, f"/{left}/start")
    for _ in range(8):
        chosen(site, do="cancel", queue="mail")
    assert "there is no act" in refused(site, f"/{act}/start")


def test_few_acts_go_on_at_once(server, jobs, filled, site):
    acts = [chosen(site, do="move", queue="mail", into="other") for _ in range(5)]
    with without_writes(server):
        for act in acts[:4]:
            ask(site, f"/{act}/start")
        assert "4 acts on many jobs are under way" in refused(site, f"/{acts[4]}/start")
        assert "4 acts on many jobs are under way" in refused(site, "", do="cancel", queue="mail")
    for act in acts[:4]:
        ended(site, act)


def test_wrong_choice_is_named(site):
    for fields, sentence in (
        ({"do": "explode", "queue": "q"}, "do must be one of cancel, retry, move, priority, fail, not 'explode'"),
        ({"do": "cancel"}, "one of state, queue, lane, klass, tag, group, batch, since, until, text must be given"),
        ({"do": "cancel", "queue": "q", "batch": ""}, "batch is empty: leave it out if it does not matter"),
        ({"do": "move", "queue": "q", "into": "x" * 65}, "queue must have 1 to 64 bytes"),
        ({"do": "priority", "queue": "q", "priority": 10**20}, "priority must be"),
        ({"do": "cancel", "queue": "q", "state": "complete"}, "state must be one of"),
        ({"do": "move", "queue": "q"}, "into is missing"),
        ({"do": "cancel", "queue": "q" * 99}, "queue"),
    ):
        assert sentence in refused(site, "", **fields)


def test_marked_jobs_are_changed_at_once_and_those_that_are_left_are_told(filled, site):
    filled.queue("mail").put("k", jid="waits", depends=["second"], on_parent_failure="wait")
    answer = site.http.post(
        "/api/v1/marked",
        json={"do": "cancel", "jids": ["later", "second", "done", "nobody"]},
        headers=bearer("operator"),
    )
    act = ended(site, answer.json()["act"])
    assert (act["state"], act["words"], act["done"]) == ("done", "cancel 4 jobs", 1)
    assert act["notes"] == [
        "cancelled 1 of 4 jobs",
        "2 jobs had become something else meanwhile, and are left",
        "not cancelled, for other jobs wait for it: second",
    ]
    assert [job and job.state for job in filled.jobs("later", "second", "done")] == [None, "waiting", "complete"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"do": "move", "jids": ["first"]}, "into is missing"),
        ({"do": "move", "jids": ["first"], "into": "x" * 65}, "queue must have 1 to 64 bytes"),
        ({"do": "cancel", "jids": []}, "jids is missing"),
        ({"do": "cancel", "jids": ["x"] * 1001}, "jids must have at most 1000 entries"),
    ],
)
def test_wrong_act_on_marked_jobs_is_named(site, fields, sentence):
    answer = site.http.post("/api/v1/marked", json=fields, headers=bearer("operator"))
    assert answer.status_code == 400 and sentence in answer.json()["error"]


def test_choice_without_jobs_says_so(operator):
    text = operator.page("/jobs?queue=mail")
    form = {"csrf": key_of(text), "do": "retry", "group": "Nothing"}
    assert "No job matches" in words(operator.http.post("/act/bulk", data=form).text)
    assert "retry 0 jobs of group Nothing" in words(operator.page("/bulk"))
