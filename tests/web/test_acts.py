"""Acts of visitors, by their roles: through forms of the pages and through the API."""

import base64
import json
import random
import re
import threading
from urllib.parse import quote

import pytest

from supervisor.engine.client.async_client import AsyncClient
from supervisor.web import Loopback, ProxyHeader, Tokens, app
from supervisor.web.acts.table import ACTS
from supervisor.web.auth import ROLES
from tests.cli.top.parts import status as status_of
from tests.engine.played import PlayedWorker
from tests.lengths import LONG
from tests.web.conftest import HOSTILE, LINES, TOKENS, bearer, ended, key_of, tags, words

#: Fields with which each act is asked for.
FIELDS = {
    "jid": "first", "queue": "mail", "klass": "k", "data": {"n": 1}, "priority": 3, "name": "go", "value": 1,
    "timeout": 0, "jids": ["first"], "confirm": "mail", "stop": True, "lane": "acme", "weight": 2, "key": "smtp",
    "running": 2, "rate": "5/s", "batch": "import", "worker": "w-1", "processes": "2", "queues": ["mail"], "count": 1,
    "ttl": 30, "order": "strict", "block": 0, "leases": [], "outcomes": [], "do": "retry", "tag": "vip",
    "group": "ValueError", "state": "failed", "into": "slow", "act": "x", "data_b64": None,
    "force": True, "tags": ["new"], "message": "why", "all": False, "into_group": "by-hand", "option": "heartbeat-mail",
    "format": "sidekiq", "source": "queue:mail", "klasses": None, "since": "2001-01-01", "until": None, "text": "i",
}  # fmt: skip


def ask(site, act, role, fields=None):
    """Ask for an act as a program of this role."""
    given = {each.name: FIELDS[each.name] for each in act.fields} if fields is None else fields
    in_path = set(re.findall(r"{(\w+)}", act.api))
    path = act.api.format(**{name: given.get(name, FIELDS[name]) for name in in_path})
    body = {name: value for name, value in given.items() if name not in in_path}
    sent = {"json": body} if act.method == "POST" else {}
    return site.http.request(act.method, f"/api/v1{path}", headers=bearer(role), **sent)


def act_of(name):
    return next(act for act in ACTS if act.name == name)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_each_role_may_do_its_acts_and_no_others(server, namespace, site, act, role):
    before = server.dump(namespace)
    if role in act.roles and act.name.endswith("_supervisor"):
        return  # with a real one in test_requests_reach_a_supervisor
    answer = ask(site, act, role)
    if role in act.roles:
        assert answer.status_code in {200, 400, 404} and "is for the role" not in answer.text
    else:
        assert answer.status_code == 403 and server.dump(namespace) == before


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_nobody_acts_without_a_login_or_where_acts_are_not_allowed(server, namespace, site, visiting, act):
    before = server.dump(namespace)
    form = {"csrf": "x", "jid": "first"}
    path = re.sub(r"{(\w+)}", lambda found: str(FIELDS[found[1]]), act.api)
    assert site.http.request(act.method, f"/api/v1{path}", json={}).status_code == 401
    assert site.http.post(f"/act/{act.name}", data=form, follow_redirects=False).headers["location"] == "/login"
    reading = visiting(auth=Tokens(LINES))
    for role in ROLES:
        assert ask(reading, act, role).status_code in {403, 404, 405}
        assert reading.http.post(f"/act/{act.name}", data=form, headers=bearer(role)).status_code in {403, 404}
    assert server.dump(namespace) == before


def test_acts_need_a_login(server, namespace):
    with pytest.raises(ValueError, match="login"):
        app(AsyncClient(server.url, namespace), auth=Loopback(), allow_actions=True)


def test_a_proxy_names_those_who_may_act(visiting, filled):
    auth = ProxyHeader("X-User", "127.0.0.1", operators=["kim"])
    site = visiting(auth=auth, allow_actions=True)
    for name, status in (("ada", 403), ("kim", 200)):
        answer = site.http.post("/api/v1/queues/mail/pause", json={}, headers={"x-user": name})
        assert answer.status_code == status
    assert filled.queue("mail").counts().paused_by == "login:kim"


def test_a_door_is_recorded_with_its_list_and_leads_to_no_key_of_the_namespace(namespace, filled, operator):
    door = {"name": "d", "format": "celery", "queue": "mail"}
    refused = ask(operator, act_of("add_door"), "operator", {**door, "source": f"{{{namespace}}}:audit"})
    assert refused.status_code == 400 and "lies in the namespace" in refused.text
    ask(operator, act_of("add_door"), "operator", {**door, "source": "celery"})
    [act] = filled.audit("d")
    assert (act.act, act.actor, act.value) == ("add", "login:operator-1", "celery")


def test_every_act_is_recorded_with_the_login(filled, operator):
    key = key_of(operator.page("/queue?queue=mail"))
    operator.http.post("/act/pause_queue", data={"csrf": key, "queue": "mail"})
    ask(operator, act_of("cancel"), "operator", {"jid": "second"})
    assert [(act.act, act.actor) for act in filled.audit()][:2] == [
        ("cancel", "login:operator-1"),
        ("pause", "login:operator-1"),
    ]


#: Puts are work, and so is all that other roles may do. The record has what an act on many jobs does, not its steering.
UNRECORDED = {"put", "wait", "start_bulk", "stop_bulk"}
RECORDED = {
    "bulk": {"do": "cancel", "queue": "mail"}, "marked": {"do": "cancel", "jids": ["second"]},
    "deregister": {"worker": "w-1", "confirm": "w-1"},
    "delete_lane": {"queue": "mail", "lane": "acme", "confirm": "acme"},
    "depend": {"jid": "child", "jids": ["second"]}, "undepend": {"jid": "child", "jids": ["first"]},
    "forget_queue": {"queue": "empty"}, "limit": {"key": "new", "running": 3}, "release": {"jid": "runs"},
    "recur": {"queue": "mail", "klass": "k", "every": 60}, "update_recurrence": {"jid": "daily", "klass": "k"},
    "unrecur": {"jid": "daily"}, "remove_door": {"name": "d"}, "retry": {"jid": "broken"},
    "set_option": {"option": "heartbeat-mail", "value": "60"}, "unset_option": {"option": "paused-quiet"},
    "unpause_queue": {"queue": "quiet"}, "untag": {"jid": "first", "tags": ["vip"]}, "untrack": {"jid": "second"},
}  # fmt: skip


@pytest.mark.parametrize(
    "act",
    [
        act for act in ACTS
        if "operator" in act.roles and act.name not in UNRECORDED
        and not act.name.endswith("_supervisor") and act.name != "serve"  # in test_requests_reach_a_supervisor
    ],
    ids=lambda act: act.name,
)  # fmt: skip
def test_the_record_has_a_line_of_each_act(filled, operator, act):
    filled.track("second")
    filled.doors.add("d", format="sidekiq", source="queue:d", queue="mail")
    filled.queue("empty").put("k", jid="e")
    filled.cancel("e")
    if act.name.startswith(("unpause", "resume")):
        filled.queue("mail").lane("acme").pause()
        filled.batch("import").pause()
    answer = ask(operator, act, "operator", RECORDED.get(act.name))
    assert answer.status_code == 200, answer.text
    if "act" in answer.json():
        ended(operator, answer.json()["act"])
    if act.name == "bulk":
        ask(operator, act_of("start_bulk"), "operator", {"act": answer.json()["act"]})
        ended(operator, answer.json()["act"])
    assert filled.audit()[0].actor == "login:operator-1"


@pytest.mark.parametrize(
    ("name", "fields", "shown"),
    [
        ("cancel", {"jid": "first"}, lambda jobs: jobs.job("first") is None),
        ("retry", {"jid": "broken"}, lambda jobs: jobs.job("broken").state == "waiting"),
        ("retry", {"jid": "broken", "data": '{"n": 7}'}, lambda jobs: jobs.job("broken").data == {"n": 7}),
        ("move", {"jid": "first", "queue": "slow"}, lambda jobs: jobs.job("first").queue == "slow"),
        ("priority", {"jid": "first", "priority": "-7"}, lambda jobs: jobs.job("first").priority == -7),
        ("release", {"jid": "runs"}, lambda jobs: jobs.job("runs").state == "waiting"),
        ("signal", {"jid": "first", "name": "go", "value": "1"}, lambda jobs: jobs.job("first").signal_count == 1),
        ("pause_queue", {"queue": "mail"}, lambda jobs: jobs.queue("mail").counts().paused),
        ("unpause_queue", {"queue": "quiet"}, lambda jobs: not jobs.queue("quiet").counts().paused),
        ("delete_queue", {"queue": "mail", "confirm": "mail"}, lambda jobs: "mail" not in jobs.queues()),
        ("delete_lane", {"queue": "mail", "lane": "acme", "confirm": "acme"}, lambda jobs: jobs.job("first") is None),
        ("log", {"jid": "first", "message": "seen"}, lambda jobs: "seen" in str(jobs.job("first").history)),
        ("deregister", {"worker": "w-1", "confirm": "w-1"}, lambda jobs: jobs.job("runs").state == "waiting"),
        ("sweep", {}, lambda jobs: jobs.job("runs").state == "running"),
        ("pause_lane", {"queue": "mail", "lane": "acme"}, lambda jobs: jobs.queue("mail").lane("acme").counts().paused),
        ("limit", {"key": "smtp", "running": "4"}, lambda jobs: jobs.limit("smtp").running == 4),
        ("unlimit", {"key": "smtp"}, lambda jobs: "smtp" not in jobs.limits()),
        ("unrecur", {"jid": "daily"}, lambda jobs: jobs.recurring("daily") is None),
        ("cancel_batch", {"batch": "import"}, lambda jobs: jobs.job("member") is None),
        ("retry_batch", {"batch": "import"}, lambda jobs: jobs.job("lost-member").state == "waiting"),
        ("pause_batch", {"batch": "import"}, lambda jobs: jobs.batch("import").look().paused),
        ("resume_batch", {"batch": "import"}, lambda jobs: not jobs.batch("import").look().paused),
        ("put", {"queue": "new", "klass": "k", "jid": "n", "data": "[1]"}, lambda jobs: jobs.job("n").data == [1]),
        ("fail", {"jid": "first"}, lambda jobs: jobs.job("first").failure["group"] == "by-hand"),
        ("tag", {"jid": "first", "tags": "a b\r\nc"}, lambda jobs: jobs.job("first").tags == ["vip", "a b", "c"]),
        ("untag", {"jid": "first", "tags": "vip"}, lambda jobs: jobs.job("first").tags == []),
        ("track", {"jid": "first"}, lambda jobs: jobs.job("first").tracked),
        ("depend", {"jid": "child", "jids": "second"}, lambda jobs: "second" in jobs.job("child").dependencies),
        ("undepend", {"jid": "child", "jids": "first"}, lambda jobs: jobs.job("child").state == "waiting"),
        ("undepend", {"jid": "child", "all": "yes"}, lambda jobs: jobs.job("child").state == "waiting"),
        (
            "weigh_lane",
            {"queue": "mail", "lane": "acme", "weight": "7"},
            lambda jobs: jobs.queue("mail").lane("acme").counts().weight == 7,
        ),
        ("limit", {"key": "new", "running": "", "rate": "9/s"}, lambda jobs: jobs.limit("new").rate == "9/s"),
        (
            "recur",
            {"queue": "q", "klass": "k", "every": "5m", "jid": "tick"},
            lambda jobs: jobs.recurring("tick").every_s == 300,
        ),
        (
            "update_recurrence",
            {"jid": "daily", "cron": "0 3 * * mon", "every": "", "missed": "once"},
            lambda jobs: (jobs.recurring("daily").cron, jobs.recurring("daily").missed) == ("0 3 * * mon", "once"),
        ),
        (
            "set_option",
            {"option": "heartbeat-mail", "value": "5m"},
            lambda jobs: jobs.config.get("heartbeat-mail") == 300,
        ),
        ("unset_option", {"option": "paused-quiet"}, lambda jobs: not jobs.queue("quiet").counts().paused),
        (
            "add_door",
            {"name": "d", "format": "sidekiq", "source": "queue:mail", "queue": "mail", "klasses": '{"A": "a"}'},
            lambda jobs: [(each.name, each.klasses) for each in jobs.doors.list()] == [("d", {"A": "a"})],
        ),
        (
            "marked",
            {"do": "cancel", "jids": ["second", "later"]},
            lambda jobs: jobs.jobs("second", "later") == [None, None],
        ),
        ("marked", {"do": "retry", "jids": ["broken", "first"]}, lambda jobs: jobs.job("broken").state == "waiting"),
        (
            "marked",
            {"do": "move", "jids": ["second", "broken"], "into": "slow"},
            lambda jobs: [job.queue for job in jobs.jobs("second", "broken")] == ["slow", "slow"],
        ),
        (
            "marked",
            {"do": "priority", "jids": ["second"], "priority": "-9"},
            lambda jobs: jobs.job("second").priority == -9,
        ),
        (
            "marked",
            {"do": "fail", "jids": ["second", "runs"], "message": "gone"},
            lambda jobs: [job.failure["message"] for job in jobs.jobs("second", "runs")] == ["gone", "gone"],
        ),
    ],
)
def test_a_form_does_what_its_button_says(filled, operator, name, fields, shown):
    key = key_of(operator.page("/queue?queue=mail"))
    answer = operator.http.post(f"/act/{name}", data={"csrf": key, **fields}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    if answer.headers["location"].startswith("/bulk?"):
        ended(operator, answer.headers["location"].partition("act=")[2])
    assert shown(filled)


def test_an_empty_queue_is_forgotten_and_no_other(filled, operator):
    filled.queue("gone").put("k", jid="g")
    filled.cancel("g")
    forget = act_of("forget_queue")
    assert "/act/forget_queue" in operator.page("/queue?queue=gone")
    assert ask(operator, forget, "operator", {"queue": "gone"}).json() == {"forgotten": "gone"}
    assert ask(operator, forget, "operator", {"queue": "gone"}).status_code == 404
    assert ask(operator, forget, "operator", {"queue": "mail"}).status_code == 400
    assert "mail" in filled.queues() and "gone" not in filled.queues()


def test_lane_is_deleted_only_with_its_name(filled, operator):
    answer = ask(operator, act_of("delete_lane"), "operator", {"queue": "mail", "lane": "acme", "confirm": "mail"})
    assert answer.status_code == 400 and "confirm must be the name of the lane, acme" in answer.text
    assert filled.job("first") is not None
    deletion = ask(operator, act_of("delete_lane"), "operator", {"queue": "mail", "lane": "acme", "confirm": "acme"})
    assert deletion.json()["words"] == "delete the jobs of lane acme of queue mail"


def test_supervisor_is_forgotten_only_with_its_name(filled, operator):
    answer = ask(operator, act_of("deregister"), "operator", {"worker": "w-1", "confirm": "mail"})
    assert answer.status_code == 400 and "confirm must be the name of the worker, w-1" in answer.text
    assert filled.job("runs").state == "running"


def test_the_record_of_acts_has_a_page(filled, operator):
    ask(operator, act_of("cancel"), "operator", {"jid": "second"})
    text = words(operator.page("/audit"))
    assert "login:operator-1 cancel job second" in text and "kim@web-1 pause queue quiet" in text
    assert "cancel" not in words(operator.page("/audit?subject=quiet")).partition("Who did what")[2]
    shown = operator.http.get("/api/v1/audit?subject=second", headers=bearer("operator")).json()
    assert [(act["act"], act["actor"]) for act in shown["acts"]] == [("cancel", "login:operator-1")]
    for n in range(150):
        filled.acting_as(f"kim-{n}").queue("mail").pause()
        filled.acting_as(f"kim-{n}").queue("mail").unpause()
    assert "offset=100" in operator.page("/audit") and "kim-149" not in operator.page("/audit?offset=100")


def test_a_program_deletes_a_job_at_its_address(filled, site):
    assert ask(site, act_of("delete"), "operator", {"jid": "second"}).json() == {"cancelled": ["second"]}
    assert ask(site, act_of("delete"), "operator", {"jid": "second"}).status_code == 404
    assert filled.job("second") is None


def test_an_error_hides_what_it_names(filled, visiting):
    site = visiting(auth=Tokens(LINES), allow_actions=True, hide=["password"])
    answer = site.http.post("/api/v1/bulk", json={"do": "password=hunter2"}, headers=bearer("operator"))
    assert answer.status_code == 400 and "hunter2" not in answer.text and "(hidden)" in answer.text


def test_a_program_removes_a_limit_at_the_address_of_that_act(filled, site):
    assert ask(site, act_of("unlimit"), "operator", {"key": "smtp"}).json() == {"removed": "smtp"}
    assert list(filled.limits()) == []


@pytest.mark.parametrize(
    "path",
    [
        "/job?jid=first",
        "/job?jid=broken",
        "/queue?queue=mail",
        "/lanes?queue=mail",
        "/limit?key=smtp",
        "/batch?batch=import",
        "/job?jid=child",
        "/job?jid=daily",
        "/jobs?queue=mail",
        "/queues",
        "/supervisors",
        "/supervisor?worker=w-1",
        "/limits",
        "/recurrences",
        "/config",
        "/doors",
    ],
)
def test_only_operators_see_buttons_which_all_lead_to_acts(site, path):
    site.http.post("/login", data={"token": TOKENS["viewer"]})
    assert "/act/" not in site.page(path)
    site.http.post("/logout")
    site.http.post("/login", data={"token": TOKENS["operator"]})
    forms = [each["action"] for tag, each in tags(site.page(path)) if tag == "form" and each.get("method") == "post"]
    assert {each.removeprefix("/act/") for each in forms} - {"/logout"} <= {act.name for act in ACTS}
    assert any(each.startswith("/act/") for each in forms)


def test_a_form_without_its_key_or_of_another_session_is_refused(server, namespace, filled, site, operator):
    mine = key_of(operator.page("/queue?queue=mail"))
    operator.http.post("/logout")
    operator.http.post("/login", data={"token": TOKENS["operator"]})
    before = server.dump(namespace)
    for key in ({}, {"csrf": ""}, {"csrf": mine}, {"csrf": mine[:-1] + "é"}):
        answer = operator.http.post("/act/pause_queue", data={**key, "queue": "mail"})
        assert answer.status_code == 403 and "not from a page of this session" in words(answer.text)
    assert server.dump(namespace) == before


@pytest.mark.parametrize("path", ["/act/pause_queue", "/api/v1/queues/mail/pause"])
def test_requests_of_another_site_are_refused(server, namespace, operator, path):
    before = server.dump(namespace)
    key = key_of(operator.page("/queue?queue=mail"))
    away = {"origin": "https://evil.example"}
    form = {"csrf": key, "queue": "mail"}
    assert operator.http.post(path, data=form, headers=away).status_code == 403
    assert operator.http.post("/api/v1/queues/mail/pause", json={}, headers=away).status_code == 403
    assert operator.http.post("/api/v1/queues/mail/pause", data=form).status_code == 415
    assert server.dump(namespace) == before


def test_deletion_of_a_queue_needs_its_name_again(filled, operator):
    answer = ask(operator, act_of("delete_queue"), "operator", {"queue": "mail", "confirm": "male"})
    assert answer.status_code == 400 and "'male'" in answer.json()["error"]
    assert filled.job("first") is not None


def test_hidden_data_is_not_offered_for_editing(filled, visiting):
    filled.queue("quiet").put("k", {"password": "hunter2"}, jid="secret", priority=-9)
    filled.job("secret").fail("g", "m")
    site = visiting(auth=Tokens(LINES), allow_actions=True, hide=["password"])
    site.http.post("/login", data={"token": TOKENS["operator"]})
    text = site.page("/job?jid=secret")
    assert "hunter2" not in text and "<textarea" not in text and "/act/retry" in text


def test_data_as_the_api_shows_it_is_not_taken_back(filled, visiting):
    filled.queue("quiet").put("k", {"password": "hunter2", "to": "ada"}, jid="secret", priority=-9)
    filled.job("secret").fail("g", "m")
    site = visiting(auth=Tokens(LINES), allow_actions=True, hide=["password"])
    shown = site.http.get("/api/v1/jobs/secret", headers=bearer("operator")).json()["job"]["data"]
    for data in (shown, {"text": "password=(hidden)"}, [["(nested too deep)"]]):
        answer = ask(site, act_of("retry"), "operator", {"jid": "secret", "data": data, "force": True})
        assert answer.status_code == 400 and "in the place of a value" in answer.json()["error"], answer.text
    assert (filled.job("secret").state, filled.job("secret").data["password"]) == ("failed", "hunter2")


def test_an_error_says_the_value(operator):
    for name, fields, sentence in (
        ("cancel", {"jid": "nobody"}, "there is no job nobody"),
        ("cancel", {"jid": "done"}, "job done is complete"),
        ("retry", {"jid": "first"}, "job first is waiting"),
        ("priority", {"jid": "first", "priority": "high"}, "priority must be a whole number, not 'high'"),
        ("move", {"jid": "first"}, "queue is missing: the new queue"),
        ("put", {"queue": "q", "klass": "k", "retires": 3}, "retires"),
        ("pause_queue", {"queue": "mail", "lane": "x"}, "no field 'lane'"),
        ("limit", {"key": "smtp"}, "give running, rate or both"),
        ("wait", {"jid": "first", "timeout": 99}, "timeout must be 0 to 30 seconds, not 99"),
    ):
        answer = ask(operator, act_of(name), "operator", fields)
        assert answer.status_code in {400, 404} and sentence in answer.json()["error"], answer.text


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"queue": "q",\n "klass": }', "the body is not JSON: look at line 2, column 11"),
        (b'{"queue": "\xff"}', "the body is not JSON: look at line 1, column"),
        (b"[1, 2]", 'the body must be an object of JSON, as {"count": 10}, not [1, 2]'),
        (b"null", "not null"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_in_words(site, body, sentence):
    headers = {**bearer("producer"), "content-type": "application/json"}
    answer = site.http.post("/api/v1/jobs", content=body, headers=headers)
    assert answer.status_code == 400 and sentence in answer.json()["error"], answer.text


def test_a_body_without_end_is_refused(operator):
    key = {"csrf": key_of(operator.page("/job?jid=first"))}
    answer = operator.http.post("/act/retry", data={**key, "jid": "broken", "data": "1" * 2**20})
    assert answer.status_code == 413 and "the body is larger than 1048576 bytes" in answer.text
    headers = {**bearer("producer"), "content-type": "application/json"}
    answer = operator.http.post("/api/v1/jobs", content=b" " * (2**24 + 1), headers=headers)
    assert answer.status_code == 413 and "the body is larger than 16777216 bytes" in answer.text


def test_a_field_of_a_form_that_cannot_be_read_is_refused_in_words(operator):
    key = {"csrf": key_of(operator.page("/job?jid=broken"))}
    for act, fields, sentence in (
        ("priority", {"jid": "first", "priority": "1e9"}, "priority must be a whole number, not &#39;1e9&#39;"),
        ("priority", {"jid": "first", "priority": "9" * 5000}, "priority must be a whole number"),
        ("retry", {"jid": "broken", "data": "[1,"}, "data is not JSON: look at line 1, column 4, in &#39;[1,&#39;"),
    ):
        answer = operator.http.post(f"/act/{act}", data={**key, **fields})
        assert answer.status_code == 400 and sentence in answer.text, answer.text


def test_a_limit_of_any_name_is_removed(filled, site):
    for limit in ("a/unlimit", "unlimit", "a b"):
        filled.limit(limit, 3)
        asked = site.http.delete(f"/api/v1/limits/{quote(limit, safe='')}", headers=bearer("operator"))
        assert asked.json() == {"removed": limit} and limit not in filled.limits()


def test_a_producer_puts_signals_and_waits(filled, site):
    put = ask(site, act_of("put"), "producer", {"queue": "q", "klass": "k", "data": [1], "jid": "new", "priority": 4})
    assert put.json() == {"jid": "new"}
    assert (filled.job("new").data, filled.job("new").priority) == ([1], 4)
    assert ask(site, act_of("signal"), "producer", {"jid": "new", "name": "go"}).status_code == 200
    assert ask(site, act_of("wait"), "producer", {"jid": "new", "timeout": 0}).json() == {"ended": False}
    filled.queue("q").lease("w")[0].complete({"sum": 1})
    assert ask(site, act_of("wait"), "producer", {"jid": "new"}).json() == {"ended": True, "result": {"sum": 1}}


def test_a_wait_tells_how_its_job_has_failed(filled, site):
    filled.queue("q").put("k", jid="new", priority=-9)
    filled.queue("q").lease("w")[0].fail("bounced", "no such user")
    failed = {"group": "bounced", "message": "no such user"}
    assert ask(site, act_of("wait"), "producer", {"jid": "new"}).json() == {"ended": True, "failed": failed}


@pytest.mark.parametrize("ttl", [0, -5, 86_401, 2**53])
def test_a_lease_that_is_over_at_once_or_never_is_refused(filled, site, ttl):
    answer = ask(site, act_of("lease"), "worker", {"worker": "w", "queues": ["mail"], "ttl": ttl})
    assert (answer.status_code, answer.json()["error"]) == (400, f"ttl must be 1 to 86400 seconds, not {ttl}")
    assert filled.queue("mail").counts().running == 0


def test_a_renewal_lasts_as_long_as_it_asks(filled, site):
    [lease] = filled.queue("mail").lease("w", ttl=5)
    asked = {"worker": "w", "leases": [{"jid": lease.jid, "token": lease.token}], "ttl": 3600}
    [at] = ask(site, act_of("renew"), "worker", asked).json()["expires_unix"]
    assert at > lease.expires_unix + 3000
    answer = ask(site, act_of("renew"), "worker", {**asked, "ttl": 86_401})
    assert (answer.status_code, answer.json()["error"]) == (400, "ttl must be 1 to 86400 seconds, not 86401")


def test_a_producer_puts_bytes(jobs, site):
    asked = {"queue": "q", "klass": "k", "jid": "raw", "data_b64": base64.b64encode(b"\0\xff").decode()}
    assert ask(site, act_of("put"), "producer", asked).json() == {"jid": "raw"}
    assert (jobs.job("raw").is_bytes, jobs.job("raw").raw) == (True, b"\0\xff")
    for wrong, why in (("%%", "data_b64 must be base64, not '%%'"), ("AAA", "data_b64 must be base64, not 'AAA'")):
        answer = ask(site, act_of("put"), "producer", {"queue": "q", "klass": "k", "data_b64": wrong})
        assert (answer.status_code, answer.json()["error"]) == (400, why)
    both = ask(site, act_of("put"), "producer", {**asked, "data": 1})
    assert (both.status_code, both.json()["error"]) == (400, "give data or data_b64, not both")
    assert jobs.queue("q").counts().waiting == 1


@pytest.mark.parametrize(("said", "left"), [("no", 1), ("false", 1), ("OFF", 1), ("0", 1), ("yes", 0), ("on", 0)])
def test_a_form_by_hand_may_say_no(filled, operator, said, left):
    filled.queue("slow").put("k", jid="there")
    filled.queue("slow").lease("w")
    key = key_of(operator.page("/queue?queue=slow"))
    form = {"csrf": key, "queue": "slow", "confirm": "slow", "stop": said}
    operator.http.post("/act/delete_queue", data=form, follow_redirects=False)
    assert filled.queue("slow").counts().running == left


def test_a_form_says_neither_yes_nor_no(filled, operator):
    key = key_of(operator.page("/queue?queue=mail"))
    form = {"csrf": key, "queue": "mail", "confirm": "mail", "stop": "perhaps"}
    answer = operator.http.post("/act/delete_queue", data=form, follow_redirects=False)
    assert answer.status_code == 400 and "stop &#39;perhaps&#39; must be yes or no" in answer.text
    assert "mail" in filled.queues()


def test_a_list_of_too_many_is_refused_unread(site):
    answer = ask(site, act_of("lease"), "worker", {"worker": "w", "queues": ["q"] * 1_001})
    assert (answer.status_code, answer.json()["error"]) == (400, "queues must have at most 1000 entries, not 1001")


def test_a_worker_of_any_language_works(filled, visiting):
    site = visiting(auth=Tokens(LINES), allow_actions=True, hide=["password"])
    asked = {"worker": "php-1", "queues": ["mail"], "count": 3}
    leases = ask(site, act_of("lease"), "worker", asked).json()["leases"]
    by_jid = {lease["jid"]: lease for lease in leases}
    assert by_jid["first"]["data"] == {"to": "ada@example.org", "password": "hunter2"}
    assert by_jid["bytes"]["data_b64"] == "/wA="
    held = [{"jid": each["jid"], "token": each["token"]} for each in leases]
    renewed = ask(site, act_of("renew"), "worker", {"worker": "php-1", "leases": [*held, {"jid": "x", "token": 1}]})
    assert [at is not None for at in renewed.json()["expires_unix"]] == [True, True, True, False]
    outcomes = [
        {"jid": "first", "token": by_jid["first"]["token"], "outcome": "complete", "result": 7},
        {"jid": "second", "token": by_jid["second"]["token"], "outcome": "fail", "group": "g", "message": "m"},
        {"jid": "bytes", "token": 1, "outcome": "release"},
    ]
    answer = ask(site, act_of("settle"), "worker", {"worker": "php-1", "outcomes": outcomes})
    assert answer.json() == {"answers": [True, True, False]}
    assert (filled.job("first").result, filled.job("second").state) == (7, "failed")
    for missing, why in (
        ({"outcome": "explode"}, "outcome must be one of complete, retry, fail, release, died, not 'explode'"),
        ({"outcome": "fail"}, "fail of job bytes needs group and message"),
        ({"outcome": "died"}, "died of job bytes needs reason"),
        (
            {"outcome": "complete", "group": "g"},
            "complete takes no group, only data, delay, depends, next, result, then",
        ),
    ):
        asked = {"worker": "php-1", "outcomes": [{"jid": "bytes", "token": 1, **missing}]}
        answer = ask(site, act_of("settle"), "worker", asked)
        assert (answer.status_code, answer.json()["error"]) == (400, why)
    assert [act.act for act in filled.audit()] == ["limit", "pause"], "work is not recorded"


def test_a_lease_takes_what_lies_behind_doors_to_its_queues(server, namespace, jobs, site):
    source = f"foreign-{namespace}"
    for queue in ("images", "elsewhere"):
        jobs.doors.add(queue, format="hworker", source=f"{source}-{queue}", queue=queue, klass="k")
        server.redis.lpush(f"hworker-jobs-{source}-{queue}", f'["{queue}-1",1]')
    asked = {"worker": "php-1", "queues": ["im*", "!elsewhere"], "count": 10}
    [lease] = ask(site, act_of("lease"), "worker", asked).json()["leases"]
    assert (lease["jid"], lease["data"]) == ("images-1", 1)
    assert {door.name: door.waiting for door in jobs.doors.list()} == {"elsewhere": 1, "images": 0}
    pushing = threading.Timer(0.5, server.redis.lpush, (f"hworker-jobs-{source}-images", '["images-2",2]'))
    pushing.start()
    [lease] = ask(site, act_of("lease"), "worker", {**asked, "block": 30}).json()["leases"]
    pushing.join()
    assert lease["jid"] == "images-2"
    server.redis.unlink(f"hworker-jobs-{source}-elsewhere")


@pytest.mark.parametrize("depth", [240, 250, 252, 254])
def test_a_worker_gets_data_of_any_depth_whole(jobs, site, depth):
    deep = json.loads("[" * depth + "]" * depth)
    jobs.queue("deep").put("k", deep)
    [lease] = ask(site, act_of("lease"), "worker", {"worker": "php-1", "queues": ["deep"]}).json()["leases"]
    assert (lease["data"] if "data" in lease else json.loads(base64.b64decode(lease["data_b64"]))) == deep


STACKS = [
    {
        "child": 1,
        "pid": 7,
        "jid": "first",
        "klass": "email.send",
        "running_s": 61.0,
        "stack": '  File "mail.py" in <send>',
    },
    {"child": 2, "pid": 8, "jid": None, "klass": None, "running_s": None, "stack": ""},
]


def test_requests_reach_a_supervisor(server, namespace, filled, site):
    told = {"stacks": {"children": STACKS}}
    worker = PlayedWorker(server.url, namespace, lambda one: told.get(one.what, {"did": "done"}))
    name = worker.name
    with worker.listening():
        for act in ACTS:
            if act.name.endswith("_supervisor"):
                given = {each.name: "2:8" if each.name == "processes" else name for each in act.fields}
                answer = ask(site, act, "operator", given).json()
                assert answer == ({"children": STACKS} if act.shows == "stacks" else {"did": "done"})
        refused = ask(site, act_of("scale_supervisor"), "operator", {"worker": name, "processes": "many"})
        assert refused.status_code == 400 and "'many'" in refused.json()["error"]
        served = ask(site, act_of("serve"), "operator", {"worker": name, "queues": ["a", "b*"], "order": "random"})
        assert served.json() == {"queues": ["a", "b*"], "order": "random"}
    worker.close()
    assert [one.what for one in worker.asked] == ["pause", "resume", "drain", "reload", "scale", "stacks"]
    assert worker.asked[0].argument == {"by": "operator-1, by the web page"}
    assert [act.act for act in filled.audit(name)] == ["serve", "stacks", "scale", "reload", "drain", "resume", "pause"]


def test_a_form_shows_the_stacks_of_a_supervisor(server, namespace, filled, operator):
    worker = PlayedWorker(server.url, namespace, lambda _: {"children": STACKS})
    key = key_of(operator.page("/queue?queue=mail"))
    with worker.listening():
        answer = operator.http.post("/act/stacks_supervisor", data={"csrf": key, "worker": worker.name})
    worker.close()
    text = words(answer.text)
    assert answer.status_code == 200 and f"stacks of {worker.name}" in text
    assert 'Child 1 pid 7, email.send first 1m1s File "mail.py" in <send>' in text
    assert "Child 2 pid 8, idle It has not answered in time" in text


def test_a_form_tells_what_a_supervisor_serves(server, namespace, filled, site):
    worker = PlayedWorker(server.url, namespace, lambda _: status_of(queues=["mail", "slow-*"], order="strict"))
    with worker.listening():
        site.http.post("/login", data={"token": TOKENS["operator"]})
        text = site.page(f"/supervisor?worker={worker.name}")
        form = {"csrf": key_of(text), "worker": worker.name, "queues": "mail\r\nnew", "order": ""}
        answer = site.http.post("/act/serve", data=form, follow_redirects=False)
    worker.close()
    assert ">mail\nslow-*</textarea>" in text
    assert answer.status_code == 303 and filled.audit(worker.name)[0].value == "mail new"


def test_hostile_names_stay_text_in_forms(jobs, visiting):
    jobs.queue(HOSTILE).put(HOSTILE, {HOSTILE: HOSTILE}, jid=HOSTILE, lane=HOSTILE, limit=HOSTILE)
    jobs.limit(HOSTILE, running=1)
    jobs.job(HOSTILE).fail(HOSTILE, HOSTILE)
    site = visiting(auth=Tokens(LINES), allow_actions=True)
    site.http.post("/login", data={"token": TOKENS["operator"]})
    text = site.http.get("/job", params={"jid": HOSTILE}).text
    assert {each["src"] for tag, each in tags(text) if tag == "script"} == {"/static/theme.js", "/static/page.js"}
    assert not any(name.startswith("on") for _, each in tags(text) for name in each)
    form = {"csrf": key_of(text), "jid": HOSTILE, "priority": "5"}
    assert site.http.post("/act/priority", data=form).status_code == 200
    assert jobs.job(HOSTILE).priority == 5


@pytest.mark.parametrize("act", [act for act in ACTS if not act.name.endswith("_supervisor")], ids=lambda act: act.name)
def test_hostile_text_in_any_field_stays_text(filled, operator, act):
    key = key_of(operator.page("/queue?queue=mail"))
    for hostile in act.fields:
        form = {each.name: HOSTILE if each is hostile else str(FIELDS[each.name] or "") for each in act.fields}
        answer = operator.http.post(f"/act/{act.name}", data={"csrf": key, **form})
        assert answer.status_code in {200, 400, 403, 404}, (hostile.name, answer.text)
        found = tags(answer.text)
        assert {each["src"] for tag, each in found if tag == "script"} == {"/static/theme.js", "/static/page.js"}
        assert not [tag for tag, each in found if tag == "img" or any(name.startswith("on") for name in each)]


def test_the_document_describes_every_act(site):
    document = site.get("/api/v1/openapi.json", headers=bearer("operator")).json()
    for act in ACTS:
        operation = document["paths"][act.api][act.method.lower()]
        assert operation["operationId"] == act.name and operation["summary"]
        named = {each["name"] for each in operation["parameters"]}
        body: dict = {}
        if act.method == "POST":
            body = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
        options = act.options.types.__annotations__.keys() if act.options else set()
        assert named | set(body) == {each.name for each in act.fields} | options


def test_no_request_without_right_writes(server, namespace, site):
    chance = random.Random(25)
    values = [*FIELDS.values(), None, "", -1, 2**70, [], {}, [[]], HOSTILE, "x" * 700, {"a": {"b": []}}, True]
    before = server.dump(namespace)
    for _ in range(5_000 if LONG else 600):
        act, role = chance.choice(ACTS), chance.choice(ROLES)
        if role in act.roles:
            continue
        fields = {chance.choice(list(FIELDS)): chance.choice(values) for _ in range(chance.randrange(5))}
        path = re.sub(r"{\w+}", lambda _: chance.choice(["first", "mail", "%00", "..", "%ff"]), act.api)
        answer = site.http.request(act.method, f"/api/v1{path}", json=fields, headers=bearer(role))
        assert answer.status_code in {403, 404, 405}, (act.name, role, fields, answer.text)
    assert server.dump(namespace) == before


def test_no_act_breaks_the_server(site):
    chance = random.Random(26)
    values = [*FIELDS.values(), None, "", -1, 2**70, [], {}, [[]], HOSTILE, "x" * 700, {"a": {"b": []}}, True, "\0"]
    for _ in range(5_000 if LONG else 600):
        act = chance.choice([act for act in ACTS if not act.name.endswith("_supervisor")])
        fields = {
            each.name: chance.choice([FIELDS[each.name], *values]) for each in act.fields if chance.random() < 0.8
        }
        path = re.sub(r"{\w+}", lambda _: chance.choice(["first", "mail", "smtp", "%00", "%ff", "a" * 400]), act.api)
        fields = {name: value for name, value in fields.items() if name not in re.findall(r"{(\w+)}", act.api)}
        if "timeout" in fields or act.name == "wait":
            fields["timeout"] = 0
        fields.pop("block", None)
        answer = site.http.request(act.method, f"/api/v1{path}", json=fields, headers=bearer(min(act.roles)))
        assert answer.status_code in {200, 400, 404}, (act.name, fields, answer.text)
