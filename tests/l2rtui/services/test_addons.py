"""Add-ons: images by the digest of a registry, unchanged images without an answer, and a file system as a
volume.
"""

from __future__ import annotations

from contextlib import aclosing

import pytest
from aiohttp import web

from l2rtui.cloud.images.registry import Registry
from l2rtui.domain.preflight import Severity
from l2rtui.errors import L2RError
from l2rtui.services import addons, images
from l2rtui.services.addons import AddonImage
from tests.fakes.kubernetes_objects import ObjectServer, serving

DIGEST = f"sha256:{'a' * 64}"
OTHER = f"sha256:{'b' * 64}"


def manifest(image, name="plugin"):
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system", "annotations": {addons.VERSION: "v1"}},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "plugin", "image": image}]},
            },
        },
    }


@pytest.fixture
async def registry():
    """A registry on this machine with one image; yields its address."""
    asked = []

    async def answer(request):
        asked.append(request.path)
        if request.path != "/v2/driver/manifests/v1":
            return web.Response(status=404)
        return web.Response(headers={"Docker-Content-Digest": DIGEST})

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def server():
    async with serving(ObjectServer()) as made:
        yield made


@pytest.fixture
def of(monkeypatch, server):
    """Give the add-ons these objects, and the server in memory as their cluster."""

    async def connect(*_, **__):
        return server.api()

    def set_objects(*objects):
        monkeypatch.setattr(addons, "read_addons", lambda: [("driver", dict(item)) for item in objects])

    monkeypatch.setattr(addons, "connect", connect)
    return set_objects


async def applied(**options):
    async with aclosing(addons.apply_addons("", **options)) as steps:
        return [step async for step in steps]


def running(server):
    (item,) = [item for (kind, _, _), item in server.objects.items() if kind == "DaemonSet"]
    return item["spec"]["template"]["spec"]["containers"][0]["image"]


async def test_images_are_named_by_the_digest_of_their_tag(of, server, registry):
    of(manifest(f"{registry}/driver:v1"))
    images = await addons.resolve_images()
    assert images == [AddonImage("driver", f"{registry}/driver:v1", DIGEST)]
    assert images[0].sentence == f"driver: {registry}/driver:v1@{DIGEST}"
    (step,) = await applied(images=images)
    assert (step.outcome, step.images) == ("applied", (f"{registry}/driver:v1@{DIGEST}",))
    assert running(server) == f"{registry}/driver:v1@{DIGEST}"


async def test_a_registry_that_cannot_be_asked_leaves_the_tag_with_a_sentence(of, server, registry):
    of(manifest(f"{registry}/none:v1"), manifest("127.0.0.1:1/driver:v1", "other"))
    images = await addons.resolve_images()
    assert [image.digest for image in images] == ["", ""]
    sentences = " ".join(image.sentence for image in images)
    assert (
        "127.0.0.1:1/driver:v1 by its tag, for its digest is not known: The registry 127.0.0.1:1 does not"
        in sentences
    )
    assert f"{registry} has no image {registry}/none:v1" in sentences
    assert [step.images for step in await applied(images=images)] == [
        (f"{registry}/none:v1",), ("127.0.0.1:1/driver:v1",),
    ]  # fmt: skip


async def test_a_registry_that_stays_silent_is_given_up(of, monkeypatch):
    async def silent(self, image):
        import asyncio

        await asyncio.Event().wait()

    monkeypatch.setattr(Registry, "digest", silent)
    monkeypatch.setattr(addons, "_LOOKUP_SECONDS", 0.01)
    of(manifest("registry.example/driver:v1"))
    (image,) = await addons.resolve_images()
    assert (image.digest, image.reason) == ("", "registry.example has not answered within 0.01 s")


async def test_the_digest_that_runs_stays_where_no_registry_answers(of, server):
    of(manifest("registry.example/driver:v1"))
    await applied(images=[AddonImage("driver", "registry.example/driver:v1", DIGEST)])
    of(manifest("registry.example/driver:v1"))
    await applied(images=[AddonImage("driver", "registry.example/driver:v1", reason="no network")])
    assert running(server) == f"registry.example/driver:v1@{DIGEST}"
    # Another version is another image.
    of(manifest("registry.example/driver:v2"))
    await applied()
    assert running(server) == "registry.example/driver:v2"


async def test_an_image_that_the_file_pins_is_left_as_it_is(of, server):
    of(manifest(f"registry.example/driver:v1@{OTHER}"))
    (image,) = await addons.resolve_images()
    assert (image.name, image.digest) == ("registry.example/driver:v1", OTHER)
    await applied(images=[image])
    assert running(server) == f"registry.example/driver:v1@{OTHER}"


async def test_a_file_system_becomes_a_volume_that_nothing_removes(of, server):
    of()
    for _ in range(2):
        (step,) = await applied(file_system="fs-0123456789abcdef0")
    assert (step.addon, step.object) == ("shared files", "PersistentVolume efs-fs-0123456789abcdef0")
    (volume,) = [item for (kind, _, _), item in server.objects.items() if kind == "PersistentVolume"]
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert volume["spec"]["csi"] == {"driver": "efs.csi.aws.com", "volumeHandle": "fs-0123456789abcdef0"}
    assert volume["spec"]["storageClassName"] == volume["metadata"]["name"]


async def test_a_dry_run_changes_nothing_and_a_refusal_names_the_object(of, server):
    of(manifest("registry.example/driver:v1"))
    (step,) = await applied(dry_run=True)
    assert (step.outcome, list(server.objects)) == ("would be applied", [])
    server.denied.add(("patch", "daemonsets"))
    with pytest.raises(L2RError, match="driver was not applied: DaemonSet plugin: "):
        await applied()


def test_every_image_of_the_files_has_a_tag_or_a_digest():
    names = [name for _, manifest in addons.read_addons() for name in addons.images_of(manifest)]
    assert len(names) >= 8
    assert all(addons.parse_image(name).tag for name in names)


async def test_an_image_that_its_registry_does_not_have_is_a_warning_and_silence_is_none(registry, monkeypatch):
    monkeypatch.setattr(images, "_LOOK_SECONDS", 0.5)
    names = [
        f"{registry}/driver:v1",
        f"{registry}/lab/wrong:1",
        "127.0.0.1:1/no:1",
        "NOT A NAME",
        f"{registry}/lab/wrong:1",
    ]
    (finding,) = await images.absent(names)
    assert finding.severity is Severity.WARNING
    assert (finding.subject, finding.sentence) == (
        f"image {registry}/lab/wrong:1",
        f"{registry} has no image {registry}/lab/wrong:1",
    )
