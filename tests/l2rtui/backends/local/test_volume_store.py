"""Volumes of this machine: created, mounted by runs, listed with their files, copied from and to, deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from l2rtui.backends.local.paths import StateFolder
from l2rtui.backends.local.process_scan import boot_id
from l2rtui.backends.local.run_store import RunStore
from l2rtui.backends.local.volume_store import LocalVolumes
from l2rtui.domain.containers import Mount, PodSettings
from l2rtui.errors import BackendError, NotFoundError, RefusedError, UsageError


@pytest.fixture
def volumes(tmp_path: Path) -> LocalVolumes:
    root = StateFolder(tmp_path / "local")
    return LocalVolumes(root, RunStore(root, boot_id()))


async def test_a_volume_is_made_once_listed_and_deleted(volumes):
    assert await volumes.list() == ()
    made = await volumes.create("data", "50Gi")
    assert (made.name, made.phase, made.modes) == ("data", "Bound", ("RWX",))
    with pytest.raises(RefusedError, match="There is a volume data"):
        await volumes.create("data", "50Gi")
    assert [volume.name for volume in await volumes.list()] == ["data"]
    await volumes.delete("data")
    assert await volumes.list() == ()
    with pytest.raises(NotFoundError):
        await volumes.delete("data")


@pytest.mark.parametrize(("name", "storage_class"), [("../out", ""), ("Data", ""), ("data", "fast")])
async def test_names_and_classes_that_a_folder_cannot_have_are_refused(volumes, name, storage_class):
    with pytest.raises(UsageError):
        await volumes.create(name, "1Gi", storage_class=storage_class)


async def test_files_are_copied_both_ways_and_equal_ones_are_skipped(volumes, tmp_path):
    await volumes.create("data", "1Gi")
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "a").write_text("alpha")
    (source / "deep" / "b").write_text("beta")
    moved: list[int] = []
    async with volumes.files("data") as files:
        assert await files.put(source, "here", moved.append) == 2
        assert await files.put(source / "a", "", moved.append) == 1
        assert [(entry.path, entry.kind) for entry in await files.entries()] == [("here", "folder"), ("a", "file")]
        assert {entry.path: entry.size for entry in await files.sizes("here")} == {"a": 5, "deep/b": 4}
        assert [(entry.path, entry.size) for entry in await files.entries("here/a")] == [("", 5)]
        target = tmp_path / "target"
        assert await files.get("here", target, moved.append) == 2
        assert (target / "deep" / "b").read_text() == "beta"
        assert await files.get("here/a", target, moved.append) == 1
        moved.clear()
        (target / "deep" / "b").write_text("none")  # other bytes of the same size, and another time
        assert await files.get("here", target, moved.append) == 2
        assert (sum(moved), (target / "deep" / "b").read_text()) == (9, "beta")
    (volume,) = await volumes.list()
    assert volume.size_bytes == 14


async def test_what_leads_out_or_is_not_there_is_not_found(volumes, tmp_path):
    await volumes.create("data", "1Gi")
    (tmp_path / "secret").write_text("hidden")
    (tmp_path / "local" / "volumes" / "data" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(NotFoundError):
        async with volumes.files("../volumes/data"):
            pass
    async with volumes.files("data") as files:
        assert [(entry.path, entry.kind) for entry in await files.entries()] == [("link", "link")]
        assert [(entry.path, entry.kind) for entry in await files.sizes()] == [("link", "link")]
        for path in ("none", "link"):
            with pytest.raises(NotFoundError):
                await files.get(path, tmp_path / "target", print)
        with pytest.raises(BackendError, match="lead out"):
            await files.entries("../..")
        with pytest.raises(UsageError, match="no file in it"):
            await files.put(tmp_path / "nothing", "", print)
        with pytest.raises(NotFoundError, match="leads out"):
            await files.put(tmp_path / "secret", "link", print)


async def test_a_volume_that_a_run_mounts_is_neither_deleted_nor_forgotten(lab):
    settings = PodSettings(mounts=(Mount("/l2r", claim="shared"),))
    await lab.launch(lab.set("sleep", "600", pod=settings))
    await lab.pod(lambda pod: pod.ready)
    (volume,) = await lab.backend.volumes.list()
    assert (volume.name, volume.mounted_by) == ("shared", ("run-w-0",))
    with pytest.raises(RefusedError, match="mounted by run-w-0"):
        await lab.backend.volumes.delete("shared")
    await lab.destroy()
    await lab.backend.volumes.delete("shared")
    assert await lab.backend.volumes.list() == ()


async def test_links_in_a_volume_are_listed_and_not_copied(volumes, tmp_path):
    await volumes.create("data", "1Gi")
    folder = tmp_path / "local" / "volumes" / "data"
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("text")
    (folder / "elsewhere").symlink_to(tmp_path)
    (folder / "latest").symlink_to(folder / "sub" / "file")
    async with volumes.files("data") as files:
        kinds = {entry.path: entry.kind for entry in await files.sizes()}
        assert kinds == {"elsewhere": "link", "latest": "link", "sub/file": "file"}
        assert await files.get("", tmp_path / "target", lambda _: None) == 1
    assert [path.name for path in (tmp_path / "target").rglob("*")] == ["sub", "file"]
    (volume,) = await volumes.list()
    assert volume.size_bytes == 4
