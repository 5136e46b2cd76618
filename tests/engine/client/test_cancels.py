"""A call of the async client that is cancelled at any moment ends, and is not forgotten by asyncio."""

import asyncio

import pytest

from supervisor.engine.client.async_client import AsyncClient
from tests.lengths import SOON_S

#: More turns of the loop than it takes to connect and to begin to wait.
TURNS = 40


async def read_events(client):
    async with client.events() as events:
        await events.get()


async def wait(client):
    await client.wait("j", 600)


async def lease(client):
    await client.lease("w", ["empty"], block=600)


async def read_stream(client):
    async with client.stream("j") as stream:
        await anext(stream)


@pytest.mark.parametrize("call", [read_events, wait, lease, read_stream])
def test_a_cancelled_call_ends_in_whatever_turn(server, namespace, call):
    async def main():
        async with AsyncClient(server.url, namespace) as client:
            await client.queue("q").put("k", jid="j")
            for turns in range(TURNS):
                task = asyncio.create_task(call(client))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task], timeout=SOON_S)
                assert task.cancelled(), f"after {turns} turns"

    asyncio.run(main())
