"""Defines a handler's settings, which its zygote reports to the master. Runs in master, zygote and child."""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from supervisor.engine.model.jobs import LeaseRecord

#: Most jobs that one child runs at once.
MOST_BESIDE: Final = 10_000


class Profile(NamedTuple):
    """A level of confinement. A child takes the profile of its first job, and gets jobs of this profile only."""

    level: str  # none, basic or strict
    network: bool


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """A handler's settings as the master knows them. None: the `run` flag, the config or the default decides."""

    timeout_s: float | None = None
    retries: int | None = None
    on_error: str | None = None
    on_death: str | None = None
    max_deaths: int | None = None
    at_most_once: bool = False
    memory_bytes: int | None = None
    sandbox: str | None = None
    network: bool | None = None  # None: the sandbox level decides
    on_cut_off: str | None = None
    shape: str | None = None  # digest of the data that it takes
    concurrency: int = 1  # how many jobs one child runs at once

    def within(self, level: str) -> "HandlerSettings":
        """Return these settings with the run's sandbox `level` filled in where the handler leaves the choice open."""
        sandbox = self.sandbox or level
        return replace(self, sandbox=sandbox, network=sandbox != "strict" if self.network is None else self.network)

    @property
    def profile(self) -> Profile:
        """The handler's profile in its run. Settings from the zygote leave nothing open."""
        return Profile(self.sandbox or "basic", self.network is not False)

    @property
    def shares_child(self) -> bool:
        """True if a child runs several of its jobs at once."""
        return self.concurrency > 1

    def misses_mark(self, lease: LeaseRecord) -> bool:
        """Return True for a job of an at-most-once handler whose lease does not say so, as of older code.

        The engine may start such a job twice. Only a new lease tells the engine that it must not.
        """
        return self.at_most_once and not (lease.at_most_once or lease.persistent)

    def limit_s(self, lease: LeaseRecord, default_s: float) -> float:
        """Return a job's time limit: its own, else its handler's, else the default, which no persistent job has.

        0: it has none.
        """
        if lease.timeout_s is not None:
            return lease.timeout_s
        if self.timeout_s is not None:
            return self.timeout_s
        return 0.0 if lease.persistent else default_s

    def trust_domain(self, klass: str) -> "tuple[Profile, str, bool]":
        """Return the key of the jobs that may share a child with jobs of this handler.

        A job can read and answer the jobs that were sent ahead to its child, and can leave code behind in the process.
        So under strict each klass has children of its own. Otherwise the handlers of one profile trust each other.
        Jobs that run beside each other have children of their own.
        """
        profile = self.profile
        return profile, klass if profile.level == "strict" else "", self.shares_child
