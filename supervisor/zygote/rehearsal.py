"""What every child does, done before there is one. Runs in the zygote, before anything foreign is imported.

What Python learns of code that runs often, where its names are found and which instructions fit, it writes into the
pages where these lie. Each child would learn it anew with its first job, and have all these pages copied.
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

#: By then it has learnt what it learns: it begins after eight times.
_TIMES: Final = 32


def rehearse(boot: Boot) -> None:
    """Run jobs that do nothing. Leaves nothing behind. Where there is no directory for them it is left out."""
    boot = replace(boot, jobs_per_child=1, memory_limit_bytes=0)
    path = messages.child_directory(boot.workdir, 0)
    with contextlib.suppress(OSError):  # the first child says what is wrong with the directory
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
