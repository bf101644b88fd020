"""A TCP proxy before the API server that occasionally cuts every connection."""

from __future__ import annotations

import asyncio
import random
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from l2rtui.backends.kubernetes.api.client import Api, connect


@asynccontextmanager
async def through_a_cutting_proxy(
    seconds: tuple[float, float], seed: int = 0
) -> AsyncIterator[tuple[Api, list[int]]]:
    """An Api whose connections each live for a random time; and a list that grows with each cut."""
    direct = await connect()
    server = urllib.parse.urlsplit(direct.access.server)
    dice, cuts = random.Random(seed), list[int]()
    tasks: set[asyncio.Task[None]] = set()
    writers: set[asyncio.StreamWriter] = set()
    is_over = asyncio.Event()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends, pumps = [writer], list[asyncio.Task[None]]()
        try:
            there_reader, there_writer = await asyncio.open_connection(server.hostname, server.port)
            writers.add(there_writer)
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
            for end in ends:
                end.transport.abort()
            await asyncio.gather(*pumps, *(end.wait_closed() for end in ends), return_exceptions=True)
            writers.difference_update(ends)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        if is_over.is_set():  # accepted by the kernel before the end, and by us after it
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(carry(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    api = Api(replace(direct.access, server=f"https://127.0.0.1:{port}"))
    try:
        yield api, cuts
    finally:
        await api.close()
        await direct.close()
        is_over.set()
        listener.close()
        while tasks or writers:
            for task in tasks:
                task.cancel()
            for writer in writers:  # also for a task that was cancelled before it started
                writer.transport.abort()
            await asyncio.gather(*tasks, *(one.wait_closed() for one in writers), return_exceptions=True)
            writers.difference_update([one for one in writers if one.is_closing()])
            await asyncio.sleep(0)  # the next turn of the loop may still accept one
