"""The shard of a job follows from its jid."""

import pytest

from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.new_jobs import new_jid
from supervisor.engine.model.shards import MOST_SHARDS, Tie, checked_shards, key_of, shard_of, shard_of_token, tied_jid


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("order-7", "order-7"),
        ("a{b}c", "b"),
        ("{b}{c}", "b"),
        ("a}b{c}", "c"),
        ("x{ä}", "ä"),
    ],
)
def test_key_stands_between_braces_as_redis_has_it(name, key):
    assert key_of(name) == key


def test_one_shard_has_everything():
    assert shard_of("order-7", 1) == 0


def test_jids_spread_evenly():
    counted = [0] * 16
    for _ in range(16_000):
        counted[shard_of(new_jid(), 16)] += 1
    assert 800 < min(counted) <= max(counted) < 1200


def test_jids_with_one_key_lie_together():
    assert len({shard_of(f"{new_jid()}{{customer-7}}", 64) for _ in range(100)}) == 1


def test_first_shard_has_the_keys_of_a_namespace_without_shards():
    assert Namespace("jobs").keys == ("{jobs}:",)
    assert Namespace("jobs", 0, 16).keys == ("{jobs}:", "{jobs}:16")
    assert Namespace("jobs", 3, 16).keys == ("{jobs#3}:", "{jobs#3}:16")


def test_namespace_cannot_be_named_as_a_shard():
    with pytest.raises(ValueError, match=r"must not end in # and a number, as shards do: 'jobs#3'"):
        Namespace("jobs#3")


def test_ranges_of_tokens_fit_into_a_score_with_a_half():
    assert shard_of_token(1) == 0
    last = MOST_SHARDS * 2**45 - 1
    assert shard_of_token(last) == MOST_SHARDS - 1
    assert float(last) + 0.5 == last + 0.5


@pytest.mark.parametrize("shards", [0, -1, 65])
def test_number_of_shards_out_of_range_is_refused(shards):
    with pytest.raises(ValueError, match="shards must be 1 to 64"):
        checked_shards("shards", shards)


def test_fresh_jid_ends_in_the_key_of_what_it_is_tied_to():
    jid = tied_jid("a" * 22, False, [Tie("its limit", "smtp"), Tie("together", "smtp")])
    assert jid == "a" * 22 + "{smtp}"
    assert key_of(jid) == "smtp"


def test_own_jid_must_have_the_key():
    assert tied_jid("order{smtp}", True, [Tie("its limit", "smtp")]) == "order{smtp}"
    with pytest.raises(ValueError, match=r"its jid and its limit may lie in different shards \('order', 'smtp'\)"):
        tied_jid("order", True, [Tie("its limit", "smtp")])


def test_ties_of_several_keys_are_refused():
    with pytest.raises(ValueError, match="give both names the same part in braces"):
        tied_jid("a" * 22, False, [Tie("its limit", "smtp"), Tie("its unique key", "7")])


@pytest.mark.parametrize("name", ["x" * 41, "ü" * 30, "a{b", "a}b", "a{}b", "{" + "x" * 41 + "}"])
def test_key_without_room_in_a_jid_is_stood_for_by_a_shorter_one(name):
    jid = tied_jid("a" * 22, False, [Tie("its limit", key_of(name))])
    assert len(jid) == 22 + 2 + 13
    assert key_of(jid) == key_of(name)
    assert shard_of(jid, 64) == shard_of(name, 64)


def test_digest_of_a_job_fits_into_its_jid():
    assert len(tied_jid("a" * 22, False, [Tie("its unique key", "0" * 40)])) == 64
