"""The public names: all that calls answer can be imported for annotations, and is short when it is printed."""

import inspect
import re
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import supervisor
import supervisor.testing
from supervisor.engine.client import async_client, async_handles, sync_client, sync_handles
from supervisor.engine.commands import statistics
from supervisor.engine.model import jobs
from tests.docs.pages import CONTRACT, README, blocks
from tests.type_checks import mypy

ROOT = Path(__file__).parents[1]
#: Types of answers that users need not write: bases, and types that master and commands share with the clients.
INNER = {"Command", "Any", "Self", "JobRecord", "Grant", "Answer"}


def classes():
    return [
        each
        for module in (sync_client, async_client, sync_handles, async_handles)
        for name, each in vars(module).items()
        if inspect.isclass(each) and each.__module__ == module.__name__ and not name.startswith("_")
    ]


def test_each_type_that_a_public_call_answers_can_be_imported():
    missing, names = set(), {name: getattr(supervisor, name) for name in supervisor.__all__}
    for each in (found for found in classes() if found.__name__ in supervisor.__all__):
        for name, method in inspect.getmembers(each, inspect.isfunction):
            if name.startswith("_"):
                continue
            said = str(get_type_hints(method, localns=names).get("return"))
            answered = re.findall(r"supervisor\.[\w.]+\.(\w+)", said)
            missing |= {f"{each.__name__}.{name}: {one}" for one in answered if one not in supervisor.__all__}
    assert {one for one in missing if one.rpartition(" ")[2] not in INNER} == set()


def attributes(each):
    """Return the annotation of each public attribute and property of a class."""
    names = {name: getattr(supervisor, name) for name in supervisor.__all__}
    for one in reversed(each.__mro__):
        names |= vars(sys.modules[one.__module__])
    found = {name: hint for name, hint in get_type_hints(each, localns=names).items() if not name.startswith("_")}
    for name, one in inspect.getmembers(each):
        read = one.fget if isinstance(one, property) else getattr(one, "func", None)
        if read is not None and not name.startswith("_"):
            found[name] = read.__annotations__.get("return")
    return found


def test_each_type_of_a_public_attribute_can_be_imported():
    public = {*supervisor.__all__, *supervisor.testing.__all__}
    missing = set()
    for module in (supervisor, supervisor.testing):
        for each in filter(inspect.isclass, (getattr(module, name) for name in module.__all__)):
            for name, hint in attributes(each).items():
                had = re.findall(r"supervisor\.[\w.]+\.(\w+)", str(hint))
                missing |= {f"{each.__name__}.{name}: {one}" for one in had if one not in public}
    # Masters and children share these with them: jobs that are checked already, and how a handler is run.
    assert missing == {"Completed.then: NewJob", "Handler.parameters: Parameters", "HandlerSettings.profile: Profile"}


def test_every_public_name_is_where_it_is_said_to_be():
    assert supervisor.__all__ == sorted(supervisor._HOMES)
    for name in supervisor.__all__:
        assert getattr(supervisor, name) is not None


def strict(tmp_path, code):
    """Return the objections of mypy to the code."""
    (tmp_path / "program.py").write_text(code)
    return mypy(tmp_path, "program.py")


ANNOTATED = """
from datetime import timedelta

from supervisor import (
    AsyncClient, AsyncJob, AsyncQueue, Client, Counts, Depths, Duration, Ending, EventStream, Handler, HandlerSettings,
    Job, Lane, Lease, PutOptions, Queue, RecurringJob, Stats, Tracked, Trouble, Violation, WorkerInfo
)

wait: Duration = timedelta(minutes=1)

def told(handler: Handler[[int], None], ending: Ending) -> tuple[HandlerSettings, Trouble | None]:
    return handler.settings, ending.trouble

def look(
    client: Client,
) -> tuple[Queue, Lane, Counts, Stats, list[WorkerInfo], Tracked[Job], list[Violation], EventStream]:
    queue = client.queue("q")
    options: PutOptions = {"delay": "10s", "timeout": wait}
    queue.put("k", **options)
    return (
        queue, queue.lane("l"), queue.counts(), queue.stats(), client.workers(), client.tracked(), client.check(),
        client.events(),
    )

async def wait_for(client: AsyncClient, jid: str) -> tuple[AsyncQueue, AsyncJob | None]:
    return client.queue("q"), await client.job(jid)

def found(client: Client) -> tuple[list[Lease], RecurringJob | None, dict[str, Depths]]:
    return client.lease("w", ["q"]), client.recurring("r"), client.queues()
"""


@pytest.mark.slow
def test_programs_can_annotate_what_calls_answer(tmp_path):
    shown = [block for page in (README, CONTRACT) for block in blocks(page, "python") if "with Client()" in block]
    assert strict(tmp_path, "\n".join([ANNOTATED, *shown])) == []


def test_printed_objects_are_short(server, namespace):
    with supervisor.Client(server.url, namespace) as client:
        q = client.queue("q")
        jid = q.put("email.send", {"to": "x" * 1000}, tags=["t"] * 50)
        assert repr(client.job(jid)) == f"<Job {jid} email.send waiting queue=q>"
        (lease,) = q.lease("w")
        lease.complete()
        assert repr(client.jobs(jid)) == f"[<Job {jid} email.send complete queue=q>]"
        every, cron = q.recur("k", every="1h", jid="h"), q.recur("k", cron="0 6 * * *", jid="c")
        assert repr(client.recurring(every)) == "<RecurringJob h k every=3600s queue=q>"
        assert repr(client.recurring(cron)) == "<RecurringJob c k cron='0 6 * * *' queue=q>"
        stats = q.stats()
        assert len(repr(stats)) < 400 and "histogram" not in repr(stats) and "mean=" in repr(stats)
        assert sum(stats.wait.histogram) == 1


def test_values_stay_equal_by_all_their_fields():
    one = statistics.Spread(1, 0.5, 0.0, 0.0, [1, 0])
    assert one != statistics.Spread(1, 0.5, 0.0, 0.0, [0, 1])
    assert jobs.JobRecord.__eq__ is not object.__eq__
