"""Stores of files: a folder, and a bucket on a server of our own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from runtime.base.object_store import ObjectStore, S3Store, StoreError, open_store, split_bucket_url
from tests.fakes.moto_server import moto_server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto_server() as address:
        yield address


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {
        "AWS_ENDPOINT_URL_S3": server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="lab-base")
    client.close()
    return "s3://lab-base"


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_store(str(tmp_path / "volume"), "run")
    return open_store(f"{request.getfixturevalue('bucket')}/results", tmp_path.name)


def test_what_is_put_is_listed_read_fetched_and_removed(store: ObjectStore, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"content")
    assert store.names() == []
    moved: list[int] = []
    store.put("b", source, moved.append)
    store.put("a", source)
    assert (store.names(), sum(moved)) == (["a", "b"], 7)
    store.fetch("a", target, moved.append)
    assert (store.read("b"), target.read_bytes(), sum(moved)) == (b"content", b"content", 14)
    for _ in range(2):
        store.remove("a")
    assert store.names() == ["b"]


def test_names_are_those_of_one_level_or_of_all(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.touch()
    store.put("top", source)
    open_store(store.url, "r-s1", "2").put("inner", source)
    assert store.names() == ["top"]
    assert store.names(is_recursive=True) == ["r-s1/2/inner", "top"]


def test_a_missing_file_is_told_from_other_errors_and_leaves_nothing(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.read("nothing")
    target = tmp_path / "place" / "target"
    target.parent.mkdir()
    with pytest.raises(FileNotFoundError):
        store.fetch("nothing", target)
    assert list(target.parent.iterdir()) == []


def test_a_folder_is_swept_of_copies_that_were_not_finished(tmp_path: Path) -> None:
    (tmp_path / ".tmp-ckpt").touch()
    (tmp_path / "ckpt").touch()
    store = open_store(str(tmp_path))
    store.sweep()
    assert store.names() == ["ckpt"]


def test_an_object_is_read_on_while_it_is_the_same(bucket: str, tmp_path: Path) -> None:
    source, store = tmp_path / "source", S3Store(bucket)
    source.write_bytes(b"0123456789")
    store.put("digits", source)
    version = store.open("digits").version
    rest = store.open("digits", 7, version)
    assert (rest.offset, rest.total, rest.body.read(100)) == (7, 10, b"789")
    past = store.open("digits", 10, version)  # no bytes left: the server refuses the range
    assert (past.offset, past.body.read(3)) == (0, b"012")
    source.write_bytes(b"abcdefghij")
    store.put("digits", source)
    other = store.open("digits", 7, version)
    assert (other.offset, other.body.read(100)) == (0, b"abcdefghij")
    for stream in (rest, past, other):
        stream.body.close()


def test_errors_say_whether_another_try_may_help(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="cannot list s3://nobodys/x: NoSuchBucket") as refused:
        S3Store("s3://nobodys/x").names()
    assert (refused.value.operation, refused.value.is_transient) == ("list_objects_v2", False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with pytest.raises(StoreError, match=r"[Cc]redentials") as unsigned:
        S3Store(bucket).read("x")
    assert not unsigned.value.is_transient


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://lab", ("lab", "")),
        ("s3://lab/", ("lab", "")),
        ("s3://lab/a/b/", ("lab", "a/b/")),
        ("s3://my.lab-1/a", ("my.lab-1", "a/")),
    ],
)
def test_a_url_is_a_bucket_and_a_prefix(url: str, parts: tuple[str, str]) -> None:
    assert split_bucket_url(url) == parts


@pytest.mark.parametrize("url", ["s3://", "s3://B", "s3://ab", "s3://-lab", "s3:///x", "lab"])
def test_what_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="is not the name of a bucket"):
        split_bucket_url(url)


def test_without_boto3_a_bucket_says_so_and_a_folder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(StoreError, match="needs the package boto3"):
        open_store("s3://lab")
    assert open_store(str(tmp_path)).names() == []
