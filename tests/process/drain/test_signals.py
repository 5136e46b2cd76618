"""Each signal in each state of the master, once and twice, to it alone and to its group.

The log explains the end, each job is accounted for, nothing is left, and the drain keeps within its budget.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2
from typing import Any

import pytest

from supervisor.config import LAST_EXCHANGE_S, REAP_S
from supervisor.master.model.shutdown_schedule import HURRIED_EXCHANGE_S
from tests.lengths import FULL

ENDING = [SIGTERM, SIGINT, SIGQUIT]
#: Signals in an order in which each finds the state that the first one found.
OTHERS = [SIGHUP, SIGUSR1, SIGTTIN, SIGTTOU, SIGUSR2, SIGCONT]
AT_ONCE = 9  # supervisors, on a machine with two cores
#: Time for the end of the interpreter, on a loaded machine.
SLACK_S = 8.0
PATIENCE_S, GRACE_S = 25.0, 3.0
#: Times for shutdowns that go through all their steps.
SHORT_PATIENCE_S, SHORT_GRACE_S = 0.4, 0.2

APP = """
import contextlib
import os
from pathlib import Path

from supervisor import handler

HERE, CELL = Path({here!r}), os.environ["CELL"]


def wait_at(gate):
    os.close(os.open(HERE / "gates" / gate, os.O_RDONLY | os.O_CLOEXEC))


with open(HERE / f"imported-{{CELL}}", "a") as file:
    file.write("x")
if (HERE / f"hangs-{{CELL}}").exists():
    wait_at("never")


@handler
def noop(job): ...


@handler
def hold(job):
    print("begun")
    wait_at(job.data)
"""


@dataclass
class Cell:
    """One supervisor, and the signals that it gets."""

    state: str
    signals: list[signal.Signals]
    twice: bool
    group: bool
    stage: Any
    number: int
    pool: Any = None
    held: str | None = None  # a job that runs
    rest: list[str] = field(default_factory=list)  # those behind it
    open: bool = False  # the gate at which it waits

    def __str__(self) -> str:
        names = "+".join(each.name for each in self.signals)
        return f"{names}{' twice' * self.twice}{' to all' * self.group} while {self.state}"

    @property
    def name(self) -> str:
        return f"cell-{self.number}"

    @property
    def ends(self) -> bool:
        return self.signals[0] in ENDING

    @property
    def hurries(self) -> bool:
        return self.ends and (SIGQUIT in self.signals or self.state == "draining")

    @property
    def cut_off(self) -> bool:
        """Return whether its jobs cannot be handed back."""
        return self.ends and self.state == "redis away"

    # its state

    def start(self) -> None:
        short = self.state == "redis away" and self.ends
        patience_s, grace_s = (SHORT_PATIENCE_S, SHORT_GRACE_S) if short else (PATIENCE_S, GRACE_S)
        self.ladder_s = patience_s + grace_s + REAP_S + LAST_EXCHANGE_S
        if self.state == "booting":
            self.hang()
            self.rest = self.put(2)
        self.pool = self.stage.start(
            handlers="app", environment={"CELL": self.name}, queue=self.name, lease_ttl="4s",
            drain_timeout=f"{patience_s}s", term_grace=f"{grace_s}s",
        )  # fmt: skip

    def put(self, count: int) -> list[str]:
        return self.stage.client.queue(self.name).put_many([{"klass": "noop"}] * count)

    def hang(self) -> None:
        """Make each later import of the handlers hang."""
        (self.stage.directory / f"hangs-{self.name}").touch()

    def imports(self) -> int:
        path = self.stage.directory / f"imported-{self.name}"
        return path.stat().st_size if path.exists() else 0

    def wait_for_import(self, count: int) -> None:
        self.stage.wait_until_counted(lambda: self.imports() >= count)

    def begin_work(self) -> None:
        self.pool.wait_ready()
        if self.state == "idle":
            return
        gate = self.stage.gate(self.name)
        self.held = self.stage.client.queue(self.name).put("hold", gate)
        self.pool.wait_for("job.printed", jid=self.held, line="begun")
        self.rest = self.put(2)

    def reach(self) -> None:
        """Bring the supervisor into its state."""
        match self.state:
            case "booting":
                self.pool.wait_for("master.started")
                self.wait_for_import(1)
            case "redis away":
                self.pool.wait_for("redis.lost")
            case "reloading":
                self.hang()
                self.pool.send(SIGHUP)
                self.wait_for_import(2)
            case "paused":
                self.pool.send(SIGUSR2)
                self.pool.wait_for("master.paused")
            case "draining":
                self.pool.send(SIGTERM)
                self.pool.wait_for("master.draining")

    # what it is sent

    def send(self) -> None:
        for signo in self.signals:
            before = len(self.pool.find("signal.received", signal=signo.name))
            self.sent_at = time.monotonic()
            for _ in range(1 + self.twice):
                self.pool.send_group(signo) if self.group else self.pool.send(signo)
            said = self.pool.wait_for("signal.received", nth=before + 1, signal=signo.name)
            assert (said["sender_pid"], said["sender_uid"]) == (os.getpid(), os.getuid()), said
            assert EFFECTS[signo][self.state == "draining"] in said["effect"], f"{self}: {said['effect']}"

    def end(self) -> None:
        """End it by TERM if its signals did not."""
        if not self.ends and self.state != "draining":
            assert self.pool.process.poll() is None, f"{self} has ended it"
            self.sent_at = self.pool.send(SIGTERM)
        if not self.hurries:
            self.pool.wait_for("master.draining")
            self.open_gate()
        code = self.pool.wait(self.ladder_s + SLACK_S)
        took_s = time.monotonic() - self.sent_at
        assert code == (75 if self.cut_off else 0), f"{self}: {code}"
        within_s = min(self.ladder_s, REAP_S + HURRIED_EXCHANGE_S) if self.hurries else self.ladder_s
        assert took_s <= within_s + SLACK_S, f"{self}: {took_s}"
        stopped = self.pool.find("master.stopped")[0]
        assert stopped["exit_code"] == code and stopped["time"] - self.pool.find("master.draining")[0]["time"] <= (
            self.ladder_s + SLACK_S
        )

    def open_gate(self) -> None:
        if self.held is not None and not self.open:
            self.open = True
            self.stage.open_gate(self.name)

    # what has become of its jobs

    def account(self) -> None:
        jids = [*([self.held] if self.held else []), *self.rest]
        states = dict(zip(jids, self.stage.states(jids), strict=True))
        if self.held is not None:
            job = self.stage.client.job(self.held)
            counts = (job.failures, job.deaths, job.interruptions)
            expected = ("waiting", (0, 0, 1)) if self.hurries else ("complete", (0, 0, 0))
            assert (job.state, counts) == expected, f"{self}: {job.state} {counts}"
        may_have_run = SIGTTIN in self.signals  # there was a process for them
        for jid in self.rest:
            job = self.stage.client.job(jid)
            assert (job.failures, job.deaths, job.interruptions) == (0, 0, 0)
            assert states[jid] == "waiting" or (may_have_run and states[jid] == "complete"), f"{self}: {states[jid]}"
        leased = [lease.jid for lease in self.stage.client.queue(self.name).lease("looker", 10)]
        assert leased == [jid for jid in jids if states[jid] == "waiting"], str(self)


#: The logged effect of the first signal of each kind: while serving, and while draining.
EFFECTS = {
    SIGTERM: ("drains", "hurries"),
    SIGINT: ("drains", "hurries"),
    SIGQUIT: ("hurries", "hurries"),
    SIGHUP: ("loads the handlers anew", "nothing: it drains"),
    SIGUSR1: ("stacks of its children", "stacks of its children"),
    SIGTTIN: ("goes from 1 to 2", "nothing: it drains"),
    SIGTTOU: ("", "nothing: it drains"),
    SIGUSR2: ("paused", "nothing: it drains"),
    SIGCONT: ("", "nothing: it drains"),
}

STATES = ["booting", "idle", "busy", "redis away", "reloading", "paused", "draining"]


def _cells(stage: Any, state: str) -> list[Cell]:
    """Return all cells, or a few that cover each signal, alone, twice, and to the group."""
    ways = [(twice, group) for twice in (False, True) for group in (False, True)]
    if FULL:
        every = [([signo], *way) for signo in (*ENDING, *OTHERS) for way in ways]
    else:
        every = [
            (signals, *ways[(STATES.index(state) + n) % 4])
            for n, signals in enumerate([[SIGTERM], [SIGINT], [SIGQUIT], OTHERS])
        ]
    return [Cell(state, *cell, stage, number) for number, cell in enumerate(every)]


def _write_app(stage: Any) -> None:
    folder: Path = stage.directory / "app"
    folder.mkdir()
    (folder / "__init__.py").write_text(APP.format(here=str(stage.directory)))
    stage.gate("never")


def _play(cells: list[Cell]) -> None:
    """Run cells side by side. Each costs only the time that it takes longer than those before it."""
    for cell in cells:
        cell.start()
    if cells[0].state != "booting":
        for cell in cells:
            cell.begin_work()
    for cell in cells:
        cell.reach()
    if cells[0].state == "draining":
        cells[0].stage.let_time_pass(1.1)  # within a second a repeat is the same request
    for cell in cells:
        cell.send()
    for cell in cells:
        cell.end()
    for cell in cells:
        cell.account()


@pytest.mark.parametrize("state", [state for state in STATES if state != "redis away"])
def test_every_signal_leaves_all_jobs_accounted_for(stage, state):
    _write_app(stage)
    cells = _cells(stage, state)
    for first in range(0, len(cells), AT_ONCE):
        _play(cells[first : first + AT_ONCE])
    stage.client.deregister("looker")
    stage.assert_nothing_left(waiting=[cell.name for cell in cells])


@pytest.mark.sampled(3)
def test_every_signal_during_an_outage_leaves_all_jobs_accounted_for(own_stage, own_server):
    """Jobs cannot be handed back during the outage: the exit code says so, and the leases expire."""
    stage = own_stage
    stage.config(grace=0.3)
    _write_app(stage)
    cells = _cells(stage, "redis away")
    cut_off = [cell for cell in cells if cell.cut_off]
    others = [cell for cell in cells if not cell.cut_off]
    for cell in cells:
        cell.start()
    for cell in cells:
        cell.begin_work()
    own_server.kill()
    for cell in cells:
        cell.reach()
    for cell in cells:
        cell.send()
    for cell in cut_off:
        cell.end()
    own_server.start()
    for cell in others:
        cell.pool.wait_for("redis.connected")
        cell.end()
        cell.account()
    stage.client.deregister("looker")
    heir = stage.start(handlers="app", environment={"CELL": "heir"}, queue="cell-*", processes=4, lease_ttl="2s")
    for cell in cut_off:
        cell.open_gate()
    jids = [jid for cell in cells for jid in (cell.held, *cell.rest)]
    stage.wait_until_counted(lambda: set(stage.states(jids)) == {"complete"})
    for cell in cut_off:
        assert [stage.client.job(jid).deaths for jid in (cell.held, *cell.rest)] == [1, 0, 0], str(cell)
        stage.client.deregister(cell.pool.worker)
    assert heir.drain() == 0
    stage.assert_nothing_left()


def test_early_and_late_signals_neither_kill_nor_block(stage):
    """Signals arrive from the moment at which they are blocked to the end of the interpreter."""
    _write_app(stage)
    cell = Cell("booting", [SIGTERM], False, False, stage, 1)
    cell.start()
    pool = cell.pool
    while not _blocks(pool.pid, SIGTERM):
        assert pool.process.poll() is None
    while not pool.find("master.started"):
        for signo in (SIGUSR1, SIGTTIN, SIGTTOU, SIGUSR2, SIGCONT):
            pool.send(signo)
        stage.let_time_pass(0.01)
    pool.send(SIGTERM)
    pool.wait_for("master.leaving")
    while pool.process.poll() is None:
        for signo in (*ENDING, *OTHERS):
            with contextlib.suppress(ProcessLookupError):
                pool.send(signo)
        stage.let_time_pass(0.01)
    assert pool.wait() == 0
    stage.assert_nothing_left(waiting=[cell.name])


def _blocks(pid: int, signo: int) -> bool:
    with open(f"/proc/{pid}/status") as status:
        mask = next(line for line in status if line.startswith("SigBlk")).split()[1]
    return bool(int(mask, 16) & 1 << (signo - 1))
