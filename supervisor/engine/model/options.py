"""Defines the configuration options, their defaults and their values. Runs in every process that speaks to Redis.

Must not do I/O. lua/include/config.lua has the same defaults; a test compares them. The configuration is in Redis and
holds for all workers of a namespace. A queue's own option is `<option>-<queue>`; without it `<option>` counts, then the
default.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from supervisor.engine.model.keys import checked_name
from supervisor.engine.model.validation import EXACT_INT, in_seconds

Value = int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class Option:
    """A configuration option. `of_queues`: a queue can have its own value."""

    name: str
    kind: Literal["seconds", "count", "name", "flag"]
    default: Value
    of_queues: bool
    meaning: str
    least: float = 0

    @property
    def allowed(self) -> str:
        """Return the allowed values, for error messages."""
        if self.kind == "seconds":
            return "a duration or a number of seconds " + (
                f"from {self.least:g} on" if self.least else "that is 0 or more"
            )
        if self.kind == "count":
            return "an int that is 0 or more"
        return "True or False" if self.kind == "flag" else "a name of 1 to 64 bytes"


_TABLE = (
    Option("heartbeat", "seconds", 30, True, "how long a lease lasts, unless it is renewed", 0.001),
    Option("grace", "seconds", 5, True, "how long after its end nobody else takes the job over"),
    Option("max-concurrency", "count", 0, True, "how many jobs of the queue run at once; 0 = no limit"),
    Option("paused", "flag", False, True, "nothing new is leased; what runs goes on"),
    Option("max-deaths", "count", 3, True, "how many deaths bury a job that has no limit of its own; 0 = no limit"),
    Option("unknown-for", "seconds", 3600, True, "how long a job whose klass no worker knows waits for one that does"),
    Option("klass", "name", None, True, "the klass of entries that other programs push without one"),
    Option("jobs-history", "seconds", 604800, False, "how long completed jobs are kept; 0 = not at all"),
    Option("jobs-history-count", "count", 50000, False, "how many completed jobs are kept at most; 0 = none"),
    Option("failed-history", "seconds", 0, False, "how long failed jobs are kept; 0 = for ever"),
    Option("failed-history-count", "count", 50000, False, "how many failed jobs are kept at most"),
    Option("stats-history", "count", 30, False, "for how many days statistics are kept; 0 = none are made"),
    Option("histogram-history", "count", 31, False, "for how many days their histograms are kept; 0 = none are made"),
    Option("acknowledge", "count", 0, False, "how many replicas must have what is durable; 0 = none"),
    Option("acknowledge-timeout", "seconds", 1, False, "how long a durable write waits for them", 0.001),
    Option("max-worker-age", "seconds", 86400, False, "after how long a worker that was not seen is forgotten", 0.001),
)
OPTIONS: Final[Mapping[str, Option]] = {option.name: option for option in _TABLE}


def checked_option(name: object) -> tuple[Option, str | None]:
    """Return the option and the queue of `<option>` or `<option>-<queue>`. Raises TypeError or ValueError naming it."""
    if not isinstance(name, str):
        raise TypeError(f"option must be a str, not {type(name).__name__}: {name!r:.100}")
    if name in OPTIONS:
        return OPTIONS[name], None
    known = [option for option in OPTIONS if name.startswith(f"{option}-")]
    if not known:
        raise ValueError(f"option {name!r:.100} is unknown; {_nearest(name)}")
    option, queue = OPTIONS[max(known, key=len)], name[len(max(known, key=len)) + 1 :]
    if not option.of_queues:
        raise ValueError(f"option {option.name} holds for all queues, there is no {name!r:.100}; {_nearest(name)}")
    return option, checked_name("option's queue", queue)


def _nearest(name: str) -> str:
    heads = ["-".join(name.split("-")[: n + 1]) for n in range(name.count("-") + 1)]
    ranked = [
        (difflib.SequenceMatcher(None, head, option).ratio(), option, name[len(head) :])
        for head in heads
        for option in OPTIONS
        if OPTIONS[option].of_queues or head == name
    ]
    ratio, option, rest = max(ranked)
    if ratio < 0.6:
        return f"there are {', '.join(OPTIONS)}"
    return f"did you mean {option}{rest}?"


def checked_value(option: Option, value: object) -> str:
    """Return the value as it is stored. Raises ValueError naming the option, the value and what is allowed.

    A Duration is stored as seconds.
    """
    if option.kind == "seconds":
        value = in_seconds(option.name, value)
    if option.kind == "name":
        try:
            return checked_name(option.name, value)
        except TypeError as error:
            raise ValueError(str(error)) from None
    if option.kind == "flag":
        if isinstance(value, int) and value in (0, 1):
            return str(int(value))
    elif isinstance(value, int | float if option.kind == "seconds" else int) and not isinstance(value, bool):
        assert isinstance(value, int | float)
        if option.least <= value <= EXACT_INT / 1000:  # NaN fails here; larger values cannot be added to a time in ms
            return repr(_whole(float(value)))
    raise ValueError(f"{option.name} must be {option.allowed}: {value!r:.100}")


def value_of_text(option: Option, text: str) -> str | int | float | bool:
    """Return the value of a typed text. Raises ValueError naming the option, the text and what is allowed."""
    if option.kind == "name":
        return checked_name(option.name, text)
    if option.kind == "seconds":
        return _whole(float(checked_value(option, text)))
    words = {"true": 1, "yes": 1, "on": 1, "false": 0, "no": 0, "off": 0} if option.kind == "flag" else {}
    try:
        value = words[text.lower()] if text.lower() in words else int(text)
        stored = checked_value(option, value)
    except ValueError:
        raise ValueError(f"{option.name} must be {option.allowed}: {text!r:.100}") from None
    return bool(value) if stored and option.kind == "flag" else value


def _whole(value: float) -> float:
    return int(value) if value.is_integer() else value


def _read(option: Option, text: str | None) -> Value:
    """Return the value of a stored text. An invalid text counts as not set, as in the scripts."""
    if text is None or option.kind == "name":
        return text
    try:
        value = float(text)
    except ValueError:
        return None
    if option.kind == "flag":
        return value > 0
    return _whole(value)


def value_in(settings: Mapping[str, str], name: str) -> Value:
    """Return the option's value: the queue's own, else the shared one, else the default."""
    option, queue = checked_option(name)
    own = None if queue is None else _read(option, settings.get(name))
    shared = _read(option, settings.get(option.name)) if own is None else own
    return option.default if shared is None else shared


def values_in(settings: Mapping[str, str]) -> dict[str, Value]:
    """Return each option's shared value, then those of queues. Names that are no option are left out."""
    values = {name: value_in(settings, name) for name in OPTIONS}
    for name in sorted(settings):
        try:
            option, queue = checked_option(name)
        except ValueError:
            continue  # written by another program or a later version
        if queue is not None and _read(option, settings[name]) is not None:
            values[name] = _read(option, settings[name])
    return values
