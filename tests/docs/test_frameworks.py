"""The applications of the page on frameworks. tests/contrib/django/ has those of Django."""

import pytest

from supervisor.child import handlers
from supervisor.engine.client.sync_client import Client
from tests.docs.pages import ROOT, blocks
from tests.lengths import SOON_S

PAGE = ROOT / "supervisor/docs/frameworks.md"
IN_PROCESS = ROOT / "supervisor/docs/in_process.md"


def test_fastapi_application_puts_a_job(server, namespace, monkeypatch):
    pytest.importorskip("fastapi", reason="FastAPI is not installed here")
    pytest.importorskip("httpx", reason="httpx, which FastAPI's test client needs, is not installed here")
    from fastapi.testclient import TestClient

    monkeypatch.setenv("LEASEHOLD_REDIS_URL", server.url)
    monkeypatch.setenv("LEASEHOLD_NAMESPACE", namespace)
    [shown] = [block for block in blocks(PAGE, "python") if "FastAPI" in block]
    application = {"__name__": "app"}
    exec(shown, application)
    with TestClient(application["app"]) as browser:
        jid = browser.post("/orders/7").json()
        assert browser.post("/orders/x").status_code == 422
    with Client(server.url, namespace) as client:
        [job] = client.queue("mail").jobs("waiting")
        assert (job.jid, job.klass, job.data) == (jid, "mail.receipt", {"order": 7})


def test_settings_for_django_name_what_there_is():
    [shown] = [block for block in blocks(PAGE, "python") if "TASKS" in block]
    settings = {}
    exec(shown, settings)
    assert "supervisor.contrib.django" in settings["INSTALLED_APPS"]
    [backend] = settings["TASKS"].values()
    assert backend["BACKEND"] == "supervisor.contrib.django.backend.LeaseholdBackend"


def test_fastapi_application_runs_its_own_jobs(server, namespace, monkeypatch, tmp_path):
    pytest.importorskip("fastapi", reason="FastAPI is not installed here")
    pytest.importorskip("httpx", reason="httpx, which FastAPI's test client needs, is not installed here")
    from fastapi.testclient import TestClient

    monkeypatch.setenv("LEASEHOLD_REDIS_URL", server.url)
    monkeypatch.setenv("LEASEHOLD_NAMESPACE", namespace)
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
