"""The bench times each call of a script, whichever way the client sends it."""

from types import SimpleNamespace

from tests.bench.stalls import FILLER, QUEUE, Hands, Timed


def test_puts_leases_and_deletions_are_timed(server):
    played = SimpleNamespace(url=server.url, spent_s=lambda: 0.0)
    hands = Hands(played)
    with Timed(played, hands) as client:
        for call in (
            lambda: hands.put(client),
            lambda: client.queue(QUEUE).lease(FILLER, 1),
            lambda: client.deregister(FILLER),
            lambda: client.queue(QUEUE).delete(),
        ):
            client.took_ms.clear()
            call()
            assert client.took_ms
