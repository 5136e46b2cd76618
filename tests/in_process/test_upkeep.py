"""How a worker inside of an application sweeps. With a played server."""

import asyncio
from types import SimpleNamespace

from supervisor.engine.commands.maintenance import SWEEP_COUNT, Swept
from supervisor.engine.model.errors import StoreUnavailable
from supervisor.in_process import upkeep as module
from supervisor.in_process.upkeep import Upkeep
from tests.in_process.played import PlayedParts
from tests.lengths import SOON_S


class Calls:
    """Answers sweeps in turn, and sets `is_idle` when there is no answer left."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.offsets, self.is_idle = [], asyncio.Event()

    async def run(self, command):
        if not self._answers:
            self.is_idle.set()
            await asyncio.Event().wait()
        self.offsets.append(command.args[3])
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def spawn(self, due, _now_unix):
        return bool(due)


def test_sweep_goes_on_until_all_is_visited(monkeypatch):
    monkeypatch.setattr(module, "next_sweep_s", lambda: 0.0)

    async def main():
        played = PlayedParts("*")
        played.serving.asks_for_names(leasing=False, now_at=0.0)
        calls = Calls(
            Swept(0.0, 0, 200, ["cron"]), StoreUnavailable("away"), Swept(0.0, SWEEP_COUNT, 0, []), Swept(0.0, 1, 0, [])
        )  # fmt: skip
        demand = SimpleNamespace(lease_soon=lambda: played.told.update(["asked"]))
        serving = asyncio.create_task(Upkeep(calls, played.identity, played.serving, demand).serve())
        async with asyncio.timeout(SOON_S):
            await calls.is_idle.wait()
        serving.cancel()
        assert calls.offsets == [0, 200, 200, 0]
        assert played.told == {"asked": 1}
        assert played.serving.looks_due

    asyncio.run(main())
