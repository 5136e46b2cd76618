"""Handlers whose jobs share a child. Beside them those of the menu would get children by other rules."""

import asyncio

import menu

from supervisor import JobFailed, handler


@handler
def give(job, result=None):
    return result


@handler(concurrency=10)
async def collect(job):
    """Return the results of its parents."""
    shown = {jid: [one.group, one.message] if isinstance(one, JobFailed) else one for jid, one in job.results.items()}
    return [list(pair) for pair in shown.items()]


@handler(concurrency=5)
async def say(job):
    """Streams data's chunks, and two more."""
    menu.enter(job)
    for chunk in job.data["chunks"]:
        await job.astream(chunk)
    await asyncio.to_thread(job.stream, "in a thread")
    job.stream("and in the loop")


@handler(concurrency=4)
async def approved(job):
    """Waits for a signal, after four steps. data: file."""
    menu.enter(job)
    await job.step("ask", _note, job.data["file"], "asked")
    await asyncio.gather(*(job.astep(f"beside {n}", _note, job.data["file"], f"beside {n}") for n in range(3)))
    return job.wait("approval")


async def _note(path, text):
    await asyncio.sleep(0)
    menu.append_to(path, f"{text}\n")
    return text
