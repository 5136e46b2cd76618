"""Redirected output is noticed, and each job's output ends with a mark."""

import io
import os
import sys

import pytest

from supervisor.child.printing import MARK, Printing
from tests.parts import in_fork


def printing(job, expected, where="pipe"):
    """Check that `end` returns `expected` after `job`, in a child that prints to a pipe or to the file `where`."""

    def run():
        _reading, writing = os.pipe()
        if where != "pipe":
            writing = os.open(where, os.O_WRONLY | os.O_CREAT)
        for fd in (1, 2):
            os.dup2(writing, fd)
        sys.stdout, sys.stderr = (os.fdopen(fd, "w", closefd=False) for fd in (1, 2))
        known = Printing()
        assert known.end(1, False)
        job()
        assert known.end(2, False) is expected

    in_fork(run)


def redirect(fd, where):
    os.dup2(os.open(where, os.O_WRONLY | os.O_CREAT), fd)


def put_back(fd):
    kept = os.dup(fd)
    redirect(fd, "/dev/null")
    os.dup2(kept, fd)


def another_pipe(fd):
    os.dup2(os.pipe()[1], fd)


def close_stream():
    sys.stdout = io.TextIOWrapper(io.BytesIO())
    sys.stdout.close()


CHANGES = [
    (lambda: os.close(1), False),
    (lambda: os.close(2), False),
    (lambda: redirect(1, "/dev/null"), False),
    (lambda: redirect(2, "f"), False),
    (lambda: another_pipe(1), False),
    (lambda: another_pipe(2), False),
    (close_stream, False),
    (lambda: put_back(1), True),
    (lambda: put_back(2), True),
    (lambda: os.dup2(1, 2), True),
    (lambda: os.write(1, b"a line\n"), True),
    (lambda: setattr(sys, "stdout", None), True),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
@pytest.mark.parametrize("where", ["pipe", "file"])
def test_changed_output_is_noticed(change, expected, where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printing(change, expected, where)


def test_output_closed_by_a_hook_may_stay_closed():
    def run():
        os.close(1)
        known = Printing()
        assert known.end(1, True)
        os.dup2(2, 1)
        assert not known.end(2, True)

    in_fork(run)


def test_mark_is_written_if_output_is_unread_or_forced():
    def run():
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        known = Printing()
        known.end(1, False)
        known.end(2, True)
        assert os.read(reading, 100) == MARK % 2
        os.write(1, b"words\n")
        known.end(3, False)
        assert os.read(reading, 100) == b"words\n" + MARK % 3
        redirect(2, "/dev/null")
        assert not known.end(4, True)
        assert os.read(reading, 100) == MARK % 4
        os.dup2(2, 1)
        assert not known.end(5, True)
        os.set_blocking(reading, False)
        with pytest.raises(BlockingIOError):
            os.read(reading, 100)

    in_fork(run)
