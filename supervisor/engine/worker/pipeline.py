"""The connection that answers at once: sends exchanges and gives each reply to its part. Runs in the master.

Owns the exchange under way, of which there is at most one, and how long the server may be silent. Must not block, and
must not send a command twice, except one that the server had no script for.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import hiredis

from supervisor import clock
from supervisor.engine.commands.command import Command, SentBehind
from supervisor.engine.model import scripts
from supervisor.engine.model.keys import Namespace
from supervisor.engine.transport.link import LayoutRefused, Link, LinkLost, ServedElsewhere
from supervisor.engine.worker.acknowledging import Acknowledging
from supervisor.engine.worker.exchange import Confirmation, Part
from supervisor.engine.worker.identity import Identity
from supervisor.engine.worker.lease_times import LeaseTimes
from supervisor.engine.worker.shards_changed import ShardsChanged

#: Takes the reply to one command.
Taker = Callable[[Any], None]
#: A command, and what takes its reply. None: the reply says nothing.
Wire = tuple[Taker | None, tuple[Any, ...]]
#: Is called with the script's name and the error.
Refusal = Callable[[str, str], None]

SILENT: Final = "Redis has not answered in time"
_EXCHANGE: Final = "session.exchange"  # the key of a timer


class Watcher(Protocol):
    """Calls back when a descriptor is ready: the master's inbox."""

    def watch(self, source: Any, callback: Callable[[], None]) -> None: ...
    def forget(self, source: Any) -> None: ...
    def want_write(self, source: Any, wanted: bool) -> None: ...


class DeadlineTimers(Protocol):
    """Calls back when a time has come: the master's timers."""

    def set(self, key: Hashable, at: float, callback: Callable[[float], None]) -> None: ...
    def cancel(self, key: Hashable) -> None: ...


def fill(behind: SentBehind, replies: Sequence[Any]) -> None:
    """Complete the reply to a lease. Raises LinkLost if Redis has refused what it must not refuse behind it."""
    for command, reply in zip(behind.commands, replies, strict=True):
        if isinstance(reply, hiredis.ReplyError) and command[0] not in ("WAIT", "HGETALL"):
            raise LinkLost(f"Redis refused {command[0]} behind a lease: {reply}")
    behind.fill(replies)


class Pipeline:
    def __init__(
        self,
        namespace: Namespace,
        identity: Identity,
        times: LeaseTimes,
        acknowledging: Acknowledging,
        watcher: Watcher,
        timers: DeadlineTimers,
    ) -> None:
        self.keys = namespace.keys  # of each script
        self._identity = identity
        self._times = times
        self._acknowledging = acknowledging
        self._watcher = watcher
        self._timers = timers
        self._link: Link | None = None
        self.parts: Sequence[Part] = ()  # of the exchange under way
        self._awaited: deque[Taker | None] = deque()  # one for each reply to come; None: its reply says nothing
        self._on_refused: Refusal | None = None
        self.sent_at = 0.0  # of the latest exchange (seconds of clock.boottime)

    def open(self, link: Link, on_replies: Callable[[], None], on_refused: Refusal) -> None:
        """`on_replies` is called when `read` has something to read; `on_refused` is as `Session.open` says."""
        self._link, self._on_refused = link, on_refused
        self._watcher.watch(link, on_replies)

    def close(self) -> Sequence[Part]:
        """Close the connection. Return the parts of the exchange under way, which may or may not be carried out."""
        if self._link is not None:
            self._watcher.forget(self._link)
            self._link.close()
        unanswered, self.parts = [*self._acknowledging.lose(), *self.parts], ()
        self._link = None
        self._awaited.clear()
        self._timers.cancel(_EXCHANGE)
        return unanswered

    @property
    def is_leasing(self) -> bool:
        """True while the answer to a lease is to come."""
        return any(part.command.script is scripts.LEASE for part in self.parts)

    @property
    def is_owed(self) -> bool:
        """True while the reply to anything that was sent is to come."""
        return bool(self._awaited)

    def confirmation(self, now_unix: float) -> Confirmation:
        """Return when the exchange that is being answered has renewed leases. `now_unix`: the server's clock then."""
        return self._times.confirmation(self.sent_at, now_unix)

    # sending

    def exchange(self, parts: Sequence[Part]) -> None:
        """Start the next exchange, whose commands carry `Identity.next_number`. Raises LinkLost.

        Without a part it only asks how many replicas have what was carried out before.
        """
        assert not self.parts
        self._identity.number += 1
        wires: list[Wire] = [(partial(self._take, part), part.command.wire(*self.keys)) for part in parts]
        self._wait_for_replicas(wires, self._acknowledging.command_behind(parts))
        self.parts = [*self._acknowledging.take_lacking(), *parts]
        self.sent_at = clock.boottime()
        self._be_patient()
        self._send(wires)

    def send_aside(self, command: Command[Any]) -> None:
        """Send a command that is no part of an exchange and whose reply says nothing. Raises LinkLost."""
        self._send([(partial(self._take, Part(command)), command.wire(*self.keys))])

    def send_plain(self, *command: Any) -> None:
        """Send a Redis command that needs no script and whose reply says nothing. Raises LinkLost."""
        self._send([(None, command)])

    def send_asking(self, take: Taker, *command: Any) -> None:
        """Send a Redis command that needs no script, and have `take` called with its reply. Raises LinkLost."""
        self._send([(take, command)])

    def _wait_for_replicas(self, wires: list[Wire], command: tuple[Any, ...] | None) -> None:
        if command is not None:
            wires.append((self._acknowledging.take, command))

    def _send(self, wires: list[Wire]) -> None:
        assert self._link is not None
        self._awaited.extend([taker for taker, _wire in wires])
        self._link.send([wire for _taker, wire in wires])
        if self._link.wants_write:
            self._watcher.want_write(self._link, True)

    # replies

    def read(self) -> None:
        """Read replies. Once the whole exchange is answered, call what each part has for its reply.

        Raises LinkLost. If Redis refuses what it must accept, nothing is called and all parts stay unanswered: what was
        settled beside that part is then sent again, and is answered as now.
        """
        link = self._link
        assert link is not None
        if self.parts:
            self._be_patient()
        if link.wants_write:
            link.flush()
            self._watcher.want_write(link, link.wants_write)
        for reply in link.receive():
            take = self._awaited.popleft()
            if take is not None:
                take(reply)
        if not self.parts or any(self._awaited):
            return
        counting, lacking = self._acknowledging.sort(self.parts)
        calls = [self._call_of(part) for part in counting]
        self.parts = ()
        self._acknowledging.set_aside(lacking)
        self._timers.cancel(_EXCHANGE)
        for call, value in calls:
            if call is not None:
                call(value)

    def _take(self, part: Part, reply: Any) -> None:
        """Keep the reply to a part, and send what must follow before the exchange is answered."""
        part.reply = reply
        if isinstance(reply, hiredis.ReplyError):
            if str(reply).startswith("NOSCRIPT"):
                self._send_with_script(part)
        elif part.command.left_out is not None:
            self._read_behind(part.command.left_out(self.keys[0], reply))

    def _read_behind(self, behind: SentBehind) -> None:
        replies: list[Any] = []

        def take(reply: Any) -> None:
            replies.append(reply)
            if len(replies) == len(behind.commands):
                fill(behind, replies)

        if behind.commands:
            self._send([(take, command) for command in behind.commands])

    def _send_with_script(self, part: Part) -> None:
        """The server has lost its scripts (restart, failover, SCRIPT FLUSH) and has not carried out the command."""
        load = ("SCRIPT", "LOAD", part.command.script.text)
        self._send_again(part, [(None, load), (partial(self._take_again, part), part.command.wire(*self.keys))])

    def _take_again(self, part: Part, reply: Any) -> None:
        """Take the reply to a part whose script was loaded. A proxy may have refused to load it."""
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
            self._send_again(part, [(partial(self._take, part), part.command.wire_with_script(*self.keys))])
        else:
            self._take(part, reply)

    def _send_again(self, part: Part, wires: list[Wire]) -> None:
        self._wait_for_replicas(wires, self._acknowledging.command_behind_repeated(part))
        self._send(wires)

    def _call_of(self, part: Part) -> tuple[Callable[[Any], None] | None, Any]:
        """Return what is to be called for the part's reply, and with what."""
        if not isinstance(part.reply, hiredis.ReplyError):
            return part.then, part.command.parse(part.reply)
        name, message = part.command.script.name, str(part.reply)
        for beginning, refused in part.refused.items():
            if message.startswith(beginning):
                return refused, message
        LayoutRefused.check(part.reply)
        ServedElsewhere.check(part.reply)
        ShardsChanged.check(part.reply)
        if part.must:
            raise LinkLost(f"Redis refused {name}: {message}")
        assert self._on_refused is not None
        return partial(self._on_refused, name), message

    # silence

    def _be_patient(self) -> None:
        """The deadline is on silence, because a large payload may be under way for long."""
        silence_s = self._times.silence_s + self._acknowledging.longest_wait_s
        self._timers.set(_EXCHANGE, clock.monotonic() + silence_s, self._on_silence)

    def _on_silence(self, _now_at: float) -> None:
        """Raise LinkLost, unless the reply lies in the socket, because the master was late and not the server."""
        if not self.is_readable:
            raise LinkLost(SILENT)
        self._be_patient()

    @property
    def is_readable(self) -> bool:
        """True if something has come that is unread."""
        return self._link is not None and self._link.is_readable
