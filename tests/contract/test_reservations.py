"""Reservations of slots on every backend: others neither place nor launch there, the holder does, and they
expire.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from l2rtui.backends.base import Backend
from l2rtui.backends.docker.backend import DockerBackend
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.backends.local.backend import LocalBackend
from l2rtui.config import Settings
from l2rtui.domain.change import apply
from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import place
from l2rtui.domain.plan import LaunchPlan, plan_launch
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.errors import NotFoundError, RefusedError, UsageError
from l2rtui.services import reservations
from runtime.base.docker_client import DockerEndpoint
from tests.fakes.docker_engine import FakeDockerEngine
from tests.fakes.kubernetes_objects import serving
from tests.l2rtui.backends.kubernetes.actions.verbs import FullServer

SETTINGS = Settings(slots_per_core=8, max_cpu_slots=8, namespaces=("ml",), image="i:1")
NOTE = "paper figures"


@dataclass
class People:
    """Two users at one place: each acts as the user of the process."""

    anna: Backend
    bob: Backend
    become: Callable[[str], None]

    async def snapshot(self, name: str) -> ClusterSnapshot:
        self.become(name)
        return await getattr(self, name).snapshot()

    async def states(self, name: str, slots: list[SlotId]) -> list[SlotState]:
        ledger = (await self.snapshot(name)).ledger
        return [ledger.slots[slot].state for slot in slots]

    async def plan(self, name: str, snapshot: ClusterSnapshot) -> LaunchPlan:
        workers = SetSpec("w", Role.WORKER, ("sleep", "60"), replicas=2)
        run = RunSpec(Kind.LEARNER_WORKERS, f"{name}-run", "x", (workers,), image="i:1")
        plan = plan_launch(
            [run], place([run], snapshot.ledger), snapshot.nodes, owner=name, uids=[uuid.uuid4().hex]
        )
        backend = getattr(self, name)
        return await backend.renderer.planned(plan) if backend.renderer is not None else plan


@pytest.fixture(params=["local", "docker on a fake Engine", "kubernetes in memory"])
async def people(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch) -> AsyncIterator[People]:
    def become(name: str) -> None:
        monkeypatch.setenv("LOGNAME", name)

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    engine = FakeDockerEngine(str(tmp_path / "docker.sock"), images=("i:1",), is_live=True)
    async with serving(FullServer()) as server:
        config = tmp_path / "config"
        config.write_text(
            json.dumps(
                {
                    "current-context": "lab",
                    "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
                    "clusters": [{"name": "c", "cluster": {"server": server.base}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                }
            )
        )

        def backend(name: str) -> Backend:
            become(name)
            if request.param == "local":
                return LocalBackend(SETTINGS, state=tmp_path / "local")
            if request.param == "kubernetes in memory":
                return KubernetesBackend(SETTINGS, str(config))
            return DockerBackend(SETTINGS, endpoint=DockerEndpoint(engine.url))

        both = People(backend("anna"), backend("bob"), become)
        yield both
        await both.anna.close()
        await both.bob.close()
    engine.close()


async def first_two(people: People) -> list[SlotId]:
    return list((await people.snapshot("anna")).ledger.free()[:2])


async def reserve(people: People, name: str, slots: list[SlotId], seconds: float = 3600.0) -> None:
    people.become(name)
    await reservations.reserve(getattr(people, name), slots, time.time(), seconds, NOTE)


async def test_others_avoid_what_is_reserved_and_the_holder_uses_it(people):
    slots = await first_two(people)
    before = await people.plan("bob", await people.snapshot("bob"))
    await reserve(people, "anna", slots)
    assert await people.states("anna", slots) == [SlotState.FREE] * 2
    assert await people.states("bob", slots) == [SlotState.RESERVED] * 2
    after = await people.plan("bob", await people.snapshot("bob"))
    assert not {slot for pod in after.runs[0].pods for slot in pod.seat.slots} & set(slots)
    # An earlier plan, made without the reservation.
    with pytest.raises(RefusedError, match=rf"Slot {slots[0]} is reserved by anna until .* \({NOTE}\)"):
        async for _ in people.bob.launch(before):
            pass
    assert (await people.snapshot("bob")).runs == {}
    plan = await people.plan("anna", await people.snapshot("anna"))
    assert [pod.seat.slots[0] for pod in plan.runs[0].pods] == slots


async def test_a_slot_is_reserved_by_one_person_and_all_or_none_are(people):
    slots = await first_two(people)
    await reserve(people, "anna", slots[1:])
    with pytest.raises(RefusedError, match=rf"Slot {slots[1]} is reserved by anna .*so nothing was reserved"):
        await reserve(people, "bob", slots)
    assert (await people.states("anna", slots))[0] is SlotState.FREE
    await reserve(people, "anna", slots, 7200.0)
    (node,) = [node for node in (await people.snapshot("bob")).nodes.values() if node.reservations]
    assert {(item.owner, item.note, item.is_mine) for item in node.reservations} == {("anna", NOTE, False)}
    assert len({item.until for item in node.reservations}) == 1
    with pytest.raises(UsageError, match="from 1 minute to 14 days"):
        await reserve(people, "bob", slots, 5.0)


async def test_only_the_holder_and_an_administrator_release_it(people):
    slots = await first_two(people)
    await reserve(people, "anna", slots)
    snapshot = await people.snapshot("bob")
    with pytest.raises(RefusedError, match=r"\(anna\).*--admin"):
        await reservations.unreserve(people.bob, snapshot, slots)
    await reservations.unreserve(people.bob, snapshot, slots[:1], is_admin=True)
    assert await people.states("bob", slots) == [SlotState.FREE, SlotState.RESERVED]
    mine = reservations.mine(await people.snapshot("anna"))
    assert mine == slots[1:]
    await reservations.unreserve(people.anna, await people.snapshot("anna"), mine)
    assert await people.states("bob", slots) == [SlotState.FREE] * 2
    with pytest.raises(NotFoundError, match="None of these slots is reserved"):
        await reservations.unreserve(people.bob, await people.snapshot("bob"), slots)


# Docker is polled too rarely for this, and the cluster in memory has no watch: see test_joiner.py.
@pytest.mark.parametrize("people", ["local"], indirect=True)
async def test_a_watch_shows_it_and_its_end_that_nobody_has_to_make(people):
    slots = await first_two(people)
    people.become("bob")
    shown: list[SlotState] = []
    async with asyncio.timeout(60), aclosing(people.bob.watch()) as batches:
        snapshot = EMPTY_SNAPSHOT
        async for changes_of_rows in batches:
            snapshot = apply(snapshot, changes_of_rows)
            state = snapshot.ledger.slots[slots[0]].state if slots[0] in snapshot.ledger.slots else None
            if state is SlotState.FREE and not shown:
                await people.anna.reservations.reserve(slots, time.time() + 2.0)
            if state is not None and state not in shown[-1:]:
                shown.append(state)
            if len(shown) == 3:
                break
    assert shown == [SlotState.FREE, SlotState.RESERVED, SlotState.FREE]


@pytest.mark.parametrize("people", ["local"], indirect=True)
async def test_a_file_that_somebody_has_written_over_reserves_nothing(people, tmp_path):
    slots = await first_two(people)
    await reserve(people, "anna", slots)
    path = tmp_path / "local" / "reservations.json"
    assert path.stat().st_mode & 0o777 == 0o600
    for text in ("{", "[]", '{"x": 1}'):
        path.write_text(text)
        os.utime(path, (1, 1))
        assert await people.states("bob", slots) == [SlotState.FREE] * 2
    path.unlink()
    assert await people.states("bob", slots) == [SlotState.FREE] * 2
