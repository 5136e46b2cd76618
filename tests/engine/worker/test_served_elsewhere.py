"""A worker leaves a server that refuses it for a reason that another server may not have."""

import pytest

from supervisor.engine.transport.link import ServedElsewhere
from tests import servers
from tests.engine.played import PlayedWorker


@pytest.mark.parametrize("why", ["READONLY", "NOREPLICAS"])
def test_refused_lease_has_the_worker_look_for_another_server(namespace, why):
    with servers.running(servers.binary() or "") as path, servers.connected(path) as redis:
        worker = PlayedWorker(f"unix://{path}", namespace).start()
        if why == "NOREPLICAS":
            redis.config_set("min-replicas-to-write", 1)
        else:
            redis.replicaof("127.0.0.1", 1)
        with pytest.raises(ServedElsewhere, match=why):
            worker.lease()
        worker.close()
