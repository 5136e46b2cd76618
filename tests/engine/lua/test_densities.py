"""Dense and full records: a job has the record that it needs, and both are the same job to everyone."""

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing, waits
from supervisor.engine.model.outcomes import Completed
from tests.engine.invariants import read_namespace

TRACE = f"00-{'ab' * 16}-{'cd' * 8}-01"
OPTIONS = {"priority": -3, "retries": 2, "timeout": 1.5, "max_deaths": 0, "trace": TRACE}
PAYLOADS = [None, {"n": [1, "é"]}, b"", b"\x00\n\xff", "x" * 510, "x" * 511, b"x" * 512, b"x" * 513, b"x" * 5000]


@pytest.fixture
def found(server, namespace):
    """Return the namespace as it is now."""
    return lambda: read_namespace(server.redis, namespace)


def of_the_job(found):
    return {key for key in found() if key.partition(":")[2] == "j"}


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["plain", "with options"])
@pytest.mark.parametrize("data", PAYLOADS, ids=lambda data: str(data)[:9])
def test_job_that_is_only_done_has_a_dense_record(client, found, data, options):
    q = client.queue("q")
    q.put("k", data, jid="j", **options)
    put = client.job("j")
    assert (put.data, put.state, put.priority) == (data, "waiting", options.get("priority", 0))
    assert (put.retries, put.timeout_s, put.max_deaths, put.trace) == (
        options.get("retries", 5), options.get("timeout"), options.get("max_deaths"), options.get("trace"),
    )  # fmt: skip
    (lease,) = q.lease("w")
    assert (lease.data, lease.priority, lease.trace) == (data, put.priority, put.trace)
    assert (lease.retries, lease.timeout_s, lease.max_deaths) == (
        options.get("retries"), put.timeout_s, put.max_deaths,
    )  # fmt: skip
    assert (client.job("j").state, client.job("j").worker, client.job("j").token) == ("running", "w", lease.token)
    assert lease.complete({"r": 1}) is True
    done = client.job("j")
    assert (done.state, done.data, done.result) == ("complete", data, {"r": 1})
    assert [entry["what"] for entry in done.history] == ["put", "popped", "completed"]
    assert found().dense == {"j"}
    assert of_the_job(found) == {"job:j", "result:j"} | ({"data:j"} if len(put.raw) > 512 else set())


CHANGES = {
    "a log line": lambda client, lease: client.log("j", "line"),
    "a tag": lambda client, lease: client.job("j").tag("t"),
    "tracking": lambda client, lease: client.job("j").track(),
    "progress": lambda client, lease: calls_of(client).run(
        leasing.renew("w", [leasing.Renewal("j", lease.token, progress=(0.5, "half"))], now=calls_of(client).clock())
    ),
    "a checkpoint": lambda client, lease: lease.checkpoint({"step": 1}),
    "a waiter": lambda client, lease: calls_of(client).call(waits.wait_for, "j"),
    "a dependent": lambda client, lease: client.queue("q").put("k", jid="child", depends=["j"]),
}


@pytest.mark.parametrize("data", [{"n": 1}, b"x" * 600], ids=["inline", "beside"])
@pytest.mark.parametrize("change", CHANGES)
def test_running_job_keeps_lease_and_payload_when_its_record_becomes_full(
    client, server, namespace, found, change, data
):
    q = client.queue("q")
    q.put("k", data, jid="j", retries=1)
    (lease,) = q.lease("w")
    CHANGES[change](client, lease)
    assert found().dense.isdisjoint({"j"})
    assert server.redis.zscore(f"{{{namespace}}}:held:w", "j") == lease.token + 0.5
    job = client.job("j")
    assert (job.data, job.state, job.worker, job.token, job.retries) == (data, "running", "w", lease.token, 1)
    assert client.check() == []
    assert client.settle([Completed(lease), Completed(lease)]) == [True, False]
    assert client.job("j").state == "complete"
    if change == "a dependent":
        assert client.job("child").state == "waiting"


def test_data_given_by_the_worker_goes_inline_or_beside(client, found):
    q = client.queue("q")
    q.put("k", 1, jid="j")
    (lease,) = q.lease("w")
    for data in ("x" * 600, "y" * 700, b"small"):
        lease.renew(data)
        assert client.job("j").data == data
        assert ("data:j" in found()) == (len(data) > 512)
        assert found().dense == {"j"}
    assert lease.complete() is True
    assert client.job("j").data == b"small"


def test_start_of_a_dense_job_is_kept(client, clock, found):
    q = client.queue("q")
    q.put("k", jid="j")
    (lease,) = calls_of(client).run(leasing.lease("w", ["q"], starting=0, now=clock.now)).leases
    assert not client.job("j").started
    calls_of(client).run(leasing.renew("w", [leasing.Renewal("j", lease.token, True)], now=clock.now))
    assert client.job("j").started
    assert found().dense == {"j"}
    clock.now += 1_000
    (again,) = q.lease("other")
    assert again.deaths == 1


@pytest.mark.parametrize("when", [-1.0, 10.0**10], ids=["before 1970", "after 2286"])
def test_record_is_full_for_a_time_that_no_dense_one_can_hold(client, clock, found, when):
    q = client.queue("q")
    q.put("k", {"n": 1}, jid="a")
    clock.now = when
    q.put("k", {"n": 1}, jid="b")
    assert found().dense == {"a"}
    leases = q.lease("w", 2)
    assert [(lease.jid, lease.data) for lease in leases] == [("a", {"n": 1}), ("b", {"n": 1})]
    assert found().dense == set()
    assert [lease.complete() for lease in leases] == [True, True]
    assert {client.job(jid).state for jid in "ab"} == {"complete"}
    assert client.check() == []


def test_leased_dense_job_in_no_place_is_taken_over(client, server, namespace, clock):
    """A check finds the job by its record, without the place that a damaged namespace has lost."""
    q = client.queue("q")
    q.put("k", {"n": 1}, jid="j")
    (lease,) = q.lease("w")
    server.redis.delete(f"{{{namespace}}}:held:w")
    assert client.job("j").state == "running"
    assert [(one.kind, one.subject) for one in client.check(repair=True)] == [("job-in-no-place", "j")]
    assert client.check() == []
    clock.now += 1_000
    (again,) = q.lease("other")
    assert (again.jid, again.data, again.deaths) == ("j", {"n": 1}, 1)
    assert lease.complete() is False


def test_text_that_is_no_record_is_moved_aside(client, server, namespace):
    client.queue("q").put("k", jid="j")
    server.redis.set(f"{{{namespace}}}:job:j", "1x 0")
    with pytest.raises(Exception, match="WRONGTYPE"):
        client.job("j")
    kinds = {(one.kind, one.subject) for one in client.check(repair=True)}
    assert kinds == {("foreign-type", "job:j"), ("id-without-record", "j")}
    (aside,) = server.redis.scan_iter(f"{{{namespace}}}:aside:*")
    assert server.redis.get(aside) == b"1x 0"
    assert client.check() == []
