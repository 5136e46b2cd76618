"""Handlers with follow-ups or a next stage, or without."""

import gc
import os
import time

import menu
from supervisor import Fail, Retry, handler, messages
from supervisor.child.child import Child


def _say(job):
    """Do with the job what its data says. Return the jids of the follow-ups."""
    told = job.data
    jids = [job.put(queue, klass, data, **options) for queue, klass, data, options in told.get("put", ())]
    if "next" in told:
        job.next(**told["next"])
    return jids


def _end(job, jids):
    match job.data.get("end") if job.attempt <= job.data.get("times", 1) else None:
        case "raise":
            raise RuntimeError("not this time")
        case "retry":
            raise Retry(0)
        case "fail":
            raise Fail("no")
        case "die":
            os._exit(3)
    return jids


@handler
def after(job):
    """data["put"]: queue, klass, data, options of each; data["next"]; data["end"]: how, on so many first `times`."""
    menu.enter(job)
    return _end(job, _say(job))


@handler
async def after_coroutine(job):
    menu.enter(job)
    job.progress(0.5, "half")
    return _end(job, _say(job))


@handler
def bytes_after(job):
    """Puts its bytes, and as many other bytes as data's length says."""
    menu.enter(job)
    return [job.put("other", "good.digest", job.raw), job.put("other", "good.digest", b"\xff" * 20_000_000)]


@handler
def large_after(job):
    """Puts a job of so many bytes. data: how many."""
    menu.enter(job)
    return job.put("waits", "good.digest", b"\xff" * job.data)


@handler
def large_after_gate(job):
    """Puts a large job after the gate has opened: many of them complete at once."""
    menu.enter(job)
    menu.wait_at(job.data["gate"])
    return job.put("waits", "good.digest", b"\xff" * job.data["bytes"])


@handler
def pass_on(job):
    """Continues with other bytes."""
    menu.enter(job)
    job.next("other", bytes(reversed(job.raw)))


@handler
def claim_on_nonsense(job):
    """Forges a message of the child: the follow-up is unique by its data, which is no JSON."""
    menu.enter(job)
    (child,) = (one for one in gc.get_objects() if type(one) is Child)
    followers = [messages.Follower("waits", "good.noop", {"unique": True}, messages.Blob("json", b"{{{"))]
    body = b"".join(messages.pack_completion(messages.Completion(b"", None, followers)))
    child._talk.send(messages.pack_outcome(messages.Verb.FOLLOWED, job.token, 0.1, body))
    time.sleep(1000)


@handler
def bad_arguments(job):
    """Returns the messages of wrong calls, in their order."""
    menu.enter(job)
    said = []
    for call in (
        lambda: job.put("", "k"),
        lambda: job.put("q", "k", object()),
        lambda: job.put("q", "k", tries=3),
        lambda: job.put("q", "k", jid=job.jid),
        lambda: job.next("q", delay=-1),
        lambda: job.progress(2),
        lambda: job.progress(0.5, 5),
    ):
        try:
            call()
        except (TypeError, ValueError) as error:
            said.append(str(error))
    return said
