"""Shared by the tests of `leasehold top`: made-up snapshots, and their screen."""

import datetime

from supervisor.cli.top.controller import Controller
from supervisor.cli.top.model import Model, Snapshot
from supervisor.cli.top.view import UNICODE, Context, View
from supervisor.engine.commands.batches import BatchRecord
from supervisor.engine.commands.queue_counts import Depths
from supervisor.engine.commands.statistics import Spread, Stats
from supervisor.engine.commands.workers import WorkerInfo

#: Times of the last snapshot: monotonic and wall time.
NOW_AT = 1000.0
NOW_UNIX = 1_900_000_000.0


def counts(waiting=0, running=0, *, stalled=0, scheduled=0, depends=0, parked=0, paused=False, oldest_s=None, **by):
    return Depths(
        waiting=waiting, running=running, stalled=stalled, scheduled=scheduled, depends=depends, parked=parked,
        recurring=0, paused=paused, front=0, entries=0, ready=0 if paused else waiting, oldest_s=oldest_s,
        **by,
    )  # fmt: skip


def stats(queue, completed=0, wait_s=0.0, run_s=0.0, *, failures=0):
    def spread(mean):
        return Spread(completed, mean, 0.0, 0.0, [])

    return Stats(queue, datetime.date(2030, 3, 17), spread(wait_s), spread(run_s), failures, failures, 0, 0, 0)


def child(number, klass=None, running_s=None, *, jid=None, attempt=1, memory_bytes=0, ends=None):
    return {
        "child": number, "pid": 4000 + number, "jid": jid or (f"job-{number}" if klass else None), "klass": klass,
        "running_s": running_s, "state": "busy" if klass else "idle", "zygote": 1, "ahead": 0, "ends": ends,
        "attempt": attempt if klass else None, "memory_bytes": memory_bytes,
    }  # fmt: skip


def end(what, why, klass, ago_s, message="", *, jid="6JK2xghrRbuBbIain0NqbA", queue="emails"):
    return {
        "at_unix": NOW_UNIX - ago_s, "what": what, "why": why, "message": message, "jid": jid, "klass": klass,
        "queue": queue,
    }  # fmt: skip


def status(state="serving", *, processes=(4, 4, 4), children=(), completed=0, died=0, failed=0, ends=(), **more):
    now, fewest, most = processes
    busy = sum(1 for each in children if each["jid"])
    return {
        "worker": "w", "version": "0.1.0", "state": state, "left_s": None, "uptime_s": 7500.0, "paused": False,
        "processes": {"now": now, "fewest": fewest, "most": most, "reason": "as given"}, "busy": busy,
        "idle": len(children) - busy, "children": list(children), "zygotes": [], "reload": None, "queues": ["emails"],
        "redis": {"connected": True, "url": "redis://redis:6379", "server": "valkey 8.1.1"}, "ends": list(ends),
        "sandbox_levels": ["basic"],
        "counts": {"completed": completed, "died": died, "failed": failed}, **more,
    }  # fmt: skip


def snapshot(at=NOW_AT, *, queues=None, stats=None, failed=None, workers=(), supervisors=None, **more):
    now_unix = NOW_UNIX + at - NOW_AT
    return Snapshot(at, now_unix, queues or {}, stats or {}, failed or {}, list(workers), supervisors or {}, **more)


def model_of(*polls):
    model = Model()
    for each in polls:
        model.take(each)
    return model


def worker(name, running=0, stalled=0, ago_s=1.0):
    return WorkerInfo(name, running, stalled, NOW_UNIX - ago_s, ago_s)


def batch(id, state="running", total=0, pending=0, complete=0, failed=0, paused_by=None, description="", parent=None):
    paused_unix = NOW_UNIX - 60 if paused_by else None
    return BatchRecord(
        id, state, description, parent, total, pending, complete, failed, 0, NOW_UNIX - 120, NOW_UNIX - 100,
        NOW_UNIX - 1 if state == "complete" else None, [], paused_by is not None, paused_by, paused_unix,
    )  # fmt: skip


class Shown:
    """A controller of a model, and its screen."""

    def __init__(self, model, glyphs=UNICODE, after_s=0.2):
        self.controller = Controller(model)
        self.view = View(model, self.controller, glyphs)
        self.context = Context("shop", "redis://redis:6379/0", "03:12:07", NOW_AT + after_s, 1.0)

    def lines(self, width=120, height=40):
        screen = self.view.screen(self.context, width, height)
        assert len(screen.lines) == height
        return [line.plain.rstrip() for line in screen.lines]

    def text(self, width=120, height=40):
        return "\n".join(self.lines(width, height)) + "\n"

    def styles(self, containing, width=120, height=40):
        """Return the styles of the first line that contains a text."""
        lines = self.view.screen(self.context, width, height).lines
        line = next(line for line in lines if containing in line.plain)
        return {line.plain[span.start : span.end].strip(): str(span.style) for span in line.spans if span.style}

    def press(self, *keys):
        """Press keys, and return the requests that they make."""
        return [request for key in keys if (request := self.controller.press(key)) is not None]


def busy_shop():
    """Three busy supervisors: one drains, one does not answer. Two polls are ten seconds apart."""
    names = ("web-1-4711-3f2a", "web-2-4712-9c01", "web-3-4713-77be")
    children = [
        child(1, "email.send", 0.42, jid="6JK2xghrRbuBbIain0NqbA", memory_bytes=3_200_000),
        child(2, "image.resize", 12.3, jid="yI9_p-tiSWux1uMM75jV2Q", memory_bytes=410_000_000, attempt=3),
        child(3, "report.monthly", 7231, jid="0dbhP3B6TMG1tKq4QKacmA", memory_bytes=88_000_000),
        child(4),
    ]
    ends = [
        end("died", "SIGSEGV", "image.resize", 4, "the child that ran it was ended by SIGSEGV", queue="images"),
        end("failed", "ValueError", "payment.charge", 17, "card declined: 4111 ####", queue="payments"),
    ]
    other_ends = [
        end("retried", "TimeoutError", "email.send", 9, "smtp.example.org has not answered within 10 s"),
        end("released", "drain", "report.monthly", 31, queue="reports"),
    ]

    def at(seconds):
        done = 1000 + 120 * seconds
        return snapshot(
            NOW_AT - 10 + seconds,
            queues={
                "emails": counts(12_301, 7, oldest_s=250.4),
                "images": counts(12, 4, stalled=2, parked=3, oldest_s=4.2),
                "payments": counts(0, 1, scheduled=120, depends=4),
                "reports": counts(
                    3, 2, paused=True, oldest_s=7300.0, paused_by="kim@web-1", paused_unix=NOW_UNIX - 60
                ),
                "newsletter": counts(),
            },
            stats={
                "emails": stats("emails", int(100 * seconds), 3.2, 0.033),
                "images": stats("images", int(3 * seconds), 0.2, 1.29),
                "payments": stats("payments", int(17 * seconds), 0.0045, 0.052, failures=int(seconds)),
            },
            failed={"ValueError": 1000 + int(seconds), "died:SIGSEGV": 204},
            workers=[worker(name, 4) for name in names] + [worker("script-9-1-aaaa", 1)],
            supervisors={
                names[0]: status(
                    children=children, completed=done, died=2 if seconds else 1, ends=ends,
                    deaths={"SIGSEGV": 2, "oom": 7},
                ),
                names[1]: status(
                    "draining", children=children[:2], completed=int(done / 2), left_s=21.5, ends=other_ends,
                    uptime_s=372_000.0, reload={"outcome": "failed", "at_unix": NOW_UNIX},
                ),
                names[2]: status(processes=(2, 1, 4)) if seconds < 5 else None,
            },
        )  # fmt: skip

    return model_of(at(0), at(4), at(7), at(10))
