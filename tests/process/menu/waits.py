"""Handlers that wait for signals and times, and that work in steps. Each step adds a line to a file."""

import asyncio

import menu
from supervisor import handler


def _note(path, text):
    menu.append_to(path, f"{text}\n")
    return text


async def _note_later(path, text):
    await asyncio.sleep(0)
    return _note(path, text)


@handler
def approved(job):
    """Waits for two signals, with a step and a follower before each. data: file, timeout."""
    menu.enter(job)
    job.put("elsewhere", "k")
    job.step("ask", _note, job.data["file"], "asked")
    try:
        answer = job.wait("approval", timeout=job.data.get("timeout"))
    except TimeoutError:
        return "in vain"
    job.step("tell", _note, job.data["file"], f"told {answer}")
    return [answer, job.wait("second"), job.attempt]


@handler
async def approved_async(job):
    menu.enter(job)
    await job.step("ask", _note_later, job.data["file"], "asked")
    return job.wait("approval")


@handler
def naps(job):
    """Sleeps twice. data: file, nap."""
    menu.enter(job)
    for number in range(2):
        job.step(f"before {number}", _note, job.data["file"], number)
        job.sleep(job.data["nap"])
    return "rested"


@handler
def caught(job):
    """Ends what it has begun, and lets our exception go. data: file."""
    menu.enter(job)
    try:
        job.wait("approval")
    except Exception:
        _note(job.data["file"], "caught")
    finally:
        _note(job.data["file"], "finally")


@handler
def behind_a_gate(job):
    """Waits by what data says. data: gate, nap (None: it waits for a signal)."""
    menu.enter(job)
    menu.wait_at(job.data["gate"])
    try:
        return job.wait("approval") if job.data["nap"] is None else job.sleep(job.data["nap"])
    finally:
        print("left")


@handler
def streams(job):
    """Streams, waits, and streams on."""
    menu.enter(job)
    job.step("ask", job.stream, "asked")
    for name in ("approval", "second"):
        job.step(f"tell {name}", job.stream, job.wait(name))


@handler
def refused(job):
    """Tries what cannot be."""
    menu.enter(job)
    said = []
    tries = {
        "wait": lambda: job.wait("a", timeout=-1), "name": lambda: job.wait("a\nb"), "sleep": lambda: job.sleep("long"),
        "size": lambda: job.step("s", lambda: "x" * 65536), "again": lambda: job.step("s", int),
        "set": lambda: job.step("t", set), "async": lambda: job.step("u", _note_later, job.data, 1),
        "persistent": lambda: job.wait("a"),
    }  # fmt: skip
    for what in job.data:
        try:
            tries[what]()
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


@handler
def five_steps(job):
    """Works in five steps. data: file, and how long to stay in each."""
    menu.enter(job)
    return [job.step(f"step {number}", _note, job.data, number) for number in range(5)]


@handler
def large(job):
    """Stores a large step, then waits. Returns how much of all it has found. data: bytes."""
    menu.enter(job)
    kept = job.step("kept", str.__mul__, "x", 60_000)
    return len(kept) + len(job.wait("approval")) + len(job.raw)
