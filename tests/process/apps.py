"""Handlers that a test writes itself, to control what happens during the import and around forks."""

import psutil

HEAD = """
import ctypes, os, random, secrets, signal, socket, subprocess, sys, threading, time
from pathlib import Path

from supervisor import after_fork, before_fork, handler, on_exit

HERE = Path({here!r})


def is_set(name):
    return (HERE / name).exists()


def count(name):
    with open(HERE / name, "a") as file:
        file.write("x")
    return os.path.getsize(HERE / name)


@handler
def noop(job): ...


def wait_at(gate):
    (HERE / "gates" / f"{{gate}}.reached").touch()
    os.close(os.open(HERE / "gates" / gate, os.O_RDONLY))


@handler
def hold(job):
    wait_at(job.data)

"""

#: A handler that tells which code it is.
VERSION = "@handler\ndef version(job): return {}\n"


def start_app(stage, source, **flags):
    """Start a supervisor for these handlers. The handlers `noop` and `hold` are always added."""
    write_app(stage, source)
    return stage.start(handlers="app", **flags)


def write_app(stage, source, file="__init__.py"):
    """Replace one of its files in one step, as a careful editor does."""
    folder = stage.directory / "app"
    folder.mkdir(exist_ok=True)
    written = folder / f"{file}.new"
    written.write_text(HEAD.format(here=str(stage.directory)) + source)
    written.rename(folder / file)


def flag(stage, name, on=True):
    """Set the value that `is_set(name)` returns in the handlers."""
    path = stage.directory / name
    path.touch() if on else path.unlink()


def put(stage, klass, count=1, **options):
    return stage.queue.put_many([{"klass": klass, **options} for _ in range(count)])


def run(stage, klass, count=1, **options):
    """Run these jobs, and return their results."""
    jids = put(stage, klass, count, **options)
    stage.wait_until_ended(jids)
    assert set(stage.states(jids)) == {"complete"}
    return [stage.client.job(jid).result for jid in jids]


def wait_for_arrival(stage, gate):
    """Wait until a handler waits at the gate. A job that was only sent could still be taken back from its child."""
    stage.wait_until_counted(lambda: (stage.directory / "gates" / f"{gate}.reached").exists())


def zygotes(pool):
    """Return the pids of the live zygotes."""
    return [each.pid for each in psutil.Process(pool.pid).children() if _title(each).startswith("leasehold: zygote")]


def _title(process):
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # or it waits to be reaped
        return ""


def wait_for_zygotes(stage, pool, count):
    stage.wait_until_counted(lambda: len(zygotes(pool)) == count)
