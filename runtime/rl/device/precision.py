"""Precision of products on the device: true float32, TF32, or bfloat16 networks over float32 weights."""

from __future__ import annotations

import warnings
from typing import Final

import torch

DTYPES: Final = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
"""Type of weights and activations in products of matrices and convolutions, by the setting ``precision``."""


def chosen_precision(setting: str, device: str, *, has_images: bool) -> str:
    """Return the precision that ``auto`` stands for; another setting is itself.

    Convolutions in exact float32 use no tensor cores: an update of SAC on 84x84x4 took 3.1 ms on an H200 and 1.8 ms
    in TF32, in which torch computes convolutions by default, too. Small networks on vectors gain nothing.
    """
    if setting != "auto":
        return setting
    return "tf32" if has_images and device.startswith("cuda") else "float32"


def set_float32_products(precision: str) -> None:
    """Make float32 products of this process TF32 (10 bits of mantissa instead of 23) for ``tf32``, exact otherwise.

    Torch's own defaults are neither: matrices are exact and convolutions TF32 (PyTorch, *CUDA semantics: TF32*).
    """
    is_tf32 = precision == "tf32"
    # Torch 2.9 brought `fp32_precision` beside these two, and getters raise where only the new way was used. The
    # older functions set both; releases differ in whether they warn of it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = is_tf32
