"""Sentinels and nodes of a Cluster tell where the server is, and may hang, disagree or answer nonsense."""

import pytest

from supervisor import redis_url
from supervisor.engine.transport.dial import Unreachable
from supervisor.engine.transport.dialer import Dialer
from supervisor.engine.transport.whereabouts import Whereabouts
from tests import sentinels as sentinels_of
from tests.engine.played_nodes import SLOT, encoded, primary, slots
from tests.lengths import SOON_S

KEY = "{jobs}:"


def sentinels(*places: str) -> Whereabouts:
    found = redis_url.nodes(f"redis+sentinel://{','.join(places)}/m/0")
    assert found is not None
    return Whereabouts(found, KEY)


def cluster(*places: str) -> Whereabouts:
    found = redis_url.nodes(f"redis+cluster://{','.join(places)}")
    assert found is not None
    return Whereabouts(found, KEY)


def test_sentinel_that_hangs_is_passed_over(node):
    assert sentinels(node(None), node(primary("10.0.0.1", 6379))).find() == ("10.0.0.1", 6379)


def test_sentinels_that_all_hang_are_given_up(node):
    hanging = [node(None) for _ in range(8)]
    with pytest.raises(Unreachable, match=r"no sentinel knows .* 'm' that is up \(.*has not answered") as said:
        sentinels(*hanging).find()
    assert sum(place in str(said.value) for place in hanging) < len(hanging), "a look ends, however many there are"


def test_sentinels_that_disagree_are_asked_in_turn(node):
    where = sentinels(node(primary("10.0.0.1", 6379)), node(primary("10.0.0.2", 6379)))
    assert [where.find()[0] for _ in range(3)] == ["10.0.0.1", "10.0.0.2", "10.0.0.1"]


def test_connections_of_one_session_lead_to_one_server(node, tmp_path_factory):
    paths = [tmp_path_factory.mktemp("s") for _ in range(2)]
    with sentinels_of.group(paths[0], replicas=0) as one, sentinels_of.group(paths[1], replicas=0) as two:
        places = [node(primary("127.0.0.1", group.primary().port)) for group in (one, two)]
        dialer = Dialer(f"redis+sentinel://{','.join(places)}/m/0", KEY)
        for _ in range(2):
            dialled = dialer.dial(3, SOON_S)
            assert len({each.socket.getpeername() for each in dialled}) == 1
            for each in dialled:
                each.close()


@pytest.mark.parametrize("flags", ["master,s_down", "master,s_down,o_down", "slave"])
def test_sentinel_that_knows_that_the_primary_is_down_is_believed(node, flags):
    with pytest.raises(Unreachable, match="it is down"):
        sentinels(node(primary("10.0.0.1", 6379, flags))).find()


@pytest.mark.parametrize(
    "answer",
    [
        *(primary("", 6379), primary("me@evil", 6379), primary("h/1?db=2", 6379), primary("h", 0), primary("h", 65536)),
        *(primary("h", "x"), encoded([]), encoded(7), encoded(None), encoded(["flags"])),
        *(encoded([["flags"], "master"]), b"$1\r\n\xff\r\n"),
    ],
)
def test_nonsense_is_not_believed(node, answer):
    for nodes in (sentinels, cluster):
        with pytest.raises(Unreachable, match=r"its answer makes no sense|no node serves slot"):
            nodes(node(answer)).find()


def test_sentinel_without_the_service_is_quoted(node):
    place = node(b"-ERR No such master with that name\r\n")
    with pytest.raises(Unreachable, match=rf"\({place}: ERR No such master with that name\)"):
        sentinels(place).find()


def test_server_that_is_not_redis_is_named(node):
    with pytest.raises(Unreachable, match="what answers there is not Redis"):
        sentinels(node(b"HTTP/1.1 400 Bad Request\r\n\r\n")).find()


def test_names_that_lead_nowhere_are_named():
    with pytest.raises(Unreachable, match=r"nowhere\.invalid:26379: connecting failed: "):
        sentinels("nowhere.invalid").find()


@pytest.mark.parametrize(
    ("announced", "host"),
    [
        (["10.0.0.1", 7000, "id", []], "10.0.0.1"),
        (["redis-1.example", 7000, "id", ["ip", "10.0.0.1"]], "redis-1.example"),
        (["::1", 7000, "id", []], "::1"),
        (["", 7000, "id", []], "127.0.0.1"),
        ([None, 7000, "id", ["ip", "10.0.0.1"]], "127.0.0.1"),
        (["?", 7000, "id", ["ip", "10.0.0.1"]], "10.0.0.1"),
    ],
)
def test_node_of_a_cluster_is_reached_at_its_announced_address(node, announced, host):
    assert cluster(node(slots(announced))).find() == (host, 7000)


def test_node_without_an_address_is_reached_where_the_asked_one_is(node):
    assert cluster(node(slots(["", 7000, "id", []]), "::1")).find() == ("::1", 7000)


def test_slot_that_no_node_serves_is_named(node):
    with pytest.raises(Unreachable, match=rf"no node serves slot {SLOT}, in which the namespace lies"):
        cluster(node(encoded([[0, SLOT - 1, ["other", 1, "id", []]]]))).find()


def test_another_node_tells_when_the_first_one_is_gone(node):
    port = node(slots(["10.0.0.1", 7000, "id", []])).rpartition(":")[2]
    where = cluster(node(slots(["127.0.0.1", int(port), "id", []])))
    assert where.find() == ("127.0.0.1", int(port))
    assert where.find() == ("10.0.0.1", 7000), "the node that the first one has named is asked next"
