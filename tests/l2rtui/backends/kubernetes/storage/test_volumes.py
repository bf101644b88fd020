"""Volume claims against an API server in memory; the pod that opens one, and the local side of transfers."""

from __future__ import annotations

import asyncio
import io
import tarfile

import pytest

from l2rtui.backends.common import file_copies
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.storage import volume_files
from l2rtui.backends.kubernetes.storage import volumes as module
from l2rtui.backends.kubernetes.storage.volumes import Volumes
from l2rtui.domain.volume import FileEntry
from l2rtui.errors import BackendError, NotFoundError, RefusedError, UsageError


@pytest.fixture
def volumes(connect, monkeypatch):
    monkeypatch.setattr(module, "_BIND_SECONDS", 0.0)
    monkeypatch.setattr(volume_files, "_POLL_SECONDS", 0.0)
    return Volumes(connect, "files:1", "anna")


def claim(server, name="data", modes=("ReadWriteOnce",), phase="Bound"):
    status = {"phase": phase, "capacity": {"storage": "2Gi"}}
    server.put(
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {"accessModes": modes},
            "status": status,
        }
    )


def pod(server, name, claim_name, phase="Running", node="n1"):
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim_name}}
    server.put(
        {
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"volumes": [volume], "nodeName": node},
            "status": {"phase": phase},
        }
    )


async def test_claims_are_listed_with_the_pods_that_mount_them(volumes, server):
    claim(server)
    claim(server, "new", phase="Pending")
    pod(server, "p1", "data")
    pod(server, "done", "data", "Succeeded")
    data, new = await volumes.list()
    assert (data.size_bytes, data.phase, data.mounted_by) == (2 * 2**30, "Bound", ("p1",))
    assert "no volume fits it" in new.reason


async def test_a_claim_is_made_as_it_was_asked_for(volumes, server):
    volume = await volumes.create("data", "1Gi", storage_class="none", modes=("RWX",))
    spec = server.get("PersistentVolumeClaim", "data")["spec"]
    assert (volume.phase, spec["storageClassName"], spec["accessModes"]) == ("Pending", "", ["ReadWriteMany"])
    with pytest.raises(ApiError, match="already exists"):
        await volumes.create("data", "1Gi")


@pytest.mark.parametrize(
    ("name", "size", "modes", "sentence"),
    [
        ("A", "1Gi", ("RWO",), "A"),
        ("a", "much", ("RWO",), "size"),
        ("a", "1Gi", ("RW",), "RW is not an access mode"),
    ],
)
async def test_a_claim_with_a_wrong_value_is_not_sent(volumes, server, name, size, modes, sentence):
    with pytest.raises(UsageError, match=sentence):
        await volumes.create(name, size, modes=modes)
    assert server.names() == []


async def test_a_claim_that_a_pod_mounts_is_not_removed(volumes, server):
    claim(server)
    pod(server, "p1", "data")
    with pytest.raises(RefusedError, match="data is mounted by p1"):
        await volumes.delete("data")
    del server.objects["Pod", "ml", "p1"]
    await volumes.delete("data")
    with pytest.raises(NotFoundError, match="There is no volume data in ml"):
        await volumes.delete("data")


@pytest.mark.parametrize(("modes", "node"), [(("ReadWriteOnce",), "n1"), (("ReadWriteMany",), None)])
async def test_files_are_opened_by_a_pod_beside_the_one_that_mounts_and_it_goes(volumes, server, modes, node):
    claim(server, modes=modes)
    pod(server, "p1", "data")
    server.hooks.append(lambda method, kind, _: method == "POST" and kind == "Pod" and run_all())

    def run_all():
        for (kind, _, name), item in server.objects.items():
            if kind == "Pod" and name != "p1":
                item["status"] = {"phase": "Running"}

    async with volumes.files("data"):
        (made,) = [item for key, item in server.objects.items() if key[0] == "Pod" and key[2] != "p1"]
        assert (made["spec"].get("nodeSelector") or {}).get("kubernetes.io/hostname") == node
        assert made["spec"]["securityContext"]["runAsNonRoot"]
        assert made["spec"]["activeDeadlineSeconds"] > 0
    assert server.names("Pod") == ["Pod/p1"]


async def test_a_pod_whose_image_cannot_be_pulled_is_an_error_and_goes(volumes, server):
    claim(server)

    def fail(method, kind, _):
        if (method, kind) == ("POST", "Pod"):
            item = next(item for key, item in server.objects.items() if key[0] == "Pod")
            waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
            item["status"] = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}

    server.hooks.append(fail)
    with pytest.raises(BackendError, match="does not start: ImagePullBackOff no such image"):
        async with volumes.files("data"):
            pass
    assert server.names("Pod") == []


async def test_without_an_image_no_pod_is_made(connect, server):
    claim(server)
    with pytest.raises(UsageError, match="Nothing says which image"):
        async with Volumes(connect, "", "anna").files("data"):
            pass


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a\0b"])
def test_a_path_out_of_the_volume_is_refused(path):
    with pytest.raises(UsageError, match="leads out of the volume"):
        volume_files._inside(path)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd"])
def test_a_name_that_leads_out_of_the_local_folder_is_refused(tmp_path, name):
    with pytest.raises(BackendError, match="lead out of"):
        file_copies.below(tmp_path, name)


def test_a_stream_writes_what_was_asked_for_and_nothing_else(tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("wanted", "../evil", "other"):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = 3, 1_000_000
            archive.addfile(info, io.BytesIO(b"abc"))
    stream.seek(0)
    target = tmp_path / "folder" / "wanted"
    volume_files.unpack(stream, {"wanted": target})
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["wanted"]
    assert file_copies.is_there(target, FileEntry("wanted", "file", 3, 1_000_000.0))
    assert not file_copies.is_there(target, FileEntry("wanted", "file", 4, 1_000_000.0))


def test_batches_are_cut_by_size_and_by_number(monkeypatch):
    monkeypatch.setattr(volume_files, "_BATCH_BYTES", 10)
    monkeypatch.setattr(volume_files, "_BATCH_FILES", 3)
    assert list(volume_files.batches([6, 6, 1, 1, 1, 1, 20], lambda size: size)) == [[6], [6, 1, 1], [1, 1], [20]]


async def test_a_file_is_read_from_where_the_last_try_ended(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    sizes = []
    blocks = [block async for block in volume_files.read(path, 4, sizes.append)]
    assert (b"".join(blocks), sum(sizes)) == (b"456789", 6)
    await asyncio.to_thread(volume_files.stamp, path, 5.0)
    assert path.stat().st_mtime == 5.0
