"""Operators' requests act on a played master, and sentences say so."""

import pytest

from supervisor import clock
from supervisor.engine.worker.wait import WaitsFor
from supervisor.master.model.signals import By

BY = By("leasehold pause")


def test_paused_master_starts_jobs_again_after_resume(played, live):
    master = played()
    assert master.controls.pause(BY) == "is paused: it starts no job; running, and going on: 0"
    assert master.controls.pause(BY) == "nothing: it is paused already"
    live.queue("q").put("k", jid="a")
    master.turn_until(lambda: master.session.wakeups.waits_for is WaitsFor.MAIL)
    assert live.job("a").state == "waiting"
    assert master.controls.resume(BY) == "starts jobs again"
    assert master.controls.resume(BY) == "nothing: it is not paused"
    master.turn_until(lambda: master.desk.slots.busy)
    assert [len(master.desk.events(name)) for name in ("master.paused", "master.resumed")] == [1, 1]


def test_second_drain_command_changes_nothing(played):
    master = played()
    assert master.controls.drain(BY) == "drains: 0 jobs running, it ends within 30 s"
    assert master.controls.drain(BY) == "nothing: it drains already"
    assert master.desk.events("master.hurried") == []


def test_second_signal_hurries_only_after_a_second(played):
    master = played()
    master.controls.drain_or_hurry(BY, clock.monotonic())
    began_at = master.drain.schedule.began_at
    again = master.controls.drain_or_hurry(BY, began_at + 1.0)
    assert again == "nothing: within a second it is the same request"
    assert master.controls.drain_or_hurry(BY, began_at + 1.1).startswith("hurries: ")
    assert len(master.desk.events("master.hurried")) == 1


@pytest.mark.parametrize("request_name", ["pause", "resume", "reload", "more", "fewer"])
def test_draining_master_refuses_other_requests(played, request_name):
    master = played()
    master.drain.begin(BY)
    with pytest.raises(ValueError, match="it drains"):
        getattr(master.controls, request_name)(BY)
