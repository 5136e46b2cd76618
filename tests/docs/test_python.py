"""Python in the pages: handlers load, jobs are put, and a long one survives a drain, all as shown."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest

import supervisor
from tests.docs.pages import CONTRACT, FIRST_STEPS, PAGES, README, ROOT, blocks, example, path_of, section
from tests.docs.terminal import started
from tests.type_checks import mypy


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_names_imported_from_supervisor_are_public(page):
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "supervisor":
                assert {alias.name for alias in node.names} <= set(supervisor.__all__)


@pytest.mark.parametrize(
    ("page", "name"),
    [
        pytest.param(page, name, id=f"{path_of(page)}-{name}")
        for page in PAGES
        for name in re.findall(r"^# handlers/(\w+)\.py", page.read_text(), re.MULTILINE)
    ],
)
def test_handlers_on_the_pages_load_under_their_names(page, name, tmp_path):
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers/__init__.py").touch()
    (tmp_path / "handlers" / f"{name}.py").write_text(example(page, name))
    shutil.copy(ROOT / "tests/docs/shop.py", tmp_path)
    code = "from supervisor.child import loading; print(*loading.load('handlers'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (klasses := done.stdout.split())
    told = page.read_text().replace('"', "`")
    assert [klass for klass in klasses if not klass.startswith(f"{name}.") or f"`{klass}`" not in told] == []


def test_every_module_with_a_handler_names_itself():
    for page in PAGES:
        shown = [block for block in blocks(page, "python") if "@handler" in block]
        assert all(block.startswith(("# handlers/", "# tests/")) for block in shown)


@pytest.mark.slow
def test_putting_jobs_is_typed_as_shown(tmp_path):
    shown = [
        block
        for page in (README, FIRST_STEPS, CONTRACT)
        for block in blocks(page, "python")
        if "with Client()" in block
    ]
    for number, block in enumerate(shown):
        (tmp_path / f"block_{number}.py").write_text(block)
    assert mypy(tmp_path, ".") == []


@pytest.mark.slow
def test_typed_puts_work_as_shown_and_are_typed(server, namespace, tmp_path):
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers/__init__.py").touch()
    (tmp_path / "handlers/mail.py").write_text(example(CONTRACT, "mail"))
    (shown,) = (block for block in blocks(CONTRACT, "python") if "welcome.put(" in block)
    (tmp_path / "app.py").write_text(shown)
    wrong = ['welcome.put(usr=7)', 'welcome.put(user="x")', 'welcome.put()', 'welcome.job(user=7, tmplate="x")',
             'welcome.with_options(prio=3)', 'welcome.with_options(delay=[]).put(user=7)', 'welcome.settings.timeout',
             'welcome.with_options(lane="x").put(user=None)']  # fmt: skip
    (tmp_path / "wrong.py").write_text("from handlers.mail import welcome\n\n" + "\n".join(wrong) + "\n")
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace
    }  # fmt: skip
    typed = mypy(tmp_path, ".")
    found = [int(line.split(":")[1]) for line in typed if ": error:" in line]
    assert sorted(set(found)) == [*range(3, 3 + len(wrong))], typed
    assert all(line.startswith("wrong.py:") for line in typed), typed
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    with supervisor.Client(server.url, namespace) as client:
        counts = client.queue("mail").counts()
        assert (counts.waiting, counts.scheduled) == (101, 1)


def test_extra_otel_brings_the_exporter():
    text = section(CONTRACT, "Traces")
    (module,) = re.findall(r"^from (opentelemetry\.exporter\S*) import", text, re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = [requirement.partition(">")[0] for requirement in extras["otel"]]
    assert any(module.replace(".", "-").startswith(package) for package in packages)
    assert "pip install 'leasehold[otel]'" in text


#: So that it is far from its end when a signal that was sent at its first third comes.
PACED = """
import time

deliver_at_once = deliver


def deliver(reader, key):
    deliver_at_once(reader, key)
    time.sleep(0.02)
"""


def test_long_job_survives_a_drain_and_does_each_step_once(server, namespace, tmp_path):
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers/__init__.py").touch()
    (tmp_path / "handlers/newsletter.py").write_text(example(CONTRACT, "newsletter") + PACED)
    readers = [f"reader-{number}" for number in range(150)]
    printed = []
    with supervisor.Client(server.url, namespace) as client:
        jid = client.queue("default").put("newsletter.send", {"readers": readers})
        for steps_of_a_start in (50, None):
            with started(server, namespace, tmp_path, "--drain-timeout", "0") as master:
                steps = 0
                for event in map(json.loads, master.stderr):
                    assert event["event"] not in {"job.retried", "job.failed", "job.died"}, event
                    if event["event"] == "job.printed":
                        printed.append(event["line"])
                        steps += 1
                        if steps == steps_of_a_start:
                            master.send_signal(signal.SIGTERM)
                    if event["event"] == "job.completed":
                        master.send_signal(signal.SIGTERM)
                assert master.wait(60) == 0
        job = client.job(jid)
        assert (job.state, job.result, job.interruptions) == ("complete", {"sent": len(readers)}, 1)
    assert [line.split()[1] for line in printed] == readers


@pytest.mark.parametrize(("page", "waiting"), [(README, 1), (FIRST_STEPS, 5), (CONTRACT, 2)])
def test_putting_jobs_works_as_shown(page, waiting, server, namespace):
    first, *more = (block for block in blocks(page, "python") if "with Client()" in block)
    block = "\n".join([first, *more])
    environment = {**os.environ, "LEASEHOLD_REDIS_URL": server.url, "LEASEHOLD_NAMESPACE": namespace}
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    with supervisor.Client(server.url, namespace) as client:
        assert client.queue("default").counts().waiting == waiting
