"""The examiner's questions to a server, and the rights that it finds missing."""

import re

import pytest

from supervisor.engine.client import examine
from supervisor.engine.client.examine import Examiner, Refused
from supervisor.engine.commands import dividing
from supervisor.engine.model import scripts
from supervisor.engine.model.errors import StoreUnavailable
from supervisor.engine.model.keys import Namespace

EVERYTHING = "+@all ~{{{0}}}:* &{{{0}}}:*"
CALLS = (*examine._IN_SCRIPTS, *examine._OF_A_WORKER, *examine._OF_COMMANDS)


@pytest.fixture
def account(server, namespace):
    """Makes an account by its rules, and answers an examiner that uses it."""
    examiners = []

    def make(rules):
        server.redis.execute_command("ACL", "SETUSER", "examined", "reset", "on", ">PASSWORD", *rules.split())
        url = server.url_with("examined", "PASSWORD")
        examiners.append(Examiner(url, Namespace(namespace)))
        return examiners[-1]

    yield make
    for examiner in examiners:
        examiner.close()
    server.redis.acl_deluser("examined")


@pytest.fixture
def refused(account, namespace):
    return lambda rules: account(rules.format(namespace)).refused()


def test_every_command_that_a_script_calls_is_asked_about(server):
    said = sorted({word for script in scripts.ALL for word in re.findall(r'"([A-Z]+)"', script.text)})
    known = {name.decode().upper() for name in server.redis.command_list()}
    called = {word for word in said if word in known} - {"INFO"}  # a script goes on without it
    called -= {  # only on what is behind a door, where they may fail
        "LPUSH", "EXPIRE", "SETEX", "PERSIST", "SADD", "SCARD", "SMEMBERS", "SRANDMEMBER", "SREM", "HSTRLEN",
        "PTTL",
    }  # fmt: skip
    assert {"ZADD", "MGET"} <= called <= {call.split()[0] for call in examine._IN_SCRIPTS}


@pytest.mark.parametrize("call", CALLS)
def test_a_command_is_asked_about_with_all_its_words(server, call):
    name, *words = call.split()
    arity = server.redis.execute_command("COMMAND", "INFO", name)[name.lower()]["arity"]
    assert len(words) + 1 == arity if arity > 0 else len(words) + 1 >= -arity


def test_account_with_all_rights_is_refused_nothing(refused):
    assert refused(EVERYTHING) == Refused([], [], False, False)


@pytest.mark.parametrize("command", ["ZADD", "BLPOP", "TIME", "UNLINK"])
def test_a_command_that_a_worker_needs_is_named(refused, command):
    assert refused(f"{EVERYTHING} -{command}") == Refused([command], [], False, False)


@pytest.mark.parametrize("command", ["ZSCAN", "SUBSCRIBE"])
def test_command_that_only_other_commands_need_is_named_apart(refused, command):
    assert refused(f"{EVERYTHING} -{command}") == Refused([], [command], False, False)


def test_closed_keys_are_not_told_command_by_command(refused):
    assert refused("+@all ~other:* &{{{0}}}:*") == Refused([], [], True, False)


def test_closed_channels_are_not_told_command_by_command(refused):
    assert refused("+@all ~{{{0}}}:* resetchannels") == Refused([], [], False, True)


def test_keys_that_may_only_be_read_forbid_what_writes(refused):
    found = refused("+@all %R~{{{0}}}:* &{{{0}}}:*")
    assert {"ZADD", "HSET", "BLPOP"} <= set(found.of_a_worker) and "ZRANGE" not in found.of_a_worker


@pytest.mark.parametrize("command", ["evalsha", "script"])
def test_account_without_scripts_cannot_be_examined(account, command):
    examiner = account(f"+@all ~* &* -{command}")
    assert examiner.refused() is None
    assert command in examiner.greet()


def test_nothing_is_changed_by_looking(server, namespace, account):
    examiner = account("+@all ~* &*")
    assert (examiner.greet(), len(examiner.round_trips_s(3))) == (None, 3)
    assert (
        examiner.info()["role"] == "master" and examiner.setting("save") == "" and examiner.setting("no-such") is None
    )
    assert abs(examiner.clock_ahead_s()) < 1
    assert re.match(r"(redis|valkey) \d", examiner.version())
    assert server.dump(namespace) == {}


def test_forbidden_facts_are_none(account, namespace):
    examiner = account(f"{EVERYTHING} -@dangerous -time".format(namespace))
    assert (examiner.info(), examiner.setting("save"), examiner.clock_ahead_s()) == (None, None, None)
    assert "does not tell its version" in examiner.version()


def test_no_server_and_no_such_host_are_one_error(namespace):
    for url in ("redis://:geheim@127.0.0.1:1/0", f"redis://:geheim@{'x' * 64}:1/0"):
        with pytest.raises(StoreUnavailable) as raised:
            Examiner(url, Namespace(namespace))
        assert "geheim" not in str(raised.value)


def test_account_needs_the_keys_of_all_shards(server, namespace, account):
    divide = dividing.divide(4).wire_with_script(Namespace(namespace).prefix)
    server.redis.execute_command(*divide)
    lacking = account(EVERYTHING.format(namespace))
    assert lacking.greet() is None
    assert lacking.keys == f"{{{namespace}#*}}:*"
    assert lacking.refused() == Refused([], [], True, True)
    whole = account(f"{EVERYTHING} ~{{{{{{0}}#*}}}}:* &{{{{{{0}}#*}}}}:*".format(namespace))
    assert whole.greet() is None
    assert whole.refused() == Refused([], [], False, False)
