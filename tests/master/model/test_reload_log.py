"""Everyone who requests a reload is told its result once."""

import json
import os

import pytest

from supervisor.master.model.reload_log import Reloaded, Reloads
from supervisor.ops.events import Events


@pytest.fixture
def log():
    """The events that were said, and where to say them."""
    reads, writes = os.pipe()
    events = Events(writes, "json", "debug")
    os.close(writes)

    def said():
        events.flush()
        return [json.loads(line) for line in os.read(reads, 65536).splitlines()]

    yield events, said
    events.close(0.0)
    os.close(reads)


def test_request_is_answered_by_a_reload_that_begins_later(log):
    events, said = log
    reloads, told = Reloads(events), []
    assert (reloads.last, reloads.wanted) == (None, False)
    reloads.ask("an operator", lambda what: told.append(("first", what)))
    reloads.ask("SIGHUP", None)
    assert reloads.wanted
    reloads.begin()
    reloads.ask("another", lambda what: told.append(("second", what)))
    assert (reloads.wanted, told) == (True, [])
    reloads.succeed(3, 0.5, ["a", "b"], ["b", "c"])
    assert (told, reloads.last["by"]) == ([("first", Reloaded(3))], "SIGHUP")
    reloads.begin()
    assert not reloads.wanted
    reloads.fail("no such thing", "line 1")
    assert told[1:] == [("second", Reloaded(None, "no such thing", "line 1"))]
    lines = said()
    assert [line["event"].removeprefix("reload.") for line in lines] == [
        "requested", "requested", "requested", "completed", "failed",
    ]  # fmt: skip
    assert (lines[3]["added"], lines[3]["removed"], lines[3]["boot_ms"]) == (["c"], ["a"], 500)


def test_newer_reload_answers_for_one_given_up(log):
    events, _said = log
    reloads, told = Reloads(events), []
    for number in range(3):
        reloads.ask("an operator", told.append)
        reloads.begin()
        assert told == [], number
    reloads.succeed(4, 0.1, [], [])
    assert told == [Reloaded(4)] * 3


def test_last_reload_is_kept_for_the_status(log):
    events, _said = log
    reloads = Reloads(events)
    reloads.ask("SIGHUP", None)
    reloads.begin()
    reloads.fail("no such thing", "line 1")
    failed = reloads.last
    assert {name: failed[name] for name in failed if name != "at_unix"} == {
        "by": "SIGHUP", "outcome": "failed", "message": "no such thing", "traceback": "line 1",
    }  # fmt: skip
    reloads.ask("watch", None)
    reloads.begin()
    reloads.succeed(2, 0.1, [], [])
    assert (reloads.last["by"], reloads.last["outcome"], reloads.last["message"]) == ("watch", "completed", "")


def test_request_made_while_answered_waits_for_the_next(log):
    events, _said = log
    reloads, told = Reloads(events), []
    reloads.ask("an operator", lambda _what: reloads.ask("again", told.append))
    reloads.begin()
    reloads.fail("no")
    assert told == []
    reloads.begin()
    reloads.succeed(2, 0.1, [], [])
    assert told == [Reloaded(2)]
