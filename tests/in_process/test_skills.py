"""A worker inside of an application tells Redis of its handlers. Without a server."""

import pytest

from supervisor import handler
from supervisor.in_process.given import prepared
from supervisor.in_process.skills import Skills


@pytest.fixture
def skills():
    @handler(name="skills.tick", every="1d", queue="q")
    async def tick(job): ...

    return Skills(*prepared([tick]))


def told(skills, worker):
    """Return the scripts of the parts about the handlers, once Redis has answered them."""
    parts = [part for part in skills.parts(worker, ["q"]) if part.command.script.name != "describe"]
    for part in parts:
        if part.then is not None:
            part.then(None)
    return [part.command.script.name for part in parts]


def test_recurrences_are_declared_again_under_another_name(skills):
    assert told(skills, "w1") == ["skills"]
    assert told(skills, "w1") == []
    skills.tell_again()
    assert told(skills, "w1") == ["skills"]
    skills.tell_again()
    assert told(skills, "w2") == ["skills", "declare"]
    skills.tell_again()
    assert told(skills, "w2") == ["skills"]


def test_declarations_that_are_lost_are_told_again(skills):
    told(skills, "w1")
    skills.tell_again()
    skills.parts("w2", ["q"])[1].lost()
    assert told(skills, "w2") == ["skills", "declare"]
