"""Volumes and images in the app: looking round, fetching, putting, and what is said where there is no Engine."""

from __future__ import annotations

import pytest

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import user_name
from l2rtui.errors import BackendError
from l2rtui.ui.widgets.virtual_table import VirtualTable


async def to_files(one, volume: str = "racing-data") -> None:
    await one.press("V")
    await one.until(lambda: one.top == "VolumesScreen" and volume in one.words())
    one.app.screen.query_one("#list", VirtualTable).move_to(volume)
    await one.press("enter")
    await one.until(lambda: f"{volume}:/" in one.words())


async def test_a_volume_is_browsed_and_a_folder_of_it_downloaded(desk, tmp_path):
    async with desk() as one:
        await to_files(one)
        await one.until(lambda: "checkpoints/" in one.words() and "README" in one.words())
        assert "l2rtui --backend demo volume files racing-data:" in one.words()
        assert (await one.backend.volumes.list())[0].mounted_by[-1] == "files"
        await one.press("enter")
        await one.until(lambda: "racing-data:/checkpoints" in one.words() and "ckpt-0000000120.json" in one.words())
        await one.press("backspace")
        await one.until(lambda: "maps/" in one.words())
        await one.press("D")
        await one.until(lambda: one.field.display)
        one.field.value = str(tmp_path)
        await one.press("enter")
        await one.until(lambda: any("has 2 files" in said for said in one.says()))
        assert (tmp_path / "ckpt-0000000120.json").read_text() == '{"update": 120}\n'
        await one.press("backspace")
        await one.until(lambda: "mounted by" in one.words() and "scratch" in one.words())
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen")


@pytest.mark.slow
async def test_a_folder_of_this_machine_is_uploaded_under_its_name(desk, tmp_path):
    (tmp_path / "set" / "deep").mkdir(parents=True)
    (tmp_path / "set" / "deep" / "one.txt").write_text("1")
    async with desk() as one:
        await to_files(one, "scratch")
        await one.until(lambda: "Nothing lies here" in one.words())
        await one.press("U")
        await one.until(lambda: one.field.display and "Upload which file" in one.words())
        one.field.value = "~nobody-of-this-name/set"
        await one.until(lambda: "volume put '~nobody-of-this-name/set' scratch:set" in one.words())
        one.field.value = str(tmp_path / "set")
        await one.press("enter")
        await one.until(lambda: "set/" in one.words())
        assert any("scratch: set has 1 file" in said for said in one.says())
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen")
        volumes = one.backend.volumes

        async def is_free() -> bool:
            return (await volumes.list())[1].mounted_by == ()

        free = [False]

        async def look() -> None:
            free[0] = await is_free()

        await look()
        while not free[0]:
            await one.pilot.pause()
            await look()


async def test_a_volume_that_does_not_open_leads_back_with_the_reason(desk):
    backend = FakeBackend(owner=user_name())

    def files(name):
        raise BackendError(f"The pod that opens {name} does not start: no image.")

    backend.volumes.files = files
    async with desk(backend=backend) as one:
        await one.press("V")
        await one.until(lambda: "racing-data" in one.words())
        await one.press("enter")
        await one.until(lambda: any("does not start: no image" in said for said in one.says()))
        await one.until(lambda: "mounted by" in one.words())


async def test_readonly_looks_and_carries_nothing(desk):
    async with desk(readonly=True) as one:
        await to_files(one)
        await one.until(lambda: "README" in one.words())
        await one.press("D")
        await one.until(lambda: any("D (download) is off" in said for said in one.says()))
        assert not one.field.display


@pytest.mark.process
async def test_images_without_an_engine_say_why(desk, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    async with desk() as one:
        await one.press("colon", *"images", "enter")
        await one.until(lambda: one.top == "ImagesScreen" and "Docker" in one.words())
        await one.press("B")
        await one.until(lambda: any("Docker" in said for said in one.says()))
        assert "l2rtui --backend demo image build" in one.words()
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen")


async def test_volumes_are_not_offered_where_there_are_none(desk):
    backend = FakeBackend(owner=user_name())
    backend.volumes = None
    async with desk(backend=backend) as one:
        await one.until(lambda: "volumes" in one.app.ctx.denied)
        await one.press("V")
        await one.until(lambda: any("V (volumes) is off: the demo backend has no volumes" in s for s in one.says()))
        assert one.top == "ClusterScreen"
