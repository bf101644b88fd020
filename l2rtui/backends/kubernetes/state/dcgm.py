"""Metrics of dcgm-exporter: utilisation, memory, power and temperature, read through the API server's pod proxy.

Kubernetes itself does not measure GPUs. The exporter runs on each GPU node; its pods are already watched, and a GET
on ``pods/NAME:9400/proxy/metrics`` reads it. Its output is untrusted: size and counts are bounded, and malformed
lines are skipped silently, as a figure on a screen is not worth a failure.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.api.structs import PodStruct
from l2rtui.backends.kubernetes.state.node_devices import NodeDevices
from l2rtui.domain.node import GpuUse
from l2rtui.domain.status import Phase

MOST_BYTES: Final = 4 << 20
"""Maximum size of one response; an exporter of eight GPUs sends about 40 KiB."""
PORT: Final = 9400
_MARKS: Final = (
    ("app.kubernetes.io/name", "dcgm-exporter"),  # its own chart and manifest
    ("app", "nvidia-dcgm-exporter"),  # NVIDIA's GPU operator
    ("app", "dcgm-exporter"),
)
# Possessive quantifiers, anchored at a comma: no line can cause backtracking.
_LABEL = re.compile(r'(?:^|,)\s*+([A-Za-z_]\w*+)="((?:[^"\\]|\\.)*+)"', re.ASCII)
_MOST_LINE = 4096
_MOST_GPUS = 64
# DCGM writes "no value" as a number of at least 2^47 (dcgm_fields.h, DCGM_FP64_BLANK), beyond each of these.
_FIELDS: Final[Mapping[str, tuple[str, float, Callable[[float], float]]]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("percent", 100, float),
    "DCGM_FI_DEV_FB_USED": ("used_bytes", 1 << 24, lambda mebibytes: int(mebibytes) << 20),
    "DCGM_FI_DEV_FB_FREE": ("free_bytes", 1 << 24, lambda mebibytes: int(mebibytes) << 20),
    "DCGM_FI_DEV_POWER_USAGE": ("watts", 1e5, float),
    "DCGM_FI_DEV_GPU_TEMP": ("celsius", 1e3, float),
}
"""Names of metrics: field of a sample, largest valid number, and its conversion."""
_MOST_PODS = 1024
_AT_ONCE = 16
_IDLE_SECONDS = 5.0


class GpuSample(Struct, frozen=True):
    """Measurement of one GPU.

    Attributes:
        index: Index in the driver's order; None if not given. uuid: Empty if not given.
        percent: Share of time in which a kernel ran, 0 to 100. used_bytes, free_bytes: Its memory.
        watts: Power draw. celsius: Temperature of the chip.
        pods: Namespace and name of the pods to which the kubelet assigned it.
    """

    index: int | None
    uuid: str
    percent: float | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    watts: float | None = None
    celsius: float | None = None
    pods: frozenset[tuple[str, str]] = frozenset()


Samples = Mapping[str, tuple[GpuSample, ...]]
"""Samples by node."""


def parse_metrics(text: str) -> tuple[GpuSample, ...]:
    """Parse the metrics of ``_FIELDS`` from Prometheus' text format; all other lines are skipped."""
    samples: dict[tuple[int | None, str], GpuSample] = {}
    for line in text.split("\n"):
        name, _, rest = line.partition("{")
        if name not in _FIELDS or len(line) > _MOST_LINE:
            continue
        field, most, converted = _FIELDS[name]
        inside, _, after = rest.rpartition("}")
        labels = dict(_LABEL.findall(inside))
        value = _finite(after.split(maxsplit=1)[:1])
        key = _index(labels.get("gpu", "")), labels.get("UUID", "")
        if value is None or key == (None, "") or labels.get("GPU_I_ID"):  # a MIG slice is not the whole GPU
            continue
        if (key not in samples and len(samples) >= _MOST_GPUS) or value > most:
            continue
        figure: Any = converted(value)
        before = samples.get(key) or GpuSample(*key)
        # A Prometheus that relabels calls the pods exported_pod; the exporter itself calls them pod.
        pod = (
            labels.get("exported_namespace") or labels.get("namespace", ""),
            labels.get("exported_pod") or labels.get("pod", ""),
        )
        pods = before.pods | {pod} if all(pod) else before.pods
        samples[key] = replace(before, **{field: figure}, pods=pods)
    return tuple(samples.values())


def gpu_uses(devices: NodeDevices, samples: Iterable[GpuSample]) -> tuple[GpuUse, ...]:
    """Map samples to the GPUs of a node; samples of other GPUs are left out."""
    gpus = {gpu.index: gpu for gpu in devices.gpus if not gpu.is_cpu}
    use_by_index: dict[int, GpuUse] = {}
    for sample in samples:
        # By UUID if the node publishes them: the exporter's container may see the GPUs in another order.
        index = devices.uuids.get(sample.uuid, sample.index)
        gpu = gpus.get(index) if index is not None else None
        if gpu is None or (gpu.uuid and sample.uuid and gpu.uuid != sample.uuid):
            continue
        is_complete = sample.used_bytes is not None and sample.free_bytes is not None
        total = (sample.used_bytes or 0) + (sample.free_bytes or 0) if is_complete else 0
        memory = gpu.memory_bytes or total
        figures = (sample.percent, sample.used_bytes, memory, sample.watts, sample.celsius)
        use_by_index[gpu.index] = GpuUse(gpu.index, *figures)
    return tuple(use_by_index[index] for index in sorted(use_by_index))


def pods_by_gpu(samples: Samples, devices: Mapping[str, NodeDevices]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the indices of the GPUs that each pod was assigned, if exporters report them; lowest first."""
    indices: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for node, of_node in samples.items():
        uuids = devices[node].uuids if node in devices else {}
        for sample in of_node:
            index = uuids.get(sample.uuid, sample.index)
            if index is not None:
                for pod in sample.pods:
                    indices[pod].add(index)
    return {pod: tuple(sorted(own)) for pod, own in indices.items()}


def exporters(pods: Iterable[PodStruct]) -> list[PodStruct]:
    """Select running exporter pods, one for each node."""
    return list({pod.spec.node_name: pod for pod in pods if _is_exporter(pod)}.values())[:_MOST_PODS]


async def read_samples(api: Api, pods: Iterable[PodStruct], seconds: float) -> Samples:
    """Read exporters; exporters that are forbidden, silent or without GPUs are left out.

    Args:
        seconds: Timeout for all of them together; samples that arrived by then are returned.
    """
    gate = asyncio.Semaphore(_AT_ONCE)
    samples_by_node: dict[str, tuple[GpuSample, ...]] = {}

    async def ask(pod: PodStruct) -> None:
        async with gate:
            if samples := parse_metrics(await _text(api, pod)):
                samples_by_node[pod.spec.node_name or ""] = samples

    tasks = [asyncio.create_task(ask(pod)) for pod in pods]
    if not tasks:
        return samples_by_node
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds)
        for task in done:
            task.result()  # _text() handles ApiError: anything else is a bug and must surface
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return samples_by_node


async def _text(api: Api, pod: PodStruct) -> str:
    """Return the text of an exporter; empty after an error or if it is too long."""
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


def _finite(tokens: Iterable[str]) -> float | None:
    """Return the number in the first token if it is finite and not negative."""
    for token in tokens:
        try:
            value = float(token)
        except ValueError:
            return None
        return value if math.isfinite(value) and value >= 0 else None
    return None


def _index(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 3 else None
