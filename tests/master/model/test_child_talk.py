"""The master reads all outcomes of a child up to the end of its socket, and nothing unexpected."""

import errno
import os
import socket

import pytest

from supervisor import messages
from supervisor.linux import kernel
from supervisor.master.model import child_talk
from supervisor.messages import Notice, Verb
from tests.parts import Sender, await_readable, held_of, open_fds


def test_unexpected_memfd_is_not_read(child, monkeypatch):
    monkeypatch.setattr(kernel, "read_sealed", lambda *_given: pytest.fail("it was read"))

    def says(packet):
        memfd = kernel.sealed_memfd((b"x",))
        kernel.send(talk, packet, (memfd,))
        os.close(memfd)
        with pytest.raises(ValueError):
            list(child.talk.read())

    with socket.socket(fileno=os.dup(child.child_ends[1])) as talk:
        before = open_fds()
        says(messages.pack_outcome(Verb.FOLLOWED, 0, 0.0))
        child.send(held_of(1))
        for verb, token in ((Verb.COMPLETED, 1), (Verb.PROGRESS, 1), (Verb.FOLLOWED, 2)):
            says(messages.pack_outcome(verb, token, 0.0))
        says(b"\x05")
        assert open_fds() == before
    child.close_child_ends()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_large_completion_is_read_without_a_free_descriptor(child, monkeypatch, number):
    def refuse(fd):
        raise OSError(number, os.strerror(number))

    body = b"x" * 2_000_000
    memfd = kernel.sealed_memfd((body,))
    with socket.socket(fileno=os.dup(child.child_ends[1])) as talk:
        kernel.send(talk, messages.pack_outcome(Verb.FOLLOWED, 1, 0.0), (memfd,))
    os.close(memfd)
    child.send(held_of(1))
    monkeypatch.setattr(child_talk.os, "dup", refuse)
    assert [(outcome.body == body, child.talk.memfd) for outcome in child.talk.read()] == [(True, None)]
    monkeypatch.undo()
    child.close_child_ends()


def test_lack_of_kernel_memory_is_no_fault_of_the_child(child, monkeypatch):
    def refuse(*_given):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(child_talk.packets, "receive", refuse)
    assert list(child.talk.read()) == []
    assert not child.talk.at_end
    child.close_child_ends()


@pytest.mark.parametrize("is_shared", [False, True])
def test_packet_waits_for_memory(child, monkeypatch, is_shared):
    monkeypatch.setattr(child.talk, "_ours", Sender(child.talk._ours, 2))
    waiting = []
    child.talk.is_shared = is_shared
    child.talk.keep_unsent(lambda: waiting.append(child.talk.has_unsent))
    assert child.talk.send(b"first") and child.talk.send(b"second")
    child.talk.flush()
    assert (waiting, child.talk.has_unsent) == ([True], True)
    child.talk.flush()
    assert not child.talk.has_unsent
    with socket.socket(fileno=os.dup(child.child_ends[1])) as talk:
        assert [talk.recv(100), talk.recv(100)] == [b"first", b"second"]
    child.close_child_ends()


@pytest.mark.parametrize("is_shared", [False, True])
def test_packet_waits_at_a_full_socket_only_for_a_shared_child(child, is_shared):
    child.talk.is_shared = is_shared
    sent = 0
    while not child.talk.has_unsent and child.talk.send(b"x" * 1000):
        sent += 1
    assert sent and child.talk.has_unsent is is_shared
    child.close_child_ends()


def test_end_of_the_child_ends_its_talk_after_its_last_outcome(child, process):
    def say_and_die(ends):
        ends.say(Verb.COMPLETED, ends.next_job().token)

    child.send(held_of(1))
    assert process(child, say_and_die).await_end() == 0
    assert [outcome.token for outcome in child.talk.read()] == [1]
    assert child.talk.at_end


def test_last_outcome_is_read_though_the_child_left_a_notice_unread(child, process):
    def answer_and_die(ends):
        await_readable(ends.talk)
        ends.say(Verb.COMPLETED, ends.next_job().token)

    child.send(held_of(1))
    running = process(child, answer_and_die)
    child.talk.send(messages.pack_notice(Notice(1, "drain")))
    running.await_end()
    assert [outcome.token for outcome in child.talk.read()] == [1]
    assert child.talk.at_end
