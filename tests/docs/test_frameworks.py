"""The applications of the page on frameworks. tests/contrib/django/ has more of Django."""

import os
import subprocess
import sys

import pytest

from supervisor.child import handlers
from supervisor.engine.client.sync_client import Client
from tests.docs.pages import ROOT, blocks, example
from tests.docs.terminal import started
from tests.lengths import SOON_S

PAGE = ROOT / "supervisor/docs/frameworks.md"
IN_PROCESS = ROOT / "supervisor/docs/in_process.md"
#: The settings of a new project, as far as the page needs them.
SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "app.db"}}
USE_TZ = True
"""
VISIT = """
import django
django.setup()
from django.test import RequestFactory
from shop.views import place
print(place(RequestFactory().post("/"), 7).status_code)
"""


@pytest.fixture(autouse=True)
def named_server(server, namespace, monkeypatch):
    monkeypatch.setenv("LEASEHOLD_REDIS_URL", server.url)
    monkeypatch.setenv("LEASEHOLD_NAMESPACE", namespace)


def shown(word):
    [block] = [block for block in blocks(PAGE, "python") if word in block]
    return block


def run_until_complete(server, namespace, folder, queue, *flags):
    """Run a supervisor until the only job of the queue is complete, and return that job."""
    with (
        Client(server.url, namespace) as client,
        started(server, namespace, folder, "--queue", queue, *flags) as master,
    ):
        [job] = client.queue(queue).jobs("waiting")
        client.wait(job.jid, 120)
        master.terminate()
        master.communicate(timeout=120)
        assert master.returncode == 0
        return client.job(job.jid)


def test_fastapi_application_puts_a_job_that_the_handler_takes(server, namespace, tmp_path):
    pytest.importorskip("fastapi", reason="FastAPI is not installed here")
    pytest.importorskip("httpx", reason="httpx, which FastAPI's test client needs, is not installed here")
    from fastapi.testclient import TestClient

    application = {"__name__": "app"}
    exec(shown("FastAPI"), application)
    with TestClient(application["app"]) as browser:
        jid = browser.post("/orders/7").json()
        assert browser.post("/orders/x").status_code == 422
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers/__init__.py").touch()
    (tmp_path / "handlers/mail.py").write_text(example(PAGE, "mail"))
    job = run_until_complete(server, namespace, tmp_path, "mail")
    assert (job.jid, job.klass, job.data) == (jid, "mail.receipt", {"order": 7})


def test_fastapi_application_runs_its_own_jobs(server, namespace, monkeypatch, tmp_path):
    pytest.importorskip("fastapi", reason="FastAPI is not installed here")
    pytest.importorskip("httpx", reason="httpx, which FastAPI's test client needs, is not installed here")
    from fastapi.testclient import TestClient

    (tmp_path / "mail_handlers").mkdir()
    (tmp_path / "mail_handlers/mail.py").write_text(
        "from supervisor import handler\n\n\n@handler\ndef receipt(job, order: int):\n    return order\n"
    )
    monkeypatch.setattr(handlers, "_registered", [*handlers.registered()])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    [shown] = blocks(IN_PROCESS, "python")
    application = {"__name__": "app"}
    exec(shown.replace('"handlers"', '"mail_handlers"'), application)
    with TestClient(application["app"]) as browser, Client(server.url, namespace) as client:
        jid = browser.post("/orders/7").json()
        assert client.wait(jid, SOON_S) == 7
        assert [worker.queues for worker in client.workers()] == [["mail"]]
    with Client(server.url, namespace) as client:
        assert client.workers() == []


def test_django_view_enqueues_a_task_that_runs(server, namespace, tmp_path, monkeypatch):
    pytest.importorskip("django", reason="Django is not installed here")
    has_own_tasks = sys.version_info >= (3, 12)  # the extra brings django-tasks to older ones
    pytest.importorskip("django.tasks" if has_own_tasks else "django_tasks", reason="it has no tasks here")
    (tmp_path / "shop").mkdir()
    (tmp_path / "settings.py").write_text(SETTINGS + shown("TASKS"))
    tasks = shown("# shop/tasks.py")
    (tmp_path / "shop/tasks.py").write_text(tasks if has_own_tasks else tasks.replace("django.tasks", "django_tasks"))
    (tmp_path / "shop/views.py").write_text(shown("# shop/views.py"))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    visit = [sys.executable, "-c", VISIT]
    assert subprocess.check_output(visit, cwd=tmp_path, env=environment, text=True, timeout=60) == "202\n"
    job = run_until_complete(server, namespace, tmp_path, "default", "--handlers", "supervisor.contrib.django.handlers")
    assert (job.klass, job.result) == ("shop.tasks.receipt", {"order": 7})
