"""A link that is dead by the time at which what has come on it is answered: an exchange begins while a grant is placed,
and must not leave the conversation as if that grant were still to come.
"""

import socket

import pytest

from supervisor.pool.conversation import _MANY
from tests.between import Between

CUTS = 5


class Cutting(Between):
    """It is deaf from the first grants on that are large: whoever gets one finds the link dead as soon as it speaks.
    Then it hangs up.
    """

    left = CUTS

    def reply(self, near, data):
        cuts = self.left and data.count(b"good.noop") >= _MANY
        if cuts:
            self.left -= 1
            near.shutdown(socket.SHUT_RD)
        near.sendall(data)
        return not cuts


@pytest.fixture
def cutting(server, tmp_path):
    proxy = Cutting(tmp_path / "cutting", server.socket)
    yield proxy
    proxy.close()


def test_a_link_that_is_lost_while_a_grant_is_placed_keeps_nobody_from_leasing(stage, cutting):
    stage.config(grace=0.2)
    pool = stage.start(redis_url=f"unix://{cutting.path}", processes=2, jobs_per_child=0)
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
