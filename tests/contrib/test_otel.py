"""Arguments of `instrument`, its error without the package, and the wait for a collector."""

import subprocess
import sys
import threading
import time

import pytest
from opentelemetry.sdk.trace import TracerProvider

from supervisor.child import around
from supervisor.child.around import Ending
from supervisor.child.context import JobCalls, JobContext
from supervisor.child.hooks import registered_hooks
from supervisor.contrib import otel
from supervisor.messages import JobMessage


@pytest.fixture
def registered():
    """Removes all registered functions."""
    lists = (registered_hooks.confined, around.registered, registered_hooks.on_exit)
    before = [list(each) for each in lists]
    yield lambda: [len(each) - len(had) for each, had in zip(lists, before, strict=True)]
    for each, had in zip(lists, before, strict=True):
        each[:] = had


@pytest.mark.parametrize("provider", [None, TracerProvider(shutdown_on_exit=False), lambda: None])
def test_provider_may_be_given_made_or_global(registered, provider):
    otel.instrument(provider, flush="1s")
    assert registered() == [1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"provider": "otlp"}, TypeError, "provider must be a TracerProvider, .*'otlp'"),
        ({"flush": "soon"}, ValueError, "flush='soon'"),
        ({"flush": -1}, ValueError, "flush=-1: write 0 to 8 seconds"),
        ({"flush": "1m"}, ValueError, "flush='1m': write 0 to 8 seconds"),
        ({"flush": float("nan")}, ValueError, "flush=nan"),
        ({"flush": None}, ValueError, "flush=None"),
    ],
)
def test_bad_argument_is_refused_and_registers_nothing(registered, arguments, error, message):
    with pytest.raises(error, match=message):
        otel.instrument(**arguments)
    assert registered() == [0, 0, 0]


def test_failing_provider_costs_only_the_spans(registered, capsys):
    def broken():
        raise ValueError("no exporter")

    otel.instrument(broken)
    registered_hooks.confined[-1]()
    assert capsys.readouterr().err == "leasehold: this child has no spans: ValueError: no exporter\n"
    message = JobMessage(7, "j", "k", "q", 0, 0, 0, 0, [], None, False, 0.0, False, b"{}")
    around.end(around.begin(JobContext(message, "/", JobCalls())), Ending("completed"))
    registered_hooks.on_exit[-1]()


def test_missing_package_names_what_to_install():
    code = "import sys; sys.modules['opentelemetry'] = None; import supervisor.contrib.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: spans need the package opentelemetry-sdk: pip install 'leasehold[otel]'"
    )


@pytest.fixture
def stuck():
    """Begins flushes that end with the test."""
    over, threads = threading.Event(), []

    def begin(call=over.wait):
        threads.append(threading.Thread(target=call, daemon=True))
        threads[-1].start()
        return threads[-1]

    yield begin
    over.set()
    for thread in threads:
        thread.join(10)


def done():
    thread = threading.Thread(target=lambda: None)
    thread.start()
    return thread


def length_s(call, *arguments):
    began_at = time.monotonic()
    call(*arguments)
    return time.monotonic() - began_at


def test_after_one_budget_without_answer_no_child_waits(stuck, capsys):
    patience = otel._CollectorWait(0.2)
    assert not patience.is_over()
    assert length_s(patience.wait_for, stuck()) >= 0.2
    assert "spans were not sent within 0.2 s" in capsys.readouterr().err
    assert patience.is_over()


def test_one_child_tries_again_after_the_pause(stuck, monkeypatch):
    monkeypatch.setattr(otel, "_AGAIN_S", 0.0)
    patience = otel._CollectorWait(0.1)
    patience.wait_for(stuck())
    monkeypatch.setattr(otel, "_AGAIN_S", 60.0)
    assert not patience.is_over()
    assert patience.is_over()
    patience.wait_for(done())
    assert not patience.is_over()


def test_second_waiting_child_gives_up_early(stuck, capsys):
    patience = otel._CollectorWait(4.0)
    never = stuck()
    first = stuck(lambda: patience.wait_for(never))
    while not patience._SHARED.unpack_from(patience._shared)[0]:
        time.sleep(0.001)  # until the wait is noted
    patience.wait_for(stuck())
    assert first.is_alive()
    assert capsys.readouterr().err == ""
