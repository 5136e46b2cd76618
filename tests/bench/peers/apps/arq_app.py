"""arq keeps no results here. arq has no pool, so this program is run once for each worker process."""

import asyncio

import jobs
from arq import create_pool
from arq.connections import RedisSettings

pools = []


async def mark(_context, number):
    jobs.mark(number)


class WorkerSettings:
    functions = [mark]
    redis_settings = RedisSettings.from_dsn(jobs.URL)
    keep_result = 0


LOG = {"version": 1, "disable_existing_loggers": False, "root": {"level": "WARNING"}}


async def begin():
    pools.append(await create_pool(WorkerSettings.redis_settings))


async def end():
    await pools.pop().aclose()


async def put(number):
    await pools[0].enqueue_job("mark", number)


async def put_all(numbers):
    for first in range(0, len(numbers), 100):
        await asyncio.gather(*map(put, numbers[first : first + 100]))
