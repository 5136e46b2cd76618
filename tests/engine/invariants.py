"""The look from outside: what lies in a namespace, key by key, and what does not lie where its record says.

It reads the keys of lua/README.md by itself, so that it can disagree with the engine.
"""

from collections.abc import Iterator
from typing import Any

# One call for a whole namespace. KEYS is fine here: the tests' server holds little else.
_DUMP = """
local found = {}
for i, key in ipairs(redis.call("KEYS", ARGV[1] .. "*")) do
  local kind = redis.call("TYPE", key).ok
  local value = ""
  if kind == "hash" then value = redis.call("HGETALL", key)
  elseif kind == "zset" then value = redis.call("ZRANGE", key, 0, -1, "WITHSCORES")
  elseif kind == "list" then value = redis.call("LRANGE", key, 0, -1)
  elseif kind == "string" then value = redis.call("GET", key) end
  found[i] = { string.sub(key, #ARGV[1] + 1), kind, value }
end
return found
"""

Look = dict[str, Any]


def look(redis: Any, namespace: str) -> Look:
    """Every key without its prefix: hashes and sorted sets as dicts (these in their order), lists and strings."""
    prefix = f"{{{namespace}}}:"
    return {key.decode(): _value(kind, value) for key, kind, value in redis.eval(_DUMP, 0, prefix)}


def _value(kind: bytes, value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    texts = [text.decode() for text in value]
    if kind == b"list":
        return texts
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return {name: float(score) for name, score in pairs} if kind == b"zset" else dict(pairs)


def misplaced(found: Look) -> list[str]:
    """What is not in exactly the place, or places, that its record says."""
    records = {key[4:]: record for key, record in found.items() if key.startswith("job:")}
    expected = {place for jid, record in records.items() for place in _places(jid, record, found)}
    there = {(key, member) for key, members in found.items() if _holds_jobs(key) for member in members}
    wrong = [f"{member} lies in {key}" for key, member in sorted(there - expected)]
    wrong += [f"{member} is missing from {key}" for key, member in sorted(expected - there)]
    for jid, record in records.items():
        wrong += _contradictions(jid, record, found)
    wrong += [f"recurring {jid} has no data" for jid, _ in _named(found, "recur:") if f"recurdata:{jid}" not in found]
    return [*wrong, *_wrong_sizes(found)]


def _places(jid: str, record: dict[str, str], found: Look) -> Iterator[tuple[str, str]]:
    """The keys in which a job of this record must lie, and as what."""
    state, queue = record.get("state", "waiting"), record["queue"]
    if state == "running":
        yield f"queue:{queue}:running", jid
        yield f"held:{record['owner'].partition(':')[2]}", jid
    elif state == "failed":
        yield "failed", jid
        yield f"failed:{record['group']}", jid
    elif state == "complete":
        yield "complete", jid
    elif state == "waiting" and "turn" in record:
        yield f"queue:{queue}:front", jid
    elif state in ("waiting", "scheduled"):
        yield f"queue:{queue}:{state}", f"{int(record['seq']):013x}{jid}"
    else:
        yield f"queue:{queue}:{state}", jid
    if state == "depends":
        for parent in found.get(f"dependencies:{jid}", ()):
            yield f"dependents:{parent}", jid
    if "tagged" in record:
        for tag in found.get(f"tags:{jid}", b"").decode().split("\n"):
            yield f"tag:{tag}", jid


def _holds_jobs(key: str) -> bool:
    kind = key.partition(":")[0]
    if kind == "queue":
        return not key.endswith(":recurring")
    return kind in ("failed", "complete", "held", "dependents", "tag")


def _contradictions(jid: str, record: dict[str, str], found: Look) -> Iterator[str]:
    state = record.get("state", "waiting")
    if ("owner" in record) != (state in ("running", "complete")):
        yield f"{jid} is {state} with owner {record.get('owner')}"
    if f"data:{jid}" not in found:
        yield f"{jid} has no data"
    if ("tagged" in record) != (f"tags:{jid}" in found):
        yield f"{jid} is tagged in its record or in its tags only"
    parents = found.get(f"dependencies:{jid}", {})
    if (state == "depends") != bool(parents):
        yield f"{jid} is {state} and depends on {sorted(parents)}"
    for parent in parents:
        if found.get(f"job:{parent}", {"state": "gone"}).get("state") in ("complete", "gone"):
            yield f"{jid} depends on {parent}, which is complete or gone"


def _wrong_sizes(found: Look) -> Iterator[str]:
    """Indexes that count what lies elsewhere."""
    groups = {group for group, _ in _named(found, "failed:")}
    if groups != set(found.get("groups", ())):
        yield f"groups are {sorted(found.get('groups', ()))}, not {sorted(groups)}"
    sizes = {tag: len(jids) for tag, jids in _named(found, "tag:")}
    if sizes != found.get("tags", {}):
        yield f"tags are {found.get('tags')}, not {sizes}"
    recurring = {(queue, jid) for queue, jids in _recurring(found) for jid in jids}
    if recurring != {(record["queue"], jid) for jid, record in _named(found, "recur:")}:
        yield f"recurring lie as {sorted(recurring)}"


def _recurring(found: Look) -> Iterator[tuple[str, dict[str, float]]]:
    for key, members in found.items():
        if key.startswith("queue:") and key.endswith(":recurring"):
            yield key[6:-10], members


def left_over(found: Look) -> list[str]:
    """What belongs to a record that is gone, and ids that were met without their records."""
    return list(_orphans(found))


def _orphans(found: Look) -> Iterator[str]:
    for kind in ("data", "failure", "result", "tags", "history", "dependencies", "dependents"):
        for jid, _ in _named(found, f"{kind}:"):
            if f"job:{jid}" not in found:
                yield f"{kind}:{jid} is left of a job that is gone"
    for kind in ("recurdata", "recurtags"):
        for jid, _ in _named(found, f"{kind}:"):
            if f"recur:{jid}" not in found:
                yield f"{kind}:{jid} is left of a recurrence that is gone"
    if "phantoms" in found:
        yield f"phantoms were met: {sorted(found['phantoms'])}"


def _named(found: Look, prefix: str) -> list[tuple[str, Any]]:
    return [(key[len(prefix) :], value) for key, value in found.items() if key.startswith(prefix)]
