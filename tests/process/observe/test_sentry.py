"""Exceptions, deaths and time limits of jobs are events of Sentry, which a local server receives."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from apps import start_app
from supervised import ROOT

SOURCE = """
import sentry_sdk

from supervisor import Fail, Retry
from supervisor.contrib import sentry

sentry_sdk.init(os.environ["SINK"], default_integrations=False)
sentry.instrument()

@handler
def raises(job, number: int):
    raise ValueError("no such thing")

@handler
def asks_again(job):
    if not job.failures:
        raise Retry(0, "not yet")

@handler(timeout="1s")
def takes_long(job):
    threading.Event().wait()

@handler(timeout="0.5s", on_death="fail")
def hears_nothing(job):
    signal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65))
    while True:
        pass

@handler(on_death="fail")
def dies(job):
    print("last words")
    os.kill(os.getpid(), signal.SIGSEGV)
"""


class Sink:
    """A server that takes envelopes as Sentry does."""

    def __init__(self) -> None:
        self._found: list[dict] = []
        self._came = threading.Condition()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sink.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_arguments):
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.dsn = f"http://public@127.0.0.1:{self._server.server_port}/1"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, envelope: bytes) -> None:
        lines = envelope.splitlines()
        with self._came:
            for head, item in zip(lines[1::2], lines[2::2], strict=False):
                if json.loads(head).get("type") == "event":
                    self._found.append(json.loads(item))
            self._came.notify_all()

    def of(self, klass: str) -> dict:
        """Wait for the event of a klass."""

        def found():
            return [event for event in self._found if event["tags"]["klass"] == klass]

        with self._came:
            assert self._came.wait_for(found, 60), f"no event of {klass} among {self._found}"
            return found()[0]

    def klasses(self) -> list[str]:
        return [event["tags"]["klass"] for event in self._found]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def sink():
    made = Sink()
    yield made
    made.close()


@pytest.fixture
def deaths(stage, sink):
    """The process that reports deaths."""
    environment = {
        **os.environ,
        "SENTRY_DSN": sink.dsn,
        "LEASEHOLD_REDIS_URL": stage.server.url,
        "LEASEHOLD_NAMESPACE": stage.namespace,
        "PYTHONPATH": str(ROOT),
    }
    process = subprocess.Popen([sys.executable, "-m", "supervisor.contrib.sentry"], env=environment)
    stage.wait_until(
        lambda: stage.server.redis.pubsub_numsub(f"{stage.prefix}events")[0][1] == 1, "the listener of deaths"
    )
    yield process
    process.send_signal(signal.SIGINT)
    process.wait(30)


@pytest.mark.parametrize("jobs_per_child", [1, 0])
def test_exceptions_and_time_limits_are_events_with_their_job(stage, sink, jobs_per_child):
    os.environ["SINK"] = sink.dsn
    try:
        pool = start_app(stage, SOURCE, processes=2, jobs_per_child=jobs_per_child)
    finally:
        del os.environ["SINK"]
    jid = stage.queue.put("raises", {"number": 7}, retries=0)
    slow = stage.queue.put("takes_long", retries=0)
    again = stage.queue.put("asks_again")
    stage.wait_until_ended([jid, slow, again])
    assert pool.drain() == 0
    event = sink.of("raises")
    events = {event["tags"]["jid"]: event for event in sink._found}
    assert events.keys() == {jid, slow}
    event = events[jid]
    assert event["exception"]["values"][-1]["value"] == "no such thing"
    tags = {"klass": "raises", "jid": jid, "queue": "default", "attempt": "1"}
    assert {name: str(value) for name, value in event["tags"].items() if name in tags} == tags
    assert events[slow]["exception"]["values"][-1]["type"] == "SoftTimeout"
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
def test_deaths_are_events_with_their_reason(stage, sink, deaths):
    os.environ["SINK"] = sink.dsn
    try:
        pool = start_app(stage, SOURCE, processes=2)
    finally:
        del os.environ["SINK"]
    jid = stage.queue.put("dies")
    killed = stage.queue.put("hears_nothing")
    broken = stage.queue.put("raises", {"number": "x"})
    stage.wait_until_ended([jid, killed, broken])
    event = sink.of("dies")
    assert (event["tags"]["reason"], event["tags"]["jid"], str(event["tags"]["attempt"])) == ("SIGSEGV", jid, "1")
    assert "SIGSEGV" in json.dumps(event) and "last words" in json.dumps(event["contexts"])
    assert sink.of("hears_nothing")["tags"]["reason"] == "timeout"
    event = sink.of("raises")
    assert (event["tags"]["outcome"], event["tags"]["jid"]) == ("broken", broken)
    assert "number: " in json.dumps(event["logentry"] if "logentry" in event else event["message"])
    assert sink.klasses().count("raises") == 1  # the child has made none
    assert pool.drain() == 0
    stage.assert_nothing_left()
