"""Marks the layout of a namespace, and sets options, from outside: the tests write some keys past the engine."""

from collections.abc import Mapping
from typing import Any

MARKS = {"config", "tracked", "tags", "workers"}


def mark(redis: Any, prefix: str) -> None:
    """Mark a namespace as one of this layout, as its first put would."""
    mapping = {f"{prefix}{name}": "2" for name in MARKS}
    if redis.exists(f"{prefix}options"):
        mapping[f"{prefix}config"] = "2+"
    redis.mset(mapping)


def set_options(redis: Any, prefix: str, options: Mapping[str, Any]) -> None:
    """Set options of the configuration by the names of their fields."""
    redis.hset(f"{prefix}options", mapping=options)
    mark(redis, prefix)
