"""Spans of jobs reach a collector however a child ends, and delay no job."""

import re
import signal
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from apps import put, start_app, write_app
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from supervised import ROOT
from watched import FULL

CONTRACT = (ROOT / "handlers/README.md").read_text().partition("\n## Traces\n")[2]
#: The handlers of the manual's page: an instrumented package, and a module with its own spans.
PACKAGE, ORDERS = re.findall(r"^```python\n(.*?)^```$", CONTRACT.partition("\n## ")[0], re.DOTALL | re.MULTILINE)
SOURCE = """
import asyncio

from supervisor import Fail, Retry

@handler
def puts(job):
    return job.put("default", "noop")

@handler
async def puts_later(job):
    await asyncio.sleep(0)
    return await asyncio.create_task(put_in_task(job))

async def put_in_task(job):
    return job.put("default", "noop")

@handler
def raises(job):
    raise ValueError("no such thing")

@handler
def fails(job):
    raise Fail("unpaid", "no money")

@handler
def asks_again(job):
    if not job.failures:
        raise Retry(0, "not yet")

@handler(timeout="1s")
def takes_long(job):
    threading.Event().wait()
"""


@dataclass
class Seen:
    """A span as the collector received it."""

    name: str
    trace: str
    span: str
    parent: str
    kind: int
    status: int
    attributes: dict = field(default_factory=dict)
    events: list = field(default_factory=list)


def value_of(value):
    return getattr(value, value.WhichOneof("value"))


def attributes_of(one):
    return {pair.key: value_of(pair.value) for pair in one.attributes}


class Collector:
    """A collector of spans by OTLP over HTTP."""

    def __init__(self):
        self.spans = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                request = ExportTraceServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
                collector.take(request)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_words): ...

        class Server(ThreadingHTTPServer):
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def take(self, request):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for one in scope.spans:
                    ids = (each.hex() for each in (one.trace_id, one.span_id, one.parent_span_id))
                    events = [(event.name, attributes_of(event)) for event in one.events]
                    span = Seen(one.name, *ids, one.kind, one.status.code, attributes_of(one), events)
                    self.spans.append(span)

    def of(self, jid):
        """Return the spans of a job in the order of its attempts."""
        found = [span for span in self.spans if span.attributes.get("leasehold.jid") == jid]
        return sorted(found, key=lambda span: span.attributes["leasehold.attempt"])

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def silence():
    """A collector that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def start(stage, url, more="", flush="8s", **flags):
    """`flush`: time to wait for a loaded machine's collector. The second flush waits half of it."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "NO_PROXY": "127.0.0.1"}
    write_app(stage, ORDERS, "orders.py")
    write_app(stage, "@handler\ndef send(job): ...\n", "email.py")
    package = PACKAGE.replace('flush="2s"', f"flush={flush!r}")
    return start_app(stage, package + SOURCE + more, environment=environment, **flags).wait_ready()


def finish(stage, pool):
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
def test_each_job_is_a_span_below_its_puts_span(stage, collector, measured):
    count = 1000 if FULL else 200
    pool = start(stage, collector.url, processes=2)
    began_at = time.monotonic()
    with TracerProvider(shutdown_on_exit=False).get_tracer("test").start_as_current_span("request") as request:
        jids = put(stage, "noop", count)
    stage.wait_until_ended(jids, timeout_s=120)
    measured(f"{count} jobs, a fork and a span each, in {time.monotonic() - began_at:.1f} s")
    finish(stage, pool)
    context = request.get_span_context()
    assert sorted(span.attributes["leasehold.jid"] for span in collector.spans) == sorted(jids)
    assert {(span.trace, span.parent) for span in collector.spans} == {
        (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    }
    assert len({span.span for span in collector.spans}) == count
    consumer = 5
    assert {(span.name, span.kind, span.attributes["leasehold.outcome"]) for span in collector.spans} == {
        ("process noop", consumer, "completed")
    }
    assert all(span.attributes["leasehold.wait_s"] >= 0 for span in collector.spans)


def test_spans_nest_puts_and_record_every_outcome(stage, collector):
    pool = start(stage, collector.url, processes=2, jobs_per_child=0, on_error="fail")
    trace = f"00-{'ab' * 16}-{'cd' * 8}-01"
    klasses = ("puts", "puts_later", "raises", "fails", "asks_again", "takes_long")
    jids = {klass: stage.queue.put(klass, trace=trace if klass == "puts" else None) for klass in klasses}
    stage.wait_until_ended(jids.values())
    followers = {klass: stage.client.job(jids[klass]).result for klass in ("puts", "puts_later")}
    stage.wait_until_ended(followers.values())
    stage.gate("never")
    cancelled = stage.queue.put("hold", "never")
    stage.wait_until_counted(lambda: (stage.directory / "gates/never.reached").exists())
    stage.client.cancel(cancelled)
    pool.wait_for("job.stale", jid=cancelled)
    finish(stage, pool)

    (first,) = collector.of(jids["puts"])
    assert (first.trace, first.parent) == ("ab" * 16, "cd" * 8)
    for klass, follower in followers.items():
        (above,), (below,) = collector.of(jids[klass]), collector.of(follower)
        assert (below.trace, below.parent) == (above.trace, above.span)
    assert collector.of(jids["puts_later"])[0].parent == ""
    unset, error = 0, 2
    (raised,) = collector.of(jids["raises"])
    ((name, said),) = raised.events
    assert (name, said["exception.type"], said["exception.message"]) == ("exception", "ValueError", "no such thing")
    assert "in raises" in said["exception.stacktrace"]
    assert (raised.status, raised.attributes["leasehold.outcome"]) == (error, "failed")
    (failed,) = collector.of(jids["fails"])
    assert (failed.status, failed.attributes["leasehold.group"], failed.events) == (error, "unpaid", [])
    again, done = collector.of(jids["asks_again"])
    assert [one.attributes["leasehold.outcome"] for one in (again, done)] == ["retried", "completed"]
    assert (again.status, again.attributes["leasehold.message"]) == (unset, "not yet")
    (late,) = collector.of(jids["takes_long"])
    assert (late.status, late.attributes["error.type"]) == (error, "SoftTimeout")
    (stopped,) = collector.of(cancelled)
    assert (stopped.status, stopped.attributes["leasehold.outcome"]) == (unset, "interrupted")
    assert stopped.attributes["leasehold.message"] == "cancelled"


def test_own_spans_lie_between_a_job_and_its_puts(stage, collector):
    pool = start(stage, collector.url)
    packed = stage.queue.put("orders.pack", {"order": 17})
    pool.wait_for("job.completed", klass="email.send")
    finish(stage, pool)
    (pack,) = collector.of(packed)
    (wrap,) = (span for span in collector.spans if span.name == "wrap")
    (sent,) = (span for span in collector.spans if span.name == "process email.send")
    assert (wrap.parent, sent.parent) == (pack.span, wrap.span)
    assert pack.trace == wrap.trace == sent.trace


def test_children_without_network_send_no_spans(stage, collector):
    quiet = "@handler(network=False)\ndef quiet(job): ...\n"
    pool = start(stage, collector.url, quiet)
    silent, heard = put(stage, "quiet"), put(stage, "noop")
    stage.wait_until_ended([*silent, *heard])
    finish(stage, pool)
    assert [span.attributes["leasehold.jid"] for span in collector.spans] == heard
    assert pool.find("job.printed") == []  # neither of spans that were waited for, nor of threads outside the sandbox


def test_a_reload_and_a_drain_lose_no_span(stage, collector):
    pool = start(stage, collector.url, processes=2, jobs_per_child=0)
    jids = put(stage, "noop", 100)
    stage.wait_until_ended(jids)
    pool.send(signal.SIGHUP)
    jids += put(stage, "noop", 100)
    pool.wait_for("reload.completed")
    jids += put(stage, "noop", 100)
    stage.wait_until(lambda: len(stage.ended()) > 200, "a few of the last ones")
    assert pool.drain() == 0
    done = [jid for jid, how in stage.ended().items() if how == "completed"]
    assert sorted(span.attributes["leasehold.jid"] for span in collector.spans) == sorted(done)
    stage.client.queue("default").delete()
    stage.assert_nothing_left()


@pytest.mark.sampled(2)
def test_a_silent_collector_delays_no_job(stage, silence, measured):
    pool = start(stage, silence, flush="2s", processes=2)
    lengths_s, first_at = [], time.monotonic()
    for _ in range(200 if FULL else 60):
        began_at = time.monotonic()
        (jid,) = put(stage, "noop")
        stage.wait_until_ended([jid])
        lengths_s.append(time.monotonic() - began_at)
    lengths_s.sort()
    median_s = lengths_s[len(lengths_s) // 2]
    measured(f"put to complete, collector silent: median {median_s:.3f} s, worst {lengths_s[-1]:.3f} s")
    finish(stage, pool)
    waited = [event for event in pool.find("job.printed") if "spans were not sent within 2 s" in event["line"]]
    assert 1 <= len(waited) <= 2 * (1 + (time.monotonic() - first_at) / 5)  # and no other child has lingered for long
