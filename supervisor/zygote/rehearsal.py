"""Runs empty jobs before the first fork. Runs in the zygote, before anything foreign is imported.

CPython specialises code that runs often, and writes the result into the code's own pages. Without the rehearsal each
child would do so with its first job, and copy all these pages. Must not leave anything behind.
"""

import contextlib
import os
import socket
from dataclasses import replace
from typing import Final

from supervisor import messages
from supervisor.child.child import REHEARSAL_HANDLER, REHEARSAL_JOB, REHEARSAL_KLASS, Child
from supervisor.linux import kernel
from supervisor.messages import Boot, Profile
from supervisor.sandbox.confinement import Confinement
from supervisor.sandbox.workdir import Workdir

#: CPython specialises code after 8 calls. 32 runs complete it.
_TIMES: Final = 32


def rehearse(boot: Boot) -> None:
    """Run empty jobs in child directory 0. Does nothing if there can be no such directory."""
    boot = replace(boot, jobs_per_child=1, memory_limit_bytes=0)
    path = messages.child_directory(boot.workdir, 0)
    with contextlib.suppress(OSError):  # the first child will report what is wrong with the directory
        before = os.open(".", os.O_PATH | os.O_CLOEXEC)
        try:
            _run_jobs(boot, path)
        finally:
            os.fchdir(before)
            os.close(before)
            os.rmdir(path)


def _run_jobs(boot: Boot, path: str) -> None:
    known = {REHEARSAL_KLASS: REHEARSAL_HANDLER}
    confinement = Confinement(boot, [Profile("none", True)], lambda: None)
    for _ in range(_TIMES):
        jobs, jobs_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        talk, talk_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with jobs, jobs_end, talk, talk_end:
            workdir = Workdir(path)
            workdir.claim()
            child = Child(0, jobs_end, talk_end, workdir, known, boot, confinement)
            child.say_ready()
            jobs.send(REHEARSAL_JOB)
            packet, fds = kernel.receive(jobs_end, messages.MAX_PACKET_BYTES, 1)
            child.serve_one(messages.unpack_job(packet), fds)
