"""The Lua scripts as texts and as transactions: their headers tell the truth, and their two halves stay apart."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from supervisor.engine import commands, scripts
from supervisor.engine.client import Client
from supervisor.engine.commands import Command
from supervisor.engine.errors import StoreUnavailable
from supervisor.engine.jobs import Completed, Died, Failed, Released, Retried, Unknown, new_job

LUA = Path(scripts.__file__).parent / "lua"
NOW = 1_000_000.0
VERBS = [script.name for script in scripts.ALL]
REFERENCE = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")
RANGE = re.compile(r"\bARGV\[(\d+)\.\.\]")


def header_and_body(name: str) -> tuple[str, str]:
    lines = scripts.source(name).splitlines()
    end = next(i for i, line in enumerate(lines) if i and not re.match(r"--( |$)", line))
    return "\n".join(lines[:end]), "\n".join(lines[end:])


def whole_body(name: str) -> str:
    """The body with its includes, without comments."""
    _, body = header_and_body(name)
    text = scripts.load(name).text
    code = text[text.index(body.splitlines()[-1]) :] if not body else text
    return re.sub(r"--.*", "", code)


# As texts.


def test_every_file_is_a_script_that_is_loaded():
    assert sorted(VERBS) == sorted(path.stem for path in LUA.glob("*.lua"))


@pytest.mark.parametrize("name", VERBS)
def test_a_header_says_what_it_is_who_calls_it_and_what_it_answers(name):
    header, _ = header_and_body(name)
    assert re.match(r"#!lua( flags=[a-z-]+)?\n-- " + name + r"\.lua — \S", header)
    for heading in ("Called by: ", "Holds: ", "Returns ", "Errors "):
        assert f"\n-- {heading}" in header
    caller = re.search(r"Called by: (.+) \(supervisor/engine/commands\.py\)", header)
    assert caller
    for function in caller[1].split(", "):
        assert callable(getattr(commands, function.removeprefix("commands.")))


@pytest.mark.parametrize("name", VERBS)
def test_a_header_names_every_key_and_argument_that_the_body_uses(name):
    header, body = header_and_body(name)[0], whole_body(name)
    named, used = set(REFERENCE.findall(header)), set(REFERENCE.findall(body))
    assert named == used
    rest = RANGE.search(header)
    starts = re.findall(r"= (\d+), #ARGV|unpack\(ARGV, (\d+)\)|\bat = (?:.*, )?(\d)$", body, re.M)
    walked = {int(n) for start in starts for n in start if n}
    assert walked == ({int(rest[1])} if rest else set()), "a loop walks through the rest of the arguments"
    if rest:
        assert max((int(n) for kind, n in named if kind == "ARGV"), default=0) == int(rest[1]) - 1


@pytest.mark.parametrize("path", sorted(LUA.rglob("*.lua")), ids=lambda path: path.name)
def test_no_script_walks_the_keyspace_or_evaluates_what_it_is_given(path):
    assert not re.search(
        r"call\(\s*[\"'](KEYS|SCAN|FLUSH|EVAL)|cjson\.decode|cmsgpack|loadstring", path.read_text(), re.I
    )


@pytest.mark.parametrize("path", sorted(LUA.rglob("*.lua")), ids=lambda path: path.name)
def test_lines_fit_the_page(path):
    assert all(len(line) <= 120 for line in path.read_text().splitlines())


def test_what_must_get_in_when_redis_is_full_says_so_and_what_only_looks_says_that():
    flags = {script.name: script.text.split("\n")[0] for script in scripts.ALL}
    full = {name for name, line in flags.items() if "allow-oom" in line}
    assert full == {"lease", "settle", "renew", "resume", "sweep", "deregister", "tell"}
    assert {s.name for s in scripts.ALL if s.reads_only} == {"job", "failed", "counts", "timing"}


def test_an_include_is_put_in_once():
    text = scripts.SETTLE.text
    assert "@include" not in text
    assert text.count("local P = KEYS[1]") == 1


# As transactions: every script in a rich state, with redis.call looked over.

WRAPPED = """
local redis = (function(real)
  local WRITES = { SET = 1, MSET = 1, HSET = 1, HDEL = 1, ZADD = 1, ZREM = 1, UNLINK = 1, INCRBY = 1, RPUSH = 1,
    LTRIM = 1, PEXPIRE = 1, ZREMRANGEBYSCORE = 1 }
  local calls, writing = 0, false
  local function call(command, ...)
    calls = calls + 1
    if WRITES[command] then
      writing = true
    elseif writing then
      error("READ AFTER WRITE: " .. command)
    end
    if calls == %d and not writing then error("INJECTED before " .. command) end
    if select("#", ...) > 1001 then error("MORE THAN 1000 VALUES: " .. command) end
    return real.call(command, ...)
  end
  return setmetatable({ call = call }, { __index = real })
end)(redis)
"""


@dataclass
class Stage:
    """A namespace in a rich state: jobs in every place, phantoms, expired leases, bells rung, due schedules."""

    client: Client
    held: dict[str, Any]

    def command(self, verb: str) -> Command[Any]:
        return SCENES[verb](self)


def set_up(server: Any, namespace: str) -> Stage:
    time = [NOW - 100]
    client = Client(server.url, namespace, lambda: time[0])
    q = client.queue("q")
    q.put_many({"klass": "k", "data": i, "jid": f"lost-{i}"} for i in range(4))
    q.lease("gone", 3)
    client._store.run(commands.lease("gone", ["q"], 1, starting=0, now=time[0]))
    q.put_many({"klass": "k", "data": i, "jid": f"held-{i}", "retries": 0 if i == 2 else 3} for i in range(8))
    time[0] = NOW - 20
    leases = {lease.jid: lease for lease in client._store.run(
        commands.lease("w", ["q"], 8, takeover=False, now=time[0])).leases}  # fmt: skip
    q.put_many({"klass": "k", "jid": f"other-{i}"} for i in range(4))
    grant = client._store.run(commands.lease("w2", ["q"], 4, ttl_s=1_000, takeover=False, now=time[0]))
    front, failed, complete, dead = grant.leases
    client.settle([Failed(failed, "g", "m"), Completed(complete, 1), Died(dead, "oom"), Released(front)])
    q.put("k", "d", jid="due", delay=1, priority=2)
    q.put("k", "d", jid="not-due", delay=1000)
    q.put_many({"klass": "k", "jid": f"waiting-{i}", "priority": i} for i in range(3))
    client.queue("p").put("k", jid="elsewhere")
    for place in ("waiting", "front", "running", "scheduled"):
        server.redis.zadd(f"{{{namespace}}}:queue:q:{place}", {f"{0:013x}ghost-{place}": 0})
    client._store.run(commands.tell("w", "hint"))
    client._store.run(commands.settle("w", [], number=1, now=time[0]))
    server.redis.hset(f"{{{namespace}}}:config", mapping={"jobs-history-count": 1, "failed-history-count": 1})
    server.redis.delete(f"{{{namespace}}}:bell:q")
    client.close()
    return Stage(client, leases)


def puts() -> list[Any]:
    known = ["lost-0", "held-0", "due", "waiting-0", "elsewhere", *(f"other-{i}" for i in range(4))]
    jobs = [new_job("put", "q", "k", {"n": 1}, {"jid": jid, "delay": n % 2 * 5}) for n, jid in enumerate(known)]
    return [*jobs, new_job("add", "q", "k", None, {"jid": "lost-1"}), new_job("put", "fresh", "k", b"x" * 2000, {})]


def outcomes(stage: Stage) -> list[Any]:
    held = stage.held
    return [
        Completed(held["held-0"], "r"),
        Retried(held["held-1"]),
        Retried(held["held-2"]),
        Failed(held["held-3"], "g", "m"),
        Released(held["held-4"]),
        Died(held["held-5"], "SIGKILL"),
        Unknown(held["held-6"], 5),
        Retried(held["held-7"], delay=1),
        Completed(held["held-0"]),
    ]


def known(stage: Stage) -> list[tuple[str, int]]:
    return [(lease.jid, lease.token) for lease in stage.held.values()][:3]


SCENES: dict[str, Callable[[Stage], Command[Any]]] = {
    "put": lambda stage: commands.put(puts(), now=NOW),
    "lease": lambda stage: commands.lease("w", ["q", "p"], 7, number=2, now=NOW),
    "settle": lambda stage: commands.settle("w", outcomes(stage), number=2, now=NOW),
    "renew": lambda stage: commands.renew(
        "w", [commands.Renewal(*k, True, b"x" * 2000) for k in known(stage)], now=NOW
    ),
    "resume": lambda stage: commands.resume("w", 2, known(stage), now=NOW),
    "sweep": lambda stage: commands.sweep(now=NOW),
    "deregister": lambda stage: commands.deregister("w", now=NOW),
    "tell": lambda stage: commands.tell("w", "hint"),
    "job": lambda stage: commands.jobs(["lost-0", "held-0", "due", "nobody"], now=NOW),
    "failed": lambda stage: commands.failed_jobs("g", now=NOW),
    "counts": lambda stage: commands.counts(now=NOW),
    "timing": lambda stage: commands.timing(["q"]),
}


def evaluate(server: Any, namespace: str, command: Command[Any], fail_at: int) -> Any:
    """Runs a command with its redis.call looked over; `fail_at` is the call at which an error is injected."""
    shebang, _, rest = command.script.text.partition("\n")
    return server.redis.eval(f"{shebang}\n{WRAPPED % fail_at}{rest}", 1, f"{{{namespace}}}:", *command.args)


@pytest.mark.parametrize("verb", VERBS)
def test_an_error_at_any_call_before_the_first_write_changes_nothing(server, namespace, verb):
    command = set_up(server, namespace).command(verb)
    before = server.dump(namespace)
    for call in range(1, 1_000):
        try:
            evaluate(server, namespace, command, call)
        except redis.ResponseError as error:
            assert "INJECTED" in str(error)
            assert server.dump(namespace) == before
        else:
            break
    else:
        pytest.fail("the script never came to its first write")


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_read_after_the_first_write_and_no_call_has_more_than_a_thousand_values(server, namespace, verb):
    evaluate(server, namespace, set_up(server, namespace).command(verb), 0)


@pytest.mark.parametrize("verb", VERBS)
def test_a_shared_key_of_a_wrong_type_is_an_error_before_the_first_write(server, namespace, verb):
    prefix = f"{{{namespace}}}:"
    evaluate(server, namespace, set_up(server, namespace).command(verb), 0)
    touched = {key.decode() for key in server.dump(namespace)}
    shared = sorted(key for key in touched if not re.match(re.escape(prefix) + r"(job|data|failure|result):", key))
    raised = 0
    for key in shared:
        server.redis.delete(*server.dump(namespace))
        command = set_up(server, namespace).command(verb)
        server.redis.delete(key)
        server.redis.xadd(key, {"of a type": "that we never use"})
        before = server.dump(namespace)
        try:
            evaluate(server, namespace, command, 0)
        except redis.ResponseError as error:
            assert "WRONGTYPE" in str(error)
            assert server.dump(namespace) == before, key
            raised += 1
    assert raised > 0


@pytest.mark.parametrize("verb", ["put", "lease", "settle"])
def test_a_thousand_jobs_keep_within_a_thousand_values_a_call(server, namespace, verb):
    client = Client(server.url, namespace, lambda: NOW)
    jobs = [new_job("put", "q", "k", None, {"jid": str(i)}) for i in range(1_000)]
    batch = {"put": commands.put(jobs, now=NOW), "lease": commands.lease("w", ["q"], 1_000, now=NOW)}
    for name in ("put", "lease")[: 1 + (verb != "put")]:
        if name == verb:
            break
        client._store.run(batch[name])
    if verb == "settle":
        leases = client._store.run(batch["lease"]).leases if not client.queues()["q"].running else []
        batch["settle"] = commands.settle("w", [Retried(lease) for lease in leases], now=NOW)
    evaluate(server, namespace, batch[verb], 0)
    assert sum((counts := client.queues()["q"]) and (counts.waiting, counts.running)) == 1_000
    client.close()


def test_when_redis_is_full_leases_still_end_and_nothing_new_comes_in(live, server, namespace):
    live.queue("q").put_many({"klass": "k", "jid": jid} for jid in "abcd")
    done, failed, renewed = live.queue("q").lease("w", 3)
    server.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match=r"refused put: .*maxmemory'\. Nothing has changed"):
            live.queue("q").put("k", jid="e")
        assert [lease.jid for lease in live.queue("q").lease("w")] == ["d"]  # else the backlog could not go down
        assert (done.complete({"r": 1}), failed.fail("g", "m")) == (True, True)
        assert renewed.renew() > 0
        live._store.run(commands.resume("w", 1, []))
        assert live.deregister("w") == 0
    finally:
        server.redis.config_set("maxmemory", 0)
    assert [job and job.state for job in live.jobs(*"abcde")] == ["complete", "failed", "waiting", "waiting", None]
