"""GPUs of training processes: one GPU each, or a sentence with the reason."""

from __future__ import annotations

import pytest

from runtime.base.errors import SetupError
from runtime.jobs.classify.rank_context import TrainingRank, gpu_index, shared_gpu
from runtime.jobs.elastic.node import sharing


def test_each_process_of_a_node_gets_a_gpu_of_its_own():
    assert [gpu_index(rank, 4, is_shared=False) for rank in range(4)] == [0, 1, 2, 3]
    with pytest.raises(SetupError, match="process 2 of this node has no GPU of its own: torch sees 2 here"):
        gpu_index(2, 2, is_shared=False)
    assert [gpu_index(rank, 2, is_shared=True) for rank in range(4)] == [0, 1, 0, 1]


def test_ranks_on_one_gpu_are_named():
    assert shared_gpu(["GPU-a", "GPU-b", "GPU-c"]) == ""
    assert shared_gpu(["GPU-a", "GPU-b", "GPU-a"]).startswith(
        "ranks 0 and 2 share the GPU GPU-a, and NCCL takes one"
    )


@pytest.mark.parametrize(
    ("processes", "gpus", "is_said"), [(1, 0, False), (4, 0, False), (2, 2, False), (2, 1, True), (8, 4, True)]
)
def test_a_node_says_when_its_processes_have_to_share(processes, gpus, is_said):
    sentence = sharing(processes, gpus)
    assert bool(sentence) == is_said
    if is_said:
        assert f"{processes} processes for {gpus} GPU" in sentence


def test_the_backend_sums_on_the_cpu_where_there_is_no_gpu_or_it_is_shared():
    torch = pytest.importorskip("torch")
    cpu = TrainingRank.from_environment({"RANK": "1", "WORLD_SIZE": "2", "L2R_POD": "a b\n"}, "cpu")
    assert (cpu.rank, cpu.world_size, cpu.backend, cpu.node) == (1, 2, "gloo", "a_b_")
    gpu = torch.device("cuda", 0)
    assert TrainingRank(0, 2, 0, gpu).backend == "cpu:gloo,cuda:nccl"
    assert TrainingRank(0, 2, 0, gpu, is_shared=True).backend == "gloo"
    with pytest.raises(SetupError, match="must be whole numbers"):
        TrainingRank.from_environment({"RANK": "first"}, "cpu")
