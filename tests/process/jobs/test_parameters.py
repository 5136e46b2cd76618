"""Jobs of handlers with parameters: what reaches the handler, and what wrong data becomes."""

import json
import random
import sys

import pytest
import redis

from supervisor import Client
from tests.lengths import FULL
from tests.process.apps import start_app

SHOP = """
import dataclasses
from datetime import datetime

@dataclasses.dataclass
class Receipt:
    user: int
    at: datetime

@handler
def welcome(job, user: int, template: str = "plain", tags: list[str] = []) -> Receipt:
    count("calls")
    return Receipt(user, datetime.fromtimestamp(0))

@handler
async def later(job, *, user: int) -> int:
    return user + 1

@handler(retry_on=ConnectionError, backoff=0)
def picky(job, kind: str):
    count(f"picky-{kind}")
    raise {"io": ConnectionError, "key": KeyError}[kind](kind)

@handler
def rest(job, /, **others: int) -> dict[str, int]:
    return others

@handler
def follow(job, user: int):
    job.put(welcome.with_options(queue="default").job(user=user + 1))
"""


def calls(stage):
    path = stage.directory / "calls"
    return path.stat().st_size if path.exists() else 0


def finish(stage, pool):
    assert pool.drain() == 0
    stage.assert_nothing_left()


@pytest.mark.parametrize("jobs_per_child", [1, 0])
def test_data_reaches_the_parameters_and_results_are_dumped_by_type(stage, jobs_per_child):
    pool = start_app(stage, SHOP, processes=1, jobs_per_child=jobs_per_child)
    one = stage.queue.put("welcome", {"user": "7"})
    two = stage.queue.put("later", {"user": 1})
    three = stage.queue.put("follow", {"user": 1})
    stage.wait_until_ended([one, two, three])
    stage.wait_until(lambda: calls(stage) == 2, "the follower's run")
    assert stage.client.job(one).result == {"user": 7, "at": "1970-01-01T00:00:00"}
    assert stage.client.job(two).result == 2
    finish(stage, pool)


def test_keys_without_a_parameter_reach_others_as_annotated(stage):
    pool = start_app(stage, SHOP, processes=1)
    good, bad = stage.queue.put("rest", {"a": 1, "job": "2"}), stage.queue.put("rest", {"a": "zz"})
    stage.wait_until_ended([good, bad])
    assert stage.client.job(good).result == {"a": 1, "job": 2}
    assert stage.client.job(bad).failure["message"].startswith("a: Input should be a valid integer")
    finish(stage, pool)


def test_wrong_data_is_broken_at_once_and_right_data_mends_it(stage):
    pool = start_app(stage, SHOP, processes=1)
    wrong = {
        stage.queue.put("welcome", {"user": "seven", "tags": ["a", 1]}): ["user: ", "tags[1]: "],
        stage.queue.put("welcome", {"usr": 7}): ["user: is missing", "usr: is no parameter"],
        stage.queue.put("welcome", b"\x00"): ["is bytes"],
        stage.queue.put("later", [7]): ["must be an object with the keys user"],
    }
    stage.wait_until_ended(wrong)
    for jid, problems in wrong.items():
        job = stage.client.job(jid)
        assert (job.state, job.failure["group"], job.failures) == ("failed", "broken", 0)
        assert [problem in job.failure["message"] for problem in problems] == [True] * len(problems), job.failure
    assert calls(stage) == 0
    assert stage.client.unfail("broken", data={"user": 7}) == len(wrong)
    stage.wait_until(lambda: set(stage.states(wrong)) == {"complete"}, "the end of all")
    finish(stage, pool)


def test_retry_on_decides_which_exceptions_are_retried(stage):
    pool = start_app(stage, SHOP, processes=1)
    io, key = (stage.queue.put("picky", {"kind": kind}, retries=1) for kind in ("io", "key"))
    stage.wait_until_ended([key])
    assert stage.client.job(key).failure["group"] == "KeyError"
    stage.wait_until_ended([io])
    assert (stage.client.job(key).failures, stage.client.job(io).failures) == (0, 2)
    finish(stage, pool)


BAD = """
import pydantic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app import Address

class Session: ...

class Order(pydantic.BaseModel):
    to: "Address"

@handler
def bad(job, it: {annotation}): ...
"""


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        ("Session", "no data can be checked against the annotation of 'it' (<class 'app.Session'>)"),
        ("Order", "(<class 'app.Order'>): name 'Address' is not defined; import it outside of `if TYPE_CHECKING`"),
        ("'exit()'", "the annotation of 'it' cannot be resolved: SystemExit"),
    ],
)
def test_annotation_without_a_meaning_stops_the_boot_in_one_sentence(stage, annotation, said):
    pool = start_app(stage, SHOP + BAD.format(annotation=annotation), processes=1)
    assert pool.wait() == 71
    (failed,) = pool.find("zygote.failed")
    assert failed["message"].startswith("handler 'bad': ")
    assert said in failed["message"]
    assert "traceback" not in failed or not failed["traceback"]


def test_without_pydantic_only_names_are_checked(stage):
    hidden = stage.directory / "hidden"
    hidden.mkdir()
    (hidden / "pydantic.py").write_text("raise ModuleNotFoundError('no', name='pydantic')\n")
    path = ":".join([str(hidden), *filter(None, sys.path)])
    pool = start_app(stage, SHOP, processes=1, environment={"PYTHONPATH": path})
    good, bad = stage.queue.put("welcome", {"user": "x"}), stage.queue.put("welcome", {"usr": 1})
    stage.wait_until_ended([good, bad])
    assert stage.client.job(good).state == "complete"
    assert "usr: is no parameter" in stage.client.job(bad).failure["message"]
    finish(stage, pool)


#: Values that fit no parameter of their kind.
NO_INTEGERS = ("seven", None, [], {}, 1.5, [1], {"user": 7}, "", "7.5", "1e3", 1e300)
NO_TAGS = ("tag", 7, [7], {"a": "b"}, None, [["x"]], [None], True)
NO_LINES = ("x", 7, None, {}, [7], [None], [{}], [{"sku": "a"}], [{"sku": "a", "count": 1, "more": 1}])
NESTED = """
import pydantic

class Line(pydantic.BaseModel, extra="forbid"):
    sku: str
    count: int

@handler
def order(job, lines: list[Line], to: dict[str, Line | None] = {}):
    count("calls")

@handler
def passes(job, klass: str, payload: object):
    job.put("default", klass, payload, jid=f"{job.jid}-put")
"""


def wrong_payload(draw):
    """Return a klass, data that its handler cannot take, and the field that is wrong."""
    line = {"sku": "a", "count": 1}
    match draw.randrange(9):
        case 0:
            return "welcome", {"user": draw.choice(NO_INTEGERS)}, "user"
        case 1:
            return "welcome", {"user": 1, "tags": draw.choice(NO_TAGS)}, "tags"
        case 2:
            return "welcome", {"user": 1, f"x{draw.randrange(100)}": 1}, "x"
        case 3:
            return "welcome", {"template": "t"}, "user"
        case 4:
            return "welcome", draw.choice([[], [1], "user", 7, True, 0.5]), "user"
        case 5:
            return "welcome", {"user": 1, "template": draw.choice([7, None, [], {}])}, "template"
        case 6:
            return "order", {"lines": draw.choice(NO_LINES)}, "lines"
        case 7:
            return "order", {"lines": [line] * draw.randrange(4), "to": {"x": draw.choice([7, "x", {}])}}, "to.x"
        case _:
            return "order", {"lines": [line, {**line, "count": draw.choice(NO_INTEGERS)}]}, "lines[1].count"


class Entrances:
    """Puts payloads in each way that there is."""

    def __init__(self, stage):
        self._stage = stage
        self._pushes = redis.Redis.from_url(stage.server.url)
        self._number = 0

    def enter(self, draw, payloads):
        """Return the jids, in the order of the payloads, a batch of put_many the first of them."""
        several = draw.randrange(len(payloads))
        jobs = [{"klass": klass, "data": data} for klass, data in payloads[:several]]
        ways = (self._put, self._add, self._push, self._recur, self._put_by_a_handler)
        jids = self._stage.queue.put_many(jobs)
        return [*jids, *(draw.choice(ways)(klass, data, self._jid()) for klass, data in payloads[several:])]

    def close(self):
        self._pushes.close()
        while recurring := self._stage.queue.jobs("recurring", 0, 1000):
            for each in recurring:
                self._stage.client.unrecur(each.jid)

    def _jid(self):
        self._number += 1
        return f"job-{self._number}"

    def _put(self, klass, data, jid):
        return self._stage.queue.put(klass, data, jid=jid)

    def _add(self, klass, data, jid):
        assert self._stage.queue.add(klass, data, jid=jid)
        return jid

    def _push(self, klass, data, jid):
        entry = json.dumps({"klass": klass, "data": data, "jid": jid})
        self._pushes.lpush(f"{{{self._stage.namespace}}}:in:default", entry)
        return jid

    def _recur(self, klass, data, jid):
        self._stage.queue.recur(klass, data, every=3600, jid=jid)
        return f"{jid}-1"

    def _put_by_a_handler(self, klass, data, jid):
        return self._stage.queue.put("passes", {"klass": klass, "payload": data}, jid=jid) + "-put"


def test_no_wrong_payload_of_any_entrance_reaches_a_handler(stage):
    """Fuzz. TEST_FULL=1: 100,000 payloads."""
    count = 100_000 if FULL else 1_000
    draw = random.Random(5)
    pool = start_app(stage, SHOP + NESTED, processes=2, jobs_per_child=0)
    stage.config(**{"failed-history-count": count})
    entrances, fields = Entrances(stage), {}
    while len(fields) < count:
        drawn = [wrong_payload(draw) for _ in range(20)]
        jids = entrances.enter(draw, [(klass, data) for klass, data, _field in drawn])
        fields |= zip(jids, (field for _klass, _data, field in drawn), strict=True)
    stage.wait_until(
        lambda: sum(stage.client.failed().values()) == len(fields), "the end of all", 60 + len(fields) / 100
    )
    assert calls(stage) == 0
    assert stage.client.failed() == {"broken": len(fields)}
    for start in range(0, len(fields), 1000):
        _total, jobs = stage.client.failed("broken", start, 1000)
        for job in jobs:
            assert job.failures == 0
            assert fields.pop(job.jid) in job.failure["message"]
    assert fields == {}
    entrances.close()
    finish(stage, pool)


def test_typed_put_of_a_producer_is_run_by_a_pool(stage, monkeypatch):
    pool = start_app(stage, SHOP.replace("@handler\ndef welcome", "@handler(queue='mail')\ndef welcome"), queue="mail")
    monkeypatch.chdir(stage.directory)
    monkeypatch.syspath_prepend(str(stage.directory))
    monkeypatch.setenv("LEASEHOLD_HANDLERS", "app")
    app = __import__("app")
    try:
        with Client(stage.server.url, stage.namespace) as client:
            jid = app.welcome.with_options(client=client).put(user=7)
            stage.wait_until_ended([jid])
            assert client.job(jid).result["user"] == 7
    finally:
        del sys.modules["app"]
    finish(stage, pool)
