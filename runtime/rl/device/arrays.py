"""Torch arrays on one device, for environments that run there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.rl.envs.device import DeviceArrays


def torch_arrays(device: str, generator: torch.Generator) -> DeviceArrays:
    """Return torch's arrays on ``device``; random numbers come from ``generator``, which is on the same device."""

    def convert(array: NDArray[Any]) -> Tensor:
        # float32 throughout: consumer GPUs compute float64 at 1/64 of the float32 rate, and in float32 positions
        # within a kilometre are exact to 0.1 mm.
        single = array.astype(np.float32) if array.dtype == np.float64 else array
        return torch.tensor(single, device=device)

    def uniform(shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    return DeviceArrays(torch, convert, uniform)
