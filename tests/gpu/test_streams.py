"""Copies to the host on a graphics card: with the data of their moment, asynchronous, without blocking the next
update.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

CYCLES = 200_000_000
"""GPU cycles that a kernel sleeps: about a tenth of a second."""


def test_a_copy_is_of_its_moment_though_the_device_writes_on():
    from runtime.rl.device.staging import HostCopy

    weights = torch.zeros(1 << 20, device="cuda")
    copies = []
    for version in range(20):
        weights.fill_(version)
        copies.append(HostCopy({"weights": weights, "version": torch.tensor(version)}))
        weights.add_(0.5)  # the next update, launched before the copy has arrived
    for version, copy in enumerate(copies):
        arrays = copy.numpy()
        assert copy.ready()
        assert arrays["version"] == version
        assert (arrays["weights"] == version).all()


def test_to_begin_a_copy_waits_for_no_kernel_and_its_arrival_for_those_before_it():
    from runtime.rl.device.staging import HostCopy

    values = torch.zeros(1024, device="cuda")
    HostCopy({"values": values}).wait()  # allocates the stream and the pinned block
    torch.cuda._sleep(CYCLES)
    values.fill_(3)
    copy = HostCopy({"values": values})
    torch.cuda._sleep(CYCLES)  # it does not depend on kernels after it
    assert not copy.ready()
    arrived: list[float] = []
    waiter = threading.Thread(target=lambda: arrived.append(float(copy.numpy()["values"].sum())))
    waiter.start()
    waiter.join(30)
    assert arrived == [3 * 1024]
    assert not torch.cuda.current_stream().query()  # the second sleep still runs: the copy did not wait for it


def test_arrays_stay_as_they_are_while_later_copies_come_and_go():
    from runtime.rl.device.staging import HostCopy

    values = torch.arange(4096.0, device="cuda")
    first = HostCopy({"values": values}).numpy()["values"]
    expected = first.copy()
    for _ in range(50):
        values.add_(1)
        HostCopy({"values": values}).wait()
    assert np.array_equal(first, expected)


def test_a_snapshot_of_a_learner_on_the_card_is_of_its_moment():
    from runtime.base.methods import SACConfig
    from runtime.rl.algos.actor import ActorShape
    from runtime.rl.algos.off_policy.sac import SAC
    from runtime.rl.buffers.replay import Batch
    from runtime.rl.device.staging import HostCopy

    sac = SAC(ActorShape(5, 2, (32,)), SACConfig(hidden=(32,), batch_size=16), 1, "cuda")
    obs, action = torch.randn(16, 5, device="cuda"), torch.rand(16, 2, device="cuda")
    batch = Batch(obs, action, torch.randn(16, device="cuda"), obs + 0.1, torch.zeros(16, device="cuda"))
    sac.update(batch)
    copy = HostCopy(sac.live_state())
    expected = sac.state()
    for _ in range(5):
        sac.update(batch)
    arrays = copy.numpy()
    for name, tensor in expected.items():
        assert np.array_equal(arrays[name], tensor.numpy()), name
    assert not np.array_equal(arrays["actor"], sac.state()["actor"].numpy())
