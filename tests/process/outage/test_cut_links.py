"""A connection that is lost at the worst moment: while a grant is placed, or with the report of a start."""

import resource
import signal
import socket
import struct
import threading

import pytest

from supervisor.engine.model.scripts import RENEW
from supervisor.master.redis.grants import _MANY
from tests.between import Between

CUTS = 5


class Cutting(Between):
    """A proxy that stops reading after the first large grants, so that the next write fails, and hangs up."""

    left = CUTS

    def reply(self, near, data):
        cuts = self.left and data.count(b"good.noop") >= _MANY
        if cuts:
            self.left -= 1
            near.shutdown(socket.SHUT_RD)
        near.sendall(data)
        return not cuts


class Swallowing(Between):
    """A proxy that hangs up instead of passing on the first renewal."""

    swallowed = False

    def request(self, far, data):
        if not self.swallowed and RENEW.sha.encode() in data:
            self.swallowed = True
            return False
        return super().request(far, data)


class Resetting(Between):
    """A proxy that resets the connection at the first grant of a job, and refuses new connections."""

    def __init__(self, path, upstream):
        super().__init__(path, upstream)
        super().close()
        self._listener = socket.create_server(("127.0.0.1", 0))  # a unix socket cannot be reset at will
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def reply(self, near, data):
        if b"good.noop" in data:
            self.close()
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            near.shutdown(socket.SHUT_RD)  # the thread that reads lets go of it
            near.close()
            return False
        return super().reply(near, data)


@pytest.fixture
def resetting(server, tmp_path):
    return Resetting(tmp_path / "resetting", server.socket)


@pytest.fixture
def cutting(server, tmp_path):
    proxy = Cutting(tmp_path / "cutting", server.socket)
    yield proxy
    proxy.close()


@pytest.fixture
def swallowing(server, tmp_path):
    proxy = Swallowing(tmp_path / "swallowing", server.socket)
    yield proxy
    proxy.close()


def test_lost_start_report_is_sent_again(stage, swallowing):
    stage.config(grace=0.3)
    first = stage.start(redis_url=f"unix://{swallowing.path}", processes=1, lease_ttl="3s").wait_ready()
    stage.wait_until_idle(1)
    jid = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(jid)
    first.wait_for("redis.lost")
    stage.wait_until_start_is_known(jid)
    first.send(signal.SIGKILL)
    first.wait()
    stage.open_gate("gate")
    assert stage.finish_elsewhere(first, jid).deaths == 1


def test_supervisor_that_has_no_free_descriptor_connects_once_it_has(stage):
    pool = stage.start(processes=1, jobs_per_child=0).wait_ready()
    held = stage.queue.put("good.hold", stage.gate("gate"))
    stage.wait_for_starts(held)
    stage.wait_until_heard(1)
    soft, hard = resource.prlimit(pool.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pool.pid, resource.RLIMIT_NOFILE, (3, hard))
    stage.server.redis.client_kill_filter(_type="normal", skipme=True)
    pool.wait_for("redis.lost", message="connecting failed: Too many open files")
    resource.prlimit(pool.pid, resource.RLIMIT_NOFILE, (soft, hard))
    pool.wait_for("redis.connected")
    stage.open_gate("gate")
    stage.wait_until_ended([held])
    assert len(stage.ledger.starts(held)) == 1
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_drain_after_a_lost_grant_does_not_claim_success(stage, resetting):
    stage.config(grace=0.3)
    flags = {"processes": 1, "lease_ttl": "1s", "drain_timeout": "1s", "term_grace": "0.5s"}
    pool = stage.start(redis_url=resetting.url, **flags).wait_ready()
    stage.wait_until_idle(1)
    jid = stage.queue.put("good.noop")
    pool.wait_for("redis.lost")
    assert pool.drain() == 75
    assert pool.find("job.started") == []
    assert stage.finish_elsewhere(pool, jid).deaths == 0


def test_link_lost_during_placing_does_not_stop_leasing(stage, cutting):
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
