"""A worker without jobs: the session of a master, driven by the test or by a thread of its own."""

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from supervisor.engine.commands import mailbox, queue_counts
from supervisor.engine.commands.leasing import Grant
from supervisor.engine.commands.mailbox import OperatorRequest
from supervisor.engine.model.jobs import LeaseRecord
from supervisor.engine.model.keys import Namespace
from supervisor.engine.model.queue_order import Queues
from supervisor.engine.transport.dialer import Dialer
from supervisor.engine.transport.link import LinkLost
from supervisor.engine.worker.exchange import Part, Wanted
from supervisor.engine.worker.session import Session
from supervisor.master.timers import Timers
from tests.lengths import SOON_S


class Reply(NamedTuple):
    ask: OperatorRequest
    answer: Any


class PlayedWorker:
    """Listens for mail, and answers requests by `answers` if given. `asked`: all its requests in their order."""

    def __init__(self, url: str, namespace: str, answers: Callable[[OperatorRequest], Any] | None = None) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._poll = select.epoll()
        self.timers = Timers()
        self._stop_fd = os.eventfd(0)
        self._answers = answers
        self._replies: list[Reply] = []
        self._lease_due = False
        self.asked: list[OperatorRequest] = []
        self.granted: list[LeaseRecord] = []  # by waits that have ended
        self.exchanges = 0
        named = Namespace(namespace)
        self.session = Session(Dialer(url, named.prefix), named, Queues(["q"], "strict"), None, None, self, self.timers)

    @property
    def name(self) -> str:
        return self.session.worker

    # the inbox that a session needs

    def watch(self, source: Any, callback: Callable[[], None]) -> None:
        self._callbacks[source.fileno()] = callback
        self._poll.register(source, select.EPOLLIN)

    def forget(self, source: Any) -> None:
        del self._callbacks[source.fileno()]
        self._poll.unregister(source)

    def want_write(self, source: Any, wanted: bool) -> None:
        self._poll.modify(source, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    # driven by the test

    def start(self) -> "PlayedWorker":
        """Connect, and finish the first exchanges."""
        self.session.open(self._on_connection, self._on_replies, self._on_wakeup, self._on_refused)
        self.turn_until(lambda: self.session.connected and self.session.idle and not self.session.serving.looks_due)
        return self

    def turn_until(self, holds: Callable[[], Any], *, listening: bool = False) -> None:
        """Do what a master's loop does until `holds()` is true. `listening`: wait for mail meanwhile."""
        deadline_at = time.monotonic() + SOON_S
        while not holds():
            assert time.monotonic() < deadline_at, "it has not come about in time"
            self._converse(listening)
            for fd, _ in self._poll.poll(0.1):
                self._callbacks[fd]()

    def listen_until_asked(self, count: int = 1) -> None:
        """Listen until there were `count` requests in all and their answers are sent."""
        self.turn_until(lambda: len(self.asked) >= count and self._is_done, listening=True)

    def wait_for_jobs(self, count: int = 1) -> None:
        """Begin a wait that leases `count` jobs when it ends."""
        self.session.wakeups.wait_for_queues(Wanted(count, count, woken=True))

    def wait_to_end(self) -> None:
        """Turn until the current wait has ended."""
        self.turn_until(lambda: not self.session.wakeups.waiting)

    def wait_for_news(self) -> None:
        """Block until a descriptor is readable. Reads nothing."""
        assert self._poll.poll(SOON_S)

    def lease(self) -> None:
        """Make one lease of no jobs, and the exchanges that follow from it."""
        self._lease_due = True
        self.turn_until(lambda: not self._lease_due and self._is_done)

    def reply(self, *replies: Reply) -> None:
        """Send answers, and turn until Redis has them."""
        self._replies += replies
        self.turn_until(lambda: self._is_done)

    @property
    def _is_done(self) -> bool:
        return self.session.idle and not self._replies and not self.session.serving.looks_due

    def _converse(self, listening: bool) -> None:
        if not self.session.idle:
            return
        if self._replies or self._lease_due or self.session.serving.looks_due:
            wanted = Wanted(0, 0) if self._lease_due else None
            replies, self._replies = self._replies, []
            self.exchange(wanted, replies)
        elif listening and not self.session.wakeups.waiting:
            self.session.wakeups.wait_for_mail()

    def exchange(self, wanted: Wanted | None = None, replies: Sequence[Reply] = ()) -> None:
        """Start an exchange, as a master does."""
        self.exchanges += 1
        session, parts = self.session, [self._part_of(reply) for reply in replies]
        if session.serving.asks_for_names(wanted is not None, time.monotonic()):
            parts.append(Part(queue_counts.names(), session.serving.take_names))
        if session.serving.asks_for_requests():
            parts.append(Part(mailbox.serve_request(self.name), session.serving.take_serve_request))
            parts.append(Part(mailbox.requests(self.name), self._on_asks))
        if wanted is not None:
            parts.append(Part(session.leaser.command(wanted), self._on_granted))
        session.exchange(parts)

    def _part_of(self, reply: Reply) -> Part:
        forget = partial(self.session.serving.forget_request, reply.ask)
        try:
            command = mailbox.answer(self.name, reply.ask.id, reply.answer)
        except (TypeError, ValueError) as error:
            command = mailbox.answer(self.name, reply.ask.id, {"error": str(error)})
        return Part(command, lambda _taken: forget(), lost=forget)

    def _on_refused(self, script: str, message: str) -> None:
        raise AssertionError(f"{script}: {message}")

    def _on_connection(self) -> None:
        self.session.finish_connecting((), lambda _known, _resumed: None, self._on_deregistered)

    def _on_replies(self) -> None:
        self.session.read()
        if self.session.wakeups.has_end:
            self._on_wakeup()

    def _on_wakeup(self) -> None:
        end = self.session.wakeups.read()
        if end is None:
            return
        if end.granted is not None:
            self.granted += end.granted.grant.leases
        if b"ask" in end.mail:
            self.session.serving.look_for_requests()

    def rename(self) -> None:
        """Change the name, as a deregistered master does."""
        self.session.rename(lambda _known, _resumed: None, self._on_deregistered)

    def _on_deregistered(self) -> None:
        raise AssertionError("it was not to be deregistered")

    def _on_asks(self, asks: Sequence[OperatorRequest]) -> None:
        new = self.session.serving.take_requests(asks)
        self.asked += new
        if self._answers is not None:
            self._replies += [Reply(ask, self._answers(ask)) for ask in new]

    def _on_granted(self, grant: Grant) -> None:
        self.session.leaser.granted(grant, self.session.pipeline.sent_at)
        self._lease_due = False

    def lose_the_connection(self, replies: Sequence[Reply] = ()) -> None:
        """Lose the connection right after sending these answers, and reconnect."""
        self.session.pipeline._link._socket.shutdown(2)
        with contextlib.suppress(LinkLost):
            self.exchange(None, replies)
            self.turn_until(lambda: False)
        self.session.lose()
        self.start()

    def leave(self) -> None:
        """Leave, as a master does after a drain."""
        if self.session.wakeups.waiting:
            self.session.wakeups.end_wait()
            self.wait_to_end()
        self.session.leave()
        self.turn_until(lambda: self.session.has_left)

    def close(self) -> None:
        self.session.close()
        self._poll.close()
        os.close(self._stop_fd)

    # driven by a thread of its own

    @contextlib.contextmanager
    def listening(self) -> Iterator["PlayedWorker"]:
        """Listen in a thread during the block."""
        self.start()
        self._poll.register(self._stop_fd, select.EPOLLIN)
        stopped = threading.Event()
        thread = threading.Thread(target=self._listen, args=(stopped,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stopped.set()
            os.eventfd_write(self._stop_fd, 1)
            thread.join(SOON_S)
            assert not thread.is_alive()

    def _listen(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            self._converse(listening=True)
            for fd, _ in self._poll.poll(SOON_S):
                if fd != self._stop_fd:
                    self._callbacks[fd]()
