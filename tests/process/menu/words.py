"""Handlers that print, in each possible way."""

import faulthandler
import logging
import os
import subprocess
import sys

import menu
from supervisor import handler

_CHUNKS = {
    "short lines": b"y\n" * 32768,
    "long lines": (b"x" * 20_000 + b"\n") * 4,
    "no line at all": b"x" * 65536,
    "rubbish": bytes(range(256)) * 256,
    "forged marks": b"".join(b"\x1e%d\n" % token for token in range(8000)),
}


@handler
def flood(job):
    """Prints data["bytes"] of one kind as fast as it can, then fails."""
    menu.enter(job)
    kind, size = job.data["kind"], job.data["bytes"]
    if kind == "a tree of programs":
        one = f"(yes 'one line of many' | head -c {size // 4})"
        subprocess.run(f"{one} & {one} & {one} & {one} & wait", shell=True, check=True)
    else:
        chunk = _CHUNKS[kind]
        for _ in range(size // len(chunk)):
            os.write(1, chunk)
    print("\nthe end")
    raise LookupError("printed enough")


@handler
def speak(job):
    """Prints by each way to its output, then raises if its data says "raise"."""
    menu.enter(job)
    print("no end of this line ", end="")
    print("before here")
    logging.getLogger("app").warning("by logging")
    os.write(2, b"\x1b[31mred\x1b[0m and \0 and \xff\n")
    os.write(1, "ä€😀".encode()[:4])
    os.write(1, "ä€😀\n".encode()[4:])
    os.system("echo from a shell")
    faulthandler.dump_traceback(sys.stderr, all_threads=False)
    print("x" * 9000)
    if job.data == "raise":
        raise LookupError("said enough")


@handler
def redirect(job):
    """Replaces its output by the file of this path, and leaves it so. data: path."""
    menu.enter(job)
    print("before")
    file = os.open(job.data, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.close(file)
    print("into the file")
    raise LookupError("redirected")


@handler
def close(job):
    """Closes the stream objects, not only the descriptors."""
    menu.enter(job)
    print("last words")
    sys.stdout.close()
    sys.stderr.close()


@handler
def hang_up(job):
    """Closes the descriptors, but not the stream objects."""
    menu.enter(job)
    os.write(1, b"last words\n")
    os.close(1)
    os.close(2)


@handler
def forge(job):
    """Prints marks as if each earlier job had ended here."""
    menu.enter(job)
    for token in range(max(1, job.token - 100), job.token):
        os.write(1, b"not mine\x1e%d\n" % token)
    print("the end")


@handler
def burst(job):
    """Prints so many lines at once, and waits at a gate."""
    menu.enter(job)
    os.write(1, b"y\n" * job.data["lines"])
    menu.wait_at(job.data["gate"])
