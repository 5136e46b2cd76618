"""The shards of a namespace, script by script: who may call which, and how tokens differ."""

import pytest
import redis

from supervisor.engine.commands import dividing, job_queries, leasing, mailbox, putting, settling
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.new_jobs import new_job
from supervisor.engine.model.outcomes import Completed
from supervisor.engine.model.shards import OtherShards, ShardCount, shard_of_token


@pytest.fixture
def run(server):
    """Run a command in a shard, as a caller that knows so many shards."""

    def run(command, place):
        return command.parse(server.redis.execute_command(*command.wire_with_script(*place.keys)))

    return run


def of(namespace, shard=0, shards=4):
    return Namespace(namespace, shard, shards)


def put(jid="a"):
    return putting.put([new_job("put", "q", "k", None, {"jid": jid})])


def test_first_caller_divides_a_new_namespace(run, namespace):
    assert run(dividing.divide(), Namespace(namespace)) == ShardCount(1)
    assert run(dividing.divide(4), Namespace(namespace)) == ShardCount(4)
    assert run(dividing.divide(4), Namespace(namespace)) == ShardCount(4)
    assert run(dividing.divide(), of(namespace)) == ShardCount(4)


def test_another_number_of_shards_is_refused(run, namespace):
    run(dividing.divide(4), Namespace(namespace))
    with pytest.raises(LeaseholdError, match=r"has 4 shards, and --shards 8 asks for another number"):
        run(dividing.divide(8), Namespace(namespace))
    with pytest.raises(LeaseholdError, match="has 4 shards, and --shards 1 asks"):
        run(dividing.divide(1), Namespace(namespace))


def test_namespace_in_use_is_not_divided(run, namespace, server):
    run(put(), Namespace(namespace))
    with pytest.raises(LeaseholdError, match=r"has 1 shard, and --shards 4 asks for .* `leasehold reshard 4` moves"):
        run(dividing.divide(4), Namespace(namespace))
    assert server.redis.get(f"{{{namespace}}}:config") == b"2"


@pytest.mark.parametrize("shards", [1, 8])
def test_caller_who_knows_another_number_writes_nothing(run, namespace, server, shards):
    run(dividing.divide(4), Namespace(namespace))
    run(put("b"), of(namespace))
    before = server.redis.keys(f"{{{namespace}*")
    for command in (put(), leasing.lease("w", ["q"]), mailbox.tell("w", "hint"), job_queries.jobs(["b"])):
        with pytest.raises(redis.ResponseError, match="SHARDED 4 "):
            run(command, of(namespace, shards=shards))
    assert server.redis.keys(f"{{{namespace}*") == before


def test_caller_who_knows_shards_is_refused_where_there_are_none(run, namespace):
    run(put(), Namespace(namespace))
    with pytest.raises(redis.ResponseError, match="SHARDED 1 "):
        run(put("b"), of(namespace))


def test_caller_of_an_older_release_is_told_of_a_newer_layout(server, run, namespace):
    run(dividing.divide(4), Namespace(namespace))
    # Releases before shards take a mark that begins with more than 2 for that of a newer layout.
    assert int(server.redis.get(f"{{{namespace}}}:config").partition(b"/")[0]) > 2


def test_tokens_of_two_shards_differ(run, namespace):
    run(dividing.divide(4), Namespace(namespace))
    tokens = []
    for shard in (0, 3):
        place = of(namespace, shard)
        for jid in "abc":
            run(put(jid), place)
        [first] = run(leasing.lease("w", ["q"]), place).leases
        grant = run(leasing.lease("w", ["q"], 2), place)
        assert [lease.token for lease in grant.leases] == [first.token + 1, first.token + 2]
        assert all(shard_of_token(lease.token) == shard for lease in (first, *grant.leases))
        assert run(settling.settle("w", [Completed(first)]), place) == [True]
        tokens += [first.token, *(lease.token for lease in grant.leases)]
    assert len(set(tokens)) == 6


def test_tokens_of_an_emptied_shard_go_on_above_those_that_a_worker_has_seen(server, run, namespace):
    run(dividing.divide(4), Namespace(namespace))
    place = of(namespace, 3)
    run(put("a"), place)
    [lease] = run(leasing.lease("w", ["q"]), place).leases
    server.redis.delete(*server.redis.keys(f"{{{namespace}#3}}:*"))
    run(leasing.resume("v", 1, [], highest=lease.token), place)
    run(put("b"), place)
    [after] = run(leasing.lease("v", ["q"]), place).leases
    assert after.token == lease.token + 1


@pytest.mark.parametrize("counter", [0, 7, 3 * 2**45 - 1])
def test_tokens_of_a_counter_below_the_range_begin_with_the_range(run, namespace, server, counter):
    run(dividing.divide(4), Namespace(namespace))
    place = of(namespace, 3)
    for jid in "ab":
        run(put(jid), place)
    server.redis.set(f"{place.prefix}token", counter)
    tokens = [run(leasing.lease("w", ["q"]), place).leases[0].token for _ in "ab"]
    assert tokens == [3 * 2**45 + 1, 3 * 2**45 + 2]


def test_worker_raises_a_counter_below_the_range_to_what_it_has_seen(run, namespace, server):
    run(dividing.divide(4), Namespace(namespace))
    place = of(namespace, 3)
    run(put(), place)
    server.redis.set(f"{place.prefix}token", 7)
    run(leasing.resume("v", 1, [], highest=3 * 2**45 + 5), place)
    assert int(server.redis.get(f"{place.prefix}token")) == 3 * 2**45 + 5


@pytest.mark.parametrize("count", [1, 2])
def test_shard_gives_no_token_of_the_next_one(run, namespace, server, count):
    run(dividing.divide(4), Namespace(namespace))
    place = of(namespace, 1)
    for jid in "abc":
        run(put(jid), place)
    server.redis.set(f"{place.prefix}token", 2 * 2**45 - 2)
    assert [shard_of_token(lease.token) for lease in run(leasing.lease("w", ["q"], 1), place).leases] == [1]
    with pytest.raises(redis.ResponseError, match="REFUSED the token of this lease would be above 70368744177663"):
        run(leasing.lease("w", ["q"], count), place)


def test_jobs_that_move_keep_their_leases(server, run, namespace):
    plain = Namespace(namespace)
    run(put("a"), plain)
    [lease] = run(leasing.lease("w", ["q"]), plain).leases
    server.redis.set(f"{{{namespace}}}:config", "3/1>4")
    for command in (put("b"), leasing.lease("w", ["q"]), job_queries.jobs(["a"])):
        with pytest.raises(redis.ResponseError, match="SHARDED 1>4 "):
            run(command, plain)
    assert run(leasing.renew("w", [leasing.Renewal("a", lease.token)]), plain)[0] > 0
    assert run(settling.settle("w", [Completed(lease)]), plain) == [True]
    with pytest.raises(OtherShards, match=r"being moved from 1 shards to 4.*`leasehold reshard 4` goes on"):
        run(dividing.divide(), plain)
    server.redis.set(f"{{{namespace}}}:config", "3/4<")
    assert run(dividing.divide(), plain) == ShardCount(4, has_guests=True)
    run(put("b"), of(namespace))


def test_mark_says_whether_there_are_options(server, run, namespace):
    from supervisor.engine.commands import settings

    run(dividing.divide(4), Namespace(namespace))
    run(settings.configure("heartbeat", None, "20"), of(namespace))
    assert server.redis.get(f"{{{namespace}}}:config") == b"3+/4"
    run(put(), of(namespace))
    run(settings.configure("heartbeat", None, None), of(namespace))
    assert server.redis.get(f"{{{namespace}}}:config") == b"3/4"
