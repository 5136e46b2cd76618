"""A whole pool under `--sandbox strict` does ordinary work and nothing else, and leaves nothing."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from apps import start_app
from supervised import ROOT, await_ends

STRICT = """
import asyncio, ssl, tempfile
from supervisor import Retry

@handler
def ordinary(job):
    import xml.dom.minidom  # not imported before
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("x")
    subprocess.run("echo y > y; cat y > /dev/null; echo '#!/bin/sh' > z; chmod +x z; ./z", shell=True, check=True)
    async def through_asyncio():
        program = await asyncio.create_subprocess_exec("ls", stdout=asyncio.subprocess.PIPE)
        return (await program.communicate())[0].decode().split()
    return {
        "pid": os.getpid(), "uid": os.getuid(), "groups": os.getgroups(), "umask": os.umask(0o77),
        "in": str(job.workdir), "file": file.name, "files": asyncio.run(through_asyncio()),
        "xml": xml.dom.minidom.parseString("<a/>").documentElement.tagName,
        "certificates": len(ssl.create_default_context().get_ca_certs()) >= 0,
        "program": subprocess.run([sys.executable, "-c", "import json; print(1)"], capture_output=True).returncode,
        "environ": sorted(os.environ),
        "random": len(open("/dev/urandom", "rb").read(4)), "read": sorted(os.listdir(HERE / "given")),
    }

@handler
def forbidden(job):
    refused = []
    for name, act in {
        "write": lambda: (HERE / "given" / "new").write_text("x"),
        "temporary": lambda: Path("/tmp/leasehold-strict").write_text("x"),
        "neighbour": lambda: Path(os.path.dirname(job.workdir), "secret").read_text(),
        "outside": lambda: os.listdir(HERE.parent),
        "password": lambda: (HERE / ".leasehold" / "password").read_text(),
        "socket": lambda: socket.create_connection(("127.0.0.1", 9)),
        "parent": lambda: os.kill(os.getppid(), 9),
        "environ": lambda: Path(f"/proc/{os.getppid()}/environ").read_text(),
    }.items():
        try:
            act()
        except OSError:
            refused.append(name)
    return refused

@handler
def sleep(job):
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    time.sleep(1000)

@handler
def die(job):
    Path("file").write_text("x")
    os.kill(os.getpid(), 9)

@handler
def litter(job):
    seen = os.listdir(".")
    os.makedirs("a/b/c")
    os.chmod("a/b", 0)
    Path("file").write_text("x")
    os.chmod(".", 0)
    return seen
"""
#: Opens the way to an interpreter in a directory of root alone, in a mount namespace of the pool.
OPEN_THE_WAY = """
for way in "$@"; do shift; [ "$way" = -- ] && break; list="$list $way"; done
mount -t tmpfs none /mnt && chmod 755 /mnt
for way in $list; do
    mkdir -p "/mnt$way" && mount --rbind "$way" "/mnt$way" || exit 1
done
for top in /mnt/*; do mount --rbind "$top" "/${top#/mnt/}" || exit 1; done
exec "$@"
"""
FORBIDDEN = ["write", "temporary", "neighbour", "outside", "password", "socket", "parent", "environ"]


@pytest.fixture
def tmp_path(open_directory):
    return open_directory


def open_way(*paths):
    """A prefix that lets every user of a pool reach the interpreter. Skips where that is impossible."""
    if os.geteuid() != 0:
        pytest.skip("only root changes users")
    places = sorted({sys.prefix, sys.base_prefix, *map(str, paths)})
    closed = [place for place in places if not _is_open(place)]
    prefix = ["unshare", "-m", "sh", "-c", OPEN_THE_WAY, "sh", *closed, "--"] if closed else []
    tried = subprocess.run(
        [*prefix, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", ""],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tried.returncode:
        pytest.skip(f"another user cannot reach the interpreter: {tried.stderr.strip()}")
    return prefix


def _is_open(place):
    return (
        subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", "test", "-x", place], check=False).returncode == 0
    )


def open_stage(stage):
    """Open the test's directory to others, and make files that they may read, and files that they may not."""
    (stage.directory / "tmp").chmod(0o1777)
    (stage.directory / "given").mkdir()
    (stage.directory / "given" / "file").touch()
    (stage.directory / ".leasehold").mkdir(mode=0o700)
    (stage.directory / ".leasehold" / "password").write_text("x")


def strict(stage, prefix, **flags):
    return start_app(
        stage, STRICT, prefix=prefix, sandbox="strict", sandbox_read=str(stage.directory / "given"),
        environment={"SECRET": "x"}, drain_timeout="0.2s", **flags,
    ).wait_ready()  # fmt: skip


def run(stage, klass, **options):
    jid = stage.queue.put(klass, **options)
    stage.wait_until_ended([jid])
    return stage.client.job(jid)


def assert_ordinary(stage, pool, uid):
    done = run(stage, "ordinary")
    assert done.state == "complete", stage.last_words()
    seen = done.result
    assert seen["uid"] == uid
    assert seen["umask"] == 0o77
    assert seen["file"].startswith(seen["in"] + "/")
    assert seen["in"].startswith(str(stage.directory / "tmp"))
    assert len(seen["files"]) == 3
    assert (seen["program"], seen["xml"], seen["random"], seen["read"]) == (0, "a", 4, ["file"])
    assert "SECRET" not in seen["environ"]
    assert run(stage, "forbidden").result == FORBIDDEN


def assert_ends_well(stage, pool):
    """Jobs that litter, die, are killed with what they have started, and are interrupted by a drain."""
    assert [run(stage, "litter").result for _ in range(2)] == [[], []]
    assert run(stage, "die", max_deaths=1).state == "failed"
    slept = run(stage, "sleep", timeout=3, retries=0, max_deaths=1)
    assert slept.failure["group"] == "timeout", stage.last_words()
    jid = stage.queue.put("sleep")
    pool.wait_for("job.started", jid=jid)
    assert pool.drain() == 0
    assert stage.client.job(jid).state == "waiting"
    stage.assert_nothing_left(waiting=["default"])


def report_of(pool):
    return pool.wait_for("sandbox.reported")["parts"]


def test_root_runs_handlers_as_nobody_and_leaves_nothing(stage):
    prefix = open_way(ROOT)
    open_stage(stage)
    pool = strict(stage, prefix, jobs_per_child=0)
    assert report_of(pool)["user"] == "on: uid 65534, gid 65534"
    assert_ordinary(stage, pool, 65534)
    assert_ends_well(stage, pool)


@pytest.fixture
def server_for_all(server):
    """Lets every user reach the shared server meanwhile."""
    before = [(path, path.stat().st_mode & 0o7777) for path in (server.socket.parent, server.socket)]
    for path, _mode in before:
        path.chmod(0o777)
    yield
    for path, mode in before:
        path.chmod(mode)


@pytest.mark.usefixtures("server_for_all")
def test_unprivileged_strict_lacks_only_user_and_namespace(stage):
    prefix = [*open_way(ROOT), "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    open_stage(stage)
    stage.ledger.path.chmod(0o666)
    pool = strict(stage, prefix)
    parts = report_of(pool)
    assert parts["user"] == "unavailable: because the supervisor is not root"
    assert "(no network namespace because the supervisor is not root)" in parts["network"]
    assert [part for part, state in parts.items() if state.startswith("unavailable")] == ["user"]
    assert "user unavailable" in pool.wait_for("master.warned")["message"]
    # Files of a process that is not dumpable belong to root.
    assert [os.stat(f"/proc/{pid}/environ").st_uid for pid in (pool.pid, pool.zygote_pid)] == [0, 0]
    assert_ordinary(stage, pool, 65534)
    assert_ends_well(stage, pool)


def test_rest_of_strict_holds_if_the_user_cannot_change(stage):
    open_stage(stage)
    stage.directory.chmod(0o700)
    pool = strict(stage, ())
    assert report_of(pool)["user"].startswith("unavailable: because ")
    assert_ordinary(stage, pool, os.getuid())
    assert_ends_well(stage, pool)


def test_nothing_outlives_a_killed_master(stage):
    prefix = open_way(ROOT)
    open_stage(stage)
    pool = strict(stage, prefix, processes=2)
    jid = stage.queue.put("sleep")
    pool.wait_for("job.started", jid=jid)
    pids = [*pool.child_pids(), pool.zygote_pid]
    pool.send(signal.SIGKILL)
    pool.wait()
    assert await_ends(pids, 20.0) == []
    stage.client.deregister(pool.worker)
    stage.server.redis.delete(f"{stage.prefix}mail:{pool.worker}")  # would expire later
    stage.assert_nothing_left(waiting=["default"])


MIXED = """
def reach():
    try:
        socket.socket().close()
    except PermissionError:
        return False
    return True

@handler
def free(job):
    return reach()

@handler(network=False)
def offline(job):
    return reach()

@handler(sandbox="strict")
def closed(job):
    try:
        (HERE / "written").write_text("x")
    except PermissionError:
        return reach()
"""


def test_child_is_confined_by_its_first_job(stage):
    pool = start_app(stage, MIXED).wait_ready()
    assert [run(stage, klass).result for klass in ("free", "offline", "closed", "free")] == [True, False, False, True]
    assert "of some handlers only" in report_of(pool)["network"]
    assert pool.drain() == 0
    stage.assert_nothing_left()


LARGE = """
@handler
def large(job):
    try:
        Path("file").write_bytes(bytes(2**20 + 1))
    except OSError as error:
        return [error.errno, os.path.getsize("file")]

@handler
def follow(job):
    job.put("default", "noop", b"x" * 2 * 2**20)
"""


def test_file_and_follower_size_are_limited(stage):
    pool = start_app(stage, LARGE, workdir_limit="1M").wait_ready()
    assert run(stage, "large").result == [errno.EFBIG, 2**20]
    failed = run(stage, "follow")
    assert (failed.state, failed.failure["group"]) == ("failed", "result-too-large")
    assert "--workdir-limit" in failed.failure["message"]
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_password_on_the_command_line_is_refused_under_strict(stage):
    pool = stage.start(sandbox="strict", redis_url="redis://:secret-77@localhost:1")
    assert pool.wait() == 78
    said = " ".join(pool.said)
    assert "LEASEHOLD_REDIS_URL" in said
    assert "secret-77" not in said


PEEK = """
@handler
def peek(job):
    said = []
    for folder, _, files in os.walk(HERE, followlinks=True):
        for path in (Path(folder, file) for file in files if file.startswith("pass")):
            try:
                said.append(path.read_text())
            except PermissionError:
                pass
    return (HERE / "plain").read_text(), said
"""


def replace_as_an_operator(path, text):
    new = path.with_name("passnew")
    new.write_text(text)
    new.rename(path)


def replace_as_kubernetes(path, text):
    """Let the link `..data` lead to another directory, in which the file lies."""
    directory = path.parent / f"..{text}"
    directory.mkdir()
    (directory / path.name).write_text(text)
    (path.parent / "..new").symlink_to(directory.name)
    (path.parent / "..new").rename(path.parent / "..data")
    if not path.is_symlink():
        path.symlink_to(f"..data/{path.name}")


@pytest.mark.parametrize("replace", [replace_as_an_operator, replace_as_kubernetes])
def test_handlers_cannot_read_a_password_beside_their_code(own_stage, own_server, app, replace):
    """Nor the one that takes its place, which the supervisor reads."""
    stage = own_stage
    (stage.directory / "plain").write_text("x")
    (stage.directory / "secrets").mkdir()
    path = stage.directory / "secrets" / "password"
    replace(path, "first")
    url = own_server.url.replace("://", "://app@", 1)
    pool = start_app(stage, PEEK, sandbox="strict", redis_url=url, redis_password_file=str(path)).wait_ready()
    assert run(stage, "peek").result == ["x", []]
    replace(path, "second")
    app("second")
    pool.wait_for("redis.connected")
    assert run(stage, "peek").result == ["x", []]
    assert pool.drain() == 0
    stage.assert_nothing_left()


def test_only_named_and_basic_variables_reach_handlers(stage):
    source = "@handler\ndef look(job): return sorted(os.environ)"
    surroundings = {"ONE": "1", "TWO": "2", "LC_TIME": "C", "PYTHONHASHSEED": "0", "URL": stage.server.url}
    pool = start_app(stage, source, env=["ONE", "URL"], environment=surroundings).wait_ready()
    seen = run(stage, "look").result
    assert {"ONE", "LC_TIME", "PATH", "PYTHONHASHSEED"} <= set(seen)
    assert not {"TWO", "URL", "MENU_MARK"} & set(seen)
    assert "URL" in pool.wait_for("master.warned")["message"]
    assert pool.drain() == 0
    stage.assert_nothing_left()
