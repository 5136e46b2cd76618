"""The quick paths of put, lease and settle do the same as the rest of their scripts."""

import random
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import redis

from supervisor.engine.commands import leasing, putting, settling
from supervisor.engine.commands.command import Command
from supervisor.engine.model import scripts
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.new_jobs import new_job
from supervisor.engine.model.outcomes import Completed, Died, Released, Retried, Returned
from supervisor.engine.model.scripts import Script
from tests.engine.invariants import misplaced, read_namespace
from tests.engine.lua.test_scripts import FIRST_WRITE, digest, evaluate, is_refused, snapshot
from tests.engine.many_queues import leases_of_many_queues
from tests.layouts import set_options
from tests.lengths import LONG

NOW = 1_000_000.0
TAKEN = re.compile(r"^local (\w+) = quick_\w+\(\)\nif \1 then return \1 end$", re.MULTILINE)
TRACE = f"00-{'ab' * 16}-{1:016x}-01"
QUEUES = ("q", "r")
QUICK = (scripts.PUT, scripts.LEASE, scripts.SETTLE, scripts.within_memory(scripts.SETTLE))


def without(script: Script) -> Script:
    """Return a script without its quick path."""
    return _without(script.name, script.text)


@cache
def _without(name: str, text: str) -> Script:
    rest, found = TAKEN.subn("", text)
    assert found == (name in {script.name for script in QUICK}), name
    return Script(name, rest)


def only(script: Script) -> Script:
    """Return a script with only its quick path."""
    return _only(script.name, script.text)


@cache
def _only(name: str, text: str) -> Script:
    return Script(name, text[: next(TAKEN.finditer(text)).end()] + '\nerror({ err = "NOT QUICK" })\n')


def run(server: Any, namespace: str, command: Command[Any], script: Script) -> Any:
    sha = server.redis.script_load(script.text)
    try:
        return server.redis.execute_command("EVALSHA", sha, 1, f"{{{namespace}}}:", *command.args)
    except redis.ResponseError as error:
        return str(error).partition(" script: ")[0]


class Twins:
    """Two namespaces with the same history, one of them without the quick paths."""

    def __init__(self, server: Any, namespace: str, seed: int) -> None:
        self.server, self.namespaces = server, (namespace, server.seen(f"{namespace}-whole"))
        self.random = random.Random(seed)
        self.now, self.number, self.made = NOW, 0, 0
        self.leases: list[LeaseRecord] = []
        self.quick = 0

    def both(self, command: Command[Any]) -> Any:
        quick, whole = self.namespaces
        before = digest(self.server, quick)
        if command.script in QUICK:
            answer = run(self.server, quick, command, only(command.script))
            if answer == "NOT QUICK":
                assert digest(self.server, quick) == before, "it has left something behind"
                answer = run(self.server, quick, command, command.script)
            else:
                self.quick += 1
        else:
            answer = run(self.server, quick, command, command.script)
        assert run(self.server, whole, command, without(command.script)) == answer, command.args
        one, other = (read_namespace(self.server.redis, namespace) for namespace in self.namespaces)
        assert one == other, command.args
        assert one.ending == other.ending, command.args
        return answer

    def in_both(self, *command: Any) -> None:
        for namespace in self.namespaces:
            name, key, *rest = command
            self.server.redis.execute_command(name, f"{{{namespace}}}:{key}", *rest)

    # steps

    def put(self) -> None:
        jobs = []
        for _ in range(self.random.choice([1, 1, 3, 20])):
            self.made += 1
            jid = f"j{self.random.randrange(self.made)}" if self.random.random() < 0.05 else f"j{self.made}"
            verb = self.random.choice(["put", "put", "add"])
            data = self.random.choice([None, {"n": 1}, b"\0raw", "x" * 2000, "x" * 9_000])
            data = "x" * 500_000 if self.random.random() < 0.01 else data
            queue = self.random.choice(QUEUES)
            jobs.append(new_job(verb, queue, self.random.choice("kl"), data, {"jid": jid, **self.options()}))
        self.both(putting.put(jobs, now=self.now))

    def options(self) -> dict[str, Any]:
        rare: list[dict[str, Any]] = [{"lane": "x"}, {"tags": ["t"]}, {"delay": 3}, {"unique": "one"}, {"limit": "l"},
                {"expires": 5}, {"at_most_once": True}, {"persistent": True}, {"depends": ["j1"]}]  # fmt: skip
        plain: list[dict[str, Any]] = [{}, {}, {}, {"priority": -3, "retries": 2}, {"priority": 0, "timeout": 7.5},
                {"max_deaths": 1, "trace": TRACE}, {"priority": 9}]  # fmt: skip
        return self.random.choice(rare if self.random.random() < 0.005 else plain)

    def lease(self) -> None:
        self.number += 1
        queues = self.random.choice([["q"], ["q"], ["q", "r"], ["r", "q", "empty"]])
        command = leasing.lease(
            "w",
            queues,
            self.random.choice([0, 1, 2, 10]),
            ttl_s=self.random.choice([None, None, 10, 0.5]),
            starting=self.random.choice([None, 0, 1]),
            number=self.random.choice([None, self.number, self.number, 1]),
            takeover=self.random.random() < 0.8,
            order=self.random.choice(["strict", "strict", "round-robin"]),
            woken=self.random.random() < 0.5,
            once=self.random.choice([[], [], [], ["l"]]),
            now=self.now,
        )
        reply = self.both(command)
        if isinstance(reply, list):
            self.leases += command.parse(reply).leases

    def settle(self) -> None:
        n = self.random.choice([0, 1, 1, 5, 9])
        ending, self.leases = self.leases[:n], self.leases[n:]
        result = self.random.choice([None, None, {"n": 1}])
        outcomes: list[Any] = [Completed(lease, result) for lease in ending]
        if ending and self.random.random() < 0.15:
            lease = ending[0]
            outcomes[0] = self.random.choice(
                [Completed(lease, {"r": 1}), Completed(lease, data=1), Retried(lease), Died(lease, "SIGKILL"),
                 Released(lease), Returned(lease), Completed(lease, next="r"),
                 Completed(lease, then=[{"queue": "q", "klass": "k", "jid": "follows"}])]
            )  # fmt: skip
        if ending and self.random.random() < 0.1:
            outcomes.append(Completed(self.random.choice(ending)))
        number = self.random.choice([None, self.number, self.number, max(0, self.number - 1)])
        command = settling.settle("w", outcomes, number=number, now=self.now)
        self.both(command)
        if self.random.random() < 0.1:
            self.both(command)

    def tick(self) -> None:
        self.now = round(self.now + self.random.choice([0, 0.003, 0.1, 1, 1, 7, 61, -2]), 3)

    def tick_far(self) -> None:
        self.now += self.random.choice([45, 90_000])

    def hear(self) -> None:
        self.in_both("DEL", f"bell:{self.random.choice(QUEUES)}")

    def configure(self) -> None:
        option, value = self.random.choice(
            [("jobs-history", "0"), ("jobs-history", "60"), ("jobs-history-count", "4"), ("stats-history", "0"),
             ("histogram-history", "0"), ("max-concurrency-q", "3"), ("paused-r", "1"), ("heartbeat-q", "2.5")]
        )  # fmt: skip
        self.in_both("HSET", "options", option, value)
        self.in_both("SET", "config", "2+")

    def reset(self) -> None:
        self.in_both("DEL", "options")
        self.in_both("SET", "config", "2")

    def push(self) -> None:
        self.in_both("LPUSH", "in:q", '{"klass":"k","jid":"pushed"}')


@pytest.mark.parametrize("seed", range(8 if LONG else 1))
@pytest.mark.parametrize("queues", ["few", "many"])
def test_script_without_its_quick_path_replies_and_stores_the_same(server, namespace, seed, queues):
    with leases_of_many_queues() if queues == "many" else nullcontext():
        play_twins(server, namespace, seed)
        assert ("quiet" in read_namespace(server.redis, namespace)) <= (queues == "many")


def play_twins(server, namespace, seed):
    twins = Twins(server, namespace, seed)
    common = [twins.put, twins.lease, twins.lease, twins.settle, twins.settle, twins.tick, twins.hear]
    rare = [twins.configure, twins.reset, twins.reset, twins.push, twins.tick_far]
    for _ in range(250):
        twins.random.choice(rare if twins.random.random() < 0.04 else common)()
    assert twins.quick > 20
    assert misplaced(read_namespace(server.redis, namespace)) == []


# Calls that must take the quick path, and be as safe as the rest.


def common_calls(worker: str) -> list[Any]:
    """Yield commands, each made after the ones before have run."""
    leased: list[LeaseRecord] = []

    def grant() -> Command[Any]:
        command = leasing.lease(worker, ["q", "r"], 3, number=1, starting=1, now=NOW)

        def parse(reply: Any) -> Any:
            leased[:] = command.parse(reply).leases
            return leased

        return replace(command, parse=parse)

    return [
        lambda: putting.put([new_job("put", "q", "k", {"n": n}, {"jid": f"j{n}"}) for n in range(2)], now=NOW),
        lambda: putting.put([new_job("add", "r", "k", b"x" * 2000, {"jid": "r1", "trace": TRACE})], now=NOW),
        grant,
        lambda: settling.settle(worker, [Completed(lease, lease.token) for lease in leased], number=1, now=NOW),
        lambda: putting.put([new_job("put", "q", "k", None, {"jid": "last"})], now=NOW),
        grant,
        lambda: settling.settle(worker, [Completed(lease) for lease in leased], number=2, now=NOW),
        lambda: putting.put([new_job("put", "q", "k", None, {"jid": "one"})], now=NOW),
        lambda: leasing.lease(worker, ["q"], 1, number=2, now=NOW),  # full: it leaves the wake-up key
        lambda: leasing.lease(worker, ["q"], 1, number=2, now=NOW),
    ]


def prepare(server: Any, namespace: str) -> None:
    """The day's statistics exist, and retention has something to drop."""
    for queue in QUEUES:
        for command in (
            putting.put([new_job("put", queue, "k", None, {"jid": f"old-{queue}"})], now=NOW),
            leasing.lease("old", [queue], 1, now=NOW),
        ):
            reply = run(server, namespace, command, command.script)
        (lease,) = command.parse(reply).leases
        run(server, namespace, settling.settle("old", [Completed(lease)], now=NOW), scripts.SETTLE)
    set_options(server.redis, f"{{{namespace}}}:", {"jobs-history-count": 1, "grace": 7})


def test_common_calls_take_the_quick_path(server, namespace):
    prepare(server, namespace)
    for call in common_calls("w"):
        command = call()
        command.parse(run(server, namespace, command, only(command.script)))
    assert misplaced(read_namespace(server.redis, namespace)) == []


def test_a_quick_way_has_two_halves(server, namespace):
    prepare(server, namespace)
    for call in common_calls("w"):
        command, before = call(), digest(server, namespace)
        with pytest.raises(redis.ResponseError, match="INJECTED at") as first_write:
            evaluate(server, namespace, command, FIRST_WRITE)
        for at in range(1, int(re.search(r"INJECTED at (\d+)", str(first_write.value))[1])):
            with pytest.raises(redis.ResponseError, match="INJECTED"):
                evaluate(server, namespace, command, at)
            assert digest(server, namespace) == before
        command.parse(evaluate(server, namespace, command))


def test_wrong_type_fails_before_the_first_write_or_does_not_matter(server, namespace):
    prepare(server, namespace)
    for call in common_calls("w"):
        command, before = call(), snapshot(server, namespace)
        evaluate(server, namespace, command, note_in=f"used-{namespace}")
        used = server.redis.smembers(f"used-{namespace}")
        server.redis.delete(f"used-{namespace}")
        for key in sorted(used):
            restore(server, namespace, before)
            if is_refused(server, namespace, command, key):
                left = snapshot(server, namespace)
                del left[key]
                assert left == {name: dump for name, dump in before.items() if name != key}, (command.script, key)
        restore(server, namespace, before)
        command.parse(evaluate(server, namespace, command))


def restore(server: Any, namespace: str, keys: dict[bytes, bytes]) -> None:
    for key in server.redis.scan_iter(f"{{{namespace}}}:*", count=1000):
        server.redis.delete(key)
    for key, dump in keys.items():
        server.redis.restore(key, 0, dump)


def test_quick_paths_know_the_same_defaults_as_the_rest():
    include = Path(scripts.__file__).parents[1] / "lua" / "include"
    defaults = dict(re.findall(r'\[?"?([a-z-]+)"?\]? = (\d+)', (include / "config.lua").read_text()))
    texts = [path.read_text() for path in include.glob("quick_*.lua")]
    asked = [named for text in texts for named in re.findall(r"quick_options\(\w+, \{(.*?)\}", text, re.S)]
    wanted = [pair for named in asked for pair in re.findall(r'"([a-z-]+)", (\d+)', named)]
    assert len(wanted) == 13
    assert [(name, defaults[name]) for name, _ in wanted] == wanted
    without_options = re.compile(r"= ([\d, ]+)\n\s+if has_options then\n[^{]*\{(.*?)\}", re.S)
    for text in texts:
        for values, named in without_options.findall(text):
            assert values.split(", ") == re.findall(r", (\d+)", named)


def test_batch_of_a_thousand_is_quick_in_bounded_calls(server, namespace):
    prepare(server, namespace)
    made = [new_job("put", "q", "k", {"n": n}, {}) for n in range(1000)]
    put = putting.put(made, now=NOW)
    with pytest.raises(redis.ResponseError, match="INJECTED"):
        evaluate(server, namespace, put, FIRST_WRITE)
    assert run(server, namespace, put, only(scripts.PUT)) == [1] * 1000
    lease = leasing.lease("w", ["q"], 1000, now=NOW)
    leases = lease.parse(evaluate(server, namespace, lease)).leases
    assert [one.jid for one in leases] == [job.jid for job in made]
    settle = settling.settle("w", [Completed(one) for one in leases], now=NOW)
    assert settle.parse(evaluate(server, namespace, settle)) == [True] * 1000
    assert misplaced(read_namespace(server.redis, namespace)) == []
