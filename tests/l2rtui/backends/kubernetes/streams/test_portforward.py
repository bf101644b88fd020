"""Port-forward against a scripted server: bytes both ways, the node's errors, and an end that the pod does
not see.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager

from l2rtui.backends.kubernetes.streams import channels
from l2rtui.domain.snapshot import PodView
from tests.l2rtui.backends.kubernetes.api_server import Server, refusal, serving

POD = PodView("", "p", namespace="ml")
PORT = (8080).to_bytes(2, "little")


async def open_channels(socket):
    """Announce the port on both channels, as a node does first."""
    await socket.send_bytes(b"\x00" + PORT)
    await socket.send_bytes(b"\x01" + PORT)


@asynccontextmanager
async def forwarded(on_stream, linger_seconds=20.0):
    """A listening forward: its sentences, and a function that connects to it."""
    server = Server(on_stream=on_stream, protocols=("v4.channel.k8s.io",))
    async with asyncio.timeout(30), serving(server):
        api = server.api()
        try:
            async with aclosing(channels.forward(api, POD, 0, 8080, linger_seconds)) as sentences:
                host, port = (await anext(sentences)).split()[0].split(":")

                async def connect():
                    return await asyncio.open_connection(host, int(port))

                yield server, sentences, connect
        finally:
            await api.close()


async def test_bytes_go_both_ways_and_each_connection_has_a_websocket_of_its_own():
    async def upper(socket, _request):
        await open_channels(socket)
        message = await socket.receive()
        await socket.send_bytes(b"\x00" + message.data[1:].upper())
        await socket.send_bytes(b"\x00ok")  # two bytes, as long as a port: but only the first message announces one

    async with forwarded(upper) as (server, _, connect):
        for _ in range(2):
            reader, writer = await connect()
            writer.write(b"hello ")
            assert await reader.read() == b"HELLO ok"
            writer.close()
        path = "/api/v1/namespaces/ml/pods/p/portforward"
        assert server.streams == [(path, [("ports", "8080")])] * 2


async def test_a_port_that_nobody_serves_is_reported_in_the_words_of_the_node_and_the_listener_stays():
    async def refuse(socket, _request):
        await open_channels(socket)
        await socket.send_bytes(b"\x01connection refused.\n")

    async with forwarded(refuse) as (_, sentences, connect):
        for _ in range(2):
            reader, writer = await connect()
            assert await reader.read() == b""
            writer.close()
            assert await anext(sentences) == "A connection to port 8080 of p failed: connection refused."


async def test_a_user_who_may_not_forward_learns_it_by_the_first_connection():
    async with forwarded(refusal(403, "Forbidden", "no forwarding")) as (_, sentences, connect):
        reader, writer = await connect()
        assert await reader.read() == b""
        writer.close()
        assert "no forwarding" in await anext(sentences)


async def test_a_client_that_has_sent_everything_still_receives_until_the_pod_is_silent():
    closed = asyncio.Event()

    async def slow(socket, _request):
        await open_channels(socket)
        await socket.receive()
        await socket.send_bytes(b"\x00answer")
        await socket.receive()  # the pod cannot know that its peer has ended: it waits until the socket closes
        closed.set()

    async with forwarded(slow, linger_seconds=0.1) as (_, _, connect):
        reader, writer = await connect()
        writer.write(b"question")
        writer.write_eof()
        assert await reader.read() == b"answer"
        await closed.wait()
        writer.close()
