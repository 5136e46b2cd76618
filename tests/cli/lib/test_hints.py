"""Hints of `leasehold put` while supervisors run. The job is put in any case."""

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import leasing, workers


def introduce(client, name, klasses, queues):
    """Register a worker with its klasses and queues."""
    calls_of(client).call(leasing.resume, name, 1, [])
    calls_of(client).call(workers.report_skills, name, klasses, queues)


@pytest.fixture
def hint(shell, jobs):
    """Return the hints of a successful put."""

    def put(*words):
        said = shell("put", *words)
        assert said.code == 0 and jobs.job(said.out.strip()) is not None
        return [line.removeprefix("leasehold: ") for line in said.err.splitlines()]

    return put


@pytest.fixture
def alive(jobs):
    introduce(jobs, "web-1", ["mail.send", "mail.read"], ["default", "email"])
    introduce(jobs, "web-2", ["report.build"], ["reports"])


def test_a_job_with_a_handler_gets_no_hint(hint, alive):
    assert hint("mail.send") == []
    assert hint("report.build", "--queue", "reports") == []


def test_a_klass_that_no_living_supervisor_has_is_hinted_at(hint, alive):
    assert hint("mail.sned") == [
        "no supervisor that serves queue default has a handler for klass mail.sned, did you mean mail.send?"
    ]
    assert hint("report.build") == ["no supervisor that serves queue default has a handler for klass report.build"]


def test_a_queue_that_no_living_supervisor_serves_is_hinted_at(hint, alive):
    assert hint("mail.send", "--queue", "emial") == ["no supervisor that runs serves queue emial, did you mean email?"]


def test_missing_parents_are_hinted_at(hint, jobs, alive):
    jobs.queue("q").put("k", jid="there")
    assert hint("mail.send", "--depends", "there", "--depends", "typo") == [
        "there is no job typo to wait for: it counts as complete"
    ]


def test_a_job_that_is_only_added_is_hinted_at_too(hint, alive):
    assert len(hint("mail.sned", "--add", "--jid", "a")) == 1


def test_no_living_supervisor_is_hinted_at(hint, jobs, server, namespace, alive):
    server.redis.zadd(f"{{{namespace}}}:workers-seen", {"web-1": 1, "web-2": 1})
    assert hint("mail.send", "--queue", "email") == [
        "no supervisor is running: the job waits until one serves queue email"
    ]


def test_a_silent_supervisor_may_have_any_klass(hint, jobs, alive):
    calls_of(jobs).call(leasing.resume, "new", 1, [])
    assert hint("mail.sned", "--queue", "emial") == []


def test_an_account_without_reading_rights_puts_without_hints(hint, alive, monkeypatch):
    from supervisor.engine.client.sync_client import Client
    from supervisor.engine.model.errors import StoreUnavailable

    def refuse(self):
        raise StoreUnavailable("NOPERM")

    monkeypatch.setattr(Client, "workers", refuse)
    assert hint("mail.sned") == []
