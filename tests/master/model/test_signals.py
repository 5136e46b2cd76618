"""Every signal that is read has one meaning, and its sender is described."""

import os
import signal

import pytest

from supervisor.__main__ import HANDLED
from supervisor.linux.kernel import HANDLED_SIGNALS, Received
from supervisor.master.model.signals import MEANINGS, By
from tests.parts import Process, rest


def test_every_read_signal_has_a_meaning_and_is_blocked():
    assert MEANINGS.keys() == HANDLED_SIGNALS == set(HANDLED)


def test_sender_is_named_with_its_program():
    with open(f"/proc/{os.getpid()}/comm") as file:
        own = file.read().strip()
    by = By.of(Received(signal.SIGHUP, os.getpid(), 1000, False))
    assert by.fields == {"signal": "SIGHUP", "sender_pid": os.getpid(), "sender_uid": 1000, "sender": own}
    assert str(by) == f"SIGHUP from pid {os.getpid()} ({own}, uid 1000)"


def test_ended_sender_is_named_by_its_pid():
    process = Process(rest)
    process.end()
    by = By.of(Received(signal.SIGTERM, process.pid, 0, False))
    assert (by.sender_pid, by.sender) == (process.pid, None)
    assert str(by) == f"SIGTERM from pid {process.pid} (gone by now, uid 0)"


@pytest.mark.parametrize(("by_kernel", "words"), [(True, "the kernel"), (False, "outside this container")])
def test_sender_without_pid_is_the_kernel_or_outside(by_kernel, words):
    by = By.of(Received(signal.SIGINT, 0, 0, by_kernel))
    assert by.sender_pid is None and words in by.sender and words in str(by)


def test_command_is_named():
    by = By("leasehold drain")
    assert str(by) == "leasehold drain"
    assert by.fields == {"by": "leasehold drain", "sender_pid": None, "sender_uid": None, "sender": None}
