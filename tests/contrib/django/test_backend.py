"""The backend in a project of Django: it puts after the commit, and has results; and `manage.py leasehold`."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest

from supervisor.contrib.outbox.databases import opened
from supervisor.contrib.outbox.relay import Relay
from supervisor.engine.client.sync_client import Client
from tests.docs.pages import ROOT
from tests.environment import without_settings

pytest.importorskip("django", reason="Django is not installed here")
TASKS = "django_tasks" if sys.version_info < (3, 12) else "django.tasks"
pytest.importorskip(TASKS, reason=f"{TASKS} is not installed here")

SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = ["shop", "supervisor.contrib.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "app.db"}}
USE_TZ = True
TASKS = {"default": {"BACKEND": "supervisor.contrib.django.backend.LeaseholdBackend", "OPTIONS": OPTIONS}}
"""
DECLARED = f"""
from {TASKS} import task

@task()
def double(number):
    return number * 2

@task(takes_context=True)
def which(context):
    return [context.task_result.id, context.attempt]

@task()
def broken():
    raise LookupError("no such order")

@task()
def hand_on(number, fails):
    enqueued = double.enqueue(number)
    if fails:
        raise LookupError("no such order")
    return enqueued.id
"""
MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
BEGIN = """
import os; os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django; django.setup()
import json
from django.db import transaction
from shop import tasks
from supervisor.contrib.django.interface import exceptions, tasks as api
backend = api.default_task_backend
waiting = lambda: [job.data["args"] for job in backend.client.queue("default").jobs("waiting")]
"""


class Project:
    """A project in a folder of its own."""

    def __init__(self, folder, url, namespace):
        self.folder = folder
        self.environment = {
            **without_settings(),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        }
        self._options = {"redis_url": url, "namespace": namespace}
        self.environment |= {"LEASEHOLD_REDIS_URL": url}
        (folder / "shop").mkdir()
        (folder / "shop/__init__.py").touch()
        (folder / "shop/tasks.py").write_text(DECLARED)
        (folder / "manage.py").write_text(MANAGE)
        (folder / "app.db").touch()
        self.configure()

    def configure(self, **options):
        text = SETTINGS.replace("OPTIONS}", repr({**self._options, **options}) + "}")
        (self.folder / "settings.py").write_text(text)

    def run(self, *words):
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, code):
        """Run code in the project, and return the value that it prints as JSON."""
        return json.loads(self.run("-c", BEGIN + code))


@pytest.fixture
def project(tmp_path, server, namespace):
    return Project(tmp_path, server.url, namespace)


def test_rolled_back_transaction_puts_nothing_and_committed_one_puts_once(project):
    code = """
try:
    with transaction.atomic():
        tasks.double.enqueue(1)
        raise KeyError
except KeyError:
    rolled_back = waiting()
with transaction.atomic():
    result = tasks.double.enqueue(2)
    inside = [waiting(), result.enqueued_at]
print(json.dumps([rolled_back, inside, waiting(), result.enqueued_at is not None]))
"""
    assert project.python(code) == [[], [[], None], [[2]], True]


def test_enqueue_without_a_transaction_puts_at_once(project):
    assert project.python("tasks.double.enqueue(3); print(json.dumps(waiting()))") == [[3]]


def test_priority_and_time_are_those_of_the_task(project):
    code = """
from django.utils import timezone
import datetime
tasks.double.using(priority=-5).enqueue("low")
tasks.double.using(priority=5).enqueue("high")
later = timezone.now() + datetime.timedelta(hours=1)
result = tasks.double.using(run_after=later).enqueue("later")
leases = backend.client.queue("default").lease("w", 9)
print(json.dumps([[lease.data["args"][0] for lease in leases], backend.get_result(result.id) == result]))
"""
    assert project.python(code) == [["high", "low"], True]


def test_outbox_option_leaves_the_task_in_the_database(project, server, namespace):
    project.configure(outbox=True)
    with closing(opened(f"sqlite:///{project.folder}/app.db")) as database, Client(server.url, namespace) as client:
        database.create()
        relay = Relay(database, client)
        code = """
try:
    with transaction.atomic():
        tasks.double.enqueue(1)
        raise KeyError
except KeyError:
    tasks.double.enqueue(2)
print(json.dumps(waiting()))
"""
        assert project.python(code) == []
        while relay.turn().was_busy:
            pass
        assert [job.data["args"] for job in client.queue("default").jobs("waiting")] == [[2]]


def test_job_of_another_klass_is_no_result_and_imports_nothing(project, server, namespace):
    (project.folder / "evil.py").write_text("raise SystemExit('imported')")
    with Client(server.url, namespace) as client:
        client.queue("default").put("evil.function", jid="j")
    code = """
try:
    backend.get_result("j")
except exceptions.TaskResultDoesNotExist as error:
    print(json.dumps(str(error)))
"""
    assert project.python(code) == "j"


@pytest.mark.parametrize(("options", "about"), [({"retrys": 3}, "retrys"), ({"put": {"retries": -1}}, "retries")])
def test_wrong_option_is_refused_by_its_name(project, options, about):
    project.configure(**options)
    with pytest.raises(AssertionError, match=about):
        project.python("")


@pytest.mark.slow
@contextmanager
def running(project):
    """`manage.py leasehold run` for the block, which drains it in the end."""
    command = [sys.executable, "manage.py", "leasehold", "run", "--processes", "2", "--log", "json"]
    environment = {**project.environment, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=project.folder, env=environment, stderr=subprocess.PIPE, text=True
    ) as supervisor:
        try:
            assert any('"zygote.ready"' in line for line in supervisor.stderr)
            yield
        finally:
            supervisor.send_signal(signal.SIGTERM)
            supervisor.communicate(timeout=60)
        assert supervisor.returncode == 0


@pytest.mark.sampled(3)
def test_manage_py_runs_tasks_and_their_results_come_back(project):
    with running(project):
        code = """
results = [tasks.double.enqueue(21), tasks.which.enqueue(), tasks.broken.enqueue()]
for result in results:
    try: backend.client.wait(result.id, "30s")
    except Exception: pass
    result.refresh()
done, which, broken = results
print(json.dumps([done.return_value, which.return_value == [which.id, 1], broken.status,
                  broken.errors[0].exception_class.__name__, broken.attempts, done.started_at >= done.enqueued_at]))
"""
        assert project.python(code) == [42, True, "FAILED", "LookupError", 1, True]
        assert "default" in project.run("manage.py", "leasehold", "queues")


@pytest.mark.sampled(2)
def test_task_enqueues_another_one_on_success(project):
    project.configure(redis_url=None)
    with running(project):
        code = """
failed = tasks.hand_on.enqueue(1, fails=True)
try: backend.client.wait(failed.id, "30s")
except Exception: pass
done = tasks.hand_on.enqueue(2, fails=False)
doubled = backend.client.wait(backend.client.wait(done.id, "30s"), "30s")
print(json.dumps([doubled, sorted(job.klass for job in backend.client.queue("default").jobs("complete"))]))
"""
        assert project.python(code) == [4, ["shop.tasks.double", "shop.tasks.hand_on"]]
