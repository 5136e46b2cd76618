"""Hundreds of handlers are tested in a second."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import supervisor

_TESTS = 600
_TEXT = f"""
import pytest
from supervisor import handler


@handler(name="one")
def one(job, user: int):
    return user


@pytest.mark.parametrize("user", range({_TESTS}))
def test_one(leasehold, user):
    one.put(user=user)
    assert leasehold.run()[0].check() == user
"""


def test_a_hundred_handlers_are_tested_in_a_second(tmp_path, measured):
    (tmp_path / "test_many.py").write_text(_TEXT)
    environment = {**os.environ, "PYTHONPATH": str(Path(supervisor.__file__).parents[1])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert f"{_TESTS} passed" in done.stdout, done.stdout
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    measured(f"{_TESTS / cpu_s:.0f} tests of handlers per second of the processor, start of pytest included")
    assert cpu_s < _TESTS / 100
