"""A real API server, and its state through kubectl: no test relies on our own code for the expected state."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DEADLINE_SECONDS = 90.0
IMAGE = "debian:bookworm-slim"
"""An image that the real node has, or makes from local packages; stand-in nodes take any name."""
NODE_IMAGE = os.environ.get("L2R_TEST_IMAGE", "l2rtui-node:test")
"""Image of the runs; the fixture ``image`` builds it."""
ROOT = Path(__file__).parents[2]


def kubectl(*words: str, stdin: str | None = None, check: bool = True) -> str:
    """Run kubectl; return its standard output."""
    done = subprocess.run(
        ["kubectl", *words], input=stdin, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert not check or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
    return done.stdout


def kubectl_json(*words: str) -> Any:
    """Run kubectl with ``-o json``."""
    return json.loads(kubectl(*words, "-o", "json"))


def eventually(what: str, condition: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> Any:
    """Wait until the condition returns a true value; fail with ``what`` if it never does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.2)
    pytest.fail(f"{what}: not within {seconds:g} s")


class Cli:
    """``l2rtui`` in a separate process on the test cluster, with a separate home and namespace."""

    def __init__(self, home: Path, namespace: str, kubeconfig: str) -> None:
        self.namespace = namespace
        self.env = {
            **os.environ,
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "KUBECONFIG": kubeconfig,
            "L2RTUI_BACKEND": "kubernetes",
            "L2RTUI_NAMESPACES": namespace,
            "TERM": "xterm-256color",
        }

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "l2rtui", *words]

    def call(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a verb to its end, with any exit code."""
        done = subprocess.run(
            self.argv(*words),
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_SECONDS,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def run(self, *words: str, code: int = 0, **env: str) -> str:
        """Run a verb, check its exit code, return its standard output."""
        done = self.call(*words, **env)
        assert done.returncode == code, (
            f"l2rtui {' '.join(words)} gave {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout

    def json(self, *words: str, code: int = 0, **env: str) -> Any:
        """Run a verb with ``-o json``."""
        return json.loads(self.run(*words, "-o", "json", code=code, **env))

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start a verb without waiting; its streams are pipes."""
        return subprocess.Popen(
            self.argv(*words),
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    """The administrator's kubeconfig; these tests are meaningless without a cluster, so its absence is a
    failure.
    """
    path = os.environ.get("KUBECONFIG", "")
    assert path, "tests marked `cluster` need $KUBECONFIG"
    return path


@contextlib.contextmanager
def new_namespace() -> Iterator[str]:
    """Make a namespace that is removed at the end with its contents."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    eventually("its service account", lambda: kubectl("-n", name, "get", "sa", "default", check=False))
    yield name
    kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def namespace(kubeconfig: str) -> Iterator[str]:
    """A separate namespace for the test."""
    with new_namespace() as name:
        yield name


@pytest.fixture
def volume(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A claim bound to a folder of the real node, which is this machine."""
    folder = tmp_path_factory.mktemp("volume")
    for part in (folder, *folder.parents[:2]):
        part.chmod(0o777)  # the pods run as another user
    common: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    name = f"l2r-{namespace}"
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": str(folder)},
                "claimRef": {"namespace": namespace, "name": "l2r-data"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "l2r-data", "namespace": namespace},
            "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    yield folder
    kubectl("delete", "pv", name, "--wait=false")


@pytest.fixture
def cli(tmp_path: Path, namespace: str, kubeconfig: str) -> Cli:
    """The program in an empty home, in the test's namespace."""
    return Cli(tmp_path, namespace, kubeconfig)


@pytest.fixture(scope="session")
def image() -> str:
    """Build the image from docker/; the real node's Docker Engine is this machine's."""
    for name, tag in (("base", "l2rtui-base"), ("node", NODE_IMAGE)):
        built = subprocess.run(
            ["docker", "build", "--network", "host", "-q", "-f", f"docker/Dockerfile.{name}", "-t", tag, "."],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=580,
            check=False,
        )
        assert built.returncode == 0, built.stderr
    return NODE_IMAGE
