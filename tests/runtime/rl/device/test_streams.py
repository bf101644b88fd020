"""Copies to the host: with the data of the moment at which they were started, whatever is written afterwards."""

from __future__ import annotations

import threading

import numpy as np
import torch

from runtime.rl.device.staging import HostCopy


def test_a_copy_is_of_its_moment_and_later_writes_do_not_show() -> None:
    weights, count = torch.arange(6.0), torch.tensor(3)
    copy = HostCopy({"weights": weights, "count": count})
    weights.zero_()
    count += 1
    assert copy.ready()
    copy.wait()
    arrays = copy.numpy()
    assert np.array_equal(arrays["weights"], np.arange(6, dtype=np.float32))
    assert arrays["count"] == 3
    arrays["weights"][:] = 9  # the copy is independent: it shares no memory with the tensor
    assert not weights.any()


def test_parameters_parts_of_tensors_and_nothing_at_all_are_copied() -> None:
    matrix = torch.arange(12.0).view(3, 4).requires_grad_()
    arrays = HostCopy({"columns": matrix[:, 1:3], "transposed": matrix.t()}).numpy()
    assert np.array_equal(arrays["columns"], np.arange(12, dtype=np.float32).reshape(3, 4)[:, 1:3])
    assert arrays["transposed"].shape == (4, 3)
    assert list(HostCopy({"b": matrix, "a": matrix}).numpy()) == ["b", "a"]
    nothing = HostCopy({})
    assert nothing.ready()
    assert nothing.numpy() == {}


def test_another_thread_may_wait_for_a_copy() -> None:
    copy = HostCopy({"values": torch.ones(4)})
    arrived: list[float] = []
    thread = threading.Thread(target=lambda: arrived.append(float(copy.numpy()["values"].sum())))
    thread.start()
    thread.join(30)
    assert arrived == [4.0]
