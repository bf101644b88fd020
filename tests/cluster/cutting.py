"""A TCP proxy before the API server that cuts every connection now and then."""

from __future__ import annotations

import asyncio
import random
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from l2rtui.backends.kubernetes.client import Api, connect


@asynccontextmanager
async def through_a_cutting_proxy(
    seconds: tuple[float, float], seed: int = 0
) -> AsyncIterator[tuple[Api, list[int]]]:
    """An Api whose connections each live for a random time; and a list that grows with each cut."""
    direct = await connect()
    server = urllib.parse.urlsplit(direct.access.server)
    dice, cuts = random.Random(seed), list[int]()
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends, pumps = [writer], list[asyncio.Task[None]]()
        try:
            there_reader, there_writer = await asyncio.open_connection(server.hostname, server.port)
            ends.append(there_writer)
            pumps += [
                asyncio.create_task(pump(reader, there_writer)),
                asyncio.create_task(pump(there_reader, writer)),
            ]
            done, _ = await asyncio.wait(pumps, timeout=dice.uniform(*seconds), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                cuts.append(len(cuts))
        finally:
            for one in pumps:
                one.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in ends:
                end.transport.abort()
            await asyncio.gather(*(end.wait_closed() for end in ends), return_exceptions=True)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(carry(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # Even of one that was cancelled before it began.
        task.add_done_callback(lambda _: writer.transport.abort())

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    api = Api(replace(direct.access, server=f"https://127.0.0.1:{port}"))
    try:
        yield api, cuts
    finally:
        await api.close()
        await direct.close()
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*list(tasks), return_exceptions=True)
        await asyncio.sleep(0.05)  # sockets that are aborted close in the next turns of the loop
