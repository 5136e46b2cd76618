"""Fields whose names match are hidden, wherever they stand."""

import re

import pytest

from supervisor.web.hiding import HIDDEN, Hiding
from supervisor.web.pages.table import PAGES
from tests.web.conftest import words

HIDING = Hiding(["password", "token"])


def test_fields_are_hidden_at_any_depth():
    value = {"a": [{"Password": "x", "user_token": [1], "n": 1}], "password": None}
    hidden = {"a": [{"Password": HIDDEN, "user_token": HIDDEN, "n": 1}], "password": None}
    for name in ("data", "result", "saved", "failure", "history"):
        assert HIDING.hide({"job": {name: value}}) == {"job": {name: hidden}}
    assert HIDING.hide(value, is_foreign=True) == hidden


def test_fields_of_the_answer_itself_stay():
    answer = {"token": 7, "course": [{"token": 1}], "why": {"facts": {"token": "t", "data": {"token": "t"}}}}
    assert HIDING.hide(answer) == {**answer, "why": {"facts": {"token": "t", "data": {"token": HIDDEN}}}}


@pytest.mark.parametrize(
    "text",
    [
        "password=hunter2",
        "password: hunter2",
        "db_password = 'hunter2'",
        '{"token": "hunter2"}',
        r"{\"token\": \"hunter2\"}",
        "https://x/?token=hunter2&n=1",
        'PASSWORD="hunter2 and more"',
        "X-Token: Bearer hunter2",
        "token=Basic hunter2, more",
        '{"token": "Bearer hunter2 more"}',
        "{'Token': b'Bearer hunter2'}",
        "Proxy-Token: NTLM hunter2",
    ],
)
def test_value_behind_a_secret_name_in_a_text_is_hidden(text):
    shown = HIDING.hide({"output": f"first line\n{text}\nlast line"})["output"]
    assert "hunter2" not in shown and "more" not in shown
    assert shown.startswith("first line\n") and shown.endswith("\nlast line") and HIDDEN in shown


def test_names_by_which_pages_link_stay_whole():
    job = {"jid": "token=1", "klass": "password:reset", "tags": ["eu"]}
    assert HIDING.hide(job) == job


def test_bytes_are_hidden_as_a_whole():
    assert HIDING.hide({"data_hex": "ff00"}) == {"data_hex": HIDDEN}
    assert Hiding().hide({"data_hex": "ff00", "password": "x"}) == {"data_hex": "ff00", "password": "x"}


def test_values_that_are_too_deep_are_hidden():
    value = "password=x"
    for _ in range(300):
        value = [value]
    assert "password=x" not in str(HIDING.hide(value))


def names_in(value):
    """Return the names of all fields of an answer."""
    match value:
        case dict():
            return {*value, *(name for each in value.values() for name in names_in(each))}
        case list():
            return {name for each in value for name in names_in(each)}
    return set()


def test_pages_stand_any_pattern(filled, visiting):
    """Hide each name that any page shows, and each word of the pages."""
    plain = visiting()
    paths = {page.name: page.api for page in PAGES if page.name != "why"}
    asked = {
        "queue": "mail", "jid": "broken", "batch": "import", "key": "smtp", "worker": "w-1", "period": "hour",
    }  # fmt: skip
    answers = {name: plain.json(re.sub(r"{(\w+)}", lambda part: asked[part[1]], api)) for name, api in paths.items()}
    answers["why"] = plain.json("/why/broken")
    patterns = sorted({*names_in(answers), "hour", "failed", "p50"} - {""})
    for hide in (patterns, ["started"], ["run"], ["over"], ["e"]):
        visitor = visiting(hide=hide)
        for page in PAGES:
            names = re.findall(r"{(\w+)}", page.api)
            query = "&".join(f"{name}={asked[name]}" for name in names)
            text = visitor.page(f"/{page.name}?{query}")
            assert page.name != "overview" or "The last hour" in words(text)
        assert visitor.json("/overview")["course"][0].keys() == answers["overview"]["course"][0].keys()


def test_an_empty_pattern_is_refused():
    with pytest.raises(ValueError, match="empty"):
        Hiding(["password", ""])


def test_pages_and_api_hide_alike(filled, visiting):
    visitor = visiting(hide=["password", "token"])
    for path in ("/job?jid=first", "/job?jid=broken", "/jobs?group=ValueError", "/overview"):
        text = visitor.page(path)
        assert "hunter2" not in text and "s3cret" not in text
    assert visitor.json("/jobs/first")["job"]["data"] == {"to": "ada@example.org", "password": HIDDEN}
    assert "s3cret" not in visitor.get("/api/v1/jobs?group=ValueError&format=csv").text
