"""Forwarded ports: listed while they are open, including other processes', but not dead ones."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing

import pytest

from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError
from l2rtui.services import port_forwards
from l2rtui.services.port_forwards import carry, open_forwards

POD = PodView("u", "run-w-0", run="run")


class Inspector:
    """Accepts forwards without forwarding, until it is closed."""

    def __init__(self, *sentences: str) -> None:
        self.sentences = sentences

    async def forward(self, pod, local, remote):
        if not self.sentences:
            raise BackendError(f"Port {local} is taken.")
        for sentence in self.sentences:
            yield sentence
        if remote:
            await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


async def test_a_forward_is_listed_as_long_as_it_is_open():
    assert await open_forwards() == ()
    async with aclosing(carry(Inspector("here leads there"), "local", POD, 1, 2)) as sentences:
        assert await anext(sentences) == "here leads there"
        (forward,) = await open_forwards()
        assert (forward.pod, forward.run, forward.sentence) == ("run-w-0", "run", "here leads there")
        assert (forward.backend, forward.pid) == ("local", os.getpid())
    assert await open_forwards() == ()


async def test_what_is_said_later_is_passed_on_and_the_end_too():
    said = [sentence async for sentence in carry(Inspector("listens", "a connection failed"), "x", POD, 1, 0)]
    assert said == ["listens", "a connection failed"]
    assert await open_forwards() == ()


async def test_a_port_that_cannot_be_used_is_not_listed():
    with pytest.raises(BackendError, match="is taken"):
        await anext(carry(Inspector(), "x", POD, 1, 2))
    assert await open_forwards() == ()


async def test_an_entry_of_a_dead_process_is_forgotten_and_a_damaged_one_does_no_harm(tmp_path):
    folder = port_forwards.forwards_folder()
    folder.mkdir(parents=True)
    (folder / "1-dead.json").write_text("{}")
    assert await open_forwards() == ()
    assert not list(folder.iterdir())


async def test_without_a_place_to_write_a_port_is_carried_all_the_same(tmp_path):
    port_forwards.forwards_folder().parent.mkdir(parents=True)
    port_forwards.forwards_folder().write_text("a file in its place")
    async with aclosing(carry(Inspector("listens"), "x", POD, 1, 2)) as sentences:
        assert await anext(sentences) == "listens"
        assert await open_forwards() == ()
