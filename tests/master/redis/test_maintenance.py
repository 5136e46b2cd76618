"""A master sweeps, and spawns due cron jobs. The tests need no server."""

import json
import math
import time

import pytest

from supervisor import clock
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.commands.maintenance import SWEEP_COUNT, SWEEP_S, Swept
from supervisor.engine.model.cron_times import DueCron, parse_due
from supervisor.master.redis import maintenance as module
from supervisor.master.redis.maintenance import Duties, Maintenance
from supervisor.ops.events import Events

NOW_UNIX = 1_700_000_000.0
MINUTE_UNIX = NOW_UNIX - NOW_UNIX % 60


@pytest.fixture
def log(tmp_path):
    with (tmp_path / "events").open("wb") as file:
        events = Events(file.fileno(), "json", "debug")
        yield events
        events.close(1.0)


def said(log, tmp_path):
    log.flush()
    return [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]


def cron(jid="r", due_unix=MINUTE_UNIX, backlog=None, tz=None):
    return DueCron(jid, "* * * * *", tz, round(due_unix * 1000), backlog)


def grant(*due, now_unix=NOW_UNIX):
    return Grant(now_unix, None, [], list(due))


def spawned(maintenance):
    """Return all spawns until nothing is due. A loaded machine takes several turns for them."""
    spawns = []
    while maintenance.due_at == -math.inf:
        duties = maintenance.due(clock.monotonic())
        spawns += duties.spawns if duties is not None else ()
        assert duties is None or not duties.sweep
    return spawns


def computed(maintenance):
    return sorted(spawn.due.jid for spawn in spawned(maintenance))


def test_sweeps_come_every_fifteen_seconds_spread_over_masters(log):
    firsts, gaps_s = set(), set()
    for _ in range(50):
        maintenance = Maintenance(log)
        assert maintenance.due(clock.monotonic()) is None
        assert maintenance.due_at == math.inf
        maintenance.begin(1000.0)
        firsts.add(maintenance.due_at)
        assert 1000.0 + SWEEP_S / 2 <= maintenance.due_at <= 1000.0 + SWEEP_S
        assert maintenance.due(999.0) is None
        assert maintenance.due(1020.0) == Duties(True, ())
        gaps_s.add(maintenance.due_at - 1020.0)
        assert maintenance.due(1020.0) is None
    assert len(firsts) > 40 and len(gaps_s) > 40
    assert all(0.8 * SWEEP_S <= gap_s <= 1.2 * SWEEP_S for gap_s in gaps_s)


def test_full_sweep_is_followed_by_another_at_once(log):
    maintenance = Maintenance(log)
    before_at = clock.monotonic()
    maintenance.begin(before_at)
    maintenance.on_swept(Swept(0.0, SWEEP_COUNT - 1, 0, []))
    assert maintenance.due_at > before_at + 1
    maintenance.on_swept(Swept(0.0, SWEEP_COUNT, 0, []))
    assert before_at <= maintenance.due_at <= clock.monotonic()


def test_sweep_goes_on_until_all_queues_are_swept(log):
    maintenance = Maintenance(log)
    maintenance.begin(0.0)
    assert maintenance.due(1000.0) == Duties(True, (), 0)
    maintenance.on_swept(Swept(NOW_UNIX, 0, 200, []))
    assert maintenance.due(clock.monotonic()) == Duties(True, (), 200)
    maintenance.on_swept(Swept(NOW_UNIX, 0, 0, []))
    assert maintenance.due(clock.monotonic()) is None
    assert maintenance.due(clock.monotonic() + 60) == Duties(True, (), 0)


def test_recurrence_of_a_lease_is_spawned_once_with_its_times(log):
    maintenance = Maintenance(log)
    assert maintenance.on_granted(grant(), names_all=True) is False
    assert maintenance.on_granted(grant(cron(due_unix=MINUTE_UNIX - 60)), names_all=True) is True
    assert maintenance.on_granted(grant(cron(due_unix=MINUTE_UNIX - 60)), names_all=True) is True
    assert maintenance.due_at == -math.inf
    ((due, times_unix, next_unix),) = spawned(maintenance)
    assert (due.jid, list(times_unix), next_unix) == ("r", [MINUTE_UNIX - 60, MINUTE_UNIX], MINUTE_UNIX + 60)
    assert maintenance.due(clock.monotonic()) is None


def test_recurrence_of_a_sweep_is_timed_by_the_servers_clock(log):
    maintenance = Maintenance(log)
    maintenance.on_swept(Swept(NOW_UNIX + 3600, 0, 0, [cron(backlog=0)]))
    ((_due, times_unix, next_unix),) = spawned(maintenance)
    assert (list(times_unix), next_unix) == ([MINUTE_UNIX + 3600], MINUTE_UNIX + 3660)


def test_failed_recurrence_holds_up_no_other(log, tmp_path):
    maintenance = Maintenance(log)
    bad = [
        cron("zone", tz="Mars/Olympus"),
        DueCron("words", "no cron", None, 0, None),
        DueCron("end", "* * * * *", None, 10**18, 3),
        parse_due([b"torn", b"* * * * *", b""]),
        parse_due([b"odd", b"* * * * *", b"", 60_000, b"many"]),
    ]
    assert maintenance.on_granted(grant(*bad), names_all=True) is True
    assert computed(maintenance) == []
    for _ in range(3):
        assert maintenance.on_granted(grant(*bad), names_all=True) is False
    assert maintenance.on_granted(grant(*bad, cron("good")), names_all=True) is True
    assert computed(maintenance) == ["good"]
    warnings = said(log, tmp_path)
    assert {warning["event"] for warning in warnings} == {"master.warned"}
    assert len(warnings) == len(bad)
    assert all(any(due.jid in warning["message"] for warning in warnings) for due in bad)


def test_warnings_of_failed_recurrences_are_bounded(log, tmp_path):
    maintenance = Maintenance(log)
    maintenance.on_granted(grant(*(cron(f"r{number}", tz="Mars/Olympus") for number in range(500))), names_all=True)
    computed(maintenance)
    assert len(said(log, tmp_path)) == module.MOST_WARNINGS


def test_a_thousand_crons_hold_up_no_turn(log, measured):
    """Measured in CPU time, because the machine may be loaded."""
    maintenance = Maintenance(log)
    midnight_unix = NOW_UNIX - NOW_UNIX % 86400
    kinds = ["0 0 * * *", f"0 0 {time.gmtime(midnight_unix).tm_mday} * *"]
    due = [DueCron(f"r{n}", kinds[n % 2], None, round(midnight_unix * 1000), None) for n in range(1000)]
    maintenance.on_granted(grant(*due, now_unix=midnight_unix + 1), names_all=True)
    turns_s, jids = [], []
    while maintenance.due_at == -math.inf:
        before_s = time.thread_time()
        duties = maintenance.due(clock.monotonic())
        turns_s.append(time.thread_time() - before_s)
        jids += [spawn.due.jid for spawn in duties.spawns] if duties is not None else []
    measured(
        f"1,000 cron recurrences of one minute: {sum(turns_s):.2f} s of CPU in {len(turns_s)} turns,"
        f" the longest {1e3 * max(turns_s):.1f} ms"
    )
    assert sorted(jids) == sorted(one.jid for one in due)
    assert max(turns_s) < 0.05
    assert sum(turns_s) < 5


def test_recurrence_spawned_by_a_peer_is_dropped(log):
    maintenance = Maintenance(log)
    maintenance.on_swept(Swept(NOW_UNIX, 0, 0, [cron("swept")]))
    maintenance.on_granted(grant(cron("a"), cron("b")), names_all=True)
    assert maintenance.on_granted(grant(cron("c")), names_all=False) is True  # the lease has not looked at all queues
    assert maintenance.on_granted(grant(cron("b")), names_all=True) is True
    assert computed(maintenance) == ["b", "swept"]
