"""`leasehold web` serves until it is told to end, and says in one sentence why it cannot."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from tests.lengths import SOON_S


@pytest.fixture
def web(server, namespace):
    """The command in a process of its own, and where it listens."""
    environment = {**os.environ, "LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace}
    command = [sys.executable, "-m", "supervisor", "web", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.readline()
        listening = re.fullmatch(r"leasehold: listening at http://127\.0\.0\.1:(\d+)\n", said)
        assert listening, said + process.stderr.read()
        yield process, int(listening[1])
        process.kill()


def ask(port: int, path: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOON_S)
    connection.request("GET", path)
    return connection.getresponse()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_shows_what_happens_until_a_signal_ends_it(server, namespace, jobs, web, number):
    process, port = web
    jobs.queue("mail").put("email.send", {}, jid="first")
    assert json.load(ask(port, "/api/v1/jobs/first"))["job"]["klass"] == "email.send"
    jobs.queue("mail").put("email.send", {}, jid="%2F")
    assert json.load(ask(port, "/api/v1/jobs/%252F"))["job"]["jid"] == "%2F"
    assert "mail" in ask(port, "/overview").read().decode()
    events = ask(port, "/api/v1/events")
    assert events.headers["content-type"].startswith("text/event-stream")
    assert events.readline() == b"retry: 3000\n" and events.readline() == b"\n"
    jobs.queue("mail").put("email.send", {}, jid="second")
    assert json.loads(events.readline().removeprefix(b"data: "))["jid"] == "second"
    process.send_signal(number)
    assert process.wait(SOON_S) == 0
    assert process.stderr.read() == ""
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/overview")


def test_a_token_file_that_cannot_be_used_is_said_without_a_token(shell, tmp_path):
    file = tmp_path / "tokens"
    assert "cannot be read" in shell.refused(78, "web", "--token-file", str(file))
    file.write_text("viewer:ada:secret")
    said = shell.refused(78, "web", "--token-file", str(file))
    assert "line 1" in said and "secret" not in said
    assert "--auth-proxy 'here'" in shell.refused(78, "web", "--auth-header", "X-User", "--auth-proxy", "here")


def test_a_port_that_is_taken_is_said(shell):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"cannot listen at {address}" in shell.refused(78, "web", "--http", address)


@pytest.mark.parametrize("package", ["starlette.requests", "uvicorn", "jinja2", "jsonschema"])
def test_without_the_extra_it_says_what_to_install(shell, monkeypatch, package):
    for name in [name for name in sys.modules if name.startswith("supervisor.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'leasehold[web]'" in shell.refused(1, "web")
