"""Handlers that inspect their surroundings and return what they find."""

import os
import resource
import signal
import subprocess
from pathlib import Path

import menu
from supervisor import handler


def _descriptors(pid):
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except OSError:
            continue
    return found


@handler
def around(job):
    menu.enter(job)
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "sid": os.getsid(0),
        "pgid": os.getpgid(0),
        "cwd": str(Path.cwd()),
        "workdir": str(job.workdir),
        "files": os.listdir("."),
        "environ": dict(os.environ),
        "exec_environ": [e for e in Path("/proc/self/environ").read_text(errors="replace").split("\0") if e],
        "stdin": str(Path("/proc/self/fd/0").readlink()),
        "read": os.read(0, 10).decode(),
        "descriptors": _descriptors("self"),
        "heirs": subprocess.run(
            ["sh", "-c", "for f in /proc/self/fd/*; do readlink $f; done"],
            capture_output=True,
            text=True,
            close_fds=False,
        ).stdout.split(),
        "no_new_privs": status["NoNewPrivs"].strip(),
        "blocked": status["SigBlk"].strip(),
        "ignored": status["SigIgn"].strip(),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "term": str(signal.getsignal(signal.SIGTERM)),
        "modules": [
            name for name in ("redis", "hiredis", "supervisor.master.master") if name in __import__("sys").modules
        ],
    }


@handler
def litter(job):
    """Returns the contents of its directory, and leaves files, a tree, a link and a read-only directory there."""
    menu.enter(job)
    seen = sorted(os.listdir("."))
    Path("file").write_text(job.jid)
    Path("deep/er").mkdir(parents=True)
    Path("deep/er/file").write_text("x")
    Path("out").symlink_to(job.data)
    Path("locked").mkdir()
    Path("locked/file").write_text("x")
    Path("locked").chmod(0o500)
    return seen


@handler
def wander(job):
    """Leaves its directory, and removes it."""
    menu.enter(job)
    seen = sorted(os.listdir("."))
    os.chdir("/")
    os.rename(job.workdir, f"{job.workdir}-gone") if job.data == "rename" else os.rmdir(job.workdir)
    return seen


@handler
def pipes(job):
    """Returns whether `terminate()` ends a program that the handler has started."""
    menu.enter(job)
    sleeper = subprocess.Popen(["sleep", "1000"])
    sleeper.terminate()
    return sleeper.wait(5)
