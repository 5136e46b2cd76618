"""Celery: prefork, results ignored."""

import jobs
from celery import Celery

app = Celery("celery_app", broker=jobs.URL)
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
put = app.task(name="mark")(jobs.mark).delay
