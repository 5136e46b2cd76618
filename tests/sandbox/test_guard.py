"""A child's surroundings: it ends with its zygote, and touches nothing outside of its directory."""

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
    """A zygote, and a pipe that all its processes hold open: the pipe ends with the last of them."""

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


def test_child_ends_if_the_zygote_died_during_the_fork():
    """The first hook delays the child until the zygote is gone: too late for a parent-death signal."""

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


def test_no_child_outlives_a_zygote_killed_while_forking():
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


def test_guard_comes_before_hooks_of_handlers():
    """Their hook never returns, and the child still ends with its zygote."""

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


def test_guard_ignores_forks_of_handlers():
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


# inherited state


def test_group_signals_spare_a_child_and_end_its_programs():
    def run():
        sandbox.ignore_group_signals()
        for signo in sandbox.GROUP_SIGNALS:
            os.kill(os.getpid(), signo)
        assert signal.SIG_IGN not in [signal.getsignal(signo) for signo in sandbox.GROUP_SIGNALS]
        pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
        os.kill(pid, signal.SIGTERM)
        assert os.waitpid(pid, 0)[1] == signal.SIGTERM

    in_fork(run)


def test_all_signals_at_once_do_not_end_a_child():
    """The kernel pushes a frame for each signal onto one stack before the first is handled."""

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


def test_forked_process_of_a_handler_ends_by_an_early_signal():
    """`multiprocessing` ends its workers so, which fails where the signal is ignored."""

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


def test_fork_of_preloaded_code_ignores_group_signals():
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


def test_signal_changes_by_imports_are_undone():
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


def test_child_has_its_own_session_mask_and_directory(tmp_path):
    def run():
        signal.pthread_sigmask(signal.SIG_BLOCK, kernel.HANDLED_SIGNALS)
        sandbox.enter(Workdir(str(tmp_path / "w")), open_files=100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 100
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
        assert os.getsid(0) == os.getpgid(0) == os.getpid()
        assert os.getcwd() == str(tmp_path / "w")

    in_fork(run)


# strays and schedulers


def test_child_is_sched_batch_unless_the_operator_decided(tmp_path):
    def usual():
        sandbox.enter(Workdir(str(tmp_path / "w")), open_files=100)
        assert os.sched_getscheduler(0) == os.SCHED_BATCH

    def idle():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        sandbox.enter(Workdir(str(tmp_path / "w")), open_files=100)
        assert os.sched_getscheduler(0) == os.SCHED_IDLE

    in_fork(usual)
    in_fork(idle)


def test_child_works_where_sched_batch_is_forbidden(tmp_path, monkeypatch):
    def refuse(*_given):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    in_fork(lambda: sandbox.enter(Workdir(str(tmp_path / "w")), open_files=100))


def test_double_forked_strays_end():
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
        Process(lambda: None)  # not waited for
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


def test_numpy_generator_differs_in_each_child(tmp_path, monkeypatch):
    """A stand-in, because numpy is no dependency."""
    seeded = []
    monkeypatch.setitem(sys.modules, "numpy.random", SimpleNamespace(seed=lambda: seeded.append(os.getpid())))
    monkeypatch.chdir(tmp_path)

    def run():
        sandbox.enter(Workdir(str(tmp_path / "w")), 1024)
        assert seeded == [os.getpid()]

    in_fork(run)


def test_numpy_module_without_generator_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy.random", SimpleNamespace())
    in_fork(lambda: sandbox.enter(Workdir(str(tmp_path / "w")), 1024))
