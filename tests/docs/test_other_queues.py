"""The pages for those who come from another queue: the code of both sides does the same.

TEST_FULL=1 runs the other side, too. Its Python packages are installed once for each version that the pages name, into
a folder that later runs find again.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import supervisor
from tests import servers
from tests.docs.pages import FENCE, OTHER_QUEUES, ROOT, section
from tests.docs.terminal import started
from tests.environment import without_settings
from tests.lengths import FULL

MAILS = ["mail 7 plain", "mail 8 rich", "refused 7"]
PHOTOS = ["album 7 [7, 8]", "shrunk hill.png", "shrunk sea.png"]
_ENQUEUE = "rq.Queue(connection=redis.Redis.from_url(os.environ['REDIS_URL'])).enqueue(welcome, 9)"
#: The command of a worker, and a call of the task `welcome` as old callers make it.
PYTHON = {
    "celery": ("-m celery -A tasks worker -c 1", "from tasks import welcome; welcome.delay(9)"),
    "rq": ("-m rq.cli worker --with-scheduler", f"import os, redis, rq; from tasks import welcome; {_ENQUEUE}"),
    "dramatiq": ("-m dramatiq tasks -p 1", "from tasks import welcome; welcome.send(9)"),
}
RUBY = {"sidekiq": ("-r ./jobs.rb", "require './jobs'; Welcome.perform_async(9)")}
WORKERS = PYTHON | RUBY
THEIRS = pytest.mark.parametrize("peer", WORKERS)
IN_FULL = pytest.mark.skipif(not FULL, reason="runs the other queues, which has to be asked for: TEST_FULL=1")
LONGEST_S = 120


def version(peer):
    return re.search(r"This page compares \w+ ([\d.]+\d)", OTHER_QUEUES[peer].read_text())[1]


def modules(text):
    """The blocks that name a file in their first line, by that name."""
    bodies = [body for _, body in FENCE.findall(text)]
    return {named[1]: body for body in bodies if (named := re.match(r"# (\S+\.(?:py|rb))", body))}


def both_sides(peer):
    return [modules(side) for side in section(OTHER_QUEUES[peer], "The same work").split("With Leasehold")]


def write(folder, side):
    (folder / "handlers").mkdir(exist_ok=True)
    (folder / "handlers/__init__.py").touch()
    for path, body in side.items():
        (folder / path).write_text(body)
    for application in ("shop.py", "shop.rb"):
        shutil.copy(Path(__file__).with_name(application), folder)


@pytest.fixture
def diary(tmp_path, monkeypatch):
    """Return what the application has done, once it has done all that is expected."""
    os.mkfifo(path := tmp_path / "diary")
    monkeypatch.setenv("SHOP_DIARY", str(path))
    with os.fdopen(os.open(path, os.O_RDWR)) as lines:
        yield lambda expected: sorted(lines.readline().strip() for _ in expected)


def work_off(server, namespace, folder, diary, expected):
    """Run a supervisor until the jobs have done what is expected, and show that it leaves nothing."""
    with started(server, namespace, folder) as master:
        assert diary(expected) == sorted(expected)
        master.terminate()
        master.communicate(timeout=LONGEST_S)
        assert master.returncode == 0
    with supervisor.Client(server.url, namespace) as client:
        counts = client.queue("default").counts()
        assert (counts.waiting, counts.running, counts.scheduled, counts.depends) == (0, 0, 0, 0)
        assert client.failed() == {}


def environment(url):
    of_celery = url.replace("unix://", "redis+socket://")
    return {
        **without_settings(), "PYTHONPATH": str(ROOT), "LEASEHOLD_REDIS_URL": url, "REDIS_URL": url,
        "RQ_REDIS_URL": url, "CELERY_BROKER_URL": of_celery, "CELERY_RESULT_BACKEND": of_celery,
    }  # fmt: skip


def test_our_side_does_what_the_pages_say(server, namespace, diary, tmp_path):
    first, *others = (both_sides(peer)[1] for peer in WORKERS)
    assert all(other == first for other in others)
    write(tmp_path, first)
    place = [sys.executable, "place.py"]
    named = environment(server.url) | {"LEASEHOLD_NAMESPACE": namespace}
    subprocess.run(place, cwd=tmp_path, env=named, check=True, timeout=LONGEST_S)
    work_off(server, namespace, tmp_path, diary, MAILS + PHOTOS)


@pytest.fixture(scope="module")
def python():
    """An interpreter with the packages of the pages' versions, and with what our client needs."""
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    extras = {"celery": "[redis]", "dramatiq": "[redis]"}
    packages = [f"{peer}{extras.get(peer, '')}=={version(peer)}" for peer in PYTHON]
    named = "-".join(f"{peer}{version(peer)}" for peer in PYTHON)
    folder = Path(tempfile.gettempdir(), f"leasehold-{named}-{sys.version_info.minor}")
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder / "venv"], check=True, timeout=300)
            install = [folder / "venv/bin/python", "-m", "pip", "install", "--quiet", *packages, *ours]
            subprocess.run(install, check=True, timeout=900)
            (folder / "complete").touch()
    return str(folder / "venv/bin/python")


@pytest.fixture
def programs(peer, request):
    """The program that runs a file of the peer, and the one of its worker."""
    if peer in PYTHON:
        python = request.getfixturevalue("python")
        return [python], [python]
    if not (sidekiq := shutil.which("sidekiq")):
        pytest.skip("there is no sidekiq, which is Debian's ruby-sidekiq: the page shows its side, and only ours runs")
    told = subprocess.run([sidekiq, "--version"], capture_output=True, text=True, check=True, timeout=LONGEST_S).stdout
    if version(peer) not in told:
        pytest.skip(f"the page compares Sidekiq {version(peer)}, and here is {told.strip()}")
    return ["ruby"], [sidekiq]


@pytest.fixture
def own_server():
    """The peers' keys have no namespace."""
    with servers.running(servers.binary()) as socket:
        yield SimpleNamespace(url=f"unix://{socket}")


@contextlib.contextmanager
def working(peer, program, folder, url):
    """A worker of the peer, which nothing outlives."""
    command = [*program, *WORKERS[peer][0].split()]
    with (folder / "log").open("wb") as log:
        worker = subprocess.Popen(
            command, cwd=folder, env=environment(url), stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
        worker.terminate()
        worker.wait(LONGEST_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


@IN_FULL
@THEIRS
def test_their_side_does_the_same(peer, programs, own_server, diary, tmp_path):
    program, of_worker = programs
    theirs = both_sides(peer)[0]
    write(tmp_path, theirs)
    (place,) = (path for path in theirs if path.startswith("place."))
    subprocess.run([*program, place], cwd=tmp_path, env=environment(own_server.url), check=True, timeout=LONGEST_S)
    expected = MAILS if peer in RUBY else MAILS + PHOTOS
    with working(peer, of_worker, tmp_path, own_server.url):
        assert diary(expected) == sorted(expected)


@IN_FULL
@THEIRS
def test_their_task_puts_our_job(peer, programs, own_server, diary, tmp_path):
    program, of_worker = programs
    write(tmp_path, both_sides(peer)[1] | modules(section(OTHER_QUEUES[peer], "Step by step")))
    call = [*program, "-e" if peer in RUBY else "-c", WORKERS[peer][1]]
    subprocess.run(call, cwd=tmp_path, env=environment(own_server.url), check=True, timeout=LONGEST_S)
    with working(peer, of_worker, tmp_path, own_server.url):
        work_off(own_server, "leasehold", tmp_path, diary, ["mail 9 plain"])
