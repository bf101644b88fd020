"""Images of a fake Engine: locally built ones, builds and pushes with their messages, and failures."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from l2rtui.cloud.images.credentials import Login
from l2rtui.cloud.images.engine import LABEL_DIRTY, LABEL_REVISION, BuildStage, ImageEngine
from l2rtui.domain.imageref import parse_image
from l2rtui.errors import BackendError
from tests.fakes.docker_engine import FakeDockerEngine

IMAGE = parse_image("registry.example/lab/node:1")


@pytest.fixture(params=["unix", "tcp"])
def fake(request, tmp_path, monkeypatch):
    path = str(tmp_path / "docker.sock") if request.param == "unix" else ""
    made = FakeDockerEngine(path, images=("registry.example/lab/node:1", "b:1"))
    monkeypatch.setenv("DOCKER_HOST", made.url)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    yield made
    made.close()


@pytest.fixture
async def engine(fake):
    made = ImageEngine()
    await made.open()
    yield made
    await made.close()


async def test_images_are_found_named_and_listed_newest_first(engine, fake):
    for number, image in enumerate(fake.images.values()):
        labels = {LABEL_REVISION: "abc", LABEL_DIRTY: "true"}
        image |= {"Created": f"202{number}", "Size": 5, "Config": {"Labels": labels}}
        image["RepoDigests"] = ["registry.example/lab/node@sha256:1", "other@sha256:2"]
    image_found = await engine.find(str(IMAGE))
    assert (image_found.size_bytes, image_found.revision, image_found.is_dirty) == (5, "abc", True)
    assert image_found.digests == ("registry.example/lab/node@sha256:1",)
    assert await engine.find("none:1") is None
    assert [image.name for image in await engine.images()] == ["b:1", str(IMAGE)]
    await engine.tag(image_found.id, parse_image("registry.example/x/y:2"))
    assert await engine.find("registry.example/x/y:2") is not None


@pytest.mark.parametrize(
    ("login", "auth"),
    [
        (None, {}),
        (Login("me", "hidden"), {"username": "me", "password": "hidden", "serveraddress": "registry.example"}),
        (Login("me", "t", is_token=True), {"identitytoken": "t", "serveraddress": "registry.example"}),
    ],
)
async def test_a_push_sends_its_login_and_gives_the_engine_s_messages(engine, fake, login, auth):
    fake.stream_messages = [{"status": "Pushing"}, {"aux": {"Digest": "sha256:1"}}]
    assert [message async for message in engine.push(IMAGE, login)] == fake.stream_messages
    assert fake.pushes == [{"name": "registry.example/lab/node", "tag": "1", "auth": auth}]


async def test_a_build_sends_the_folder_without_what_is_ignored(engine, fake, tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("Dockerfile", "kept", "ignored"):
        (folder / name).write_text("FROM scratch\n")
    (folder / ".dockerignore").write_text("ignored\n")
    fake.stream_messages = [{"stream": "Step 1/1"}]
    building = engine.build(BuildStage(str(folder), "Dockerfile", "x:1", {"A": "b"}, {"l": "v"}, "host"))
    assert [message async for message in building] == fake.stream_messages
    (sent,) = fake.pushes
    assert "kept" in sent["context"]
    assert "ignored" not in sent["context"]
    assert (sent["t"], sent["networkmode"]) == ("x:1", "host")


async def test_refusals_are_sentences(engine, fake, tmp_path):
    fake.fail("POST", "/push", 500, "no space left")
    with pytest.raises(BackendError, match="no space left"):
        [message async for message in engine.push(IMAGE, None)]
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    fake.fail("POST", "/build", 400, "dockerfile parse error")
    with pytest.raises(BackendError, match="dockerfile parse error"):
        [message async for message in engine.build(BuildStage(str(tmp_path), "Dockerfile", "x:1", {}, {}))]


async def test_a_push_that_is_given_up_ends(engine, fake):
    fake.stream_messages = [{"status": "Pushing"}] * 1_000_000
    async with asyncio.timeout(30):
        async with aclosing(engine.push(IMAGE, None)) as messages:
            async for _ in messages:
                break
        while fake.streams:
            await asyncio.sleep(0.01)


async def test_no_engine_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(BackendError, match="cannot be reached"):
        await ImageEngine().open()
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONTEXT", "none")
    with pytest.raises(BackendError, match="There is no Docker context none"):
        ImageEngine()
