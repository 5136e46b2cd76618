"""Handlers that a test writes itself, where the menu's would not do: what they do while they are imported, and around
forks.
"""

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


@handler
def hold(job):
    os.close(os.open(HERE / "gates" / job.data, os.O_RDONLY))

"""


def start_app(stage, source, **flags):
    """Start a supervisor for these handlers; `noop` and `hold` are there anyway."""
    folder = stage.directory / "app"
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(HEAD.format(here=str(stage.directory)) + source)
    return stage.start(handlers="app", **flags)


def flag(stage, name, on=True):
    """What `is_set(name)` answers in the handlers."""
    path = stage.directory / name
    path.touch() if on else path.unlink()
