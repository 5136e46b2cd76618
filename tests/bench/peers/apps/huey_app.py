"""Huey: processes, no results kept."""

import jobs
from huey import RedisHuey

huey = RedisHuey("bench", url=jobs.URL, results=False)
put = huey.task()(jobs.mark)
