"""Puts jobs into a peer, in the peer's own environment:

    produce.py APP backlog FIRST COUNT | APP paced COUNT GAP | APP rate one|many COUNT

APP is a module with `put(data)`, maybe `put_all(list of data)`, `begin()` and `end()`, each of them async or not.
`paced` prints the moment before each put, `rate` the seconds of all, and the processor time that they have taken here.
"""

import asyncio
import inspect
import json
import sys
import time
from importlib import import_module


async def call(app, name, *arguments):
    """Call the app's function of this name, if there is one, and return its answer."""
    answer = getattr(app, name, lambda *_: None)(*arguments)
    return await answer if inspect.isawaitable(answer) else answer


async def backlog(app, first, count):
    if hasattr(app, "put_all"):
        await call(app, "put_all", list(range(first, first + count)))
    else:
        for number in range(first, first + count):
            await call(app, "put", number)


async def paced(app, count, gap_s):
    moments, next_at = [], time.monotonic()
    for number in range(count):
        await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        moments.append(time.monotonic())
        next_at = moments[-1] + gap_s
        await call(app, "put", number)
    sys.stdout.write(json.dumps(moments))


#: The data of each job where the rate of puts is measured.
DATA = {"to": "ada@example.org"}
WARM = 20


async def rate(app, how, count):
    async def put(puts):
        if how == "many":
            await call(app, "put_all", [DATA] * puts)
        else:
            for _ in range(puts):
                await call(app, "put", DATA)

    await put(WARM)
    began, spent_s = time.perf_counter(), time.process_time()
    await put(count)
    sys.stdout.write(json.dumps([time.perf_counter() - began, time.process_time() - spent_s]))


async def main(name, what, *arguments):
    app = import_module(name)
    await call(app, "begin")
    if what == "backlog":
        await backlog(app, int(arguments[0]), int(arguments[1]))
    elif what == "paced":
        await paced(app, int(arguments[0]), float(arguments[1]))
    else:
        await rate(app, arguments[0], int(arguments[1]))
    await call(app, "end")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
