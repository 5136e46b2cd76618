"""Handlers for bytes, which return the digest of what they received."""

import hashlib
import os

import menu
from supervisor import handler


def _digest(job):
    return {"bytes": len(job.raw), "sha256": hashlib.sha256(job.raw).hexdigest(), "kind": type(job.data).__name__}


@handler
def raise_at_first(job):
    """Raises until its gate file exists: until the job has failed."""
    menu.enter(job)
    marker = f"{os.environ['MENU_LEDGER']}-{job.jid}"
    if not os.path.exists(marker):
        with open(marker, "w"):
            raise RuntimeError("at first")
    return _digest(job)


@handler(backoff=0)
def raise_die_wait(job):
    """Raises, then dies, then waits at the gate that its only tag names, if it has one."""
    menu.enter(job)
    if job.attempt == 1:
        raise RuntimeError("at first")
    if job.attempt == 2:
        os._exit(3)
    if job.tags:
        menu.wait_at(job.tags[0])
    return _digest(job)


@handler
def hand_on(job):
    """Puts its bytes to another handler, continues with them reversed, and returns the digest."""
    menu.enter(job)
    if job.queue == "other":
        return _digest(job)
    job.put("other", "good.digest", job.raw)
    job.next("other", job.raw[::-1])
    return None
