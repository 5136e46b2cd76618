"""A proxy between a master and Redis that carries out every nth exchange and drops its reply.

Runs as a process of its own: `python dropping.py LISTEN REDIS EVERY [REPLY]`, both unix sockets; EVERY 0: none. With
REPLY it also drops the first reply with that bulk string. For each line on stdin it prints its counts so far:
exchanges, dropped replies, and batches of requests (round trips).
"""

import asyncio
import sys


class Proxy:
    def __init__(self, upstream: str, every: int, reply: str) -> None:
        self.upstream = upstream
        self.every = every
        self.needle = f"${len(reply)}\r\n{reply}\r\n".encode() if reply else None
        self.exchanges = 0
        self.dropped = 0
        self.batches = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_unix_connection(self.upstream)
        drop = asyncio.Event()

        async def requests() -> None:
            while chunk := await reader.read(1 << 20):
                self.batches += 1
                if b"EVALSHA" in chunk:
                    self.exchanges += 1
                    if self.every and self.exchanges % self.every == 0:
                        drop.set()
                redis_writer.write(chunk)
                await redis_writer.drain()

        async def replies() -> None:
            while chunk := await redis_reader.read(1 << 20):
                is_chosen = self.needle is not None and self.needle in chunk
                if drop.is_set() or is_chosen:
                    self.dropped += 1
                    self.needle = None if is_chosen else self.needle
                    return
                writer.write(chunk)
                await writer.drain()

        tasks = [asyncio.create_task(requests()), asyncio.create_task(replies())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for end in (writer, redis_writer):
            end.close()


async def main() -> None:
    listen, upstream, every, *reply = sys.argv[1:]
    proxy = Proxy(upstream, int(every), "".join(reply))
    server = await asyncio.start_unix_server(proxy.serve, listen)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        sys.stdout.write(f"exchanges {proxy.exchanges} dropped {proxy.dropped} batches {proxy.batches}\n")
        sys.stdout.flush()
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
