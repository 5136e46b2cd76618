"""Plays calls on the engine of one source tree, and answers what each returned. Started by stage.Engine.

A process of its own, with that tree first on its path, so that two trees can be compared. Imports nothing of the
tests: the other tree may have others. Reads a request a line, `{"namespace", "seed", "calls", "whole"}`, and answers
with a line: the replies as JSON texts, and the names of the scripts that ran.
"""

import base64
import dataclasses
import datetime
import hashlib
import json
import random
import re
import sys
import traceback
from types import SimpleNamespace
from typing import Any

import redis

from supervisor.engine.client.sync_client import Client
from supervisor.engine.commands import bulk, lanes, limits
from supervisor.engine.model.errors import LeaseholdError
from supervisor.engine.model.jobs import LeaseRecord

try:
    from supervisor.engine.commands import (
        deleting,
        job_changes,
        job_queries,
        leasing,
        mailbox,
        maintenance,
        putting,
        queue_counts,
        recurrences,
        settings,
        settling,
        waits,
        workers,
    )
    from supervisor.engine.model.cron_times import following
    from supervisor.engine.model.new_jobs import new_job

    #: Where a call is looked for by its name in a record, and the calls that have another name here.
    MODULES: tuple[Any, ...] = (job_changes, job_queries, mailbox, queue_counts, waits, workers)
    RENAMED: dict[str, Any] = {
        "forget": deleting.forget_once, "recurring": recurrences.read, "skills": workers.report_skills,
        "tag_recurring": recurrences.tag, "timing": settings.timing, "unrecur": recurrences.unrecur,
        "untag_recurring": recurrences.untag, "workers": workers.read,
    }  # fmt: skip
except ImportError:  # an engine of before, where two modules have all calls
    from supervisor.engine.commands import queries, writes
    from supervisor.engine.model.jobs import new_job
    from supervisor.engine.model.recurring import following

    job_changes = leasing = maintenance = putting = settling = workers = writes
    job_queries = queue_counts = queries
    mailbox = SimpleNamespace(tell=writes.tell, requests=queries.requests, wish=queries.wish)
    recurrences = SimpleNamespace(
        read=queries.recurring, recur=writes.recur, spawn=writes.spawn, update=writes.update_recurring
    )
    settings = SimpleNamespace(read=queries.settings, configure=writes.configure)
    MODULES, RENAMED = (writes, queries), {}

try:
    from supervisor.engine.commands import choices
except ImportError:  # an engine of before, whose bulk commands find their jobs themselves
    choices = bulk

try:
    from supervisor.engine.client.sync_calls import calls_of
except ModuleNotFoundError:  # an engine of before, whose client has the calls itself

    def calls_of(client: Any) -> Any:
        return client


from supervisor.engine.model.outcomes import (
    ENDLESS,
    LATER,
    REFUSED,
    TOO_MANY_QUEUES,
    Completed,
    Died,
    Failed,
    Released,
    Retried,
    Returned,
    Suspended,
    Unknown,
)
from supervisor.engine.model.validation import UNSET, to_state

#: An engine of before has another name for it.
serve_request = mailbox.serve_request if hasattr(mailbox, "serve_request") else mailbox.wish
RENAMED["wish"] = serve_request

#: Marks the answer to a call that raised what no caller expects.
BUG = "raised"
BEGIN_UNIX = 1_000_000.0
WORKERS = ("v", "w", "x")  # as in calls.py
QUEUES = ("q", "r", "s:1", "ü 2")
LISTED = 40  # jobs of each list in a look; it shows all jobs by their jids, too
SHOWN = 200  # characters of a text; of a longer one the size and a digest
#: Attributes of a lease that callers see. A newer engine may have more.
OF_LEASE = (
    "at_most_once", "deaths", "expires_unix", "failures", "interruptions", "is_bytes", "jid", "klass", "lane",
    "limited", "max_deaths", "persistent", "priority", "queue", "raw", "raw_replay", "remaining", "retries",
    "saved", "tags", "timeout_s", "token", "trace", "waited_s", "worker",
)  # fmt: skip
IN_SCRIPT = re.compile(r" script: \S*,? ?on @user_script:\d+")
OF_GRANT = ("now_unix", "next_at_unix", "leases", "due", "unreadable")
#: Fields of a worker or a job that only newer engines have. A comparison with older engines leaves them out.
NEW = ("release", "is_call")


def builder_of(call: str) -> Any:
    """Return the function that builds a call, by its name in a record."""
    return RENAMED.get(call) or next(getattr(module, call) for module in MODULES if hasattr(module, call))


class Player:
    """One namespace of one engine, its clock, and the leases that it has given."""

    def __init__(self, socket: str, namespace: str, seed: int, whole: bool) -> None:
        self.now = BEGIN_UNIX
        self.prefix = f"{{{namespace}}}:"
        self.redis = redis.Redis(unix_socket_path=socket, protocol=2, socket_timeout=60)
        self.address = f"unix://{socket}"
        self.client = Client(self.address, namespace, lambda: self.now)
        self.seed = seed
        self.whole = whole
        self.numbers = dict.fromkeys(WORKERS, 0)  # of each worker's last exchange
        self.held: list[LeaseRecord] = []  # in the order of their leases; some may be lost
        self.ended: list[LeaseRecord] = []  # the newest last
        self.due: list[Any] = []  # cron recurrences that a lease or a sweep has reported
        self.jids: dict[str, None] = {}  # all that were seen
        self.events: Any = None
        self.used: set[str] = set()

    def play(self, number: int, call: dict[str, Any]) -> Any:
        """Carry out a call. Return its answer, or its refusal, and the events that were heard."""
        random.seed(f"{self.seed} {number}")  # a lease in random order draws a number
        arguments = {name: value for name, value in call.items() if name != "do"}
        try:
            answer = plain(getattr(self, f"do_{call['do']}")(**arguments))
        except (LeaseholdError, ValueError) as refusal:
            if "DEREGISTERED" in str(refusal):
                self.numbers[call["worker"]] = 0  # it joins anew
            answer = {"refused": type(refusal).__name__, "why": self.told(refusal)}
        except Exception:  # noqa: BLE001  # a bug of this engine, or of this player
            answer = {BUG: traceback.format_exc()}
        return [answer, self.heard()] if self.events else answer

    def told(self, refusal: Exception) -> str:
        """Return the text of a refusal without the server's address, and without the place in the script."""
        return IN_SCRIPT.sub("", str(refusal).replace(self.address, "server"))

    def close(self) -> None:
        if self.events:
            self.events.close()
        self.client.close()
        for key in self.redis.scan_iter(f"{self.prefix}*", count=10_000):
            self.redis.unlink(key)
        self.redis.close()

    def run(self, command: Any) -> Any:
        self.used.add(command.script.name)
        return calls_of(self.client).run(command)

    # events

    def do_follow_events(self, wanted: bool) -> None:
        if self.events:
            self.events.close()
            self.events = None
        if wanted:
            self.events = self.redis.pubsub()
            self.events.subscribe(f"{self.prefix}events", f"{self.prefix}tracked")
            for _ in range(2):
                self.events.parse_response(timeout=60)

    def heard(self) -> list[Any]:
        """Return the events so far, in the order of their jobs: those of one call may come in any order.

        All have come before the answer to a PING.
        """
        self.events.ping()
        found: list[Any] = []
        while (reply := self.events.parse_response(timeout=60))[0] != b"pong":
            found.append([reply[1].decode().removeprefix(self.prefix), json.loads(reply[2])])
        return sorted(found, key=lambda event: event[1].get("jid", ""))

    # time, and what other programs do

    def do_tick(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 3)

    def do_hear(self, queue: str) -> Any:
        """Take the wake-up key's token, as a worker that waits does."""
        return self.redis.lpop(f"{self.prefix}bell:{queue}")

    def do_read_mail(self, worker: str) -> Any:
        return self.redis.lpop(f"{self.prefix}mail:{worker}")

    def do_ended(self, jid: str) -> Any:
        return self.redis.llen(f"{self.prefix}ended:{jid}")

    def do_push(self, queue: str, entry: dict[str, Any], cut: bool) -> Any:
        text = json.dumps(entry)
        return self.redis.lpush(f"{self.prefix}in:{queue}", text[:-1] if cut else text)

    # traffic

    def do_put(self, jobs: list[dict[str, Any]]) -> Any:
        return self.run(putting.put([self.new(one) for one in jobs], now=self.now))

    def new(self, one: dict[str, Any]) -> Any:
        given = dict(one)
        head = given.pop("verb"), given.pop("queue"), given.pop("klass"), data_of(given.pop("data"))
        self.jids[given["jid"]] = None
        if "at" in given:
            given["at"] += self.now
        return new_job(*head, without_conflicts(given))

    def number(self, worker: str, how: str | None) -> int | None:
        """Return the number of an exchange: the next one, the last again, an old one, or none."""
        self.numbers[worker] += how == "next"
        last = self.numbers[worker]
        return None if how is None else max(0, last - 2) if how == "old" else last

    def do_lease(
        self, worker: str, queues: list[str], count: int, number: str | None, ttl: float | None, **how: Any
    ) -> Any:
        if how["order"] == "weighted":
            how["weights"] = {queues[0]: 3}
        number_of_it = self.number(worker, number)
        grant = self.run(leasing.lease(worker, queues, count, ttl_s=ttl, number=number_of_it, now=self.now, **how))
        self.take(grant)
        return grant

    def take(self, grant: Any) -> None:
        self.held += grant.leases
        self.due += grant.due
        self.jids.update((lease.jid, None) for lease in grant.leases)

    def pick(self, worker: str, whose: str, place: int, taken: list[LeaseRecord]) -> LeaseRecord | None:
        """Return a lease that is none of `taken`; None without any."""
        of = {
            "own": [one for one in self.held if one.worker == worker],
            "forged": [one for one in self.held if one.worker == worker],
            "other": [one for one in self.held if one.worker != worker],
            "ended": self.ended[-10:],
        }[whose]
        left = [one for one in of if one not in taken] if whose == "own" else of
        if not left:
            return None
        chosen = left[place % len(left)]
        if whose == "forged":
            return forged(chosen)
        return chosen

    def do_settle(self, worker: str, number: str | None, outcomes: list[dict[str, Any]]) -> Any:
        chosen: list[LeaseRecord] = []
        ways = []
        for one in outcomes:
            lease = self.pick(worker, one["whose"], one["pick"], chosen)
            if lease is not None:
                chosen.append(lease)
                ways.append(self.outcome(lease, one))
        answers = self.run(settling.settle(worker, ways, number=self.number(worker, number), now=self.now))
        for lease, answer in zip(chosen, answers, strict=False):  # one number again: as many answers as then
            if lease in self.held and lease.worker == worker and answer not in UNCHANGED:
                self.held.remove(lease)
                self.ended.append(lease)
        return answers

    def outcome(self, lease: LeaseRecord, one: dict[str, Any]) -> Any:
        data = data_of(one["data"]) if "data" in one else UNSET
        match one["verb"]:
            case "complete":
                return Completed(lease, one.get("result"), data)
            case "advance" if one["next"] is None:
                return Completed(lease, one["result"], data)
            case "advance":
                return Completed(lease, one["result"], data, one["next"], one["delay"], one["depends"])
            case "then":
                return Completed(lease, then=[self.new(follower) for follower in one["then"]])
            case "retry":
                return Retried(lease, one["delay"], one["group"], "it failed")
            case "fail":
                return Failed(lease, one["group"], "it failed", data=data)
            case "release":
                return Released(lease, reason="drain")
            case "hand back":
                return Released(lease, started=False, delay=one["delay"])
            case "died":
                return Died(lease, one["reason"], "it died")
            case "unknown":
                return Unknown(lease, one["delay"])
            case "suspend":
                return Suspended(lease, one["name"], one["timeout"])
        return Returned(lease)

    def do_renew(self, worker: str, number: str | None, ttl: float | None, entries: list[dict[str, Any]]) -> Any:
        renewals = []
        for one in entries:
            lease = self.pick(worker, one["whose"], one["pick"], [])
            if lease is not None:
                data = data_of(one["data"]) if "data" in one else UNSET
                progress = tuple(one["progress"]) if "progress" in one else None
                state = to_state("state", one["state"]) if "state" in one else b""
                step = one.get("step", "")
                renewals.append(leasing.Renewal(lease.jid, lease.token, one["started"], data, progress, state, step))
        command = leasing.renew(worker, renewals, number=self.number(worker, number), ttl_s=ttl, now=self.now)
        renewed = self.run(command)
        return [list(renewed), renewed.now_unix, renewed.cancelled_by]

    def do_resume(self, worker: str, known: int, highest: int) -> Any:
        """Resume with some of the worker's leases; the others are handed back."""
        own = [(one.jid, one.token) for one in self.held if one.worker == worker]
        number = self.number(worker, "next")
        return self.run(leasing.resume(worker, number, own[:known], highest=highest, now=self.now))

    def do_sweep(self, count: int, takeover: bool, worker: str | None) -> Any:
        swept = self.run(maintenance.sweep(count, takeover=takeover, worker=worker, now=self.now))
        self.due += swept.due
        return swept

    def do_spawn(self) -> Any:
        """Take up the oldest report of a due cron recurrence; it may be out of date."""
        if not self.due:
            return None
        due = self.due.pop(0)
        times, next_unix = following(due, self.now)
        return self.run(recurrences.spawn(due, times, next_unix, now=self.now))

    # calls of operators

    def do_write(self, call: str, args: list[Any], **more: Any) -> Any:
        return self.run(builder_of(call)(*args, now=self.now, **more))

    def do_deregister(self, worker: str, own: bool) -> Any:
        return self.run(workers.deregister(worker, own=own, now=self.now))

    def do_tell(self, worker: str, message: str) -> Any:
        return self.run(mailbox.tell(worker, message))

    def do_desire(self, count: int) -> Any:
        return self.run(workers.desire("pool", count, {"n": count}))

    def do_unfail(self, queue: str | None, **given: Any) -> Any:
        more = {"klass": given["klass"], "data": data_of(given["data"])} if "klass" in given else {}
        if "jids" in given:
            return self.run(job_changes.unfail_jobs(given["jids"], queue, now=self.now, **more))
        return self.run(job_changes.unfail(given["group"], queue, given["count"], now=self.now, **more))

    def do_configure(self, option: str, queue: str | None, value: Any) -> Any:
        text = None if value is None else str(int(value)) if isinstance(value, bool) else str(value)
        return self.run(settings.configure(option, queue, text, by="kim", now=self.now))

    def do_lane(self, call: str, args: list[Any]) -> Any:
        return self.run(getattr(lanes, call)(*args, now=self.now))

    def do_limit(self, key: str, running: int | None, rate: str | None) -> Any:
        if running is not None or rate is not None:
            self.run(limits.limit(key, running, rate, by="kim", now=self.now))
        return self.run(limits.read(key))

    def do_unlimit(self, key: str, half: str | None) -> Any:
        return self.run(limits.unlimit(key, half, now=self.now))

    def do_recur(self, queue: str, jid: str, data: Any, options: dict[str, Any]) -> Any:
        return self.run(recurrences.recur(queue, "k", data_of(data), {"jid": jid, **options}, now=self.now))

    def do_update_recurring(self, jid: str, changes: dict[str, Any]) -> Any:
        known = self.run(recurrences.read(jid))
        if known is None:
            return None
        if "data" in changes:
            changes = {**changes, "data": data_of(changes["data"])}
        return self.run(recurrences.update(known, changes, now=self.now))

    def do_cancel_equal(self, queue: str, data: Any) -> Any:
        self.used.add("drop")
        return sorted(self.client.queue(queue).cancel(data_of(data)))

    def do_delete(self, queue: str, lane: str | None, running: Any) -> Any:
        self.used.add("drop")
        whole = self.client.queue(queue)
        return whole.delete(running) if lane is None else whole.lane(lane).delete(running)

    def do_each(self, choice: dict[str, Any], call: str, args: list[Any]) -> Any:
        self.used.add("find")
        chosen = choices.Choice(**choice)
        found = calls_of(self.client).follow(choices.found(chosen, lambda: self.now))
        if call == "find" or not found:
            return found
        return self.run(getattr(bulk, call)(chosen, list(found)[: bulk.MOST_CHANGED], *args, now=self.now))

    def do_check(self, repair: bool) -> Any:
        self.used.add("check")
        return sorted(map(dataclasses.astuple, self.client.check(repair)))

    def do_query(self, call: str, args: list[Any]) -> Any:
        build = builder_of(call)
        timed = "now" in build.__kwdefaults__ if build.__kwdefaults__ else False
        answer = self.run(build(*args, now=self.now) if timed else build(*args))
        return job_queries.parse_row(answer) if call == "row" and answer else answer  # its fields have no order

    # the whole state

    def do_look(self) -> Any:
        """Return all that queries show; of each part a digest, unless the request is for the whole."""
        parts = {part: plain(getattr(self, f"see_{part}")()) for part in SEEN}
        if self.whole:
            return parts
        return {part: digest_of(json.dumps(seen, sort_keys=True)) for part, seen in parts.items()}

    def see_queues(self) -> Any:
        self.used |= {"counts", "names", "lanes", "stats", "peek", "list", "recurring"}
        queues = [self.client.queue(name) for name in QUEUES]
        states = (*job_queries.STATES, "recurring")
        listed = {
            queue.name: {
                state: [job.jid for job in queue.jobs(state, count=LISTED)] for state in states if state != "complete"
            }
            for queue in queues
        }
        self.jids.update(
            (jid, None) for of in listed.values() for state in of if state != "recurring" for jid in of[state]
        )
        return {
            "all": self.client.queues(),
            "names": self.run(queue_counts.names()),
            "lanes": [queue.lanes() for queue in queues],
            "peek": [[job.jid for job in queue.peek(LISTED)] for queue in queues],
            "recurring": [self.client.recurring(jid) for jid in ("every", "cron")],
            "listed": listed,
        }

    def see_jobs(self) -> Any:
        self.used |= {"job", "data", "cancelled"}
        jids = sorted(self.jids)
        found = [job for first in range(0, len(jids), 1000) for job in self.client.jobs(*jids[first : first + 1000])]
        gone = [jid for jid, job in zip(jids, found, strict=True) if job is None]
        return [{job.jid: job for job in found if job}, {jid: self.client.cancelled(jid) for jid in gone[-20:]}]

    def see_ended(self) -> Any:
        self.used |= {"failed", "list"}
        groups = self.client.failed()
        return {
            "completed": in_order(self.client.completed(count=1000)),
            "by queue": [in_order(self.client.queue(name).jobs("complete", count=1000)) for name in QUEUES],
            "groups": groups,
            "failed": {group: [job.jid for job in self.client.failed(group, limit=LISTED)[1]] for group in groups},
        }

    def see_tags(self) -> Any:
        self.used |= {"tags", "tagged", "tracked"}
        tags = self.client.tags(count=1000)
        tracked = self.client.tracked()
        return {
            "tags": sorted(tags.items()),
            "tagged": {tag: [job.jid for job in self.client.tagged(tag, count=LISTED)[1]] for tag in tags},
            "tracked": [[job.jid for job in tracked.jobs], tracked.expired],
        }

    def see_workers(self) -> Any:
        self.used |= {"workers", "worker", "served", "asks"}
        return {
            "workers": self.client.workers(),
            "each": [self.client.worker(name) for name in WORKERS],
            "wishes": [self.run(serve_request(name)) for name in WORKERS],
            "requests": [self.run(mailbox.requests(name, now=self.now)) for name in WORKERS],
        }

    def see_limits(self) -> Any:
        self.used |= {"limits", "limited", "settings"}
        held = [self.client.limit_jobs(key) for key in ("few", "slow")]
        return [self.client.limits(), held, self.client.config.all()]

    def see_stats(self) -> Any:
        return [rounded(plain(self.client.queue(name).stats())) for name in QUEUES]

    def see_wakeups(self) -> Any:
        return [
            [self.redis.llen(f"{self.prefix}bell:{name}") for name in QUEUES],
            [self.redis.lrange(f"{self.prefix}mail:{name}", 0, -1) for name in WORKERS],
        ]

    def see_violations(self) -> Any:
        self.used.add("check")
        return sorted(map(dataclasses.astuple, self.client.check()))

    # the end

    def do_drain(self) -> Any:
        """Take away what holds jobs up, and lease and complete all of them. Return the jids of each lease."""
        self.release_all()
        rounds: list[list[str]] = []
        while len(rounds) < 200:
            self.do_tick(100)
            for queue in QUEUES:
                for job in self.client.queue(queue).jobs("depends", count=1000):
                    self.run(job_changes.undepend(job.jid, None, now=self.now))
            grant = self.run(leasing.lease("x", QUEUES, 1000, now=self.now))
            self.take(grant)
            rounds.append([lease.jid for lease in grant.leases])
            endless = [lease.jid for lease in grant.leases if lease.persistent]
            if endless:
                self.run(job_changes.cancel(endless, now=self.now))
            ends = [Completed(lease) for lease in grant.leases if not lease.persistent]
            assert set(self.run(settling.settle("x", ends, now=self.now))) <= {True}
            if not grant.leases and not any(counts.total for counts in self.client.queues().values()):
                break
        return rounds

    def release_all(self) -> None:
        for option in self.run(settings.read()):
            self.client.config.unset(option)
        for key in self.client.limits():
            self.client.unlimit(key)
        for queue in QUEUES:
            for lane in self.client.queue(queue).lanes():
                if lane:
                    self.client.queue(queue).lane(lane).unpause()
        for jid in ("every", "cron"):
            self.client.unrecur(jid)


UNCHANGED = (REFUSED, ENDLESS, TOO_MANY_QUEUES, LATER)
SEEN = ("queues", "jobs", "ended", "tags", "workers", "limits", "stats", "wakeups", "violations")


def forged(lease: LeaseRecord) -> LeaseRecord:
    """Return the lease with a token that its job never had."""
    names = lease.jid.encode(), lease.klass.encode(), lease.queue.encode()
    return LeaseRecord(lease.worker, lease.token + 100_000, *names, b"null", 0.0)


def without_conflicts(options: dict[str, Any]) -> dict[str, Any]:
    if options.get("persistent") and options.get("at_most_once"):
        options.pop("persistent")
    return options


def in_order(completed: Any) -> list[tuple[float, str]]:
    """Return when jobs completed, newest first. Jobs of one millisecond have no promised order."""
    return sorted((-job.history[-1]["when"], job.jid) for job in completed)


def data_of(drawn: Any) -> Any:
    match drawn:
        case {"text": int() as size}:
            return ("0123456789é" * (size // 10 + 1))[:size]
        case {"bytes": int() as size}:
            return bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    return drawn


# Values as JSON.


def plain(value: Any) -> Any:
    """Return what JSON can hold, the same for equal values of both engines."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(f"{value:.13g}")
    if isinstance(value, str):
        return value if len(value) <= SHOWN else f"text of {len(value)}: {digest_of(value)}"
    if isinstance(value, bytes):
        return plain(base64.b85encode(value).decode())
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, LeaseRecord):
        return {name: plain(getattr(value, name)) for name in OF_LEASE} | {"data": decoded(value)}
    if isinstance(value, leasing.Grant):
        number = value.request_number if hasattr(value, "request_number") else value.wish_number
        return {name: plain(getattr(value, name)) for name in OF_GRANT} | {"wish_number": number}
    if isinstance(value, datetime.date):
        return value.isoformat()
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value) if field.name not in NEW)
        shown = {name: plain(getattr(value, name)) for name in names}
        return shown | ({"data": decoded(value)} if "raw" in shown else {})
    return [plain(one) for one in value]


def rounded(statistics: Any) -> Any:
    """Return plain values with floats of 7 digits: engines may add the same numbers in another order."""
    if isinstance(statistics, dict):
        return {name: rounded(value) for name, value in statistics.items()}
    if isinstance(statistics, list):
        return [rounded(value) for value in statistics]
    return float(f"{statistics:.7g}") if isinstance(statistics, float) else statistics


def decoded(record: Any) -> Any:
    try:
        return plain(record.data)
    except ValueError:  # another program has put what is no JSON
        return "unreadable"


def digest_of(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()[:16]


def main() -> None:
    socket = sys.argv[1]
    for line in sys.stdin:
        request = json.loads(line)
        player = Player(socket, request["namespace"], request["seed"], request["whole"])
        answers = [player.play(number, call) for number, call in enumerate(request["calls"])]
        replies = [json.dumps(answer, sort_keys=True) for answer in answers]
        player.close()
        sys.stdout.write(json.dumps({"replies": replies, "used": sorted(player.used)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
