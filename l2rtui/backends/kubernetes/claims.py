"""Which devices a pod holds, ours or anybody's, as far as its own words tell; pure.

Pods hold GPUs in two ways that know nothing of each other: by a variable that the container runtime obeys, which no
scheduler sees, and by a resource that the device plugin gives out, which does not say which GPU it was. The rules:

- A pod is one worker: a GPU that it pins costs one slot, however many of its containers name it.
- A whole GPU by request costs all slots of one GPU, a share or a MIG slice costs one; which GPU it is, nobody says.
- Containers add up, as Kubernetes counts them; init containers count where they need more than all others together.
- A variable that only the container knows (``valueFrom``) holds something that cannot be told.
- No word about GPUs holds none, although the image may see all: that is how most pods of a cluster are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.devices import MIG, SHARED, WHOLE, NodeDevices, quantity
from l2rtui.backends.kubernetes.structs import EnvVar, PodStruct, Quantities, Resources
from l2rtui.domain.ledger import Claim

NVIDIA = "NVIDIA_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
_NOTHING = ("none", "void", "")
_NO_DEVICE = ("none", "void", "", "-1", "NoDevFiles")
_VENDOR = "nvidia.com/"
_UUID_PREFIXES = ("GPU-", "MIG-")
_HAMI_UUID = re.compile(r"GPU-[0-9a-fA-F-]+")


@dataclass(frozen=True, slots=True)
class Holding:
    """What a pod holds, and what about it does not fit together (each without the pod's name)."""

    claims: tuple[Claim, ...] = ()
    flags: tuple[str, ...] = ()


NOTHING = Holding()


@dataclass(frozen=True, slots=True)
class _Pin:
    """What one variable says. ``tokens`` are indices and UUIDs as they are written."""

    is_set: bool = False
    is_all: bool = False
    is_hidden: bool = False
    tokens: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return self.is_set and not (self.is_all or self.is_hidden or self.tokens)


_UNSET = _Pin()


def holding(
    pod: PodStruct,
    devices: NodeDevices,
    seat: Sequence[int] | None = None,
    allocated: tuple[Claim, ...] | None = None,
) -> Holding:
    """Read what a pod holds on its node.

    Args:
        seat: Slots that our own plan gave it; None for a pod of others, or when its seat is not known.
        allocated: What its resource claims have been given; None where nobody can tell.
    """
    spec = pod.spec
    flags: dict[str, None] = {}
    pinned: dict[Claim, None] = {}
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        if container.env:
            nvidia, cuda = _pins(container.env)
            if nvidia is not _UNSET or cuda is not _UNSET:
                pinned.update(dict.fromkeys(_pinned(nvidia, cuda, devices, flags)))
    asked = _requested(pod, devices)
    if pinned and asked:
        flags["names a GPU and requests one too: it may hold two"] = None
    if spec.resource_claims and allocated is None:
        asked += len(spec.resource_claims)
    elif allocated:
        pinned.update(dict.fromkeys(one for one in allocated if one.gpu is not None))
        asked += sum(one.gpu is None for one in allocated)
    elif found := _by_hami(pod, devices):
        pinned, asked = dict.fromkeys(found), 0
    claims = tuple(pinned) + ((Claim(None, None, asked),) if asked else ())
    if labels.RUN_ID in (pod.metadata.labels or {}):
        claims = _own(pod, devices, claims, seat, flags)
    return Holding(claims, tuple(flags)) if claims or flags else NOTHING


def _own(
    pod: PodStruct,
    devices: NodeDevices,
    claims: tuple[Claim, ...],
    seat: Sequence[int] | None,
    flags: dict[str, None],
) -> tuple[Claim, ...]:
    """Our own pods hold the slots of their plan, if they are where it put them."""
    host, label = pod.metadata.label(labels.HOST), pod.metadata.label(labels.GPU)
    node = pod.spec.node_name or ""
    if host and node and host != labels.label_value(node):
        flags[f"is on {node}, its plan says {host}"] = None
        return claims
    if not label.isdigit():
        return claims
    gpu = int(label)
    others = sorted({claim.gpu for claim in claims if claim.gpu is not None} - {gpu})
    if others and devices.has_gpus:
        flags[f"names device {', '.join(map(str, others))}, its plan says {gpu}"] = None
        return claims
    if seat:
        return tuple(Claim(gpu, slot) for slot in seat)
    return (Claim(gpu),)


# --- by variable ------------------------------------------------------------------------------------------------
def _pins(variables: Sequence[EnvVar]) -> tuple[_Pin, _Pin]:
    nvidia = cuda = _UNSET
    for variable in variables:  # of two with one name, the last one counts
        if variable.name == NVIDIA:
            nvidia = _read(variable.value or "", variable.value_from is not None, _NOTHING)
        elif variable.name == CUDA:
            cuda = _read(variable.value or "", variable.value_from is not None, _NO_DEVICE)
    return nvidia, cuda


@lru_cache(maxsize=1024)  # a cluster's pods say the same few things ten thousand times
def _read(text: str, is_hidden: bool, none: tuple[str, ...]) -> _Pin:
    value = text.strip()
    if is_hidden or "$(" in value:
        return _Pin(is_set=True, is_hidden=True)
    if value in none:
        return _Pin(is_set=True)
    if value == "all":
        return _Pin(is_set=True, is_all=True)
    tokens = [token.strip() for token in value.split(",")]
    if "-1" in tokens:  # CUDA stops reading at the first that does not exist
        tokens = tokens[: tokens.index("-1")]
    return _Pin(is_set=True, tokens=tuple(dict.fromkeys(token for token in tokens if token)))


def _pinned(nvidia: _Pin, cuda: _Pin, devices: NodeDevices, flags: dict[str, None]) -> tuple[Claim, ...]:
    """What the two variables of one container hold together."""
    if nvidia.is_hidden or (cuda.is_hidden and not nvidia.is_set):
        flags["takes its GPU from a value that only the container knows"] = None
        return (Claim(None),)
    if nvidia.is_none:
        if cuda.tokens or cuda.is_all:
            flags[f"hides all GPUs by {NVIDIA}, but {CUDA} names {_written(cuda)}"] = None
        return ()
    if nvidia.is_all:
        flags[f"sees all GPUs by {NVIDIA}=all"] = None
        return _held(cuda.tokens, devices, flags) if cuda.tokens else _every(devices)
    if nvidia.tokens:
        if cuda.is_set and not cuda.is_hidden and not _agree(nvidia.tokens, cuda):
            flags[f"has {NVIDIA}={_written(nvidia)}, but {CUDA}={_written(cuda)}"] = None
        return _held(nvidia.tokens, devices, flags)
    return _held(cuda.tokens, devices, flags) if not cuda.is_all else _every(devices)


def _agree(nvidia: tuple[str, ...], cuda: _Pin) -> bool:
    """Whether the second variable can mean the devices of the first.

    Either it names the same, or it counts among those that the first lets through: 0 for the only one.
    """
    if cuda.is_all or cuda.tokens == nvidia:
        return True
    if not cuda.tokens:
        return False
    return all(token.isdigit() and int(token) < len(nvidia) for token in cuda.tokens) or set(cuda.tokens) <= set(
        nvidia
    )


def _held(tokens: tuple[str, ...], devices: NodeDevices, flags: dict[str, None]) -> tuple[Claim, ...]:
    claims: dict[Claim, None] = {}
    for token in tokens:
        index: int | None = None
        if token.isascii() and token.isdigit():
            index = int(token)
            if devices.gpus and (not devices.has_gpus or index >= len(devices.gpus)):
                flags[f"names device {index} of {devices.node}, which has no such device"] = None
                if not devices.has_gpus:  # device 0 of such a node is its CPU, which nobody meant
                    continue
        elif token.startswith(_UUID_PREFIXES):
            index = devices.uuids.get(token)
        claims[_claim(index)] = None
    return tuple(claims)


@lru_cache(maxsize=256)
def _claim(index: int | None) -> Claim:
    """One GPU: ten thousand pods hold a few hundred of them."""
    return Claim(index)


def _every(devices: NodeDevices) -> tuple[Claim, ...]:
    return tuple(Claim(gpu.index) for gpu in devices.gpus if not gpu.is_cpu) or (Claim(None),)


def _written(pin: _Pin) -> str:
    return "all" if pin.is_all else ",".join(pin.tokens) or "nothing"


# --- by request -------------------------------------------------------------------------------------------------
def _requested(pod: PodStruct, devices: NodeDevices) -> int:
    """Slots of devices that the pod has asked the scheduler for."""
    own = [wanted for one in pod.spec.containers or () if one.resources and (wanted := _wanted(one.resources))]
    before = [
        (one, wanted)
        for one in pod.spec.init_containers or ()
        if one.resources and (wanted := _wanted(one.resources))
    ]
    if not own and not before:
        return 0
    sidecars = sum(_slots(wanted, devices) for one, wanted in before if one.restart_policy == "Always")
    together = sum(_slots(wanted, devices) for wanted in own) + sidecars
    return max(together, *(_slots(wanted, devices) for _, wanted in before), 0)


def _wanted(resources: Resources) -> Quantities:
    """What a container asks for of the resources that are GPUs, or parts of them."""
    found: Quantities = {}
    for quantities in (resources.requests, resources.limits):
        for name in quantities or ():
            if name.startswith(_VENDOR):
                found[name] = (quantities or {})[name]
    return found


def _slots(wanted: Quantities, devices: NodeDevices) -> int:
    whole = int(quantity(wanted, WHOLE))
    slots = whole if devices.counts_shares else whole * devices.slots_per_gpu
    slots += int(quantity(wanted, SHARED))
    return slots + sum(int(quantity(wanted, name)) for name in wanted if name.startswith(MIG))


def _by_hami(pod: PodStruct, devices: NodeDevices) -> tuple[Claim, ...]:
    """The GPUs that HAMi has chosen, or the one that the pod has asked it for."""
    told = pod.metadata.annotation(labels.HAMI_ALLOCATED) or pod.metadata.annotation(labels.HAMI_WISH)
    if not told:
        return ()
    uuids = dict.fromkeys(_HAMI_UUID.findall(told))
    if not uuids or (len(uuids) > 1 and not pod.metadata.annotation(labels.HAMI_ALLOCATED)):
        return ()
    return tuple(dict.fromkeys(Claim(devices.uuids.get(uuid)) for uuid in uuids))
