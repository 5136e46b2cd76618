"""TaskTiger forks for each job. TaskTiger has no pool, so this program is run once for each worker process."""

import logging
import sys

import jobs
from redis import Redis
from tasktiger import TaskTiger

tiger = TaskTiger(connection=Redis.from_url(jobs.URL, decode_responses=True), setup_structlog=True)
tiger.log.setLevel(logging.WARNING)


def put(number):
    tiger.delay(jobs.mark, args=(number,))


if __name__ == "__main__":
    tiger.run_worker_with_args(["-m", "jobs", *sys.argv[1:]])
