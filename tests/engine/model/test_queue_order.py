"""Lists of queue names, globs and exclusions. Runs in pytest, without a server."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.engine.model.queue_order import ORDERS, Queues

KNOWN = ["low", "email-b", "email-a", "email-bulk", "Email-c", "high"]


def resolve(patterns: Iterable[str], known: list[str] = KNOWN, order: str = "strict") -> list[str]:
    return list(Queues(patterns, order).resolve(known))


def test_names_stay_as_listed_even_if_unknown() -> None:
    assert resolve(["low", "not-yet", "high"]) == ["low", "not-yet", "high"]
    assert resolve(["low", "not-yet"], []) == ["low", "not-yet"]


def test_glob_means_its_matching_queues_in_alphabetical_order() -> None:
    assert resolve(["email-*"]) == ["email-a", "email-b", "email-bulk"]
    assert resolve(["email-?"]) == ["email-a", "email-b"]
    assert resolve(["email-[ac]"]) == ["email-a"]
    assert resolve(["high", "email-*"]) == ["high", "email-a", "email-b", "email-bulk"]
    assert resolve(["*"]) == sorted(KNOWN)


def test_a_glob_that_matches_nothing_is_no_queue() -> None:
    assert resolve(["x-*"]) == []
    assert resolve(["x-*"], []) == []
    assert resolve(["x-*", "high"], []) == ["high"]


def test_name_keeps_its_place_before_and_behind_a_matching_glob() -> None:
    assert resolve(["high", "*", "email-a"]) == ["high", "Email-c", "email-b", "email-bulk", "low", "email-a"]


def test_queue_of_two_globs_is_served_at_the_first() -> None:
    assert resolve(["email-b*", "email-*"]) == ["email-b", "email-bulk", "email-a"]


@pytest.mark.parametrize(
    "patterns",
    [["email-*", "!email-bulk"], ["!email-bulk", "email-*"], ["email-*", "!*bulk"], [" ! *bulk ", "email-*"]],
)
def test_an_exclusion_holds_at_any_place(patterns: list[str]) -> None:
    assert resolve(patterns) == ["email-a", "email-b"]


def test_an_exclusion_holds_for_names_too() -> None:
    assert resolve(["high", "low", "!low"]) == ["high"]
    assert resolve(["high", "low", "!l*"]) == ["high"]
    assert resolve(["low", "!low", "email-?"]) == ["email-a", "email-b"]


def test_character_class_may_be_negated() -> None:
    assert resolve(["email-[!b]*"]) == ["email-a"]


def test_names_are_stripped_and_the_first_mention_counts() -> None:
    queues = Queues([" high", "low ", "high", " low", "!x", "! x"])
    assert queues.patterns == ("high", "low", "!x")
    assert list(queues.resolve(())) == ["high", "low"]


def test_has_globs_says_if_queue_names_are_needed() -> None:
    assert not Queues(["a", "b"]).has_globs
    assert not Queues(["a", "b", "!b*"]).has_globs
    assert Queues(["a", "b*"]).has_globs
    assert not Queues(["closed]"]).has_globs


def test_only_the_weighted_order_knows_weights() -> None:
    assert resolve(["high:3", "low"]) == ["high:3", "low"]
    assert Queues(["high:3"]).weight("high:3") == 1
    weighted = Queues(["high:3", "low", "email-*:2", "a:b", "n:7:1"], "weighted")
    assert list(weighted.resolve(KNOWN)) == ["high", "low", "email-a", "email-b", "email-bulk", "a:b", "n:7"]
    assert [weighted.weight(name) for name in weighted.resolve(KNOWN)] == [3, 1, 2, 2, 2, 1, 1]


def test_own_weight_counts_before_that_of_a_glob() -> None:
    queues = Queues(["email-*:2", "*:4", "email-a:9"], "weighted")
    assert [queues.weight(name) for name in ("email-a", "email-b", "low")] == [9, 2, 4]
    assert Queues(["a:2", "a:5"], "weighted").weight("a") == 2
    assert Queues(["a:1000"], "weighted").weight("a") == 1000
    assert Queues(["a"], "weighted").weight("unknown") == 1


@pytest.mark.parametrize("weight", ["0", "1001", "-1", "+2", "1.5", "99999999999999999999", "."])
def test_a_bad_weight_is_refused_with_its_value(weight: str) -> None:
    with pytest.raises(ValueError, match=rf"^queues must have weights from 1 to 1000.*a:{weight.replace('+', '.')}"):
        Queues([f"a:{weight}"], "weighted")


@pytest.mark.parametrize(
    ("patterns", "error", "said"),
    [
        ([], ValueError, "queues must be 1 to 1000 names, not 0"),
        ([f"q{i}" for i in range(1001)], ValueError, "queues must be 1 to 1000 names, not 1001"),
        ("default", TypeError, "queues must be a list of names, not str: 'default'"),
        (b"default", TypeError, "queues must be a list of names, not bytes"),
        (None, TypeError, "queues must be a list of names, not NoneType"),
        (7, TypeError, "queues must be a list of names, not int"),
        (["a", 7], TypeError, "queues must hold str, not int: 7"),
        (["a", b"b"], TypeError, "queues must hold str, not bytes"),
        (["a", ""], ValueError, "queues must have 1 to 64 bytes in UTF-8, not 0"),
        (["a", "  "], ValueError, "queues must have 1 to 64 bytes in UTF-8, not 0"),
        (["a", "!"], ValueError, "queues must have 1 to 64 bytes in UTF-8, not 0"),
        (["x" * 65], ValueError, "queues must have 1 to 64 bytes in UTF-8, not 65"),
        (["*" + "x" * 64], ValueError, "queues must have 1 to 64 bytes in UTF-8, not 65"),
        (["a\nb"], ValueError, "queues must not contain control characters"),
        (["a", "!b\0"], ValueError, "queues must not contain control characters"),
        (["\ud800"], ValueError, "queues must be valid Unicode"),
        (["!a"], ValueError, "queues only excludes: !a"),
        (["!a", "!b*"], ValueError, r"queues only excludes: !a, !b\*"),
        (["a", "!a"], ValueError, "queues excludes all it names: a, !a"),
        (["a", "b", "!*"], ValueError, "queues excludes all it names"),
    ],
)
def test_bad_lists_are_refused_by_name(patterns: object, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"^{said}"):
        Queues(patterns)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["", "Strict", "fifo", "round_robin", "x" * 1000])
def test_a_bad_order_is_refused_with_all_there_are(order: str) -> None:
    with pytest.raises(ValueError, match=r"^order must be one of strict, round-robin, random, weighted, not '"):
        Queues(["a"], order)


def test_an_order_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^order must be a str, not int: 3"):
        Queues(["a"], 3)  # type: ignore[arg-type]


def test_weight_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^queues must have 1 to 64 bytes"):
        Queues([":3"], "weighted")


NAMES = st.text("ab-", min_size=1, max_size=3)
PATTERNS = st.lists(st.builds(str.__add__, st.sampled_from(["", "", "!"]), st.text("ab-*?", min_size=1, max_size=3)))


@given(patterns=PATTERNS, known=st.lists(NAMES), order=st.sampled_from(ORDERS))
def test_resolved_queues_are_known_unique_and_deterministic(patterns: list[str], known: list[str], order: str) -> None:
    try:
        queues = Queues(patterns, order)
    except ValueError:
        return
    found = queues.resolve(known)
    assert len(set(found)) == len(found)
    assert set(found) <= {*known, *patterns}
    assert not {pattern[1:] for pattern in patterns if pattern[0] == "!"} & set(found)
    assert Queues(queues.patterns, order) == queues
    assert queues.resolve(list(reversed(known))) == found
    assert all(queues.weight(name) == 1 for name in found)
    if not queues.has_globs:
        assert queues.resolve(()) == found
