"""An example application, as type checkers see it: a shop that welcomes, charges, ships and reports."""

import asyncio
import enum
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, TypedDict
from uuid import UUID

from pydantic import BaseModel, Field

from supervisor import (
    AsyncClient,
    AsyncQueue,
    Client,
    Counts,
    Ending,
    Event,
    Fail,
    Interrupted,
    Job,
    JobContext,
    JobFailed,
    JobToPut,
    Put,
    PutOptions,
    Queue,
    RecurringJob,
    Retry,
    SoftTimeout,
    Stats,
    WorkerInfo,
    after_fork,
    around_job,
    handler,
    on_exit,
)
from supervisor.testing import Leasehold, Run, every_crash_point

# Types of the jobs' data.


class Template(enum.Enum):
    PLAIN = "plain"
    RICH = "rich"


@dataclass(frozen=True)
class Address:
    street: str
    city: str


class Line(TypedDict):
    article: str
    count: int


class Order(BaseModel):
    number: Annotated[int, Field(gt=0)]
    customer: UUID
    address: Address
    lines: list[Line]
    total: Decimal
    ordered: datetime


@dataclass(frozen=True)
class Receipt:
    order: int
    paid: Decimal


class Bank:
    """Stands for a bank, which takes each key once."""

    def __init__(self) -> None:
        self.payments: dict[str, Decimal] = {}

    def pay(self, key: str, amount: Decimal) -> Decimal:
        return self.payments.setdefault(key, amount)


bank = Bank()


# Handlers.


@handler(queue="mail", timeout="30s", retry_on=(ConnectionError,), tags=["new"])
def welcome(job: JobContext, user: int, template: Template = Template.PLAIN) -> str:
    if job.attempt > 3:
        raise Fail("no-mailbox", f"user {user} has none")
    return f"welcome, {user}: {template.value}"


@handler(retries=5, backoff=["1s", "10s", timedelta(minutes=1)], fail_on=ValueError)
def charge(job: JobContext, order: Order, card: str) -> Receipt:
    paid = bank.pay(job.jid, order.total)
    job.checkpoint({"paid": str(paid)})
    job.put(ship.job(order=order.number, address=order.address))
    job.put("default", "mail.receipt", {"order": order.number}, delay="1h", priority=-1)
    return Receipt(order.number, paid)


@handler(queue="warehouse", limit=("forklift", "gate"), lane="standard", expires="24h", unique=True)
def ship(job: JobContext, order: int, address: Address, carrier: Literal["post", "bike"] = "post") -> None:
    for percent in range(0, 100, 10):
        job.progress(percent / 100, f"to {address.city} by {carrier}")
        if job.should_stop:
            raise Interrupted("drain")
    if not address.street:
        raise Retry(delay=timedelta(hours=1), message="the address is not complete")


@handler(cron="0 6 * * 1-5", tz="Europe/Berlin")
def report(job: JobContext, days: int = 1) -> dict[str, int]:
    if job.batch is not None:
        job.batch.put("default", "mail.report", {"days": days}, delay="1h")
    return {"days": days, "attempt": job.attempt, "parents": len(job.results.values())}


@handler(every="10m", at_most_once=True, on_death="fail")
def probe(job: JobContext) -> None:
    Path(job.workdir, "probe").touch()


@handler(memory="256M", sandbox="strict")
async def translate(job: JobContext, text: str, *, languages: Sequence[str]) -> dict[str, str]:
    try:
        await asyncio.sleep(0)
    except SoftTimeout:
        return {}
    return dict.fromkeys(languages, text)


@handler
def count_words(job: JobContext) -> int:
    return len(job.raw.split())


@after_fork
def open_connection() -> None:
    bank.payments.clear()


@on_exit
def close_connection() -> None:
    bank.payments.clear()


@around_job
def timed(job: JobContext) -> Generator[None, Ending, None]:
    ending = yield
    if ending.trouble is not None:
        bank.payments.pop(f"{job.klass} {ending.trouble.message}", None)


# Producers.


def register(user: int) -> str:
    return welcome.put(user=user, template=Template.RICH)


def register_later(user: int, client: Client) -> str:
    later = welcome.with_options(delay="10s", queue="bulk", priority=1, client=client)
    return later.put(user)


async def register_soon(user: int) -> str:
    return await welcome.aput(user=user)


def order_of(number: int, customer: UUID) -> Order:
    address = Address("Main Street 1", "Springfield")
    lines: list[Line] = [{"article": "pen", "count": 2}]
    return Order(
        number=number,
        customer=customer,
        address=address,
        lines=lines,
        total=Decimal("9.99"),
        ordered=datetime(2026, 1, 1, tzinfo=UTC),
    )


def buy(client: Client, orders: Iterable[Order]) -> list[str]:
    queue: Queue = client.queue("default")
    jobs: list[JobToPut] = [charge.job(order=order, card="4711") for order in orders]
    return queue.put_many(jobs)


def buy_in_order(client: Client, first: Order, second: Order) -> tuple[str, str]:
    before = charge.put(order=first, card="4711")
    options: PutOptions = {"depends": [before], "on_parent_failure": "fail", "retries": 2}
    after = client.queue("default").put("shop.charge", second.model_dump(mode="json"), **options)
    return before, after


def stamp(put: Put) -> Generator[None, None, None]:
    for job in put.jobs:
        job["tags"] = ["by-the-shop"]
    yield


# Operators.


def look(client: Client) -> str:
    queue = client.queue("default")
    counts: Counts = queue.counts()
    stats: Stats = queue.stats(datetime.now(UTC).date())
    workers: list[WorkerInfo] = client.workers()
    living = [worker.name for worker in workers if worker.lives]
    return f"{counts.waiting} wait, {stats.wait.mean:.1f} s, {len(living)} work"


def mend(client: Client) -> int:
    groups: dict[str, int] = client.failed()
    return sum(client.unfail(group, count=100) for group in groups)


def state_of(client: Client, jid: str) -> str:
    job: Job | None = client.job(jid)
    if job is None:
        return "gone"
    if job.progress is not None:
        return f"{job.progress.fraction:.0%} {job.progress.text}"
    return job.state


def paid(client: Client, jid: str) -> bool:
    try:
        client.wait(jid, timeout="30s")
    except (JobFailed, TimeoutError):
        return False
    return True


def follow(client: Client, most: int) -> list[str]:
    said: list[str] = []
    with client.events(queue="default") as events:
        for event in events:
            told: Event = event
            said.append(f"{told.name} {told.klass}")
            if len(said) == most:
                break
    return said


def recur(client: Client) -> float:
    jid = client.queue("default").recur("shop.report", {"days": 7}, cron="0 7 * * 1", missed="once")
    recurring: RecurringJob | None = client.recurring(jid)
    return recurring.next_unix if recurring else 0.0


async def drain_into(client: AsyncClient, name: str) -> int:
    queue: AsyncQueue = client.queue(name)
    done = 0
    for lease in await queue.lease("by-hand", 10, block=timedelta(seconds=1)):
        done += await lease.complete({"by": "hand"})
    return done


# Tests.


def test_customer_is_welcomed(leasehold: Leasehold) -> None:
    welcome.put(user=7)
    [run] = leasehold.run()
    assert run.check() == "welcome, 7: plain"
    leasehold.assert_put(welcome, times=1, user=7)


def test_report_is_for_a_day(leasehold: Leasehold) -> None:
    result: dict[str, int] = report(leasehold.context(report), days=2)
    assert result["days"] == 2


@every_crash_point
def test_customer_pays_once(leasehold: Leasehold) -> list[Decimal]:
    bank.payments.clear()
    charge.put(order=order_of(7, UUID(int=7)), card="4711")
    runs: list[Run] = leasehold.run()
    assert runs[-1].outcome == "completed"
    return list(bank.payments.values())
