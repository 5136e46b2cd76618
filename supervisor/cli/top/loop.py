"""The loop of `leasehold top`: keys, signals, snapshots and time come in, a screen goes out. Runs in the command's
process.

Must not wait for Redis: polls and requests have their own threads.
"""

import contextlib
import os
import queue
import select
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from supervisor import clock
from supervisor.cli.top.controller import Action, Controller
from supervisor.cli.top.keys import Keys
from supervisor.cli.top.model import Model, NoSnapshot, Snapshot, Tone
from supervisor.cli.top.polling import Poller, PollingThread
from supervisor.cli.top.requests import Result, carry_out
from supervisor.cli.top.terminal import Terminal, TerminalGone
from supervisor.cli.top.view import Context, View

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client

_SIGNALS: Final = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH,
)  # fmt: skip
#: Written to the signals' pipe, where it cannot be a signal's number.
_NEWS: Final = b"\0"
#: The screen shows a clock.
_TICK_S: Final = 1.0
#: An escape without more bytes after this time is the Escape key.
_ESCAPE_S: Final = 0.05
#: Most requests under way: a hanging supervisor must not cause threads without end.
_MOST_REQUESTS: Final = 8


@dataclass(frozen=True, slots=True)
class Finished:
    """A request and its outcome."""

    request: Action
    said: Result


class Loop:
    def __init__(
        self, client: "Client", model: Model, poller: Poller, context: Mapping[str, str], every_s: float
    ) -> None:
        """`context`: namespace and URL, which are shown."""
        self._client = client
        self._model = model
        self._poller = poller
        self._context = context
        self._every_s = every_s
        self._keys = Keys()
        self._news: queue.SimpleQueue[Snapshot | NoSnapshot | Finished | Exception] = queue.SimpleQueue()
        self._under_way: dict[tuple[str, str], Action | None] = {}  # by _kind: the request that waits for it
        self._ended_by: int | None = None
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self, controller: Controller, view: View) -> int | None:
        """Run until the user quits. Return the signal that ended the loop, if one did."""
        polling = PollingThread(self._poller, self._every_s, self._tell)
        try:
            with self._signals(), Terminal() as terminal:
                polling.start()
                while not controller.over:
                    polling.frozen = controller.frozen
                    self._draw(terminal, view)
                    self._wait(terminal, controller)
        except TerminalGone:
            self._ended_by = signal.SIGHUP  # the signal itself may not have come yet
        finally:
            polling.stop()
        return self._ended_by

    def close(self) -> None:
        """Close the pipe. A thread that still polls can no longer report."""
        wake, self._wake = self._wake, -1
        os.close(wake)
        os.close(self._woken)

    # what comes

    def _tell(self, news: Snapshot | NoSnapshot | Finished | Exception) -> None:
        """Pass news from any thread to the loop."""
        self._news.put(news)
        with contextlib.suppress(OSError):  # full: the loop is awake already; closed: it has ended
            os.write(self._wake, _NEWS)

    def _wait(self, terminal: Terminal, controller: Controller) -> None:
        """Wait for a key, a signal or news, at most to the next second of the clock on the screen."""
        wait_s = _ESCAPE_S if self._keys.waiting else _TICK_S - clock.unix() % _TICK_S
        ready, _, _ = select.select([terminal.fd, self._woken], [], [], wait_s)
        if self._woken in ready:
            for number in os.read(self._woken, 4096):
                if number:
                    self._on_signal(number, terminal, controller)
            self._on_news(controller)
        if terminal.fd in ready:
            self._press(self._keys.feed(terminal.read()), controller)
        elif self._keys.waiting and not ready:
            self._press(self._keys.flush(), controller)

    def _on_news(self, controller: Controller) -> None:
        while True:
            try:
                news = self._news.get_nowait()
            except queue.Empty:
                return
            match news:
                case Snapshot():
                    if not controller.frozen:
                        self._model.take(news)
                        controller.on_snapshot()
                case Finished(request, Result(text, tone, page)):
                    controller.say(text, tone)
                    controller.page = page or controller.page
                    following = self._under_way.pop(_kind(request))
                    if following is not None:
                        self._start(following, controller)
                case NoSnapshot():
                    self._model.poll_failed(clock.monotonic(), news)
                case _:
                    raise news

    def _press(self, keys: list[str], controller: Controller) -> None:
        for key in keys:
            controller.say("")
            request = controller.press(key)
            if request is not None:
                self._start(request, controller)
            if controller.confirmation is not None:
                return  # keys typed before the confirmation was shown, or pasted, are no answer

    def _start(self, request: Action, controller: Controller) -> None:
        """Start the request, one of a kind at a time because order matters. Only the last waiting one is kept."""
        kind = _kind(request)
        if kind in self._under_way:
            self._under_way[kind] = request
            return
        if len(self._under_way) >= _MOST_REQUESTS:
            controller.say("wait: what was asked for has not been answered yet", Tone.NOTICE)
            return
        self._under_way[kind] = None
        controller.say(f"{request.what} {request.whom} …")
        threading.Thread(target=self._carry_out, args=(request,), name="request", daemon=True).start()

    def _carry_out(self, request: Action) -> None:
        try:
            self._tell(Finished(request, carry_out(self._client, request)))
        except Exception as error:  # noqa: BLE001 -- the thread's boundary: the loop raises it
            self._tell(error)

    # signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Write signals as numbers into the pipe during the block."""
        before = {number: signal.signal(number, _noted) for number in _SIGNALS}
        wakeup = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, terminal: Terminal, controller: Controller) -> None:
        match number:
            case signal.SIGINT:
                controller.over = True
            case signal.SIGTERM | signal.SIGHUP:
                controller.over, self._ended_by = True, number
            case signal.SIGTSTP:
                terminal.give_back()
                signal.signal(signal.SIGTSTP, signal.SIG_DFL)
                signal.raise_signal(signal.SIGTSTP)  # returns at SIGCONT
                signal.signal(signal.SIGTSTP, _noted)
                terminal.take()
            case signal.SIGCONT:
                terminal.take()  # another program may have changed the terminal

    # the picture

    def _draw(self, terminal: Terminal, view: View) -> None:
        width, height = terminal.size
        context = Context(
            self._context["namespace"], self._context["url"], clock.time_of_day(), clock.monotonic(), self._every_s
        )
        screen = view.screen(context, width, height)
        if screen.queues:
            self._poller.queues = screen.queues
        terminal.draw(screen.lines, width)


def _kind(request: Action) -> tuple[str, str]:
    """Return the kind of a request. Requests about the same property of the same object share it."""
    starts = {"resume": "pause", "unpause queue": "pause queue", "resume batch": "pause batch"}
    return request.whom, starts.get(request.what, request.what)


def _noted(_number: int, _frame: Any) -> None:
    """Do nothing: the wake-up descriptor has the number already."""
