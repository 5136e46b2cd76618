"""Exchanges of a worker with Redis: it settles, renews, stores and leases in one round trip. Runs in applications.

Owns the worker's identity, and when an exchange is due. One exchange at a time: so what a job reports keeps its order.
After an outage the outcomes whose fate is unknown are sent again under their number, which changes nothing twice, and
the worker resumes with the leases that it knows.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from supervisor import clock
from supervisor.engine.client.answers import pause_s
from supervisor.engine.client.async_calls import AsyncCalls
from supervisor.engine.client.connection import refused_as
from supervisor.engine.commands import command, leasing, mailbox, queue_counts, settling, workers
from supervisor.engine.commands.leasing import GONE, LOST, Grant, Renewal, Renewals
from supervisor.engine.commands.mailbox import OperatorRequest
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.errors import LeaseholdError, OutcomeUnknown
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.outcomes import LATER, Answer, Outcome, needs_memory
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.transport.dialer import ALONE
from supervisor.engine.worker.acknowledging import Acknowledging
from supervisor.engine.worker.exchange import Part, Wanted
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.engine.worker.leaser import Leaser
from supervisor.engine.worker.mail_reader import MailReader
from supervisor.engine.worker.served_queues import ServedQueues
from supervisor.in_process.book import Book, PendingStore, accept, refuse
from supervisor.in_process.jobs import Jobs
from supervisor.in_process.patience import AWAY, Pauses
from supervisor.in_process.skills import Skills
from supervisor.master.model import outcome_rules

#: Outcomes that Redis refuses for want of memory are sent again after this time.
_FULL_S: Final = 1.0
#: The shortest pause after a lease that has found nothing, though a time says that there is something.
_SHORTEST_S: Final = 0.05

log = logging.getLogger("leasehold")


class Exchanges:
    def __init__(
        self,
        calls: AsyncCalls,
        queues: Queues,
        ttl_s: float | None,
        skills: Skills,
        news: asyncio.Event,
        book: Book,
        jobs: Jobs,
        on_idle: Callable[[Sequence[str], float], None],
        on_due: Callable[[Grant], None],
        answer_to: Callable[[OperatorRequest], Any],
    ) -> None:
        """`news` is set when something is to be sent. `on_idle(queues, seconds)` is called when a lease has found less
        than there is room for; `ask` is to follow. `on_due` gets the grants that report recurrences.
        """
        self._calls = calls
        self._skills = skills
        self._news = news
        self._book = book
        self._jobs = jobs
        self._on_idle = on_idle
        self._on_due = on_due
        self._answer_to = answer_to
        self.identity = Identity()
        self.serving = ServedQueues(queues)
        times = self._times = LeaseTimes(ttl_s, self.serving, ALONE)
        self._leaser = Leaser(self.identity, self.serving, times, Acknowledging(0, times))
        self._mail = MailReader(self.serving, self.ask, self._on_hint_of_loss)
        self._unanswered: list[Part] = []  # whose fate is unknown
        self._in_doubt: set[int] = set()  # tokens of leases that are hinted to be lost
        self._replies: list[tuple[OperatorRequest, Any]] = []
        self._renew_at = math.inf
        self._pauses = Pauses()
        self._asked = True
        self._woken = False
        self._is_forgotten = False
        self._trouble = ""  # the last reason why an exchange was not answered
        self.is_leasing = True
        self._is_leaving = False
        self.is_connected = False

    # what others tell

    def ask(self, woken: bool = False) -> None:
        """Lease with the next exchange: there may be jobs. `woken`: a wake-up key has called."""
        self._asked, self._woken = True, self._woken or woken
        self._news.set()

    def on_mail(self, mail: bytes) -> None:
        self._mail.read(mail)
        self._news.set()

    def _on_hint_of_loss(self, token: int | None) -> None:
        if token is None:
            self._renew_at = -math.inf
        else:
            self._in_doubt.add(token)

    def leave(self) -> None:
        """Tell what there is to tell, and have Redis forget the worker, which leases nothing more."""
        self.is_leasing, self._is_leaving = False, True
        self._news.set()

    # the loop

    async def begin(self) -> None:
        """Begin the session. Raises StoreUnavailable or OutcomeUnknown."""
        await self._resume()

    async def serve(self) -> None:
        """Exchange until the worker leaves and has told all."""
        while not self._is_leaving or self._book.has_news:
            await self._until_due()
            if await self._run(self._parts(clock.monotonic())):
                self._pauses = Pauses()
            else:
                await self._recover()
        await self._leave()

    async def _leave(self) -> None:
        if self.serving.names:  # a wake-up may have been taken that nobody has followed
            await self._calls.run(self._leaser.command(Wanted(0, 0, woken=True)))
        await self._calls.run(workers.deregister(self.identity.name, own=True))

    async def _until_due(self) -> None:
        while (due_at := self._due_at()) > clock.monotonic():
            self._news.clear()
            try:
                async with asyncio.timeout(None if due_at == math.inf else due_at - clock.monotonic()):
                    await self._news.wait()
            except TimeoutError:
                return

    def _due_at(self) -> float:
        if self._in_doubt or self._replies or self._skills.are_due or self._is_leaving or self._book.has_news:
            return -math.inf
        if self.serving.looks_due or (self._leases_now and self.serving.names):
            return -math.inf
        return self._renew_at

    @property
    def _leases_now(self) -> bool:
        return self._asked and self.is_leasing and self._jobs.room > 0

    # an exchange

    def _parts(self, now_at: float) -> list[Part]:
        """Return what is due. Renewals go before the outcomes: with a job its last progress is kept."""
        return [
            *self._renewals(now_at), *self._settles(), *self._lookups(now_at), *self._leases(), *self._answers()
        ]  # fmt: skip

    async def _run(self, parts: Sequence[Part]) -> bool:
        """Run an exchange of these parts. Return whether Redis has answered it as a whole."""
        if not parts:
            return True
        self.identity.number += 1
        calls = (self._calls.run(part.command) for part in parts)
        replies = await asyncio.gather(*calls, return_exceptions=True)
        taken = [self._take(part, reply) for part, reply in zip(parts, replies, strict=True)]
        return all(taken) and not self._is_forgotten

    def _take(self, part: Part, reply: Any) -> bool:
        """Return whether Redis has answered a part."""
        if not isinstance(reply, BaseException):
            if part.then is not None:
                part.then(reply)
            return True
        if not isinstance(reply, LeaseholdError):
            raise reply
        code = refused_as(reply)
        if code in part.refused:
            part.refused[code](str(reply))
            return True
        if part.again and isinstance(reply, OutcomeUnknown):
            self._unanswered.append(part)
        elif part.lost is not None:
            part.lost()
        self._trouble = str(reply)
        return False

    # renewals and reports

    def _renewals(self, now_at: float) -> list[Part]:
        told = self._book.take_progress()
        if now_at >= self._renew_at:
            leases = self._book.leases
            self._plan_renewal(now_at)
        else:
            leases = [lease for lease in self._book.leases if lease.token in self._in_doubt]
        self._in_doubt.clear()
        told += [(lease, Renewal(lease.jid, lease.token)) for lease in leases]
        parts = [self._renewal(told[at : at + MOST]) for at in range(0, len(told), MOST)]
        if stores := self._book.take_stores():
            command = self._renew([store.renewal for store in stores])
            again = partial(self._book.store_again, stores)
            parts.append(Part(command, partial(self._on_stored, stores), lost=again))
        return parts

    def _plan_renewal(self, now_at: float) -> None:
        self._renew_at = now_at + self._times.ttl_s / 3

    def _renewal(self, told: Sequence[tuple[LeaseRecord, Renewal]]) -> Part:
        leases = [lease for lease, _ in told]
        return Part(self._renew([renewal for _, renewal in told]), partial(self._on_renewed, leases))

    def _renew(self, renewals: Sequence[Renewal]) -> command.Command[Renewals]:
        return leasing.renew(
            self.identity.name, renewals, number=self.identity.next_number, ttl_s=self._times.own_ttl_s
        )

    def _on_renewed(self, leases: Sequence[LeaseRecord], expires_unix: Sequence[float]) -> None:
        """Stop the jobs whose leases are lost."""
        for lease, expires in zip(leases, expires_unix, strict=True):
            if expires in (LOST, GONE) and self._book.holds(lease.token):
                self._jobs.lose(lease, "cancelled" if expires == GONE else "lease-lost")

    def _on_stored(self, stores: Sequence[PendingStore], expires_unix: Sequence[float]) -> None:
        for store, expires in zip(stores, expires_unix, strict=True):
            if expires in (LOST, GONE):
                refuse(store)
                self._in_doubt.add(store.lease.token)
            else:
                accept(store)

    # outcomes

    def _settles(self) -> list[Part]:
        if not self._book.has_outcomes:
            return []
        outcomes = self._book.take_outcomes()
        command = settling.settle(self.identity.name, outcomes, number=self.identity.next_number)
        put_back = partial(self._book.put_back, outcomes)
        refused = {"OOM": partial(self._on_full, outcomes)}
        return [Part(command, partial(self._on_settled, outcomes), refused, again=True, lost=put_back)]

    def _on_settled(self, outcomes: Sequence[Outcome], answers: Sequence[Answer]) -> None:
        for outcome, answer in zip(outcomes, answers, strict=True):
            lease = outcome.lease
            assert isinstance(lease, LeaseRecord)
            if (instead := outcome if answer == LATER else outcome_rules.of_verdict(lease, answer)) is not None:
                self._book.end(instead)
                continue
            self._book.forget(lease.token)
            self._book.told(outcome, answer)

    def _on_full(self, outcomes: Sequence[Outcome], message: str) -> None:
        """The memory of Redis is full: what needs some is sent again later. When the worker leaves, it goes back."""
        log.warning("%s", message)
        laden = [outcome for outcome in outcomes if needs_memory(outcome.arguments(self.identity.name, 0.0))]
        self._book.put_back([outcome for outcome in outcomes if outcome not in laden])
        asyncio.get_running_loop().call_later(_FULL_S, self._book.put_back, laden)

    # leases

    def _lookups(self, now_at: float) -> list[Part]:
        serving, parts = self.serving, self._skills.parts(self.identity.name, self.serving.names)
        if serving.asks_for_names(self._leases_now, now_at):
            parts.append(Part(queue_counts.names(), self._on_names))
        if serving.asks_for_wish():
            parts.append(Part(mailbox.wish(self.identity.name), self._on_wish))
            parts.append(Part(mailbox.requests(self.identity.name), self._on_requests))
        return parts

    def _on_names(self, names: Sequence[str]) -> None:
        if self.serving.take_names(names) is not None:
            self._skills.tell_again()
            self.ask()

    def _on_wish(self, wish: mailbox.Wish) -> None:
        changed = self.serving.take_wish(wish)
        if changed is not None and changed.problem:
            log.warning("queues that cannot be served were asked for: %s", changed.problem)
        elif changed is not None:
            self._skills.tell_again()
            self.ask()

    def _on_requests(self, requests: Sequence[OperatorRequest]) -> None:
        self._replies += [(request, self._answer_to(request)) for request in self.serving.take_requests(requests)]
        self._news.set()

    def _answers(self) -> list[Part]:
        replies, self._replies = self._replies, []
        return [
            Part(mailbox.answer(self.identity.name, request.id, answer), lost=partial(self._on_unread, request))
            for request, answer in replies
        ]

    def _on_unread(self, request: OperatorRequest) -> None:
        self.serving.forget_request(request)
        self.serving.look_for_wish()

    def _leases(self) -> list[Part]:
        if not self._leases_now or not self.serving.names:
            return []
        count = min(self._jobs.room, MOST)
        command = self._leaser.command(Wanted(count, count, self._woken, self._skills.once))
        self._asked = self._woken = False
        return [Part(command, partial(self._on_granted, count), {"DEREGISTERED": self._on_forgotten}, lost=self.ask)]

    def _on_granted(self, count: int, grant: Grant) -> None:
        leases = self._leaser.granted(grant, clock.boottime()).grant.leases
        if grant.unreadable:
            log.warning("records that cannot be read: %s; see `leasehold check`", ", ".join(grant.unreadable))
        self._book.add(leases)
        if leases:
            ttl_s = min(lease.expires_unix for lease in leases) - grant.now_unix
            self._times.ttl_s = min(self._times.ttl_s, max(ttl_s, 0.0))
            self._renew_at = min(self._renew_at, clock.monotonic() + self._times.ttl_s / 3)
        for lease in leases:
            self._jobs.begin(lease)
        if grant.due:
            self._on_due(grant)
        if len(leases) == count:
            self._asked = True  # there may be more
        else:
            self._on_idle(self.serving.names, max(_SHORTEST_S, pause_s(grant, math.inf, math.inf)))

    def _on_forgotten(self, message: str) -> None:
        self._is_forgotten, self._trouble = True, message

    # outages

    async def _recover(self) -> None:
        """Resume the session, however long it takes."""
        self.is_connected = False
        log.warning("jobs go on, and their ends wait: %s", self._trouble)
        while not self.is_connected:
            await self._pauses.wait()
            with contextlib.suppress(*AWAY):
                await self._resume()
        log.info("the worker is connected to Redis again")

    async def _resume(self) -> None:
        for part in tuple(self._unanswered):
            await self._answer_again(part)
            self._unanswered.remove(part)
        self._times.keep(await self._calls.run(self._times.query()))
        known = self._book.leases
        self.identity.number += 1
        try:
            resumed = await self._calls.run(self._resumption(known))
        except AWAY as error:
            if refused_as(error) != "DEREGISTERED":
                raise
            self._begin_anew(known)
            known = []
            resumed = await self._calls.run(self._resumption(known))
        self._times.spare_peers()
        self._plan_renewal(clock.monotonic())
        self._on_renewed(known, resumed.expires)
        self.serving.look_for_queues()
        self.serving.look_for_wish()
        self._skills.tell_again()
        self._is_forgotten, self.is_connected = False, True
        self.ask()

    async def _answer_again(self, part: Part) -> None:
        """Send what may have been carried out under its old number, by which the answer is the same."""
        try:
            reply = await self._calls.run(part.command)
        except AWAY as error:
            refused = part.refused.get(refused_as(error))
            if refused is None:
                raise
            refused(str(error))
        else:
            assert part.then is not None
            part.then(reply)

    def _resumption(self, known: Sequence[LeaseRecord]) -> command.Command[leasing.ResumeResult]:
        identity = self.identity
        return leasing.resume(
            identity.name, identity.number, [(lease.jid, lease.token) for lease in known],
            highest=identity.highest_token, ttl_s=self._times.own_ttl_s,
        )  # fmt: skip

    def _begin_anew(self, leases: Sequence[LeaseRecord]) -> None:
        """Redis has forgotten the worker, and its jobs are others': go on under another name."""
        for lease in leases:
            self._jobs.lose(lease, "lease-lost")
        self._book.drop_outcomes()
        self.identity.rename()
        self.identity.number += 1
        self.serving.forget_wish()
