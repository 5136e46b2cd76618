"""Handlers of batches: jobs that add to their batch, and callbacks."""

from typing import Any

from supervisor import JobContext, handler


@handler
def grow(job: JobContext, width: int, depth: int) -> None:
    """Put `width` jobs of this handler into the own batch, each of which puts as many, `depth` generations."""
    assert job.batch is not None
    for _ in range(width if depth else 0):
        job.batch.put(job.queue, job.klass, {"width": width, "depth": depth - 1}, max_deaths=0)


@handler
def told(job: JobContext) -> Any:
    assert job.batch is None
    return job.data


@handler
def square(job: JobContext) -> int:
    assert isinstance(job.data, int)
    return job.data**2


@handler
def add_up(job: JobContext) -> list[int]:
    """Return how many parents there are, and the sum of their results."""
    found: list[Any] = list(job.results.values())
    parts = [one if isinstance(one, list) else [1, one] for one in found]
    return [sum(column) for column in zip(*parts, strict=True)]
