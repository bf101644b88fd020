"""Precision of products on the device: exact float32, TF32, or bfloat16 networks with float32 weights."""

from __future__ import annotations

import warnings
from typing import Final

import torch

DTYPES: Final = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
"""Type of weights and activations in matrix products and convolutions, by the setting ``precision``."""


def chosen_precision(setting: str, device: str, *, has_images: bool) -> str:
    """Return the precision that ``auto`` selects; other settings are returned unchanged.

    Convolutions in exact float32 use no tensor cores: an update of SAC on 84x84x4 took 3.1 ms on an H200 and 1.8 ms
    in TF32, which is also torch's default for convolutions. Small networks on vectors gain nothing.
    """
    if setting != "auto":
        return setting
    return "tf32" if has_images and device.startswith("cuda") else "float32"


def set_float32_products(precision: str) -> None:
    """Use TF32 (10 mantissa bits instead of 23) for this process's float32 products if ``tf32``, else exact ones.

    Torch's own default is a mixture: exact matrix products, TF32 convolutions (PyTorch, *CUDA semantics: TF32*).
    """
    is_tf32 = precision == "tf32"
    # Torch 2.9 added `fp32_precision` alongside these two, and getters raise if only the new way was used. The
    # older functions set both; depending on the release they warn about it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = is_tf32
