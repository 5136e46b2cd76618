"""A link that is dead by the time at which what has come on it is answered: an exchange begins while a grant is placed,
and must not leave the conversation as if that grant were still to come.
"""

import socket
import threading
from contextlib import suppress

import pytest

from supervisor.pool.conversation import _MANY

CUTS = 5


class Cutting:
    """A proxy that passes all on, but is deaf from the first grants on that are large: whoever gets one finds the link
    dead as soon as it speaks. Then it hangs up.
    """

    def __init__(self, listen, upstream):
        self.url = f"unix://{listen}"
        self.left = CUTS
        self._upstream = str(upstream)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._upstream)
            threading.Thread(target=self._requests, args=(near, far), daemon=True).start()
            threading.Thread(target=self._replies, args=(near, far), daemon=True).start()

    def _requests(self, near, far):
        with suppress(OSError):  # either end may hang up first
            while data := near.recv(1 << 20):
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    def _replies(self, near, far):
        with suppress(OSError), near, far:
            while data := far.recv(1 << 20):
                cuts = self.left and data.count(b"good.noop") >= _MANY
                if cuts:
                    self.left -= 1
                    near.shutdown(socket.SHUT_RD)
                near.sendall(data)
                if cuts:
                    return

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self._listener.close()


@pytest.fixture
def cutting(server, tmp_path):
    proxy = Cutting(tmp_path / "cutting", server.socket)
    yield proxy
    proxy.close()


def test_a_link_that_is_lost_while_a_grant_is_placed_keeps_nobody_from_leasing(stage, cutting):
    stage.config(grace=0.2)
    pool = stage.start(redis_url=cutting.url, processes=2, jobs_per_child=0)
    jids = stage.queue.put_many([{"klass": "good.noop"}] * 3000)
    stage.wait_until_ended(jids)
    losses = [event["message"] for event in pool.find("redis.lost")]
    assert len(losses) == CUTS - cutting.left
    assert any(message.startswith("writing to Redis failed") for message in losses)
    assert set(stage.states(jids)) == {"complete"}
    assert sorted(stage.ledger.order()) == sorted(jids)
    assert not stage.find("lease.lost")
    assert pool.drain() == 0
    stage.assert_nothing_left()
