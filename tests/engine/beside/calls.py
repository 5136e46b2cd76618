"""Draws random calls of the engine as plain values, so that two engines can play them and a list can be cut down.

A call is a dict: `do` names a method of player.Player, the rest are its arguments. Calls name leases by their place
among those that the player holds, so every part of a list of calls is a list of calls, too.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

Call = dict[str, Any]

QUEUES: Final = ("q", "r", "s:1", "ü 2")
WORKERS: Final = ("v", "w", "x")
KLASSES: Final = ("k", "l", "12", "é" * 32)
LANES: Final = ("a", "b")
LIMITS: Final = ("few", "slow")
TAGS: Final = ("t", "u", "ü")
GROUPS: Final = ("g", "h")
SIGNALS: Final = ("yes", "ü")  # and steps
RECURRENCES: Final = ("every", "cron")
#: Few jids that are put again and again, in all states. Some look like what a record might contain.
NAMED: Final = ("a", "b", "c", "d", "e f", "7", "g:1", "ü" * 32)
TRACES: Final = tuple(f"00-{'ab' * 16}-{number:016x}-01" for number in (1, 2))
LARGEST: Final = 2**53

#: Around the sizes at which payloads are stored, or fetched, in another way.
SIZES: Final = (0, 1, 255, 256, 510, 511, 512, 513, 1022, 1024, 1025, 4094, 4096, 4097, 70_000)
#: Few completed jobs are never kept: of those that end in one millisecond any may be dropped first.
OPTIONS: Final = {
    "heartbeat": (1, 2.5, 60), "grace": (1, 7), "max-concurrency": (1, 3), "max-deaths": (0, 1, 2), "paused": (True,),
    "unknown-for": (1, 60), "klass": ("bare",), "jobs-history": (0, 30, 60), "jobs-history-count": (0, 1000),
    "failed-history": (30, 3600), "failed-history-count": (2, 5), "stats-history": (0, 2), "histogram-history": (0, 1),
}  # fmt: skip
OF_QUEUES: Final = ("heartbeat", "grace", "max-concurrency", "max-deaths", "paused", "unknown-for", "klass")
VERBS: Final = (
    "complete",
    "advance",
    "then",
    "retry",
    "fail",
    "release",
    "hand back",
    "died",
    "unknown",
    "return",
    "suspend",
)


class Drawing:
    """Draws calls at random. Two drawings with one seed are equal."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.made = 0
        #: Share of calls without options, which put, lease and complete jobs in batches.
        self.plain_share = self.random.choice([0.2, 0.5, 0.8, 0.95, 0.98])
        self.batch = self.random.choice([3, 10, 30])

    def calls(self, count: int, look_every: int) -> Iterator[Call]:
        """Draw `count` calls, with a look at the whole state after each `look_every`."""
        for number in range(1, count + 1):
            yield self.plain_traffic() if self.chance(self.plain_share) else self.any_call()
            if number % look_every == 0:
                yield {"do": "look"}
        yield {"do": "drain"}
        yield {"do": "look"}

    # values

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def of(self, *values: Any) -> Any:
        return self.random.choice(values)

    def some(self, values: Any, least: int = 1, most: int = 3) -> list[Any]:
        """Draw some of the values, each once."""
        return self.random.sample(list(values), min(len(values), self.random.randint(least, most)))

    def fresh_jid(self) -> str:
        self.made += 1
        return f"j{self.made}"

    def jid(self) -> str:
        """Draw a jid that is known, most probably one of the newest."""
        if not self.made or self.chance(0.3):
            return self.of(*NAMED)
        return f"j{max(1, self.made - int(self.random.expovariate(1 / 20)))}"

    def jids(self, most: int = 4) -> list[str]:
        return list(dict.fromkeys(self.jid() for _ in range(self.random.randint(1, most))))

    def data(self) -> Any:
        """Draw data; {"text": n} and {"bytes": n} stand for as many characters or bytes."""
        if self.chance(0.75):
            return self.of(None, {"n": 1}, [1, "é"], {"bytes": 3}, {"bytes": 0}, {"text": 40})
        return {self.of("text", "bytes"): self.of(*SIZES)}

    def cheap_options(self) -> dict[str, Any]:
        """Draw options that a dense record can hold."""
        if self.chance(0.7):
            return {}
        values: dict[str, Any] = {
            "priority": self.of(-3, 0, 1, 7, LARGEST, -LARGEST), "retries": self.of(0, 1, 9),
            "timeout": self.of(0, 7.5), "max_deaths": self.of(0, 1, 2), "trace": self.of(*TRACES, None),
        }  # fmt: skip
        return {name: values[name] for name in self.some(values)}

    def options(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "tags": self.some(TAGS, 0), "lane": self.of(*LANES, None), "limit": self.of(*LIMITS, None),
            "unique": self.of(True, "one", "two", None), "expires": self.of(2, 40, None), "depends": self.jids(),
        }  # fmt: skip
        given = self.cheap_options() | {name: values[name] for name in self.some(values, 0, 2)}
        if "depends" in given:
            given["on_parent_failure"] = self.of("wait", "fail", "run")
        if self.chance(0.2):
            given[self.of("delay", "at")] = self.of(0.5, 2, 40)
        if self.chance(0.15):
            given[self.of("persistent", "at_most_once")] = self.of(True, True, False, None)
        return given

    def new(self, queue: str, *, known: float, plain: bool) -> Call:
        jid = self.jid() if self.chance(known) else self.fresh_jid()
        options = self.cheap_options() if plain else self.options()
        verb = self.of("put", "put", "add")
        return {"verb": verb, "queue": queue, "klass": self.of(*KLASSES), "jid": jid, "data": self.data()} | options

    def number(self) -> str | None:
        """Draw how an exchange is numbered: the worker's next number, its last again, an old one, or not at all."""
        return self.random.choices(["next", None, "same", "old"], [6, 3, 0.3, 0.1])[0]

    # the calls that come by the ten thousand

    def plain_traffic(self) -> Call:
        draws = (self.put_plain, self.lease_plain, self.lease_plain, self.complete, self.complete, self.tick, self.hear)
        return self.random.choices(draws, [4, 3, 3, 4, 3, 2, 1])[0]()

    def plain_queue(self) -> str:
        """Draw a queue in which mostly plain jobs are."""
        return self.of(*QUEUES[:2]) if self.chance(0.95) else self.of(*QUEUES)

    def put_plain(self) -> Call:
        count = self.of(1, 1, 1, 2, 3, self.batch)
        queue = self.plain_queue()
        return {"do": "put", "jobs": [self.new(queue, known=0.02, plain=True) for _ in range(count)]}

    def lease_plain(self) -> Call:
        queues = [self.plain_queue()] if self.chance(0.6) else self.some(QUEUES, 1, 4)
        return {
            "do": "lease", "worker": self.of(*WORKERS), "queues": queues, "count": self.of(1, 2, self.batch),
            "number": self.number(), "ttl": self.of(None, None, 30), "starting": self.of(None, 0, 1), "order": "strict",
            "takeover": self.chance(0.8), "woken": self.chance(0.3), "once": [],
        }  # fmt: skip

    def complete(self) -> Call:
        """End the oldest leases of a worker."""
        outcomes = [
            {"whose": "own", "pick": 0, "verb": "complete", "result": {"r": 1} if self.chance(0.1) else None}
            for _ in range(self.of(1, 1, 2, self.batch))
        ]
        return {"do": "settle", "worker": self.of(*WORKERS), "number": self.number(), "outcomes": outcomes}

    def tick(self) -> Call:
        return {"do": "tick", "seconds": self.of(0.001, 0.003, 0.1, 1, 1, 7)}

    def hear(self) -> Call:
        return {"do": "hear", "queue": self.of(*QUEUES)}

    # all calls

    def any_call(self) -> Call:
        draws, weights = zip(*WEIGHTS.items(), strict=True)
        draw: Callable[[Drawing], Call] = self.random.choices(draws, weights)[0]
        return draw(self)

    def put(self) -> Call:
        queue = self.of(*QUEUES, *QUEUES[2:], *QUEUES[2:], *QUEUES[2:])
        new = [self.new(self.of(queue, queue, *QUEUES), known=0.4, plain=False) for _ in range(self.of(1, 1, 2, 5))]
        return {"do": "put", "jobs": new}

    def lease(self) -> Call:
        return self.lease_plain() | {
            "ttl": self.of(None, 10, 1, 0, -3), "once": self.of([], [], ["l"]), "order":
            self.of("strict", "round-robin", "random", "weighted"), "count": self.of(0, 1, 3, 100),
        }  # fmt: skip

    def outcome(self) -> Call:
        """Draw an end of a lease: mostly of the worker's own; else of another worker, of one that ended, or forged."""
        verb = self.of(*VERBS)
        drawn: Call = {
            "whose": self.random.choices(["own", "other", "ended", "forged"], [12, 1, 1, 1])[0], "verb": verb,
            "pick": self.random.randint(0, 9),
        }  # fmt: skip
        if verb in ("complete", "advance"):
            drawn |= {"result": self.of(None, {"r": [1]})} | ({"data": self.data()} if self.chance(0.3) else {})
        if verb == "advance":
            drawn |= {"next": self.of(*QUEUES, None), "delay": self.of(0, 0, 2), "depends": self.of([], self.jids())}
        if verb == "then":
            plain = self.chance(0.5)
            drawn["then"] = [self.new(self.of(*QUEUES), known=0.4, plain=plain) for _ in range(self.of(1, 2))]
        if verb in ("retry", "unknown"):
            drawn["delay"] = self.of(0, 0.5, 40) if verb == "unknown" else self.of(None, 0.5, 40)
        if verb in ("retry", "fail"):
            drawn["group"] = self.of(*GROUPS)
        if verb == "fail" and self.chance(0.3):
            drawn["data"] = self.data()
        if verb == "died":
            drawn["reason"] = self.of("SIGKILL", "oom", "lost")
        if verb == "hand back":
            drawn["delay"] = self.of(0, 0, 3)
        if verb == "suspend":
            drawn |= {"name": self.of(*SIGNALS), "timeout": self.of(None, 0, 2, 40)}
        return drawn

    def settle(self) -> Call:
        outcomes = [self.outcome() for _ in range(self.of(1, 1, 2, 5))]
        return {"do": "settle", "worker": self.of(*WORKERS), "number": self.number(), "outcomes": outcomes}

    def renew(self) -> Call:
        entries = []
        for _ in range(self.of(1, 1, 3)):
            entry: Call = {"whose": self.of("own", "own", "own", "other", "ended"), "pick": self.random.randint(0, 9)}
            entry["started"] = self.chance(0.5)
            if self.chance(0.2):
                entry["data"] = self.data()
            if self.chance(0.2):
                entry["progress"] = [self.of(0, 0.5, 1), self.of("", "half")]
            if self.chance(0.2):
                entry["state"] = self.of({"n": 1}, "half", [1, 2])
                if self.chance(0.5):
                    entry["step"] = self.of(*SIGNALS)
            entries.append(entry)
        return {"do": "renew", "worker": self.of(*WORKERS), "number": self.number(), "ttl": self.of(None, 10, 90),
                "entries": entries}  # fmt: skip

    def resume(self) -> Call:
        return {"do": "resume", "worker": self.of(*WORKERS), "known": self.random.randint(0, 9),
                "highest": self.of(0, 0, 0, 5000)}  # fmt: skip

    def sweep(self) -> Call:
        return {"do": "sweep", "count": self.of(1, 100), "takeover": self.chance(0.8), "worker": self.of(None, "w")}

    def spawn(self) -> Call:
        return {"do": "spawn"}

    def deregister(self) -> Call:
        return {"do": "deregister", "worker": self.of(*WORKERS), "own": self.chance(0.3)}

    def move(self) -> Call:
        return {"do": "write", "call": "move", "args": [self.jid(), self.of(*QUEUES), self.of(0, 0, 2)]}

    def cancel(self) -> Call:
        return {"do": "write", "call": "cancel", "args": [self.jids()], "by": self.of(None, "kim")}

    def fail(self) -> Call:
        return {"do": "write", "call": "fail", "args": [self.jid(), self.of(*GROUPS), "by hand"]}

    def unfail(self) -> Call:
        return {"do": "unfail", "group": self.of(*GROUPS, "lost", "broken"), "queue": self.of(None, *QUEUES),
                "count": self.of(1, 25)} | self.new_content()  # fmt: skip

    def unfail_jobs(self) -> Call:
        return {"do": "unfail", "jids": self.jids(), "queue": self.of(None, *QUEUES)} | self.new_content()

    def new_content(self) -> Call:
        return self.of({}, {}, {"klass": self.of(*KLASSES), "data": self.data()})

    def release(self) -> Call:
        return {"do": "write", "call": "release", "args": [self.jids()]}

    def signal(self) -> Call:
        return {"do": "write", "call": "signal", "args": [self.jid(), self.of(*SIGNALS), self.of(None, {"n": 1})]}

    def priority(self) -> Call:
        return {"do": "write", "call": "set_priority", "args": [self.jid(), self.of(-9, 0, 5, LARGEST)]}

    def tag(self) -> Call:
        return {"do": "write", "call": self.of("tag", "tag", "untag"), "args": [self.jid(), self.some(TAGS)]}

    def track(self) -> Call:
        return {"do": "write", "call": self.of("track", "track", "untrack"), "args": [self.jid()]}

    def log(self) -> Call:
        return {"do": "write", "call": "log", "args": [self.jid(), "a line", self.of(None, {"n": 1})]}

    def depend(self) -> Call:
        return {"do": "write", "call": "depend", "args": [self.jid(), self.jids()]}

    def undepend(self) -> Call:
        return {"do": "write", "call": "undepend", "args": [self.jid(), self.of(None, self.jids())]}

    def forget(self) -> Call:
        return {"do": "write", "call": "forget", "args": [self.of(*QUEUES)]}

    def wait_for(self) -> Call:
        return {"do": "write", "call": "wait_for", "args": [self.jid()]}

    def ended(self) -> Call:
        return {"do": "ended", "jid": self.jid()}

    def tell(self) -> Call:
        return {"do": "tell", "worker": self.of(*WORKERS), "message": "hint"}

    def read_mail(self) -> Call:
        return {"do": "read_mail", "worker": self.of(*WORKERS)}

    def serve(self) -> Call:
        return {"do": "write", "call": "serve",
                "args": [self.of(*WORKERS), self.some(QUEUES), self.of(None, "strict", "round-robin")]}  # fmt: skip

    def ask(self) -> Call:
        return {"do": "write", "call": "ask",
                "args": [f"ask-{self.random.randint(0, 3)}", self.of(None, list(WORKERS)), "stacks", None]}  # fmt: skip

    def answer(self) -> Call:
        return {"do": "write", "call": "answer",
                "args": [self.of(*WORKERS), f"ask-{self.random.randint(0, 3)}", {"n": 1}]}  # fmt: skip

    def retire(self) -> Call:
        return {"do": "write", "call": "retire", "args": [self.of(*WORKERS), self.some(QUEUES, 0), self.of(0, 60)]}

    def desire(self) -> Call:
        return {"do": "desire", "count": self.random.randint(0, 3)}

    def skills(self) -> Call:
        return {"do": "write", "call": "skills",
                "args": [self.of(*WORKERS), self.some(KLASSES, 0, 4), self.some(QUEUES, 0, 4)]}  # fmt: skip

    def configure(self) -> Call:
        """Unset an option as often as it is set."""
        option = self.of(*OPTIONS, "max-concurrency", "max-concurrency", "jobs-history")
        queue = self.of(None, *QUEUES) if option in OF_QUEUES else None
        return {"do": "configure", "option": option, "queue": queue, "value": self.of(None, self.of(*OPTIONS[option]))}

    def unpause(self) -> Call:
        return {"do": "configure", "option": "paused", "queue": self.of(None, *QUEUES), "value": None}

    def lane(self) -> Call:
        verb = self.of("weigh", "pause", "unpause", "unpause")
        arguments = [self.of(*QUEUES), self.of(*LANES)] + ([self.of(1, 3)] if verb == "weigh" else [])
        return {"do": "lane", "call": verb, "args": arguments}

    def limit(self) -> Call:
        return {"do": "limit", "key": self.of(*LIMITS), "running": self.of(None, 0, 1, 2, 5),
                "rate": self.of(None, None, "2/40s", "5/m")}  # fmt: skip

    def unlimit(self) -> Call:
        return {"do": "unlimit", "key": self.of(*LIMITS), "half": self.of(None, None, "running", "rate")}

    def recur(self) -> Call:
        jid = self.of(*RECURRENCES)
        rhythm = {"cron": "*/2 * * * *"} if jid == "cron" else {"every": self.of(5, 60), "offset": self.of(0, 3)}
        options = {name: value for name, value in self.options().items() if name in (
            "priority", "retries", "tags", "lane", "limit", "unique", "expires", "trace")}  # fmt: skip
        return {"do": "recur", "queue": self.of(*QUEUES), "jid": jid, "data": self.data(),
                "options": {"missed": self.of("all", "once", "skip"), **rhythm, **options}}  # fmt: skip

    def update_recurring(self) -> Call:
        every = {"queue": self.of(*QUEUES), "priority": 4, "tags": self.some(TAGS, 0), "data": self.data()}
        changes = {name: every[name] for name in self.some(every)}
        return {"do": "update_recurring", "jid": self.of(*RECURRENCES), "changes": changes}

    def unrecur(self) -> Call:
        return {"do": "write", "call": "unrecur", "args": [self.of(*RECURRENCES)]}

    def tag_recurring(self) -> Call:
        verb = self.of("tag_recurring", "untag_recurring")
        return {"do": "write", "call": verb, "args": [self.of(*RECURRENCES), self.some(TAGS)]}

    def push(self) -> Call:
        """Push an entry as another program does; some are broken."""
        entry: Call = {"klass": self.of(*KLASSES), "data": self.of(1, "x", [])} | self.options()
        if self.chance(0.6):
            entry["jid"] = self.jid()
        if self.chance(0.15):
            entry[self.of("colour", "priority", "klass")] = self.of("red", None)
        return {"do": "push", "queue": self.of(*QUEUES), "entry": entry, "cut": self.chance(0.05)}

    def cancel_equal(self) -> Call:
        return {"do": "cancel_equal", "queue": self.of(*QUEUES), "data": self.data()}

    def delete(self) -> Call:
        return {"do": "delete", "queue": self.of(*QUEUES), "lane": self.of(None, *LANES),
                "running": self.of("finish", "stop")}  # fmt: skip

    def each(self) -> Call:
        """Change the jobs of a choice, as bulk commands do."""
        choice: Call = self.of({"queue": self.of(*QUEUES)}, {"tag": self.of(*TAGS)}, {"group": self.of(*GROUPS)})
        verb = self.of("cancel", "fail", "move", "set_priority", "find")
        more = {"fail": ["g", "in bulk"], "move": [self.of(*QUEUES)], "set_priority": [self.of(-1, 3)]}.get(verb, [])
        return {"do": "each", "choice": choice, "call": verb, "args": more}

    def check(self) -> Call:
        return {"do": "check", "repair": self.chance(0.3)}

    def query(self) -> Call:
        """Read one thing that a look at the whole state does not, or in another slice."""
        queue, jid = self.of(*QUEUES), self.jid()
        call, *args = self.of(
            ("listed", self.of("waiting", "running"), queue, 1, 2),
            ("peek", queue, self.of(1, 9)), ("tagged", self.of(*TAGS), 1, 1), ("cancelled", jid), ("row", jid),
            ("piece", self.of("data", "failure", "result", "saved"), jid, self.of(0, 5)), ("wish", self.of(*WORKERS)),
            ("elements", self.of("history", "dependencies", "dependents"), jid), ("requests", self.of(*WORKERS)),
            ("timing", [queue]), ("tracked", 0, 2), ("tags", 1, 1), ("workers", 0, 1), ("names",),
            ("recurring", self.of(*RECURRENCES)), ("failed_jobs", self.of(*GROUPS), 1, 1), ("counts", [queue]),
            ("depths", [queue]), ("jobs", [jid, "gone"]),
        )  # fmt: skip
        return {"do": "query", "call": call, "args": args}

    def leap(self) -> Call:
        """Move the clock far, or back."""
        return {"do": "tick", "seconds": self.of(31, 36, 70, 400, 90_000, -1, -20)}

    def follow_events(self) -> Call:
        return {"do": "follow_events", "wanted": self.chance(0.5)}


WEIGHTS: Final[dict[Callable[[Drawing], Call], float]] = {
    Drawing.plain_traffic: 6, Drawing.put: 10, Drawing.lease: 8, Drawing.settle: 12, Drawing.renew: 4,
    Drawing.resume: 1, Drawing.sweep: 3, Drawing.spawn: 2, Drawing.deregister: 1.2, Drawing.move: 2, Drawing.cancel: 2,
    Drawing.fail: 1.5, Drawing.unfail: 1.5, Drawing.unfail_jobs: 1.5, Drawing.release: 1.5, Drawing.priority: 1.5,
    Drawing.signal: 2,
    Drawing.tag: 2, Drawing.track: 1.5, Drawing.log: 1.5, Drawing.depend: 1, Drawing.undepend: 1, Drawing.forget: 0.5,
    Drawing.wait_for: 1, Drawing.ended: 0.7, Drawing.tell: 0.3, Drawing.read_mail: 0.7, Drawing.serve: 0.4,
    Drawing.ask: 0.4, Drawing.answer: 0.4, Drawing.retire: 0.4, Drawing.desire: 0.2, Drawing.skills: 1.5,
    Drawing.configure: 3, Drawing.unpause: 1.5, Drawing.lane: 1.5, Drawing.limit: 1.5, Drawing.unlimit: 1,
    Drawing.recur: 2.5, Drawing.update_recurring: 0.5, Drawing.unrecur: 0.7, Drawing.tag_recurring: 0.4,
    Drawing.push: 2.5, Drawing.cancel_equal: 0.5, Drawing.delete: 1, Drawing.each: 2.5, Drawing.check: 0.7,
    Drawing.query: 4, Drawing.leap: 2.5, Drawing.follow_events: 1,
}  # fmt: skip
