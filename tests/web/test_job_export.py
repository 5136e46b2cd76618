"""An export has all jobs that match, in steps, as a table or as lines of JSON."""

import asyncio
import csv
import json

import pytest

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.commands.choices import Choice
from supervisor.web import Tokens
from supervisor.web.hiding import HIDDEN, Hiding
from supervisor.web.job_export import MOST_AT_ONCE, ExportResponse, Forbidden, JobExports
from supervisor.web.pages.jobs import COLUMNS
from tests.web.conftest import LINES, bearer, tags

MANY = 450  # more than two steps


def always():
    return True


@pytest.fixture
def many(jobs):
    queue = jobs.queue("mail")
    queue.put_many({"klass": "k", "jid": f"job-{n}", "tags": ["vip"] if n % 3 else []} for n in range(MANY))
    for lease in queue.lease("w-1", 5):
        lease.fail("ValueError", "=1+1; token=s3cret")
    jobs.queue("other").put("k", jid="elsewhere")
    return jobs


def rows_of(answer):
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("text/csv"):
        return list(csv.DictReader(answer.text.splitlines()))
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize(("form", "kind"), [("csv", "text/csv; charset=utf-8"), ("jsonl", "application/jsonl")])
def test_export_has_all_jobs_that_match(many, visiting, form, kind):
    visitor = visiting(hide=["token"])
    answer = visitor.get(f"/api/v1/export?queue=mail&format={form}")
    assert answer.headers["content-type"] == kind
    assert answer.headers["content-disposition"] == f'attachment; filename="jobs.{form}"'
    rows = rows_of(answer)
    assert sorted(each["jid"] for each in rows) == sorted(f"job-{n}" for n in range(MANY))
    assert all(tuple(each) == COLUMNS for each in rows)
    assert "s3cret" not in answer.text and answer.text.count(HIDDEN) == 5
    tagged = rows_of(visitor.get(f"/api/v1/export?tag=vip&state=waiting&format={form}"))
    assert len(tagged) == sum(1 for n in range(5, MANY) if n % 3)


def test_export_without_jobs_has_headings(visitor):
    assert visitor.get("/api/v1/export?queue=none").text == ",".join(COLUMNS) + "\r\n"
    assert visitor.get("/api/v1/export?queue=none&format=jsonl").text == ""


def test_list_of_jobs_leads_to_its_export(many, visitor):
    links = [each["href"] for tag, each in tags(visitor.page("/jobs?tag=vip&state=waiting")) if tag == "a"]
    exports = [link for link in links if "/export?" in link]
    assert len(exports) == 2
    for link in exports:
        assert len(rows_of(visitor.get(link))) == sum(1 for n in range(5, MANY) if n % 3)


def test_wrong_parameters_are_refused(visitor):
    assert visitor.refused("/export?format=xml", 400) == "format must be one of csv, jsonl"
    assert visitor.refused("/export?state=lost", 400).startswith("state must be one of waiting,")
    assert "since must be a time" in visitor.refused("/export?since=soon", 400)


def test_those_who_may_not_look_get_no_export(many, visiting):
    site = visiting(auth=Tokens(LINES))
    assert site.get("/api/v1/export", headers=bearer("viewer")).status_code == 200
    assert site.get("/api/v1/export", headers=bearer("producer")).status_code == 403
    assert site.get("/api/v1/export").status_code == 401


def test_exports_at_once_have_a_bound(many, server, namespace):
    async def play():
        async with AsyncClient(server.url, namespace) as client:
            exports = JobExports(client, Hiding())
            chunks = [exports.chunks(Choice(), "csv", always) for _ in range(MOST_AT_ONCE)]
            for each in chunks:
                await anext(each)
            assert exports.is_full
            await chunks.pop().aclose()
            assert not exports.is_full
            for each in chunks:
                await each.aclose()

    asyncio.run(play())


def test_export_ends_with_the_session(many, server, namespace):
    async def play():
        async with AsyncClient(server.url, namespace) as client:
            exports = JobExports(client, Hiding())
            sessions = iter([True, True, False])
            chunks = exports.chunks(Choice("mail"), "jsonl", lambda: next(sessions))
            assert await anext(chunks) and await anext(chunks)
            with pytest.raises(Forbidden):
                await anext(chunks)
            assert next(sessions, None) is None

    asyncio.run(play())


def test_viewer_who_takes_no_more_makes_room(many, server, namespace, monkeypatch):
    monkeypatch.setattr("supervisor.web.job_export._SEND_S", 0.01)
    monkeypatch.setattr("supervisor.web.job_export.MOST_AT_ONCE", 1)

    async def paused(_message):
        await asyncio.Event().wait()

    async def play():
        async with AsyncClient(server.url, namespace) as client:
            exports = JobExports(client, Hiding())
            chunks = exports.chunks(Choice("mail"), "jsonl", always)
            await anext(chunks)
            assert exports.is_full
            with pytest.raises(TimeoutError):
                await ExportResponse(chunks).stream_response(paused)
            assert not exports.is_full

    asyncio.run(play())


def test_question_for_headers_begins_no_export(many, visitor, monkeypatch):
    monkeypatch.setattr(JobExports, "chunks", None)
    answer = visitor.http.head("/api/v1/export?format=jsonl")
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/jsonl"
    assert visitor.http.head("/api/v1/export?state=lost").status_code == 400


def test_full_server_refuses_further_exports(many, visitor, monkeypatch):
    monkeypatch.setattr("supervisor.web.job_export.MOST_AT_ONCE", 0)
    assert visitor.refused("/export", 429) == "too many exports are under way already"


def test_jobs_that_are_put_meanwhile_do_not_prolong_an_export(many, server, namespace):
    async def play():
        found = []
        async with AsyncClient(server.url, namespace) as client:
            async for chunk in JobExports(client, Hiding()).chunks(Choice("mail"), "jsonl", always):
                found += [json.loads(line)["jid"] for line in chunk.splitlines()]
                await asyncio.sleep(0.01)  # later by the clock of the export's beginning
                await client.queue("mail").put_many({"klass": "k", "jid": f"new-{len(found)}-{n}"} for n in range(200))
        return found

    assert sorted(asyncio.run(play())) == sorted(f"job-{n}" for n in range(MANY))
