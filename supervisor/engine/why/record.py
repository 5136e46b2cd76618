"""Defines the answer to the question why. Runs in applications and commands."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job or a queue stands where it does.

    `reason` is a short code that does not change between releases, like `paused-queue`. `sentence` is for people.
    `facts` are those from which it was concluded, by name: JSON values, with times in unix seconds.
    """

    reason: str
    sentence: str
    facts: Mapping[str, Any]
