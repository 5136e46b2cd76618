"""The accounts at Redis that the manual shows."""

import pytest
import redis

import supervisor
from tests.docs.pages import OPERATIONS, blocks


def test_accounts_can_do_their_work_and_no_more(server, namespace):
    lines = [line for block in blocks(OPERATIONS, "") for line in block.splitlines() if line.startswith("ACL SETUSER")]
    everything, doors, pushing = (line.replace("{leasehold}", f"{{{namespace}}}").split() for line in lines)
    key = f"{{{namespace}}}:in:emails"
    try:
        for command in (everything, doors, pushing):
            server.redis.execute_command(*command)
        with redis.Redis(unix_socket_path=str(server.socket), username="producer", password="PASSWORD") as producer:
            producer.lpush(key, '{"klass": "email.send"}')
            for refused in (["LRANGE", key, 0, -1], ["LPUSH", f"{key}-2", "x"], ["HGETALL", f"{{{namespace}}}:config"]):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    producer.execute_command(*refused)
        url = server.url_with("leasehold", "PASSWORD")
        with supervisor.Client(url, namespace) as client, client.events() as events:
            with pytest.raises(supervisor.LeaseholdError, match="this account needs the right to it"):
                client.doors.add("d", format="rwq", source="closed", queue="emails", klass="k")
            client.doors.add("d", format="rwq", source="orders", queue="emails", klass="k")
            client.doors.remove("d")
            queue = client.queue("emails")
            client.limit("smtp", running=1)
            queue.put("email.send", limit="smtp", unique=True)
            assert [lease.complete("sent") for lease in queue.lease("worker", count=2, block=30)] == [True, True]
            assert client.sweep() == 0 and client.check(repair=True) == []
            assert events.get(timeout=30) is not None
        with redis.Redis(unix_socket_path=str(server.socket), username="leasehold", password="PASSWORD") as door:
            assert door.execute_command("BLMOVE", key, key, "RIGHT", "RIGHT", "0.001") is None
            assert door.llen(key) == 0
    finally:
        server.redis.acl_deluser("leasehold", "producer")
