"""Every kind of misbehaviour, alone, beside others, and with Redis away.

Checks how the job ends, what is counted and reported, how soon the next job starts, and that nothing is left.
`.ci/run --full` tries each kind with Redis away; otherwise one of each group. TEST_FULL=1: Redis is away for five
seconds, and a gigabyte is printed.
"""

import re
import signal
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from supervised import await_ends, quantiles
from watched import FULL

from tests.lengths import LONG, PATIENCE

OUTAGE_S = 5.0 if FULL else 0.3
PRINT_BYTES = (1024 if FULL else 64) * 2**20
SHORT_S = 0.6 * PATIENCE
#: Time for a handler to notice an interruption, on a loaded machine.
SOFT_S = 3.0 * PATIENCE
MEMORY_LIMIT_BYTES = 64 * 2**20
#: Longest time from the master's knowledge of an end to the next start. Measured: some 20 ms.
NEXT_START_S = 8.0


@dataclass(frozen=True)
class Dish:
    """One handler of `menu/misbehave.py`, and the expected end. Every attempt misbehaves; two are allowed."""

    handler: str
    group: str = ""  # failure group at the end; empty: it completes at its first attempt
    says: str = ""  # pattern of the reason
    stack: str = ""  # part of the Python stack
    printed: str = ""  # part of the output
    data: dict[str, Any] = field(default_factory=dict)
    limit_s: float = 60.0

    def job(self, gate: str) -> dict[str, Any]:
        """Return the arguments of its put. The first attempt waits at the gate."""
        data = {**self.data, "gate": gate}
        return {
            "klass": f"misbehave.{self.handler}", "data": data, "timeout": self.limit_s, "retries": 1, "max_deaths": 2
        }  # fmt: skip

    @property
    def dies(self) -> bool:
        return self.group.startswith("died:")

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return failures, deaths and interruptions."""
        return (0, 0, 0) if not self.group else (0, 2, 0) if self.dies else (2, 0, 0)


FOREIGN = "which we did not send"
BY_US = "was killed by us"
LIMIT = "passed its time limit"
MEMORY = "its limit is 64 MB|twice its memory limit"

MENU = [
    Dish("raise_error", "LookupError", says="there is none", printed="about to raise"),
    Dish("exit_0", "died:exit-0", says="exited with status 0 in the middle of the job", printed="about to leave"),
    Dish("exit_3", "died:exit-3", says="exited with status 3 in the middle of the job", printed="about to leave"),
    Dish("abort", "died:SIGABRT", says=FOREIGN, stack="in abort"),
    Dish("segv", "died:SIGSEGV", says=FOREIGN, stack="in segv"),
    Dish("kill_self", "died:SIGKILL", says=FOREIGN, printed="about to kill myself"),
    Dish("ignore_term", "died:timeout", says=LIMIT, stack="in _sleep_deaf", printed="not me", limit_s=SOFT_S),
    Dish("spin", "timeout", stack="in spin", limit_s=SOFT_S),
    Dish("spin_in_c", "died:timeout", says=LIMIT, stack="in spin_in_c", limit_s=SHORT_S),
    Dish("sleep_in_c", "timeout", stack="in sleep_in_c", limit_s=SOFT_S),
    Dish("lock_in_c", "died:timeout", says=LIMIT, stack="in lock_in_c", limit_s=SHORT_S),
    Dish("allocate_slowly", "died:memory", says=MEMORY),
    Dish("allocate_fast", "died:memory", says=MEMORY),
    Dish("allocate_below", "died:memory", says=MEMORY),
    Dish("leak_threads"),
    Dish("double_fork"),
    Dish("double_fork_and_die", "died:SIGKILL", says=FOREIGN),
    Dish("close_all", "died:exit-70", says="exited with status 70 in the middle of the job"),
    Dish("close_all_and_stay", "died:timeout", says=LIMIT, limit_s=SHORT_S),
    Dish("write_garbage", "died:SIGKILL", says=f"{BY_US}: it spoke nonsense on its socket"),
    Dish("print_much", data={"print_bytes": PRINT_BYTES}),
    Dish("stop_self", "died:timeout", says=LIMIT, printed="about to stop", limit_s=SHORT_S),
    Dish("deaf_to_signals"),
    Dish("defenceless", "died:timeout", says=LIMIT, limit_s=SHORT_S),
    Dish("change_limits"),
    Dish("limit_files", "died:SIGXFSZ", says=FOREIGN),
    Dish("limit_descriptors", "died:exit-70", says="exited with status 70", printed="Too many open files"),
    Dish("fork_and_return_twice"),
    Dish("exec_true", "died:exit-0", says="exited with status 0 in the middle of the job"),
    Dish("exec_sleep", "died:timeout", says=LIMIT, limit_s=SHORT_S),
]

BESIDE = "beside three others"
AWAY = "with Redis away"
_AWAY_MENU = MENU if LONG else list({dish.group: dish for dish in MENU}.values())
CASES = [(setting, dish) for setting in ("alone", BESIDE) for dish in MENU] + [(AWAY, dish) for dish in _AWAY_MENU]
_next_starts_s: dict[str, list[float]] = defaultdict(list)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("setting", "dish"), CASES, ids=lambda part: getattr(part, "handler", part))
def test_every_end_is_explained_and_leaves_nothing(setting, dish, request, measured):
    stage = request.getfixturevalue("own_stage" if setting == AWAY else "stage")
    stage.config(grace=0.5)  # halves the longest wait between two connects
    neighbours = _Neighbours(stage, 3 if setting == BESIDE else 0)
    reuse = 0 if setting == BESIDE else 1
    pool = stage.start(processes=1 + neighbours.count, jobs_per_child=reuse, job_timeout="5m").wait_ready()
    neighbours.start()
    gate = stage.gate("misbehave")
    jid, behind = stage.queue.put_many([dish.job(gate), {"klass": "good.noop"}])
    if setting == AWAY:
        away_until_unix = _open_while_redis_is_away(stage, pool, gate, jid, request.getfixturevalue("own_server"))
    else:
        away_until_unix = 0.0
        stage.open_gate(gate)
    stage.wait_until_ended([jid, behind])

    _assert_outcome(stage, dish, jid)
    _assert_order(stage, dish, jid, behind)
    assert await_ends(stage.ledger.left_behind(jid), 0.0) == []
    if dish.dies:
        _assert_explained(stage, pool, dish, jid)
    next_start_s = stage.ledger.starts(jid, behind)[1].unix - max(
        away_until_unix, _known_unix(pool, dish, stage.ledger.starts(jid)[0])
    )
    assert next_start_s <= NEXT_START_S
    _measure(measured, setting, dish, next_start_s)
    if dish.group == "died:memory":
        most_bytes = max(event["memory_bytes"] for event in pool.find("job.died", jid=jid))
        measured(f"most memory, of its limit: {most_bytes / MEMORY_LIMIT_BYTES:.2f}")

    neighbours.finish()
    stage.assert_no_zombies()
    assert not pool.find("job.stale")
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize("handler", ["exec_sleep", "defenceless"])
def test_program_without_signal_handlers_survives_a_stack_dump(stage, handler):
    """All its signals have default effects, so a signal meant for Python would kill it."""
    pool = stage.start(processes=2, drain_timeout="0s", term_grace="0.2s").wait_ready()
    jid = stage.queue.put(f"misbehave.{handler}", {})
    other = stage.queue.put("good.count_interrupted", stage.gate("gate"))
    (start,) = stage.wait_for_starts(jid)
    stage.wait_for_starts(other)
    stage.wait_until_counted(lambda: _is_defenceless(start.pid))
    pool.send(signal.SIGUSR1)
    assert "in count_interrupted" in pool.wait_for("child.seen", jid=other)["stack"]
    pool.wait_for("child.seen", jid=jid)
    assert stage.client.job(jid).state == "running"
    assert pool.drain() == 0
    for job in stage.client.jobs(jid, other):
        assert (job.state, job.interruptions, job.deaths, job.failures) == ("waiting", 1, 0, 0)
    assert {event["reason"] for event in pool.find("job.released")} == {"drain"}
    stage.assert_nothing_left(waiting=["default"])


def test_child_with_a_lowered_descriptor_limit_retires(stage):
    """The job directory is empty, so that no code of ours needs a descriptor."""
    pool = stage.start(processes=1, jobs_per_child=0).wait_ready()
    for _ in range(3):  # a directory counts as empty only after a while
        stage.wait_until_ended([stage.queue.put("good.noop")])
        stage.let_time_pass(0.1)
    (dish,) = (dish for dish in MENU if dish.handler == "limit_descriptors")
    gate = stage.gate("misbehave")
    jid, behind = stage.queue.put_many([dish.job(gate), {"klass": "good.noop", "retries": 0}])
    stage.open_gate(gate)
    stage.wait_until_ended([jid, behind])
    _assert_outcome(stage, dish, jid)
    assert (stage.client.job(behind).state, stage.client.job(behind).failures) == ("complete", 0)
    assert pool.drain() == 0
    stage.assert_nothing_left()


def _is_defenceless(pid):
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return not int(caught.split()[1], 16) >> signal.SIGRTMIN


class _Neighbours:
    """Well-behaved jobs, which run from before its start until after its end."""

    def __init__(self, stage, count):
        self.stage = stage
        self.count = count
        self.jids = []

    def start(self):
        gate = self.stage.gate("neighbours")
        self.jids = [self.stage.queue.put("good.hold", gate) for _ in range(self.count)]
        for jid in self.jids:
            self.stage.wait_for_starts(jid)

    def finish(self):
        """Check that no neighbour has noticed anything."""
        assert set(self.stage.states(self.jids)) <= {"running"}
        self.stage.open_gate("neighbours")
        self.stage.wait_until_ended(self.jids)
        for job in self.stage.client.jobs(*self.jids):
            assert (job.state, job.failures, job.deaths, job.interruptions) == ("complete", 0, 0, 0)
            assert len(self.stage.ledger.starts(job.jid)) == 1


def _open_while_redis_is_away(stage, pool, gate, jid, server):
    """End its first attempt during an outage. Returns the time when Redis was back."""
    (start,) = stage.wait_for_starts(jid)
    server.kill()
    pool.wait_for("redis.lost")
    stage.open_gate(gate)
    assert await_ends([start.pid], 20.0) == []
    stage.let_time_pass(OUTAGE_S)
    server.start()
    return pool.wait_for("redis.connected")["time"]


def _assert_outcome(stage, dish, jid):
    job = stage.client.job(jid)
    assert (job.state, stage.client.failed()) == (("failed", {dish.group: 1}) if dish.group else ("complete", {})), (
        job.failure
    )
    assert (job.failures, job.deaths, job.interruptions) == dish.counts
    if not dish.group:
        return
    assert re.search(dish.says, job.failure["message"])
    assert dish.stack in job.failure.get("stack", "")
    assert dish.printed in job.failure.get("output", "")
    what, reason = ("died", "reason") if dish.dies else ("retried", "group")
    past = [entry for entry in job.history if entry["what"] == what]
    assert {entry[reason] for entry in past} == {dish.group.removeprefix("died:")}
    assert len(past) == (2 if dish.dies else 1)


def _assert_order(stage, dish, jid, behind):
    """A job that died starts again before all others, a failed one after them."""
    starts = [start.jid for start in stage.ledger.starts(jid, behind)]
    assert starts == ([jid, behind] if not dish.group else [jid, jid, behind] if dish.dies else [jid, behind, jid])


def _assert_explained(stage, pool, dish, jid):
    """The log has the same as the job: the reason, the sentence, and what the child has used."""
    died = pool.find("job.died", jid=jid)
    assert [(event["deaths"], event["state"]) for event in died] == [(1, "waiting"), (2, "failed")]
    assert {event["reason"] for event in died} == {dish.group.removeprefix("died:")}
    failure = stage.client.job(jid).failure
    assert died[-1]["message"] == failure["message"]
    for said in (*died, failure):
        assert said["max_rss_bytes"] >= 2**20
        if dish.group == "died:memory":
            assert MEMORY_LIMIT_BYTES <= said["memory_bytes"] <= 2.5 * MEMORY_LIMIT_BYTES


def _known_unix(pool, dish, first):
    """Return when the master knew of the end: by its own kill, the zygote's report, or the child's outcome."""
    if dish.dies:
        return (pool.find("child.killed", pid=first.pid) or pool.find("child.reaped", pid=first.pid))[0]["time"]
    return pool.find("job.retried" if dish.group else "job.completed", jid=first.jid)[0]["time"]


def _measure(measured, setting, dish, next_start_s):
    """Print one line per kind of end and setting, when all have been tried."""
    kind = "death" if dish.dies else "failure" if dish.group else "completion"
    _next_starts_s[f"{kind}, {setting}"].append(next_start_s)
    if dish is MENU[-1]:
        for name in [name for name in _next_starts_s if name.endswith(setting)]:
            measured(f"{name} -> the next start: {quantiles(_next_starts_s.pop(name))}")
