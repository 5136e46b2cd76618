"""A client in a handler's process refuses to work without a URL: its jobs would be lost."""

import os
import subprocess
import sys

import pytest
from apps import start_app
from supervised import ROOT

PUT = "from supervisor import {client}; {client}()"

HANDLERS = """
@handler(on_error="fail")
def blocking(job):
    from supervisor import Client
    with Client() as client:
        return client.queue("default").put("noop")


@handler(on_error="fail")
def awaiting(job):
    from supervisor import AsyncClient
    return repr(AsyncClient())


@handler
def starting(job):
    program = "from supervisor import Client; Client().queue('default').put('noop')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return [done.returncode, done.stderr.splitlines()[-1]]


@handler
def commanding(job):
    words = [sys.executable, "-m", "supervisor", "put", "noop"]
    done = subprocess.run(words, capture_output=True, text=True)
    return [done.returncode, done.stderr]


@handler
def named(job):
    from supervisor import Client
    with Client(job.data, {namespace!r}) as client:
        return client.queue("default").put("noop")
"""


@pytest.fixture
def pool(stage):
    return start_app(stage, HANDLERS.format(namespace=stage.namespace)).wait_ready()


def assert_over(stage, pool):
    assert pool.drain() == 0
    assert not [*stage.directory.rglob(".leasehold")]
    stage.assert_nothing_left()


@pytest.mark.parametrize("sandbox", ["none", "basic", "strict"])
@pytest.mark.parametrize("klass", ["blocking", "awaiting"])
def test_client_without_a_url_raises_in_a_handler(stage, klass, sandbox):
    pool = start_app(stage, HANDLERS.format(namespace=stage.namespace), sandbox=sandbox).wait_ready()
    jid = stage.queue.put(klass)
    stage.wait_until_ended([jid])
    failure = stage.client.job(jid).failure
    assert failure["group"] == "NoServer"
    assert "job.put()" in failure["message"] and "Client(url)" in failure["message"]
    assert_over(stage, pool)


def test_client_without_a_url_raises_in_a_program_of_a_handler(stage, pool):
    jid = stage.queue.put("starting")
    stage.wait_until_ended([jid])
    code, last = stage.client.job(jid).result
    assert (code, last.partition(":")[0]) == (1, "supervisor.engine.model.errors.NoServer")
    assert_over(stage, pool)


def test_a_command_without_a_url_refuses_in_a_handler(stage, pool):
    jid = stage.queue.put("commanding")
    stage.wait_until_ended([jid])
    code, said = stage.client.job(jid).result
    assert code == 78 and "job.put()" in said
    assert_over(stage, pool)


def test_client_with_a_url_puts_from_a_handler(stage, pool):
    jid = stage.queue.put("named", stage.server.url)
    stage.wait_until_ended([jid])
    put = stage.client.job(jid).result
    stage.wait_until_ended([put])
    assert stage.client.job(put).state == "complete"
    assert_over(stage, pool)


@pytest.mark.parametrize("client", ["Client", "AsyncClient"])
def test_client_without_a_url_at_import_fails_the_boot(stage, client):
    pool = start_app(stage, PUT.format(client=client))
    assert pool.wait() == 71
    failed = pool.events[-1]
    assert failed["event"] == "zygote.failed"
    assert "NoServer" in failed["message"] and "job.put()" in failed["message"]
    assert "app/__init__.py" in failed["traceback"]
    assert not [*stage.directory.rglob(".leasehold")]
    stage.assert_nothing_left()


def test_connection_of_a_client_made_at_import_is_named(stage):
    source = f"from supervisor import Client; client = Client({stage.server.url!r}); client.workers()"
    pool = start_app(stage, source).wait_ready()
    warned = pool.wait_for("master.warned")["message"]
    assert "Unix socket" in warned and str(stage.server.socket) in warned
    assert_over(stage, pool)


@pytest.mark.parametrize("client", ["Client", "AsyncClient"])
def test_as_pid_1_client_without_a_url_raises(as_pid_1, tmp_path, client):
    done = subprocess.run(
        [*as_pid_1, sys.executable, "-c", PUT.format(client=client)],
        cwd=tmp_path, capture_output=True, text=True, timeout=50,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "NoServer" in last and "LEASEHOLD_REDIS_URL" in last and "Client('embedded:')" in last
    assert not [*tmp_path.iterdir()]
