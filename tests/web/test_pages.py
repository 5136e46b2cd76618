"""Every page shows what is there, says what is not, and leads on."""

import itertools
import re

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from supervisor.engine.client.async_client import AsyncClient
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import dividing, leasing
from supervisor.engine.commands.leasing import Renewal
from supervisor.engine.model.keys import Namespace
from supervisor.web import Loopback, app, poller
from supervisor.web.pages.table import BAR, PAGES
from tests.cli.top.parts import child, status
from tests.engine.played import PlayedWorker
from tests.lengths import SOON_S
from tests.web.conftest import HOSTILE, tags, words

#: Each page with what it asks for.
ASKED = {
    "queue": "?queue=mail",
    "lanes": "?queue=mail",
    "jobs": "?queue=mail",
    "job": "?jid=first",
    "why": "?jid=first",
    "limit": "?key=smtp",
    "batch": "?batch=import",
    "supervisor": "?worker=w-1",
}
PATHS = [f"/{name}{ASKED.get(name, '')}" for name in dict.fromkeys([*(page.name for page in PAGES), *BAR])]


@pytest.mark.parametrize("path", PATHS)
def test_every_page_is_there(filled, visitor, path):
    text = visitor.page(path)
    assert text.count("<h1") == 1 and "leasehold</title>" in text


@pytest.mark.parametrize(
    "path",
    ["/overview", "/queues", "/failed", "/batches", "/recurrences", "/limits", "/tags", "/supervisors", "/doors"],
)
def test_pages_of_an_empty_namespace_say_so(visitor, path):
    assert re.search(r'class="(empty|well)"', visitor.page(path))


def test_the_overview_says_first_what_is_wrong(filled, visitor):
    filled.queue("quiet").put("k", {})
    text = words(visitor.page("/overview"))
    assert "group ValueError 1 job failed" in text
    assert re.search(r"queue quiet paused by kim@web-1, .* UTC, with 1 job waiting", text)
    assert text.index("What is wrong now") < text.index("mail")


def test_an_overview_of_a_well_namespace_says_that_nothing_is_wrong(visitor):
    assert "Nothing. All queues are served" in words(visitor.page("/overview"))


def test_a_queue_shows_its_counts_and_lanes(filled, visitor):
    text = words(visitor.page("/queue?queue=mail"))
    assert "Waiting 3" in text and "Scheduled 1" in text and "Depends 1" in text and "Recurring 1" in text
    assert "acme" in words(visitor.page("/lanes?queue=mail"))
    assert "Paused: kim@web-1" in words(visitor.page("/queue?queue=quiet"))


def test_lanes_are_shown_fullest_first_then_by_name(jobs, visitor):
    lanes = jobs.queue("laned")
    lanes.put_many({"klass": "k", "lane": f"lane-{n % 600:03}"} for n in range(600))
    lanes.put("k", lane="lane-599")
    shown = visitor.json("/lanes/laned")
    assert (len(shown["lanes"]), shown["lanes_in_all"]) == (200, 601)
    assert [lane["lane"] for lane in shown["lanes"][:3]] == ["lane-599", "lane-000", "lane-001"]
    assert "The 200 fullest of 601 lanes." in words(visitor.page("/lanes?queue=laned"))
    assert [lane["lane"] for lane in visitor.json("/lanes/laned?containing=-42")["lanes"]] == [
        f"lane-42{n}" for n in range(10)
    ]


def test_options_are_shown_with_those_of_queues(filled, visitor):
    filled.config.set("heartbeat-mail", 90)
    text = words(visitor.page("/config"))
    assert "heartbeat 30 how long a lease lasts" in text and "heartbeat-mail 90" in text and "paused-quiet yes" in text
    of_queue = next(each for each in visitor.json("/config")["options"] if each["option"] == "heartbeat-mail")
    assert (of_queue["value"], of_queue["queue"], of_queue["is_default"]) == (90, "mail", False)


def test_doors_are_shown_with_what_waits_behind_them(server, namespace, filled, visitor):
    source = f"foreign-{namespace}"
    filled.doors.add("mail", format="celery", source=source, queue="mail", klasses={"A": "a"})
    filled.queue("mail").pause()
    server.redis.lpush(source, "{}")
    assert f"mail celery {source} mail mapped: 1 1" in words(visitor.page("/doors"))
    assert visitor.json("/doors")["doors"][0]["klasses"] == {"A": "a"}


def test_a_supervisor_shows_the_sandbox_of_its_handlers(server, namespace, visitor):
    held = {"landlock": "on", "seccomp": "unavailable: because this kernel lacks it"}
    worker = PlayedWorker(server.url, namespace, lambda _: status(sandbox_levels=["basic", "strict"], sandbox=held))
    with worker.listening():
        text = words(visitor.page(f"/supervisor?worker={worker.name}"))
        assert "Sandbox basic, strict landlock on seccomp unavailable: because" in text
        assert "basic, strict" in words(visitor.page("/supervisors"))
    worker.close()


@pytest.mark.parametrize(
    ("path", "rows"),
    [
        ("/queues?containing=mai", "queues"),
        ("/lanes?queue=mail&containing=acm", "lanes"),
        ("/tags?offset=1", "tags"),
        ("/batches?offset=1", "batches"),
        ("/audit?offset=1&subject=quiet", "acts"),
        ("/overview?over=month", "course"),
    ],
)
def test_foot_links_export_what_the_page_shows(filled, visitor, path, rows):
    links = [each["href"] for tag, each in tags(visitor.page(path)) if tag == "a" and "format=" in each["href"]]
    as_json, as_csv = (visitor.get(link) for link in links)
    name, _, query = path.partition("?")
    shown = visitor.json(f"/lanes/mail?{query}" if name == "/lanes" else path)[rows]
    assert as_json.json()[rows] == shown != visitor.json("/lanes/mail" if name == "/lanes" else name)[rows]
    if rows != "course":  # the table of the overview is another one
        assert len(as_csv.text.split()) >= len(shown) and bool(as_csv.text.strip()) == bool(shown)


@pytest.mark.parametrize("parameter", ["_loop_vars", "_Context__obj"])
@pytest.mark.parametrize("path", ["/queues", "/tags", "/audit", "/overview"])
def test_parameters_with_names_of_jinja_do_no_harm(visitor, path, parameter):
    assert visitor.get(f"{path}?{parameter}=1").status_code == 200


@pytest.mark.parametrize(("path", "shown"), [("/tags", 100), ("/audit", 100), ("/batches", 50)])
def test_lists_of_several_shards_lead_no_further(server, namespace, jobs, visitor, monkeypatch, path, shown):
    command = dividing.divide(2)
    server.redis.execute_command(*command.wire_with_script(Namespace(namespace).prefix))
    monkeypatch.setattr("supervisor.engine.commands.routes.MOST", 2 * shown)
    monkeypatch.setattr("supervisor.web.pages.page.MOST", 2 * shown)
    many = 2 * shown + 1
    jobs.queue("q").put_many({"klass": "k", "tags": [f"tag-{n}"]} for n in range(many) if path == "/tags")
    for n in range(many if path == "/batches" else 0):
        jobs.batch(f"batch-{n}", description="open").__enter__()
    for n in range(many if path == "/audit" else 0):
        jobs.acting_as(f"kim-{n}").limit("smtp", running=n)
    assert visitor.json(path)["next"] == shown and f"offset={shown}" in visitor.page(path)
    assert visitor.json(f"{path}?offset={shown}")["next"] is None
    assert 'rel="next"' not in visitor.page(f"{path}?offset={shown}")


def test_looks_at_a_busy_queue_and_its_job_ask_a_supervisor_once(server, namespace, jobs, visitor, monkeypatch):
    monkeypatch.setattr(poller, "_FRESH_S", 3600.0)
    monkeypatch.setattr(poller, "_SHOWN_S", 3600.0)
    monkeypatch.setattr(poller, "_SOON_S", SOON_S)
    busy = status(children=[child(n, "k", 1.0) for n in range(4)])
    worker = PlayedWorker(server.url, namespace, lambda _: busy)
    jobs.queue("q").put("k", jid="j")
    with worker.listening():
        visitor.page(f"/supervisor?worker={worker.name}")
        for _ in range(5):
            for path in ("/queue?queue=q", "/job?jid=j"):
                assert f"all 4 children of worker {worker.name} are busy" in words(visitor.page(path))
    worker.close()
    assert len(worker.asked) == 1


def test_a_supervisor_that_falls_silent_is_told_so(server, namespace, visitor, monkeypatch):
    monkeypatch.setattr(poller, "_FRESH_S", 0.0)
    monkeypatch.setattr(poller, "_SHOWN_S", 0.0)
    monkeypatch.setattr(poller, "_SOON_S", SOON_S)
    worker = PlayedWorker(server.url, namespace, lambda _: status())
    page = f"/supervisor?worker={worker.name}"
    with worker.listening():
        assert "processes are busy" in words(visitor.page(page))
    monkeypatch.setattr(poller, "_PATIENCE_S", 0.01)
    assert f"Why: worker {worker.name} has not answered in time" in words(visitor.page(page))
    worker.close()


def test_a_supervisor_that_may_still_answer_is_being_asked(server, namespace, visitor, monkeypatch):
    monkeypatch.setattr(poller, "_PATIENCE_S", 3600.0)
    worker = PlayedWorker(server.url, namespace).start()
    shown = visitor.json(f"/supervisors/{worker.name}")
    assert shown["why"].startswith(f"worker {worker.name} is being asked; it was last seen at")
    worker.close()


@pytest.mark.parametrize("path", ["/queue?queue=mail", "/overview"])
def test_percentiles_of_the_last_hour_day_and_month_are_shown(filled, visitor, path):
    queue = filled.queue("mail")
    before = visitor.json("/queues/mail")["recent"]["hour"]["run"]["count"]
    queue.put_many({"klass": "k", "priority": -1} for _ in range(4))
    for lease in queue.lease("w-9", 4):
        lease.complete()
    text, done = words(visitor.page(path)), before + 4
    for period in ("hour", "day", "30 days"):
        assert re.search(rf"{period} {done} \d+ \S+s \S+s \S+s \S+s", text), text
    recent = visitor.json("/queues/mail")["recent"]
    assert [recent[period]["run"]["count"] for period in ("hour", "day", "month")] == [done] * 3
    assert recent in visitor.json("/overview")["recent"]


def test_a_queue_without_figures_has_no_table_of_them(filled, visitor):
    assert "p95" in visitor.page("/queue?queue=quiet") and "p95" not in visitor.page("/queue?queue=mail")


def test_a_job_shows_its_life_data_and_relations(filled, visitor):
    text = words(visitor.page("/job?jid=first"))
    assert "waiting email.send in mail , lane acme" in text
    assert "Needed by child" in text and '"to": "ada@example.org"' in text and "put queue mail" in text
    assert "Waits for first" in words(visitor.page("/job?jid=child"))
    assert "ff00" in words(visitor.page("/job?jid=bytes"))
    assert '"sent": true' in words(visitor.page("/job?jid=done"))
    assert "it does not fit" in words(visitor.page("/job?jid=broken"))
    assert "running at w-1" in words(visitor.page("/job?jid=runs"))
    assert "recurring, every 1h" in words(visitor.page("/job?jid=daily"))


@pytest.mark.parametrize("jid", ["first", "child", "runs", "later", "done", "broken"])
def test_a_job_tells_why_in_one_sentence(filled, visitor, jid):
    why = visitor.json(f"/why/{jid}")
    assert why["sentence"] in words(visitor.page(f"/job?jid={jid}")) and why["reason"]
    assert why["sentence"] in words(visitor.page(f"/why?jid={jid}"))
    assert f"/why?jid={jid}" in visitor.page(f"/job?jid={jid}")


def test_a_gone_job_tells_why_in_one_sentence(filled, visitor):
    why = visitor.json("/why/nobody")["sentence"]
    answer = visitor.get("/job?jid=nobody")
    assert answer.status_code == 404 and why in words(answer.text)
    assert visitor.refused("/jobs/nobody", 404) == why


def test_a_job_that_was_cancelled_says_by_whom(filled, visitor):
    filled.cancel("later", by="kim@web-1")
    answer = visitor.get("/job?jid=later")
    assert answer.status_code == 404 and "job later was cancelled by kim@web-1" in words(answer.text)


@pytest.mark.parametrize(
    ("page", "is_live"),
    [("job?jid=first", True), ("job?jid=runs", True), ("job?jid=daily", True), ("job?jid=done", False),
     ("job?jid=broken", False), ("recurrences", True), ("limit?key=smtp", True)],
)  # fmt: skip
def test_what_goes_on_is_looked_at_again(filled, visitor, page, is_live):
    assert any("data-live" in attributes for _, attributes in tags(visitor.page(f"/{page}"))) == is_live


def test_a_running_job_shows_how_far_it_is(filled, visitor):
    filled.queue("busy").put("k", jid="busy")
    [lease] = filled.queue("busy").lease("w-2")
    for fraction, percent in ((0.25, "25 %"), (0.75, "75 %")):
        calls_of(filled).call(
            leasing.renew, "w-2", [Renewal(lease.jid, lease.token, progress=(fraction, "half of it"))]
        )
        assert f"{percent} half of it" in words(visitor.page("/job?jid=busy"))


def test_parents_and_dependents_are_drawn_two_steps_around(jobs, visitor):
    queue = jobs.queue("q")
    queue.put("k", jid="root")
    queue.put("k", jid="parent", depends=["root"])
    queue.put("middle", jid="middle", depends=["parent"])
    queue.put_many({"klass": "k", "jid": f"child-{n:02}", "depends": ["middle"]} for n in range(14))
    queue.put_many({"klass": "k", "jid": f"grandchild-{n}", "depends": ["child-00"]} for n in range(5))
    queue.put("k", jid="too-far", depends=["grandchild-0"])
    text = words(visitor.page("/job?jid=middle"))
    assert "Waits for parent k depends root k waiting depends middle Needed by child-00" in text
    assert "grandchild-3" in text and "grandchild-4" not in text and "and 1 more" in text
    assert "child-11" in text and "child-12" not in text and "and 2 more" in text and "too-far" not in text
    kin = visitor.json("/jobs/middle")["kin"]
    assert [len(kin[way]["jobs"]) for way in ("dependencies", "dependents")] == [1, 12]
    jobs.queue("q").put("k", jid="alone")
    assert "Parents and dependents" not in visitor.page("/job?jid=alone")


def test_a_parent_that_is_gone_is_drawn_as_gone(server, namespace, filled, visitor):
    server.redis.delete(f"{{{namespace}}}:job:first")
    assert "Waits for first gone" in words(visitor.page("/job?jid=child"))


def test_recurring_jobs_show_their_next_three_times(filled, visitor):
    filled.queue("mail").recur("k", {}, cron="0 12 * * *", jid="at-noon", tz="Europe/Berlin")
    rows = {each["jid"]: each for each in visitor.json("/recurrences")["recurrences"]}
    first = rows["daily"]["next_unix"]
    assert rows["daily"]["times"] == [first, first + 3600, first + 7200]
    noons = rows["at-noon"]["times"]
    assert len(noons) == 3 and all(later - noon >= 82_800 for noon, later in itertools.pairwise(noons))
    assert visitor.json("/jobs/at-noon")["times"] == noons
    for page in ("/recurrences", "/job?jid=daily"):
        assert re.search(r"in (1h59m|2h) ", words(visitor.page(page)))


def test_a_batch_leads_to_its_jobs(filled, visitor):
    text = visitor.page("/batch?batch=import")
    links = {attributes["href"] for tag, attributes in tags(text) if tag == "a"}
    assert {"/jobs?batch=import", "/jobs?batch=import&state=failed"} <= links
    assert all(jid in words(visitor.page("/jobs?batch=import")) for jid in ("member", "lost-member"))
    assert "lost-member" in words(visitor.page("/jobs?batch=import&state=failed"))


def test_a_list_keeps_its_conditions_in_its_form_and_links(jobs, visitor):
    jobs.queue("q").put_many({"klass": "k", "lane": "x"} for _ in range(60))
    asked = "queue=q&lane=x&klass=k&since=2001-01-01T00:00&state=waiting"
    text = visitor.page(f"/jobs?{asked}")
    values = {
        each["name"]: each["value"] for tag, each in tags(text) if tag == "input" and each.get("type") != "search"
    }
    assert values["lane"] == "x" and values["klass"] == "k" and values["since"] == "2001-01-01T00:00:00"
    [following] = [each["href"] for tag, each in tags(text) if each.get("rel") == "next"]
    assert "Looked at 60 jobs of 60" in words(visitor.page(following)) and "lane=x" in following


def test_a_batch_shows_its_jobs_by_state_pause_and_callbacks(filled, visitor):
    assert "import running 1 2 1 0 1 0" in words(visitor.page("/batches"))
    filled.batch("import").pause(by="kim@web-1")
    text = words(visitor.page("/batch?batch=import"))
    assert "running of July" in text and "Paused: kim@web-1" in text and "1 of 2 have ended" in text
    assert "Pending 1 Complete 0 Failed 1 Cancelled 0" in text
    assert "Callbacks to come on_success" in text
    assert "lost-member" in text and "it came too late" in text
    assert "/batch?batch=import" in visitor.page("/job?jid=member")
    assert visitor.get("/batch?batch=nobody").status_code == 404


def test_batches_are_listed_by_pages(jobs, visitor):
    for n in range(60):
        with jobs.batch(f"b{n:02}"):
            pass
    first, rest = visitor.json("/batches"), visitor.json("/batches?offset=50")
    assert (len(first["batches"]), first["next"], len(rest["batches"]), rest["next"]) == (50, 50, 10, None)
    assert {batch["id"] for batch in first["batches"] + rest["batches"]} == {f"b{n:02}" for n in range(60)}


def test_jobs_are_listed_by_state_tag_and_group(filled, visitor):
    assert "later" in words(visitor.page("/jobs?queue=mail&state=scheduled"))
    assert "first" in words(visitor.page("/jobs?tag=vip"))
    assert "it does not fit" in words(visitor.page("/jobs?group=ValueError"))
    assert "done" in words(visitor.page("/jobs?state=complete"))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("first", "/job?jid=first"),
        ("daily", "/job?jid=daily"),
        ("mail", "/queue?queue=mail"),
        ("ValueError", "/jobs?group=ValueError"),
        ("vip", "/jobs?tag=vip"),
        ("import", "/batch?batch=import"),
        ("w-1", "/supervisor?worker=w-1"),
        ("", "/overview"),
    ],
)
def test_one_box_finds_everything_by_its_name(filled, visitor, wanted, found):
    answer = visitor.get("/search", params={"q": wanted}, follow_redirects=False)
    assert answer.headers["location"] == found


def test_missing_things_are_said_to_be_missing(filled, visitor):
    assert "nothing is called nobody" in words(visitor.get("/search?q=nobody").text)
    for path in ("/job?jid=nobody", "/queue?queue=nobody", "/supervisor?worker=nobody", "/nothing"):
        answer = visitor.get(path)
        assert answer.status_code == 404 and "<h1" in answer.text, path


def test_every_link_of_every_page_leads_somewhere(filled, visitor):
    filled.queue(HOSTILE).put("k", {}, jid=HOSTILE, tags=[HOSTILE])
    seen: set[str] = set()
    todo = ["/overview"]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = visitor.get(path)
        assert answer.status_code == 200, path
        if answer.headers["content-type"].startswith("text/html"):
            found = [each.get("href") or each.get("src") or each.get("action") for _, each in tags(answer.text)]
            todo += [link for link in found if link and not link.startswith("#")]
    assert len(seen) > 40


def test_a_mounted_page_links_below_its_path(server, namespace, filled):
    client = AsyncClient(server.url, namespace)
    outer = Starlette(routes=[Mount("/jobs", app(client, auth=Loopback()))])
    with TestClient(outer, base_url="http://localhost", client=("127.0.0.1", 4)) as http:
        text = http.get("/jobs/overview").text
        links = [each.get("href") or each.get("src") or each.get("action") for _, each in tags(text)]
        assert all(link.startswith(("/jobs/", "#")) for link in links if link)
        assert http.get("/jobs/static/style.css").status_code == 200
        http.portal.call(client.close)


def test_a_page_needs_a_way_to_know_visitors(server, namespace):
    with pytest.raises(TypeError, match="auth"):
        app(AsyncClient(server.url, namespace))
