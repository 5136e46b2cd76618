"""Reads entries of other programs. Part of the model, without Redis."""

import base64
import json
from dataclasses import dataclass
from typing import Any

_NAMED = {"on_parent_failure": "policy", "at_most_once": "once"}
_TYPES = {
    "lane": str, "limit": (str, list), "priority": int, "retries": int, "max_deaths": int, "tags": list,
    "depends": list, "unique": (bool, str), "persistent": bool, "at_most_once": bool, "on_parent_failure": str,
    "trace": str, "delay": (int, float), "expires": (int, float),
}  # fmt: skip


@dataclass(frozen=True)
class Read:
    """A valid entry as the arguments of put. Times are ms."""

    jid: str | None
    klass: str
    data: Any
    options: dict[str, Any]


def klass_of(entry: bytes) -> str | None:
    """Return the klass that an entry names, even if the rest of it is invalid."""
    return (_object(entry) or {}).get("klass")


def read(entry: bytes, bare_klass: str | None) -> Read | None:
    """Read an entry; None if it is broken.

    An object with a klass is an envelope. Anything else is data, if the queue has a klass for it.
    """
    envelope = _object(entry)
    if envelope is None or "klass" not in envelope:
        return Read(None, bare_klass, entry, {}) if bare_klass else None
    given = {key: value for key, value in envelope.items() if value is not None}
    klass, jid, data = given.pop("klass"), given.pop("jid", None), given.pop("data", None)
    if "data_b64" in given:
        data = base64.b64decode(given.pop("data_b64"))
    if any(key not in _TYPES or not isinstance(value, _TYPES[key]) for key, value in given.items()):
        return None
    if given.get("persistent") and given.get("at_most_once"):
        return None
    if isinstance(given.get("limit"), list):
        given["limit"] = tuple(given["limit"])
    for key in ("delay", "expires"):
        if key in given:
            given[key] = round(given[key] * 1000)
    return Read(jid, klass, data, {_NAMED.get(key, key): value for key, value in given.items()})


def _object(entry: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(entry)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
