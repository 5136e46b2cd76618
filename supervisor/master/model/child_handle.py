"""Children as the master sees them: their sockets, and the jobs that they have. Runs in master. Must not settle any."""

import functools
import math
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from supervisor import clock, messages
from supervisor.linux import foreign_files, kernel
from supervisor.linux.kernel import Memfd
from supervisor.master.model import packets
from supervisor.master.model.ledger import HeldLease
from supervisor.master.model.memory import NOTHING, Meter, Usage
from supervisor.master.model.output import Output
from supervisor.master.model.stacks import Stacks
from supervisor.master.model.states import CHILD_MOVES, ChildState, move
from supervisor.messages import Notice, Outcome, Stored, Verb

#: Unread at one child, if its socket has room for them: beyond that a send would have to wait.
MAX_SENT: Final = 128
#: Of that room. Anybody may ask for so much, and has twice that, unless the system's administrator has lowered it.
_SEND_BUFFER_BYTES: Final = 212_992
#: Read of one child at a time: more than its socket holds, and less than would keep the others waiting.
MOST_WORDS: Final = 1024
_AT_ONCE: Final = int(socket.MSG_DONTWAIT)
#: The memfd of a completion that is larger is kept, so that the master need not keep what it has read from it.
_LARGE_BYTES: Final = 2**20
#: When the signal for a notice is sent once more; four times so long the next time, up to the last.
_FIRST_NUDGE_S: Final = 0.01
_LAST_NUDGE_S: Final = 1.0


def charge(packet_bytes: int) -> int:
    """What a packet takes of that room at the most: the kernel adds to it, rounds up to a power of two, adds more."""
    return (1 << (packet_bytes + 511).bit_length()) + 512


class Turn:
    """What has become of a child's first job, for as long as it is that. A new one costs next to nothing."""

    overran = False  # it runs longer than it was expected to: nothing is sent ahead
    warned = False  # it has been told that its time limit is near
    nudge_at = math.inf  # when `Child.nudge` is due
    nudge_s = 0.0  # how long after that once more
    insist_at = math.inf  # when a notice that was to be raised by a checkpoint is raised anywhere
    insisting: Notice | None = None  # which one
    stop_reason: str | None = None  # why its handler was interrupted, or its processes are killed


class ChildHandle:
    """One forked child. `sent` is what it has not answered yet; it runs the first of them."""

    def __init__(
        self,
        number: int,
        zygote: int,
        on_line: Callable[["ChildHandle", int, bytes], None],
        on_planned: Callable[["ChildHandle"], None],
    ) -> None:
        """Opens our ends and the child's (`theirs`), which go to the zygote and are then closed here.

        `on_line(child, token, line)` is told what it prints; token 0: it is the job in its hands. `on_planned(child)`
        is called when something of it is due sooner than before, and when it is closed.
        """
        self._on_planned = on_planned
        self.number = number
        self.zygote = zygote
        self.state = ChildState.SPAWNING
        self.pid = 0
        self.served = 0
        self.sent: deque[HeldLease] = deque()
        self.cpu_s = 0.0  # that it has used until it answered last
        self.memfd: Memfd | None = None  # that a large completion has been read from, until its job is answered
        self.last: HeldLease | None = None  # what it answered last: whose words may come after the answer
        self.sent_s = 0.0  # estimated run time of all that is sent
        self.sent_bytes = 0
        self.at_end = False  # it has closed its end of `talk`
        self.turn = Turn()  # of its first job
        self.asked_at = clock.monotonic()
        self.ended_at: float | None = None  # when the kernel has said so
        self.why_killed: str | None = None
        self.meter = Meter(0)  # of the memory of its tree
        self.look_at = math.inf  # when that is to be looked at again; of its first job
        self.looked_at = 0.0
        self.retire_reason: str | None = None  # why it is to take no more jobs
        self.trust_domain: Hashable = None  # of its first job, where handlers differ in it: it takes no other jobs
        self.stop_at = math.inf  # when the job that it has then is stopped, as it is to take no more
        self.stop_why = ""
        self._stops: dict[str, float] = {}  # when, by each reason that there is
        self.overflow: str | None = None  # the traceback of a MemoryError of which it ends
        self.in_words: str | None = None  # what there is to say of it beside the reason
        self.kill_at: float | None = None  # when it is to be killed
        self._kill_plan: tuple[str, str | None] = ("", None)  # why then, and what there is to say of it
        self._pidfd: int | None = None
        # We keep the child's receiving end of `jobs`: the kernel gives each packet to one reader, so what we take back
        # the child has not seen.
        self._jobs, self._jobs_back = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Nothing may come back on `jobs`: a descriptor there would be closed by us, unread, at the child's end.
        self._jobs.shutdown(socket.SHUT_RD)
        self._jobs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self.room_bytes = self._jobs.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)  # as `charge` counts
        self.talk, talk = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.talk.setblocking(False)
        self.stacks = Stacks()
        try:
            printed, prints = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self.stacks.close()
            raise
        os.set_blocking(printed, False)
        self.output = Output(printed, functools.partial(on_line, self), self._has)
        self._theirs = (talk, prints)

    @property
    def pidfd(self) -> int | None:
        """Readable once it has ended."""
        return self._pidfd

    @property
    def theirs(self) -> tuple[int, int, int, int]:
        """The child's ends of `jobs`, `talk` and its output, and the file for its stacks."""
        talk, prints = self._theirs
        return self._jobs_back.fileno(), talk.fileno(), prints, self.stacks.fd

    def close_theirs(self) -> None:
        talk, prints = self._theirs
        talk.close()
        os.close(prints)

    def become(self, state: ChildState) -> None:
        self.state = move(CHILD_MOVES, self.state, state)

    def spawned(self, pid: int, pidfd: int, inherited: Usage = NOTHING) -> None:
        """`inherited`: the memory of its zygote."""
        self.pid, self._pidfd = pid, pidfd
        self.meter = Meter(pid, inherited)
        if self.state is ChildState.DOOMED:
            self._signal(signal.SIGKILL)

    # its jobs

    @property
    def running(self) -> HeldLease | None:
        """The job that it runs."""
        return self.sent[0] if self.sent else None

    @property
    def printing(self) -> HeldLease | None:
        """The job whose words come without a mark: the one behind the last mark. If there is none, that which has it: a
        thread that it has left may print, or it has forged the mark.
        """
        if not self.sent:
            return self.last
        behind = next((i + 1 for i, held in enumerate(self.sent) if held.lease.token == self.output.ended), 0)
        return self.sent[min(behind, len(self.sent) - 1)]

    def send(self, held: HeldLease) -> None:
        """Send a job. Never blocks: the caller stays within MAX_SENT and `room_bytes`.

        Raises BrokenPipeError where the child has shut down our common end.
        """
        lease = held.lease
        counts = lease.failures, lease.deaths, lease.interruptions
        meta = (
            lease.jid, lease.klass, lease.queue, lease.priority, *counts, lease.tags, lease.lane, lease.persistent,
            lease.waited_s,
        )  # fmt: skip
        saved = lease.raw_saved
        rest = lease.is_bytes, saved, lease.trace
        if held.payload_bytes + (len(saved) if saved else 0) <= messages.INLINE_PAYLOAD_BYTES:
            packet = messages.pack_job(lease.token, meta, lease.raw, *rest)
            self._jobs.send(packet, _AT_ONCE)
            size_bytes = len(packet)
        else:
            packet = messages.pack_job(lease.token, meta, None, *rest)
            size_bytes = len(packet) + messages.INLINE_PAYLOAD_BYTES  # few memfds at a time: they count as open files
            body = held.body or Memfd(kernel.sealed_memfd((saved, lease.raw) if saved else (lease.raw,)))
            kernel.send(self._jobs, packet, (body.fd,), _AT_ONCE)
            held.body, lease.raw = None, b""  # the engine has it, and if the child does not take it, it comes back
        if not self.sent:
            self.become(ChildState.BUSY)
        held.child, held.child_asked_at, held.size_bytes = self.number, self.asked_at, charge(size_bytes)
        self.sent.append(held)
        self.sent_s += held.estimate_s or 0.0
        self.sent_bytes += held.size_bytes
        if len(self.sent) == 1:
            self._begin(held, clock.monotonic())

    def read_talk(self) -> Iterator[Outcome]:
        """What it has said since the last call. Ends quietly where the child is gone: its end is told by the zygote.
        Raises ValueError for nonsense.
        """
        try:
            for packet, fd in packets.receive(self.talk, MOST_WORDS, max(1, len(self.sent))):
                if not packet and fd < 0:
                    self.at_end = True
                    return
                yield self._outcome(packet, fd)
        except OSError as error:  # EMSGSIZE: longer than anything that we know
            raise ValueError(str(error)) from error

    def _outcome(self, packet: bytes, fd: int) -> Outcome:
        """Raises ValueError for what is none. A memfd is read only where one may come."""
        if fd < 0:
            return messages.unpack_outcome(packet)
        try:
            outcome = messages.unpack_outcome(packet)
            due = self.running is not None and outcome.token == self.running.lease.token
            if outcome.verb != Verb.FOLLOWED or outcome.body or not due:
                raise ValueError("a descriptor that nobody asked for")
            body = kernel.read_sealed(fd, messages.MAX_COMPLETION_BYTES)
            self.memfd = Memfd(os.dup(fd)) if len(body) > _LARGE_BYTES else None
            return outcome._replace(body=body)
        finally:
            foreign_files.close((fd,))

    def answered(self, now_at: float) -> HeldLease:
        """Its first job has been answered: it is no longer in its hands."""
        held = self.last = self.sent[0]
        self.output.forget(held.lease.token)  # which may still read what it has printed
        self.sent.popleft()
        self._forget(held)
        self.memfd = None
        self.served += 1
        self.turn = Turn()
        if self.stacks.end:
            self.stacks.clear()
        if self.sent:
            self._begin(self.sent[0], now_at)
        return held

    def _begin(self, held: HeldLease, now_at: float) -> None:
        """It is the first now, and so the one that runs."""
        held.started_at = now_at
        self.meter.start()
        if held.memory_limit_bytes and self.served:
            held.base_bytes = self.meter.sample()
        self.look_at = held.started_at + held.first_look_s
        self._on_planned(self)

    def take_back(self) -> list[HeldLease]:
        """The jobs that were sent and that it has not received, oldest first. The kernel decides which."""
        bodies: dict[int, Memfd | None] = {}  # by token
        while True:
            try:
                packet, fds = kernel.receive(self._jobs_back, messages.MAX_PACKET_BYTES, 1, wait=False)
            except BlockingIOError:
                break
            if not packet:
                break
            bodies[messages.token_of(packet)] = Memfd(fds[0]) if fds else None
        running = self.running
        taken = [held for held in self.sent if held.lease.token in bodies]
        for held in taken:
            held.body = bodies[held.lease.token]
            self.sent.remove(held)
            self._forget(held)
        if running is not self.running:  # what was decided about it does not hold for another
            self.kill_at, self.turn = None, Turn()
        if running is not self.running is not None:
            self._begin(self.sent[0], clock.monotonic())  # it was quicker than we were
        if taken and not self.sent and self.state is ChildState.BUSY:
            self.become(ChildState.IDLE)
        return taken

    def send_no_more(self) -> None:
        """It exits when it next waits for a job, if not before."""
        self._jobs.shutdown(socket.SHUT_WR)

    def _has(self, token: int) -> bool:
        return any(held.lease.token == token for held in self.sent)

    def _forget(self, held: HeldLease) -> None:
        self.sent_s -= held.estimate_s or 0.0
        self.sent_bytes -= held.size_bytes

    # its end

    def notify(self, token: int, reason: str, message: str = "", gently: bool = False, patience_s: float = 0.0) -> None:
        """Have `Interrupted`, or `SoftTimeout`, raised in the handler of the job with this token, if it still runs: at
        once, or for so long only by its next checkpoint. `gently`: nothing is raised, and `should_stop` finds it. No
        signal tells of that, for one could end a system call of C code that does not expect it.
        """
        notice = Notice(token, reason, message, gently, patience_s > 0)
        if gently:
            self._say(messages.pack_notice(notice))
            return
        self.turn.insist_at = clock.monotonic() + patience_s if patience_s > 0 else math.inf
        self.turn.insisting = notice._replace(at_checkpoint=False)
        self.turn.stop_reason = reason
        self._notify(notice)

    def _notify(self, notice: Notice) -> None:
        if self._say(messages.pack_notice(notice)):
            self.turn.nudge_s = _FIRST_NUDGE_S
            self.nudge()

    def answer_checkpoint(self, number: int, kept: bool) -> None:
        """Whoever waits for that looks at `talk`: it needs no signal."""
        if self.state is not ChildState.GONE:
            self._say(messages.pack_stored(Stored(number, kept)))

    def _say(self, packet: bytes) -> bool:
        try:
            self.talk.send(packet)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False  # it does not read, or is gone: what comes after a notice ends it
        return True

    def nudge(self) -> None:
        """Signal that there is a notice; once more when that is due, until the job is answered. Once is not enough if
        it comes just before a system call of the handler, or while its stacks are written: the kernel then goes on with
        the call, and Python does not look.
        """
        now_at, turn = clock.monotonic(), self.turn
        if now_at >= turn.insist_at and turn.insisting is not None:
            turn.insist_at = math.inf
            self._notify(turn.insisting)
            return
        self._tell(kernel.NOTICE_SIGNAL)
        nudge_at = now_at + turn.nudge_s if turn.nudge_s <= _LAST_NUDGE_S else math.inf
        turn.nudge_at = min(nudge_at, turn.insist_at)
        turn.nudge_s *= 4
        self._on_planned(self)

    def write_stacks(self) -> None:
        """Have the Python stacks of all its threads written to `stacks`, even in the midst of C code."""
        self._tell(kernel.STACKS_SIGNAL)

    def _tell(self, signo: int) -> None:
        """Not to one that has become another program, or has reset its signals: it would end of it."""
        if kernel.catches(self.pid, signo):
            self._signal(signo)

    def plan_kill(self, at: float, why: str, in_words: str | None = None) -> None:
        """It is to be killed at that time (monotonic s), unless it has answered by then."""
        self.kill_at, self._kill_plan = at, (why, in_words)
        self._on_planned(self)

    def plan_stop(self, at: float, why: str) -> bool:
        """Its job is to have ended by that time (monotonic s). Answers whether that is sooner than by other reasons."""
        self._stops[why] = min(at, self._stops.get(why, math.inf))
        is_soonest = at < self.stop_at
        if is_soonest:
            self.stop_at, self.stop_why = at, why
            self._on_planned(self)
        return is_soonest

    def spare(self, why: str) -> None:
        """This is no reason any more; others may be."""
        self._stops.pop(why, None)
        self.stop_at, self.stop_why = min(((at, why) for why, at in self._stops.items()), default=(math.inf, ""))

    @property
    def kill_plan(self) -> tuple[str, str | None]:
        """Why it is to be killed at `kill_at`, and what there is to say of it."""
        return self._kill_plan

    def kill(self, why: str, in_words: str | None = None) -> None:
        """SIGKILL; the zygote ends what is below it and reports. Idempotent: the first reason stays."""
        if self.state in (ChildState.DOOMED, ChildState.GONE):
            return
        self.why_killed, self.in_words, self.turn.stop_reason = why, in_words, why
        self.become(ChildState.DOOMED)
        self._signal(signal.SIGKILL)

    def _signal(self, signo: int) -> None:
        if self._pidfd is None:
            return  # not forked yet: `spawned` comes first, and the kill is sent then
        try:
            signal.pidfd_send_signal(self._pidfd, signo)
        except ProcessLookupError:
            return  # it has ended; the zygote's report is under way

    @property
    def is_ready(self) -> bool:
        """Whether it has become itself, and lives as far as we know."""
        return self.state in (ChildState.IDLE, ChildState.BUSY, ChildState.LEAVING)

    @property
    def closed(self) -> bool:
        return self.state is ChildState.GONE

    def close(self) -> None:
        self.become(ChildState.GONE)
        self._on_planned(self)
        for sock in (self._jobs, self._jobs_back, self.talk):
            foreign_files.close_socket(sock)
        self.output.close()
        self.stacks.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
