"""Precision of float32 products follows the setting, for matrices and convolutions alike."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from runtime.base.training import SettingsError, from_mapping
from runtime.rl.algos.plan import assemble, make_plan
from runtime.rl.device.accelerator import chosen_precision, set_float32_products
from runtime.rl.spaces import ActionSpace, ObsSpace


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    set_float32_products("float32")


@pytest.mark.parametrize(("precision", "is_tf32"), [("float32", False), ("tf32", True), ("bfloat16", False)])
def test_a_learner_sets_the_products_of_its_process(precision: str, is_tf32: bool) -> None:
    set_float32_products("float32" if is_tf32 else "tf32")
    settings = from_mapping({"precision": precision, "sac": {"batch_size": 4}, "hidden": [8]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assemble(make_plan(settings, ObsSpace(3), ActionSpace(1)), settings, 0, "cpu")
        # Both of torch's settings agree: a mix of them raises RuntimeError.
        assert torch.backends.cuda.matmul.allow_tf32 is is_tf32
        assert torch.backends.cudnn.allow_tf32 is is_tf32
        assert (torch.get_float32_matmul_precision() == "high") is is_tf32
        assert (torch.backends.cuda.matmul.fp32_precision == "tf32") is is_tf32
        assert (torch.backends.cudnn.conv.fp32_precision == "tf32") is is_tf32


@pytest.mark.parametrize(
    ("setting", "device", "has_images", "precision"),
    [
        ("auto", "cuda", True, "tf32"),
        ("auto", "cuda:1", True, "tf32"),
        ("auto", "cuda", False, "float32"),
        ("auto", "cpu", True, "float32"),
        ("float32", "cuda", True, "float32"),
        ("bfloat16", "cuda", False, "bfloat16"),
    ],
)
def test_pictures_on_a_gpu_are_learned_from_in_tf32(
    setting: str, device: str, has_images: bool, precision: str
) -> None:
    assert chosen_precision(setting, device, has_images=has_images) == precision


def test_another_precision_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SettingsError, match="precision is 'fp16'; it must be one of auto, float32, tf32, bfloat16"):
        from_mapping({"precision": "fp16"})
    with pytest.raises(SettingsError, match="cuda_graphs is 'no'; it must be true or false"):
        from_mapping({"cuda_graphs": "no"})


@pytest.mark.parametrize(("settings", "capture"), [({}, None), ({"cuda_graphs": False}, False)])
def test_graphs_are_left_out_where_they_are_switched_off(settings: dict[str, object], capture: bool | None) -> None:
    given = from_mapping({"sac": {"batch_size": 4}, "hidden": [8], **settings})
    method = assemble(make_plan(given, ObsSpace(3), ActionSpace(1)), given, 0, "cpu")
    assert method.capture is capture
