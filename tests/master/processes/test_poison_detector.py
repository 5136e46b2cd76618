"""The poison detector makes jobs run one at a time until the job that kills zygotes is found."""

from types import SimpleNamespace

from supervisor.master.jobs.admission import Admission
from supervisor.master.model.budget import Budget
from supervisor.master.model.ledgers import Ledgers
from supervisor.master.model.slots import Slots
from supervisor.master.processes.poison_detector import PoisonDetector
from supervisor.master.timers import Timers
from tests.parts import lease_of


def running(*tokens):
    """Children that run the jobs with these tokens; 0: an idle child."""
    runs = [[SimpleNamespace(held=SimpleNamespace(lease=lease_of(token)))] if token else [] for token in tokens]
    return [SimpleNamespace(runs=each) for each in runs]


def new_detector():
    admission = Admission(Slots(4, 1), Ledgers(), Budget(0), Timers())
    return admission, PoisonDetector(admission)


def test_one_loss_is_an_accident():
    admission, detector = new_detector()
    admission.job_ended()
    detector.zygote_lost(running(1, 2))
    assert not admission.is_serial
    assert detector.wait_s == 0
    assert not detector.is_poison


def test_losses_in_a_row_start_serial_execution_and_delay_zygotes():
    admission, detector = new_detector()
    admission.job_ended()
    waits = []
    for token in range(1, 5):
        detector.zygote_lost(running(token, token + 10))
        waits.append(detector.wait_s)
    assert admission.is_serial
    assert waits == [0, 0.2, 0.4, 0.8]


def test_same_job_at_two_losses_starts_serial_execution():
    admission, detector = new_detector()
    admission.job_ended()
    detector.zygote_lost(running(1, 2))
    admission.job_ended()
    detector.zygote_lost(running(2, 3))
    assert admission.is_serial
    admission.job_ended()
    detector.zygote_lost(running(4))
    assert detector.wait_s == 0


def test_only_a_job_alone_at_three_losses_in_a_row_is_poison():
    _admission, detector = new_detector()
    for children in (running(1, 0), running(1), running(1, 2), running(1), running(0, 1)):
        detector.zygote_lost(children)
        assert not detector.is_poison
    detector.zygote_lost(running(1))
    assert detector.is_poison
    detector.zygote_lost(running(2))
    assert not detector.is_poison
