"""Whether a job has left its output as it was, and which job's words are which."""

import io
import os
import sys

import pytest

from supervisor.child.printing import MARK, Printing
from tests.parts import in_fork


def printing(job, expected, where="pipe"):
    """Where a child prints to a pipe, or to what a hook of the handlers has put in its place, does this job leave it as
    it was?
    """

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
def test_what_a_job_makes_of_its_output_is_seen(change, expected, where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printing(change, expected, where)


def test_what_a_hook_has_closed_may_stay_closed():
    def run():
        os.close(1)
        known = Printing()
        assert known.end(1, True)
        os.dup2(2, 1)
        assert not known.end(2, True)

    in_fork(run)


def test_a_mark_is_written_where_nobody_has_read_the_words_before_it_or_in_any_case():
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
