"""Keeps one embedded server. Runs in the keeper process, in a session of its own. Owns server, socket, pids and log.

Must not import anything heavy (such as redis), because a user's first command waits for it. Must not stop the server
while a user holds `users.lock`, outlive the server, or let it outlive the keeper. `supervisor.engine.embedded.embedded`
starts the keeper and explains the locks.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path

from supervisor import clock

SOCKET, PASSWORD, CONFIG, LOG = "socket", "password", "server.conf", "server.log"
USERS, STARTING, RUNNING = "users.lock", "starting.lock", "running.lock"
KEEPER_PID, SERVER_PID = "keeper.pid", "server.pid"
START_S = 10.0
STOP_S = 10.0

_LOG_FD = 1
_LOG_LIMIT_BYTES = 1 << 20
_TAIL_BYTES = 4096
_PR_SET_PDEATHSIG = 1
_SHOWN_LINES = 3


class StartFailed(Exception):
    """The server did not come up. The text says why and ends with the server's last output."""


def ping(path: str, password: str, timeout_s: float) -> str:
    """Return the first line of the reply to PING, such as `+PONG` or `-LOADING …`, or that to a refused AUTH.

    Blocks up to about `timeout_s`. Raises TimeoutError if the server is silent, another OSError if there is none.
    """
    deadline = clock.monotonic() + timeout_s
    secret = password.encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout_s)
        peer.connect(path)
        peer.sendall(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\n*1\r\n$4\r\nPING\r\n" % (len(secret), secret))
        reply = b""
        while reply.count(b"\r\n") < 2:
            peer.settimeout(max(0.001, deadline - clock.monotonic()))
            chunk = peer.recv(4096)
            if not chunk:
                raise ConnectionResetError(f"{path} closed without an answer")
            reply += chunk
    auth, answer, *_ = reply.decode(errors="replace").split("\r\n")
    return auth if auth.startswith("-WRONGPASS") else answer


class Server:
    """The server process and its output. The descriptor `stop_request` becomes readable when the server is to stop."""

    def __init__(self, binary: str, running: int, stop_request: int) -> None:
        self.output, output = os.pipe()
        self.pid = _spawn(binary, output, running)
        os.close(output)
        self.pidfd = os.pidfd_open(self.pid)
        self.stop_request = stop_request
        self.ended = False
        self.tail = b""
        self._poll = select.poll()
        for fd in (self.pidfd, self.output, stop_request):
            self._poll.register(fd, select.POLLIN)

    def wait(self, timeout_s: float | None) -> set[int]:
        """Block until an event or the timeout, and copy output into the log. Return the readable descriptors."""
        events = self._poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000))
        ready = {fd for fd, _ in events}
        if self.output in ready and not self._copy_output():
            self._poll.unregister(self.output)
        if self.pidfd in ready:
            self.ended = True
        return ready

    def wait_until_ready(self, password: str, report_fd: int) -> None:
        """Return when the server answers PING. Raises StartFailed when it ends, or does not answer within START_S.

        The server prints a line when it listens and another when it is ready, so each output triggers a PING. A long
        AOF is no failure: every LOADING reply restarts the time limit.
        """
        deadline = clock.monotonic() + START_S
        while True:
            happened = self.wait(deadline - clock.monotonic())
            if self.ended:
                raise StartFailed(f"it ended with {self._reap()}{self._last_output()}")
            if self.stop_request in happened:
                raise StartFailed("the keeper was told to stop")
            answer = _try_ping(password, max(0.1, deadline - clock.monotonic()))
            if answer.startswith("+PONG"):
                return
            if answer.startswith("-LOADING"):
                deadline = clock.monotonic() + START_S
                _report(report_fd, b"loading\n")
            elif clock.monotonic() >= deadline:
                raise StartFailed(f"no answer within {START_S:g} s{self._last_output()}")

    def wait_until_unwanted(self) -> None:
        """Block until the last user has gone, the keeper is told to stop, or the server has ended by itself."""
        while not self.ended and self.stop_request not in self.wait(None):
            pass

    def stop(self) -> str:
        """End and reap the server: SIGTERM, which flushes the AOF, then SIGKILL after STOP_S. Return how it ended."""
        self._poll.unregister(self.stop_request)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.ended:
                signal.pidfd_send_signal(self.pidfd, number)
            deadline = clock.monotonic() + STOP_S
            while not self.ended and self.wait(deadline - clock.monotonic()):
                pass
        return self._reap()

    def _reap(self) -> str:
        _, status = os.waitpid(self.pid, 0)
        os.set_blocking(self.output, False)
        with contextlib.suppress(BlockingIOError):  # EAGAIN: all is read, and a child of the server holds the pipe
            while self._copy_output():
                pass
        code = os.waitstatus_to_exitcode(status)
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def _copy_output(self) -> bool:
        chunk = os.read(self.output, 65536)
        self.tail = (self.tail + chunk)[-_TAIL_BYTES:]
        _log(chunk)
        return bool(chunk)

    def _last_output(self) -> str:
        lines = [line.strip() for line in self.tail.decode(errors="replace").splitlines() if line.strip()]
        return f"; its log ends: {' | '.join(lines[-_SHOWN_LINES:])}" if lines else ""


def _spawn(binary: str, output: int, running: int) -> int:
    """Fork and exec the server. It inherits `running`, so that the lock lasts until keeper and server are gone."""
    libc = ctypes.CDLL(None)
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == keeper:  # else the keeper died before prctl, and no signal will come
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.set_inheritable(running, True)
            os.execv(binary, [binary, CONFIG])
    except OSError as error:  # any errno of exec, reported where the server would have reported
        os.write(2, f"cannot run {binary}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _try_ping(password: str, timeout_s: float) -> str:
    try:
        return ping(SOCKET, password, timeout_s)
    except OSError:  # ENOENT, ECONNREFUSED: not listening yet. ECONNRESET: ended. Or a timeout
        return ""


def _log(text: bytes) -> None:
    with contextlib.suppress(OSError):  # ENOSPC, EIO: a full disk is no reason to stop the server
        if os.fstat(_LOG_FD).st_size > _LOG_LIMIT_BYTES:
            os.ftruncate(_LOG_FD, 0)
        os.write(_LOG_FD, text)


def _report(fd: int, text: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # EPIPE: the starter has gone; `users.lock` tells of other users
        os.write(fd, text)


def _watch_users(users: int, starting: int, stop_request: int) -> None:
    """Request a stop when no user is left and none can join. Runs in a thread, because flock cannot be polled."""
    while True:
        fcntl.flock(users, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_UN)  # a newcomer may be waiting for it while holding `starting`
        fcntl.flock(starting, fcntl.LOCK_EX)
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # EWOULDBLOCK: a user came meanwhile
            fcntl.flock(starting, fcntl.LOCK_UN)
            continue
        os.write(stop_request, b"\0")
        return


def _keep(binary: str, ready: int, starting: int, running: int) -> None:
    stop_request, request_stop = os.pipe()
    os.set_blocking(request_stop, False)
    signal.set_wakeup_fd(request_stop, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    # Opened early, because the directory may be moved or deleted while the server runs.
    users = os.open(USERS, os.O_RDWR)
    stopping = os.open(STARTING, os.O_RDWR)
    Path(KEEPER_PID).write_text(f"{os.getpid()}\n")
    server = Server(binary, running, stop_request)
    Path(SERVER_PID).write_text(f"{server.pid}\n")
    try:
        server.wait_until_ready(Path(PASSWORD).read_text().strip(), ready)
    except StartFailed as error:
        if not server.ended:
            server.stop()
        _remove_traces()
        _report(ready, f"failed {error}\n".encode())
        return
    _report(ready, b"ready\n")
    os.close(ready)
    os.close(starting)
    threading.Thread(target=_watch_users, args=(users, stopping, request_stop), daemon=True).start()
    server.wait_until_unwanted()
    why = "by itself" if server.ended else "because nobody uses it or the keeper was told to"
    _log(f"keeper: the server ended {why}: {server.stop()}\n".encode())
    _remove_traces()


def _remove_traces() -> None:
    for name in (SOCKET, KEEPER_PID, SERVER_PID):
        Path(name).unlink(missing_ok=True)


def main() -> None:
    """Run, in DIRECTORY, as `python -m supervisor.engine.embedded.keeper DIRECTORY BINARY READY STARTING RUNNING`.

    BINARY is the server program. The last three are inherited descriptors: a pipe for the report, and two locks.
    """
    _, binary, *fds = sys.argv[1:]
    ready, starting, running = (int(fd) for fd in fds)
    if os.fork():
        os._exit(0)  # orphaned, so that a user that outlives the keeper need not reap it
    # A master starts with its signals blocked. A server that inherits the mask would ignore SIGTERM.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o077)
    for fd in (ready, starting, running):
        os.set_inheritable(fd, False)
    _keep(binary, ready, starting, running)


if __name__ == "__main__":
    main()
