"""What works in this cluster: rights, claims, and whether a pod pinned by variables gets its GPU.

An administrator can switch the variables off; pods then run silently without a GPU. Only a pod can tell, so one is
made, with the image that runs use, on a node with GPUs; it is removed again whatever happens.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.bindings import CUDA, NVIDIA, WHOLE_GPU
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.backends.kubernetes.launch import can_claim
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.preflight import Finding, Weight

PROBE_SECONDS: Final = 60.0
_MARK: Final = "l2r-probe"
_SCRIPT: Final = (
    f'for f in /dev/nvidia[0-9]*; do [ -e "$f" ] && echo "{_MARK} device $f"; done; '
    f'command -v nvidia-smi >/dev/null && nvidia-smi -L | sed "s/^/{_MARK} smi /"; echo "{_MARK} end"'
)
_NEEDED: Final = (
    ("create", "ConfigMap"),
    ("create", "Secret"),
    ("create", "Service"),
    ("create", "Job"),
    ("create", "ReplicaSet"),
    ("patch", "ReplicaSet"),
    ("delete", "ConfigMap"),
    ("delete", "Pod"),
    ("list", "Pod"),
    ("watch", "Pod"),
)
_WIDER: Final = (("list", "Node"), ("list", "Pod"))


async def diagnose(
    api: Api, *, namespace: str, nodes: Iterable[Node], claims_namespace: str = "", image: str = ""
) -> tuple[Finding, ...]:
    """Say what works here, what does not, and what to do about it.

    Args:
        image: For the probe of binding mode ``env``; without one it is not probed.

    Raises:
        ApiError: the server does not answer.
    """
    major, minor = api.server_version
    found = [
        Finding(Weight.OK, "server", f"Kubernetes {major}.{minor} at {api.server}, context {api.context or 'none'}")
    ]
    found += await _rights(api, namespace)
    if await can_claim(api, claims_namespace or namespace):
        found.append(
            Finding(Weight.OK, "claims", f"slots are claimed through Leases in {claims_namespace or namespace}")
        )
    else:
        sentence = (
            f"you may not use Leases in {claims_namespace or namespace}: slots are not claimed before a launch"
        )
        found.append(Finding(Weight.WARNING, "claims", sentence, "Ask for the Role in manifests/rbac.yaml."))
    found.append(await _binding(api, namespace, tuple(nodes), image))
    return tuple(found)


async def _rights(api: Api, namespace: str) -> list[Finding]:
    answers = await asyncio.gather(*(api.can(verb, kind, namespace) for verb, kind in _NEEDED))
    missing = [
        f"{verb} {KINDS[kind].plural}" for (verb, kind), yes in zip(_NEEDED, answers, strict=True) if not yes
    ]
    hint = "Ask an administrator for the Role in manifests/rbac.yaml."
    if missing:
        found = [Finding(Weight.WARNING, "rights", f"in {namespace} you may not {', '.join(missing)}", hint)]
    else:
        found = [Finding(Weight.OK, "rights", f"all that runs need in {namespace}")]
    wider = await asyncio.gather(*(api.can(verb, kind, None) for verb, kind in _WIDER))
    for (verb, kind), yes in zip(_WIDER, wider, strict=True):
        if not yes:
            sentence = f"you may not {verb} {KINDS[kind].plural} of the whole cluster: use by others reads unknown"
            found.append(
                Finding(Weight.WARNING, "ledger", sentence, "Ask for the ClusterRole in manifests/rbac.yaml.")
            )
    return found


async def _binding(api: Api, namespace: str, nodes: tuple[Node, ...], image: str) -> Finding:
    subject = "binding env"
    gpus = [
        node.gpus[0]
        for node in nodes
        if node.ready and node.is_schedulable and node.gpus and not node.gpus[0].is_cpu
    ]
    if not gpus:
        return Finding(Weight.OK, subject, "not probed: no node that is ready has a GPU")
    if not image:
        return Finding(Weight.OK, subject, "not probed: no image is set", "Set `image`, then `l2rtui check` again.")
    if not await api.can("create", "Pod", namespace):
        return Finding(Weight.WARNING, subject, f"not probed: you may not create pods in {namespace}")
    return await probe_binding(api, namespace, gpus[0], image)


async def probe_binding(api: Api, namespace: str, gpu: Gpu, image: str) -> Finding:
    """Start a pod that is pinned to a GPU by its variables, and see which devices it finds.

    Raises:
        ApiError: the server does not answer.
    """
    subject, name = "binding env", f"{_MARK}-{uuid.uuid4().hex[:8]}"
    try:
        await api.create(_pod(name, namespace, gpu, image))
        phase, why = await _ended(api, namespace, name)
        if phase != "Succeeded":
            return Finding(Weight.WARNING, subject, f"not known: the probe on {gpu.node} is {phase}{why}")
        raw = await api.request("GET", KINDS["Pod"].path(namespace, name, "log"))
    except ApiError as error:
        if error.is_unreachable:
            raise
        return Finding(Weight.WARNING, subject, f"not known: {error.message.rstrip('.')}", error.hint)
    finally:
        with suppress(ApiError):
            await asyncio.shield(asyncio.ensure_future(api.delete("Pod", namespace, name, grace_seconds=0)))
    return judge(raw.decode("utf-8", "replace"), gpu)


def judge(log: str, gpu: Gpu) -> Finding:
    """What the output of the probe means."""
    subject, where = "binding env", f"a pod with {NVIDIA}={gpu.uuid or gpu.index} on {gpu.node}"
    lines = [line.split(maxsplit=2)[1:] for line in log.splitlines() if line.startswith(f"{_MARK} ")]
    if ["end"] not in lines:
        return Finding(Weight.WARNING, subject, f"not known: {where} gave no answer that can be read")
    devices = sorted(
        {int(number) for kind, *rest in lines if kind == "device" for number in re.findall(r"\d+$", rest[0])}
    )
    if not devices:
        sentence = f"no GPU device appears: {where} finds no /dev/nvidia*"
        hint = (
            "The variables are switched off here, or the node's runtime is not NVIDIA's: choose another --binding."
        )
        return Finding(Weight.WARNING, subject, sentence, hint)
    shown = ", ".join(f"/dev/nvidia{number}" for number in devices)
    if devices == [gpu.index]:
        sentence = f"it works: {where} sees {shown} alone, which CUDA counts as 0"
        return Finding(Weight.OK, subject, sentence, "Keep `cuda_index` at zero.")
    if gpu.index in devices:
        sentence = f"{where} sees {shown}: other GPUs are not hidden from it"
        return Finding(Weight.WARNING, subject, sentence, "Set `cuda_index` to same.")
    return Finding(
        Weight.WARNING, subject, f"{where} sees {shown}, which is another GPU", "Choose another --binding."
    )


def _pod(name: str, namespace: str, gpu: Gpu, image: str) -> dict[str, Any]:
    value = gpu.uuid or str(gpu.index)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {labels.APP_MANAGED_BY: labels.MANAGED_BY, labels.APP_COMPONENT: "probe"},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(PROBE_SECONDS),
            "automountServiceAccountToken": False,
            "nodeSelector": {labels.HOSTNAME: gpu.node},
            "tolerations": [{"key": WHOLE_GPU, "operator": "Exists", "effect": "NoSchedule"}],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "probe",
                    "image": image,
                    "command": ["sh", "-c", _SCRIPT],
                    "env": [{"name": NVIDIA, "value": value}, {"name": CUDA, "value": value}],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


async def _ended(api: Api, namespace: str, name: str) -> tuple[str, str]:
    """Phase of the probe when it has ended or the time is over, and why it is so."""
    until = asyncio.get_running_loop().time() + PROBE_SECONDS
    while True:
        status = (await api.read("Pod", namespace, name)).get("status") or {}
        phase = str(status.get("phase", "Pending"))
        if phase in ("Succeeded", "Failed") or asyncio.get_running_loop().time() > until:
            states = [
                (one.get("state") or {}).get("waiting") or {} for one in status.get("containerStatuses") or ()
            ]
            reasons = [str(state["reason"]) for state in states if state.get("reason")]
            return phase, f": {', '.join(reasons)}" if reasons else ""
        await asyncio.sleep(0.3)
