"""Times of recurring jobs: options, cron in changing time zones, missed times."""

import datetime
import random
import sys
import time
from zoneinfo import ZoneInfo

import pytest

from supervisor.engine.model.cron_times import (
    MOST_AT_ONCE,
    CronMissing,
    DueCron,
    following,
    following_in_steps,
    time_after,
)
from supervisor.engine.model.recurring import Recurring, changes_of, new_recurrence

BERLIN = "Europe/Berlin"
NOW = datetime.datetime(2026, 6, 1, 12, 0, 30, tzinfo=datetime.UTC).timestamp()


def unix(text: str, tz: str = BERLIN) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()


def shown(time: float | None, tz: str = BERLIN) -> str | None:
    return time and datetime.datetime.fromtimestamp(time, ZoneInfo(tz)).strftime("%d %H:%M %z")


def times(cron: str, tz: str | None, start: float, count: int) -> list[str | None]:
    found: list[str | None] = []
    at: float | None = start
    for _ in range(count):
        assert at is not None
        at = time_after(cron, tz, at)
        found.append(shown(at, tz or "UTC"))
    return found


# Times.


def test_times_are_in_utc_unless_a_zone_is_given():
    assert times("30 3 * * *", None, NOW, 2) == ["02 03:30 +0000", "03 03:30 +0000"]
    assert times("30 3 * * *", BERLIN, NOW, 2) == ["02 03:30 +0200", "03 03:30 +0200"]


def test_next_time_is_after_the_moment():
    at = time_after("* * * * *", None, NOW)
    assert at == NOW + 30
    assert time_after("* * * * *", None, at) == NOW + 90
    assert time_after("* * * * *", None, at - 0.001) == at


def test_time_in_the_spring_gap_comes_at_its_end():
    assert times("30 2 * * *", BERLIN, unix("2026-03-28T03:00"), 2) == ["29 03:00 +0200", "30 02:30 +0200"]


def test_hourly_times_continue_through_the_gap():
    assert times("30 * * * *", BERLIN, unix("2026-03-29T00:45"), 3) == [
        "29 01:30 +0100", "29 03:30 +0200", "29 04:30 +0200",
    ]  # fmt: skip


def test_time_of_day_comes_once_when_the_hour_repeats():
    assert times("30 2 * * *", BERLIN, unix("2026-10-24T03:00"), 2) == ["25 02:30 +0200", "26 02:30 +0100"]


def test_hourly_times_come_in_both_repeated_hours():
    assert times("15 * * * *", BERLIN, unix("2026-10-25T01:30"), 3) == [
        "25 02:15 +0200", "25 02:15 +0100", "25 03:15 +0100",
    ]  # fmt: skip


def test_a_month_without_the_day_is_passed_over():
    assert times("0 0 31 * *", None, NOW, 2) == ["31 00:00 +0000", "31 00:00 +0000"]
    assert time_after("0 0 29 2 *", None, NOW) == unix("2028-02-29T00:00", "UTC")


# Missed times.


def due(cron: str = "0 * * * *", backlog: int | None = None, hours_ago: int = 0, tz: str | None = None) -> DueCron:
    return DueCron("r", cron, tz, round((NOW - 30 - 3600 * hours_ago) * 1000), backlog)


def hours(found: tuple[list[float], float | None]) -> tuple[list[float], float | None]:
    """Return times relative to the present hour."""
    times, following = found
    return [(time - NOW + 30) / 3600 for time in times], following and (following - NOW + 30) / 3600


@pytest.mark.parametrize("backlog", [None, 0, 5, -1])
def test_a_prompt_time_runs_under_every_policy(backlog):
    assert hours(following(due(backlog=backlog), NOW)) == ([0], 1)


@pytest.mark.parametrize(
    ("backlog", "run"), [(None, [-3, -2, -1, 0]), (0, [0]), (1, [-1, 0]), (9, [-3, -2, -1, 0]), (-1, [0])]
)
def test_policy_selects_the_missed_times(backlog, run):
    assert hours(following(due(backlog=backlog, hours_ago=3), NOW)) == (run, 1)


@pytest.mark.parametrize(("backlog", "run"), [(None, [-1, 0]), (0, [0]), (-1, [])])
def test_more_than_a_minute_late_is_missed(backlog, run):
    assert hours(following(due(backlog=backlog, hours_ago=1), NOW + 31)) == (run, 1)


def test_at_most_a_thousand_missed_times_run_at_once():
    times, at = following(due("* * * * *", hours_ago=100), NOW)
    assert (len(times), times[0], at) == (MOST_AT_ONCE, NOW - 30 - 360_000, times[-1] + 60)


def test_years_of_missed_times_cost_no_more_than_one():
    times, at = following(due("* * * * *", backlog=2, hours_ago=30 * 365 * 24), NOW)
    assert (times, at) == ([NOW - 150, NOW - 90, NOW - 30], NOW + 30)


@pytest.mark.parametrize("backlog", [None, 0, -1])
def test_clock_going_back_neither_loses_nor_repeats_a_time(backlog):
    assert hours(following(due(backlog=backlog), NOW - 300)) == ([0], 1)


def test_time_in_the_first_of_two_hours_is_not_lost():
    at = unix("2026-10-25T02:30")
    late = DueCron("r", "30 2 * * *", BERLIN, round(at * 1000), 0)
    assert [shown(time) for time in following(late, at + 2400)[0]] == ["25 02:30 +0200"]


def test_each_time_comes_exactly_once(seed=7):
    """Times are taken at irregular moments around clock changes: `all` neither loses nor doubles one."""
    at, end = unix("2026-10-24T20:00"), unix("2026-10-26T06:00")
    expected, after = [], at
    while (after := time_after("*/20 * * * *", BERLIN, after) or end) < end:
        expected.append(after)
    found: list[float] = []
    next_unix, now = expected[0], at
    while now < end + 7200:
        now += 60 * (seed := seed * 75 % 65537) % 5000
        if next_unix <= now:
            run, coming = following(DueCron("r", "*/20 * * * *", BERLIN, round(next_unix * 1000), None), now)
            found += run
            assert coming is not None
            next_unix = coming
    assert [at for at in found if at < end] == expected


FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def random_field(rng: random.Random, least: int, most: int) -> str:
    first = rng.randint(least, most)
    kinds = ["*", f"*/{rng.randint(1, most)}", f"{first}", f"{first}-{rng.randint(first, most)}", f"{least},{most}"]
    if most == 31:
        kinds += ["L", "LW"]
    elif most == 7:
        kinds += [f"{rng.randint(0, 6)}#{rng.randint(1, 5)}", "5L"]
    return rng.choice(kinds)


def random_due(rng: random.Random) -> DueCron:
    cron = " ".join(random_field(rng, least, most) for least, most in FIELDS)
    due_unix = datetime.datetime(rng.randint(1970, 9000), rng.randint(1, 12), 28, tzinfo=datetime.UTC).timestamp()
    tz = rng.choice([None, None, BERLIN, "America/New_York", "Pacific/Apia", "Australia/Lord_Howe"])
    return DueCron("r", cron, tz, round(due_unix * 1000), rng.choice([None, -1, 0, 1, 10, 999, 10**6]))


@pytest.mark.parametrize("seed", range(4))
def test_no_expression_ends_or_holds_its_worker(seed, measured):
    """Random expressions, policies, zones and years give valid times, and no step takes long (CPU time)."""
    rng = random.Random(seed)
    longest_s, computed = 0.0, 0
    for _ in range(250):
        due = random_due(rng)
        now_unix = due.due_unix + rng.choice([0, 1, 30, 3600, 86400, 366 * 86400, 40 * 366 * 86400])
        steps = following_in_steps(due, now_unix)
        while True:
            before_s = time.thread_time()
            try:
                next(steps)
            except CronMissing:  # refused at the edge, too
                break
            except StopIteration as end:
                run_at, next_unix = end.value
                assert len(run_at) <= MOST_AT_ONCE
                assert run_at == sorted(set(run_at))
                assert all(due.due_unix <= at <= now_unix for at in run_at)
                assert next_unix is None or next_unix > max([due.due_unix, *run_at])
                computed += 1
                break
            finally:
                longest_s = max(longest_s, time.thread_time() - before_s)
    measured(f"times of {computed} random cron expressions: the longest step took {1e3 * longest_s:.0f} ms")
    assert computed > 100
    assert longest_s < 0.5


@pytest.mark.parametrize(
    "late", [DueCron("r", "0 0 29 2 *", None, 1_835_395_200_000, 999), DueCron("r", "20 2 */22 11 1", None, 0, 999)]
)
def test_a_backlog_beyond_the_calendar_is_no_error(late):
    """Both expressions have had fewer than a thousand times since the year 1."""
    times, next_unix = following(late, 1_835_395_260)
    assert times[0] >= late.due_unix and times[-1] <= 1_835_395_260
    assert next_unix is not None and next_unix > times[-1]


@pytest.mark.parametrize("backlog", [None, 0, 999])
def test_the_end_of_the_calendar_ends_a_recurrence(backlog):
    last_unix = datetime.datetime(9999, 12, 31, 23, 59, tzinfo=datetime.UTC).timestamp()
    times, next_unix = following(DueCron("r", "* * * * *", None, round(last_unix * 1000), backlog), last_unix + 30)
    assert (times, next_unix) == ([last_unix], None)


# Valid and invalid arguments.


def test_an_interval_begins_now_or_an_offset_later():
    assert new_recurrence("q", "k", None, {"every": 60, "jid": "r"}, NOW).arguments == (
        "q", "r", "k", "json", b"null", 0, "", 3, "every", 60_000, "cron", "", "tz", "",
    )  # fmt: skip
    assert new_recurrence("q", "k", b"x", {"every": 0.5, "offset": 2}, NOW).arguments[3:7] == ("bytes", b"x", 2000, "")


def test_a_cron_begins_at_its_next_time():
    new = new_recurrence("q", "k", None, {"cron": " 0  3 * * mon ", "tz": BERLIN}, NOW)
    assert new.fields == {"every": "", "cron": "0 3 * * mon", "tz": BERLIN}
    assert (new.delay_ms, shown(new.first_ms / 1000)) == ("", "08 03:00 +0200")


def test_a_jid_is_made_up_if_there_is_none():
    assert len(new_recurrence("q", "k", None, {"every": 60}, NOW).jid) == 22


@pytest.mark.parametrize(
    ("options", "backlog"),
    [
        ({"missed": "all"}, ""),
        ({"missed": "once"}, 0),
        ({"missed": "skip"}, -1),
        ({"backlog": 3}, 3),
        ({"missed": "all", "backlog": 0}, 0),
        ({"missed": "all", "backlog": None}, ""),
    ],
)
def test_the_policy_for_missed_times_is_one_number(options, backlog):
    assert new_recurrence("q", "k", None, {"every": 60, **options}, NOW).fields["backlog"] == backlog


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, ValueError, "every and cron: give one of them"),
        ({"every": 60, "cron": "* * * * *"}, ValueError, "every and cron: give one of them"),
        ({"every": 0}, ValueError, "every must be 0.001 or more: 0"),
        ({"every": b"60"}, TypeError, "every must be a number of seconds, not bytes: b'60'"),
        ({"every": float("nan")}, ValueError, "every must be a finite number"),
        ({"every": 60, "tz": BERLIN}, ValueError, "tz goes with cron"),
        ({"every": 60, "offset": -1}, ValueError, "offset must be 0 or more: -1"),
        ({"every": 60, "missed": "some"}, ValueError, "missed must be all, once or skip: 'some'"),
        ({"every": 60, "missed": ["all"]}, ValueError, "missed must be all, once or skip"),
        ({"every": 60, "missed": "skip", "backlog": 1}, ValueError, "backlog goes with missed all, not with skip"),
        ({"every": 60, "backlog": -1}, ValueError, "backlog must be from 0 to 999: -1"),
        ({"every": 60, "priority": 1.5}, TypeError, "priority must be an int"),
        ({"every": 60, "retries": -1}, ValueError, "retries must be from 0"),
        ({"every": 60, "timeout": -1}, ValueError, "timeout must be 0 or more"),
        ({"every": 60, "max_deaths": None}, TypeError, "max_deaths must be an int"),
        ({"every": 60, "tags": "urgent"}, TypeError, "tags must be a list"),
        ({"every": 60, "tags": [""]}, ValueError, "tags must have 1 to 64 bytes"),
        ({"every": 60, "jid": ""}, ValueError, "jid must have 1 to 48 bytes"),
        ({"every": 60, "delay": 5}, TypeError, "recur has no option 'delay'; it has at_most_once, backlog"),
        ({"cron": "* * * *"}, ValueError, r"cron must have five fields, .*: '\* \* \* \*'"),
        ({"cron": "0 * * * * *"}, ValueError, "cron must have five fields"),
        ({"cron": "60 * * * *"}, ValueError, r"cron must be minute hour .* \(Bad minute\): '60 "),
        ({"cron": "x y z a b"}, ValueError, r"cron must be minute hour .*\(Bad minute\)"),
        ({"cron": "0 0 31 2 *"}, ValueError, r"cron must be .*\(Bad day-of-month\)"),
        ({"cron": "5 * LW * */7"}, ValueError, r"cron must have a time to come: '5 \* LW \* \*/7'"),
        ({"cron": "0 0 29 2 mon#5", "offset": 5}, ValueError, "offset goes with every, not with cron"),
        ({"cron": 5}, TypeError, "cron must be a str, not int: 5"),
        ({"cron": "* * * * *", "tz": "Berlin"}, ValueError, "tz must be a time zone known here, .*: 'Berlin'"),
        ({"cron": "* * * * *", "tz": "../etc/passwd"}, ValueError, "tz must be a time zone"),
        ({"cron": "* * * * *", "tz": "Europe"}, ValueError, "tz must be a time zone"),
        ({"cron": "* * * * *", "tz": 5}, TypeError, "tz must be a str"),
    ],
)
def test_invalid_recurrence_is_refused_naming_the_argument(options, error, said):
    with pytest.raises(error, match=said):
        new_recurrence("q", "k", None, options, NOW)


def known(**values: object) -> Recurring:
    given = {
        "jid": "r", "queue": "q", "klass": "k", "raw": b"1", "is_bytes": False, "every_s": 60.0,
        "cron": None, "tz": None, "next_unix": NOW, "count": 3, "missed": "all", "backlog": None, "priority": 0,
        "retries": 5, "timeout_s": None, "max_deaths": None, "tags": [], **values,
    }  # fmt: skip
    return Recurring(**given)  # type: ignore[arg-type]


def test_an_update_says_only_what_changes():
    new = changes_of(known(), {"priority": 2, "tags": []}, NOW)
    assert new.arguments == ("", "r", "", "", b"", "", "", 2, "priority", 2, "tags", "")


def test_change_of_cron_or_zone_begins_at_the_next_time():
    by_cron = known(every_s=None, cron="0 3 * * *", tz=BERLIN)
    new = changes_of(by_cron, {"cron": "0 4 * * *"}, NOW)
    assert (new.fields["tz"], shown(new.first_ms / 1000)) == (BERLIN, "02 04:00 +0200")
    new = changes_of(by_cron, {"tz": None}, NOW)
    assert (new.fields["cron"], new.fields["tz"], shown(new.first_ms / 1000, "UTC")) == (
        "0 3 * * *", "", "02 03:00 +0000",
    )  # fmt: skip


def test_interval_and_cron_can_replace_each_other():
    assert changes_of(known(), {"cron": "0 3 * * *"}, NOW).fields == {"every": "", "cron": "0 3 * * *", "tz": ""}
    by_cron = known(every_s=None, cron="0 3 * * *", tz=BERLIN)
    assert changes_of(by_cron, {"every": 5}, NOW).fields == {"every": 5000, "cron": "", "tz": ""}


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({}, ValueError, "changes must be given"),
        ({"jid": "s"}, TypeError, "update has no option 'jid'"),
        ({"tz": BERLIN}, ValueError, "tz goes with cron"),
        ({"every": 5, "cron": "* * * * *"}, ValueError, "every and cron: give one of them"),
        ({"klass": ""}, ValueError, "klass must have"),
        ({"queue": 5}, TypeError, "queue must be a str"),
        ({"data": object()}, TypeError, "data must be JSON or bytes"),
    ],
)
def test_invalid_update_is_refused(changes, error, said):
    with pytest.raises(error, match=said):
        changes_of(known(), changes, NOW)


def test_without_cronsim_cron_is_refused_with_advice(monkeypatch):
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(CronMissing, match=r"cron needs the package cronsim: pip install 'leasehold\[cron\]'"):
        new_recurrence("q", "k", None, {"cron": "* * * * *"}, NOW)
    with pytest.raises(CronMissing):
        following(due(), NOW)
    assert new_recurrence("q", "k", None, {"every": 5}, NOW).delay_ms == 0


@pytest.mark.parametrize("strange", [due("no cron"), due(tz="Mars/Olympus")])
def test_cron_unknown_to_this_machine_is_reported(strange):
    with pytest.raises(CronMissing):
        following(strange, NOW)
