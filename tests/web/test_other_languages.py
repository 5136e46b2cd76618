"""Workers over HTTP: the calls of the page on other languages work as shown, and so does its worker in Node."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from supervisor import Client
from tests.docs.pages import ROOT, blocks
from tests.lengths import SOON_S
from tests.parts import until

PAGE = ROOT / "deploy/docs/other-languages.md"
TOKENS = {"PRODUCER": "p" * 20, "WORKER": "w" * 20}
JOBS = 2000

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")


@pytest.fixture
def client(server, namespace):
    with Client(server.url, namespace) as client:
        client.config.set("heartbeat", 2)
        client.config.set("grace", 0.5)
        yield client


@pytest.fixture
def environment(server, namespace, tmp_path):
    """The variables of the page, while the web page that they name is served."""
    (tmp_path / "tokens").write_text("".join(f"{role.lower()}:test:{token}\n" for role, token in TOKENS.items()))
    command = [sys.executable, "-m", "supervisor", "web", "--http", "127.0.0.1:0"]
    command += ["--allow-actions", "--token-file", str(tmp_path / "tokens")]
    settings = {**os.environ, "LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace}
    with subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.readline()
        address = re.fullmatch(r"leasehold: listening at (http://127\.0\.0\.1:\d+)\n", said)
        assert address, said + process.stderr.read()
        yield {**os.environ, **TOKENS, "WEB_URL": address[1]}
        process.terminate()
        assert process.wait(SOON_S) == 0


@pytest.fixture
def node(environment, tmp_path):
    """Start the page's worker, with leases of two seconds and one more handler, which never ends."""
    (source,) = blocks(PAGE, "js")
    source = source.replace("RENEW_S = 10", "RENEW_S = 0.5").replace(
        "const handlers = {", 'const handlers = {\n  "text.hang": () => new Promise(() => {}),'
    )
    (tmp_path / "worker.mjs").write_text(source)
    with contextlib.ExitStack() as stack:

        def start():
            command = ["node", tmp_path / "worker.mjs"]
            process = stack.enter_context(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            return process

        yield start


def end(worker):
    worker.send_signal(signal.SIGTERM)
    assert (worker.wait(SOON_S), worker.stderr.read()) == (0, "")


def test_calls_work_as_shown(client, environment):
    _, shown = blocks(PAGE, "text")
    settings, calls = shown.split("\n\n")
    asked = settings.split("\n", 1)[1]
    answers, token = [], 7
    for line in calls.splitlines():
        line = line.replace('"token": 7', f'"token": {token}')
        done = subprocess.run(["bash", "-c", f"{asked}\n{line}"], env=environment, capture_output=True, check=True)
        answers.append(json.loads(done.stdout))
        token = answers[-1].get("leases", [{"token": token}])[0]["token"]
    put, lease, renewed, settled, ended = answers
    assert put == {"jid": "first"}
    assert (lease["leases"][0]["jid"], lease["leases"][0]["data"]) == ("first", {"text": "so it goes"})
    assert renewed["expires_unix"][0] > time.time()
    assert settled == {"answers": [True]}
    assert ended == {"ended": True, "result": {"words": 3}}


@pytest.mark.sampled(3)
@needs_node
def test_workers_in_node_run_each_job_once(client, node, measured):
    queue, workers = client.queue("text"), [node(), node()]
    jobs = [{"klass": "text.count", "data": {"text": "a b c"}, "jid": f"j{number}"} for number in range(JOBS)]
    began_at = time.monotonic()
    jids = queue.put_many(jobs)
    until(lambda: queue.stats().run.count >= JOBS, SOON_S)
    measured(f"two workers in Node over HTTP: {JOBS / (time.monotonic() - began_at):,.0f} jobs/s")
    for worker in workers:
        end(worker)
    assert queue.stats().run.count == JOBS
    ended = [client.job(jid) for jid in jids]
    assert {(job.state, job.result["words"]) for job in ended} == {("complete", 3)}


@pytest.mark.sampled(2)
@needs_node
def test_jobs_of_a_killed_worker_in_node_come_back(client, node):
    """The worker has renewed the job's lease before."""
    hanging = client.queue("text").put("text.hang", {})
    worker = node()
    until(lambda: client.job(hanging).state == "running", SOON_S)
    first_unix = client.job(hanging).expires_unix
    until(lambda: client.job(hanging).expires_unix > first_unix + 1, SOON_S)
    worker.kill()
    assert worker.wait(SOON_S) == -signal.SIGKILL
    (again,) = client.lease("after", ["text"], block=SOON_S)
    assert (again.jid, again.complete()) == (hanging, True)


@needs_node
def test_worker_in_node_retries_what_its_handler_raises(client, node):
    wrong = client.queue("text").put("text.count", {}, retries=0)
    worker = node()
    until(lambda: client.job(wrong).state == "failed", SOON_S)
    assert client.job(wrong).failure["group"] == "TypeError"
    end(worker)


def test_job_for_a_worker_that_has_hung_up_goes_back_uncounted(client, environment):
    """The worker's lease call waits for a job. A job with `at_most_once` would be lost if it counted as started."""
    host, port = environment["WEB_URL"].removeprefix("http://").split(":")
    body = json.dumps({"worker": "gone", "queues": ["text"], "block": 20})
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"POST /api/v1/lease HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {TOKENS['WORKER']}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        until(lambda: client.worker("gone").seen_unix is not None, SOON_S)
    jid = client.queue("text").put("text.count", {}, at_most_once=True)
    until(lambda: "popped" in [each["what"] for each in client.job(jid).history], SOON_S)
    until(lambda: client.job(jid).state == "waiting", SOON_S)
    (again,) = client.lease("after", ["text"], block=SOON_S)
    assert (again.jid, again.deaths, again.interruptions, again.complete()) == (jid, 0, 0, True)
