"""Filter columns about single GPUs: free slots, model, memory. They are not displayed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from l2rtui.domain.selection.filter_language import OF_GPU

GPU_COLUMNS: Final = (f"{OF_GPU}free", f"{OF_GPU}model", f"{OF_GPU}memory")


def gpu_cells(gpus: Iterable[tuple[int, str, int]]) -> tuple[str, str, str]:
    """Return the cells of ``GPU_COLUMNS``, with a line for each GPU; empty without GPUs.

    Args:
        gpus: Number of free slots, model (empty if unknown) and total memory in bytes (0 if unknown) of each.
    """
    rows = [(str(free), " ".join(model.split()), str(memory or "")) for free, model, memory in gpus]
    free, model, memory = ("\n".join(cells) for cells in zip(*rows, strict=True)) if rows else ("", "", "")
    return free, model, memory


def about_gpu(text: str) -> str:
    """Expand a filter with short names of GPU columns, such as ``free>=2 model=H100``, to their full names."""
    return " ".join(f"{OF_GPU}{part}" for part in text.casefold().split())
