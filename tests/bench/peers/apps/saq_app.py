"""SAQ: no results kept."""

import asyncio

import jobs
from saq import Queue

queue = Queue.from_url(jobs.URL)
begin, end = queue.connect, queue.disconnect


async def mark(_context, *, number):
    jobs.mark(number)


settings = {"queue": queue, "functions": [mark]}


async def put(number):
    await queue.enqueue("mark", number=number, ttl=-1)


async def put_all(numbers):
    for first in range(0, len(numbers), 100):
        await asyncio.gather(*map(put, numbers[first : first + 100]))
