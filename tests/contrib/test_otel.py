"""What `instrument` takes, how it asks for what is missing, and for how long a collector is waited for."""

import subprocess
import sys
import threading
import time

import pytest
from opentelemetry.sdk.trace import TracerProvider

from supervisor.child.handlers import Ending, hooks
from supervisor.child.job import Job
from supervisor.contrib import otel
from supervisor.messages import JobMessage


@pytest.fixture
def registered():
    """What is registered goes again."""
    lists = (hooks.confined, hooks.around_job, hooks.on_exit)
    before = [list(each) for each in lists]
    yield lambda: [len(each) - len(had) for each, had in zip(lists, before, strict=True)]
    for each, had in zip(lists, before, strict=True):
        each[:] = had


@pytest.mark.parametrize("provider", [None, TracerProvider(shutdown_on_exit=False), lambda: None])
def test_it_takes_a_provider_a_function_that_makes_one_or_the_global_one(registered, provider):
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
def test_nonsense_is_refused_by_its_name_and_nothing_is_registered(registered, arguments, error, message):
    with pytest.raises(error, match=message):
        otel.instrument(**arguments)
    assert registered() == [0, 0, 0]


def test_a_provider_that_cannot_be_made_costs_the_spans_and_nothing_else(registered, capsys):
    def broken():
        raise ValueError("no exporter")

    otel.instrument(broken)
    hooks.confined[-1]()
    assert capsys.readouterr().err == "leasehold: this child has no spans: ValueError: no exporter\n"
    message = JobMessage(7, "j", "k", "q", 0, 0, 0, 0, [], None, False, 0.0, False, b"{}")
    hooks.around_job[-1](Job(message, "/", print, print))(Ending("completed"))
    hooks.on_exit[-1]()


def test_without_the_package_it_says_what_to_install():
    code = "import sys; sys.modules['opentelemetry'] = None; import supervisor.contrib.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: spans need the package opentelemetry-sdk: pip install 'leasehold[otel]'"
    )


@pytest.fixture
def stuck():
    """Begins flushes that end when the test does."""
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


def test_who_gets_no_answer_waits_for_its_budget_and_then_nobody_does(stuck, capsys):
    patience = otel._Patience(0.2)
    assert not patience.is_over()
    assert length_s(patience.wait_for, stuck()) >= 0.2
    assert "spans were not sent within 0.2 s" in capsys.readouterr().err
    assert patience.is_over()


def test_after_a_while_one_asks_again_and_only_it(stuck, monkeypatch):
    monkeypatch.setattr(otel, "_AGAIN_S", 0.0)
    patience = otel._Patience(0.1)
    patience.wait_for(stuck())
    monkeypatch.setattr(otel, "_AGAIN_S", 60.0)
    assert not patience.is_over()
    assert patience.is_over()
    patience.wait_for(done())
    assert not patience.is_over()


def test_who_is_not_the_first_to_wait_gives_up_early(stuck, capsys):
    patience = otel._Patience(4.0)
    never = stuck()
    first = stuck(lambda: patience.wait_for(never))
    while not patience._SHARED.unpack_from(patience._shared)[0]:
        time.sleep(0.001)  # until it is known that it waits
    patience.wait_for(stuck())
    assert first.is_alive()
    assert capsys.readouterr().err == ""
