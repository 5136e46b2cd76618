"""The master's proxy of a zygote: starts it, requests children, reads its reports. Runs in the master.

Owns the control socket and the zygote's pid. Imports nothing that runs in the zygote.
"""

import contextlib
import fcntl
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from supervisor import clock, messages
from supervisor.config import IN_POOL, RunConfig
from supervisor.linux import foreign_files, kernel
from supervisor.master.model import environment, memory
from supervisor.master.model.stacks import Stacks
from supervisor.master.model.states import ZYGOTE_MOVES, ZygoteState, move
from supervisor.messages import Boot, BootFailed, Control, HandlerSettings, Ready, Reaped, Spawn, Spawned, SpawnFailed
from supervisor.redis_url import EMBEDDED, secret_files

#: The zygote imports our modules from the master's own folder, whatever the working directory contains and wherever
#: links lead by now. Master and zygote must be of one version.
_START: Final = (
    "import gc, sys; gc.disable(); sys.path.insert(0, sys.argv[3]); import supervisor; del sys.path[0];"
    " from supervisor.linux import atfork; atfork.take_over();"
    " from supervisor.zygote.zygote import main; main()"
)
_ROOT: Final = str(Path(__file__).resolve().parents[3])
_SHAPE: Final = re.compile("[0-9a-f]{16}")
_NONSENSE: Final = (
    "the process that imports the handlers, or forks the children, wrote nonsense to the supervisor's socket; look for"
    " code that writes to descriptors that it has not opened"
)
#: Largest report of a zygote about its handlers.
_MOST_BYTES: Final = 64 * 1024 * 1024
#: Folder in the working directory with the embedded server's files, such as its password.
HIDDEN: Final = ".leasehold"
#: A warning names at most this many threads or descriptors.
_MOST_NAMES: Final = 20
#: The longest wait for the end of a killed zygote.
_KILLED_S: Final = 2.0
_LARGEST_CPU_S: Final = 1e9  # thirty years
_LARGEST_STATUS: Final = 0xFFFF  # a wait status has 16 bits


def boot_of(config: RunConfig, workdir: Path, open_files: int, directory: str = "") -> Boot:
    """Return the first message to a zygote.

    `open_files`: the limit of its children. `directory`: where the handlers lie; empty: the working directory.
    """
    return Boot(
        handlers=config.handlers,
        workdir=str(workdir),
        jobs_per_child=config.jobs_per_child,
        on_error=config.on_error,
        memory_limit_bytes=config.memory_limit_bytes,
        open_files=open_files,
        workdir_limit_bytes=config.workdir_limit_bytes,
        sandbox=config.sandbox,
        readable=[str(path) for path in config.sandbox_read],
        hidden=[os.path.abspath(path) for path in (HIDDEN, *secret_files(config.redis_url or EMBEDDED))],
        child_user=list(config.child_user or ()),
        directory=directory,
        held_back=environment.of(config)[1],
        terminal=config.terminal,
        release=config.release or "",
    )


class ZygoteHandle:
    def __init__(self, number: int, boot: Boot, environment: Mapping[str, str], deadline_at: float) -> None:
        """Start the zygote. The caller is the master's main thread, because a parent-death signal is tied to a thread.

        `deadline_at`: when the zygote must be ready. Raises OSError if it cannot be started.
        """
        self.number = number
        self.workdir = boot.workdir
        self.directory = boot.directory
        self.state = ZygoteState.BOOTING
        self.report: Ready | None = None  # its report about its handlers
        self.handlers: dict[str, HandlerSettings] = {}
        self.runs_hooks = False  # it calls @before_fork functions before each fork
        self.inherited = memory.NOTHING  # its own memory, which its children inherit
        self.next_sample_at = 0.0  # when that is sampled again
        self.proven = False  # a child of it got ready
        self.ready_children = 0  # children that got ready, without the probe
        self.failure: BootFailed | None = None  # why it cannot be used, by its own report or by the master
        self.started_at = clock.monotonic()
        self.started_unix = clock.unix()
        self.heard_at = self.started_at  # when its last packet came
        self.deadline_at: float | None = deadline_at  # it is killed then
        self.unresponsive: str | None = None  # why it is to be retired: it does not answer
        self.status: int | None = None  # its wait status, once it is reaped
        self.strangers = kernel.children_of_self()  # older children of the master: not strays of this zygote
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [sys.executable, "-P", "-c", _START, str(os.getpid()), str(number), _ROOT]
        self.stacks = Stacks()
        # A copy above the numbers that the zygote gets, which the actions below overwrite.
        stacks_fd = fcntl.fcntl(self.stacks.fd, fcntl.F_DUPFD_CLOEXEC, messages.STACKS_FD + 1)
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, 2, 1),
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), messages.CONTROL_FD),
            # Reserved before the import, so that preloaded code cannot get the number that the children use.
            (os.POSIX_SPAWN_DUP2, stacks_fd, messages.STACKS_FD),
        ]
        # The zygote inherits a mask that blocks all signals. It unblocks them once its dispositions are set.
        try:
            self.pid = os.posix_spawn(sys.executable, arguments, {**environment, IN_POOL: "1"}, file_actions=actions)
        except OSError:
            self.control.close()
            self.stacks.close()
            raise
        finally:
            theirs.close()
            os.close(stacks_fd)
        with contextlib.suppress(BrokenPipeError):  # it was killed already; the end of its socket will tell
            kernel.send(self.control, messages.pack_control(boot))
        self.control.setblocking(False)

    def become(self, state: ZygoteState) -> None:
        self.state = move(ZYGOTE_MOVES, self.state, state)

    def has_booted(self, report: Ready) -> None:
        """The zygote has imported the handlers."""
        self.report, self.failure, self.deadline_at = report, None, None
        self.runs_hooks = report.before_fork
        self.handlers = {name: HandlerSettings(**settings) for name, settings in report.handlers.items()}
        self.inherited = memory.of(self.pid) or memory.NOTHING

    def spawn(self, child: int, fds: tuple[int, ...]) -> None:
        """Request a child that gets `fds` (`Spawn`). Raises OSError if the request cannot be sent now."""
        kernel.send(self.control, messages.pack_control(Spawn(child)), fds)

    def read(self) -> Iterator[tuple[Control | None, list[int]]]:
        """Yield the reports since the last call, with their descriptors.

        Yields None at last if the zygote is gone, or has written nonsense, which `failure` tells.
        """
        while True:
            try:
                packet, fds = kernel.receive(
                    self.control, messages.MAX_PACKET_BYTES, kernel.MOST_RIGHTS, discard=foreign_files.close
                )
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in kernel.OUT_OF_MEMORY:
                    return  # a later turn reads the packets
                # EMSGSIZE: the packet is longer than any of ours.
                self._distrust(error)
                yield None, []
                return
            self.heard_at = clock.monotonic()
            if not packet:
                yield None, []
                return
            report: Control | None = None
            try:
                if packet == messages.IN_MEMFD and fds:
                    packet = kernel.read_sealed(fds[0], _MOST_BYTES)
                said = _checked(messages.unpack_control(packet))
                if isinstance(said, Spawned) and fds:
                    _check_pidfd(fds[0])
                report = said
            except (ValueError, TypeError, RecursionError) as error:  # RecursionError: nested too deep even to be shown
                self._distrust(error)
            kept = 1 if isinstance(report, Spawned) else 0
            if len(fds) > kept:  # a call for none would wake the thread as well
                foreign_files.close(fds[kept:])
            yield report, fds[:kept]
            if report is None:
                return

    def _distrust(self, error: Exception) -> None:
        """Foreign code has written to the socket, so further reports cannot be trusted."""
        self.failure = BootFailed(f"{_NONSENSE} ({error})", "")

    def finish(self) -> None:
        """Announce that no more requests will come. The zygote ends all processes below it and exits."""
        self.become(ZygoteState.LEAVING)
        self.control.shutdown(socket.SHUT_WR)

    def let_go(self) -> None:
        """Close the control socket. The zygote kills its children, ends all processes below it and exits."""
        foreign_files.close_socket(self.control)

    def write_stacks(self) -> None:
        """Have the zygote write its Python stacks to `stacks`. The signal kills it before it has begun to import."""
        os.kill(self.pid, kernel.STACKS_SIGNAL)

    def kill(self) -> None:
        """Send SIGKILL, unless the zygote is reaped: its pid may be another process by then."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)

    def await_end(self, timeout_s: float) -> None:
        """After `let_go`: wait for its end, and kill it after `timeout_s` seconds."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return  # reaped already
        except OSError:  # EMFILE, ENFILE
            self.kill()
            return
        try:
            if not kernel.await_ends([pidfd], timeout_s):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                kernel.await_ends([pidfd], _KILLED_S)
        finally:
            os.close(pidfd)


def fork_warnings(ready: Ready) -> Iterator[str]:
    """Yield a warning for threads and for descriptors that the handlers' import left, with a remedy."""
    if ready.threads:
        yield (
            f"the handlers start threads or processes while they are imported: {_listed(ready.threads)}; the children"
            " do not have them, and a lock that a thread holds at the fork stays locked there; start them in an"
            " @after_fork function, or in the handler"
        )
    if ready.descriptors:
        yield (
            f"the handlers leave open what they open while they are imported: {_listed(ready.descriptors)}; all"
            " children share it, and what one reads or writes there the others miss or mix with theirs; open it in an"
            " @after_fork function, or in the handler, or close it in a @before_fork function"
        )


def sandbox_warnings(ready: Ready) -> Iterator[str]:
    """Yield a warning for each part of the sandbox that is unavailable here."""
    for part, state in ready.sandbox.items():
        if state.startswith("unavailable"):
            yield f"the sandbox does without one of its parts: {part} {state}"


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return "; ".join(names[:_MOST_NAMES]) + (f"; and {more} more" if more > 0 else "")


def _checked(report: Control) -> Control:
    """Return the report. Raises ValueError or TypeError if a field does not have its declared type or range."""
    if isinstance(report, Boot | Spawn):
        raise ValueError(f"a zygote may not say {report!r:.100}")
    _check_fields(report)
    if isinstance(report, Reaped):
        if not 0 <= report.status <= _LARGEST_STATUS:
            raise ValueError(f"not a wait status: {report.status!r:.100}")
        if not (0 <= report.cpu_s <= _LARGEST_CPU_S and report.max_rss_bytes >= 0):
            raise ValueError(f"not what a child can have used: {report.cpu_s} s, {report.max_rss_bytes} bytes")
    if isinstance(report, Ready):
        for settings in report.handlers.values():
            _check_fields(HandlerSettings(**settings))
        words = (*report.threads, *report.descriptors, *report.sandbox, *report.sandbox.values(), *report.files)
        if not all(isinstance(said, str) for said in words):
            raise TypeError(f"not words: {report.threads!r:.100}, {report.descriptors!r:.100}")
        if not all(isinstance(declared, dict) for declared in report.recurrences.values()):
            raise TypeError(f"not recurring jobs: {report.recurrences!r:.100}")
        _check_schemas(report.schemas)
    if isinstance(report, Ready | BootFailed) and not all(isinstance(file, str) for file in report.files):
        raise TypeError(f"not the names of files: {report.files!r:.100}")
    return report


def _check_schemas(schemas: dict[str, str]) -> None:
    if not all(_SHAPE.fullmatch(shape) and isinstance(schema, str) for shape, schema in schemas.items()):
        raise TypeError(f"not schemas: {schemas!r:.100}")
    sizes_bytes = [len(schema.encode()) for schema in schemas.values()]
    if max(sizes_bytes, default=0) > messages.SCHEMA_BYTES or sum(sizes_bytes) > messages.MOST_SCHEMAS_BYTES:
        raise ValueError(f"{sum(sizes_bytes)} bytes of schemas, the longest of {max(sizes_bytes)}")


def _check_pidfd(fd: int) -> None:
    try:
        signal.pidfd_send_signal(fd, 0)
    except (ProcessLookupError, PermissionError):
        return  # the child has ended already, or runs as another user by now
    except OSError as error:  # EBADF: not a pidfd
        raise ValueError(f"not the descriptor of a child ({error.strerror})") from error


def _check_fields(message: Any) -> None:
    for name, allowed in _FIELDS_OF[type(message)]:
        value = getattr(message, name)
        if type(value) not in allowed:
            raise TypeError(f"{type(message).__name__}.{name} cannot be {value!r:.100}")


def _fields_of(kind: type) -> tuple[tuple[str, frozenset[Any]], ...]:
    """Return the name of each field, and the types that its value may have."""
    found = []
    for name, hint in get_type_hints(kind).items():
        kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        allowed = {get_origin(each) or each for each in kinds}
        found.append((name, frozenset(allowed | ({int} if float in allowed else set()))))
    return tuple(found)


_FIELDS_OF: Final = {
    kind: _fields_of(kind) for kind in (Ready, BootFailed, Spawned, SpawnFailed, Reaped, HandlerSettings)
}
