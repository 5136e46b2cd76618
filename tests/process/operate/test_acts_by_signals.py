"""Acts by signals are recorded with their senders, and the record stays when the supervisor has gone."""

import os
import signal

from apps import start_app

from supervisor.cli.top.model import Model
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.commands import course
from supervisor.web.marks import marks

SIGNALS = (signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR2, signal.SIGCONT)


def test_acts_by_signals_outlive_the_supervisor(stage):
    pool, client = start_app(stage, "", processes=2).wait_ready(), stage.client
    for nth, signo in enumerate(SIGNALS, 1):
        pool.send(signo)
        pool.wait_for("signal.received", nth=nth)
    stage.wait_until_counted(lambda: len(client.audit(pool.worker)) == len(SIGNALS))
    assert pool.drain() == 0

    acts = client.audit(pool.worker)
    assert [(act.act, act.kind, act.value) for act in acts] == [
        ("resume", "worker", None), ("pause", "worker", None), ("scale", "worker", '{"fewest":3,"most":3}'),
        ("reload", "worker", None),
    ]  # fmt: skip
    for act, signo in zip(reversed(acts), SIGNALS, strict=True):
        assert str(act.actor).startswith(f"{signo.name} from pid {os.getpid()} (")

    found = marks(calls_of(client).call(course.read, "hour"), acts, Model())
    told = [(mark.kind, mark.words.partition(" by ")[0]) for mark in found]
    assert ("deploy", f"reload {pool.worker}") in told and ("scale", f"scale {pool.worker} to 3:3") in told
