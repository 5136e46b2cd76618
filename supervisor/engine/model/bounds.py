"""Bounds of the engine that commands and clients check too. Used in every process. Imports nothing but typing."""

from typing import Final

#: Largest payload of a job.
DATA_BYTES: Final = 256 * 2**20
#: Longest name of an author that is kept with an operation.
BY_BYTES: Final = 128
#: Begins the names of those who have logged in at the page. No claim may begin so.
LOGIN: Final = "login:"
#: Most items in one call: Redis does nothing else meanwhile, and Lua's stack is bounded.
MOST: Final = 1000
#: Most arguments of a command for many jobs. Some services (ElastiCache Serverless) refuse one with 4,000.
MOST_WORDS: Final = 3900
#: Most ends of leases of one call: the longest has 7 arguments, but for the jobs that it puts.
MOST_ENDS: Final = MOST_WORDS // 7
#: Most renewals of one call, which have 9 arguments each.
MOST_RENEWALS: Final = MOST_WORDS // 9
#: A request stands in Redis for at least this long. A worker that has missed its hint sees it within this time.
ASK_S: Final = 60.0
#: `why` waits so long for workers, which answer within a few milliseconds. One that stands still costs no more.
WHY_S: Final = 0.04


class Login(str):
    """The actor who has logged in at the page under a name. Only the page makes one."""

    __slots__ = ()

    def __new__(cls, name: str) -> "Login":
        """Take the name."""
        return super().__new__(cls, f"{LOGIN}{name}")
