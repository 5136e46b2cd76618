"""A child reads the results of parents in parts, however large they are."""

import orjson
import pytest

from supervisor import JobFailed, messages
from supervisor.child.parent_results import read_all
from supervisor.engine.model.jobs import ParentResult
from supervisor.messages import MAX_PACKET_BYTES, MOST_RESULTS, ResultsPage, ResultsWanted


def answered(parents):
    """Return what answers a child's questions as the master does, and the sizes of the questions."""
    asked = []

    def ask(first, most):
        asked.append(most)
        packet = messages.pack_page(ResultsPage(1, len(parents), parents[first : first + most]))
        assert len(packet) < MAX_PACKET_BYTES
        page = messages.unpack_word(packet)
        assert isinstance(page, ResultsPage)
        return page

    return ask, asked


def test_many_small_results_come_in_few_packets():
    parents = [ParentResult(f"p{i}", b"%d" % i) for i in range(5_000)]
    ask, asked = answered(parents)
    assert read_all(ask) == {f"p{i}": i for i in range(5_000)}
    assert max(asked) == MOST_RESULTS and len(asked) < 90


def test_large_results_are_not_read_many_times():
    text = '"\\' * 16_000
    parents = [ParentResult(f"p{i}", orjson.dumps(text)) for i in range(40)]
    ask, asked = answered(parents)
    assert read_all(ask) == {f"p{i}": text for i in range(40)}
    assert sum(asked) < 3 * 40


@pytest.mark.parametrize(
    "parent",
    [
        ParentResult("j" * 64, failure=("g" * 65_536, "\x01" * 65_536)),
        ParentResult("j" * 64, orjson.dumps("\x01" * 10_900)),
        ParentResult("j" * 64, b"\x01" * 65_536),
        ParentResult("j" * 64, b"\xff" * 65_536),
    ],
)
def test_whatever_a_parent_has_left_fits_into_a_packet(parent):
    ask, _ = answered([parent, parent])
    assert list(read_all(ask)) == ["j" * 64]


def test_no_parents_are_one_question():
    ask, asked = answered([])
    assert read_all(ask) == {} and len(asked) == 1


def test_failure_is_an_exception_that_can_be_raised():
    ask, _ = answered([ParentResult("a", failure=("g", "m")), ParentResult("b"), ParentResult("c", b"null")])
    found = read_all(ask)
    assert isinstance(found["a"], JobFailed) and (found["a"].group, found["a"].message) == ("g", "m")
    assert (found["b"], found["c"]) == (None, None)


@pytest.mark.parametrize("body", [b"", b"x" * 15, b"x" * 17])
def test_question_of_another_size_is_nonsense(body):
    with pytest.raises(ValueError, match="no question for results"):
        messages.unpack_wanted(body)


@pytest.mark.parametrize("most", [0, MOST_RESULTS + 1, 2**32 - 1])
def test_question_for_too_many_results_is_nonsense(most):
    packet = messages.pack_wanted(7, ResultsWanted(1, 0, most))
    with pytest.raises(ValueError, match="the limit is 64"):
        messages.unpack_wanted(messages.unpack_outcome(packet).body)
