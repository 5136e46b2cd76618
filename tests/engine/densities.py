"""Turns dense records into full ones behind the engine's back: no caller may see a difference.

Reads and writes the keys of lua/README.md by itself, and shares nothing with the scripts.
"""

from typing import Any

from tests.engine.invariants import dense_fields


def make_full(redis: Any, prefix: str, jid: str) -> bool:
    """Store the record of a job as a hash, and its payload beside it. Return False if it is not dense."""
    key = f"{prefix}job:{jid}"
    if redis.type(key) != b"string":
        return False
    fields, payload = dense_fields(key, redis.get(key))
    owner = fields.get("owner")
    if owner:
        is_complete = redis.zscore(f"{prefix}complete", jid) is not None
        fields["state"] = "complete" if is_complete else "running"
    with redis.pipeline() as transaction:
        transaction.delete(key)
        transaction.hset(key, mapping=fields)
        if payload is not None:
            transaction.set(f"{prefix}data:{jid}", payload)
        if owner and not is_complete:
            token, _, worker = owner.partition(":")
            transaction.zadd(f"{prefix}held:{worker}", {jid: int(token) + 0.5})
        transaction.execute()
    return True
