"""Bytes that another program has written into our keys end no supervisor that reads them."""

import pytest

from supervisor.engine.commands import concerns, doors, leasing, mailbox, parent_results
from supervisor.engine.commands.payloads import once_jobs

FOREIGN = b"\xff"
SHOWN = "\N{REPLACEMENT CHARACTER}"


def test_who_cancelled_a_job():
    command = leasing.renew("w", [leasing.Renewal("a", 1), leasing.Renewal("b", 2)])
    renewals = command.parse([1_000, b"gone:" + FOREIGN, 5_000])
    assert (list(renewals), renewals.cancelled_by) == ([leasing.GONE, 5.0], {0: SHOWN})


def test_serve_request():
    assert mailbox.serve_request("w").parse([1, FOREIGN, FOREIGN, b"q"]) == mailbox.ServeRequest(1, [SHOWN, "q"], SHOWN)


def test_concerns():
    rows = [[FOREIGN, 1, -1, 0, 0], [b"q", 1, -1, 0, 0]]
    found, _following = concerns.read().parse([-1, rows, 1, [FOREIGN, 1], [FOREIGN], [], 0, 0])
    assert (list(found.queues), found.groups, found.closed_limits) == ([SHOWN, "q"], {SHOWN: 1}, (SHOWN,))


@pytest.mark.parametrize(
    "damaged", [(FOREIGN, b"rwq"), (b"e", FOREIGN), (b"e", b"odd\nl\ns\nq\n"), (b"e", b"rwq\nl\ns\nq\n\nno klass")]
)
def test_doors(damaged):
    found = doors.read().parse([[*damaged, 0, []], [b"d", b"rwq\nlist\nsource\nq\n", 0, []]])
    assert [door.name for door in found] == ["d"]


def test_parents():
    command = parent_results.read("a", 0, 10)
    reply = [FOREIGN + b"\nb"]
    left = command.left_out("{l}:", reply)
    left.fill([[None] * 4 + [b"1"] + [None] * 3])
    total, results = command.parse(reply)
    assert (total, [(each.jid, each.result) for each in results]) == (2, [(SHOWN, None), ("b", b"1")])


def test_jobs_that_must_not_start_twice():
    row = [b"k", b"q", b"1", 0, [None] * 10 + [b"o"]]
    assert once_jobs([0, 0, 7, [], 0, [], [FOREIGN, b"b"], [row, row]]) == [(SHOWN, 7), ("b", 8)]
