"""Names of the extended resources by which device plugins hand out devices.

A GPU of NVIDIA is also reached by variables, and slots share it. All others are handed out by their plugin alone:
each is a device of one slot, and which of them a pod gets is the plugin's choice.

Sources: NVIDIA/k8s-device-plugin (``nvidia.com/gpu``, ``.shared``, MIG strategy ``mixed``), ROCm/k8s-device-plugin,
intel/intel-device-plugins-for-kubernetes (``i915`` and ``xe`` are the two kernel drivers).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

WHOLE: Final = "nvidia.com/gpu"
SHARED: Final = "nvidia.com/gpu.shared"
MIG: Final = "nvidia.com/mig-"
_OTHER: Final = re.compile(r"amd\.com/gpu|gpu\.intel\.com/(i915|xe)|nvidia\.com/mig-[0-9a-z.+-]+")


@lru_cache(maxsize=256)  # ten thousand pods request the same few
def is_device(name: str) -> bool:
    """Return True for a resource that stands for a GPU, a part of one, or its memory (HAMi)."""
    return name.startswith("nvidia.com/") or is_plugin_only(name)


def is_plugin_only(name: str) -> bool:
    """Return True for a device that its plugin alone hands out: one of AMD or Intel, or a MIG profile."""
    return _OTHER.fullmatch(name) is not None


def plugin_only(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of some resources, in a fixed order: MIG profiles last, as the GPUs come before their parts."""
    return tuple(sorted(filter(is_plugin_only, names), key=lambda name: (name.startswith(MIG), name)))
