"""redis-work-queue: a library without a worker program; this is the loop of its README, with the cleaner it asks for.

Run once for each worker process.
"""

import time

import jobs
from redis import Redis
from redis_work_queue import Item, KeyPrefix, WorkQueue

queue, database = WorkQueue(KeyPrefix("bench")), Redis.from_url(jobs.URL)
CLEAN_S = 5


def put(number):
    queue.add_item(database, Item.from_json_data(number))


def put_all(numbers):
    for first in range(0, len(numbers), 1000):
        with database.pipeline() as pipeline:
            for number in numbers[first : first + 1000]:
                queue.add_item_to_pipeline(pipeline, Item.from_json_data(number))
            pipeline.execute()


def work():
    clean_at = 0.0
    while True:
        item = queue.lease(database, 45, timeout=2)  # redis-py 8 gives up a read after 5 s
        if item is not None:
            jobs.mark(item.data_json())
            queue.complete(database, item)
        if time.monotonic() > clean_at:
            queue.light_clean(database)
            clean_at = time.monotonic() + CLEAN_S


if __name__ == "__main__":
    work()
