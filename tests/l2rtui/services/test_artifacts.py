"""Checkpoints that learners stored elsewhere: listed, fetched, compared, and their problems reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import boto3
import numpy as np
import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.cloud.artifacts import Artifacts
from l2rtui.domain.containers import Mount
from l2rtui.errors import BackendError, NotFoundError, UsageError
from l2rtui.services import destroyed_specs
from l2rtui.services.artifacts import choose, differences, resumed, root_of
from runtime.base.object_store import open_store
from runtime.rl.checkpoints.checkpoint_files import Checkpoints, Mirror
from tests.fakes.moto_server import moto_server
from tests.l2rtui.backends.local.conftest import lab

__all__ = ["lab"]  # a fixture


@pytest.fixture(params=["folder", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "volume")
        return
    with moto_server() as address:
        for name, value in {
            "AWS_ENDPOINT_URL_S3": address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="lab")
        client.close()
        yield "s3://lab/results"


def put(root: str, folder: Path, *seeds: int) -> list[str]:
    for seed in seeds:
        own = Checkpoints(folder / str(seed), keep=5)
        facts = {"made": {"run": f"r-s{seed}", "seed": seed, "time": 1000.0 + seed, "eval_return": seed * 1.5}}
        name = own.save(seed, seed * 10, {"x": np.full(64, seed, np.float32)}, facts)
        mirror = Mirror(open_store(root, f"r-s{seed}", "1"), folder / str(seed), 5, print)
        mirror.offer(name)
        mirror.close()
    return [f"ckpt-{seed:010d}-{seed * 10:012d}" for seed in seeds]


async def test_what_learners_left_is_listed_fetched_and_compared(root: str, tmp_path: Path) -> None:
    names = put(root, tmp_path, 1, 2)
    places = Artifacts(root)
    artifacts = await places.list()
    assert [
        (artifact.name, artifact.location, artifact.facts.get("seed"), artifact.problem) for artifact in artifacts
    ] == [
        (names[0], f"{root}/r-s1/1", 1, ""),
        (names[1], f"{root}/r-s2/1", 2, ""),
    ]
    newest = await choose(places, "")
    assert newest == artifacts[1]
    moved: list[int] = []
    await places.fetch(newest, tmp_path / "got", moved.append)
    assert sum(moved) == newest.bytes
    checkpoint, aside = Checkpoints(tmp_path / "got", keep=5).load()
    assert checkpoint is not None
    assert (checkpoint.tensors["x"][0], aside) == (2.0, [])
    assert ("eval_return", 1.5, 3.0) in differences(*artifacts)
    assert ("env_steps", 10, 20) in differences(*artifacts)


async def test_what_is_wrong_with_a_checkpoint_is_said_and_it_is_never_chosen(root: str, tmp_path: Path) -> None:
    names = put(root, tmp_path, 1, 2, 3)
    lost, spoiled = open_store(root, "r-s3", "1"), open_store(root, "r-s2", "1")
    lost.remove(f"{names[2]}.safetensors")
    manifest = tmp_path / "manifest"
    manifest.write_text(json.dumps({**json.loads(spoiled.read(f"{names[1]}.json")), "env_steps": 99}))
    spoiled.put(f"{names[1]}.json", manifest)
    places = Artifacts(root)
    assert [artifact.problem for artifact in await places.list()] == [
        "",
        "its manifest cannot be used: its check sum is wrong",
        "its arrays are not there",
    ]
    assert (await choose(places, "")).name == names[0]
    with pytest.raises(NotFoundError, match=f"There is no checkpoint {names[2]} in"):
        await choose(places, names[2])


async def test_arrays_that_were_damaged_on_the_way_are_not_kept(root: str, tmp_path: Path) -> None:
    (name,) = put(root, tmp_path, 1)
    other = tmp_path / "other"
    other.write_bytes(b"\0" * 64)
    open_store(root, "r-s1", "1").put(f"{name}.safetensors", other)
    places = Artifacts(root)
    with pytest.raises(BackendError, match=f"{name} is damaged: its check sum is wrong"):
        await places.fetch(await choose(places, name), tmp_path / "got", lambda _: None)
    assert not list((tmp_path / "got").iterdir())


async def test_a_run_trains_on_with_the_spec_of_who_made_the_checkpoint_also_when_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    put(str(tmp_path / "volume"), tmp_path, 1)
    (artifact,) = await Artifacts(str(tmp_path / "volume")).list()
    backend = FakeBackend()
    with pytest.raises(NotFoundError, match="No destroyed run is named r-s1"):
        await resumed(backend, artifact, "went-on")
    before = next(iter((await backend.snapshot()).runs.values())).name
    destroyed_specs.keep(replace(await backend.spec(before), name="r-s1", train='{"lr": 1}'))
    spec = await resumed(backend, artifact, "went-on")
    assert (spec.name, json.loads(spec.train)) == ("went-on", {"lr": 1, "resume_from": artifact.location})
    alive = replace(artifact, facts={"run": before})
    assert (await resumed(backend, alive, "went-on")).sets == (await backend.spec(before)).sets
    with pytest.raises(UsageError, match="Went On"):
        await resumed(backend, alive, "Went On")
    with pytest.raises(UsageError, match="its arrays are not there"):
        await resumed(backend, replace(alive, problem="its arrays are not there"), "went-on")


async def test_places_that_are_none_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gs://x/y is not a place for checkpoints"):
        Artifacts("gs://x/y")
    with pytest.raises(UsageError, match=r"s3://B_ names no bucket"):
        Artifacts("s3://B_")
    with pytest.raises(NotFoundError, match="There is no folder"):
        await Artifacts(str(tmp_path / "nowhere")).list()


async def test_a_local_run_leaves_its_checkpoints_in_its_own_folder_also_when_it_is_gone(lab):
    await lab.launch(lab.set("sleep", "600"))
    await lab.pod(lambda pod: pod.ready)
    folder = Path(await root_of(lab.backend, "run"))
    assert folder == lab.folder().data
    facts = {"made": {"run": "run", "seed": 0, "time": 1000.0, "eval_return": 1.5}}
    name = Checkpoints(folder / "checkpoints", keep=5).save(3, 30, {"x": np.zeros(4, np.float32)}, facts)
    (artifact,) = await Artifacts(str(folder)).list()
    assert (artifact.name, artifact.updates, artifact.problem) == (name, 3, "")
    receipt = await lab.destroy()
    left = await root_of(lab.backend, "run")
    assert left == receipt.results_location
    assert [artifact.name for artifact in await Artifacts(left).list()] == [name]
    with pytest.raises(NotFoundError):
        await root_of(lab.backend, "ru")


async def test_where_checkpoints_lie_that_are_copied_nowhere_is_said(monkeypatch):
    backend = FakeBackend()
    run = next(iter((await backend.snapshot()).runs.values())).name
    spec = replace(await backend.spec(run), train="{}")
    mounted = replace(spec.sets[0], pod=replace(spec.sets[0].pod, mounts=(Mount("/l2r", claim="shared"),)))

    async def stored(_run):
        return replace(spec, sets=(mounted, *spec.sets[1:]))

    monkeypatch.setattr(backend, "spec", stored)
    with pytest.raises(UsageError, match="volume shared"):
        await root_of(backend, run)
    in_claim = replace(mounted, pod=replace(mounted.pod, mounts=(Mount("/data", claim="shared"),)))
    in_pods = replace(spec, train='{"artifacts": "/data/results"}', sets=(in_claim, *spec.sets[1:]))

    async def kept(_run):
        return in_pods

    monkeypatch.setattr(backend, "spec", kept)
    with pytest.raises(UsageError, match=r"in /data/results/.* of its pods") as refused:
        await root_of(backend, run)
    assert f"volume files shared:results/{spec.name}" in refused.value.hint
    with_place = replace(spec, train='{"artifacts": "s3://lab/x/"}')

    async def copied(_run):
        return with_place

    monkeypatch.setattr(backend, "spec", copied)
    assert await root_of(backend, run) == f"s3://lab/x/{spec.name}"
    assert await root_of(backend, "./here") == "./here"
