"""What a child says that its jobs have used: as much after many short ones as by a look at it all."""

import subprocess
import sys

from supervisor import clock
from supervisor.child.used import Used
from tests.parts import in_fork, until


def test_after_short_work_what_was_used_is_what_a_whole_look_would_have_said():
    rounded_s = 1e-4  # the two clocks are of one account, and one of them counts microseconds
    used, other = Used(), Used()
    used.look()
    for _ in range(1000):
        before, _most = other.look()
        brief, _most = used.after(1e-6)
        assert before - rounded_s <= brief <= other.look()[0] + rounded_s


def test_what_was_waited_for_counts_after_work_that_was_long_enough_for_it():
    used = Used()
    before, _most = used.look()
    done = subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"])
    assert done.returncode == 0
    own_s = clock.processor_time()
    spent, most = used.after(1.0)
    assert spent - before > 0.01 and spent > own_s
    assert used.after(1e-6)[0] >= spent and used.after(1e-6)[1] == most


def test_memory_that_has_grown_by_many_short_jobs_is_seen_soon():
    def run():
        used = Used()
        _spent, before = used.look()
        kept = bytearray(64 * 2**20)
        kept[::4096] = b"x" * len(kept[::4096])
        until(lambda: used.after(1e-6)[1] >= before + 2**25)

    in_fork(run)
