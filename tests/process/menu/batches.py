"""Handlers of batches: jobs that add to their batch, join results, and callbacks."""

from supervisor import handler


@handler
def grow(job, width, depth):
    """Put `width` jobs of this handler into the own batch, each of which puts as many, `depth` generations."""
    for _ in range(width if depth else 0):
        job.batch.put(job.queue, job.klass, {"width": width, "depth": depth - 1}, max_deaths=0)


@handler
def told(job):
    assert job.batch is None
    return job.data


@handler
def square(job):
    return job.data**2


@handler
def add_up(job):
    """Return how many parents there are, and the sum of their results."""
    parts = [one if isinstance(one, list) else [1, one] for one in job.results.values()]
    return [sum(column) for column in zip(*parts, strict=True)]
