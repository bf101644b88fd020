"""Builds on a fake Engine: the labels with name and digest of the image on which an image was built."""

from __future__ import annotations

import json

import pytest

from l2rtui.cloud.images import engine as buildx
from l2rtui.cloud.images.engine import LABEL_BASE, LABEL_BASE_DIGEST, ImageEngine
from l2rtui.domain.imageref import parse_image
from l2rtui.errors import BackendError
from l2rtui.services import images
from tests.fakes.docker_engine import FakeDockerEngine

DIGEST = f"sha256:{'a' * 64}"
DEBIAN = "debian:bookworm-slim"


@pytest.fixture
def fake(monkeypatch, tmp_path):
    made = FakeDockerEngine("", images=("lab/node:1",))
    monkeypatch.setenv("DOCKER_HOST", made.url)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield made
    made.close()


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "docker").mkdir(parents=True)
    (folder / "docker" / "Dockerfile.base").write_text(f"# base\nARG BASE={DEBIAN}\nFROM ${{BASE}}\n")
    (folder / "docker" / "Dockerfile.node").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n")
    return images.SourceTree(folder, "abc", is_dirty=False)


async def labels(fake, monkeypatch, source, base=""):
    """Build both stages; return the labels of the last, after comparing them with the first stage's."""

    async def has_buildx():
        return False

    monkeypatch.setattr(buildx, "has_buildx", has_buildx)
    engine = ImageEngine()
    await engine.open()
    try:
        recipe = images.Recipe(source, parse_image("lab/node:1"), base)
        steps = [step async for step in images.build(engine, recipe)]
        assert isinstance(steps[-1], images.Built)
    finally:
        await engine.close()
    first, second = (json.loads(build["labels"]) for build in fake.pushes)
    assert first == second
    return first.get(LABEL_BASE), first.get(LABEL_BASE_DIGEST)


async def test_a_base_that_the_engine_does_not_have_is_looked_up_through_it(fake, monkeypatch, source):
    fake.registry_digests[DEBIAN] = DIGEST
    assert await labels(fake, monkeypatch, source) == (f"docker.io/library/{DEBIAN}", DIGEST)


async def test_the_engine_s_own_image_comes_before_its_registry(fake, monkeypatch, source):
    name = "registry.example/sim:5"
    fake.images[name] = {"Id": "x", "RepoDigests": [f"registry.example/sim@{DIGEST}"], "Config": {}}
    fake.registry_digests[name] = f"sha256:{'b' * 64}"
    assert await labels(fake, monkeypatch, source, name) == (name, DIGEST)


async def test_a_base_that_was_built_here_has_a_name_and_no_digest(fake, monkeypatch, source):
    name = "registry.example/sim:5"
    fake.images[name] = {"Id": "x", "RepoDigests": [], "Config": {}}
    fake.registry_digests[name] = DIGEST  # possibly of an older image
    assert await labels(fake, monkeypatch, source, name) == (name, None)


async def test_a_registry_that_does_not_answer_leaves_the_digest_out(fake, monkeypatch, source):
    assert await labels(fake, monkeypatch, source, "registry.example/sim") == ("registry.example/sim:latest", None)


async def test_a_source_whose_base_cannot_be_read_gets_no_labels(fake, monkeypatch, source):
    (source.folder / "docker" / "Dockerfile.base").write_bytes(b"ARG BASE=\xff")
    assert await labels(fake, monkeypatch, source) == (None, None)


async def test_a_base_by_digest_is_what_it_says(fake, monkeypatch, source):
    name = f"registry.example/sim@{DIGEST}"
    assert await labels(fake, monkeypatch, source, name) == ("registry.example/sim", DIGEST)


async def test_labels_are_read_from_an_image(fake):
    fake.images["lab/node:1"] |= {"Config": {"Labels": {LABEL_BASE: "sim:5", LABEL_BASE_DIGEST: DIGEST}}}
    engine = ImageEngine()
    try:
        image = await engine.find("lab/node:1")
    finally:
        await engine.close()
    assert (image.base, image.base_digest) == ("sim:5", DIGEST)


async def test_an_image_that_is_not_there_after_its_build_is_said(fake, monkeypatch, source):
    del fake.images["lab/node:1"]
    with pytest.raises(BackendError, match="lab/node:1 was built, and the Docker Engine does not know it"):
        await labels(fake, monkeypatch, source)
