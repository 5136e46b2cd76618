"""Schemas of data are found as long as a worker lives whose handlers take such data."""

from collections import defaultdict
from itertools import count

import pytest

from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import data_schemas, leasing, maintenance, workers

DAY_MS = 86_400_000


@pytest.fixture
def told(client):
    """Report a worker with the shapes of its data, by klass: told("w", k="one")."""

    numbers = defaultdict(lambda: count(1))

    def tell(worker, queues=("q",), **shapes):
        calls = calls_of(client)
        calls.call(leasing.resume, worker, next(numbers[worker]), [])
        calls.call(workers.report_skills, worker, list(shapes), queues, shapes)
        return calls.run(data_schemas.describe(shapes.values()))

    return tell


@pytest.fixture
def store(client):
    return lambda **schemas: calls_of(client).run(data_schemas.describe((), schemas))


@pytest.fixture
def found(client):
    return lambda queue="q", klass="k": calls_of(client).call(data_schemas.read, queue, klass)


def test_worker_is_told_which_schemas_are_lacking_and_stores_them(told, store, found):
    assert told("w", k="one", other="two") == ["one", "two"]
    assert found() == []
    store(one="{}")
    assert told("w", k="one", other="two") == ["two"]
    assert found() == [b"{}"]


def test_each_shape_is_found_once_and_only_where_its_worker_serves(told, store, found, clock):
    store(one="1", two="2")
    for worker, shape, queues in (("a", "one", ["q"]), ("b", "two", ["q"]), ("c", "two", ["q"]), ("d", "?", ["r"])):
        told(worker, queues, k=shape)
        clock.tick(1)
    assert found() == [b"2", b"1"]
    assert found("r") == found("q", "nobody's") == []


def test_nothing_is_found_while_a_live_worker_may_take_other_data(told, store, found, clock):
    store(one="1")
    told("old", k="any")
    clock.tick(60)
    told("new", k="one")
    assert found() == []
    clock.tick(1)
    assert found() == [b"1"], "the old one is not seen any more"


def test_many_shapes_of_a_klass_count_as_none(told, store, found):
    for n in range(20):
        store(**{f"s{n}": str(n)})
        told(f"w{n}", k=f"s{n}")
    assert len(found()) == 20
    store(more="20")
    told("more", k="more")
    assert found() == []


def test_schema_lives_as_long_as_a_worker_with_its_shape(client, server, namespace, told, store):
    key = f"{{{namespace}}}:schema:one"
    renewals = {
        "stored": lambda: store(one="1"),
        "told again": lambda: told("w", k="one"),
        "swept": lambda: calls_of(client).call(maintenance.sweep, worker="w"),
    }
    for what, renew in renewals.items():
        server.redis.pexpire(key, 1000)
        renew()
        assert DAY_MS - 60_000 < server.redis.pttl(key) <= DAY_MS, what
    server.redis.pexpire(key, 60_000)
    calls_of(client).call(maintenance.sweep, worker="another")
    assert server.redis.pttl(key) <= 60_000


def test_lifetime_is_that_of_workers(client, server, namespace, store):
    client.config.set("max-worker-age", 7)
    store(one="1")
    assert 0 < server.redis.pttl(f"{{{namespace}}}:schema:one") <= 7000


@pytest.mark.parametrize(
    "call", [lambda: data_schemas.describe([""]), lambda: data_schemas.describe((), {"a\nb": "{}"})]
)
def test_shape_that_is_no_name_is_refused(call):
    with pytest.raises(ValueError, match=r"^s\w+s must"):
        call()
