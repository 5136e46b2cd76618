"""What a master does for the namespace as a whole, and when: without a server, on the real clock's numbers."""

import json
import math
import time

import pytest

from supervisor import clock
from supervisor.engine.commands.writes import Grant, Swept
from supervisor.engine.model.recurring import DueCron, parse_due
from supervisor.master.redis import maintenance as module
from supervisor.master.redis.maintenance import SWEEP_COUNT, SWEEP_S, Duties, Maintenance
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


def spawned(upkeep):
    """All that is spawned until nothing is due any more; a loaded machine takes several turns for it."""
    spawns = []
    while upkeep.due_at == -math.inf:
        chores = upkeep.due(clock.monotonic())
        spawns += chores.spawns if chores is not None else ()
        assert chores is None or not chores.sweep
    return spawns


def computed(upkeep):
    return sorted(spawn.due.jid for spawn in spawned(upkeep))


def test_it_sweeps_about_every_fifteen_seconds_and_no_two_masters_at_once(log):
    firsts, gaps_s = set(), set()
    for _ in range(50):
        upkeep = Maintenance(log)
        assert upkeep.due(clock.monotonic()) is None
        assert upkeep.due_at == math.inf
        upkeep.begin(1000.0)
        firsts.add(upkeep.due_at)
        assert 1000.0 + SWEEP_S / 2 <= upkeep.due_at <= 1000.0 + SWEEP_S
        assert upkeep.due(999.0) is None
        assert upkeep.due(1020.0) == Duties(True, ())
        gaps_s.add(upkeep.due_at - 1020.0)
        assert upkeep.due(1020.0) is None
    assert len(firsts) > 40 and len(gaps_s) > 40
    assert all(0.8 * SWEEP_S <= gap_s <= 1.2 * SWEEP_S for gap_s in gaps_s)


def test_a_sweep_that_took_all_it_may_is_followed_by_another_at_once(log):
    upkeep = Maintenance(log)
    before_at = clock.monotonic()
    upkeep.begin(before_at)
    upkeep.on_swept(Swept(0.0, SWEEP_COUNT - 1, 0, []))
    assert upkeep.due_at > before_at + 1
    upkeep.on_swept(Swept(0.0, SWEEP_COUNT, 0, []))
    assert before_at <= upkeep.due_at <= clock.monotonic()


def test_a_sweep_goes_on_at_once_until_all_queues_were_swept(log):
    upkeep = Maintenance(log)
    upkeep.begin(0.0)
    assert upkeep.due(1000.0) == Duties(True, (), 0)
    upkeep.on_swept(Swept(NOW_UNIX, 0, 200, []))
    assert upkeep.due(clock.monotonic()) == Duties(True, (), 200)
    upkeep.on_swept(Swept(NOW_UNIX, 0, 0, []))
    assert upkeep.due(clock.monotonic()) is None
    assert upkeep.due(clock.monotonic() + 60) == Duties(True, (), 0)


def test_what_a_lease_reports_is_spawned_once_with_its_times_and_the_next_one(log):
    upkeep = Maintenance(log)
    assert upkeep.on_granted(grant(), names_all=True) is False
    assert upkeep.on_granted(grant(cron(due_unix=MINUTE_UNIX - 60)), names_all=True) is True
    assert upkeep.on_granted(grant(cron(due_unix=MINUTE_UNIX - 60)), names_all=True) is True
    assert upkeep.due_at == -math.inf
    ((due, times_unix, next_unix),) = spawned(upkeep)
    assert (due.jid, list(times_unix), next_unix) == ("r", [MINUTE_UNIX - 60, MINUTE_UNIX], MINUTE_UNIX + 60)
    assert upkeep.due(clock.monotonic()) is None


def test_what_a_sweep_reports_is_timed_by_the_servers_clock_too(log):
    upkeep = Maintenance(log)
    upkeep.on_swept(Swept(NOW_UNIX + 3600, 0, 0, [cron(backlog=0)]))
    ((_due, times_unix, next_unix),) = spawned(upkeep)
    assert (list(times_unix), next_unix) == ([MINUTE_UNIX + 3600], MINUTE_UNIX + 3660)


def test_a_recurrence_that_cannot_be_computed_keeps_no_other_from_it(log, tmp_path):
    upkeep = Maintenance(log)
    bad = [
        cron("zone", tz="Mars/Olympus"),
        DueCron("words", "no cron", None, 0, None),
        DueCron("end", "* * * * *", None, 10**18, 3),
        parse_due([b"torn", b"* * * * *", b""]),
        parse_due([b"odd", b"* * * * *", b"", 60_000, b"many"]),
    ]
    assert upkeep.on_granted(grant(*bad), names_all=True) is True
    assert computed(upkeep) == []
    for _ in range(3):
        assert upkeep.on_granted(grant(*bad), names_all=True) is False
    assert upkeep.on_granted(grant(*bad, cron("good")), names_all=True) is True
    assert computed(upkeep) == ["good"]
    warnings = said(log, tmp_path)
    assert {warning["event"] for warning in warnings} == {"master.warned"}
    assert len(warnings) == len(bad)
    assert all(any(due.jid in warning["message"] for warning in warnings) for due in bad)


def test_warnings_are_few_however_many_recurrences_there_are(log, tmp_path):
    upkeep = Maintenance(log)
    upkeep.on_granted(grant(*(cron(f"r{number}", tz="Mars/Olympus") for number in range(500))), names_all=True)
    computed(upkeep)
    assert len(said(log, tmp_path)) == module.MOST_WARNINGS


def test_a_thousand_crons_of_one_minute_hold_no_turn(log, measured):
    """CPU time, for the machine may be loaded."""
    upkeep = Maintenance(log)
    midnight_unix = NOW_UNIX - NOW_UNIX % 86400
    kinds = ["0 0 * * *", f"0 0 {time.gmtime(midnight_unix).tm_mday} * *"]
    due = [DueCron(f"r{n}", kinds[n % 2], None, round(midnight_unix * 1000), None) for n in range(1000)]
    upkeep.on_granted(grant(*due, now_unix=midnight_unix + 1), names_all=True)
    turns_s, jids = [], []
    while upkeep.due_at == -math.inf:
        before_s = time.thread_time()
        chores = upkeep.due(clock.monotonic())
        turns_s.append(time.thread_time() - before_s)
        jids += [spawn.due.jid for spawn in chores.spawns] if chores is not None else []
    measured(
        f"1,000 cron recurrences of one minute: {sum(turns_s):.2f} s of CPU in {len(turns_s)} turns,"
        f" the longest {1e3 * max(turns_s):.1f} ms"
    )
    assert sorted(jids) == sorted(one.jid for one in due)
    assert max(turns_s) < 0.05
    assert sum(turns_s) < 5


def test_what_another_master_has_spawned_falls_out(log):
    upkeep = Maintenance(log)
    upkeep.on_swept(Swept(NOW_UNIX, 0, 0, [cron("swept")]))
    upkeep.on_granted(grant(cron("a"), cron("b")), names_all=True)
    assert upkeep.on_granted(grant(cron("c")), names_all=False) is True  # it has not come to look at all queues
    assert upkeep.on_granted(grant(cron("b")), names_all=True) is True
    assert computed(upkeep) == ["b", "swept"]
