"""The API answers what the pages show, as JSON and CSV, and describes itself."""

import csv
import io
import json
import random
import re
from urllib.parse import quote

import pytest

from supervisor.engine.commands.job_queries import STATES as ALL_STATES
from supervisor.web.acts.table import ACTS
from supervisor.web.export import as_csv
from supervisor.web.pages.jobs import STATES
from supervisor.web.pages.table import PAGES
from tests.lengths import LONG
from tests.web.conftest import HOSTILE, bearer

NAMES = {"queue": "mail", "jid": "first", "key": "smtp", "worker": "w-1", "batch": "import"}


def test_every_operation_of_the_document_answers(filled, visitor):
    document = visitor.json("/openapi.json")
    assert document["openapi"].startswith("3.1") and document["servers"] == [{"url": "/api/v1"}]
    assert len(document["paths"]) == len(PAGES)
    assert not any("post" in operations for operations in document["paths"].values())
    for path, operations in document["paths"].items():
        assert isinstance(visitor.json(path.format(**NAMES)), dict)
        in_path = {each["name"] for each in operations["get"]["parameters"] if each["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))


def test_the_document_names_each_route_its_token_and_its_refusals(site):
    document = site.http.get("/api/v1/openapi.json", headers=bearer("operator")).json()
    assert document["security"] == [{"token": []}]
    assert document["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    routes = {(page.api, "get") for page in PAGES} | {(act.api, act.method.lower()) for act in ACTS}
    assert {(path, method) for path, each in document["paths"].items() for method in each} == routes
    for act in ACTS:
        responses = document["paths"][act.api][act.method.lower()]["responses"]
        of_data = {"422"} if act.name == "retry" else set()
        assert {"200", "400", "401", "403", "404", "413", "415", "429", "503"} | of_data == responses.keys()
    put = document["paths"]["/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert put["priority"] == {"type": ["integer"]} and put["delay"] == {"type": ["number", "string"]}
    assert put["limit"] == {"type": ["string", "null", "array"], "items": {"type": "string"}}


def test_states_of_the_page_are_those_of_the_engine():
    assert set(STATES) == set(ALL_STATES)


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


def test_lists_go_on_where_they_ended(jobs, visitor):
    jobs.queue("q").put_many({"klass": "k", "jid": f"{n:03}"} for n in range(130))
    seen, offset = [], 0
    while offset is not None:
        answer = visitor.json(f"/jobs?queue=q&count=40&offset={offset}")
        seen += [job["jid"] for job in answer["jobs"]]
        offset = answer["next"]
    assert seen == [f"{n:03}" for n in range(130)]


def test_a_choice_by_klass_looks_through_the_list(jobs, visitor):
    jobs.queue("q").put_many({"klass": "rare" if n % 700 == 5 else "k", "jid": f"{n:04}"} for n in range(2500))
    seen, offset = [], 0
    while offset is not None:
        answer = visitor.json(f"/jobs?queue=q&klass=rare&count=2&offset={offset}")
        seen += [job["jid"] for job in answer["jobs"]]
        offset = answer["next"]
    assert seen == ["0005", "0705", "1405", "2105"]


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
        ("/jobs?state=running", 400, "needs a queue"),
        ("/jobs?tag=a&group=b", 400, "exclude one another"),
        ("/jobs?queue=q&offset=-1", 400, "offset must be a whole number"),
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
