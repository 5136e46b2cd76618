"""A token, a session that began with one, or a proxy's word lets a visitor look."""

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount
from starlette.testclient import TestClient

from supervisor import clock
from supervisor.engine.client.async_client import AsyncClient
from supervisor.web import ProxyHeader, Tokens, app
from supervisor.web.auth import Auth
from supervisor.web.event_hub import EventHub
from supervisor.web.guesses import MOST_WRONG, Guesses
from supervisor.web.hiding import Hiding
from tests.web.test_pages import PATHS

COOKIE = "leasehold_session"
VIEWER, OPERATOR, WORKER = "v" * 20, "o" * 20 + ":with:colons", "w" * 20
LINES = ["# who may look", "", f"viewer:ada:{VIEWER}", f"operator:kim:{OPERATOR}", f"worker:w-1:{WORKER}"]


@pytest.fixture
def site(visiting, filled):
    return visiting(auth=Tokens(LINES))


def bearer(token):
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", [*PATHS, "/search?q=first"])
def test_a_stranger_is_led_to_the_login_from_every_page(site, path):
    answer = site.get(path, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


def test_a_stranger_gets_nothing_from_the_api(site):
    for path in ("/jobs/first", "/events", "/openapi.json", "/nothing"):
        answer = site.get(f"/api/v1{path}")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json() == {"error": "a token is needed"}


@pytest.mark.parametrize("path", ["/login/../overview", "/login%2f..%2foverview", "//overview", "/static/../overview"])
def test_no_way_leads_around_the_login(site, path):
    answer = site.http.request("GET", path, follow_redirects=False)
    assert answer.status_code in {303, 404} and "ada@example.org" not in answer.text


@pytest.mark.parametrize("token", [VIEWER, OPERATOR])
def test_viewers_and_operators_may_look(site, token):
    assert site.get("/api/v1/jobs/first", headers=bearer(token)).status_code == 200
    assert site.get("/overview", headers=bearer(token)).status_code == 200


@pytest.mark.parametrize("token", ["", "x", VIEWER[:-1], VIEWER + "v", "é" * 20, OPERATOR.partition(":")[0]])
def test_another_token_is_a_strangers(site, token):
    assert site.get("/api/v1/jobs/first", headers={"authorization": f"Bearer {token}".encode()}).status_code == 401


def test_a_worker_may_not_look(site):
    assert site.get("/api/v1/jobs/first", headers=bearer(WORKER)).status_code == 403
    assert site.get("/overview", headers=bearer(WORKER)).status_code == 403


def test_a_session_lasts_from_login_to_logout(site):
    answer = site.http.post("/login", data={"token": VIEWER}, follow_redirects=False)
    cookie = answer.headers["set-cookie"].lower()
    assert answer.status_code == 303
    assert "httponly" in cookie and "samesite=strict" in cookie and VIEWER not in cookie
    assert "ada, viewer" in site.page("/overview")
    kept = site.http.cookies[COOKIE]
    site.http.post("/logout")
    site.http.cookies.set(COOKIE, kept)
    assert site.get("/overview", follow_redirects=False).status_code == 303


def test_a_session_ends_after_twelve_hours(site, monkeypatch):
    site.http.post("/login", data={"token": VIEWER})
    now = clock.monotonic()
    for hours, status in ((11.99, 200), (12.01, 401)):
        monkeypatch.setattr(clock, "monotonic", lambda hours=hours: now + hours * 3600)
        headers = {"cookie": f"{COOKIE}={site.http.cookies[COOKIE]}"}  # whatever the browser thinks of its age
        assert site.get("/api/v1/queues", headers=headers).status_code == status


def test_a_cookie_is_for_the_path_of_the_page(server, namespace):
    client = AsyncClient(server.url, namespace)
    outer = Starlette(routes=[Mount("/jobs", app(client, auth=Tokens(LINES)))])
    with TestClient(outer, base_url="https://localhost", client=("127.0.0.1", 4)) as http:
        answer = http.post("/jobs/login", data={"token": VIEWER}, follow_redirects=False)
        assert answer.headers["set-cookie"].startswith(f"{COOKIE}=")
        parts = answer.headers["set-cookie"].lower().split("; ")
        assert "path=/jobs" in parts and "secure" in parts
        assert http.get("/jobs/api/v1/queues").status_code == 200
        http.portal.call(client.close)


def test_each_login_has_a_session_of_its_own(site):
    site.http.cookies.set(COOKIE, "chosen-by-another")
    sessions = set()
    for _ in range(2):
        answer = site.http.post("/login", data={"token": VIEWER}, follow_redirects=False)
        sessions.add(answer.cookies[COOKIE])
    assert len(sessions) == 2 and all(len(each) == 43 for each in sessions), "256 bits each"


def test_a_session_is_known_by_its_cookie_alone(site):
    cookie = site.http.post("/login", data={"token": VIEWER}, follow_redirects=False).cookies[COOKIE]
    site.http.cookies.clear()
    for asked in (f"{COOKIE}={cookie}", f"token={VIEWER}", f"access_token={VIEWER}"):
        assert site.get(f"/api/v1/queues?{asked}").status_code == 401


def test_with_tls_a_cookie_is_for_this_host_alone(site):
    over_tls = {"x-forwarded-proto": "https"}
    answer = site.http.post("/login", data={"token": VIEWER}, headers=over_tls, follow_redirects=False)
    name, _, rest = answer.headers["set-cookie"].partition("=")
    assert name == f"__Host-{COOKIE}"
    assert {"secure", "httponly", "path=/", "samesite=strict"} <= {part.strip().lower() for part in rest.split(";")}
    cookie = rest.partition(";")[0]
    for sent, status in ((name, 200), (COOKIE, 401)):  # a neighbour of the host could set the second one
        headers = {**over_tls, "cookie": f"{sent}={cookie}"}
        assert site.get("/api/v1/queues", headers=headers).status_code == status
    left = site.http.post("/logout", headers={**over_tls, "cookie": f"{name}={cookie}"}, follow_redirects=False)
    assert left.headers["set-cookie"].startswith(f'{name}=""') and "secure" in left.headers["set-cookie"].lower()


def test_a_token_of_any_letters_logs_in_and_is_a_bearer(visiting):
    token = "Größe und ねこ 🐈, 20 letters"
    site = visiting(auth=Tokens([f"viewer:ada: {token}  "]))
    headers = {"authorization": f"Bearer {token}".encode()}
    assert site.get("/api/v1/queues", headers=headers).status_code == 200
    assert site.http.post("/login", data={"token": token}, follow_redirects=False).status_code == 303


def test_an_address_that_guesses_is_heard_no_more(site):
    for number in range(MOST_WRONG - 1):
        assert site.get("/api/v1/queues", headers=bearer(f"guess {number}")).status_code == 401
    for _ in range(MOST_WRONG):  # an old program repeats its token
        assert site.get("/api/v1/queues", headers=bearer("guess 0")).status_code == 401
    assert site.get("/api/v1/queues", headers=bearer(VIEWER)).status_code == 200
    assert site.http.post("/login", data={"token": "the last guess"}).status_code == 429
    answer = site.get("/api/v1/queues", headers=bearer(OPERATOR))
    assert answer.status_code == 429 and 3500 < int(answer.headers["retry-after"]) <= 3600
    answer = site.http.post("/login", data={"token": OPERATOR})
    assert answer.status_code == 429 and "Try again in" in answer.text and COOKIE not in site.http.cookies
    assert site.get("/api/v1/queues", headers=bearer(VIEWER)).status_code == 200, "it was right before"
    site.http._transport.client = ("10.0.0.7", 4)
    assert site.get("/api/v1/queues", headers=bearer(OPERATOR)).status_code == 200


def test_a_guesser_has_one_network_of_ipv6_and_an_hour(site, monkeypatch):
    for number in range(MOST_WRONG):
        site.http._transport.client = (f"2001:db8::{number:x}", 4)
        site.get("/api/v1/queues", headers=bearer(f"guess {number}"))
    for host, status in (("2001:db8::ffff", 429), ("2001:db8:0:1::1", 200), ("fe80::1%eth0", 200)):
        site.http._transport.client = (host, 4)
        assert site.get("/api/v1/queues", headers=bearer(VIEWER)).status_code == status, host
    site.http._transport.client = ("2001:db8::ffff", 4)
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now + 3601)
    assert site.get("/api/v1/queues", headers=bearer(VIEWER)).status_code == 200
    for number in range(MOST_WRONG):
        site.get("/api/v1/queues", headers=bearer(f"guess {number}"))
    assert site.get("/api/v1/queues", headers=bearer(OPERATOR)).status_code == 429


def test_addresses_that_are_kept_are_bounded():
    def asked(number):
        return HTTPConnection({"type": "http", "headers": [], "client": (f"10.0.{number // 250}.{number % 250}", 4)})

    guesses = Guesses()
    for guess in range(MOST_WRONG):
        guesses.record(asked(0), b"%d" % guess, is_right=False)
    assert guesses.wait_s(asked(0)) > 3500
    for number in range(1, 1001):
        guesses.record(asked(number), b"wrong", is_right=False)
    assert guesses.wait_s(asked(0)) == 0


def test_a_login_that_breaks_lets_nobody_in(visiting, filled):
    class Broken(Auth):
        def visitor(self, connection):
            raise RuntimeError("secret")

    answer = visiting(auth=Broken()).get("/api/v1/jobs/first")
    assert answer.status_code == 500 and "secret" not in answer.text and "ada" not in answer.text


def test_a_wrong_token_at_the_login_is_said(site):
    answer = site.http.post("/login", data={"token": "x" * 20})
    assert answer.status_code == 403 and "Nobody has this token" in answer.text and COOKIE not in site.http.cookies


@pytest.mark.parametrize("path", ["/login", "/logout"])
def test_a_form_of_another_site_is_refused(site, path):
    headers = {**bearer(VIEWER), "origin": "http://evil.example"}
    assert site.http.post(path, data={"token": VIEWER}, headers=headers).status_code == 403
    assert COOKIE not in site.http.cookies


def test_a_form_without_end_is_refused(site):
    assert site.http.post("/login", data={"token": "x" * 10_000}).status_code == 413


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "has no line"),
        (["king:ada:" + VIEWER], "line 1 must be role:name:token"),
        (["viewer::" + VIEWER], "line 1 must be role:name:token"),
        (["# one", "viewer:ada:short"], "line 2: a token has at least 20"),
        ([f"viewer:ada:{VIEWER}", f"operator:kim:{VIEWER}"], "line 2: the token is that of another line"),
    ],
)
def test_a_bad_line_of_the_file_is_named_without_its_token(lines, sentence):
    with pytest.raises(ValueError, match=sentence) as refused:
        Tokens(lines)
    assert VIEWER not in str(refused.value) and "short" not in str(refused.value)


def test_a_proxy_names_its_users_and_nobody_else_does(visiting, filled):
    site = visiting(auth=ProxyHeader("X-User", "127.0.0.1"))
    assert site.get("/overview").status_code == 403
    assert site.get("/overview", headers={"x-user": ""}).status_code == 403
    assert site.get("/overview", headers=[("x-user", "ada"), ("x-user", "kim")]).status_code == 403
    assert site.get("/overview", headers={"x-user": "ada"}).status_code == 200
    other = visiting(auth=ProxyHeader("X-User", "10.0.0.2"))
    assert other.get("/overview", headers={"x-user": "ada"}).status_code == 403


def test_a_name_from_a_proxy_may_be_of_any_letters(visiting, filled):
    site = visiting(auth=ProxyHeader("X-User", "127.0.0.1", operators=["Zoë"]), allow_actions=True)
    for name, status in (("Zoë".encode(), 200), (b"Zoe", 403), (b"Zo\xff", 403)):
        answer = site.http.post("/api/v1/queues/mail/pause", json={}, headers={"x-user": name})
        assert answer.status_code == status, name
    assert filled.queue("mail").counts().paused_by == "login:Zoë"


def test_a_stream_of_events_ends_with_its_session(site, filled):
    """The stream is asked as the server does: the test's browser would wait for its end."""
    tokens = Tokens(LINES)
    cookie = tokens.log_in(VIEWER, HTTPConnection({"type": "http", "headers": []}))
    asked = HTTPConnection({"type": "http", "headers": [(b"cookie", f"{COOKIE}={cookie}".encode())]})

    async def chunks():
        hub = EventHub(client, Hiding())
        stream = hub.stream(lambda: tokens.visitor(asked) is not None)
        seen = [await anext(stream)]
        await client.queue("q").put("k", jid="seen")
        seen.append(await anext(stream))
        tokens.log_out(cookie)
        await client.queue("q").put("k", jid="unseen")
        return seen + [chunk async for chunk in stream]

    client = site.client
    first, second = site.http.portal.call(chunks)
    assert first.startswith(b"retry") and b'"seen"' in second


def test_site_with_a_login_answers_under_its_address(site):
    headers = bearer(VIEWER)
    assert site.get("/api/v1/queues", headers={**headers, "host": "10.0.0.7:9465"}).status_code == 200
    assert site.get("/api/v1/queues", headers={**headers, "host": "evil.example"}).status_code == 421
