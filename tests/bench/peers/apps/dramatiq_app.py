"""Dramatiq: two processes of eight threads, its default."""

import dramatiq
import jobs
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=jobs.URL))
put = dramatiq.actor(jobs.mark).send
