"""Modes of unique jobs, with producers in processes of their own and real supervisors."""

import contextlib
import os
import random
import signal
import subprocess
import sys

import pytest
from watched import FULL

PRODUCER = """
import sys
from supervisor import Client
url, namespace, first, mode = *sys.argv[1:4], sys.argv[4:]
options = {"debounce": "1h"} if mode == ["debounce"] else {"collect": "1h", "most": 40}
with Client(url, namespace) as client:
    for n in range(int(first), int(first) + 25):
        print(client.queue("default").put("collects.slowly", n, unique="key", max_deaths=0, **options), flush=True)
"""


FILLING = {"klass": "collects.slowly", "unique": "key", "collect": "1h", "most": 40, "max_deaths": 0}


@contextlib.contextmanager
def producers(stage, mode):
    """Put 100 numbers by four processes, and yield the list for the jids that they are answered."""
    arguments = [sys.executable, "-c", PRODUCER, stage.server.url, stage.namespace]
    started = [
        subprocess.Popen([*arguments, str(first), mode], stdout=subprocess.PIPE, text=True)
        for first in range(0, 100, 25)
    ]
    jids = []
    yield jids
    for one in started:
        jids += one.communicate()[0].split()
        assert one.returncode == 0


def results_in(stage):
    return [job.result for job in stage.client.completed(count=1000)]


@pytest.mark.sampled(2)
def test_debounced_puts_of_several_processes_run_once(stage):
    pool = stage.start(processes=2).wait_ready()
    with producers(stage, "debounce") as jids:
        pass
    last = stage.client.queue("default").put("collects.slowly", "last", unique="key", debounce=0.01)
    assert [*jids, last] == [last] * 101
    stage.wait_until(lambda: results_in(stage), "the run")
    assert results_in(stage) == ["last"]
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.sampled(3)
def test_each_collected_datum_runs_once_under_random_kills(stage):
    """TEST_FULL=1: three hundred kills, each of a child or of a master."""
    for number in range(75 if FULL else 2):
        pool = stage.start(processes=2).wait_ready()
        with producers(stage, "collect"):
            for _ in range(3):
                stage.let_time_pass(random.uniform(0, 0.2))
                for pid in pool.child_pids()[:1]:
                    with contextlib.suppress(ProcessLookupError):  # the job has ended, and its child with it
                        os.kill(pid, signal.SIGKILL)
            pool.send(signal.SIGKILL)
            pool.wait()
            stage.forget(pool)
        stage.client.queue("default").put_many({**FILLING, "data": n} for n in range(100, 120))
        after = stage.start(processes=2).wait_ready()
        wanted = 3 * (number + 1)
        stage.wait_until(lambda wanted=wanted: len(results_in(stage)) == wanted, "the collections")
        assert sorted(n for result in results_in(stage) for n in result) == sorted([*range(120)] * (number + 1))
        assert {len(result) for result in results_in(stage)} == {40}
        assert after.drain() == 0
    stage.assert_nothing_left()


def test_collecting_handler_gets_the_list_as_its_parameter(stage):
    pool = stage.start(processes=1, handlers="flow").wait_ready()
    for n in range(10):
        stage.client.queue("default").put("numbers", n, unique="numbers", collect="1h", most=10)
    stage.wait_until(lambda: results_in(stage) == [45], "the sum")
    assert pool.drain() == 0
    stage.assert_nothing_left()
