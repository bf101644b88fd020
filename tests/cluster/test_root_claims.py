"""A fresh claim whose volume belongs to root, as NFS, EFS and hostPath make it: pods of a plain user work there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import yaml

from tests.cluster.conftest import IMAGE, ROOT, eventually
from tests.cluster.kinds import NODE, SECONDS, claim, left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture
def of_root(namespace, tmp_path):
    """Return a function that makes a claim on a folder of root, which no other user may write to."""
    made = []

    def make(name):
        folder = tmp_path / name
        context = claim(namespace, name, folder)
        context.__enter__()
        made.append(context)
        folder.chmod(0o755)
        assert (folder.stat().st_uid, folder.stat().st_gid, stat.S_IMODE(folder.stat().st_mode)) == (0, 0, 0o755)
        return folder

    assert os.geteuid() == 0
    yield make
    for context in made:
        context.__exit__(None, None, None)


def spec(path, script, **pod):
    text = yaml.safe_dump(
        {
            "kind": "job",
            "name": "writer",
            "image": IMAGE,
            "job": {"command": ["sh", "-c", script]},
            "pod": {"binding": "cpu", "node_selector": {"kubernetes.io/hostname": NODE}, **pod},
        }
    )
    path.write_text(text)
    return str(path)


def test_a_fresh_volume_of_root_is_given_to_the_pods_user(cli, namespace, of_root, tmp_path):
    folder = of_root("data")
    file = spec(tmp_path / "s.yaml", "mkdir /data/own && id -u", mounts=[{"path": "/data", "claim": "data"}])
    done = cli.call("plan", "-f", file, "-o", "json")
    assert "an init container gives /data to user 1000" in done.stdout
    cli.run("launch", "-f", file, "--yes")
    eventually("its end", lambda: [run for run in cli.json("runs") if run["state"] == "Completed"], SECONDS)
    assert ((folder / "own").stat().st_uid, folder.stat().st_uid) == (1000, 1000)
    assert cli.json("destroy", "writer", "--yes")["left"] == 0


def test_a_volume_with_files_of_others_stays_and_the_pod_says_what_to_do(cli, namespace, of_root, tmp_path):
    folder = of_root("data")
    (folder / "theirs").write_text("x")
    file = spec(tmp_path / "s.yaml", "mkdir /data/own", mounts=[{"path": "/data", "claim": "data"}])
    cli.run("launch", "-f", file, "--yes")
    said = "User 1000 may not write to /data of the claim data: as root on its volume, chown it to 1000:1000"
    eventually("its reason", lambda: [pod for pod in cli.json("pods") if said in (pod["message"] or "")], SECONDS)
    assert folder.stat().st_uid == 0
    cli.run("destroy", "writer", "--yes")


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_the_workshop_runs_on_a_fresh_volume_of_root(attempt, cli, namespace, image, of_root):
    folder = of_root("workshop")
    node = yaml.safe_dump({"kubernetes.io/hostname": NODE}, default_flow_style=True)
    words = [
        *("--set", f"image={image}", "--set", f"pod.node_selector={node}", "--set", "steps.train.nodes.replicas=1"),
        *(
            "--on",
            f"{NODE}/cpu",
            "--set",
            "steps.data.resources.cpu=0.3",
            "--set",
            "steps.evaluate.resources.cpu=0.3",
        ),
        *("--set", "steps.train.nodes.resources.cpu=0.5"),
        *("--set", "steps.train.nodes.command=[l2r-runtime, classify, train, --epochs, '5']"),
    ]
    cli.run("launch", "-f", str(Path(ROOT / "manifests/workshop.yaml")), *words, "--yes")
    eventually("its end", lambda: [run for run in cli.json("runs") if run["state"] == "Completed"], 2 * SECONDS)
    assert folder.stat().st_uid == 1000
    assert cli.json("metrics", "workshop")["evaluation"]["accuracy"] > 0.5
    assert cli.json("destroy", "workshop", "--yes")["left"] == 0
    assert left(namespace) == []
