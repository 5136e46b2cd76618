"""`leasehold web` serves until it is told to end, and says in one sentence why it cannot."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from supervisor.cli.commands.web import listening
from supervisor.setting_values import ListenAddress
from tests.lengths import SOON_S


@contextmanager
def serving(server, namespace, *flags):
    """Run the command in a process of its own. Yields that, where it listens, and what it says before."""
    environment = {**os.environ, "LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace}
    command = [sys.executable, "-m", "supervisor", "web", "--http", "127.0.0.1:0", *flags]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        said = ""
        while not (listening := re.search(r"leasehold: listening at http://127\.0\.0\.1:(\d+)\n", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        yield process, int(listening[1]), said[: listening.start()]
        process.kill()


@pytest.fixture
def web(server, namespace):
    with serving(server, namespace) as (process, port, said):
        assert said == ""
        yield process, port


def ask(port: int, path: str, method: str = "GET", body: str = "", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOON_S)
    connection.request(method, path, body, headers)
    return connection.getresponse()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_web_server_shows_events_until_a_signal(server, namespace, jobs, web, number):
    process, port = web
    jobs.queue("mail").put("email.send", {}, jid="first")
    assert json.load(ask(port, "/api/v1/jobs/first"))["job"]["klass"] == "email.send"
    jobs.queue("mail").put("email.send", {}, jid="%2F")
    assert json.load(ask(port, "/api/v1/jobs/%252F"))["job"]["jid"] == "%2F"
    assert "mail" in ask(port, "/overview").read().decode()
    events = ask(port, "/api/v1/events")
    assert events.headers["content-type"].startswith("text/event-stream")
    assert "server" not in events.headers
    jobs.queue("mail").put("email.send", {}, jid="second")  # seen, for the answer has begun
    assert events.readline() == b"retry: 3000\n" and events.readline() == b"\n"
    assert json.loads(events.readline().removeprefix(b"data: "))["jid"] == "second"
    process.send_signal(number)
    assert process.wait(SOON_S) == 0
    assert process.stderr.read() == ""
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/overview")


def test_bodies_do_not_wait_for_the_acknowledgement_of_their_headers():
    with listening(ListenAddress("127.0.0.1", 0)) as at, socket.create_connection(at.getsockname()):
        accepted, _ = at.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_token_is_made_for_those_who_may_act(server, namespace):
    made = set()
    for _ in range(2):
        with serving(server, namespace, "--allow-actions") as (process, port, said):
            [token] = re.findall(r"log in with the token (\S{32}), which ends with this command", said)
            assert ask(port, "/api/v1/queues", authorization=f"Bearer {token}").status == 200
            assert {ask(port, "/api/v1/queues", authorization=f"Bearer {other}").status for other in made} <= {401}
            made.add(token)
            process.send_signal(signal.SIGTERM)
            assert process.wait(SOON_S) == 0
    assert len(made) == 2


def test_tokens_are_never_logged(server, namespace, tmp_path):
    token = "t0ken" * 5
    (tmp_path / "tokens").write_text(f"operator:kim:{token}")
    with serving(server, namespace, "--token-file", str(tmp_path / "tokens"), "--allow-actions") as (
        process,
        port,
        said,
    ):
        assert ask(port, "/api/v1/queues", authorization=f"Bearer {token}").status == 200
        assert ask(port, "/api/v1/queues", authorization=f"Bearer {token}wrong").status == 401
        form = {"content-type": "application/x-www-form-urlencoded"}
        answer = ask(port, "/login", "POST", f"token={token}", **form)
        cookie = answer.headers["set-cookie"].partition(";")[0]
        assert answer.status == 303 and ask(port, "/overview", cookie=cookie).status == 200
        assert ask(port, "/login", "POST", f"token={token}wrong", **form).status == 403
        assert ask(port, "/act/cancel", "POST", "jid=first", cookie=cookie, **form).status == 403
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0
        assert said + process.stderr.read() == ""


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


def test_health_check_asks_a_server_with_a_login(server, namespace, shell, tmp_path):
    (tmp_path / "tokens").write_text(f"viewer:ada:{'v' * 20}")
    with serving(server, namespace, "--token-file", str(tmp_path / "tokens")) as (process, port, _said):
        assert shell.line("healthcheck", "--http", f"127.0.0.1:{port}") == "ok"
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0
        assert "nobody answers" in shell.refused(1, "healthcheck", "--http", f"127.0.0.1:{port}")


@pytest.mark.parametrize("package", ["starlette.requests", "uvicorn", "jinja2", "jsonschema"])
def test_missing_extra_is_named_with_the_remedy(shell, monkeypatch, package):
    for name in [name for name in sys.modules if name.startswith("supervisor.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'leasehold[web]'" in shell.refused(1, "web")
