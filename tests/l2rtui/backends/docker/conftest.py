"""A fake Engine on a Unix socket, and the backend on it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from l2rtui.backends.docker.backend import DockerBackend
from l2rtui.cloud.docker_engine import DockerEngine
from l2rtui.config import Settings
from l2rtui.domain.placement import place
from l2rtui.domain.plan import LaunchPlan, plan_launch
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from runtime.base.docker_client import DockerEndpoint
from tests.fakes.docker_engine import FakeDockerEngine


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a separate lock, as each user has."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDockerEngine]:
    made = FakeDockerEngine(str(tmp_path / "docker.sock"))
    yield made
    made.close()


@pytest.fixture
async def engine(fake: FakeDockerEngine) -> AsyncIterator[DockerEngine]:
    made = DockerEngine(DockerEndpoint(fake.url))
    yield made
    await made.close()


@pytest.fixture
async def backend(fake: FakeDockerEngine) -> AsyncIterator[DockerBackend]:
    made = DockerBackend(Settings(slots_per_core=8, max_cpu_slots=8), endpoint=DockerEndpoint(fake.url))
    yield made
    await made.close()


def run_spec(name: str = "run", replicas: int = 2, image: str = "img:1") -> RunSpec:
    sets = (
        SetSpec("learner", Role.LEARNER, ("learn",), grace_seconds=2.0),
        SetSpec("w", Role.WORKER, ("work", "--fast"), replicas=replicas, grace_seconds=2.0),
    )
    return RunSpec(Kind.LEARNER_WORKERS, name, name, sets, image=image)


async def plan_of(backend: DockerBackend, spec: RunSpec) -> LaunchPlan:
    snapshot = await backend.snapshot()
    placement = place([spec], snapshot.ledger)
    return plan_launch([spec], placement, snapshot.nodes, owner="me", uids=[uuid.uuid4().hex])


async def launched(backend: DockerBackend, spec: RunSpec | None = None) -> LaunchPlan:
    plan = await plan_of(backend, spec or run_spec())
    assert [done.error async for done in backend.launch(plan)] == [""] * len(plan.steps())
    return plan
