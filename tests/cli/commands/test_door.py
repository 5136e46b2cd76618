"""`leasehold door` adds, changes, lists and removes doors, and says what it did."""

import json

import pytest


@pytest.fixture
def source(server, namespace):
    """The key of a list of Sidekiq with two entries."""
    key = f"foreign-{namespace}:queue:mail"
    jobs = [{"class": name, "args": [], "jid": name, "queue": "mail"} for name in ("HardJob", "Other")]
    server.redis.lpush(key, *map(json.dumps, jobs))
    yield key
    server.redis.unlink(key)


def test_door_is_added_shown_and_removed(shell, jobs, source, tmp_path):
    assert shell("door").err == "leasehold: there is no door\n"
    klasses = tmp_path / "klasses.json"
    klasses.write_text('{"HardJob": "mail.send"}')
    add = ("door", "add", "mail", "--format", "sidekiq", "--source", source, "--queue", "mail")
    assert shell.line(*add, "--klass-map", str(klasses)) == "door mail leads to queue mail"
    assert shell.line(*add, "--klass-map", str(klasses)) == "door mail is as it was"
    assert shell.rows("door")[1] == ["mail", "sidekiq", source, "mail", "mapped:", "1", "2"]
    (shown,) = shell.json("door", "list")
    assert (shown["klasses"], shown["klass"], shown["waiting"]) == ({"HardJob": "mail.send"}, None, 2)
    jobs.doors.take("mail")
    assert [jobs.job(jid).klass for jid in ("HardJob", "Other")] == ["mail.send", "Other"]
    assert shell.line(*add, "--klass", "mail.any") == "door mail leads to queue mail"
    assert shell.json("door")[0]["klass"] == "mail.any"
    assert shell.line("door", "remove", "mail") == "door mail is removed; its jobs go on"
    assert shell.json("door") == []
    said = shell("door", "remove", "mail")
    assert (said.code, "there is no door mail" in said.err) == (1, True)


def test_door_to_lists_of_clients_shows_their_pattern(shell, jobs, namespace):
    add = ("door", "add", "c", "--format", "client-lists", "--source", namespace, "--queue", "q", "--klass", "mail")
    assert shell.line(*add) == "door c leads to queue q"
    assert shell.rows("door")[1] == ["c", "client-lists", f"{namespace}:*", "q", "mail", "0"]
    assert shell.json("door")[0]["client_lists"] == []
