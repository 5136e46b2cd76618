"""`leasehold upgrade`: what it says and asks. tests/engine/lua/test_upgrade.py has what it does to the keys."""

import re

import pytest

from supervisor.cli.lib import progress
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import upgrade
from tests.engine.layout_1 import NOW, Leasehold01
from tests.engine.lua.test_scripts import digest

NOW_MS = round(NOW * 1000)


@pytest.fixture
def old(server, namespace):
    """A namespace of 0.1 with a few jobs, and its client. Its workers are long gone."""
    client = Leasehold01(server.redis, namespace)
    for jid in "abc":
        client.run("put", NOW_MS, "put", "q", jid, "k", "json", "null", "", "", "1", "tags", "t")
    client.run("configure", NOW_MS, "grace", "", "7")
    client.run("lease", NOW_MS, "w", "", "1", "1", "5000", "1", "strict", "1", "", "", "q", "1")
    return client


@pytest.fixture
def alive(old):
    """A worker of 0.1 that was seen just now, and holds a lease."""
    old.run("lease", "", "web-1", "", "1", "1", "90000", "", "strict", "1", "", "", "q", "1")
    return old


UP = "From layout 1 to 2: the keys of 1 option, 0 tracked jobs, 1 tag, 1 worker get other names. Jobs stay as they are."
ALIVE = "nothing was converted, because workers live: web-1 holds a lease that runs for "


def test_every_command_names_the_upgrade(shell, old):
    for words in (("queues",), ("put", "k"), ("check",), ("config",), ("workers",)):
        assert "has the layout of Leasehold 0.1: stop its supervisors and clients, then run" in shell.refused(1, *words)


def test_dry_run_says_what_would_change_and_changes_nothing(shell, server, namespace, old):
    before = digest(server, namespace)
    assert shell.line("upgrade", "--dry-run") == UP
    assert digest(server, namespace) == before


def test_upgrade_asks_and_converts(shell, server, namespace, old, answer):
    before = digest(server, namespace)
    said = shell.refused(2, "upgrade")
    assert said.startswith(f"{UP} Clients of the other version can no longer use it. Go on? stdin is not a terminal")
    answer("n\n")
    assert shell("upgrade").err.endswith("nothing was converted\n")
    assert digest(server, namespace) == before
    answer("y\n")
    assert shell("upgrade").out == "done: the namespace has the layout of this version\n"
    assert [row[0] for row in shell.rows("jobs", "waiting", "--queue", "q")[1:]] == ["b", "c"]
    assert shell.line("config", "grace") == "7"
    assert shell.line("upgrade") == "nothing to do: the namespace has layout 2"


def test_living_workers_are_named(shell, server, namespace, alive):
    before = digest(server, namespace)
    assert shell.refused(1, "upgrade", "--yes").startswith(ALIVE)
    said = shell("upgrade", "--dry-run")
    assert (said.code, said.out.count("\n")) == (1, 1)
    assert ALIVE in said.err
    assert digest(server, namespace) == before


def test_the_way_back_says_how_many_jobs(shell, old):
    shell.good("upgrade", "--yes")
    assert shell.line("upgrade", "--back", "--dry-run").startswith("From layout 2 to 1: ")
    assert shell.line("upgrade", "--back", "--yes").startswith("done: the namespace has layout 1, with 3 jobs; ")
    assert old.run("names") == [b"q"]
    assert shell.line("upgrade", "--back") == "nothing to do: the namespace has layout 1"


def test_broken_off_the_way_back_goes_on_or_ends(shell, old, monkeypatch):
    shell.good("upgrade", "--yes")
    show = progress.ProgressLine.show

    def interrupt(*_):
        raise KeyboardInterrupt

    def break_off():
        monkeypatch.setattr(progress.ProgressLine, "show", interrupt)
        said = shell.refused(1, "upgrade", "--back", "--yes")
        monkeypatch.setattr(progress.ProgressLine, "show", show)
        # The number of jobs seen by then depends on the order of the server's SCAN.
        assert re.fullmatch(r"Interrupted after [123] jobs?; `leasehold upgrade --back` goes on", said)
        assert "is on its way back" in shell.refused(1, "queues")

    break_off()
    assert shell.line("upgrade", "--dry-run").startswith("This ends the way back to layout 1")
    shell.good("upgrade", "--yes")
    assert shell.good("check") == "nothing is wrong\n"
    break_off()
    assert "with 3 jobs" in shell.line("upgrade", "--back", "--yes")


def test_a_key_of_a_foreign_type_has_a_cure(shell, server, namespace, old):
    tracked, job = f"{{{namespace}}}:tracked", f"{{{namespace}}}:job:"
    server.redis.hset(tracked, "a", "b")
    before = digest(server, namespace)
    said = shell.refused(1, "upgrade", "--yes")
    assert "WRONGTYPE" in said and "A key has a foreign type: `leasehold check --repair` moves it aside" in said
    assert digest(server, namespace) == before
    server.redis.delete(tracked)
    shell.good("upgrade", "--yes")
    server.redis.set(f"{job}foreign", "text")
    assert "`leasehold upgrade` must undo it before that" in shell.refused(1, "upgrade", "--back", "--yes")
    shell.good("upgrade", "--yes")
    shell("check", "--repair")
    assert shell.line("upgrade", "--back", "--yes").startswith("done: the namespace has layout 1, with 3 jobs; ")


def test_a_new_namespace_needs_none(shell):
    assert shell.line("upgrade").startswith("nothing to do: there are no keys yet")
    assert shell.line("upgrade", "--back").startswith("nothing to do: there are no keys yet")


@pytest.mark.parametrize("words", [(), ("--back",), ("--dry-run",)])
def test_a_newer_layout_is_left_alone(shell, server, namespace, words):
    server.redis.set(f"{{{namespace}}}:config", "3")
    assert "has a newer layout than this Leasehold knows (3, not 2)" in shell.refused(1, "upgrade", *words)


def test_a_conversion_of_many_jobs_shows_progress(jobs, monkeypatch):
    jobs.queue("q").put_many({"klass": "k"} for _ in range(1_000))
    seen = []
    assert calls_of(jobs).follow(upgrade.to_first(calls_of(jobs).clock, seen.append)) == 1_000
    assert seen == sorted(seen) and len(seen) >= 4 and seen[-1] == 1_000
