"""A wire to a server on loopback: `python passing_on.py LISTEN SERVER`, both ports. Says "ready" when it listens.

While the process is stopped the server is cut off: nothing comes through, no connection ends, and none is answered.
"""

import asyncio
import sys


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()


async def _serve(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:  # the server is dead
        writer.close()
        return
    both = [asyncio.create_task(_pass_on(reader, server_writer)), asyncio.create_task(_pass_on(server_reader, writer))]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for task in both:
        task.cancel()
    await asyncio.gather(*both, return_exceptions=True)  # an end that was reset is an end
    for end in (writer, server_writer):
        end.close()


async def main() -> None:
    listen, port = map(int, sys.argv[1:])
    server = await asyncio.start_server(lambda *streams: _serve(port, *streams), "127.0.0.1", listen)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
