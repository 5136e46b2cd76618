"""The trace of a job: from its put to its lease and its follow-ups."""

import asyncio
import subprocess
import sys

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing
from tests.engine.invariants import read_namespace

TRACE = f"00-{'ab' * 16}-{'cd' * 8}-01"
OTHER = f"00-{'ef' * 16}-{'01' * 8}-00"


def traceparent(span):
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@pytest.fixture
def tracer():
    provider = TracerProvider(shutdown_on_exit=False)
    return provider.get_tracer("tests")


def test_trace_of_a_put_is_in_query_lease_and_resume(client, clock):
    q = client.queue("q")
    q.put("k", jid="a", trace=TRACE)
    assert q.add("k", jid="b", trace=OTHER)
    q.put_many([{"klass": "k", "jid": "c", "trace": TRACE}, {"klass": "k", "jid": "d"}])
    assert [job.trace for job in client.jobs("a", "b", "c", "d")] == [TRACE, OTHER, TRACE, None]
    assert [lease.trace for lease in q.lease("w", 4)] == [TRACE, OTHER, TRACE, None]
    calls_of(client).run(leasing.resume("w", 1, [], now=clock.now))
    assert [lease.trace for lease in q.lease("v", 4)] == [TRACE, OTHER, TRACE, None]


def test_trace_comes_with_everything_else_of_a_lease(client):
    q = client.queue("q")
    q.put("k", jid="a", trace=TRACE, tags=["t"], lane="l", at_most_once=True)
    q.put("k", jid="b", trace=TRACE, persistent=True)
    found = {lease.jid: lease for lease in q.lease("w", 2)}
    a, b = found["a"], found["b"]
    assert (a.trace, a.tags, a.lane, a.at_most_once, a.saved) == (TRACE, ["t"], "l", True, None)
    b.checkpoint({"n": 1})
    b.release()
    (b,) = q.lease("v")
    assert (b.trace, b.saved, b.persistent, b.lane) == (TRACE, {"n": 1}, True, None)


def test_trace_survives_retries_deaths_moves_and_stages(client, clock):
    q = client.queue("q")
    q.put("k", jid="a", trace=TRACE)
    q.lease("w")[0].retry()
    q.lease("w")[0].died("SIGKILL")
    q.lease("w")[0].fail("g", "m")
    client.unfail("g", "q")
    client.job("a").move("r")
    (lease,) = client.queue("r").lease("w")
    assert (lease.trace, lease.complete(next="q")) == (TRACE, True)
    assert q.lease("w")[0].trace == TRACE


def test_put_of_a_known_job_keeps_changes_or_removes_the_trace(client):
    q = client.queue("q")
    q.put("k", jid="a", trace=TRACE)
    q.put("k", jid="a")
    assert client.job("a").trace == TRACE
    q.put("k", jid="a", trace=OTHER)
    assert client.job("a").trace == OTHER
    q.put("k", jid="a", trace=None)
    assert client.job("a").trace is None


def test_follow_ups_inherit_the_trace(client):
    q = client.queue("q")
    q.put("k", trace=TRACE)
    (lease,) = q.lease("w")
    follower = {"queue": "r", "klass": "k"}
    then = [{**follower, "jid": "a"}, {**follower, "jid": "b", "trace": OTHER}, {**follower, "jid": "c", "trace": None}]
    assert lease.complete(then=then)
    assert [job.trace for job in client.jobs("a", "b", "c")] == [TRACE, OTHER, None]


def test_recurring_job_has_only_a_given_trace(client, tracer):
    q = client.queue("q")
    with tracer.start_as_current_span("setting up"):
        q.recur("k", every=60, jid="plain")
        q.recur("k", every=60, jid="traced", trace=TRACE)
    assert (client.recurring("plain").trace, client.recurring("traced").trace) == (None, TRACE)
    assert sorted((lease.jid, lease.trace) for lease in q.lease("w", 2)) == [("plain-1", None), ("traced-1", TRACE)]
    client.recurring("traced").update(trace=None)
    assert client.recurring("traced").trace is None


def test_a_put_within_a_span_belongs_to_its_trace(client, tracer):
    q = client.queue("q")
    with tracer.start_as_current_span("request") as span:
        q.put("k", jid="a")
        q.put("k", jid="b", trace=TRACE)
        q.put("k", jid="c", trace=None)
        q.put_many([{"klass": "k", "jid": "d"}])
    q.put("k", jid="e")
    expected = [traceparent(span), TRACE, None, traceparent(span), None]
    assert [job.trace for job in client.jobs("a", "b", "c", "d", "e")] == expected


def test_a_follow_up_within_a_span_belongs_to_that(client, tracer):
    client.queue("q").put("k", trace=TRACE)
    (lease,) = client.queue("q").lease("w")
    with tracer.start_as_current_span("work") as span:
        assert lease.complete(then=[{"queue": "r", "klass": "k", "jid": "a"}])
    assert client.job("a").trace == traceparent(span)


def test_unsampled_flag_is_propagated(client):
    tracer = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("tests")
    parent = otel.NonRecordingSpan(otel.SpanContext(0xAB, 0xCD, is_remote=True))
    with otel.use_span(parent), tracer.start_as_current_span("request") as span:
        client.queue("q").put("k", jid="a")
    assert client.job("a").trace == traceparent(span)
    assert client.job("a").trace.endswith("-00")


def test_put_of_an_async_client_takes_the_current_span(client, server, namespace, tracer):
    async def put():
        async with AsyncClient(server.url, namespace) as client:
            with tracer.start_as_current_span("request") as span:
                await client.queue("q").put("k", jid="a")
            return (await client.job("a")).trace, traceparent(span), (await client.queue("q").lease("w"))[0].trace

    seen, expected, leased = asyncio.run(put())
    assert seen == leased == expected


def test_puts_do_not_import_opentelemetry():
    """redis imports OpenTelemetry where it is installed; children have no redis."""
    code = (
        "import sys; from supervisor import handler; from supervisor.engine.model.new_jobs import new_job;"
        " new_job('put', 'q', 'k', None, {}); print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    words = [sys.executable, "-c", code]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_job_without_a_trace_has_no_trace_field(client, server, namespace):
    q = client.queue("q")
    q.put("k", jid="a")
    q.put("k", jid="b", trace=TRACE)
    found = read_namespace(server.redis, namespace)
    assert found["job:b"].keys() - found["job:a"].keys() == {"trace"}
    for jid in "ab":
        client.log(jid, "makes its record a full one")
    client.queue("empty").lease("w")  # the server has the script from here on
    reply = server.redis.evalsha(*leasing.lease("w", ["q"], 2).wire(f"{{{namespace}}}:")[1:])
    plain, traced = (row[4] for row in reply[-1])
    assert plain is None
    assert traced == [*(None for _ in range(12)), TRACE.encode(), None, None]


def test_a_traced_job_ends_as_cheaply_as_any_other(client, server, namespace):
    """The job's record is a dense one, and a deletion does not need to read it."""
    client.queue("q").put("k", jid="a", trace=TRACE)
    client.queue("q").lease("w")[0].complete()
    assert server.redis.type(f"{{{namespace}}}:job:a") == b"string"
    assert server.redis.zscore(f"{{{namespace}}}:complete", "a") % 1 == 0
