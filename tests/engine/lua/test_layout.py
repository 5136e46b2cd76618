"""The layout of a namespace: who marks it, and what happens in one of another layout."""

import pytest
import redis

from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import leasing, mailbox
from supervisor.engine.model import scripts
from supervisor.engine.model.errors import LayoutError
from tests.engine.lua.test_scripts import SCENES, digest, evaluate, ready, set_up  # noqa: F401  # fixtures
from tests.layouts import MARKS

OTHERS = {
    "1": "has the layout of Leasehold 0.1: stop its supervisors and clients, then run `leasehold upgrade`",
    "2>1": "is on its way back to the layout of Leasehold 0.1: `leasehold upgrade --back` goes on with that",
    "3": r"has a newer layout than this Leasehold knows \(3, not 2\): use a newer Leasehold",
    "12+": r"has a newer layout than this Leasehold knows \(12\+, not 2\)",
    "": "has lost the mark of its layout: `leasehold check --repair` restores it",
    "none": "has lost the mark of its layout",
}


def marks(server, namespace):
    names = sorted(MARKS)
    return dict(zip(names, server.redis.mget(f"{{{namespace}}}:{name}" for name in names), strict=True))


def to_layout(server, namespace, mark):
    """Give a namespace the mark of another layout, or the keys of layout 1."""
    prefix = f"{{{namespace}}}:"
    if mark == "1":
        server.redis.delete(*(prefix + name for name in MARKS))
        for new, old in (
            ("options", "config"),
            ("tracked-jobs", "tracked"),
            ("tag-counts", "tags"),
            ("workers-seen", "workers"),
        ):
            if server.redis.exists(prefix + new):
                server.redis.rename(prefix + new, prefix + old)
    elif mark == "none":
        server.redis.delete(f"{prefix}config")
    else:
        server.redis.set(f"{prefix}config", mark)


#: Calls of `leasehold upgrade` that a namespace of layout 1 is for.
UP = {"scores", "scores: in layout 1", "convert: up", "convert: broken off"}


#: What asks for the layout: each script, or for it what the passes of `leasehold reshard` include.
ASKS = "--- @include this_layout\n", "--- @include resharding\n"


def test_every_script_asks_for_the_layout_first():
    assert ASKS[0] in scripts.source("include/resharding")
    silent = {script.name for script in scripts.ALL if not any(line in scripts.source(script.name) for line in ASKS)}
    assert silent == {"layouts"}, "which says what the layout is"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("scene", "mark"),
    [(scene, mark) for scene in SCENES for mark in "13" if scene != "layouts" and (mark != "1" or scene not in UP)],
)
def test_no_script_reads_or_writes_in_another_layout(server, namespace, set_up, scene, mark):  # noqa: F811
    command = set_up(scene)
    to_layout(server, namespace, mark)
    before = digest(server, namespace)
    with pytest.raises(redis.ResponseError, match=r"^LAYOUT "):
        evaluate(server, namespace, command)
    assert digest(server, namespace) == before


@pytest.mark.parametrize("mark", OTHERS)
def test_the_error_says_what_the_namespace_is_and_what_to_do(server, namespace, mark):
    with Client(server.url, namespace) as client:
        client.queue("q").put("k", tags=["t"])
        to_layout(server, namespace, mark)
        for call in (client.queues, lambda: client.queue("q").put("k"), lambda: client.queue("q").lease("w")):
            with pytest.raises(LayoutError, match=f"^namespace {namespace} {OTHERS[mark]}"):
                call()


FIRST_WRITES = {
    "put": lambda client: client.queue("q").put("k"),
    "put of many": lambda client: client.queue("q").put_many([{"klass": "k"}] * 3),
    "lease": lambda client: client.queue("q").lease("w"),
    "recur": lambda client: client.queue("q").recur("k", every=1),
    "configure": lambda client: client.config.set("grace", 7),
    "pause": lambda client: client.queue("q").pause(),
    "limit": lambda client: client.limit("key", running=1),
    "lane": lambda client: client.queue("q").lane("a").weight(2),
    "resume": lambda client: client._store.run(leasing.resume("w", 1, [])),
    "tell": lambda client: client._store.run(mailbox.tell("w", "hint")),
}


@pytest.mark.parametrize("what", FIRST_WRITES)
def test_whatever_writes_first_marks_the_namespace(live, server, namespace, what):
    FIRST_WRITES[what](live)
    has_options = what in ("configure", "pause")
    assert marks(server, namespace) == {
        "config": b"2+" if has_options else b"2", "tags": b"2", "tracked": b"2", "workers": b"2"
    }  # fmt: skip


def test_reading_marks_nothing(live, server, namespace):
    assert (list(live.queues()), live.job("x"), live.cancel("x"), live.check(repair=True)) == ([], None, [], [])
    assert list(server.redis.scan_iter(f"{{{namespace}}}:*")) == []


def test_entries_of_other_programs_do_not_make_a_layout(live, server, namespace):
    server.redis.lpush(f"{{{namespace}}}:in:q", '{"klass": "k", "jid": "pushed"}')
    assert live.queue("q").length() == 1
    assert [lease.jid for lease in live.queue("q").lease("w")] == ["pushed"]
    assert marks(server, namespace)["config"] == b"2"


def test_the_mark_says_whether_there_are_options(live, server, namespace):
    seen = []
    for change in (
        lambda: live.queue("q").put("k"),
        lambda: live.config.set("grace", 7),
        lambda: live.queue("q").pause(),
        lambda: live.config.unset("grace"),
        lambda: live.queue("q").unpause(),
    ):
        change()
        seen.append(marks(server, namespace)["config"])
    assert seen == [b"2", b"2+", b"2+", b"2+", b"2"]
    assert not server.redis.exists(f"{{{namespace}}}:options")


def test_check_restores_lost_marks(live, server, namespace):
    live.queue("q").put("k")
    live.config.set("grace", 7)
    before = marks(server, namespace)
    server.redis.delete(*(f"{{{namespace}}}:{name}" for name in MARKS))
    server.redis.hset(f"{{{namespace}}}:config", "grace", 9)
    with pytest.raises(LayoutError, match="lost the mark"):
        live.queues()
    assert {found.kind for found in live.check(repair=True)} == {"foreign-type", "lost-mark"}
    assert (marks(server, namespace), live.config.get("grace")) == (before, 7)
    assert live.check() == []
