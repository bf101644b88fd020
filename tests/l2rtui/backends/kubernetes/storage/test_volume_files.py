"""Files of a volume: the commands run in the pod, executed on a folder of this machine."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile

import pytest

from l2rtui.backends.kubernetes.storage import volume_files
from l2rtui.backends.kubernetes.storage.volume_files import CutError, PodFiles
from l2rtui.errors import BackendError, NotFoundError, UsageError
from l2rtui.services import volumes

pytestmark = pytest.mark.process


class Pod:
    """The pod's side.

    Attributes:
        cuts: Transfers that break before their first byte.
    """

    def __init__(self, root):
        self.root = root
        self.cuts = 0
        self.commands = []

    async def pipe(self, _api, _namespace, _pod, argv, *, on_output=None, stdin=None):
        self.commands.append(argv[0])
        if self.cuts and (on_output or stdin):
            self.cuts -= 1
            raise CutError("cut")
        inside = [word.replace("/volume", str(self.root)) for word in argv]
        to_us = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*inside, stdin=to_us, stdout=to_us, stderr=to_us)
        try:
            data = b"".join([block async for block in stdin]) if stdin else b""
            out, err = await process.communicate(data)
        finally:
            process._transport.close()  # also kills it, if the transfer was cancelled
            await process.wait()
        if process.returncode:
            raise BackendError(err.decode())
        if on_output:
            await on_output(out)
            return b""
        return out


@pytest.fixture
def pod(tmp_path, monkeypatch):
    made = Pod(tmp_path / "volume")
    made.root.mkdir()
    monkeypatch.setattr(volume_files, "pipe", made.pipe)
    monkeypatch.setattr(volume_files, "_LARGE_BYTES", 1000)
    return made


@pytest.fixture
def files(pod):
    return PodFiles(None, "ml", "files", "data")


@pytest.fixture
def local(tmp_path):
    folder = tmp_path / "local"
    (folder / "sub").mkdir(parents=True)
    (folder / "small").write_bytes(b"a" * 10)
    (folder / "sub" / "other\nname").write_bytes(b"b" * 20)
    (folder / "large").write_bytes(os.urandom(3000))
    return folder


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_folder_is_copied_there_and_back_and_the_same_files_are_skipped(files, pod, local, tmp_path):
    sizes = []
    assert await files.put(local, "copy", sizes.append) == 3
    assert contents(pod.root / "copy") == contents(local)
    assert sum(sizes) == 3030
    assert await files.get("copy", tmp_path / "back", sizes.append) == 3
    assert contents(tmp_path / "back") == contents(local)
    pod.commands.clear()
    await files.get("copy", tmp_path / "back", sizes.append)
    assert pod.commands == ["find"]


async def test_entries_are_listed_folders_first(files, pod, local):
    await files.put(local, "copy", lambda _: None)
    assert [(entry.path, entry.kind) for entry in await files.entries("copy")] == [
        ("sub", "folder"),
        ("large", "file"),
        ("small", "file"),
    ]
    with pytest.raises(NotFoundError, match="There is no none in data"):
        await files.entries("none")


async def test_a_transfer_that_was_cut_is_tried_again(files, pod, local, tmp_path):
    pod.cuts = 1
    await files.put(local, "copy", lambda _: None)
    pod.cuts = 1
    await files.get("copy", tmp_path / "back", lambda _: None)
    assert contents(tmp_path / "back") == contents(local)


async def test_a_large_file_goes_on_where_the_last_try_ended(files, pod, local, tmp_path):
    await files.put(local / "large", "large", lambda _: None)
    (tmp_path / ".part-target").write_bytes((local / "large").read_bytes()[:2000])
    sizes = []
    await files.get("large", tmp_path / "target", sizes.append)
    assert (tmp_path / "target").read_bytes() == (local / "large").read_bytes()
    assert sum(sizes) == 1000


async def test_a_part_of_another_version_is_found_by_its_digest(files, pod, local, tmp_path):
    await files.put(local / "large", "large", lambda _: None)
    (tmp_path / ".part-target").write_bytes(b"x" * 2000)
    with pytest.raises(BackendError, match="changed while it was copied"):
        await files.get("large", tmp_path / "target", lambda _: None)
    assert not (tmp_path / "target").exists()


async def test_nothing_to_copy_is_said(files, tmp_path):
    with pytest.raises(UsageError, match="to copy, or no file in it"):
        await files.put(tmp_path / "none", "x", lambda _: None)


async def test_second_names_of_a_file_arrive_in_both_directions(files, pod, local, tmp_path):
    os.link(local / "small", local / "sub" / "second name")
    assert await files.put(local, "copy", lambda _: None) == 4
    assert contents(pod.root / "copy") == contents(local)
    os.link(pod.root / "copy" / "small", pod.root / "copy" / "third name")
    assert await files.get("copy", tmp_path / "back", lambda _: None) == 5
    assert contents(tmp_path / "back") == contents(pod.root / "copy")
    assert len(contents(tmp_path / "back")) == 5


async def test_a_link_to_a_file_is_sent_as_the_file(files, pod, local, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"weights")
    (local / "link").symlink_to(tmp_path / "elsewhere")
    await files.put(local, "copy", lambda _: None)
    assert not (pod.root / "copy" / "link").is_symlink()
    assert (pod.root / "copy" / "link").read_bytes() == b"weights"


async def test_what_is_no_file_is_named_in_both_directions(files, pod, local, tmp_path):
    (local / "gone").symlink_to(tmp_path / "nothing")
    (local / "folder link").symlink_to(local / "sub")
    os.mkfifo(local / "pipe")
    say = lambda *_args, **_options: None  # noqa: E731
    sentence = await volumes.upload(files, local, "copy", say)
    assert sentence.endswith(
        "3 files, 2.96Ki; not copied, since they are links or no files: folder link, gone, pipe"
    )
    (pod.root / "copy" / "latest").symlink_to("small")
    sentence = await volumes.download(files, "copy", tmp_path / "back", say)
    assert sentence.endswith("3 files, 2.96Ki; not copied, since they are links or no files: latest")
    assert contents(tmp_path / "back") == {
        name: data for name, data in contents(local).items() if "link" not in name
    }


async def test_a_file_that_does_not_arrive_in_the_volume_is_named(files, pod, local, monkeypatch):
    honest = pod.pipe

    async def lossy(*arguments, on_output=None, stdin=None):
        answer = await honest(*arguments, on_output=on_output, stdin=stdin)
        if stdin is not None:
            (pod.root / "copy" / "small").unlink(missing_ok=True)
        return answer

    monkeypatch.setattr(volume_files, "pipe", lossy)
    with pytest.raises(BackendError, match=r"1 file did not arrive as here: small\."):
        await files.put(local, "copy", lambda _: None)


async def test_a_pod_that_sends_something_else_is_a_sentence(files, pod, local, tmp_path, monkeypatch):
    await files.put(local, "copy", lambda _: None)
    honest = pod.pipe

    def sending(answer):
        async def hostile(*arguments, on_output=None, stdin=None):
            if on_output is None or arguments[3][0] != "tar":
                return await honest(*arguments, on_output=on_output, stdin=stdin)
            await on_output(answer)
            return b""

        return hostile

    monkeypatch.setattr(volume_files, "_SLACK_BYTES", 0)
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    for answer, sentence in (
        (b"no archive at all" * 100, "did not send an archive"),
        (empty.getvalue(), "2 files did not come from the volume: small, sub"),
        (bytes(1 << 20), "far more than it has listed"),
    ):
        monkeypatch.setattr(volume_files, "pipe", sending(answer))
        with pytest.raises(BackendError, match=sentence):
            await files.get("copy", tmp_path / "back", lambda _: None)
        assert not (tmp_path / "back" / "small").exists()


async def test_a_listing_that_cannot_be_read_is_a_sentence(files, pod, monkeypatch):
    for answer in (b"f\tx\t1\tname\0", b"f\t1\t\0", b"f\t-1\t1\tname\0", b"f\t1\tnan\tname\0", b"\xff\0"):

        async def pipe(*_arguments, answer=answer, **_options):
            return answer

        monkeypatch.setattr(volume_files, "pipe", pipe)
        with pytest.raises(BackendError, match="cannot be read"):
            await files.sizes("x")
