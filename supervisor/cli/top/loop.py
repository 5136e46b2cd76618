"""The loop of `leasehold top`: keys, signals, news and time come in, a picture goes out. In the command's process.

Must not wait for Redis: looks and wishes have threads of their own.
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
from supervisor.cli.top.acts import Said, act
from supervisor.cli.top.desk import Desk, Wish
from supervisor.cli.top.keys import Keys
from supervisor.cli.top.looking import Looker, Watch
from supervisor.cli.top.model import Look, Lost, Model, Tone
from supervisor.cli.top.terminal import Terminal, TerminalGone
from supervisor.cli.top.view import Place, View

if TYPE_CHECKING:
    from supervisor.engine.client.sync_client import Client

_SIGNALS: Final = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH,
)  # fmt: skip
#: What says that there is news, in the pipe in which signals say their numbers.
_NEWS: Final = b"\0"
#: The clock is on the screen.
_TICK_S: Final = 1.0
#: After so long an escape is that key, and not the beginning of another.
_ESCAPE_S: Final = 0.05
#: As many wishes may be under way: a supervisor that hangs is no reason for threads without end.
_MOST_WISHES: Final = 8


@dataclass(frozen=True, slots=True)
class Done:
    """What has come of a wish."""

    wish: Wish
    said: Said


class Loop:
    def __init__(
        self, client: "Client", model: Model, looker: Looker, place: Mapping[str, str], every_s: float
    ) -> None:
        """`place`: namespace and url, to be shown."""
        self._client = client
        self._model = model
        self._looker = looker
        self._place = place
        self._every_s = every_s
        self._keys = Keys()
        self._news: queue.SimpleQueue[Look | Lost | Done | Exception] = queue.SimpleQueue()
        self._under_way: dict[tuple[str, str], Wish | None] = {}  # by _kind: and the one that waits for it
        self._ended_by: int | None = None
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self, desk: Desk, view: View) -> int | None:
        """Until somebody quits; answers the signal by which, if it was one."""
        watch = Watch(self._looker, self._every_s, self._tell)
        try:
            with self._signals(), Terminal() as terminal:
                watch.start()
                while not desk.over:
                    watch.frozen = desk.frozen
                    self._draw(terminal, view)
                    self._wait(terminal, desk)
        except TerminalGone:
            self._ended_by = signal.SIGHUP  # which has not come yet
        finally:
            watch.stop()
        return self._ended_by

    def close(self) -> None:
        """The pipe; a thread that still looks has nobody to tell."""
        wake, self._wake = self._wake, -1
        os.close(wake)
        os.close(self._woken)

    # what comes

    def _tell(self, news: Look | Lost | Done | Exception) -> None:
        """From any thread."""
        self._news.put(news)
        with contextlib.suppress(OSError):  # full: it is awake already; closed: it is over
            os.write(self._wake, _NEWS)

    def _wait(self, terminal: Terminal, desk: Desk) -> None:
        """For whatever comes first; the clock on the screen goes on in any case."""
        wait_s = _ESCAPE_S if self._keys.waiting else _TICK_S - clock.unix() % _TICK_S
        ready, _, _ = select.select([terminal.fd, self._woken], [], [], wait_s)
        if self._woken in ready:
            for number in os.read(self._woken, 4096):
                if number:
                    self._on_signal(number, terminal, desk)
            self._on_news(desk)
        if terminal.fd in ready:
            self._press(self._keys.feed(terminal.read()), desk)
        elif self._keys.waiting and not ready:
            self._press(self._keys.flush(), desk)

    def _on_news(self, desk: Desk) -> None:
        while True:
            try:
                news = self._news.get_nowait()
            except queue.Empty:
                return
            match news:
                case Look():
                    if not desk.frozen:
                        self._model.take(news)
                        desk.on_look()
                case Done(wish, Said(text, tone, page)):
                    desk.say(text, tone)
                    desk.page = page or desk.page
                    following = self._under_way.pop(_kind(wish))
                    if following is not None:
                        self._start(following, desk)
                case Lost():
                    self._model.lost(clock.monotonic(), news)
                case _:
                    raise news

    def _press(self, keys: list[str], desk: Desk) -> None:
        for key in keys:
            desk.say("")
            wish = desk.press(key)
            if wish is not None:
                self._start(wish, desk)
            if desk.question is not None:
                return  # what was typed before it was seen, or pasted, is no answer

    def _start(self, wish: Wish, desk: Desk) -> None:
        """One of a kind at a time: two could come in either order. Of those that wait the last is what is wanted."""
        kind = _kind(wish)
        if kind in self._under_way:
            self._under_way[kind] = wish
            return
        if len(self._under_way) >= _MOST_WISHES:
            desk.say("wait: what was asked for has not been answered yet", Tone.NOTICE)
            return
        self._under_way[kind] = None
        desk.say(f"{wish.what} {wish.whom} …")
        threading.Thread(target=self._act, args=(wish,), name="wish", daemon=True).start()

    def _act(self, wish: Wish) -> None:
        try:
            self._tell(Done(wish, act(self._client, wish)))
        except Exception as error:  # noqa: BLE001 -- the thread's boundary: the loop raises it
            self._tell(error)

    # signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """For the block they come as numbers in the pipe."""
        before = {number: signal.signal(number, _noted) for number in _SIGNALS}
        wakeup = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, terminal: Terminal, desk: Desk) -> None:
        match number:
            case signal.SIGINT:
                desk.over = True
            case signal.SIGTERM | signal.SIGHUP:
                desk.over, self._ended_by = True, number
            case signal.SIGTSTP:
                terminal.give_back()
                signal.signal(signal.SIGTSTP, signal.SIG_DFL)
                signal.raise_signal(signal.SIGTSTP)  # it is here until SIGCONT
                signal.signal(signal.SIGTSTP, _noted)
                terminal.take()
            case signal.SIGCONT:
                terminal.take()  # whoever had it meanwhile may have left it otherwise

    # the picture

    def _draw(self, terminal: Terminal, view: View) -> None:
        width, height = terminal.size
        place = Place(
            self._place["namespace"], self._place["url"], clock.time_of_day(), clock.monotonic(), self._every_s
        )
        screen = view.screen(place, width, height)
        if screen.queues:
            self._looker.queues = screen.queues
        terminal.draw(screen.lines, width)


def _kind(wish: Wish) -> tuple[str, str]:
    """Of wishes that are about the same thing of the same."""
    return wish.whom, {"resume": "pause", "unpause queue": "pause queue"}.get(wish.what, wish.what)


def _noted(_number: int, _frame: Any) -> None:
    """The number is in the pipe by now."""
