"""The relay: what commits is put once and in order, what rolls back never, and what is bad holds up nothing."""

import threading
from contextlib import closing

import pytest

from supervisor.contrib.outbox.databases import DatabaseUnavailable, opened
from supervisor.contrib.outbox.relay import NOTHING, RECEIPTS, Relay, Turn
from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.errors import LeaseholdError


@pytest.fixture
def relay(application, client):
    with closing(opened(application.url)) as database:
        yield Relay(database, client, batch=3)


def until_empty(relay):
    """Let the relay take turns until one has nothing to do."""
    return list(iter(relay.turn, NOTHING))


def waiting(client, queue="q"):
    return [job.data for job in client.queue(queue).jobs("waiting", 0, 1000)]


def test_rolled_back_transaction_puts_nothing_and_committed_one_puts_once(application, client, relay):
    with closing(application.connect()) as connection:
        application.insert(connection, "q", "k", "rolled back")
        connection.rollback()
        application.insert(connection, "q", "k", "committed")
        assert relay.turn() == NOTHING
        connection.commit()
    assert until_empty(relay) == [Turn(put=1), Turn(forgotten=1)]
    assert (waiting(client), application.rows()) == (["committed"], [])


def test_order_within_a_transaction_is_kept_over_batches(application, client, relay):
    with closing(application.connect()) as connection:
        for number in range(10):
            application.insert(connection, "q", "k", number)
        connection.commit()
    turns = until_empty(relay)
    assert [turn.put for turn in turns if turn.put] == [3, 3, 3, 1]
    assert waiting(client) == list(range(10))


def test_long_entries_make_smaller_batches(application, client, relay):
    for number in range(4):
        application.commit("q", "k", str(number) * 9_000_000)
    assert [turn.put for turn in until_empty(relay) if turn.put] == [2, 2]
    assert [text[0] for text in waiting(client)] == list("0123")


def test_many_tags_and_parents_make_smaller_batches(application, client, relay):
    parents = [f"p{number}" for number in range(900)]
    for _ in range(2):
        application.commit("q", "k", depends=parents)
    assert [turn.put for turn in until_empty(relay) if turn.put] == [1, 1]


def test_known_jid_and_held_key_change_nothing(application, client, relay):
    client.queue("q").put("k", "first", jid="j", unique="u")
    application.commit("q", "k", "second", jid="j")
    application.commit("q", "k", "third", unique="u")
    until_empty(relay)
    assert (waiting(client), application.rows()) == (["first"], [])


def test_same_jid_may_be_left_again(application, client, relay):
    """A receipt names entries, not jobs: the second is not taken for the first."""
    application.commit("q", "k", 1, jid="j")
    assert relay.turn().put == 1
    application.commit("q", "k", 2, jid="j")
    until_empty(relay)
    client.cancel("j")
    application.commit("q", "k", 3, jid="j")
    until_empty(relay)
    assert waiting(client) == [3]


def test_malformed_entry_is_set_aside_with_its_reason(application, client, relay):
    with closing(application.connect()) as connection:
        for id, job in (("a", "{"), ("b", "[]"), ("c", '{"queue":"q","klass":"k","jid":"j","delay":-1}')):
            application.insert_text(connection, id, job)
        application.insert(connection, "q", "k", "good")
        connection.commit()
    refused = [each for turn in until_empty(relay) for each in turn.refused]
    assert [id for id, _ in refused] == ["a", "b", "c"] and "delay" in refused[2].reason
    assert (waiting(client), application.rows()) == (["good"], refused)


def test_entry_that_redis_refuses_is_set_aside_alone(application, client, relay):
    first = application.commit("q", "k", 1)
    bad = application.commit("q", "k", 2, jid="own", depends=["own"])
    application.commit("q", "k", 3)
    application.commit("q", "k", 4)
    until_empty(relay)
    [(id, reason)] = application.rows()
    assert id == bad != first and "own" in reason
    assert waiting(client) == [1, 3, 4]


def test_entry_that_is_no_longer_set_aside_is_tried_again(application, client, relay):
    application.commit("q", "k", jid="own", depends=["own"])
    until_empty(relay)
    with closing(application.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("""UPDATE leasehold_outbox SET refused = NULL, job = REPLACE(job, '["own"]', '[]')""")
        connection.commit()
    assert until_empty(relay) == [Turn(put=1), Turn(forgotten=1)]


def test_two_relays_take_turns(application, client, relay):
    application.commit("q", "k", 1)
    with closing(opened(application.url)) as other, other.turn() as is_ours:
        assert is_ours
        assert relay.turn() == NOTHING
        assert waiting(client) == []
    until_empty(relay)
    assert waiting(client) == [1]


def test_producer_waits_for_no_turn(application, relay):
    with closing(opened(application.url)) as database, database.turn() as is_ours:
        assert is_ours and database.next(1) == []
        application.commit("q", "k")
    assert relay.turn().put == 1


def test_relays_of_two_databases_do_not_share_a_receipt(application, client, relay, tmp_path):
    (tmp_path / "other.db").touch()
    with closing(opened(f"sqlite:///{tmp_path}/other.db")) as database:
        database.create()
        assert Relay(database, client).turn() == NOTHING
        application.commit("q", "k", 1)
        assert relay.turn().put == 1
        with database.turn():
            database.name()
        assert until_empty(Relay(database, client)) == []
        assert until_empty(relay) == [Turn(forgotten=1)]


def test_threads_of_relays_put_each_entry_once(application, server, namespace, client):
    client.config.set("jobs-history", 0)
    ids = {application.commit("q", "k", number) for number in range(60)}

    def relays():
        with Client(server.url, namespace) as own, closing(opened(application.url)) as database:
            while application.rows():
                Relay(database, own, batch=7).turn()

    threads = [threading.Thread(target=relays) for _ in range(2)]
    for thread in threads:
        thread.start()
    leased = []
    while any(thread.is_alive() for thread in threads) or client.queue("q").length():
        leases = client.queue("q").lease("w", 100, block=0.05)
        leased += [lease.jid for lease in leases if lease.complete()]
    assert len(leased) == 60 and set(leased) == ids


def test_one_receipt_stays_and_nobody_leases_it(application, client, relay):
    for number in range(8):
        application.commit("q", "k", number)
    until_empty(relay)
    [receipt] = client.queue(RECEIPTS).jobs("scheduled")
    assert client.lease("w", [RECEIPTS]) == [] and len(receipt.data["entries"]) == 2
    assert client.check() == []


def test_redis_outage_changes_nothing(application, namespace):
    id = application.commit("q", "k", 1)
    with (
        Client("redis://127.0.0.1:1", namespace) as nowhere,
        closing(opened(application.url)) as database,
        pytest.raises(LeaseholdError),
    ):
        Relay(database, nowhere).turn()
    assert application.rows() == [(id, None)]


def test_database_without_tables_is_named_in_one_sentence(tmp_path, client):
    with closing(opened(f"sqlite:///{tmp_path}/none.db")) as database, pytest.raises(DatabaseUnavailable, match="open"):
        Relay(database, client).turn()
    assert not (tmp_path / "none.db").exists()
