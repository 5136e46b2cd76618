"""Sends a job's outcome to the master, with what the process has used. Runs in children.

Blocks while the socket is full.
"""

import errno
import os
import resource
import socket
from typing import Final

from supervisor import messages
from supervisor.linux import kernel
from supervisor.messages import INLINE_COMPLETION_BYTES, Trouble, Verb

_TOO_LARGE: Final = Trouble(
    "result-too-large", "what is to follow this job has more bytes than --workdir-limit lets it write into a file"
)


def used() -> tuple[float, int]:
    """Return what this process, and those that it has waited for, have used: processor seconds, and peak bytes of
    memory. The memory includes inherited pages.
    """
    own, waited = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    # Fields by number (user, system, peak KiB): names take three times as long, and every job is asked.
    return own[0] + own[1] + waited[0] + waited[1], max(own[2], waited[2]) * 1024


def send_outcome(talk: socket.SocketType, verb: Verb, token: int, run_s: float, parts: list[bytes]) -> None:
    """A large completion travels as a sealed memfd. One that may not be written fails the job."""
    if verb != Verb.FOLLOWED or sum(map(len, parts)) <= INLINE_COMPLETION_BYTES:
        talk.send(messages.pack_outcome(verb, token, run_s, b"".join(parts), *used()))
        return
    try:
        memfd = kernel.sealed_memfd(parts)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        body = messages.pack_trouble(_TOO_LARGE)
        talk.send(messages.pack_outcome(Verb.FAILED, token, run_s, body, *used()))
        return
    try:
        kernel.send(talk, messages.pack_outcome(verb, token, run_s, b"", *used()), (memfd,))
    finally:
        os.close(memfd)
