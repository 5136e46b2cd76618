"""When a worker inside of an application exchanges with Redis, and when its loop ends. With a played session."""

import asyncio
import math
from types import SimpleNamespace

from supervisor import clock
from supervisor.in_process.exchanges import Exchanges
from tests.lengths import SOON_S


class Source:
    def __init__(self, name):
        self._name = name
        self.next_at = math.inf

    def due_at(self):
        return self.next_at

    def parts(self, now_at):
        is_due, self.next_at = now_at >= self.next_at, math.inf if now_at >= self.next_at else self.next_at
        return [self._name] * is_due


def test_loop_sends_what_is_due_in_order_and_leaves_once_all_is_told():
    async def main():
        first, second, news = Source("first"), Source("second"), asyncio.Event()
        book = SimpleNamespace(has_news=True)
        seen = []

        async def exchange(parts):
            seen.append(parts)
            if len(seen) == 1:
                second.next_at = clock.monotonic() + 0.01  # is due without news
            elif len(seen) == 2:
                exchanges.leave()
            else:
                book.has_news = False

        async def leave():
            seen.append("left")

        exchanges = Exchanges(SimpleNamespace(exchange=exchange, leave=leave), (first, second), book, news)
        serving = asyncio.create_task(exchanges.serve())
        await asyncio.sleep(0)
        assert seen == []
        first.next_at = second.next_at = -math.inf
        news.set()
        async with asyncio.timeout(SOON_S):
            await serving
        assert seen == [["first", "second"], ["second"], [], "left"]

    asyncio.run(main())
