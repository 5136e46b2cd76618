"""A master stores the schemas of its handlers' data, once, and in parts."""

import pytest

from supervisor.engine.model import scripts
from supervisor.messages import SCHEMA_BYTES, HandlerSettings

LARGE = {f"{n:016x}": f'"{n:x<{SCHEMA_BYTES - 2}}"' for n in range(20)}


@pytest.fixture
def described(played, monkeypatch):
    """Start a master with handlers of these schemas. Return it, and how many schemas each of its calls stores."""

    def start(schemas):
        master = played(is_started=False)
        klasses = {f"k{n}": HandlerSettings(shape=shape) for n, shape in enumerate(schemas)}
        master.zygotes.handlers, master.zygotes.schemas = klasses, schemas
        calls, exchange = [], master.session.exchange

        def spy(parts):
            calls.extend(len(p.command.args) // 2 for p in parts if p.command.script is scripts.DESCRIBE)
            exchange(parts)

        monkeypatch.setattr(master.session, "exchange", spy)
        return master.start(), calls

    return start


def stored(server, namespace):
    prefix = f"{{{namespace}}}:schema:"
    return {
        key.decode().removeprefix(prefix): server.redis.get(key).decode() for key in server.redis.keys(f"{prefix}*")
    }


def test_schemas_are_stored_in_parts_before_the_master_waits(server, namespace, described):
    _master, calls = described(LARGE)
    assert stored(server, namespace) == LARGE
    assert calls == [0, 8, 8, 4]


def test_schemas_that_redis_has_are_not_sent_again(server, namespace, described):
    master, calls = described({"a" * 16: "{}", "b" * 16: "[]"})
    server.redis.delete(f"{{{namespace}}}:schema:{'b' * 16}")
    master.lose_connection()
    master.turn_until(lambda: master.is_waiting)
    assert calls == [0, 2, 0, 1]
    assert stored(server, namespace) == {"a" * 16: "{}", "b" * 16: "[]"}


def test_handlers_without_schemas_cost_no_call(described):
    _master, calls = described({})
    assert calls == []


def test_full_redis_does_without(server, namespace, described):
    server.redis.config_set("maxmemory", 1)
    try:
        master, calls = described({"a" * 16: "{}"})
        assert (calls, stored(server, namespace)) == ([0], {})
        assert master.desk.events("redis.failed") == []
    finally:
        server.redis.config_set("maxmemory", 0)
