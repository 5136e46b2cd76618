"""Defines what a page is: a reading that has a template, an address of the API and rows for CSV. Runs in the web
server's process.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisor.engine.client.async_calls import calls_of
from supervisor.engine.model.bounds import MOST

if TYPE_CHECKING:
    from supervisor.engine.client.async_client import AsyncClient
    from supervisor.web.bulk_acts import BulkActs
    from supervisor.web.poller import SharedModel


class Missing(Exception):
    """There is no such thing, as one sentence."""


class BadParameter(Exception):
    """A wrong parameter of a page, as one sentence."""


class TooMany(Exception):
    """Others must end before this can begin, as one sentence."""


@dataclass(frozen=True, slots=True)
class Site:
    """The sources of all readings."""

    client: "AsyncClient"
    model: "SharedModel"
    bulk: "BulkActs"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a page, in its path or its query. `allowed`: its values, if they are few."""

    name: str
    meaning: str
    is_required: bool = False
    allowed: tuple[str, ...] = ()
    most: int | None = None  # of a whole number


Parameters = Mapping[str, str]
Read = Callable[[Site, Parameters], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class WebPage:
    """One page. Its `read` returns plain JSON values, which the template and the API show alike."""

    name: str  # its template is <name>.html, its path /<name>
    title: str
    api: str  # below /api/v1; may name a parameter, as in /jobs/{jid}
    read: Read
    parameters: tuple[Parameter, ...] = ()
    rows: str | None = None  # the list in the answer that CSV has
    is_live: bool = False  # browsers look again by themselves


def number(asked: Parameters, name: str, default: int, most: int) -> int:
    """Return a whole number from 0 to `most`. Raises BadParameter."""
    text = asked.get(name) or str(default)
    if not text.isascii() or not text.isdecimal() or len(text) > 16 or int(text) > most:
        raise BadParameter(f"{name} must be a whole number from 0 to {most}")
    return int(text)


def next_offset(site: Site, offset: int, shown: int, *, has_more: bool) -> int | None:
    """Return where the next page begins, None behind the last one. Lists of several shards end after 1,000 rows."""
    following = offset + shown
    can_follow = calls_of(site.client).shards.only is not None or following + shown <= MOST
    return following if has_more and can_follow else None


def required(asked: Parameters, name: str) -> str:
    """Return a parameter that must be there. Raises BadParameter."""
    if not asked.get(name):
        raise BadParameter(f"{name} is missing")
    return asked[name]
