"""Captured functions on the CPU: static buffers, shapes, state that warm-up does not change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from runtime.base.errors import FailedError
from runtime.rl.device.captured import Captured, CapturedByShape

pytestmark = pytest.mark.usefixtures("one_thread")


def test_arguments_are_copied_into_static_buffers() -> None:
    addresses: list[int] = []

    def double(value: Tensor) -> Tensor:
        addresses.append(value.data_ptr())
        return 2.0 * value

    captured = Captured(double, torch.ones(3), enabled=False)
    first, second = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    assert captured(first).tolist() == [2.0, 4.0, 6.0]
    assert captured(second).tolist() == [8.0, 10.0, 12.0]
    assert set(addresses) == {captured.inputs[0].data_ptr()}
    assert first.tolist() == [1.0, 2.0, 3.0], "the caller's tensor is not the buffer"
    assert not captured.is_graph


def test_columns_are_copied_at_once_with_those_of_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU torch launches once for a list of one type and layout, and once per column for any other."""
    lists: list[set[tuple[torch.dtype, bool]]] = []
    copy = torch._foreach_copy_

    def noting(buffers: list[Tensor], columns: list[Tensor]) -> None:
        lists.append({(column.dtype, column.is_contiguous()) for column in columns})
        copy(buffers, columns)

    monkeypatch.setattr(torch, "_foreach_copy_", noting)
    pictures = torch.randint(0, 255, (4, 9), dtype=torch.uint8)
    columns = [torch.rand(4, 3), pictures, torch.rand(4), torch.arange(4), torch.rand(3, 4).T, torch.rand(4)]
    captured = Captured(lambda *values: [value.clone() for value in values], *map(torch.zeros_like, columns))
    results = captured(*columns)
    assert all(torch.equal(result, column) for result, column in zip(results, columns, strict=True))
    is_contiguous = True
    assert lists == [
        {(torch.float32, is_contiguous)},
        {(torch.uint8, is_contiguous)},
        {(torch.int64, is_contiguous)},
        {(torch.float32, not is_contiguous)},
    ]


def test_a_batch_that_was_written_into_the_buffers_is_not_copied() -> None:
    captured = Captured(lambda value: value + 1.0, torch.zeros(2))
    captured.inputs[0].fill_(5.0)
    assert captured(*captured.inputs).tolist() == [6.0, 6.0]


def test_making_it_changes_neither_state_nor_generators() -> None:
    total, generator = torch.zeros(4), torch.Generator().manual_seed(3)

    def walk(step: Tensor) -> Tensor:
        return total.add_(step * torch.randn(4, generator=generator))

    before = generator.get_state()
    captured = Captured(walk, torch.ones(4), generators=[generator], state=[total])
    assert total.tolist() == [0.0] * 4
    assert torch.equal(generator.get_state(), before)
    captured(torch.ones(4))
    assert torch.equal(total, torch.randn(4, generator=torch.Generator().manual_seed(3)))


def test_another_number_of_arguments_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Captured(lambda a, b: a + b, torch.zeros(1), torch.zeros(1))(torch.zeros(1))


def test_each_shape_has_buffers_of_its_own_and_a_missing_column_stays_missing() -> None:
    shapes: list[tuple[int, int]] = []

    def weighted(value: Tensor, weight: Tensor | None) -> Tensor:
        shapes.append((value.data_ptr(), len(value)))
        return value if weight is None else value * weight

    for enabled in (None, False, True):
        shapes.clear()
        captured = CapturedByShape(weighted, enabled=enabled)
        two, three, again = torch.ones(2), torch.ones(3), torch.full((2,), 7.0)
        assert captured(two, None).tolist() == [1.0, 1.0]
        assert captured(three, torch.full((3,), 2.0)).tolist() == [2.0, 2.0, 2.0]
        assert captured(again, None).tolist() == [7.0, 7.0]
        assert [size for _, size in shapes] == [2, 3, 2]
        assert (shapes[0] == shapes[2]) is (enabled is True), "the same buffers for the same shapes"


def test_a_capture_that_fails_is_one_line_that_ends_with_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch appends debugging advice to CUDA's error; the first line must be ours, since some callers show only
    that.
    """

    class Refused:
        def __init__(self, *_: object, **__: object) -> None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with ...\n")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", Refused)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    with pytest.raises(FailedError) as raised:
        Captured(torch.neg, torch.ones(3))._record(None, ())  # type: ignore[arg-type]
    assert "stream is capturing); with cuda_graphs set to false" in str(raised.value)
    assert "\n" not in str(raised.value)
