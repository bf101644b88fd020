"""A batch shared between two GPUs gives the same learning as on one; skipped if there is one GPU."""

from __future__ import annotations

import pytest
import torch

from runtime.rl.algos.data_parallel import DataParallel
from tests.runtime.conftest import RunUnderTest
from tests.runtime.rl.algos.test_data_parallel import MAKE, alike, batch_for, learn_on_two_devices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs"),
]
DEVICES = ["cuda:0", "cuda:1"]


@pytest.mark.parametrize("name", MAKE)
def test_replicas_on_two_gpus_stay_alike_to_the_last_bit(name: str) -> None:
    members = [MAKE[name](device=device, capture=False) for device in DEVICES]
    team = DataParallel(members, DEVICES)
    for seed in range(4):
        team.update(batch_for(MAKE[name](), seed).to("cuda:0"))
    team.close()
    copies = [{key: tensor.cpu() for key, tensor in member.tensors().items()} for member in members]
    assert all(torch.equal(tensor, copies[1][key]) for key, tensor in copies[0].items())
    assert {tensor.device.index for tensor in members[1].tensors().values()} == {1}
    assert not alike(members[0], MAKE[name](device="cuda:0"))


@pytest.mark.process
@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_a_learner_with_two_gpus_learns_and_goes_on(run: RunUnderTest, algorithm: str) -> None:
    learn_on_two_devices(run, algorithm, "cuda")
