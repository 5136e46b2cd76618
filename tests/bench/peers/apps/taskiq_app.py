"""taskiq: its list broker. Without socket_timeout=None redis-py 8 would end each idle worker after 5 s."""

import asyncio

import jobs
from taskiq_redis import ListQueueBroker

broker = ListQueueBroker(jobs.URL, socket_timeout=None)
task = broker.task(task_name="mark")(jobs.async_mark)
begin, end = broker.startup, broker.shutdown


async def put(number):
    await task.kiq(number)


async def put_all(numbers):
    for first in range(0, len(numbers), 100):
        await asyncio.gather(*map(put, numbers[first : first + 100]))
