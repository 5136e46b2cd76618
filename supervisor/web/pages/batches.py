"""Reads batches, and one of them with its failed jobs. Runs in the web server's process."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from supervisor.cli.lib.shown import pause_words
from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.commands import batches
from supervisor.engine.why.batches import conclude_batch
from supervisor.web.pages.jobs import row
from supervisor.web.pages.page import Missing, Parameter, Parameters, Site, WebPage, next_offset, number, required

if TYPE_CHECKING:
    from supervisor.engine.commands.batches import BatchRecord

_SHOWN: Final = 50


async def read_all(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return 50 batches from `offset` on: those that have not ended, then the others, the last ended one first."""
    offset = number(asked, "offset", 0, 2**53)
    counts, found = await site.client.batch_counts(), await site.client.batches(offset, _SHOWN)
    has_more = offset + _SHOWN < counts.running + counts.ended
    return {
        "batches": [_shown(batch) for batch in found],
        "offset": offset,
        "next": next_offset(site, offset, _SHOWN, has_more=has_more),
        **counts._asdict(),
    }


async def read_one(site: Site, asked: Parameters) -> dict[str, Any]:
    """Return a batch with its numbers of jobs, its pause, the callbacks to come and its first failed jobs."""
    batch_id = required(asked, "batch")
    looked = await calls_of(site.client).call(batches.look, batch_id, 0, _SHOWN)
    if looked is None:
        raise Missing(f"there is no batch {batch_id}, or it has ended more than seven days ago")
    failed = await site.client.jobs(*looked.failed) if looked.failed else []
    why = conclude_batch(batch_id, looked.record).sentence
    return {"batch": _shown(looked.record), "why": why, "failed_jobs": [row(job) for job in failed if job is not None]}


def _shown(record: "BatchRecord") -> dict[str, Any]:
    is_paused = record.paused and record.ended_unix is None
    return {
        **asdict(record),
        "ended": record.total - record.pending,
        "pause": pause_words(record) if is_paused else None,
    }


BATCHES: Final = WebPage(
    "batches", "Batches", "/batches", read_all,
    (Parameter("offset", "how many batches to skip", most=2**53),), "batches", is_live=True,
)  # fmt: skip
BATCH: Final = WebPage(
    "batch", "Batch", "/batches/{batch}", read_one, (Parameter("batch", "its id", True),), "failed_jobs", is_live=True
)
