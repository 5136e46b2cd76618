"""Which job ends zygotes is found out by letting jobs run one at a time, and the innocent go free."""

from types import SimpleNamespace

from supervisor.master.model.pace import Pace
from supervisor.master.model.slots import Slots
from supervisor.master.processes.poison_detector import PoisonDetector
from tests.parts import lease_of


def running(*tokens):
    """Children with these jobs in their hands; 0: idle."""
    return [SimpleNamespace(running=SimpleNamespace(lease=lease_of(token)) if token else None) for token in tokens]


def suspicion():
    slots = Slots(4, 1, 0.0, Pace())
    return slots, PoisonDetector(slots)


def test_one_loss_is_an_accident():
    slots, suspects = suspicion()
    slots.count_answer()
    suspects.on_loss(running(1, 2))
    assert not slots.cautious
    assert suspects.wait_s == 0
    assert not suspects.convicted


def test_losses_with_nothing_done_between_make_it_careful_and_slow():
    slots, suspects = suspicion()
    slots.count_answer()
    waits = []
    for token in range(1, 5):
        suspects.on_loss(running(token, token + 10))
        waits.append(suspects.wait_s)
    assert slots.cautious
    assert waits == [0, 0.2, 0.4, 0.8]


def test_the_same_job_at_two_losses_is_a_suspect_whatever_was_done_between():
    slots, suspects = suspicion()
    slots.count_answer()
    suspects.on_loss(running(1, 2))
    slots.count_answer()
    suspects.on_loss(running(2, 3))
    assert slots.cautious
    slots.count_answer()
    suspects.on_loss(running(4))
    assert suspects.wait_s == 0


def test_only_who_was_alone_at_three_losses_in_a_row_is_convicted():
    _slots, suspects = suspicion()
    for children in (running(1, 0), running(1), running(1, 2), running(1), running(0, 1)):
        suspects.on_loss(children)
        assert not suspects.convicted
    suspects.on_loss(running(1))
    assert suspects.convicted
    suspects.on_loss(running(2))
    assert not suspects.convicted
