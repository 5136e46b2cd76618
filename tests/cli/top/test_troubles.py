"""What is wrong, in the sentences that `leasehold top` and the page share. No Redis, no terminal."""

import pytest

from supervisor.cli.top.model import Tone
from supervisor.cli.top.troubles import MOST_OF_A_KIND, troubles
from supervisor.engine.commands.concerns import Concerns, QueueConcerns, ServerMemory
from tests.cli.top.parts import NOW_AT, NOW_UNIX, Shown, counts, model_of, snapshot, status, worker

HOUR = 3600.0
WELL = {"queues": {"emails": counts()}, "supervisors": {"w-1": status(order="strict")}}


def words(*looks):
    return [each.words for each in troubles(model_of(*looks))]


def of_queue(**concerns):
    told = {"unserved": False, "parked_s": None, "late": 0, "failed_recurrences": 0, **concerns}
    return {"concerns": Concerns({"emails": QueueConcerns(**told)})}


def of_supervisor(**more):
    return {"supervisors": {"w-1": status(**more)}}


def test_nothing_is_wrong_with_served_queues_and_full_limits():
    assert words(snapshot(**WELL)) == []
    assert words(snapshot()) == []


@pytest.mark.parametrize(
    ("look", "sentence"),
    [
        ({"supervisors": {}}, "supervisor: none is seen: what is put waits"),
        ({"queues": {"other": counts(2)}}, "queue other: 2 jobs waiting, and no supervisor serves it"),
        ({"queues": {"emails": counts(1, oldest_s=90.0)}}, "queue emails: its oldest job has waited for 1m30s"),
        ({"queues": {"emails": counts(stalled=1)}}, "queue emails: 1 job stalled, their leases run out"),
        ({"queues": {"emails": counts(depends=3, old_depends=2)}},
         "queue emails: 2 jobs waiting for other jobs for more than a day"),
        ({"queues": {"emails": counts(parked=1)}, **of_queue(parked_s=2 * HOUR)},
         "queue emails: 1 job waiting for room in a limit, or for a paused batch, the first for 2h"),
        (of_queue(late=2), "queue emails: 2 recurring jobs overdue for more than a minute"),
        (of_queue(failed_recurrences=1), "queue emails: the last job of 1 recurring job has failed"),
        ({"failed": {"Late": 7}}, "group Late: 7 jobs failed"),
        ({"concerns": Concerns(closed_limits=("smtp",))},
         "limit smtp: lets nothing start, and jobs wait for it: it is 0"),
        ({"concerns": Concerns(open_batches=2)}, "batches: 2 open for more than an hour: nothing calls back"),
        ({"concerns": Concerns(memory=ServerMemory(95 * 2**20, 100 * 2**20, 0))},
         "redis: has used 95 MB of its 100 MB: soon it refuses puts"),
        (of_supervisor(reload={"outcome": "failed"}),
         "supervisor w-1: has refused the new code, and works with the old one"),
        (of_supervisor(state="paused"), "supervisor w-1: is paused: it starts no jobs"),
        (of_supervisor(state="redis-away"), "supervisor w-1: does not reach Redis"),
        (of_supervisor(state="redis-away", redis={"shards": 16, "shards_away": [3, 7]}),
         "supervisor w-1: does not reach Redis in shards 3, 7 of 16"),
        (of_supervisor(longest_turn_s=1.5), "supervisor w-1: is short of processor time: a turn of its loop took 1.5s"),
        (of_supervisor(redis={"exchange_ms": 300.0}),
         "supervisor w-1: gets slow answers from Redis: an exchange takes 300ms"),
        (of_supervisor(redis={"reconnects": 4, "lost": {"ago_s": 9.0, "message": "reset"}}),
         "supervisor w-1: has lost its connection to Redis 4 times: reset"),
        ({"workers": [worker("c-1", stalled=1)]}, "supervisor c-1: is lost: the leases of its jobs have run out"),
    ],
)  # fmt: skip
def test_each_trouble_has_its_sentence(look, sentence):
    found = words(snapshot(**{**WELL, **look}))
    assert [each for each in found if each != "supervisor: none is able to lease"] == [sentence]


def test_a_queue_that_is_paused_for_long_is_told_also_without_jobs():
    def paused(ago_s):
        return {"emails": counts(paused=True, paused_by="kim@web-1", paused_unix=NOW_UNIX - ago_s)}

    assert words(snapshot(**{**WELL, "queues": paused(HOUR)})) == []
    [sentence] = words(snapshot(**{**WELL, "queues": paused(5 * HOUR)}))
    assert sentence.startswith("queue emails: paused by kim@web-1, ") and sentence.endswith("with 0 jobs waiting")


@pytest.mark.parametrize(
    ("state", "for_s", "sentence"),
    [
        ("booting", 310, "supervisor w-1: has been booting for 5m10s: its handlers do not start"),
        ("leaving", 70, "supervisor w-1: has been leaving for 1m10s: it should have ended"),
    ],
)
def test_a_lasting_state_that_should_pass_is_a_trouble(state, for_s, sentence):
    look = {**WELL, "supervisors": {"w-1": status(state), "w-2": status()}}
    assert words(snapshot(NOW_AT - 1, **look), snapshot(NOW_AT, **look)) == []
    assert words(snapshot(NOW_AT - for_s, **look), snapshot(NOW_AT, **look)) == [sentence]


def test_supervisors_of_which_none_leases_are_told():
    def look(*states):
        return snapshot(supervisors={f"w-{n}": status(state) for n, state in enumerate(states)})

    assert words(look("booting", "draining")) == ["supervisor: none is able to lease"]
    assert words(look("booting", "serving")) == []


def test_evictions_are_told_for_a_quarter_of_an_hour():
    def look(ago_s, evicted):
        return snapshot(NOW_AT - ago_s, **WELL, concerns=Concerns(memory=ServerMemory(1, 0, evicted)))

    told = ["redis: deletes keys to make room, which may be jobs"]
    assert words(look(20, 7)) == [], "they may be old"
    assert words(look(20, 7), look(10, 8), look(0, 8)) == told
    assert words(look(950, 7), look(940, 8), look(0, 8)) == []


def test_alarms_come_first_and_none_fills_the_list():
    queues = {f"q-{n:02}": counts(1) for n in range(30)}
    found = troubles(model_of(snapshot(queues=queues, failed={"g": 1}, supervisors=WELL["supervisors"])))
    assert [each.kind for each in found] == ["queue"] * MOST_OF_A_KIND + ["group"]
    assert [each.tone for each in found] == [Tone.ALARM] * MOST_OF_A_KIND + [Tone.NOTICE]


def test_top_shows_the_worst_and_lists_all():
    shown = Shown(model_of(snapshot(**{**WELL, "failed": {"g": 1}, **of_queue(late=1)})))
    assert shown.lines()[3] == "queue emails: 1 recurring job overdue for more than a minute   w: 1 more"
    shown.press("w")
    assert "group g: 1 job failed" in shown.text()
