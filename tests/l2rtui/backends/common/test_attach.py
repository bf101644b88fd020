"""Attachment to a pod's process: the same tests against a fake Engine and a scripted API server.

Both processes print ``ready`` and a title sequence on standard error, echo their input in capitals, and end at
``quit``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import sys
import termios
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from l2rtui.backends.base import AttachedProcess
from l2rtui.backends.docker.exec import attached as attached_docker
from l2rtui.backends.fake import FakeBackend
from l2rtui.backends.kubernetes.streams import channels
from l2rtui.backends.kubernetes.streams.channels import attached as attached_kubernetes
from l2rtui.backends.local.backend import LocalBackend
from l2rtui.cloud.docker_engine import DockerEngine
from l2rtui.config import Settings
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import RefusedError
from l2rtui.services.terminal import RESTORE, DetachKeys, carry
from runtime.base.docker_client import DockerEndpoint
from tests.fakes.docker_engine import FakeDockerEngine
from tests.l2rtui.backends.kubernetes.api_server import Server, serving

GREETING = b"ready \x1b]0;title\x07\n"
QUIT = b"quit"


@dataclass
class Process:
    """Process to attach to, with the terminal sizes that it received."""

    attach: Callable[[], AbstractAsyncContextManager[AttachedProcess]]
    sizes: list[tuple[int, int]] = field(default_factory=list)


Start = Callable[..., AbstractAsyncContextManager[Process]]


def on_docker(folder: Path) -> Start:
    @asynccontextmanager
    async def start(*, stdin: bool = True, tty: bool = False, running: bool = True) -> AsyncIterator[Process]:
        fake = FakeDockerEngine(str(folder / "docker.sock"))
        engine = DockerEngine(DockerEndpoint(fake.url))
        try:
            config = {"Image": "img:1", "HostConfig": {"NetworkMode": "bridge"}, "OpenStdin": stdin, "Tty": tty}
            uid = fake.create("c", config)["Id"]
            container = fake.container(uid)
            container["sizes"] = sizes = []
            if running:
                fake.set_running(container)
            yield Process(lambda: attached_docker(engine, PodView(uid, "p")), sizes)
        finally:
            await engine.close()
            fake.close()

    return start


def on_kubernetes(_: Path) -> Start:
    @asynccontextmanager
    async def start(*, stdin: bool = True, tty: bool = False, running: bool = True) -> AsyncIterator[Process]:
        sizes: list[tuple[int, int]] = []

        async def act(socket: web.WebSocketResponse, _: web.Request) -> None:
            await socket.send_bytes((b"\x01" if tty else b"\x02") + GREETING)
            typed = b""
            async for message in socket:
                if message.data[0] == channels.RESIZE:
                    size = json.loads(message.data[1:])
                    sizes.append((size["Width"], size["Height"]))
                elif message.data[0] == channels.STDIN:
                    typed += message.data[1:]
                    await socket.send_bytes(b"\x01" + message.data[1:].upper())
                if typed.endswith(QUIT):
                    await socket.send_bytes(b'\x03{"status":"Success"}')
                    return

        async def pod(_: web.Request) -> web.Response:
            containers = [{"name": "sidecar"}, {"name": "main", "stdin": stdin, "tty": tty}]
            phase = "Running" if running else "Pending"
            return web.json_response(
                {"metadata": {}, "spec": {"containers": containers}, "status": {"phase": phase}}
            )

        server = Server(on_stream=act, on_request=pod)
        async with serving(server):
            api = server.api()
            try:
                yield Process(lambda: attached_kubernetes(api, PodView("", "p", namespace="ml")), sizes)
            finally:
                await api.close()
        assert all(("container", "main") in query for _, query in server.streams)

    return start


@pytest.fixture(params=[on_docker, on_kubernetes], ids=["docker", "kubernetes"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    made: Start = request.param(tmp_path)
    return made


@contextlib.contextmanager
def pipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Pipes for our stdin, stdout and stderr; yields their other ends."""
    with contextlib.ExitStack() as stack:
        ends = {}
        for name in ("stdin", "stdout", "stderr"):
            reading, writing = os.pipe()
            reader = stack.enter_context(os.fdopen(reading, "rb", buffering=0))
            writer = stack.enter_context(os.fdopen(writing, "wb", buffering=0))
            ours, ends[name] = (reader, writer) if name == "stdin" else (writer, reader)
            monkeypatch.setattr(sys, name, ours)
        yield ends
        monkeypatch.undo()


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Pseudo-terminal of 80 by 24 for our streams; yields both of its ends."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    tty = SimpleNamespace(fileno=lambda: slave, isatty=lambda: True)
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, tty)
    before = termios.tcgetattr(slave)
    try:
        yield master, slave
        assert termios.tcgetattr(slave) == before, "the terminal is given back as it was"
    finally:
        monkeypatch.undo()
        os.close(master)
        os.close(slave)


class Screen:
    """Output sent to a terminal."""

    def __init__(self, master: int) -> None:
        self._master = master
        self.content = b""

    async def until(self, text: bytes) -> None:
        while text not in self.content:
            # Not only os.read: a thread that waits forever would outlive the failing test.
            ready, _, _ = await asyncio.to_thread(select.select, [self._master], [], [], 20.0)
            assert ready, self.content
            self.content += os.read(self._master, 4096)


async def test_piped_input_reaches_the_process_and_its_output_is_as_it_wrote_it(start, monkeypatch):
    async with asyncio.timeout(30), start() as process, process.attach() as attached:
        with pipes(monkeypatch) as ends:
            ends["stdin"].write(b"\x10\x11 no keys here, " + QUIT)
            is_left = await carry(attached)
            assert (ends["stdout"].read(100), ends["stderr"].read(100)) == (
                b"\x10\x11 NO KEYS HERE, QUIT",
                GREETING,
            )
    assert not is_left


async def test_a_process_with_a_terminal_has_ours_until_the_keys_leave_it(start, monkeypatch):
    async with asyncio.timeout(30), start(tty=True) as process, process.attach() as attached:
        with terminal(monkeypatch) as (master, slave):
            screen, carrying = Screen(master), asyncio.ensure_future(carry(attached))
            await screen.until(GREETING.strip())
            os.write(master, b"hi\x03")
            await screen.until(b"HI\x03")
            assert not termios.tcgetattr(slave)[3] & (termios.ECHO | termios.ICANON | termios.ISIG)
            while (80, 24) not in process.sizes:
                await asyncio.sleep(0)
            os.write(master, b"\x10")
            os.write(master, b"\x11")
            assert await carrying
            await screen.until(RESTORE)
    assert b"\x10" not in screen.content, "the keys are ours"


async def test_lines_of_a_process_without_a_terminal_are_made_harmless_and_ctrl_c_leaves_it(start, monkeypatch):
    async with asyncio.timeout(30), start() as process, process.attach() as attached:
        with terminal(monkeypatch) as (master, _):
            screen, carrying = Screen(master), asyncio.ensure_future(carry(attached))
            await screen.until(b"ready \r\n")
            os.write(master, b"step\n")
            await screen.until(b"STEP\r\n")
            os.write(master, b"half a line\x03")
            assert await carrying
    assert b"\x1b" not in screen.content
    assert b"HALF" not in screen.content


async def test_a_process_that_ends_ends_the_attachment(start, monkeypatch):
    async with asyncio.timeout(30), start(tty=True) as process, process.attach() as attached:
        with terminal(monkeypatch) as (master, _):
            screen, carrying = Screen(master), asyncio.ensure_future(carry(attached))
            await screen.until(GREETING.strip())
            os.write(master, QUIT)
            assert not await carrying


async def test_what_takes_no_input_or_does_not_run_is_refused_with_the_next_step(start):
    async with asyncio.timeout(30), start(stdin=False) as process:
        with pytest.raises(RefusedError, match="p has no standard input") as caught:
            await process.attach().__aenter__()
        assert "l2rtui logs -f p" in caught.value.hint


async def test_a_pod_that_does_not_run_is_refused(start):
    async with asyncio.timeout(30), start(running=False) as process:
        with pytest.raises(RefusedError, match="p does not run"):
            await process.attach().__aenter__()


@pytest.mark.parametrize("make", [lambda: LocalBackend(Settings()), FakeBackend], ids=["local", "demo"])
async def test_processes_of_this_machine_and_of_the_demo_have_no_input(make, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    backend = make()
    try:
        with pytest.raises(RefusedError, match="p has no standard input"):
            await backend.attach(PodView("u", "p")).__aenter__()
    finally:
        await backend.close()


@pytest.mark.parametrize(
    ("blocks", "got", "is_left"),
    [
        ([b"ab"], b"ab", False),
        ([b"a\x10", b"\x11b"], b"a", True),
        ([b"a\x10", b"b"], b"a\x10b", False),
        ([b"a\x10\x10", b"\x11"], b"a\x10", True),
        ([b"a\x11"], b"a\x11", False),
    ],
)
def test_the_keys_that_leave_may_come_in_pieces_and_nothing_else_is_lost(blocks, got, is_left):
    keys = DetachKeys(is_interrupt=False)
    answers = [keys.feed(block) for block in blocks]
    assert (b"".join(content for content, _ in answers), answers[-1][1]) == (got, is_left)
