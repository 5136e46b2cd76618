"""Packs what the master tells a child on `talk`. Runs in master, zygote and child."""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import orjson

from supervisor.engine.model.jobs import ParentResult
from supervisor.messages.packets import MAX_MESSAGE_CHARS

#: So many bytes of results one packet holds beside the first one.
_MOST_PAGE_BYTES: Final = 160 * 1024
#: Reason of a notice that announces the time limit instead of an interruption.
TIMEOUT: Final = "timeout"


class Notice(NamedTuple):
    """The job with this token has to stop. `reason` is `Interrupted.reason`, or TIMEOUT for `SoftTimeout`.

    `gently`: nothing is raised, and `should_stop` becomes True. `at_checkpoint`: the next checkpoint raises it after
    the state is stored. Another notice follows if no checkpoint comes.
    """

    token: int
    reason: str
    message: str = ""
    gently: bool = False
    at_checkpoint: bool = False


def pack_notice(notice: Notice) -> bytes:
    return orjson.dumps(tuple(notice))  # orjson takes tuples, not their subclasses


_STORED: Final = Struct("<BQ?")  # the mark 0 cannot begin a JSON text
_STORED_MARK: Final = 0


class Stored(NamedTuple):
    """The fate of all checkpoints up to this number. `kept`: Redis has them; otherwise the lease is lost."""

    number: int
    kept: bool


def pack_stored(stored: Stored) -> bytes:
    return _STORED.pack(_STORED_MARK, *stored)


_PAGE_MARK: Final = 2  # cannot begin a JSON text either


class ResultsPage(NamedTuple):
    """The answer to ResultsWanted: as many of the results as one packet holds, one or more."""

    number: int
    total: int  # of the job's parents
    results: Sequence[ParentResult] = ()


def _pack_result(parent: ParentResult) -> bytes:
    jid, result, failure = parent
    if failure is not None:
        failure = failure[0][:MAX_MESSAGE_CHARS], failure[1][:MAX_MESSAGE_CHARS]
    row = orjson.dumps((jid, result and result.decode(errors="replace"), failure))
    if len(row) > _MOST_PAGE_BYTES:  # no JSON of 64 KiB becomes so long
        row = orjson.dumps((jid, None, ("unknown", "what Redis has of the result is no JSON of ours")))
    return row


def pack_page(page: ResultsPage) -> bytes:
    rows: list[orjson.Fragment] = []
    size_bytes = 0
    for each in page.results:
        row = _pack_result(each)
        size_bytes += len(row)
        if rows and size_bytes > _MOST_PAGE_BYTES:
            break
        rows.append(orjson.Fragment(row))
    return bytes((_PAGE_MARK,)) + orjson.dumps((page.number, page.total, rows))


def _unpack_page(packet: bytes) -> ResultsPage:
    number, total, rows = orjson.loads(packet[1:])
    results = [
        ParentResult(jid, result and result.encode(), failure and (failure[0], failure[1]))
        for jid, result, failure in rows
    ]
    return ResultsPage(number, total, results)


_TAKEN: Final = Struct("<BQQ")
_TAKEN_MARK: Final = 1  # cannot begin a JSON text either


class Taken(NamedTuple):
    """Redis has taken so many chunks of the job with this token."""

    token: int
    chunks: int


def pack_taken(taken: Taken) -> bytes:
    return _TAKEN.pack(_TAKEN_MARK, *taken)


def unpack_word(packet: bytes) -> Notice | Stored | ResultsPage | Taken:
    """Unpack a packet that the master sent on `talk`."""
    if packet[0] == _PAGE_MARK:
        return _unpack_page(packet)
    if packet[0] == _TAKEN_MARK:
        _mark, token, chunks = _TAKEN.unpack(packet)
        return Taken(token, chunks)
    if packet[0] == _STORED_MARK:
        _mark, number, kept = _STORED.unpack(packet)
        return Stored(number, kept)
    return Notice(*orjson.loads(packet))
