"""Compares each key of a namespace with the records of its jobs, from outside.

Reads the keys of lua/README.md by itself, so that it can disagree with the engine.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

SPECIAL = {
    "kin", "noted", "tagged", "tracked", "limit", "unique", "expires", "once", "persistent", "awaited", "progress",
    "saved",
}  # fmt: skip
DENSE = re.compile(
    rb"(?:(?P<flag>[LS])(?P<token>\d+) (?P<popped>\d{13}) (?P<worker>[^\n]+)\n)?1(?P<kind>[jbJB]) (?P<seq>[0-9a-f]{13})"
    rb" (?P<put>\d{13})\n(?P<queue>[^\n]+)\n(?P<klass>[^\n]+)\n(?P<options>[^\n]*)\n(?P<payload>.*)",
    re.DOTALL,
)
LETTERS = {"p": "priority", "r": "retries", "t": "timeout", "d": "max_deaths", "c": "trace"}
AHEAD = float(-(2**53))  # the score of a job with a turn, in the line of a lane

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
  found[i] = { string.sub(key, #ARGV[1] + 1), kind, value, redis.call("PTTL", key) }
end
return found
"""


class Snapshot(dict[str, Any]):
    """The values by key without prefix, and records of both densities as dicts. `ending`: the keys with a time to live.

    `payloads`: those of dense records that contain them. `dense`: the jids of dense records.
    """

    ending: set[str]
    payloads: dict[str, bytes]
    dense: set[str]

    def payload(self, jid: str) -> bytes:
        """Return the payload of a job."""
        stored = self.payloads[jid] if jid in self.payloads else self[f"data:{jid}"]
        assert isinstance(stored, bytes)
        return stored


def read_namespace(redis: Any, namespace: str) -> Snapshot:
    """Return the value of each key: hashes as dicts, sorted sets as dicts in their order, lists and strings."""
    dump = redis.eval(_DUMP, 0, f"{{{namespace}}}:")
    found = Snapshot({key.decode(): _value(kind, value) for key, kind, value, _ in dump})
    found.ending = {key.decode() for key, _, _, ttl in dump if ttl != -1}
    found.payloads, found.dense = {}, set()
    for key, value in found.items():
        if key.startswith("job:") and isinstance(value, bytes):
            found[key] = _read_dense(key[4:], value, found)
    return found


def read_record(redis: Any, key: str) -> dict[str, str]:
    """Return the fields of a job's record, by its whole key, but no state of a dense one; none if there is no job."""
    if redis.type(key) == b"string":
        return dense_fields(key, redis.get(key))[0]
    return {name.decode(): value.decode() for name, value in redis.hgetall(key).items()}


def _read_dense(jid: str, text: bytes, found: Snapshot) -> dict[str, str]:
    """Return the fields of a dense record. One that was leased runs, unless it lies in `complete`."""
    record, payload = dense_fields(f"job:{jid}", text)
    found.dense.add(jid)
    if payload is not None:
        found.payloads[jid] = payload
    if "owner" in record:
        record["state"] = "complete" if jid in found.get("complete", ()) else "running"
    return record


def dense_fields(name: str, text: bytes) -> tuple[dict[str, str], bytes | None]:
    """Return the fields of a dense record without its state, and its payload; None if that lies beside."""
    parts = DENSE.fullmatch(text)
    if not parts:
        raise ValueError(f"{name} holds {text!r}, which is no record")
    kind, options = parts["kind"].decode(), parts["options"].decode()
    record = {name: parts[name].decode() for name in ("klass", "queue")}
    record |= {"seq": str(int(parts["seq"], 16)), "put": str(int(parts["put"]))}
    record |= {LETTERS[option[0]]: option[1:] for option in options.split(" ") if option}
    if kind in "bB":
        record["bytes"] = "1"
    if parts["flag"]:
        record |= {"owner": f"{parts['token'].decode()}:{parts['worker'].decode()}"}
        record |= {"popped": str(int(parts["popped"]))} | ({"started": "1"} if parts["flag"] == b"S" else {})
    if kind in "JB":
        return record | {"size": parts["payload"].decode()}, None
    return record, parts["payload"]


def _value(kind: bytes, value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    texts = [text.decode(errors="surrogateescape") for text in value]  # an entry may be any bytes
    if kind == b"list":
        return texts
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return {name: float(score) for name, score in pairs} if kind == b"zset" else dict(pairs)


def misplaced(found: Snapshot, now_ms: float | None = None) -> list[str]:
    """Return a sentence for each job that does not lie exactly where its record says, and for each wrong index.

    `now_ms`: also report the jobs with a start deadline to come that no sweep would check.
    """
    records = {key[4:]: record for key, record in found.items() if key.startswith("job:")}
    expected = {(key, member): score for jid, one in records.items() for key, member, score in _places(jid, one, found)}
    there = {
        (key, member): score for key, set_of in found.items() if _holds_jobs(key) for member, score in set_of.items()
    }
    wrong = [f"{member} lies in {key!r}" for key, member in sorted(there.keys() - expected.keys())]
    wrong += [f"{member} is missing from {key!r}" for key, member in sorted(expected.keys() - there.keys())]
    wrong += [
        f"{place[1]} lies in {place[0]!r} at {there[place]:.0f}, not {score:.0f}"
        for place, score in expected.items()
        if score is not None and place in there and there[place] != score
    ]
    for jid, record in records.items():
        wrong += _contradictions(jid, record, found)
    wrong += [f"recurring {jid} has no data" for jid, _ in _named(found, "recur:") if f"recurdata:{jid}" not in found]
    wrong += [*_wrong_sizes(found), *_wrong_lanes(found), *_wrong_limits(found), *_wrong_claims(found, now_ms)]
    return [*wrong, *_wrong_quiet(found), *_wrong_batches(found), *_wrong_marks(found)]


def _places(jid: str, record: dict[str, str], found: Snapshot) -> Iterator[tuple[str, str, float | None]]:
    """Yield key, member and score of each place of a job; None for a score that does not follow from the record."""
    state, queue = record.get("state", "waiting"), record["queue"]
    if state == "running":
        token, _, worker = record["owner"].partition(":")
        yield f"queue:{queue}:running", jid, None
        yield f"held:{worker}", jid, float(token) + (0 if jid in found.dense else 0.5)
        for limit in filter(None, record.get("limit", "").split("\t")):
            yield f"holders:{limit}", jid, float(token)
    elif state == "failed":
        yield "failed", jid, None
        yield f"failed:{record['group']}", jid, None
    elif state == "complete":
        yield "complete", jid, None
    elif state == "waiting":
        yield from _waiting_places(jid, record)
    elif state == "scheduled":
        yield f"queue:{queue}:scheduled", f"{int(record['seq']):013x}{jid}", None
    else:
        yield f"queue:{queue}:{state}", jid, None
    if state == "depends":
        for parent in found.get(f"dependencies:{jid}", ()):
            yield f"dependents:{parent}", jid, None
    if "tagged" in record:
        for tag in found.get(f"tags:{jid}", b"").decode().split("\n"):
            yield f"tag:{tag}", jid, None


def _waiting_places(jid: str, record: dict[str, str]) -> Iterator[tuple[str, str, float | None]]:
    """Yield the places of a waiting job: in front, in the line of its lane, parked under its limit, or apart."""
    queue, lane, turn = record["queue"], record.get("lane"), record.get("turn")
    member = f"{int(turn or record['seq']):013x}{jid}"
    score = AHEAD if turn else float(record.get("priority", 0))
    if record.get("parked") == "klass":
        label = f"{record['klass']}\t{record['shapes']}" if "shapes" in record else record["klass"]
        yield f"queue:{queue}:apart", jid, None
        yield f"apart:{label}\n{queue}\n{lane or ''}", member, score
    elif "parked" in record:
        yield f"queue:{queue}:parked", jid, None
        under = record["parked"] if _waits_for_batch(record) else record["limit"]
        yield f"limited:{under}\n{queue}\n{lane or ''}", member, score
    elif turn and "aside" not in record:
        yield f"queue:{queue}:front", jid, float(turn)
    else:
        yield f"lane:{queue}\n{lane}" if lane else f"queue:{queue}:waiting", member, score


def _waits_for_batch(record: dict[str, str]) -> bool:
    return record.get("parked", "").startswith("\v")


def _holds_jobs(key: str) -> bool:
    kind, _, rest = key.partition(":")
    if kind == "queue":
        return not key.endswith((":recurring", ":lanes", ":limits", ":klasses"))
    if kind in ("limited", "apart"):
        return rest.count("\n") == 2
    return kind in ("failed", "complete", "held", "dependents", "tag", "lane", "holders")


def _contradictions(jid: str, record: dict[str, str], found: Snapshot) -> Iterator[str]:
    state = record.get("state", "waiting")
    if not (record.get("klass") and record.get("queue") and record["seq"].isdigit() and "put" in record):
        yield f"{jid} is half written: {record}"
    if state not in ("failed", "complete") and record["queue"] not in found.get("queues", ()):
        yield f"{jid} lies in queue {record['queue']}, which is not known"
    if state not in ("failed", "complete") and record["queue"] in found.get("idle", ()):
        yield f"{jid} lies in queue {record['queue']}, which counts as idle"
    if ("tracked" in record) != (jid in found.get("tracked-jobs", ())):
        yield f"{jid} is tracked by its record or by the list of tracked jobs only"
    if ("owner" in record) != (state in ("running", "complete")):
        yield f"{jid} is {state} with owner {record.get('owner')}"
    if (f"data:{jid}" in found) == (jid in found.payloads):
        yield f"{jid} has no data, or twice"
    if f"data:{jid}" in found and "size" in record and len(found[f"data:{jid}"]) != int(record["size"]):
        yield f"{jid} has another size than {record['size']}"
    if ("tagged" in record) != (f"tags:{jid}" in found):
        yield f"{jid} is tagged in its record or in its tags only"
    parents = found.get(f"dependencies:{jid}", {})
    if (state == "depends") != bool(parents):
        yield f"{jid} is {state} and depends on {sorted(parents)}"
    for parent in parents:
        if found.get(f"job:{parent}", {"state": "gone"}).get("state") in ("complete", "gone"):
            yield f"{jid} depends on {parent}, which is complete or gone"
    lacks_limit = record.get("parked") != "klass" and not _waits_for_batch(record) and "limit" not in record
    if "parked" in record and (state != "waiting" or lacks_limit):
        yield f"{jid} is parked, but {state} under the limit {record.get('limit')}"
    if "aside" in record and (state != "waiting" or "parked" in record or not {"turn", "lane"} <= record.keys()):
        yield f"{jid} is aside, but {state} with {record}"
    if ("progress" in record) != (f"progress:{jid}" in found):
        yield f"{jid} has progress in its record or beside it only"
    if record.get("saved") != (str(len(found[f"saved:{jid}"])) if f"saved:{jid}" in found else None):
        yield f"{jid} has a checkpoint in its record or beside it only, or of another size"
    if ("noted" in record) != (f"history:{jid}" in found):
        yield f"{jid} has a history in its record or beside it only"
    if {"persistent"} <= record.keys() and record.get("once") == "1":
        yield f"{jid} is persistent, and at most once"
    if jid in found.dense and set(record) & SPECIAL:
        yield f"{jid} is more than a dense record holds"
    if state == "complete" and set(record) & SPECIAL and found.get("complete", {}).get(jid, 0.5) % 1 == 0:
        yield f"{jid} is complete, and its score does not say that it is more than record and data"


def _wrong_marks(found: Snapshot) -> Iterator[str]:
    """Compare the marks of the layout. A namespace with nothing but entries of other programs needs none."""
    if all(key.startswith("in:") for key in found):
        return
    of_shards = found.get("config", b"").partition(b"/")[1:]  # several shards, or none
    mark = (b"3" if of_shards[0] else b"2") + (b"+" if "options" in found else b"") + b"".join(of_shards)
    marks = {"config": mark, "tracked": b"2", "tags": b"2", "workers": b"2"}
    yield from (f"{key} says {found.get(key)!r}" for key, mark in marks.items() if found.get(key) != mark)


def _wrong_sizes(found: Snapshot) -> Iterator[str]:
    """Compare indexes and counters with what they count."""
    groups = {group for group, _ in _named(found, "failed:")}
    if groups != set(found.get("groups", ())):
        yield f"groups are {sorted(found.get('groups', ()))}, not {sorted(groups)}"
    sizes = {tag: len(jids) for tag, jids in _named(found, "tag:")}
    if sizes != found.get("tag-counts", {}):
        yield f"tags are {found.get('tag-counts')}, not {sizes}"
    for index, figures in (("days", "stats:"), ("histograms", "histogram:")):
        if set(found.get(index, ())) != {day for day, _ in _named(found, figures)}:
            yield f"{index} are {sorted(found.get(index, ()))}, not all there are"
    for counter, drawn in _drawn(found):
        if int(found.get(counter, 0)) < drawn:
            yield f"{counter} is {found.get(counter)}, but {drawn} was given out"
    recurring = {(queue, jid) for queue, jids in _recurring(found) for jid in jids}
    if recurring != {(record["queue"], jid) for jid, record in _named(found, "recur:")}:
        yield f"recurring lie as {sorted(recurring)}"


def _drawn(found: Snapshot) -> Iterator[tuple[str, int]]:
    """Yield counter and number for each number that a record has from a counter."""
    for _, record in _named(found, "job:"):
        yield "seq", int(record["seq"])
        yield "token", int(record.get("owner", record.get("turn", "0")).partition(":")[0])


def _wrong_lanes(found: Snapshot) -> Iterator[str]:
    """Check that leases find each lane with jobs that is not paused, and that all its jobs are counted."""
    sizes: dict[str, int] = {}
    for line, members in _named(found, "lane:"):
        queue, _, lane = line.partition("\n")
        sizes[queue] = sizes.get(queue, 0) + len(members)
        if lane not in found.get(f"queue:{queue}:lanes", ()) and f"paused:{lane}" not in found.get(
            f"lanes:{queue}", ()
        ):
            yield f"lane {lane} of {queue} has {len(members)} jobs, and no lease comes to it"
    for queue, settings in _named(found, "lanes:"):
        for field in settings:
            if field.startswith("paused:") and field[7:] in found.get(f"queue:{queue}:lanes", ()):
                yield f"lane {field[7:]} of {queue} is paused, and leases come to it"
    for index, times in found.items():
        if index.endswith(":lanes") or (index.startswith(("limited:", "apart:")) and index.count("\n") == 1):
            yield from (f"{line!r} is at {time} in {index!r}" for line, time in times.items() if abs(time) >= 2**53)
    counts = {queue: int(count) for queue, count in _named(found, "laned:")}
    for queue in counts.keys() | sizes.keys():
        if counts.get(queue, 0) != sizes.get(queue, 0):
            yield f"laned:{queue} is {counts.get(queue)}, not {sizes.get(queue, 0)}"


def _wrong_limits(found: Snapshot) -> Iterator[str]:
    """Check that leases find all parked jobs, and that each limit is listed, with both halves of its rate."""
    for line, _ in _named(found, "limited:"):
        if line.count("\n") == 2:
            limits, queue, lane = line.split("\n")
            named = f"{lane}\n{limits}" if "\t" in limits else lane
            stands = [one for one in limits.split("\t") if named in found.get(f"limited:{one}\n{queue}", ())]
            if len(stands) != 1:
                yield f"jobs are parked in {line!r}, which stands under {stands}"
            for limit in stands:
                for index, name in {f"limited:{limit}": queue, f"queue:{queue}:limits": limit}.items():
                    if name not in found.get(index, ()):
                        yield f"jobs are parked in {line!r}, but {name!r} is not in {index!r}"
    for line, _ in _named(found, "apart:"):
        if line.count("\n") == 2:
            label, queue, lane = line.split("\n")
            for index, name in {f"apart:{label}\n{queue}": lane, f"queue:{queue}:klasses": label}.items():
                if name not in found.get(index, ()):
                    yield f"jobs lie apart in {line!r}, but {name!r} is not in {index!r}"
    bounds = dict(_named(found, "limit:"))
    if bounds.keys() != set(found.get("limits", ())):
        yield f"limits are {sorted(found.get('limits', ()))}, not {sorted(bounds)}"
    for limit, fields in bounds.items():
        if ("starts" in fields) != ("per" in fields) or not set(fields) <= {"running", "starts", "per", "by"}:
            yield f"limit {limit} is {fields}"


def _wrong_batches(found: Snapshot) -> Iterator[str]:
    """Check that each batch has its members that have not ended, counts them all, and is listed."""
    members: dict[str, set[str]] = {}
    for jid, record in _named(found, "job:"):
        if "batch" in record and record.get("state") not in ("failed", "complete"):
            members.setdefault(record["batch"], set()).add(jid)
    for batch, record in _named(found, "batch:"):
        if "parent" in record and "ended" not in record:
            members.setdefault(record["parent"], set()).add(f"\n{batch}")
    for batch, record in _named(found, "batch:"):
        pending = set(found.get(f"batchjobs:{batch}", ()))
        if pending != members.get(batch, set()):
            yield f"batch {batch} waits for {sorted(pending)}, not {sorted(members.get(batch, ()))}"
        ended = sum(int(record.get(state, 0)) for state in ("complete", "failed", "cancelled"))
        if int(record["total"]) != ended + len(pending):
            yield f"batch {batch} has {record}, and {len(pending)} pending"
        if ("ended" in record) != ("closed" in record and not pending):
            yield f"batch {batch} has {record}, and {len(pending)} pending"
    batches = dict(_named(found, "batch:"))
    lists = {
        "batches": {batch for batch, record in batches.items() if "ended" not in record},
        "batches-ended": {batch for batch, record in batches.items() if "ended" in record},
        "batches-open": {batch for batch, record in batches.items() if "closed" not in record},
    }
    for name, wanted in lists.items():
        if set(found.get(name, ())) != wanted:
            yield f"{name} has {sorted(found.get(name, ()))}, not {sorted(wanted)}"


def _wrong_claims(found: Snapshot, now_ms: float | None) -> Iterator[str]:
    """Check that each unique key is held by its job until that ends, and that start deadlines are those of the jobs."""
    claims, times = {}, {}
    for jid, record in _named(found, "job:"):
        if record.get("state") in ("failed", "complete"):
            continue
        if "unique" in record:
            claims.setdefault((record["queue"], record["unique"]), []).append(jid)
        if "collected" in record and len(json.loads(found.payload(jid))) != int(record["collected"]):
            yield f"{jid} has collected {found.payload(jid)!r}, and says {record['collected']}"
        if "expires" in record:
            times[jid] = float(record["put"]) + float(record["expires"])
    held = {(queue, key): [jid] for queue, keys in _named(found, "unique:") for key, jid in keys.items()}
    if claims != held:
        yield f"unique are {claims}, but held is {held}"
    listed = found.get("expiring", {})
    if any(times.get(jid) != time for jid, time in listed.items()):
        yield f"expiring is {listed}, but jobs say {times}"
    for jid, time in times.items():
        if now_ms is not None and now_ms < time and jid not in listed:
            yield f"{jid} must start by {time:.0f}, but nobody would look"


def _wrong_quiet(found: Snapshot) -> Iterator[str]:
    """Check that leases of many queues pass over no queue that has something for them."""
    for queue, time in found.get("quiet", {}).items():
        if queue not in found.get("queues", ()):
            yield f"{queue} is quiet, and not known"
        if f"bell:{queue}" in found:
            yield f"{queue} is quiet, and a worker is woken for it"
        for part in ("front", "waiting", "running", "lanes", "limits", "klasses"):
            if f"queue:{queue}:{part}" in found:
                yield f"{queue} is quiet, and has jobs: {part}"
        for part in ("scheduled", "recurring"):
            first = min(found.get(f"queue:{queue}:{part}", {}).values(), default=time)
            if first < time:
                yield f"{queue} is quiet until {time:.0f}, and {part} has jobs at {first:.0f}"


def _recurring(found: Snapshot) -> Iterator[tuple[str, dict[str, float]]]:
    for key, members in found.items():
        if key.startswith("queue:") and key.endswith(":recurring"):
            yield key[6:-10], members


def left_over(found: Snapshot) -> list[str]:
    """Return what belongs to a deleted record, and ids that were found without a record."""
    return list(_orphans(found))


def _orphans(found: Snapshot) -> Iterator[str]:
    for kind in ("data", "failure", "result", "tags", "history", "dependencies", "dependents", "progress", "saved"):
        for jid, _ in _named(found, f"{kind}:"):
            if f"job:{jid}" not in found:
                yield f"{kind}:{jid} is left of a job that is gone"
    for kind in (
        "starts", "throttled", "ended", "worker", "mail", "asks", "answer", "desired", "skills", "shapes", "bins",
        "recent", "course", "schema",
    ):  # fmt: skip
        yield from (
            f"{kind}:{name} would stay for ever"
            for name, _ in _named(found, f"{kind}:")
            if f"{kind}:{name}" not in found.ending
        )
    for kind in ("recurdata", "recurtags"):
        for jid, _ in _named(found, f"{kind}:"):
            if f"recur:{jid}" not in found:
                yield f"{kind}:{jid} is left of a recurrence that is gone"
    for name in ("audit", "unheard"):
        if name in found and name not in found.ending:
            yield f"{name} would stay for ever"
    if "phantoms" in found:
        yield f"phantoms were met: {sorted(found['phantoms'])}"


def _named(found: Snapshot, prefix: str) -> list[tuple[str, Any]]:
    return [(key[len(prefix) :], value) for key, value in found.items() if key.startswith(prefix)]
