"""A child's surroundings: it does not outlive its zygote, and touches nothing outside its directory."""

import os
import resource
import signal
import sys
import time
from types import SimpleNamespace

from supervisor import sandbox
from supervisor.linux import kernel
from supervisor.sandbox.workdir import Workdir
from tests.parts import Process, await_readable, in_fork, rest

TRIES = 30


class Family:
    """A zygote, and a pipe that all of it hold open: its end is the end of the last of them."""

    def __init__(self, zygote):
        self.ended, self.lives = os.pipe()
        self.go, self.goes = os.pipe()
        self.zygote = Process(lambda: (os.close(self.ended), os.close(self.goes), zygote(self)))
        os.close(self.lives)
        os.close(self.go)

    def await_word(self):
        await_readable(self.ended)
        return os.read(self.ended, 100)

    def await_all_ends(self):
        await_readable(self.ended)
        while os.read(self.ended, 100):
            await_readable(self.ended)

    def close(self):
        self.zygote.end()
        os.close(self.goes)
        os.close(self.ended)


def test_a_child_whose_zygote_dies_between_the_fork_and_its_first_step_ends_itself():
    """The hook that comes first holds it up until the zygote is gone: too late for any parent-death signal."""

    def zygote(family):
        def hold_up():
            os.write(family.lives, b"f")
            os.read(family.go, 1)

        os.register_at_fork(after_in_child=hold_up)
        guard = sandbox.Guard()
        if guard.fork() == 0:
            os.write(family.lives, b"lives on")
        rest()

    for _ in range(TRIES):
        family = Family(zygote)
        assert family.await_word() == b"f"
        family.zygote.end()
        os.write(family.goes, b"g")
        await_readable(family.ended)
        assert os.read(family.ended, 100) == b""
        family.close()


def test_no_child_outlives_a_zygote_that_is_killed_at_any_instant_of_its_forking():
    def zygote(family):
        guard = sandbox.Guard()
        os.write(family.lives, b"g")
        for _ in range(100):
            if guard.fork() == 0:
                rest()
        rest()

    for attempt in range(TRIES):
        family = Family(zygote)
        assert family.await_word() == b"g"
        kill_at = time.monotonic() + attempt * 0.0002
        while time.monotonic() < kill_at:
            os.sched_yield()
        family.zygote.end()
        family.await_all_ends()
        family.close()


def test_no_hook_of_the_handlers_comes_before_the_guard():
    """Their hook never returns; the child ends with its zygote all the same."""

    def zygote(family):
        guard = sandbox.Guard()
        os.register_at_fork(after_in_child=lambda: (os.write(family.lives, b"h"), rest()))
        guard.fork()
        rest()

    for _ in range(5):
        family = Family(zygote)
        assert family.await_word() == b"h"
        family.zygote.end()
        family.await_all_ends()
        family.close()


def test_forks_that_handlers_make_are_none_of_the_guards_business():
    def run():
        sandbox.Guard()
        ours, theirs = os.pipe()

        def parent():
            pid = os.fork()
            if pid == 0:
                rest()
            os.write(theirs, b"%d" % pid)

        Process(parent).await_end()
        daemon = int(os.read(ours, 20))
        os.kill(daemon, 0)
        os.kill(daemon, signal.SIGKILL)

    in_fork(run)


# what it inherits


def test_group_signals_do_not_end_a_child_and_are_default_again_in_what_it_executes():
    def run():
        sandbox.ignore_group_signals()
        for signo in sandbox.GROUP_SIGNALS:
            os.kill(os.getpid(), signo)
        assert signal.SIG_IGN not in [signal.getsignal(signo) for signo in sandbox.GROUP_SIGNALS]
        pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
        os.kill(pid, signal.SIGTERM)
        assert os.waitpid(pid, 0)[1] == signal.SIGTERM

    in_fork(run)


def test_signals_that_come_all_at_once_do_not_end_a_child():
    """The kernel puts a frame for each of them onto one stack before the first is handled."""

    def run():
        os.dup2(os.memfd_create("stacks"), sandbox.STACKS_FD)
        sandbox.ignore_group_signals()
        sandbox.enable_stack_dumps()
        signal.signal(kernel.NOTICE_SIGNAL, lambda _signo, _frame: None)
        all_of_them = [*sandbox.GROUP_SIGNALS, kernel.NOTICE_SIGNAL, kernel.STACKS_SIGNAL]
        signal.pthread_sigmask(signal.SIG_BLOCK, all_of_them)
        for signo in all_of_them:
            os.kill(os.getpid(), signo)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        assert b"most recent call first" in os.pread(sandbox.STACKS_FD, 10_000, 0)

    in_fork(run)


def test_a_process_that_a_handler_forks_ends_by_a_signal_also_if_that_comes_before_its_first_step():
    """As `multiprocessing` ends its workers: not at all where it is ignored."""

    def child():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        for _ in range(TRIES):
            pid = os.fork()
            if pid == 0:
                rest()
            os.kill(pid, signal.SIGTERM)
            assert os.waitpid(pid, 0)[1] == signal.SIGTERM
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before

    def run():
        sandbox.ignore_group_signals()
        guard = sandbox.Guard()
        pid = guard.fork()
        if pid == 0:
            in_fork(child)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    in_fork(run)


def test_a_process_that_preloaded_code_forks_ignores_what_is_meant_for_the_master():
    def run():
        sandbox.ignore_group_signals()
        sandbox.Guard()
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os.write(theirs, b"lives")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert os.read(ours, 10) == b"lives"

    in_fork(run)


def test_dispositions_that_handlers_set_while_they_were_imported_are_taken_back():
    def run():
        sandbox.ignore_group_signals()
        for signo in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGALRM, signal.SIGTERM):
            signal.signal(signo, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        sandbox.prepare()
        changed = {signo for signo in signal.valid_signals() if signal.getsignal(signo) not in (signal.SIG_DFL, None)}
        assert changed == {*sandbox.GROUP_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ}
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN

    in_fork(run)


def test_a_child_has_a_session_an_empty_mask_and_a_directory_of_its_own(tmp_path):
    def run():
        signal.pthread_sigmask(signal.SIG_BLOCK, kernel.HANDLED_SIGNALS)
        sandbox.enter(Workdir(str(tmp_path / "w")), open_files=100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 100
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
        assert os.getsid(0) == os.getpgid(0) == os.getpid()
        assert os.getcwd() == str(tmp_path / "w")

    in_fork(run)


# what it leaves


def test_a_child_gives_way_to_the_master_unless_the_operator_has_decided_otherwise(tmp_path):
    def usual():
        sandbox.enter(Workdir(str(tmp_path / "w")), open_files=100)
        assert os.sched_getscheduler(0) == os.SCHED_BATCH

    def idle():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        sandbox.enter(Workdir(str(tmp_path / "w")), open_files=100)
        assert os.sched_getscheduler(0) == os.SCHED_IDLE

    in_fork(usual)
    in_fork(idle)


def test_where_that_is_forbidden_a_child_works_as_well(tmp_path, monkeypatch):
    def refuse(*_given):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    in_fork(lambda: sandbox.enter(Workdir(str(tmp_path / "w")), open_files=100))


def test_leftovers_end_also_when_they_forked_twice_into_sessions_of_their_own():
    ended, lives = os.pipe()

    def run():
        os.close(ended)
        kernel.become_subreaper()
        sandbox.end_strays()
        for _ in range(5):
            first = os.fork()
            if first == 0:
                os.setsid()
                if os.fork() == 0:
                    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGALRM})
                    os.setsid()
                    os.write(lives, b"x")
                    rest()
                os._exit(0)
            os.waitpid(first, 0)
        Process(lambda: None)  # one that nobody has waited for
        Process(lambda: (Process(rest), rest()))  # one with a child of its own
        sandbox.end_strays()
        assert kernel.children_of_self() == set()

    in_fork(run)
    os.close(lives)
    await_readable(ended)
    os.read(ended, 100)
    await_readable(ended)
    assert os.read(ended, 100) == b""
    os.close(ended)


def test_the_global_generator_of_numpy_goes_on_differently_in_each_child(tmp_path, monkeypatch):
    """Stood in for: it is no dependency of ours."""
    seeded = []
    monkeypatch.setitem(sys.modules, "numpy.random", SimpleNamespace(seed=lambda: seeded.append(os.getpid())))
    monkeypatch.chdir(tmp_path)

    def run():
        sandbox.enter(Workdir(str(tmp_path / "w")), 1024)
        assert seeded == [os.getpid()]

    in_fork(run)


def test_a_module_of_that_name_without_a_generator_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy.random", SimpleNamespace())
    in_fork(lambda: sandbox.enter(Workdir(str(tmp_path / "w")), 1024))
