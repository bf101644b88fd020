"""Checkpoints in a bucket and on a volume: complete or absent, wherever a writer is killed, and the way back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest

from runtime.base import contract
from runtime.base.atomic_files import ByteProgress
from runtime.base.object_store import FolderStore, ObjectStore, StoreError, open_store
from runtime.rl.checkpoints.checkpoint_files import Checkpoints, Mirror, bring_newest
from tests.fakes.moto_server import moto_server
from tests.runtime.conftest import TINY, RunUnderTest

Wait = Callable[..., Any]
PART = 5 * 1024 * 1024
"""Minimum size of a part of an upload, except the last."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto_server() as address:
        yield address


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "volume")
    endpoint = request.getfixturevalue("server")
    patch = request.getfixturevalue("monkeypatch")
    for name, value in surroundings(endpoint).items():
        patch.setenv(name, value)
    bucket = f"runs-{time.monotonic_ns()}"
    with_client(endpoint, lambda client: client.create_bucket(Bucket=bucket))
    return f"s3://{bucket}/lab"


def surroundings(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def with_client(endpoint: str, act: Callable[[Any], Any]) -> Any:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    try:
        return act(client)
    finally:
        client.close()


def saved(folder: Path, *counts: int, size: int = 64) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep=10)
    for count in counts:
        checkpoints.save(count, count * 10, {"x": np.full(size, count, np.float32)}, {"count": count})
    return checkpoints


def mirrored(place: ObjectStore, folder: Path, *names: str, keep: int = 10) -> list[str]:
    said: list[str] = []
    for name in names:
        mirror = Mirror(place, folder, keep, said.append)
        mirror.offer(name)
        mirror.close()
    return said


def test_what_goes_out_comes_back_the_newest_first_and_the_oldest_makes_room(url: str, tmp_path: Path) -> None:
    source, target, place = tmp_path / "a", tmp_path / "b", open_store(url, "run", "1")
    names = saved(source, 1, 2, 3).names()
    said = mirrored(place, source, *names, keep=2)
    assert len(said) == 3
    assert all(place.url in sentence for sentence in said)
    assert place.names() == sorted(f"{name}.{kind}" for name in names[1:] for kind in ("json", "safetensors"))
    back = Checkpoints(target, keep=10)
    assert bring_newest(place, target, said.append) == names[2]
    checkpoint, aside = back.load()
    assert checkpoint is not None
    assert (checkpoint.name, checkpoint.facts, aside) == (names[2], {"count": 3}, [])
    assert checkpoint.tensors["x"].tolist() == [3.0] * 64
    assert bring_newest(place, target, said.append) is None, "there is one as new already"


def test_a_copy_that_is_not_whole_is_passed_over_with_a_sentence(url: str, tmp_path: Path) -> None:
    source, target, place = tmp_path / "a", tmp_path / "b", open_store(url)
    names = saved(source, 1, 2, 3, 4).names()
    mirrored(place, source, *names)
    spoiled = tmp_path / "spoiled"
    spoiled.write_bytes(b"\0" * 10)
    place.put(f"{names[3]}.safetensors", spoiled)
    place.put(f"{names[2]}.json", spoiled)
    place.remove(f"{names[1]}.safetensors")
    said: list[str] = []
    Checkpoints(target, keep=10)
    assert bring_newest(place, target, said.append) == names[0]
    assert [name in sentence for name, sentence in zip(reversed(names[1:]), said, strict=True)] == [True] * 3
    assert sorted(path.stem for path in target.iterdir()) == [names[0]] * 2


def test_nothing_there_is_no_checkpoint_and_no_error(url: str, tmp_path: Path) -> None:
    assert bring_newest(open_store(url, "nobody"), tmp_path, print) is None


WRITER = """
import sys, time
from pathlib import Path
from runtime.base import object_store as s3
from runtime.rl.checkpoints.checkpoint_files import Mirror
from runtime.base.object_store import open_store
s3.PART_BYTES = int(sys.argv[4])
mirror = Mirror(open_store(sys.argv[1]), Path(sys.argv[2]), 10, lambda text: print(text, flush=True))
print("begins", flush=True)
mirror.offer(sys.argv[3])
mirror.close()
"""


@pytest.mark.process
def test_a_writer_that_is_killed_at_any_moment_leaves_nothing_that_looks_whole_and_is_not(
    url: str, tmp_path: Path
) -> None:
    source, place = tmp_path / "a", open_store(url)
    old, new = saved(source, 1, 2, size=6 * 1024 * 1024).names()  # 24 MiB: five parts
    mirrored(place, source, old)
    came = set()
    for delay in (0.02, 0.1):
        argv = [sys.executable, "-c", WRITER, url, str(source), new, str(PART)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "begins\n"
            time.sleep(delay)  # this moment is the subject of the test
            writer.send_signal(signal.SIGKILL)
        target = tmp_path / f"b-{delay}"
        Checkpoints(target, keep=10)
        came.add(bring_newest(place, target, print))
        assert Checkpoints(target, keep=10).load()[1] == []
    assert came <= {old, new}
    mirrored(place, source, new)
    assert {f"{new}.json", f"{new}.safetensors"} <= set(place.names())
    assert not [name for name in place.names() if name.startswith(".tmp-")]


class FailingStore(FolderStore):
    """A store whose library fails unexpectedly, for some checkpoints."""

    fails_for: tuple[str, ...] = ()

    def put(self, name: str, source: Path, progress: ByteProgress = lambda _: None) -> None:
        if name.startswith(self.fails_for):
            raise RuntimeError("cannot schedule new futures\nafter shutdown")
        super().put(name, source, progress)


def test_an_error_that_nobody_foresaw_costs_its_checkpoint_alone(tmp_path: Path, wait_until: Wait) -> None:
    source, place = tmp_path / "a", FailingStore(tmp_path / "volume")
    first, second, third = saved(source, 1, 2, 3).names()
    place.fails_for = (first, third)
    said: list[str] = []
    mirror = Mirror(place, source, 10, said.append)
    for number, name in enumerate((first, second)):
        mirror.offer(name)
        wait_until(lambda count=number + 1: len(said) == count, name)
    mirror.offer(third)
    mirror.close()
    reason = "RuntimeError: cannot schedule new futures, test_upload.py line "
    assert said[0].startswith(f"checkpoint {first} could not be copied ({reason}")
    assert said[0].endswith("); the next one is tried")
    assert said[1].startswith(f"checkpoint {second} is in {place.url}")
    assert said[2].startswith(f"checkpoint {third} could not be copied ({reason}")
    assert f"{second}.json" in place.names()


def test_uploads_that_nobody_completed_are_ended(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in surroundings(server).items():
        monkeypatch.setenv(name, value)
    with_client(server, lambda client: client.create_bucket(Bucket="half"))
    with_client(server, lambda client: client.create_multipart_upload(Bucket="half", Key="lab/x"))
    open_store("s3://half/lab").sweep()
    assert not with_client(server, lambda client: client.list_multipart_uploads(Bucket="half")).get("Uploads")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("gs://bucket/x", "gs://bucket/x is not a place for checkpoints; use s3://BUCKET/PREFIX or a folder"),
        ("s3://B_/x", "s3://B_/x is not the name of a bucket; use s3://BUCKET/PREFIX"),
    ],
)
def test_a_place_that_is_none_is_refused_with_a_sentence(wrong: str, sentence: str) -> None:
    with pytest.raises(StoreError, match="^" + sentence.replace("[", "\\[")):
        open_store(wrong)


def test_a_bucket_that_is_not_there_is_named(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in surroundings(server).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreError, match="cannot list s3://nobodys/lab: NoSuchBucket"):
        open_store("s3://nobodys/lab").names()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_learner_goes_on_from_the_bucket_when_its_folder_is_lost(
    run: RunUnderTest, server: str, monkeypatch: pytest.MonkeyPatch, wait_until: Wait
) -> None:
    for name, value in surroundings(server).items():
        monkeypatch.setenv(name, value)
    with_client(server, lambda client: client.create_bucket(Bucket="lab"))
    run.settings = {**TINY, "artifacts": "s3://lab/runs"}
    learning, collecting = run.start("learner"), run.start("worker")
    wait_until(lambda: "is in s3://lab/runs/" in learning.text(), "a copy", 120, learning)
    learning.process.send_signal(signal.SIGTERM)
    assert learning.process.wait(60) == contract.EXIT_DONE, learning.text()
    collecting.process.terminate()
    collecting.process.wait(60)
    newest = max((run.folder / "run" / "checkpoints").glob("*.json"))
    steps = json.loads(newest.read_bytes())["env_steps"]
    for path in (*(run.folder / "run").glob("*.json*"), *(run.folder / "run" / "checkpoints").iterdir()):
        path.unlink()
    again = run.start("learner")
    wait_until(lambda: f"resumed {newest.stem}: {steps} env steps" in again.text(), "the way back", 120, again)
    again.process.terminate()
    assert again.process.wait(60) == contract.EXIT_DONE

    run.settings = {**TINY, "resume_from": "s3://lab/nobody"}
    for path in (run.folder / "run" / "checkpoints").iterdir():
        path.unlink()
    refused = run.start("learner")
    assert refused.process.wait(60) == contract.EXIT_USAGE
    assert "resume_from: there is no complete checkpoint in s3://lab/nobody" in refused.text()


def test_of_two_writers_of_one_place_the_second_is_told(url: str, tmp_path: Path) -> None:
    said: list[str] = []
    for number, counts in enumerate(((1, 3), (2,))):  # the second writer's newest is older than the existing one
        folder = tmp_path / f"writer-{number}"
        saved(folder, *counts)
        mirror = Mirror(open_store(url), folder, 10, said.append)
        for path in sorted(folder.glob("ckpt-*.json")):
            mirror.offer(path.stem)
        mirror.close()
        assert any("another one writes there" in line for line in said) is (number == 1)
    assert "Give each run a place of its own" in "".join(said)
