"""Lanes, limits, deletion and `serve` on the command line."""

import pytest

from supervisor.cli.lib.actor import user_at_host
from supervisor.cli.lib.terminal import local_time
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import lanes, leasing, limits, mailbox

COLUMNS = ["lane", "waiting", "running", "stalled", "parked", "weight", "paused"]


@pytest.fixture
def queue(jobs):
    return jobs.queue("q")


# put


def test_put_takes_lane_limit_expiry_and_at_most_once(shell, jobs):
    shell.put("k", "--jid", "j", "--lane", "l", "--limit", "api", "--expires", "1h", "--at-most-once")
    job = jobs.job("j")
    assert (job.lane, job.limit, job.at_most_once, job.persistent) == ("l", "api", True, False)
    assert job.start_by_unix == pytest.approx(job.put_unix + 3600, abs=0.01)
    shell.put("k", "--jid", "j", "--lane", "", "--limit", "", "--expires", "")
    job = jobs.job("j")
    assert (job.lane, job.limit, job.start_by_unix, job.at_most_once) == (None, None, None, True)
    shell.put("k", "--jid", "p", "--persistent")
    assert jobs.job("p").persistent


def test_put_and_recur_take_a_trace_that_job_shows(shell, jobs):
    trace = f"00-{'ab' * 16}-{'cd' * 8}-01"
    shell.put("k", "--jid", "j", "--trace", trace)
    shell.line("recur", "k", "--every", "1h", "--offset", "1h", "--jid", "r", "--trace", trace)
    for jid in ("j", "r"):
        assert shell.json("job", jid)["trace"] == trace
        assert f"trace      {trace}" in shell.good("job", jid)
    assert "trace must be a W3C traceparent" in shell.refused(2, "put", "k", "--trace", "00-ab-01")
    shell.put("k", "--jid", "j", "--trace", "")
    assert jobs.job("j").trace is None


def test_a_unique_job_is_put_once_and_then_names_its_holder(shell, jobs):
    first = shell.put("k", '{"n": 1}', "--unique")
    said = shell("put", "k", '{"n": 1}', "--unique")
    assert (said.code, said.out) == (0, f"{first}\n")
    assert said.err == f"leasehold: nothing was put: job {first} holds what is to be unique\n"
    second = shell.put("k", '{"n": 2}', "--unique=night")
    assert second != first
    assert shell("put", "other", "--unique=night").out == f"{second}\n"
    assert jobs.queue("default").length() == 2
    assert (jobs.job(first).unique, jobs.job(second).unique) == (True, "night")


def test_put_with_a_mode_adds_data_to_the_keys_job(shell, jobs):
    first = shell.put("k", "1", "--unique=all", "--collect", "1h", "--most", "3")
    said = shell("put", "k", "2", "--unique=all", "--collect", "1h", "--most", "3")
    assert (said.code, said.out) == (0, f"{first}\n")
    assert f"no job was made: job {first} of this key takes the data" in said.err
    assert jobs.job(first).data == [1, 2]
    debounced = shell.put("k", "1", "--unique=last", "--debounce", "1h")
    assert shell("put", "k", "2", "--unique=last", "--debounce", "1h").out == f"{debounced}\n"
    assert jobs.job(debounced).data == 2
    throttled = shell.put("k", "1", "--unique=rare", "--throttle", "1h")
    assert shell("put", "k", "2", "--unique=rare", "--throttle", "1h").out == f"{throttled}\n"


def test_the_word_after_unique_is_not_its_key(shell, jobs):
    shell.put("--unique", "k", "[1]", "--jid", "j")
    job = jobs.job("j")
    assert (job.klass, job.data, job.unique) == ("k", [1], True)


def test_add_tells_a_known_jid_from_a_held_key(shell):
    shell.put("k", "--jid", "a", "--unique=x")
    assert shell.refused(1, "put", "k", "--add", "--jid", "a") == "job a exists; nothing was changed"
    said = shell.refused(1, "put", "k", "--add", "--jid", "b", "--unique=x")
    assert said == "another job holds what is to be unique; nothing was changed"


def test_recur_takes_them_too_and_job_shows_them(shell, jobs):
    flags = ("--lane", "l", "--limit", "api", "--unique", "--expires", "5m", "--at-most-once")
    shell.line("recur", "k", "--every", "1h", "--offset", "1h", "--jid", "r", *flags)
    seen = shell.json("job", "r")
    assert [seen[name] for name in ("lane", "limit", "unique", "expires_s", "at_most_once")] == [
        "l",
        "api",
        True,
        300,
        True,
    ]
    shell.line("recur", "--update", "r", "--lane", "", "--expires", "")
    seen = shell.json("job", "r")
    assert [seen[name] for name in ("lane", "limit", "unique", "expires_s", "at_most_once")] == [
        None,
        "api",
        True,
        None,
        True,
    ]
    text = shell.good("job", "r")
    assert "limit      api" in text and "unique     by klass and data" in text and "once       at most" in text


def test_job_shows_lane_limit_and_uniqueness(shell, jobs, queue):
    queue.put("k", jid="j", lane="l", limit="api", unique="night", expires=60, at_most_once=True)
    text = shell.good("job", "j")
    for line in (
        "queue      q, lane l, priority 0",
        "limit      api",
        "unique     night",
        "start by   20",
        "once       at most",
    ):
        assert line in text
    queue.put("k", jid="p", persistent=True)
    assert "persistent yes" in shell.good("job", "p")
    jobs.limit("api", running=0)
    queue.lease("w", 2)
    seen = shell.json("job", "j")
    assert (seen["state"], seen["parked"], seen["lane"], seen["unique"]) == ("waiting", True, "l", "night")
    assert "waiting, parked until limit api lets it start" in shell.good("job", "j")


def test_job_waits_for_the_end(shell, queue):
    queue.put("k", jid="done")
    queue.lease("w")[0].complete({"answer": 42})
    queue.put("k", jid="failed")
    queue.lease("w")[0].fail("Broken", "boom")
    queue.put("k", jid="waiting")
    assert shell.json("job", "done", "--wait", "30s")["result"] == {"answer": 42}
    said = shell("job", "failed", "--wait", "30s")
    assert said.code == 1 and "state      failed" in said.out
    assert said.err == "leasehold: job failed failed in group Broken: boom\n"
    said = shell("job", "waiting", "--wait", "10ms")
    assert said.code == 1 and said.err == "leasehold: job waiting has not ended within 0.01 s\n"


# lanes


def test_lane_command_lists_lanes_by_name(shell, jobs, queue):
    assert shell.noted("lane", "q") == "no job was ever put into queue q"
    queue.put("k")
    for lane in ("b", "a"):
        queue.lane(lane).put_many({"klass": "k"} for _ in range(3))
    queue.lane("a").weight(3)
    calls_of(jobs).run(lanes.pause("q", "b", by="kim@web-1", now=1_900_000_000))
    head, *rows = shell.rows("lane", "q")
    assert head == COLUMNS
    assert rows[2][6:9] == ["kim@web-1,", *local_time(1_900_000_000).split()[:2]]
    rows[2][6:] = ["yes"]
    assert rows == [
        ["-", "1", "0", "0", "0", "1", "-"], ["a", "3", "0", "0", "0", "3", "-"], ["b", "3", "0", "0", "0", "1", "yes"]
    ]  # fmt: skip
    seen = shell.json("lane", "q")
    assert [each["lane"] for each in seen] == ["", "a", "b"]
    assert seen[2] == {
        "lane": "b", "waiting": 3, "running": 0, "stalled": 0, "parked": 0, "weight": 1, "paused": True,
        "paused_by": "kim@web-1", "paused_unix": 1_900_000_000,
    }  # fmt: skip


def test_lane_shows_an_empty_lane(shell, queue):
    assert shell.json("lane", "q", "l")["waiting"] == 0
    queue.lane("l").put("k")
    assert shell.json("lane", "q", "l")["waiting"] == 1
    assert shell.rows("lane", "q", "l")[1][:2] == ["l", "1"]


def test_lane_weighs_pauses_and_goes_on(shell, queue):
    queue.lane("l").put("k")
    assert shell.line("lane", "q", "l", "--weight", "3") == "the weight of lane l of queue q is 3"
    assert shell.line("lane", "q", "l", "--pause") == "paused lane l of queue q"
    assert (queue.lane("l").counts().weight, queue.lane("l").counts().paused) == (3, True)
    assert queue.lease("w") == []
    assert shell.line("lane", "q", "l", "--unpause") == "unpaused lane l of queue q"
    assert len(queue.lease("w")) == 1


def test_a_lane_is_deleted(shell, queue):
    queue.lane("l").put_many({"klass": "k"} for _ in range(3))
    queue.lane("other").put("k")
    (lease,) = queue.lease("w")
    said = shell.line("lane", "q", lease.lane, "--delete", "--yes")
    dropped = "2 jobs dropped" if lease.lane == "l" else "0 jobs dropped"
    assert said == f"deleted lane {lease.lane} of queue q: {dropped}, 1 still running"
    assert lease.complete() is True


# queues


def test_queues_shows_the_named_ones(shell, jobs):
    for name in ("email-eu", "email-us", "reports"):
        jobs.queue(name).put("k")
    assert [row["queue"] for row in shell.json("queues", "email-*")] == ["email-eu", "email-us"]
    assert [row["queue"] for row in shell.json("queues", "reports")] == ["reports"]
    said = shell("queues", "reprots")
    assert said.code == 0 and "did you mean reports?" in said.err
    assert shell.refused(1, "queues", "sms-*") == "no queue matches sms-*"


def fill(queue):
    queue.put_many({"klass": "k"} for _ in range(3))
    return queue.lease("w")[0]


def test_deleting_a_queue_lets_running_jobs_finish(shell, jobs, queue):
    lease = fill(queue)
    assert shell.line("queues", "q", "--delete", "--yes") == "deleted q: 2 jobs dropped, 1 still running"
    assert lease.complete() is True
    assert shell.line("queues", "q", "--delete", "--yes") == "deleted q: 0 jobs dropped, 0 still running"
    assert jobs.queues() == {}


def test_deleting_a_queue_with_stop_stops_running_jobs(shell, jobs, queue):
    lease = fill(queue)
    assert shell.line("queues", "q", "--delete", "--stop", "--yes") == "deleted q: 2 jobs dropped, 1 stopped"
    assert lease.complete() is False
    assert jobs.queues() == {}


def test_without_a_terminal_a_deletion_needs_yes(shell, queue):
    fill(queue)
    said = shell.refused(2, "queues", "q", "--delete")
    assert said.startswith("Delete q: drop 2 jobs, let 1 that run end? stdin is not a terminal; pass --yes; see ")
    assert queue.counts().total == 3


@pytest.mark.parametrize("word", ["y\n", "YES\n"])
def test_at_a_terminal_a_confirmed_deletion_is_done(shell, queue, answer, word):
    fill(queue)
    answer(word)
    said = shell("queues", "q", "--delete", "--stop")
    assert (said.code, said.out) == (0, "deleted q: 2 jobs dropped, 1 stopped\n")
    assert said.err == "leasehold: Delete q: drop 2 jobs, stop 1 that run? [y/N] "


@pytest.mark.parametrize("word", ["n\n", "\n", "", "delete\n"])
def test_at_a_terminal_an_unconfirmed_deletion_is_not_done(shell, queue, answer, word):
    fill(queue)
    answer(word)
    said = shell("queues", "q", "--delete")
    assert (said.code, said.out) == (1, "")
    end = "" if word else "\n"  # an empty line leaves the cursor behind the question
    assert said.err.endswith(f"[y/N] {end}leasehold: nothing was deleted\n")
    assert queue.counts().total == 3


def test_a_misspelt_queue_is_not_deleted(shell, jobs):
    jobs.queue("emails").put("k")
    assert shell.refused(1, "queues", "emials", "--delete", "--yes") == "there is no queue emials, did you mean emails?"


# limits


def test_job_may_be_put_with_several_limits(shell, jobs):
    shell.put("k", "--jid", "j", "--limit", "tenant", "--limit", "api")
    assert jobs.job("j").limit == ("tenant", "api")
    for key in ("tenant", "api"):
        jobs.limit(key, running=0)
    assert jobs.queue("default").lease("w") == []
    assert "waiting, parked until limit tenant, api lets it start" in shell.good("job", "j")
    assert shell.json("job", "j")["limit"] == ["tenant", "api"]


def test_recurring_jobs_may_have_several_limits(shell):
    shell.line("recur", "k", "--jid", "r", "--every", "1h", "--limit", "tenant", "--limit", "api")
    assert shell.json("job", "r")["limit"] == ["tenant", "api"]


def test_limit_sets_the_given_half_and_shows_the_state(shell, jobs, queue):
    assert shell.noted("limit") == "no limit is set"
    assert shell.line("limit", "api") == "api: no limit; 0 running, 0 parked"
    assert shell.line("limit", "api", "--running", "1").startswith("api: 1 at once; 0 running, 0 parked; set by ")
    assert shell.line("limit", "api", "--rate", "100/m").startswith("api: 1 at once and 100/m starts; 0 running, ")
    queue.put_many(
        {"klass": "k", "jid": jid, "limit": "api", "lane": lane}
        for jid, lane in zip("abc", (None, None, "l"), strict=True)
    )
    assert [lease.jid for lease in queue.lease("w", 5)] == ["a"]
    limit = jobs.limit("api")
    assert limit.set_by == user_at_host()
    when = local_time(limit.set_unix)
    line, *table = shell.good("limit", "api").splitlines()
    assert line == f"api: 1 at once and 100/m starts; 1 running, 2 parked; set by {user_at_host()}, {when}"
    assert [row.split() for row in table] == [
        ["state", "jid", "queue", "lane", "worker"],
        ["running", "a", "q", "-", "w"],
        ["parked", "b", "q", "-", "-"],
        ["parked", "c", "q", "l", "-"],
    ]
    assert shell.json("limit", "api") == {
        "key": "api", "running": 1, "rate": "100/m", "in_use": 1, "parked": 2, "set_by": user_at_host(),
        "set_unix": limit.set_unix,
        "holders": [{"jid": "a", "queue": "q", "worker": "w"}],
        "parked_jobs": [{"jid": "b", "queue": "q", "lane": None}, {"jid": "c", "queue": "q", "lane": "l"}],
    }  # fmt: skip
    calls_of(jobs).run(limits.limit("z", None, "3/10s", now=1_900_000_000))
    assert [each["key"] for each in shell.json("limit")] == ["api", "z"]
    head, *rows = shell.rows("limit")
    assert head == ["key", "running", "rate", "in", "use", "parked", "set"]
    assert rows == [
        ["api", "1", "100/m", "1", "2", f"{user_at_host()},", *when.split()],
        ["z", "-", "3/10s", "0", "0", *local_time(1_900_000_000).split()],
    ]


def test_a_limit_without_an_author_is_shown(shell, jobs, server, namespace):
    jobs.limit("api", running=1)
    server.redis.hdel(f"{{{namespace}}}:limit:api", "by")
    assert shell.line("limit", "api") == "api: 1 at once; 0 running, 0 parked"
    assert shell.rows("limit")[1] == ["api", "1", "-", "0", "0", "-"]


def test_removing_a_limit_starts_its_parked_jobs(shell, jobs, queue):
    jobs.limit("api", running=0)
    queue.put("k", limit="api")
    assert queue.lease("w") == []
    jobs.limit("api", rate="1/h")
    assert shell.line("limit", "api", "--remove", "rate").startswith("api: 0 at once; 0 running, 1 parked; set by ")
    assert shell.line("limit", "api", "--remove") == "api is not limited any more"
    assert len(queue.lease("w")) == 1
    jobs.limit("api", running=0)
    assert shell.refused(1, "limit", "apo", "--remove") == "there is no limit apo, did you mean api?"


# serve


def worker(jobs):
    """A worker that Redis knows as a master: it has resumed, as each master does when it connects."""
    calls_of(jobs).call(leasing.resume, "web-1", 1, [])


def test_serve_leaves_a_request_in_redis(shell, jobs):
    worker(jobs)
    said = shell.line("serve", "web-1", "high", "email-*", "!email-bulk")
    assert said == "web-1 is told to serve high email-* !email-bulk"
    request = calls_of(jobs).run(mailbox.serve_request("web-1"))
    assert (request.number, request.queues, request.order) == (1, ["high", "email-*", "!email-bulk"], None)
    said = shell.line("serve", "web-1", "high:3", "low", "--order", "weighted")
    assert said == "web-1 is told to serve high:3 low in weighted order"
    request = calls_of(jobs).run(mailbox.serve_request("web-1"))
    assert (request.number, request.queues, request.order) == (2, ["high:3", "low"], "weighted")


def test_serve_suggests_workers_and_refuses_bad_queues(shell, jobs):
    worker(jobs)
    assert shell.refused(1, "serve", "wbe-1", "q") == "there is no worker wbe-1, did you mean web-1?"
    assert "queues only excludes" in shell.refused(2, "serve", "web-1", "!q")
    assert "order" in shell.refused(2, "serve", "web-1", "q", "--order", "fifo")
    assert "weights" in shell.refused(2, "serve", "web-1", "q:0", "--order", "weighted")
