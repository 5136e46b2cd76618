"""Lists all pages. Runs in the web server's process."""

from typing import Final

from supervisor.web.pages import audit, batches, bulk, job, jobs, lists, overview, queues, settings, why
from supervisor.web.pages.page import WebPage

PAGES: Final[tuple[WebPage, ...]] = (
    overview.PAGE,
    queues.QUEUES,
    queues.QUEUE,
    queues.LANES,
    jobs.PAGE,
    bulk.PAGE,
    job.PAGE,
    why.PAGE,
    batches.BATCHES,
    batches.BATCH,
    lists.FAILED,
    lists.RECURRENCES,
    lists.LIMITS,
    lists.LIMIT,
    lists.TAGS,
    lists.SUPERVISORS,
    lists.SUPERVISOR,
    settings.DOORS,
    settings.CONFIG,
    audit.PAGE,
)
#: The pages that the bar at the top leads to. Events have no reading: they are a stream.
BAR: Final = (
    "overview",
    "queues",
    "jobs",
    "failed",
    "batches",
    "recurrences",
    "limits",
    "tags",
    "supervisors",
    "doors",
    "config",
    "audit",
    "events",
)
