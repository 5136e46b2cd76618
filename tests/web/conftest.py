"""A visitor of the page: the whole application on a real server, without a socket."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from starlette.testclient import TestClient

from supervisor.clock import monotonic
from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_client import Client
from supervisor.web import Loopback, Tokens, app
from supervisor.web.auth import ROLES
from tests.lengths import LONG, SOON_S
from tests.web.browser import Browser, browsing

#: A text by which a job's author may try to harm the people who look at the job.
HOSTILE = """"'><script>a()</script><img src=x onerror=b()>{{7*7}}"""


TOKENS = {role: role[0] * 20 for role in ROLES}
LINES = [f"{role}:{role}-1:{token}" for role, token in TOKENS.items()]
SECOND_OPERATOR = "s" * 20


def bearer(role: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[role]}"}


class Visitor:
    """A browser on this machine, which sends what it is told and follows redirections."""

    def __init__(self, http: TestClient, client: AsyncClient) -> None:
        self.http = http
        self.client = client

    def get(self, path: str, **options: Any) -> Any:
        return self.http.get(path, **options)

    def page(self, path: str) -> str:
        """Return the text of a page that is there."""
        answer = self.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        return str(answer.text)

    def json(self, path: str) -> Any:
        answer = self.get(f"/api/v1{path}")
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()

    def refused(self, path: str, status: int) -> str:
        """Return the sentence of an error of the API."""
        answer = self.get(f"/api/v1{path}")
        assert answer.status_code == status, (path, answer.text)
        return str(answer.json()["error"])


class _Parts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parts = _Parts()
    parts.feed(text)
    return parts.tags


def words(text: str) -> str:
    """Return the text that a person reads on a page, in one line."""
    parts = _Parts()
    parts.feed(text)
    return re.sub(r"\s+", " ", " ".join(parts.words))


def key_of(text: str) -> str:
    """Return the key that the forms of a page carry."""
    [key] = {each["value"] for tag, each in tags(text) if tag == "input" and each.get("name") == "csrf"}
    return str(key)


def shown(site: Visitor, act: str) -> dict[str, Any]:
    """Return how far an act on many jobs is."""
    [found] = site.http.get(f"/api/v1/bulk?act={act}", headers=bearer("operator")).json()["acts"]
    return dict(found)


def ended(site: Visitor, act: str) -> dict[str, Any]:
    """Wait until an act on many jobs goes on no more, and return it."""
    give_up_at = monotonic() + (30 if LONG else 1) * SOON_S
    while True:
        found = shown(site, act)
        if found["state"] not in ("counting", "acting"):
            return found
        assert monotonic() < give_up_at, found


@pytest.fixture
def jobs(server, namespace) -> Iterator[Client]:
    with Client(server.url, namespace) as client:
        yield client


@pytest.fixture
def visiting(server, namespace):
    """Open the page with these options: visiting(hide=[…])."""
    opened: list[TestClient] = []

    def start(**options: Any) -> Visitor:
        client = AsyncClient(server.url, namespace)
        made = app(client, **{"auth": Loopback(), **options})
        http = TestClient(made, base_url="http://127.0.0.1", client=("127.0.0.1", 4), raise_server_exceptions=False)
        http.__enter__()
        opened.append(http)
        http.portal.call(client.__aenter__)
        clients.append((http, client))
        return Visitor(http, client)

    clients: list[tuple[TestClient, AsyncClient]] = []
    yield start
    for http, client in clients:
        http.portal.call(client.close)
    for http in opened:
        http.__exit__(None, None, None)


@pytest.fixture
def visitor(visiting) -> Visitor:
    return visiting()


@pytest.fixture
def site(visiting, filled):
    """A filled namespace in which visitors may act."""
    return visiting(auth=Tokens(LINES), allow_actions=True)


@pytest.fixture
def operator(site):
    """A browser in which an operator has logged in."""
    site.http.post("/login", data={"token": TOKENS["operator"]})
    return site


@pytest.fixture
def address(server, namespace, tmp_path) -> Iterator[str]:
    """Serve the page in a process of its own, and return its address."""
    (tmp_path / "tokens").write_text("\n".join([*LINES, f"operator:operator-2:{SECOND_OPERATOR}"]))
    environment = {**os.environ, "LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace}
    command = [sys.executable, "-m", "supervisor", "web", "--http", "127.0.0.1:0", "--allow-actions"]
    command += ["--token-file", str(tmp_path / "tokens")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        said = re.search(r"http://\S+", process.stderr.readline())
        assert said
        yield said[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0


@pytest.fixture
def browser(address: str) -> Iterator[Browser]:
    """A browser in which an operator has logged in."""
    with browsing() as browser:
        browser.log_in(address, TOKENS["operator"])
        yield browser


@pytest.fixture
def filled(jobs: Client) -> Client:
    """A namespace with something on every page."""
    mail = jobs.queue("mail")
    mail.put("email.send", {"to": "ada@example.org", "password": "hunter2"}, jid="first", tags=["vip"], lane="acme")
    mail.put("email.send", {"n": 2}, jid="second", limit="smtp")
    mail.put("report.build", b"\xff\x00", jid="bytes")
    mail.put("report.send", {}, jid="child", depends=["first"])
    mail.put("later.on", {}, jid="later", delay=3600)
    mail.recur("report.daily", {}, every=3600, jid="daily")
    jobs.queue("quiet").put("done", {}, jid="done")
    [lease] = jobs.queue("quiet").lease("w-1")
    lease.complete({"sent": True})
    jobs.queue("quiet").put("broken", {}, jid="broken")
    [lease] = jobs.queue("quiet").lease("w-1")
    lease.fail("ValueError", "it does not fit; token=s3cret")
    jobs.queue("quiet").put("runs", {}, jid="runs")
    jobs.queue("quiet").lease("w-1")
    jobs.queue("quiet").pause(by="kim@web-1")
    jobs.limit("smtp", running=1, rate="100/m")
    with jobs.batch("import", on_success={"queue": "batched", "klass": "ends"}, description="of July") as batch:
        batch.put("batched", "k", {}, jid="member")
        batch.put("batched", "k", {}, jid="lost-member")
    jobs.job("lost-member").fail("Late", "it came too late")
    return jobs
