"""Elastic jobs on a graphics card: a process for each GPU, and a sentence if two ranks would share one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from runtime.base import contract
from tests.runtime.jobs.elastic_jobs import Job
from tests.runtime.programs import Programs

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
TRAIN = ("l2r-runtime", "classify", "train", "--data", "digits", "--device", "cuda", "--epochs", "2")


@pytest.fixture
def programs():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no graphics card")
    # One card, however many the machine has: this tests sharing.
    with (
        tempfile.TemporaryDirectory(prefix="l2r-") as folder,
        Programs(Path(folder), CUDA_VISIBLE_DEVICES="0") as started,
    ):
        yield started


def test_a_node_starts_as_many_processes_as_it_has_gpus(programs):
    node = Job(programs, "c10d", *TRAIN, nodes="1:1").node()
    assert node.code() == contract.EXIT_DONE, node.text()
    assert "round 0: 1 nodes, 1 processes" in node.text()
    assert "process 0 of 1 on cuda:0" in node.text()


def test_two_nodes_on_one_gpu_are_refused_by_a_sentence(programs):
    job = Job(programs, "c10d", *TRAIN, nodes="2:2")
    nodes = [job.node(), job.node()]
    assert [node.code() for node in nodes] == [contract.EXIT_FAILED] * 2
    for node in nodes:
        assert "ranks 0 and 1 share the GPU" in node.text()
        assert "--shared-gpu" in node.text()
        assert "ncclInvalidUsage" not in node.text()


def test_two_processes_of_a_node_on_one_gpu_are_refused_by_a_sentence(programs):
    job = Job(programs, "c10d", *TRAIN, nodes="1:1")
    node = programs.start("elastic", "--nodes", "1:1", "--nproc-per-node", "2", "--", *TRAIN)
    assert node.code() == contract.EXIT_FAILED
    assert "2 processes for 1 GPU: NCCL takes one process for each GPU" in node.text()
    assert "process 1 of this node has no GPU of its own" in node.text()
    assert job.rendezvous.code() == contract.EXIT_FAILED


def test_a_gpu_is_shared_on_purpose(programs):
    job = Job(programs, "c10d", *TRAIN, "--shared-gpu", nodes="2:2")
    nodes = [job.node(), job.node()]
    assert [node.code() for node in nodes] == [contract.EXIT_DONE] * 2, nodes[0].text()
    assert {record["world_size"] for record in nodes[0].records("elastic") if record.get("step")} == {2}


def test_state_of_a_gpu_goes_on_on_a_cpu_and_back(programs):
    for epochs, device in ((1, "cuda"), (2, "cpu"), (3, "cuda")):
        words = ("classify", "train", "--data", "digits", "--epochs", str(epochs), "--device", device)
        trained = programs.run(*words)
        assert trained.process.returncode == contract.EXIT_DONE, trained.text()
        assert ("continues from epoch" in trained.text()) == (epochs > 1)
