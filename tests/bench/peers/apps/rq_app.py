"""RQ: a fork per job, no results kept."""

import jobs
from redis import Redis
from rq import Queue

queue = Queue(connection=Redis.from_url(jobs.URL))


def put(number):
    queue.enqueue(jobs.mark, number, result_ttl=0)


def put_all(numbers):
    for first in range(0, len(numbers), 1000):
        queue.enqueue_many(
            Queue.prepare_data(jobs.mark, (number,), result_ttl=0) for number in numbers[first : first + 1000]
        )
