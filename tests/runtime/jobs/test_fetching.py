"""Fetching: a real server that cuts, forgets and lies; malicious archives; a disk and a reader in between."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import signal
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import numpy as np
import pytest

from runtime.base import contract
from runtime.base.errors import FailedError, InterruptedWorkError, SetupError
from runtime.base.metrics import Console
from runtime.base.signals import Stop
from runtime.jobs.datasets import cifar, digits
from runtime.jobs.fetch import download
from runtime.jobs.fetch.download import Download, fetch
from runtime.jobs.fetch.unpack import unpack
from tests.fakes.moto_server import moto_server
from tests.runtime.programs import Programs, wait_for
from tests.tiers import starts_processes

BODY = np.random.default_rng(5).bytes(1_500_000)
SUM = hashlib.sha256(BODY).hexdigest()


class Served(ThreadingHTTPServer):
    """Serves one body; the test configures its faults."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.body = BODY
        self.etag = '"one"'
        self.cut_after: int | None = None
        """Bytes of each answer after which the connection is cut."""
        self.knows_ranges = True
        self.codes: list[int] = []
        """Answers sent before the correct one."""
        self.hold = threading.Event()
        self.hold.set()
        self.asked: list[str] = []
        """The requested ranges."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data.bin"

    def handle_error(self, request, client_address) -> None:
        """Ignore clients that disconnect, which is what the tests are about."""


class Answer(BaseHTTPRequestHandler):
    server: Served

    def do_GET(self) -> None:
        server = self.server
        wanted = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        server.asked.append(self.headers.get("Range", ""))
        if server.codes:
            self.send_error(server.codes.pop(0))
            return
        start = 0
        if wanted and server.knows_ranges and self.headers.get("If-Range") == server.etag:
            start = int(wanted[1])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(server.body) - 1}/{len(server.body)}")
        else:
            self.send_response(200)
        rest = server.body[start:]
        self.send_header("Content-Length", str(len(rest)))
        if server.etag:
            self.send_header("ETag", server.etag)
        self.end_headers()
        cut = len(rest) if server.cut_after is None else server.cut_after
        self.wfile.write(rest[: min(cut, len(rest)) // 2])
        server.hold.wait(60)
        self.wfile.write(rest[min(cut, len(rest)) // 2 : cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    with Served() as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield served
        served.hold.set()
        served.shutdown()
        thread.join()


@pytest.fixture
@starts_processes
def programs(tmp_path):
    with Programs(tmp_path) as started:
        yield started


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch):
    monkeypatch.setattr(download, "PAUSES", (0.01,))


def fetched(url: str, dest: Path, sha256: str = SUM) -> list[int]:
    seen: list[int] = []
    Download(download.source_of(url), dest, sha256, lambda size, _: seen.append(size), Stop()).run()
    return seen


def test_a_cut_download_goes_on_where_it_was_cut(server, tmp_path):
    server.cut_after = 400_000
    seen = fetched(server.url, tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == BODY
    assert server.asked == ["", "bytes=400000-", "bytes=800000-", "bytes=1200000-"]
    assert seen == sorted(seen)
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]


@pytest.mark.parametrize("what", ["no ranges", "another file meanwhile", "no version"])
def test_a_server_that_cannot_go_on_is_asked_for_all_of_it(server, tmp_path, what):
    server.cut_after = 400_000
    if what == "no version":
        server.etag = ""
    stop = Stop()

    def halt(size: int, _: int | None) -> None:
        stop.reason = "SIGTERM"

    with pytest.raises(InterruptedWorkError, match="ended by SIGTERM"):
        Download(download.source_of(server.url), tmp_path / "data.bin", SUM, halt, stop).run()
    assert not (tmp_path / "data.bin").exists()
    server.cut_after = None
    match what:
        case "no ranges":
            server.knows_ranges = False
        case "another file meanwhile":
            server.etag, server.body = '"two"', BODY[::-1]
    server.asked.clear()
    fetched(server.url, tmp_path / "data.bin", hashlib.sha256(server.body).hexdigest())
    assert (tmp_path / "data.bin").read_bytes() == server.body
    assert len(server.asked) == 1
    assert bool(server.asked[0]) == (what != "no version")


def test_a_server_that_gives_nothing_is_given_up(server, tmp_path):
    server.cut_after = 0
    with pytest.raises(FailedError, match="given up after 6 tries"):
        fetched(server.url, tmp_path / "data.bin")
    assert len(server.asked) == 6


def test_a_wrong_check_sum_leaves_what_was_there_and_nothing_else(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"old")
    with pytest.raises(FailedError, match=f"with the check sum {SUM} instead of {'0' * 64}"):
        fetched(server.url, tmp_path / "data.bin", "0" * 64)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("data.bin", b"old")]


def test_a_server_that_is_busy_is_asked_again_and_one_that_says_no_is_not(server, tmp_path):
    server.codes = [503, 429, 500]
    fetched(server.url, tmp_path / "data.bin")
    assert len(server.asked) == 4
    server.codes, asked = [404], len(server.asked)
    with pytest.raises(FailedError, match="the server answers 404"):
        fetched(server.url, tmp_path / "other.bin")
    assert len(server.asked) == asked + 1


def test_a_killed_fetch_goes_on_when_it_is_started_again(server, programs):
    server.hold.clear()
    dest = programs.folder / "data.bin"
    first = programs.start("fetch", server.url, str(dest), "--sha256", SUM)
    part = programs.folder / ".part-data.bin"
    wait_for(lambda: part.exists() and part.stat().st_size >= len(BODY) // 2 - 300_000, "half of it", first)
    first.kill_all()
    server.hold.set()
    again = programs.run("fetch", server.url, str(dest), "--sha256", SUM, "--", "wc", "-c", str(dest))
    assert again.process.returncode == 0
    assert dest.read_bytes() == BODY
    assert server.asked[-1].startswith("bytes=")
    assert again.records("fetch")[-1]["state"] == "done"
    assert again.text().splitlines()[-1].split()[0] == str(len(BODY)), "the command ran, in the place of the fetch"
    there = programs.run("fetch", server.url, str(dest), "--sha256", SUM)
    assert "is there already" in there.text()


@pytest.fixture
def moto_address():
    with moto_server() as address:
        yield address


@pytest.fixture
def bucket(monkeypatch, moto_address):
    """A bucket of a server that speaks S3, and a client of it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto_address)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3")
    client.create_bucket(Bucket="programs")
    yield client
    client.close()


def test_a_program_in_a_bucket_is_fetched_and_run(bucket, programs):
    bucket.put_object(Bucket="programs", Key="lab/train.py", Body=b"print('trained', 6 * 7)")
    dest = programs.folder / "train.py"
    done = programs.run("fetch", "s3://programs/lab/train.py", str(dest), "--", "python3", str(dest))
    assert (done.process.returncode, done.text().splitlines()[-1]) == (0, "trained 42")
    gone = programs.run("fetch", "s3://programs/lab/none.py", str(programs.folder / "none.py"))
    assert gone.process.returncode == contract.EXIT_FAILED
    assert "the service says NoSuchKey" in gone.text()


def test_the_rest_of_an_object_is_asked_for_while_it_is_the_same(bucket):
    bucket.put_object(Bucket="programs", Key="data.bin", Body=BODY)
    source = download.source_of("s3://programs/data.bin")
    whole = source.open(0, "")
    whole.stream.close()
    rest = source.open(len(BODY) - 10, whole.version)
    assert (rest.offset, rest.total, rest.stream.read(100)) == (len(BODY) - 10, len(BODY), BODY[-10:])
    rest.stream.close()
    bucket.put_object(Bucket="programs", Key="data.bin", Body=BODY[::-1])
    other = source.open(len(BODY) - 10, whole.version)
    assert (other.offset, other.stream.read(10)) == (0, BODY[::-1][:10])
    other.stream.close()


def test_sigterm_ends_a_fetch_that_is_not_done(server, programs):
    server.hold.clear()
    fetch = programs.start("fetch", server.url, str(programs.folder / "data.bin"))
    part = programs.folder / ".part-data.bin"
    wait_for(lambda: part.exists() and part.stat().st_size, "some of it", fetch)
    fetch.process.send_signal(signal.SIGTERM)
    server.hold.set()
    assert fetch.code() == contract.EXIT_INTERRUPTED
    assert not (programs.folder / "data.bin").exists()


def test_what_is_secret_in_an_address_is_not_said(tmp_path, capsys):
    url = "http://me:pass1@127.0.0.1:9/x?X-Amz-Signature=sig2"
    with pytest.raises(FailedError) as raised:
        fetch(url, tmp_path / "x", Console(), Stop(), is_folder=False, sha256="", unpacks=True)
    said = f"{raised.value} {capsys.readouterr().out}"
    assert '"source":"http://127.0.0.1:9/x","state":"failed"' in said
    assert not re.search("pass1|sig2", said)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("gopher://host/x", "dest"), "must be http"),
        (("/no/such/file", "dest"), "/no/such/file cannot be read"),
        (("http://host/", "folder/"), "ends without a name"),
        (("digits", "dest", "--sha256", "0" * 64), "they have no check sum"),
        (("http://host/x", "dest", "--sha256", "12"), "64 hexadecimal digits"),
    ],
)
def test_wrong_use_is_a_sentence(programs, words, sentence):
    source, dest, *options = words
    program = programs.run("fetch", source, f"{programs.folder}/{dest}", *options)
    assert program.process.returncode in {contract.EXIT_USAGE, contract.EXIT_FAILED}
    assert not list(programs.folder.glob(".part-*"))
    assert sentence in program.text()
    assert "Traceback" not in program.text()


def test_a_source_is_an_address_or_a_path():
    assert download.source_of("s3://bucket/folder/key.bin").display_url == "s3://bucket/folder/key.bin"
    assert download.source_of("file:///tmp/a%20b").display_url == "/tmp/a b"
    for wrong in ("s3://bucket", "s3:///key", "http://", "http://[broken/x"):
        with pytest.raises(SetupError):
            download.source_of(wrong)


# --- archives ---------------------------------------------------------------------------------------------
def tarred(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = b"" if isinstance(content, tarfile.TarInfo) else content
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"ok": b"1", "../out": b"x"}, "leads out"),
        ({"ok": b"1", "/tmp/out": b"x"}, "leads out"),
        ({"ok": b"1", "a/../../out": b"x"}, "leads out"),
        ({"link": special("link", tarfile.SYMTYPE, "/etc"), "link/passwd": b"x"}, "a link"),
        ({"link": special("link", tarfile.LNKTYPE, "../secret")}, "a link"),
        ({"dev": special("dev", tarfile.CHRTYPE)}, "a device"),
        ({"pipe": special("pipe", tarfile.FIFOTYPE)}, "a device"),
    ],
)
def test_an_archive_that_means_harm_is_refused_as_a_whole(tmp_path, members, sentence):
    archive = tarred(tmp_path / "evil.tar.gz", members)
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ok").write_text("old")
    with pytest.raises(FailedError, match=sentence):
        unpack(archive, tmp_path / "in", "evil.tar.gz", Stop())
    assert [(path.name, path.read_text()) for path in (tmp_path / "in").iterdir()] == [("ok", "old")]
    assert {path.name for path in tmp_path.iterdir()} == {"evil.tar.gz", "secret", "in"}


def test_zip_archives_are_taken_and_their_links_are_not(tmp_path):
    good, evil = tmp_path / "a.zip", tmp_path / "b.zip"
    with zipfile.ZipFile(good, "w") as zipped:
        zipped.writestr("folder/file", "content")
    assert unpack(good, tmp_path / "in", "a.zip", Stop()) == ["folder"]
    assert (tmp_path / "in" / "folder" / "file").read_text() == "content"
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(evil, "w") as zipped:
        zipped.writestr(link, "/etc/passwd")
    with pytest.raises(FailedError, match="a link"):
        unpack(evil, tmp_path / "in", "b.zip", Stop())


def test_folders_are_merged_and_what_was_there_stays(tmp_path):
    folder = tmp_path / "data"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "three-weeks.safetensors").write_text("weights")
    (folder / "checkpoints" / "notes").write_text("old")
    archive = tarred(tmp_path / "a.tar", {"checkpoints/notes": b"new", "checkpoints/more/first": b"1", "top": b"2"})
    assert unpack(archive, folder, "a.tar", Stop()) == ["checkpoints", "top"]
    assert {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()} == {
        "checkpoints/three-weeks.safetensors": "weights",
        "checkpoints/notes": "new",
        "checkpoints/more/first": "1",
        "top": "2",
    }


@pytest.mark.parametrize("there", ["file", "folder", "link"])
def test_a_folder_that_meets_a_file_is_refused_before_anything_moves(tmp_path, there):
    folder, outside = tmp_path / "data", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    members = {"a": b"1", "x": b"2"} if there == "folder" else {"a": b"1", "x/y": b"2"}
    match there:
        case "file":
            (folder / "x").write_text("mine")
        case "folder":
            (folder / "x").mkdir()
        case _:
            (folder / "x").symlink_to(outside)
    with pytest.raises(FailedError, match="nothing was unpacked"):
        unpack(tarred(tmp_path / "a.tar", members), folder, "a.tar", Stop())
    assert [path.name for path in folder.iterdir()] == ["x"]
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_that_grows_without_end_is_refused(tmp_path, kind):
    archive = tmp_path / f"bomb.{kind}"
    zeros = bytes(80 * 1024 * 1024)
    if kind == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr("zeros", zeros)
    else:
        tarred(archive, {"zeros": zeros})
    with pytest.raises(FailedError, match="as made-up archives do"):
        unpack(archive, tmp_path / "in", archive.name, Stop())
    assert list((tmp_path / "in").iterdir()) == []
    assert unpack(archive, tmp_path / "in", archive.name, Stop(), max_ratio=5000) == ["zeros"]


def test_a_long_name_of_a_gigabyte_is_refused_before_it_is_read(tmp_path):
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    archive = tmp_path / "a.tar"
    archive.write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    with pytest.raises(FailedError, match="a header of 1073741824 bytes"):
        unpack(archive, tmp_path / "in", "a.tar", Stop())


def test_a_dictionary_that_no_memory_holds_is_damage(tmp_path):
    archive = tmp_path / "a.tar.xz"
    # An old LZMA header that requests a dictionary of 4 GiB, and a block.
    archive.write_bytes(b".\xff\xff\xff\xff/a" + bytes(8) + b"@" + bytes(18))
    with pytest.raises(FailedError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "in", "a.tar.xz", Stop())


@pytest.mark.parametrize("damage", ["cut", "flipped", "no archive", "empty"])
def test_a_damaged_archive_leaves_the_folder_as_it_was(tmp_path, damage):
    archive = tarred(tmp_path / "a.tar.gz", {"a": np.random.default_rng(1).bytes(100_000)})
    raw = bytearray(archive.read_bytes())
    match damage:
        case "cut":
            del raw[len(raw) // 2 :]
        case "flipped":
            raw[len(raw) // 2] ^= 0xFF
        case "no archive":
            raw = bytearray(gzip.compress(b"hello"))
        case _:
            raw.clear()
    archive.write_bytes(raw)
    with pytest.raises(FailedError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "in", "a.tar.gz", Stop())
    assert list((tmp_path / "in").iterdir()) == []


def test_an_archive_in_cifars_shape_is_fetched_unpacked_and_read(server, programs, tmp_path):
    made = tmp_path / "made"
    cifar.write_digits(made)
    files = {f"{cifar.ARCHIVE_FOLDER}/{path.name}": path.read_bytes() for path in made.iterdir()}
    server.body = tarred(tmp_path / "cifar-10-binary.tar.gz", files).read_bytes()
    url = server.url.replace("data.bin", "cifar-10-binary.tar.gz")
    total = hashlib.sha256(server.body).hexdigest()
    program = programs.run("fetch", url, str(tmp_path / "data"), "--sha256", total)
    assert program.process.returncode == 0, program.text()
    assert [path.name for path in (tmp_path / "data").iterdir()] == [cifar.ARCHIVE_FOLDER]
    train, test = cifar.training(tmp_path / "data"), cifar.testing(tmp_path / "data")
    assert (len(train), len(test)) == (1797 - digits.TEST_COUNT, digits.TEST_COUNT)
    assert cifar.classes(tmp_path / "data") == tuple("0123456789")


# --- the digits -------------------------------------------------------------------------------------------
def test_the_digits_are_those_of_scikit_learn_and_both_parts_know_all_of_them():
    train, test = digits.load()
    whole = np.concatenate([train.pictures, test.pictures])
    assert whole.shape == (1797, 8, 8)
    assert (int(whole.sum()), int(whole.max())) == (561718, 16), "the sums of sklearn.datasets.load_digits()"
    assert all((part.labels == digit).sum() > 25 for part in (train, test) for digit in range(10))
    assert not {p.tobytes() for p in train.pictures} & {p.tobytes() for p in test.pictures}


def test_digits_in_cifars_format_are_the_digits(programs, tmp_path):
    program = programs.run("fetch", "digits")
    assert json.loads(program.text().splitlines()[0])["state"] == "done"
    folder = tmp_path / "run" / "data"
    pixels, right = cifar.testing(folder).rows_at(np.arange(digits.TEST_COUNT))
    _, test = digits.load()
    np.testing.assert_array_equal(right, test.labels)
    np.testing.assert_array_equal(np.round(pixels[:, 1, ::4, ::4] / 255 * 16), test.pictures)
    scattered = np.array([1436, 0, 300, 299, 288])
    _, classes = cifar.training(folder).rows_at(scattered)
    np.testing.assert_array_equal(classes, digits.load()[0].labels[scattered])
    (folder / "test_batch.bin").write_bytes(b"x" * 100)
    with pytest.raises(FailedError, match="not in CIFAR-10's binary format"):
        cifar.testing(folder)
