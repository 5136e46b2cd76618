"""The child's end of `talk` loses nothing and never blocks for ever, whichever thread reads."""

import os
import random
import signal
import socket
import threading

import pytest

from supervisor import Interrupted, LeaseLost, SoftTimeout, messages
from supervisor.child.context import JobCalls, JobContext
from supervisor.child.talk import Talk, handle_notices
from supervisor.linux import kernel
from supervisor.messages import JobMessage, Notice, Stored, Verb
from tests.parts import Process, in_fork, until

TOKEN = 7


class Master:
    """Plays the master, in a process of its own."""

    def __init__(self, talk, pid):
        self.talk = talk
        self.pid = pid

    def next_number(self):
        """Return the number of the next checkpoint."""
        while True:
            outcome = messages.unpack_outcome(self.talk.recv(messages.MAX_PACKET_BYTES))
            if outcome.verb == Verb.CHECKPOINT:
                return messages.unpack_checkpoint(outcome.body).number

    def answer(self, number, kept=True):
        self.talk.send(messages.pack_stored(Stored(number, kept)))

    def signal(self):
        os.kill(self.pid, kernel.NOTICE_SIGNAL)

    def say(self, reason="drain", **how):
        """Send a notice without its signal."""
        self.talk.send(messages.pack_notice(Notice(TOKEN, reason, **how)))

    def notify(self, reason="drain", **how):
        self.say(reason, **how)
        self.signal()


def job_of(talk):
    message = JobMessage(TOKEN, "j", "k", "q", 0, 0, 0, 0, [], None, False, 0.0, False, b"1")
    return JobContext(message, "/tmp", JobCalls(talk.report, talk.checkpoint, talk.read_notices))


def talking(play, handle):
    """Run `handle(job)` in a child, whose master does what `play(master)` says."""

    def run():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        talk = Talk(theirs)
        handle_notices()
        talk.listen()
        pid = os.getpid()

        def master():
            theirs.close()
            signal.signal(kernel.NOTICE_SIGNAL, signal.SIG_IGN)
            play(Master(ours, pid))

        process = Process(master)
        ours.close()
        try:
            job = job_of(talk)
            talk.begin(job)
            talk.may_interrupt(TOKEN)
            handle(job)
            talk.must_not_interrupt()
        finally:
            process.end()

    in_fork(run)


def nudge_for_ever(master):
    while True:
        master.signal()
        signal.sigtimedwait((), 0.01)


def test_checkpoints_are_answered_during_a_storm_of_notices():
    def play(master):
        while (number := master.next_number()) < 1000:
            for _ in range(random.randrange(3)):
                master.notify(gently=True)
            master.answer(number)
            for _ in range(random.randrange(3)):
                master.signal()
        master.notify(at_checkpoint=True)
        master.answer(number)
        nudge_for_ever(master)

    def handle(job):
        for number in range(999):
            job.checkpoint(number)
        assert job.should_stop
        with pytest.raises(Interrupted, match="drain"):
            job.checkpoint("last")
            job.checkpoint("the notice came just behind the answer")

    talking(play, handle)


def test_notice_reaches_main_thread_while_others_wait_for_checkpoints():
    def play(master):
        for _ in range(300):
            master.answer(master.next_number())
        master.notify()
        while True:
            master.answer(master.next_number())
            master.signal()

    def handle(job):
        def store():
            try:
                while True:
                    job.checkpoint(1)
            except (Interrupted, LeaseLost):
                return

        threads = [threading.Thread(target=store, daemon=True) for _ in range(3)]
        with pytest.raises(Interrupted):
            for thread in threads:
                thread.start()
            threading.Event().wait(20)
            raise AssertionError("it was not interrupted")

    talking(play, handle)


def test_thread_in_a_checkpoint_is_interrupted_with_the_main_one():
    def play(master):
        master.answer(master.next_number())
        number = master.next_number()
        master.notify(at_checkpoint=True)
        master.answer(number)
        nudge_for_ever(master)

    def handle(job):
        said = []

        def store():
            try:
                for number in range(3):
                    job.checkpoint(number)
                    said.append(number)
            except Interrupted as interrupted:
                said.append(interrupted.reason)

        thread = threading.Thread(target=store)
        with pytest.raises(Interrupted):
            thread.start()
            threading.Event().wait(20)
        thread.join(20)
        assert said in ([0, "drain"], [0, 1, "drain"])  # by its own wait, or by the next one

    talking(play, handle)


@pytest.mark.parametrize(("reason", "error"), [("drain", Interrupted), ("timeout", SoftTimeout)])
def test_notice_ends_the_wait_and_a_late_answer_is_ignored(reason, error):
    def play(master):
        first = master.next_number()
        master.notify(reason)
        second = master.next_number()
        master.answer(first)
        signal.sigtimedwait((), 0.02)
        master.answer(second)
        nudge_for_ever(master)

    def handle(job):
        with pytest.raises(error):
            job.checkpoint("first")
        job.checkpoint("second")
        assert job.should_stop

    talking(play, handle)


@pytest.mark.parametrize("reason", ["cancelled", "lease-lost"])
@pytest.mark.parametrize("answered", [True, False])
def test_lost_lease_ends_the_wait_and_is_raised_once(reason, answered):
    def play(master):
        number = master.next_number()
        if answered:
            master.answer(number, kept=False)
        master.notify(reason)
        nudge_for_ever(master)

    def handle(job):
        with pytest.raises(LeaseLost):
            job.checkpoint("first")
        until(lambda: job.should_stop)
        with pytest.raises(LeaseLost):
            job.checkpoint("second")
        signal.sigtimedwait((), 0.05)

    talking(play, handle)


def test_should_stop_needs_no_signal():
    def handle(job):
        until(lambda: job.should_stop)

    talking(lambda master: master.say(gently=True), handle)


def test_should_stop_in_threads_steals_no_answer():
    def play(master):
        for _ in range(100):
            number = master.next_number()
            master.say(gently=True)
            master.answer(number)
        signal.sigtimedwait((), 20)

    def handle(job):
        over = threading.Event()

        def ask():
            while not over.is_set():
                job._told_to_stop, job._read_notices_at = False, 0.0  # each call looks
                assert job.should_stop in (True, False)
                os.sched_yield()

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(100):
            job.checkpoint(number)
        over.set()
        for thread in threads:
            thread.join(20)

    talking(play, handle)


def test_notice_read_by_a_thread_interrupts_the_main_one():
    def handle(job):
        def ask():
            while not job.should_stop:
                os.sched_yield()

        with pytest.raises(Interrupted):
            threading.Thread(target=ask, daemon=True).start()
            threading.Event().wait(20)
            raise AssertionError("it was not interrupted")

    talking(lambda master: master.say(), handle)


def test_should_stop_in_a_fork_reads_no_notice():
    def play(master):
        master.say(gently=True)
        master.answer(master.next_number())

    def handle(job):
        fork = Process(lambda: [job._calls.read_notices() for _ in range(1000)])
        assert fork.await_end() == 0
        assert not job._told_to_stop
        until(lambda: job.should_stop)
        job.checkpoint(1)

    talking(play, handle)


def test_end_of_the_master_ends_the_wait():
    def handle(job):
        with pytest.raises(LeaseLost, match="supervisor has ended"):
            job.checkpoint(1)

    talking(lambda master: master.next_number(), handle)


def test_checkpoint_works_after_an_alarm_interrupted_one():
    def play(master):
        master.next_number()
        master.answer(master.next_number())
        master.notify()
        nudge_for_ever(master)

    def handle(job):
        def alarm(*_):
            raise TimeoutError

        signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeoutError):
            job.checkpoint("first")
        with pytest.raises(Interrupted):
            job.checkpoint("second")
            threading.Event().wait(20)

    talking(play, handle)


def test_leftover_thread_cannot_store_for_the_next_job():
    def run():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        talk = Talk(theirs)
        job = job_of(talk)
        talk.begin(job)
        talk.end()
        with pytest.raises(LeaseLost, match="has ended"):
            job.checkpoint(1)
        with pytest.raises(BlockingIOError):
            ours.recv(100, socket.MSG_DONTWAIT)

    in_fork(run)
