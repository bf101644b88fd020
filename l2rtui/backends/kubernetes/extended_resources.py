"""Names of the extended resources through which device plugins hand out devices, and the meaning of their units.

An NVIDIA GPU can also be bound by variables and shared by slots. All other devices are only handed out by their
plugin: each is a device with one slot, and the plugin chooses which one a pod gets. A cluster may rename resources
(``nvidia.com/a100``), so an unknown NVIDIA name is a whole GPU.

Sources: NVIDIA/k8s-device-plugin (``nvidia.com/gpu``, ``.shared``, MIG strategy ``mixed``, ``rename``), the
national research platform's table of GPUs, ROCm/k8s-device-plugin, intel/intel-device-plugins-for-kubernetes
(``i915`` and ``xe`` are the two kernel drivers), Project-HAMi/HAMi, volcano-sh/devices,
AliyunContainerService/gpushare-scheduler-extender, aws-neuron/aws-neuron-sdk, tkestack/gpu-manager,
NVIDIA/kubevirt-gpu-device-plugin.
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
NEURON: Final = "aws.amazon.com/neuron"
NEURON_OTHERS: Final = ("aws.amazon.com/neuroncore", "aws.amazon.com/neurondevice")
"""Other names under which Amazon's plugin hands out the same devices: by core, and whole."""
_OTHER: Final = (
    r"(?i)amd\.com/(gpu|[a-z]+_nps\d)|gpu\.intel\.com/(i915|xe)|nvidia\.com/mig-[0-9a-z.+-]+|habana\.ai/gaudi"
    r"|google\.com/tpu|aws\.amazon\.com/neuron(core|device)?|huawei\.com/ascend[-0-9a-z]*|cambricon\.com/mlu[-.0-9a-z]*"
    r"|hygon\.com/dcu(num)?|(metax-tech|mthreads|iluvatar)\.(com|ai)/v?gpu|kunlunxin\.com/xpu"
)
_SHARES: Final = (
    r"(?i)nvidia\.com/.*shared.*|volcano\.sh/(v?gpu-number)|4pd\.io/vgpu|k8s\.amazonaws\.com/vgpu|.*/vgpu"
)
_PARTS: Final = (
    r"(?i)nvidia\.com/(gpumem|gpucores|gpumem-percentage|gpumem_percentage|priority)|volcano\.sh/v?gpu-\w+(-\w+)?"
    r"|(aliyun\.com|tencent\.com|run\.ai|runai\.io|kai\.scheduler|amd\.com|gpu\.intel\.com)/.+|4pd\.io/vgpu-?\w+"
)
_OF_MACHINES: Final = r"nvidia\.com/(pgpu|[A-Z]{2}\d{3}[A-Z]*_.+|(GRID|NVIDIA)_.+)"
"""GPUs, whole or virtual, that a node hands to virtual machines: the driver of containers does not see them."""
_NETWORK: Final = r"(nvidia|amd)\.com/(.*[-_.])?(hostdev|rdma|sriov|roce|infiniband|ib|nic|mlnx\w*|vfs?)\b.*"


class Unit(Enum):
    """Meaning of one unit of an extended resource; NONE for resources that are not GPUs.

    PLUGIN: A device that only its plugin hands out. PART: Memory or cores of some GPU, of unknown index.
    """

    NONE = auto()
    WHOLE = auto()
    SHARE = auto()
    PLUGIN = auto()
    PART = auto()


@lru_cache(maxsize=1024)  # ten thousand pods request the same few
def unit_of(name: str) -> Unit:
    """Return the meaning of one unit of a resource."""
    if re.fullmatch(_NETWORK, name):
        return Unit.NONE
    if re.fullmatch(_OTHER, name) or re.fullmatch(_OF_MACHINES, name):
        return Unit.PLUGIN
    if re.fullmatch(_SHARES, name):
        return Unit.SHARE
    if re.fullmatch(_PARTS, name):
        return Unit.PART
    return Unit.WHOLE if name.startswith("nvidia.com/") else Unit.NONE


@lru_cache(maxsize=1024)
def is_device(name: str) -> bool:
    """Return True for a resource that represents a GPU, a part of one, or its memory."""
    return unit_of(name) is not Unit.NONE


def is_countable(name: str) -> bool:
    """Return True for a resource of which a pod can request a number of devices or shares."""
    return unit_of(name) in (Unit.WHOLE, Unit.SHARE, Unit.PLUGIN)


def plugin_only(names: Iterable[str]) -> tuple[str, ...]:
    """Return devices that only a plugin hands out, in a fixed order: MIG profiles last, as GPUs precede parts."""
    own = (name for name in names if unit_of(name) is Unit.PLUGIN)
    return tuple(sorted(own, key=lambda name: (name.startswith(MIG), name)))
