"""Strangers are refused, and what others have put can do nothing to those who look."""

import re
from urllib.parse import quote

import pytest

from supervisor.web.hiding import Hiding
from supervisor.web.pages.table import PAGES
from tests.docs.pages import ROOT
from tests.web.conftest import HOSTILE, tags, words
from tests.web.test_pages import PATHS

WANTED = {
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.mark.parametrize("path", ["/overview", "/nothing", "/job?jid=nobody", "/static/page.js", "/api/v1/queues"])
def test_every_answer_has_the_headers(visitor, path):
    headers = visitor.get(path).headers
    assert {name: headers[name] for name in WANTED} == WANTED
    policy = dict(part.split(maxsplit=1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
    assert headers["cache-control"] == "no-store"
    assert headers["content-type"] and not {"server", "x-powered-by", "access-control-allow-origin"} & set(headers)


def test_answers_of_the_api_have_a_name_of_their_own(visitor, filled):
    """A browser may save them under it, and not under one that ends in .bat."""
    for path in ("/jobs/first", "/jobs/evil.bat", "/nothing.exe", "/openapi.json"):
        headers = visitor.get(f"/api/v1{path}").headers
        assert headers["content-disposition"] == 'inline; filename="leasehold.json"', path
    headers = visitor.get("/api/v1/queues?format=csv&x=evil.bat").headers
    assert headers["content-disposition"] == 'attachment; filename="queues.csv"'


@pytest.mark.parametrize("path", ["/overview", "/api/v1/queues", "/api/v1/jobs/first", "/static/page.js"])
def test_other_methods_are_refused(visitor, filled, path):
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "NONSENSE"):
        answer = visitor.http.request(method, path, headers={"origin": "http://evil.example"})
        assert answer.status_code in {403, 405}, (method, answer.text)
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert filled.job("first").state == "waiting"


@pytest.mark.parametrize(
    "path", ["/static/", "/static", "/static/../tokens.py", "/static/..%2ftokens.py", "/.git/config"]
)
def test_no_file_is_served_but_the_pages_own(visitor, path):
    assert visitor.get(path).status_code == 404


def test_static_files_are_scripts_styles_and_an_icon(visitor):
    types = {}
    for path in sorted((ROOT / "supervisor/web/static").iterdir()):
        types[path.suffix] = visitor.get(f"/static/{path.name}").headers["content-type"]
    assert types == {
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
    }


def test_no_text_becomes_code():
    sources = [path for path in (ROOT / "supervisor/web").rglob("*") if path.suffix in {".py", ".js", ".html"}]
    assert len(sources) > 50
    for path in sources:
        found = re.findall(
            r"\b(?:eval|exec|Function|Markup|write|system|popen)\(|\b(?:inner|outer)HTML\b|insertAdjacentHTML|subprocess"
            r"|pickle|\|\s*safe\b|javascript:|from_string|setTimeout\([\"']",
            path.read_text(),
        )
        assert found == [], path


@pytest.mark.parametrize("path", ["//evil.example", "//evil.example/", "/search?q=//evil.example", "/\\evil.example/"])
def test_no_redirection_leads_elsewhere(visitor, path):
    answer = visitor.http.request("GET", f"http://127.0.0.1{path}", follow_redirects=False)
    place = answer.headers.get("location", "/")
    assert re.match(r"/(?!/)|http://127\.0\.0\.1/", place), place


def test_a_parameter_that_comes_twice_counts_once(visitor, filled):
    shown = visitor.json("/jobs/first?jid=second&jid=bytes")
    assert shown["job"]["jid"] == "first"
    assert visitor.json("/jobs?queue=quiet&queue=mail")["queue"] == "mail"


def test_texts_of_any_language_stay_as_they_are(visitor, jobs):
    name = "O'Hara ねこ 🐈 \u202e<&>"
    jobs.queue(name).put("k", {"text": name}, jid="x", tags=[name])
    assert visitor.json("/jobs/x")["job"]["data"] == {"text": name}
    assert f"queue {name}" in words(visitor.page("/queue?queue=" + quote(name)))


def test_a_bug_has_the_headers_too_and_tells_nothing(visitor, monkeypatch):
    def broken(_value):
        raise RuntimeError("secret")

    monkeypatch.setattr(Hiding, "hide", lambda _self, value: broken(value))
    answer = visitor.get("/overview")
    assert answer.status_code == 500 and "secret" not in answer.text
    assert answer.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("path", PATHS)
def test_no_page_needs_an_inline_script_or_style(filled, visitor, path):
    for tag, attributes in tags(visitor.page(path)):
        assert tag != "style" and "style" not in attributes
        assert tag != "script" or attributes["src"]
        assert not any(name.startswith("on") for name in attributes)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]", "10.0.0.1"])
def test_another_name_for_this_server_is_refused(visitor, host):
    answer = visitor.get("/api/v1/queues", headers={"host": host})
    assert answer.status_code == 421 and answer.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("host", ["127.0.0.1:9465", "localhost", "LOCALHOST:80", "[::1]:9465", "[::1]"])
def test_own_host_names_are_accepted(visitor, host):
    assert visitor.get("/api/v1/queues", headers={"host": host}).status_code == 200


def test_a_further_name_can_be_given(visiting):
    visitor = visiting(hosts=["Jobs.example.com"])
    assert visitor.get("/api/v1/queues", headers={"host": "jobs.example.com:8443"}).status_code == 200


def test_without_a_login_nobody_looks_from_another_machine(visitor):
    visitor.http._transport.client = ("10.0.0.7", 4)
    assert visitor.get("/overview").status_code == 403
    assert visitor.get("/api/v1/queues").status_code == 403
    assert visitor.get("/static/style.css").status_code == 403


def test_probe_answers_everybody_under_any_name_and_nothing_else(visitor, filled):
    visitor.http._transport.client = ("10.0.0.7", 4)
    answer = visitor.get("/livez", headers={"host": ":9465"})
    assert (answer.status_code, answer.text, answer.headers["x-frame-options"]) == (200, "ok\n", "DENY")
    assert visitor.get("/livez/../overview", headers={"host": ":9465"}).status_code == 421
    assert visitor.http.post("/livez", headers={"host": ":9465"}).status_code == 421


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_hostile_text_in_any_parameter_stays_text(visitor, filled, page):
    for name in [each.name for each in page.parameters] + ["unknown"]:
        answer = visitor.get(f"/{page.name}", params={name: HOSTILE})
        assert answer.status_code in {200, 400, 404}, name
        found = tags(answer.text)
        assert {each["src"] for tag, each in found if tag == "script"} == {"/static/theme.js", "/static/page.js"}
        assert not [tag for tag, each in found if tag == "img" or any(key.startswith("on") for key in each)]


def test_foreign_data_stays_text_on_every_page(jobs, visitor):
    jobs.queue(HOSTILE).put(
        HOSTILE, {HOSTILE: HOSTILE}, jid=HOSTILE, tags=[HOSTILE], lane=HOSTILE, limit=HOSTILE, unique=HOSTILE, retries=0
    )
    jobs.queue(HOSTILE).put(HOSTILE, HOSTILE.encode(), jid="waits", lane=HOSTILE, limit=HOSTILE, depends=[HOSTILE])
    jobs.queue(HOSTILE).recur(HOSTILE, {}, every=60, jid=HOSTILE[:40], tags=[HOSTILE])
    jobs.limit(HOSTILE, running=0, by=HOSTILE)
    jobs.log(HOSTILE, HOSTILE, {HOSTILE: HOSTILE})
    jobs.job(HOSTILE).fail(HOSTILE, HOSTILE)
    jobs.queue(HOSTILE).pause(by=HOSTILE)
    seen: set[str] = set()
    todo = ["/overview"]
    scripts = {"/static/theme.js", "/static/page.js"}
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = visitor.get(path)
        assert answer.status_code == 200, path
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        found = tags(answer.text)
        assert {each["src"] for tag, each in found if tag == "script"} == scripts, path
        assert [each for tag, each in found if tag == "img"] == [], path
        assert ">49<" not in answer.text and "49\n" not in answer.text
        todo += [each["href"] for tag, each in found if tag == "a" and not each["href"].startswith("#")]
    assert len(seen) > 20
