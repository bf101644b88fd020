"""Volumes and the files in them, on the real node: created, filled, listed, downloaded, and left clean."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import IMAGE, Cli, eventually, kubectl, kubectl_json

pytestmark = pytest.mark.cluster


HERE = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["phortx0"]}


@pytest.fixture
def disk(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A volume of this machine's, which a claim named `data` will get."""
    folder = tmp_path_factory.mktemp("disk")
    folder.chmod(0o777)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"v-{namespace}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": namespace,
            "hostPath": {"path": str(folder)},
            "persistentVolumeReclaimPolicy": "Retain",
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["phortx0"]}
                            ]
                        }
                    ]
                }
            },
        },
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(volume))
    yield folder
    kubectl("delete", "pv", f"v-{namespace}", "--wait=false")


def made(cli: Cli) -> None:
    words = ("--size", "1Gi", "--storage-class", cli.namespace)
    (found,) = cli.json("volume", "create", "data", *words)
    assert (found["name"], found["size_bytes"]) == ("data", 2**30)
    eventually("the claim bound", lambda: cli.json("volume", "ls")[0]["phase"] == "Bound")


def sums(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def helpers(cli: Cli) -> list[str]:
    pods = kubectl_json("-n", cli.namespace, "get", "pods")["items"]
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def test_files_go_to_a_volume_and_come_back_as_they_were(cli: Cli, disk: Path, tmp_path: Path) -> None:
    made(cli)
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "large.bin").write_bytes(os.urandom(6 * 2**20))
    for number in range(30):
        (source / "deep" / f"{number}.txt").write_text(f"{number}\n" * number)
    (source / "deep" / "er" / "with a space and ü'\"$(id)").write_bytes(b"\0\n")
    carry = ("--image", IMAGE)
    cli.run("volume", "put", str(source), "data:in", *carry)
    assert sums(disk / "in") == sums(source)
    listed = cli.json("volume", "files", "data:in", *carry)
    assert [(one["path"], one["kind"]) for one in listed] == [("deep", "folder"), ("large.bin", "file")]
    cli.run("volume", "get", "data:in", str(tmp_path / "back"), *carry)
    assert sums(tmp_path / "back") == sums(source)
    cli.run("volume", "get", "data:in/large.bin", str(tmp_path), *carry)
    assert (tmp_path / "large.bin").read_bytes() == (source / "large.bin").read_bytes()
    eventually("no pod is left", lambda: not helpers(cli))

    gone = cli.call("volume", "files", "data:nowhere", *carry)
    assert (gone.returncode, gone.stderr) == (1, "l2rtui: There is no nowhere in data.\n")
    out = cli.call("volume", "files", "data:../etc", *carry)
    assert (out.returncode, "leads out of the volume" in out.stderr) == (2, True)


def test_a_copy_that_is_cut_goes_on_where_it_ended(cli: Cli, disk: Path, tmp_path: Path) -> None:
    made(cli)
    source = tmp_path / "large.bin"
    source.write_bytes(os.urandom(48 * 2**20))
    part, words = disk / ".part-large.bin", ("volume", "put", str(source), "data:", "--image", IMAGE)
    with cli.start(*words) as copy:
        eventually("a part of it", lambda: part.exists() and part.stat().st_size > 2**20)
        copy.send_signal(signal.SIGINT)
        copy.communicate(timeout=60)
    eventually("no pod is left", lambda: not helpers(cli))
    come = part.stat().st_size if part.exists() else source.stat().st_size
    assert come > 0
    cli.run(*words)
    assert sums(disk) == {"large.bin": hashlib.sha256(source.read_bytes()).hexdigest()}


def test_a_volume_that_is_used_is_not_deleted_and_one_that_is_not_is(cli: Cli, disk: Path) -> None:
    made(cli)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "user"},
        "spec": {
            "containers": [{"name": "c", "image": IMAGE, "command": ["sleep", "600"]}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
            "terminationGracePeriodSeconds": 0,
        },
    }
    kubectl("-n", cli.namespace, "apply", "-f", "-", stdin=json.dumps(pod))
    assert cli.json("volume", "ls")[0]["mounted_by"] == ["user"]
    refused = cli.call("volume", "delete", "data", "--yes")
    assert (refused.returncode, "data is mounted by user." in refused.stderr) == (3, True)
    kubectl("-n", cli.namespace, "delete", "pod", "user", "--grace-period=0", "--force")
    eventually("it is deleted", lambda: cli.call("volume", "delete", "data", "--yes").returncode == 0)
    assert cli.call("volume", "files", "data", "--image", IMAGE).returncode == 1


def test_wrong_words_are_refused_with_a_sentence(cli: Cli) -> None:
    for words, sentence in {
        ("create", "data"): "volume create needs --size",
        ("create", "Data", "--size", "1Gi"): "'Data' is not a name",
        ("create", "data", "--size", "much"): "size:",
        ("create", "data", "--size", "1Gi", "--access", "RWY"): "RWY is not an access mode",
        ("get", ""): "Name a volume, and a path in it",
    }.items():
        done: subprocess.CompletedProcess[str] = cli.call("volume", *words)
        assert (done.returncode, sentence in done.stderr) == (2, True), done.stderr
