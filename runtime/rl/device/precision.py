"""Precision of products on the device: true float32, TF32, or bfloat16 networks over float32 weights."""

from __future__ import annotations

import warnings
from typing import Final

import torch

DTYPES: Final = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
"""Type of weights and activations in products of matrices and convolutions, by the setting ``precision``."""


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
