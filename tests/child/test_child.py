"""A child survives notices at any moment, and rehearses while it waits."""

import os
import signal
import socket
import traceback
from contextlib import contextmanager
from dataclasses import replace

import pytest

from supervisor import messages
from supervisor.child import around
from supervisor.child import child as running
from supervisor.child.handlers import Handler
from supervisor.child.talk import handle_notices
from supervisor.linux import kernel
from supervisor.messages import Notice, Verb
from supervisor.sandbox.confinement import Confinement
from supervisor.sandbox.workdir import Workdir
from tests.parts import Process, await_readable


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@contextmanager
def serving(tmp_path, function):
    """A process that serves one job, of klass k, by this handler; and our ends of `jobs` and `talk`."""
    (jobs, jobs_theirs), (talk, talk_theirs) = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in "jt")

    def serve():
        known = {"k": Handler(function, "k", messages.HandlerSettings(), False)}
        boot = messages.Boot("handlers", str(tmp_path), 1, "retry", 0, 1024)
        confinement = Confinement(boot, [messages.Profile("none", True)], lambda: None)
        handle_notices()
        running.Child(1, jobs_theirs, talk_theirs, Workdir(str(tmp_path / "w")), known, boot, confinement).serve()

    process = Process(serve)
    try:
        assert messages.unpack_outcome(talk.recv(1000)).verb == Verb.READY
        yield process, jobs, talk
    finally:
        process.end()
        for end in (jobs, jobs_theirs, talk, talk_theirs):
            end.close()


def packed_job(token):
    return messages.pack_job(token, ("j", "k", "q", 0, 0, 0, 0, (), None, False, 0.0), b"1", False)


def test_notice_while_a_soft_timeout_is_formatted_kills_no_child(tmp_path, pipe):
    telling, tells = pipe

    def late(job):
        known_words = traceback.format_exception

        def in_many_words(*error):
            os.write(tells, b"!")
            while not job.should_stop:
                os.sched_yield()
            return known_words(*error)

        traceback.format_exception = in_many_words
        os.write(tells, b"!")
        while True:
            os.sched_yield()

    with serving(tmp_path, late) as (process, jobs, talk):
        jobs.send(packed_job(7))
        for notice in (Notice(7, messages.TIMEOUT, "near"), Notice(7, "drain")):
            assert os.read(telling, 1) == b"!"
            talk.send(messages.pack_notice(notice))
            signal.pidfd_send_signal(process.pidfd, kernel.NOTICE_SIGNAL)
        await_readable(talk)
        outcome = messages.unpack_outcome(talk.recv(100_000))
        assert (outcome.verb, messages.unpack_trouble(outcome.body).group) == (Verb.RETRIED, "timeout")
        assert process.await_end() == 0


def test_waiting_child_rehearses_without_calling_hooks(tmp_path, monkeypatch, pipe):
    told, tells = pipe
    monkeypatch.setattr(kernel, "comes_within", lambda _sock, _timeout_s: os.write(tells, b"waits,") == 0)
    rehearsed = replace(running.REHEARSAL_HANDLER, function=lambda _job: os.write(tells, b"rehearses,") and None)
    monkeypatch.setattr(running, "REHEARSAL_HANDLER", rehearsed)
    monkeypatch.setattr(running, "setproctitle", lambda text: os.write(tells, text.encode() + b","))

    def tell(job):
        os.write(tells, f"around {job.jid},".encode())
        yield

    monkeypatch.setattr(around, "registered", [tell])
    with serving(tmp_path, lambda job: os.write(tells, b"handler,") and None) as (process, jobs, talk):
        said = b""
        while not said.endswith(b"rehearses,leasehold: child 1 idle,"):
            await_readable(told)
            said += os.read(told, 1000)
        assert said == b"leasehold: child 1 idle,waits,rehearses,leasehold: child 1 idle,"
        jobs.send(packed_job(7))
        await_readable(talk)
        outcome = messages.unpack_outcome(talk.recv(1000))
        assert (outcome.verb, outcome.token) == (Verb.COMPLETED, 7)
        assert process.await_end() == 0
        _title, *rest = os.read(told, 1000).split(b",")
        assert rest == [b"around j", b"handler", b""]
