"""`leasehold reshard`: what it says and asks. tests/engine/commands/test_resharding.py has what it does to the keys."""

import pytest

from supervisor.cli.lib import progress
from supervisor.engine.client.sync_client import Client
from supervisor.engine.client.sync_shards import Shards
from supervisor.engine.model.errors import OutcomeUnknown
from tests.engine.lua.test_scripts import digest


@pytest.fixture
def jobs(server, namespace):
    """A namespace with 40 waiting jobs, one that runs, one that waits for that, and two recurring ones."""
    with Client(server.url, namespace) as client:
        client.queue("q").put_many({"klass": "k", "jid": f"j-{i}"} for i in range(40))
        client.queue("r").put("k", jid="run-3")
        client.queue("r").put("k", jid="child-2", depends=["run-3"])
        client.queue("r").lease("w")
        for i in range(2):
            client.queue("q").recur("k", every=1000, jid=f"recurs-{i}")
        yield client


PLAN = "31 jobs, 2 recurring jobs {} into 3 other shards of 4."
STAY = (
    " In the first shard {} 9 jobs whose place it is; 2 more that run (1) or wait for other jobs or are waited for (1):"
    " `leasehold reshard 4` again moves what is free of that by then."
)


def test_dry_run_says_what_would_move_and_changes_nothing(shell, server, namespace, jobs):
    before = digest(server, namespace)
    assert shell.line("reshard", "4", "--dry-run") == PLAN.format("would move") + STAY.format("would stay")
    assert digest(server, namespace) == before


def test_it_asks_and_moves(shell, server, namespace, jobs, answer):
    before = digest(server, namespace)
    said = shell.refused(2, "reshard", "4")
    assert said.startswith(
        f"{PLAN.format('will move')} Until it is done puts and leases wait, while what runs goes on."
    )
    answer("n\n")
    assert shell("reshard", "4").err.endswith("nothing was moved\n")
    assert digest(server, namespace) == before
    answer("y\n")
    assert shell("reshard", "4").out == f"done: {PLAN.format('moved')}{STAY.format('stay')}\n"
    assert jobs.queue("q").counts().waiting == 40
    assert shell.line("check") == "nothing is wrong"


def test_the_same_command_again_moves_what_has_ended(shell, namespace, jobs):
    shell.good("reshard", "4", "--yes")
    jobs.cancel("run-3", "child-2")
    jobs.queue("q").put("k", jid="new-1")
    said = shell.line("reshard", "4", "--yes")
    assert said == "done: 0 jobs moved. In the first shard stay 9 jobs whose place it is."


def test_a_number_that_cannot_be_is_refused(shell, jobs):
    assert "shards must be 1 to 64: 65" in shell.refused(2, "reshard", "65", "--yes")
    assert "a namespace has 1 shard unless it was given several" in shell.refused(1, "reshard", "1", "--yes")
    shell.good("reshard", "4", "--yes")
    assert "has 4 shards, and a namespace gets several of them only once" in shell.refused(1, "reshard", "8", "--yes")


def test_key_of_a_foreign_type_stops_it_before_anything_has_changed(shell, server, namespace, jobs):
    jobs.log("j-1", "a full record")
    server.redis.delete(f"{{{namespace}}}:history:j-1")
    server.redis.set(f"{{{namespace}}}:history:j-1", "text")
    before = digest(server, namespace)
    said = shell.refused(1, "reshard", "4", "--yes")
    assert "WRONGTYPE" in said
    assert said.endswith("A key has a foreign type: `leasehold check --repair` moves it aside.")
    assert digest(server, namespace) == before


def test_broken_off_it_says_that_it_goes_on(shell, jobs, monkeypatch):
    run, n = Shards.walk, 0

    def cut_off(self, call):
        nonlocal n
        n += 1
        if n < 2:
            return run(self, call)
        command = next(call)
        for _ in range(30):
            command = call.send(self._store_of(command[0]).run(command[1]))
        raise OutcomeUnknown("the connection is lost")

    monkeypatch.setattr(progress, "PATIENCE_S", 0)
    with monkeypatch.context() as patch:
        patch.setattr(Shards, "walk", cut_off)
        said = shell.refused(1, "reshard", "4", "--yes")
    assert "the connection is lost. Until the move is done puts and leases wait: `leasehold reshard 4` goes on" in said
    assert shell.good("reshard", "4", "--yes").startswith("done: ")
    assert jobs.queue("q").counts().waiting == 40
