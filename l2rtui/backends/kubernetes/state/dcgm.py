"""What dcgm-exporter tells of the GPUs of its node: how busy they are, and how much of their memory is taken.

Kubernetes itself measures no GPU. The exporter runs on each node, beside the device plugin; a plain GET through the
API server's pod proxy reads it, and needs nothing but the right to do that. Its pods are found among those that are
watched anyway. What it says comes from outside: bounded, and what is odd is passed over without a word, line by
line, as a figure on a screen is worth no failure.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.devices import NodeDevices
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.backends.kubernetes.structs import PodStruct
from l2rtui.domain.node import GpuUse
from l2rtui.domain.status import Phase

MOST_BYTES: Final = 4 << 20
"""Of one answer; an exporter of eight GPUs sends some 40 KiB."""
PORT: Final = 9400
_MARKS: Final = (
    ("app.kubernetes.io/name", "dcgm-exporter"),  # its own chart and manifest
    ("app", "nvidia-dcgm-exporter"),  # NVIDIA's GPU operator
    ("app", "dcgm-exporter"),
)
_PERCENT: Final = "DCGM_FI_DEV_GPU_UTIL"
_USED: Final = "DCGM_FI_DEV_FB_USED"
_FREE: Final = "DCGM_FI_DEV_FB_FREE"
# Possessive, and anchored at a comma: no line, however made, takes more than one pass.
_LABEL = re.compile(r'(?:^|,)\s*+([A-Za-z_]\w*+)="((?:[^"\\]|\\.)*+)"', re.ASCII)
_MOST_LINE = 4096
_MOST_GPUS = 64
_MOST_MIB = 1 << 24
"""16 TiB: the library writes "no value" as numbers near 2^63."""
_MOST_PODS = 1024
_AT_ONCE = 16
_IDLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What an exporter says of one GPU.

    Attributes:
        index: As its driver counts; None when it does not say. uuid: empty when it does not say.
        percent: Of the time in which something ran on it, 0 to 100. used_bytes, free_bytes: of its memory.
    """

    index: int | None
    uuid: str
    percent: float | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None


Samples = Mapping[str, tuple[Sample, ...]]
"""What was measured, by node."""


def parse(text: str) -> tuple[Sample, ...]:
    """Read the lines that tell of utilisation and memory out of Prometheus' text; all else is passed over."""
    found: dict[tuple[int | None, str], Sample] = {}
    for line in text.split("\n"):
        name, _, rest = line.partition("{")
        if name not in (_PERCENT, _USED, _FREE) or len(line) > _MOST_LINE:
            continue
        inside, _, after = rest.rpartition("}")
        labels = dict(_LABEL.findall(inside))
        value = _finite(after.split(maxsplit=1)[:1])
        key = _index(labels.get("gpu", "")), labels.get("UUID", "")
        if value is None or key == (None, "") or labels.get("GPU_I_ID"):  # a MIG slice is not the whole GPU
            continue
        if key not in found and len(found) >= _MOST_GPUS:
            continue
        sample = found.get(key) or Sample(*key)
        if name == _PERCENT and value <= 100:
            found[key] = replace(sample, percent=value)
        elif name == _USED and value <= _MOST_MIB:
            found[key] = replace(sample, used_bytes=int(value) << 20)
        elif name == _FREE and value <= _MOST_MIB:
            found[key] = replace(sample, free_bytes=int(value) << 20)
    return tuple(found.values())


def uses(devices: NodeDevices, samples: Iterable[Sample]) -> tuple[GpuUse, ...]:
    """What is in use of the GPUs of a node; samples of GPUs that it does not have are left out."""
    gpus = {gpu.index: gpu for gpu in devices.gpus if not gpu.is_cpu}
    found: dict[int, GpuUse] = {}
    for one in samples:
        index = devices.uuids.get(one.uuid, one.index)
        gpu = gpus.get(index) if index is not None else None
        if gpu is None or (gpu.uuid and one.uuid and gpu.uuid != one.uuid):
            continue
        is_whole = one.used_bytes is not None and one.free_bytes is not None
        total = (one.used_bytes or 0) + (one.free_bytes or 0) if is_whole else 0
        found[gpu.index] = GpuUse(gpu.index, one.percent, one.used_bytes, gpu.memory_bytes or total)
    return tuple(found[index] for index in sorted(found))


def exporters(pods: Iterable[PodStruct]) -> list[PodStruct]:
    """Those of the pods that are exporters and can be asked; one for each node."""
    return list({pod.spec.node_name: pod for pod in pods if _is_exporter(pod)}.values())[:_MOST_PODS]


async def read(api: Api, pods: Iterable[PodStruct], seconds: float) -> Samples:
    """Ask exporters, by node; those that may not be asked, do not answer or know no GPU are left out.

    Args:
        seconds: Longest time for all of them together; what has come by then counts.
    """
    gate = asyncio.Semaphore(_AT_ONCE)
    found: dict[str, tuple[Sample, ...]] = {}

    async def ask(pod: PodStruct) -> None:
        async with gate:
            if samples := parse(await _text(api, pod)):
                found[pod.spec.node_name or ""] = samples

    tasks = [asyncio.create_task(ask(pod)) for pod in pods]
    if not tasks:
        return found
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


async def _text(api: Api, pod: PodStruct) -> str:
    """What an exporter says; empty when it says nothing that can be used."""
    path = KINDS["Pod"].path(pod.metadata.namespace, f"{pod.metadata.name}:{PORT}", "proxy/metrics")
    body = bytearray()
    try:
        async with aclosing(api.stream(path, idle_timeout_seconds=_IDLE_SECONDS)) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > MOST_BYTES:
                    return ""
    except ApiError:
        return ""
    return body.decode(errors="replace")


def _is_exporter(pod: PodStruct) -> bool:
    labels = pod.metadata.labels
    return (
        labels is not None
        and any(labels.get(key) == value for key, value in _MARKS)
        and bool(pod.spec.node_name)
        and pod.status.phase == Phase.RUNNING
        and pod.metadata.deletion_timestamp is None
    )


def _finite(words: Iterable[str]) -> float | None:
    """The number in the first word, if it is one and neither negative nor endless."""
    for word in words:
        try:
            value = float(word)
        except ValueError:
            return None
        return value if math.isfinite(value) and value >= 0 else None
    return None


def _index(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 3 else None
