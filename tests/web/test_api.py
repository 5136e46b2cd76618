"""The API answers what the pages show, as JSON and CSV, and describes itself."""

import csv
import io
import json
import random
import re
from urllib.parse import quote

import pytest
from starlette.routing import Route

from supervisor.engine.client.async_client import AsyncClient
from supervisor.web import Tokens
from supervisor.web.acts.table import ACTS
from supervisor.web.composition import API, _Website
from supervisor.web.export import as_csv
from supervisor.web.hiding import Hiding
from supervisor.web.pages import jobs as jobs_page
from supervisor.web.pages.table import PAGES
from tests.lengths import LONG
from tests.web.conftest import HOSTILE, LINES, bearer, words

#: Operations that answer no JSON: they have tests of their own.
STREAMS = ("/events", "/export")
NAMES = {"queue": "mail", "jid": "first", "key": "smtp", "worker": "w-1", "batch": "import"}


def test_every_operation_of_the_document_answers(filled, visitor):
    document = visitor.json("/openapi.json")
    assert document["openapi"].startswith("3.1") and document["servers"] == [{"url": "/api/v1"}]
    assert document["paths"].keys() == {*(page.api for page in PAGES), *STREAMS}
    assert not any("post" in operations for operations in document["paths"].values())
    for path, operations in document["paths"].items():
        if path in STREAMS:
            continue
        assert isinstance(visitor.json(path.format(**NAMES)), dict)
        in_path = {each["name"] for each in operations["get"]["parameters"] if each["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))


def test_the_document_names_each_route_its_token_and_its_refusals(site):
    document = site.http.get("/api/v1/openapi.json", headers=bearer("operator")).json()
    assert document["security"] == [{"token": []}]
    assert document["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    routes = {(page.api, "get") for page in PAGES} | {(act.api, act.method.lower()) for act in ACTS}
    routes |= {(path, "get") for path in STREAMS}
    assert {(path, method) for path, each in document["paths"].items() for method in each} == routes
    for act in ACTS:
        responses = document["paths"][act.api][act.method.lower()]["responses"]
        of_data = {"422"} if act.name == "retry" else set()
        assert {"200", "400", "401", "403", "404", "413", "415", "429", "503"} | of_data == responses.keys()
    put = document["paths"]["/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert put["priority"] == {"type": ["integer"]} and put["delay"] == {"type": ["number", "string"]}
    assert put["limit"] == {"type": ["string", "null", "array"], "items": {"type": "string"}}


def test_a_job_has_all_its_fields(filled, visitor):
    job = visitor.json("/jobs/first")["job"]
    assert (job["klass"], job["data"]["to"], job["dependents"]) == ("email.send", "ada@example.org", ["child"])


def test_a_jid_of_any_characters_can_be_asked_for(jobs, visitor):
    for jid in ("a/b", "...", "?x=1", "#", "a b", HOSTILE):
        jobs.queue("q").put("k", {}, jid=jid)
        assert visitor.json(f"/jobs/{quote(jid, safe='')}")["job"]["jid"] == jid


@pytest.mark.parametrize("depth", [90, 150, 250, 252, 253, 254, 500, 1000])
def test_values_of_any_depth_are_shown(server, namespace, jobs, visitor, depth):
    """Only other programs put values deeper than 254."""
    deep = json.loads("[" * min(depth, 254) + "]" * min(depth, 254))
    jobs.queue("q").put("k", deep, jid="deep", priority=1)
    jobs.queue("q").put("k", {}, jid="done")
    jobs.queue("q").lease("w")[0].complete(1)
    server.redis.set(f"{{{namespace}}}:result:done", "[" * depth + "]" * depth)
    for jid in ("deep", "done"):
        assert visitor.json(f"/jobs/{jid}")["job"]["jid"] == jid
        assert jid in visitor.page(f"/job?jid={jid}")
        assert visitor.get(f"/api/v1/jobs?{'queue=q' if jid == 'deep' else 'state=complete'}").status_code == 200


def listed(visitor, asked, between=lambda: None):
    """Return the jids of a list to its end. `between` runs before each further answer."""
    seen, answer = [], visitor.json(f"/jobs?{asked}")
    while True:
        seen += [job["jid"] for job in answer["jobs"]]
        if answer["next"] is None:
            return seen
        between()
        answer = visitor.json(f"/jobs?{asked}&cursor={answer['next']}")


def test_lists_go_on_where_they_ended_while_jobs_leave(jobs, visitor):
    queue = jobs.queue("q")
    queue.put_many({"klass": "k", "jid": f"{n:03}"} for n in range(130))
    assert listed(visitor, "queue=q&state=waiting&count=40", lambda: queue.lease("w", 35)) == [
        f"{n:03}" for n in range(130)
    ]


def test_a_list_without_an_index_says_how_far_it_has_looked(jobs, visitor, monkeypatch):
    monkeypatch.setattr(jobs_page, "_LONGEST_S", 0)
    monkeypatch.setattr(jobs_page, "_FURTHER_S", 0)
    jobs.queue("q").put_many({"klass": "rare" if n % 700 == 5 else "k", "jid": f"{n:04}"} for n in range(2500))
    first = visitor.json("/jobs?queue=q&klass=rare&text=14")
    assert (first["jobs"], first["looked_at"] < 1000, first["of"]) == ([], True, 2500)
    assert "No such job so far" in words(visitor.page("/jobs?queue=q&klass=rare&text=14"))
    rest = visitor.page(f"/jobs?queue=q&klass=rare&text=14&cursor={first['next']}")
    assert "1405" in rest and re.search(r"Looked at 1,9\d\d jobs of 2,500", words(rest))
    assert listed(visitor, "klass=rare&count=2") == ["0005", "0705", "1405", "2105"]


@pytest.mark.sampled(2)
def test_conditions_hold_in_any_combination(jobs, visitor):
    """Compared with all jobs, of which each fits some."""
    chance = random.Random(24)
    with jobs.batch("b") as batch:
        for n in range(60):
            queue, klass = chance.choice("pq"), chance.choice("kl")
            more = {"tags": ["red"]} if chance.random() < 0.5 else {}
            more |= {"lane": "x"} if chance.random() < 0.5 else {"delay": 600} if chance.random() < 0.3 else {}
            put = (
                batch.put
                if chance.random() < 0.5
                else lambda queue, *args, **more: jobs.queue(queue).put(*args, **more)
            )
            put(queue, klass, jid=f"{klass}{n:02}", **more)
    for lease in jobs.queue("p").lease("w", 9, ttl=600) + jobs.queue("q").lease("w", 9, ttl=600):
        chance.choice([lambda lease: lease.fail("g", "m"), lambda lease: lease.complete(), lambda _: None])(lease)
    every = visitor.json("/jobs?count=200")["jobs"]
    assert len(every) == 60
    of_batch = {job.jid for job in jobs.jobs(*(job["jid"] for job in every)) if job.batch}
    middle = sorted(job["put_unix"] for job in every)[30]
    conditions = {
        "state=waiting": lambda job: job["state"] == "waiting",
        "state=failed": lambda job: job["state"] == "failed",
        "state=complete": lambda job: job["state"] == "complete",
        "queue=p": lambda job: job["queue"] == "p",
        "klass=k": lambda job: job["klass"] == "k",
        "tag=red": lambda job: "red" in job["tags"],
        "group=g": lambda job: job["state"] == "failed",
        "lane=x": lambda job: job["lane"] == "x",
        "batch=b": lambda job: job["jid"] in of_batch,
        f"since={middle}": lambda job: job["put_unix"] >= middle,
        f"until={middle}": lambda job: job["put_unix"] <= middle,
        "text=1": lambda job: "1" in job["jid"],
    }
    for _ in range(300):
        asked = chance.sample(sorted(conditions), chance.randrange(1, 5))
        if sum(each.startswith("state") for each in asked) < 2:
            wanted = {job["jid"] for job in every if all(conditions[each](job) for each in asked)}
            found = listed(visitor, "&".join(asked) + "&count=7")
            assert (set(found), len(found)) == (wanted, len(wanted)), asked


@pytest.mark.parametrize("since", ["2031-07-01T12:00", "2031-07-01T14:00:00%2B02:00", "1940673600", "1940673600.0"])
def test_a_time_is_in_utc_unless_it_says_otherwise(visitor, since):
    assert visitor.json(f"/jobs?since={since}")["since"] == 1940673600


def test_rows_can_be_had_as_a_table(filled, visitor):
    answer = visitor.get("/api/v1/jobs?group=ValueError&format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="jobs.csv"'
    [row] = csv.DictReader(io.StringIO(answer.text))
    assert row["jid"] == "broken" and row["state"] == "failed"


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_a_cell_is_never_a_formula(begin):
    text = as_csv([{"klass": f"{begin}1+1", "n": -1, "tags": ["a"], "none": None, "yes": True}])
    [row] = csv.DictReader(io.StringIO(text, newline=""))
    assert row == {"klass": f"'{begin}1+1", "n": "-1", "tags": '["a"]', "none": "", "yes": "true"}


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/jobs/nobody", 404, "there is no job nobody"),
        ("/queues/nobody", 404, "there is no queue nobody"),
        ("/nothing", 404, "Not Found"),
        ("/jobs?state=sleeping&queue=q", 400, "state must be one of"),
        ("/jobs?cursor=0-71", 400, "cursor must be the `next` of a list, not '0-71'"),
        ("/jobs?cursor=x-", 400, "cursor must be the `next` of a list"),
        ("/jobs?since=yesterday", 400, "since must be a time like 2031-07-01T12:00, or unix seconds, not 'yesterday'"),
        ("/jobs?until=1e300", 400, "until must be a time"),
        ("/jobs?until=99999999999999999999", 400, "until must be a time"),
        ("/jobs?queue=q&count=201", 400, "from 0 to 200"),
        ("/jobs/first?format=xml", 400, "json or csv"),
        (f"/queues/{'x' * 300}", 400, "queue"),
    ],
)
def test_an_error_is_one_sentence(filled, visitor, path, status, sentence):
    assert sentence in visitor.refused(path, status)


def test_nothing_but_looking_is_taken(filled, visitor):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert visitor.http.request(method, "/api/v1/jobs/first").status_code == 405
    assert filled.job("first") is not None


@pytest.mark.sampled(3)
def test_no_request_breaks_the_server_or_writes(server, namespace, filled, visitor):
    chance = random.Random(24)
    parts = [
        *("first", "mail", "smtp", "w-1", "", "..", "/", "%00", "%ff", "%ed%a0%80", "a" * 600, "0", "-1", "1e9", "²"),
        *(quote(HOSTILE), "%F0%9F%90%8E", "9" * 30, "complete", "failed", "csv", "true", "null", "[]", "*", "mail,x"),
    ]
    paths = [page.api for page in PAGES] + [f"/../../{page.name}" for page in PAGES] + ["/", "/../../search"]
    names = [*{each.name for page in PAGES for each in page.parameters}, "format", "q", HOSTILE]
    before = server.dump(namespace)
    for _ in range(20_000 if LONG else 1_000):
        path = re.sub(r"{\w+}", lambda _: chance.choice(parts), chance.choice(paths))
        query = "&".join(f"{quote(chance.choice(names))}={chance.choice(parts)}" for _ in range(chance.randrange(4)))
        asked = f"/api/v1{path}?{query}"
        answer = visitor.http.get(asked.replace("/api/v1/../..", ""), follow_redirects=False)
        assert answer.status_code in {200, 307, 400, 404}, (asked, answer.text)
    changed = {key for key, value in server.dump(namespace).items() if before.get(key) != value}
    assert changed == set()


def test_the_document_names_all_that_the_server_answers(server, namespace, site):
    document = site.http.get("/api/v1/openapi.json", headers=bearer("operator")).json()
    served = _Website(AsyncClient(server.url, namespace), Hiding(), Tokens(LINES), ACTS).application().routes
    answered = {
        (route.path.removeprefix(API).replace(":path}", "}"), method)
        for route in served
        if isinstance(route, Route) and route.path.startswith(f"{API}/")
        for method in route.methods - {"HEAD"}
    }
    named = {(path, method.upper()) for path, each in document["paths"].items() for method in each}
    assert answered == named | {("/openapi.json", "GET")}
