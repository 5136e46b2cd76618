"""Puts the entries of an outbox into their queues, each exactly once. Runs in the process of `leasehold outbox`.

Each batch is put by one script, together with a *receipt*: a job that never runs, whose data name the entries of the
last batch. A turn either deletes the entries that the receipt names or, if none of them is left, puts the next batch.
So whoever is killed in between, the next turn knows what was put. Relays take turns by the database's lock. Must not
put anything else between the look at the receipt and the batch.
"""

from typing import Final, NamedTuple

from supervisor.contrib.outbox.databases import Database
from supervisor.contrib.outbox.entries import job_of
from supervisor.engine.client.sync_calls import calls_of
from supervisor.engine.client.sync_client import Client
from supervisor.engine.model.bounds import MOST
from supervisor.engine.model.errors import LayoutError, LeaseholdError, NoServer, OutcomeUnknown, StoreUnavailable
from supervisor.engine.model.new_jobs import NewJob, new_job

BATCH: Final = 500
#: Where receipts lie. No supervisor serves this queue, and a receipt is due in a hundred years.
RECEIPTS: Final = "leasehold-outbox"
_NEVER_S: Final = 100 * 365 * 86_400
#: These say nothing about the jobs.
_OUTAGES: Final = (StoreUnavailable, OutcomeUnknown, LayoutError, NoServer)


class SetAside(NamedTuple):
    """An entry that was set aside."""

    id: str
    reason: str


class Turn(NamedTuple):
    """The work that a turn has done: none if the outbox is empty, or if another relay has its turn."""

    put: int = 0
    forgotten: int = 0
    refused: tuple[SetAside, ...] = ()

    @property
    def was_busy(self) -> bool:
        return self != NOTHING


NOTHING: Final = Turn()


class Relay:
    """One relay of one outbox. `batch`: how many entries it puts at a time, at most."""

    def __init__(self, database: Database, client: Client, batch: int = BATCH) -> None:
        if not 1 <= batch < MOST:
            raise ValueError(f"batch must be 1 to {MOST - 1} entries, not {batch}")
        self._database = database
        self._client = client
        self._batch = batch
        self._alone = 0  # so many entries are put one at a time, as one of them was refused

    def turn(self) -> Turn:
        """Put a batch, or delete one that was put. Raises DatabaseUnavailable, StoreUnavailable or OutcomeUnknown.

        After an error the next turn finds out what has happened.
        """
        calls_of(self._client).shards.check_is_one("an outbox, whose jobs are put in one step,")
        with self._database.turn() as is_ours:
            entries = self._database.next(1 if self._alone else self._batch) if is_ours else []
            if not entries:
                return NOTHING
            receipt = f"outbox-{self._database.name()}"
            last = self._client.job(receipt)
            forgotten = self._database.forget(last.data["entries"]) if last else 0
            return Turn(forgotten=forgotten) if forgotten else self._put(entries, receipt)

    def _put(self, entries: list[tuple[str, str]], receipt: str) -> Turn:
        """Put the entries, up to what one script takes. Set aside what cannot be put."""
        jobs: dict[str, NewJob] = {}
        refused: list[SetAside] = []
        room = MOST - 1
        for id, text in entries:
            try:
                job = job_of(text)
            except (TypeError, ValueError) as error:
                refused.append(self._set_aside(id, error))
                continue
            if jobs and room < job.weight:
                break
            jobs[id] = job
            room -= job.weight
        return self._put_jobs(jobs, receipt, refused) if jobs else Turn(refused=tuple(refused))

    def _put_jobs(self, jobs: dict[str, NewJob], receipt: str, refused: list[SetAside]) -> Turn:
        names = new_job("put", RECEIPTS, "receipt", {"entries": list(jobs)}, {"jid": receipt, "delay": _NEVER_S})
        put = len(jobs)
        try:
            calls_of(self._client).put_jobs([*jobs.values(), names])
        except _OUTAGES:
            raise
        except LeaseholdError as error:  # of one of the jobs; none was put
            id, job = next(iter(jobs.items()))
            if put > 1:
                self._alone = put
                return self._put_jobs({id: job}, receipt, refused)
            refused.append(self._set_aside(id, error))
            put = 0
        self._alone = max(0, self._alone - 1)
        return Turn(put=put, refused=tuple(refused))

    def _set_aside(self, id: str, error: Exception) -> SetAside:
        reason = str(error)
        self._database.set_aside(id, reason)
        return SetAside(id, reason)
