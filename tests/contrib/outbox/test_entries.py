"""Entries: what may be left in an outbox, and what comes out."""

import datetime

import orjson
import pytest

from supervisor import handler
from supervisor.child import handlers
from supervisor.contrib.outbox import entry
from supervisor.contrib.outbox.databases import opened
from supervisor.contrib.outbox.entries import job_of
from supervisor.engine.model.new_jobs import new_job


def test_jid_is_the_rows_id_unless_one_is_given():
    row = entry("q", "k")
    assert job_of(row["job"]).jid == row["id"]
    named = entry("q", "k", jid="invoice-7")
    assert job_of(named["job"]).jid == "invoice-7" != named["id"]


def test_options_arrive_as_add_would_have_them():
    at = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    options = {"jid": "j", "at": at, "timeout": "5m", "tags": ["red"], "unique": "u", "lane": "l", "retries": 2}
    row = entry("q", "k", {"a": [1, None]}, **options)
    assert job_of(row["job"]) == new_job("add", "q", "k", {"a": [1, None]}, options)


def test_job_of_a_handler_is_an_entry(monkeypatch):
    monkeypatch.setattr(handlers, "_registered", [])

    @handler(name="mail.welcome", queue="mail")
    def welcome(job, user):
        pass

    job = welcome.job(user=7)
    assert orjson.loads(entry(**job)["job"]) | {"jid": ""} == {
        "queue": "mail", "klass": "mail.welcome", "data": {"user": 7}, "jid": ""
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "options", "error", "names"),
    [
        (("", "k"), {}, ValueError, "queue"),
        (("q", "k", b"raw"), {}, TypeError, "data"),
        (("q", "k", object()), {}, TypeError, "data"),
        (("q", "k"), {"retrys": 1}, TypeError, "retrys"),
        (("q", "k"), {"delay": -1}, ValueError, "delay"),
    ],
)
def test_bad_entry_is_refused_in_the_transaction(arguments, options, error, names):
    with pytest.raises(error, match=names):
        entry(*arguments, **options)


@pytest.mark.parametrize("url", ["app.db", "sqlite://app.db", "sqlite:///", "mysql://app@db/shop"])
def test_other_database_is_refused_by_its_form(url):
    with pytest.raises(ValueError, match="sqlite:///PATH"):
        opened(url)
