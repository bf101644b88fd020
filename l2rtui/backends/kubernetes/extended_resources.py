"""Names of the extended resources by which device plugins hand out devices, and what a unit of each is.

A GPU of NVIDIA is also reached by variables, and slots share it. All others are handed out by their plugin alone:
each is a device of one slot, and which of them a pod gets is the plugin's choice. A cluster may rename resources
(``nvidia.com/a100``), so a name of NVIDIA's that is not known here is a whole GPU.

Sources: NVIDIA/k8s-device-plugin (``nvidia.com/gpu``, ``.shared``, MIG strategy ``mixed``, ``rename``), the
national research platform's table of GPUs, ROCm/k8s-device-plugin, intel/intel-device-plugins-for-kubernetes
(``i915`` and ``xe`` are the two kernel drivers), Project-HAMi/HAMi, volcano-sh/devices,
AliyunContainerService/gpushare-scheduler-extender, tkestack/gpu-manager.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, auto
from functools import lru_cache
from typing import Final

WHOLE: Final = "nvidia.com/gpu"
SHARED: Final = "nvidia.com/gpu.shared"
MIG: Final = "nvidia.com/mig-"
_OTHER: Final = re.compile(
    r"amd\.com/(gpu|[a-z]+_nps\d)|gpu\.intel\.com/(i915|xe)|nvidia\.com/mig-[0-9a-z.+-]+|habana\.ai/gaudi"
    r"|google\.com/tpu|aws\.amazon\.com/neuron|huawei\.com/ascend[-0-9a-z]*|cambricon\.com/mlu[-.0-9a-z]*"
    r"|hygon\.com/dcu(num)?|(metax-tech|mthreads|iluvatar)\.(com|ai)/v?gpu|kunlunxin\.com/xpu",
    re.IGNORECASE,
)
_SHARES: Final = re.compile(
    r"nvidia\.com/.*shared.*|volcano\.sh/(v?gpu-number)|4pd\.io/vgpu|k8s\.amazonaws\.com/vgpu|.*/vgpu",
    re.IGNORECASE,
)
_PARTS: Final = re.compile(
    r"nvidia\.com/(gpumem|gpucores|gpumem-percentage|gpumem_percentage|priority)|volcano\.sh/v?gpu-\w+(-\w+)?"
    r"|(aliyun\.com|tencent\.com|run\.ai|runai\.io|kai\.scheduler|amd\.com|gpu\.intel\.com)/.+|4pd\.io/vgpu-?\w+",
    re.IGNORECASE,
)
_NETWORK: Final = re.compile(
    r"(nvidia|amd)\.com/(.*[-_.])?(hostdev|rdma|sriov|roce|infiniband|ib|nic|mlnx\w*|vfs?)\b.*"
)


class Unit(Enum):
    """One unit of an extended resource: nothing of a GPU, or one of the following.

    PLUGIN: a device that its plugin alone hands out. PART: memory or cores of some GPU, of unknown number.
    """

    NONE = auto()
    WHOLE = auto()
    SHARE = auto()
    PLUGIN = auto()
    PART = auto()


@lru_cache(maxsize=1024)  # ten thousand pods request the same few
def unit_of(name: str) -> Unit:
    """Return what one unit of a resource is."""
    if _NETWORK.fullmatch(name):
        return Unit.NONE
    if _OTHER.fullmatch(name):
        return Unit.PLUGIN
    if _SHARES.fullmatch(name):
        return Unit.SHARE
    if _PARTS.fullmatch(name):
        return Unit.PART
    return Unit.WHOLE if name.startswith("nvidia.com/") else Unit.NONE


@lru_cache(maxsize=1024)
def is_device(name: str) -> bool:
    """Return True for a resource that stands for a GPU, a part of one, or its memory."""
    return unit_of(name) is not Unit.NONE


def is_countable(name: str) -> bool:
    """Return True for a resource of which a pod can request a number of devices or shares."""
    return unit_of(name) in (Unit.WHOLE, Unit.SHARE, Unit.PLUGIN)


def plugin_only(names: Iterable[str]) -> tuple[str, ...]:
    """Return devices that a plugin alone hands out, in a fixed order: MIG profiles last, as GPUs precede parts."""
    own = (name for name in names if unit_of(name) is Unit.PLUGIN)
    return tuple(sorted(own, key=lambda name: (name.startswith(MIG), name)))
