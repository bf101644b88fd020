"""Files of published examples, launched unchanged on our image: they train, and plans name the differences."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path

import pytest

from tests.cluster.conftest import eventually, kubectl
from tests.cluster.kinds import NODE, SECONDS, claim, left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SEEDS = Path(__file__).parent / "seeds"
IMAGE = "127.0.0.1:5000/l2rtui-seeds:test"
STAND_INS = ("phortx1", "phortx2", "phortx3")


@pytest.fixture(scope="module")
def seed_image(image):
    """Build the examples' image on l2rtui's, and push it: their files set imagePullPolicy: Always."""
    for words in (("build", "--network", "host", "-q", "-t", IMAGE, str(SEEDS)), ("push", "-q", IMAGE)):
        done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=580, check=False)
        assert done.returncode == 0, done.stderr
    return IMAGE


@pytest.fixture(autouse=True)
def real_node():
    """Let the scheduler choose only the real node."""
    kubectl("cordon", *STAND_INS)
    yield
    kubectl("uncordon", *STAND_INS)


def losses(text):
    """First and last loss printed by the program, and the number of its processes."""
    found = re.findall(r"seed step (\d+) of (\d+) loss ([\d.]+)", text)
    by_step = {int(step): float(loss) for step, _, loss in found}
    return (by_step.get(0), by_step.get(59), int(found[-1][1])) if len(by_step) == 2 else None


def trained(cli, run, processes):
    """Wait for the end of the training; the loss has fallen."""
    first, last, number = eventually("it trains", lambda: losses(cli.call("logs", run).stdout), SECONDS)
    assert number == processes
    assert last < first / 10
    eventually(
        "its end", lambda: [one for one in cli.json("runs") if one["run"] == run and one["complete"]], SECONDS
    )


def destroyed(cli, namespace, run):
    receipt = cli.json("destroy", run, "--yes")
    assert (receipt["left"], left(namespace)) == (0, [])


def plan(cli, *words):
    done = cli.call("plan", *words)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_elastic_job_of_the_workshop_trains(cli, namespace, seed_image, tmp_path):
    text = (SEEDS / "workshop.yaml").read_text()
    path = tmp_path / "workshop.yaml"
    path.write_text(text.replace("cpu: 32", "cpu: 0.3"))  # the node of the tests has two cores
    with claim(namespace, "efs-pvc", tmp_path):
        words = ("-f", str(path), "--set", f"image={seed_image}")
        said = plan(cli, *words)
        for difference in (
            "rdzvEndpoint: etcd-service:2379 is not used",
            "restartPolicy: ExitCode becomes OnFailure",
            "its launcher torchrun is left out",
            "spec.nodeSelector.beta.kubernetes.io/instance-type: c5.4xlarge",
        ):
            assert difference in said
        cli.run("launch", *words, "--yes")
        trained(cli, "cifar10-train", 2)
        destroyed(cli, namespace, "cifar10-train")


def test_the_elastic_job_of_imagenet_trains_beside_its_etcd(cli, namespace, seed_image):
    files = [SEEDS / name for name in ("etcd.yaml", "elastic-imagenet.yaml")]
    words = [word for file in files for word in ("-f", str(file))] + [
        "--set",
        f"image={seed_image}",
        "--on",
        f"{NODE}/0-7",
    ]
    said = plan(cli, *words)
    for difference in ("Service etcd is left out", "Pod etcd is left out", "metadata.namespace: elastic-job"):
        assert difference in said
    cli.run("launch", *words, "--yes")
    trained(cli, "imagenet", 8)
    destroyed(cli, namespace, "imagenet")


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_the_pods_of_imagenet_train_by_their_own_etcd_on_a_fresh_volume_of_root(
    attempt, cli, namespace, seed_image, tmp_path
):
    with claim(namespace, "efs-claim", tmp_path / "efs") as folder:
        folder.chmod(0o755)
        assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (0, 0o755)
        words = [word for name in ("etcd.yaml", "imagenet.yaml") for word in ("-f", str(SEEDS / name))]
        words += ["--set", f"image={seed_image}", "--name", "imagenet"]
        said = plan(cli, *words)
        for difference in (
            "env RDZV_ENDPOINT: the address of the Service etcd becomes that of the run's own",
            "Service imagenet-worker-1: it selects the set worker-1",
            "metadata.labels.job-name",
        ):
            assert difference in said
        cli.run("launch", *words, "--yes")
        first, last, number = eventually("it trains", lambda: losses(cli.call("logs", "imagenet").stdout), SECONDS)
        assert (number, last < first / 10) == (2, True)
        eventually("its files", lambda: len(list(folder.iterdir())) == 2, SECONDS)
        assert {file.name for file in folder.iterdir()} == {"rank-0", "rank-1"}
        destroyed(cli, namespace, "imagenet")
