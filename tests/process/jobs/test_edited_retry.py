"""A failed job is edited on the page: data that its handler does not take are shown there, and nothing is written."""

import html
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import data_schemas
from tests.lengths import SOON_S
from tests.process.apps import start_app, write_app

TOKEN = "o" * 20
SHOP = """
@handler
def welcome(job, user: int, password: str = "", tags: list[str] = []) -> int:
    if user < 0:
        raise ValueError("no such user")
    return user

@handler(unique="clicks", collect="1ms")
def clicks(job, rows: list[int]) -> int:
    if -1 in rows:
        raise ValueError("no such row")
    return sum(rows)

@handler
def untyped(job):
    return job.data if job.data else 1 / 0
"""


@contextmanager
def web_of(stage, *flags):
    """Serve the page, and log in as an operator."""
    (stage.directory / "tokens").write_text(f"operator:kim:{TOKEN}\n")
    command = [sys.executable, "-m", "supervisor", "web", "--http", "127.0.0.1:0", "--allow-actions", *flags]
    command += ["--token-file", str(stage.directory / "tokens")]
    settings = {**os.environ, "LEASEHOLD_REDIS_URL": stage.server.url, "LEASEHOLD_NAMESPACE": stage.namespace}
    with subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = re.fullmatch(r"leasehold: listening at (http://127\.0\.0\.1:\d+)\n", process.stderr.readline())
            with httpx.Client(base_url=address[1], timeout=SOON_S, follow_redirects=True) as browser:
                browser.post("/login", data={"token": TOKEN})
                yield browser
        finally:
            process.terminate()
            assert process.wait(SOON_S) == 0


@pytest.fixture
def web(stage):
    with web_of(stage) as browser:
        yield browser


def failed(stage, klass="welcome", **data):
    """Return a job that has failed, once the schema of its handler is known."""
    jid = stage.queue.put(klass, data, retries=0)
    stage.wait_until_ended([jid])
    assert stage.client.job(jid).state == "failed"
    stage.wait_until(lambda: klass != "welcome" or schemas(stage), "the schema")
    return jid


def schemas(stage):
    return calls_of(stage.client).call(data_schemas.read, "default", "welcome")


def send(browser, jid, **fields):
    key = re.search(r'name="csrf" value="(\w+)"', browser.get(f"/job?jid={jid}").text)[1]
    return browser.post("/act/retry", data={"csrf": key, "jid": jid, **fields})


def edited(page):
    return html.unescape(re.search(r"<textarea[^>]*>(.*?)</textarea>", page.text, re.DOTALL)[1])


def wrong(page):
    found = re.search(r'<div class="wrong".*?</div>', page.text, re.DOTALL)
    return re.findall(r"<li><strong>(.*?)</strong> (.*?)</li>", found[0])


def finish(stage, pool):
    assert pool.drain() == 0
    for key in stage.server.redis.scan_iter(f"{stage.prefix}answer:*"):
        stage.server.redis.delete(key)  # the page waits for answers for an instant only: a late one would expire
    stage.assert_nothing_left()


def test_wrong_data_are_shown_by_path_and_right_data_run(stage, web):
    pool = start_app(stage, SHOP, processes=1)
    jid = failed(stage, user=-1)
    text = '{"usr": 7,\n "tags": ["a", 1]}'
    page = send(web, jid, data=text)
    assert page.status_code == 422
    assert sorted(wrong(page)) == [
        ("tags[1]", "must be string, not integer"), ("user", "is missing"), ("usr", "is no parameter"),
    ]  # fmt: skip
    assert edited(page) == text and "Retry anyway" in page.text
    job = stage.client.job(jid)
    assert (job.state, job.data) == ("failed", {"user": -1})
    assert stage.client.audit() == []
    page = send(web, jid, data='{"user": 7}')
    assert page.status_code == 200 and "Retry anyway" not in page.text
    assert stage.client.wait(jid, SOON_S) == 7
    finish(stage, pool)


def test_handler_that_collects_is_given_a_list(stage, web):
    pool = start_app(stage, SHOP, processes=1)
    jid = stage.queue.put("clicks", [-1], retries=0)
    stage.wait_until_ended([jid])
    stage.wait_until(lambda: calls_of(stage.client).call(data_schemas.read, "default", "clicks"), "the schema")
    assert wrong(send(web, jid, data='{"rows": [1]}')) == [("the data", "must be array, not object")]
    assert wrong(send(web, jid, data='[1, "x"]')) == [("[1]", "must be integer, not string")]
    assert send(web, jid, data="[1, 2]").status_code == 200
    assert stage.client.wait(jid, SOON_S) == 3
    finish(stage, pool)


def test_data_that_only_pydantic_takes_are_forced(stage, web):
    pool = start_app(stage, SHOP, processes=1)
    jid = failed(stage, user=-1)
    page = send(web, jid, data='{"user": "7"}')
    assert wrong(page) == [("user", "must be integer, not string")]
    assert re.search(r'<button name="force" value="yes"[^>]*>Retry anyway</button>', page.text)
    assert send(web, jid, data=edited(page), force="yes").status_code == 200
    assert stage.client.wait(jid, SOON_S) == 7
    finish(stage, pool)


def test_a_program_gets_the_paths_without_force(stage, web):
    pool = start_app(stage, SHOP, processes=1)
    jid = failed(stage, user=-1)
    path, headers = f"/api/v1/jobs/{jid}/retry", {"Authorization": f"Bearer {TOKEN}"}
    for given in ({"data": {"user": "7"}}, {"data": {"user": "7"}, "force": False, "queue": "default"}):
        answer = web.post(path, json=given, headers=headers)
        assert answer.status_code == 422
        assert answer.json() == {
            "error": "the data do not fit the handler of welcome; force=true puts the job back all the same",
            "fields": [{"path": "user", "wrong": "must be integer, not string"}],
        }
        assert stage.client.job(jid).state == "failed"
    assert web.post(path, json={"data": {"user": "8"}, "force": True}, headers=headers).json() == {"retried": [jid]}
    assert stage.client.wait(jid, SOON_S) == 8
    finish(stage, pool)


def test_data_are_not_checked_where_no_schema_is_known(stage, web):
    pool = start_app(stage, SHOP, processes=1)
    jid, untyped = failed(stage, user=-1), failed(stage, "untyped")
    assert send(web, untyped, data='{"n": 1}').status_code == 200
    assert stage.client.wait(untyped, SOON_S) == {"n": 1}
    finish(stage, pool)
    assert schemas(stage) == []
    assert send(web, jid, data='{"user": "7"}').status_code == 200
    assert stage.client.job(jid).data == {"user": "7"}
    stage.client.cancel(jid)


def test_hidden_fields_are_named_without_their_values(stage):
    pool = start_app(stage, SHOP, processes=1)
    jid = failed(stage, user=-1)
    with web_of(stage, "--hide", "password") as web:
        page = send(web, jid, data='{"user": 1, "password": ["hunter2"]}')
        assert wrong(page) == [("password", "must be string, not array")]
        assert "hunter2" in edited(page), "what the visitor has written"
        assert "hunter2" not in re.sub(r"<textarea.*?</textarea>", "", page.text, flags=re.DOTALL)
        answer = web.post(
            f"/api/v1/jobs/{jid}/retry", json={"data": {"user": 1, "password": {"password": "hunter2"}}},
            headers={"Authorization": f"Bearer {TOKEN}"},
        )  # fmt: skip
        assert answer.status_code == 422 and "hunter2" not in answer.text
    finish(stage, pool)


def test_a_reload_publishes_the_new_schema(stage, web):
    pool = start_app(stage, SHOP, processes=1)
    jid = failed(stage, user=-1)
    before = schemas(stage)
    write_app(stage, SHOP.replace("user: int", "user: str").replace("user < 0", "False"))
    pool.send(signal.SIGHUP)
    stage.wait_until(lambda: schemas(stage) not in ([], before), "the new schema")
    assert wrong(send(web, jid, data='{"user": 7}')) == [("user", "must be string, not integer")]
    assert send(web, jid, data='{"user": "x"}').status_code == 200
    stage.wait_until_settled([jid])
    assert stage.client.job(jid).data == {"user": "x"}
    finish(stage, pool)
