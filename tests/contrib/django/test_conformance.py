"""Django's own tests of its task backends pass with Leasehold in their place. Needs Python 3.12 and PyPI."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.environment import without_settings

#: Tests that do not apply, by module.
NOT_APPLICABLE = {
    "test_dummy_backend": {
        "test_refresh_result": "changes what the dummy holds in its memory",
        "test_refresh_result_async": "changes what the dummy holds in its memory",
        "test_doesnt_wait_until_transaction_commit_by_default": "puts after the commit by default",
    },
    "test_immediate_backend": {
        "test_doesnt_wait_until_transaction_commit_by_default": "puts after the commit by default",
        "test_cannot_get_result": "has results",
        "test_cannot_refresh_result": "has results",
        "test_cannot_pass_run_after": "has run_after",
        "test_enqueue_logs": "the supervisor logs what runs",
        "test_failed_logs": "the supervisor logs what runs",
        "test_successful_task_no_none_in_logs": "the supervisor logs what runs",
        "test_throws_keyboard_interrupt": "an interrupt ends the job, not the caller",
    },
    "test_tasks": {},
}
#: A task that exits ends its child: a death, not a failure.
EXITS = re.compile(r"^ +\(\s+test_tasks\.failing_task_system_exit,.*?\),\n", re.MULTILINE | re.DOTALL)
SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = ["tasks", "supervisor.contrib.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3"}}
USE_TZ = True
TASKS = {"default": {"BACKEND": "supervisor.contrib.django.backend.LeaseholdBackend", "QUEUES": []}}
"""


def newer_pythons():
    """Interpreters that Django 6 takes."""
    names = [f"python3.{minor}" for minor in (12, 13, 14)]
    own = [sys.executable] if sys.version_info >= (3, 12) else []
    pyenv = [str(path) for name in names for path in Path.home().glob(f".pyenv/versions/*/bin/{name}")]
    for found in [*own, *filter(None, map(shutil.which, names)), *pyenv]:
        if subprocess.run([found, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            yield found


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter with Django 6 and what Leasehold needs."""
    newer = next(newer_pythons(), None)
    if newer is None:
        pytest.skip("Django 6 needs Python 3.12 or newer, which this machine has not")
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([newer, "-m", "venv", folder], check=True, timeout=120)
    needs = ["django>=6", "redis[hiredis]>=6,<9", "psutil", "setproctitle", "orjson"]
    done = subprocess.run(
        [folder / "bin/python", "-I", "-m", "pip", "install", "--quiet", *needs], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"Django 6 cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return folder / "bin/python"


@pytest.fixture(scope="module")
def djangos_tests(python, tmp_path_factory):
    """The folder tests/tasks of Django's source, with Leasehold's backends in it."""
    folder = tmp_path_factory.mktemp("source")
    command = [python, "-I", "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "django>=6"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"Django's source cannot be had here: {done.stderr.strip().splitlines()[-1]}")
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        wanted = [member for member in source if "/tests/tasks/" in member.name]
        # Debian's Python 3.11.2 has no filters yet.
        source.extractall(folder, wanted, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    [tests] = folder.glob("*/tests/tasks")
    tests.rename(folder / "tasks")
    for module, left_out in NOT_APPLICABLE.items():
        path = folder / "tasks" / f"{module}.py"
        text = re.sub(r"django\.tasks\.backends\.(dummy|immediate)", "stand_ins", path.read_text())
        for name in left_out:
            text, count = re.subn(rf"def {name}\(", f"def not_applicable_{name}(", text)
            assert count == 1, name
        path.write_text(EXITS.sub("", text))
    shutil.copy(Path(__file__).parent / "stand_ins.py", folder)
    (folder / "settings.py").write_text(SETTINGS)
    return folder


@contextmanager
def supervisor(command, **options):
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if "zygote.ready" in line:
                    break
            else:
                pytest.fail("".join(said))
            yield
        finally:
            process.terminate()
            process.communicate(timeout=60)


@pytest.mark.full
def test_djangos_own_tests_of_backends_pass(python, djangos_tests, server, namespace, measured):
    environment = {
        **without_settings(), "LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace,
        "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": os.pathsep.join([str(djangos_tests), str(ROOT)]),
    }  # fmt: skip
    options = {"cwd": djangos_tests, "env": environment}
    run = ["run", "--handlers", "supervisor.contrib.django.handlers", "--queue", "served", "--processes", "2"]
    with supervisor([python, "-m", "supervisor", *run, "--log", "json"], **options):
        modules = [f"tasks.{module}" for module in NOT_APPLICABLE]
        done = subprocess.run([python, "-m", "django", "test", *modules], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    [passed] = re.findall(r"Ran (\d+) tests", done.stderr)
    measured(f"{passed} of Django's tests pass, {sum(map(len, NOT_APPLICABLE.values()))} do not apply")
