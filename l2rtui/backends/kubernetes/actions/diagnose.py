"""Diagnosis of a cluster: permissions, slot Leases, quotas, and whether a pod pinned by variables gets its GPU.

An administrator can disable the variables (``accept-nvidia-visible-devices-envvar-when-unprivileged`` of NVIDIA's
container runtime); pods then run without a GPU and without an error. Only a pod can detect that, so a probe pod
with the configured image is created on a node with GPUs, and always deleted afterwards.

Permissions are checked on the server, also before an action is attempted. Each check is a SelfSubjectAccessReview,
which every user may create (``system:basic-user``).
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import slot_races
from l2rtui.backends.kubernetes.actions.capacity_checks import quota_usage
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.manifests.gpu_binding import CUDA, NVIDIA, WHOLE_GPU
from l2rtui.backends.kubernetes.manifests.pod_parts import helper_pod
from l2rtui.backends.kubernetes.rights import Right, RightRow, RoleScope, needed, role_hint, rows_of
from l2rtui.backends.kubernetes.state.visibility import gone_namespaces
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.preflight import Finding, Severity

ACTIONS: Final = ("launch", "kill", "scale", "destroy", "exec", "forward", "reserve")
"""Actions that the app disables if a permission is missing."""
NEEDS: Final[Mapping[str, tuple[Right, ...]]] = MappingProxyType(
    {action: needed((RoleScope.RESEARCHER,), action) for action in ACTIONS}
)
"""Permissions that each action needs in addition to a viewer's."""


async def missing_rights(api: Api, rights: Sequence[Right], namespace: str | None) -> list[Right]:
    """Return the permissions that the user lacks, in their order.

    Args:
        namespace: None checks all namespaces.

    Raises:
        ApiError: The server does not respond.
    """
    permitted = await asyncio.gather(
        *(api.can(right.verb, right.kind, namespace, subresource=right.subresource) for right in rights)
    )
    return [right for right, is_permitted in zip(rights, permitted, strict=True) if not is_permitted]


async def denied(api: Api, namespace: str) -> dict[str, str]:
    """Return why actions are not permitted, by name; permitted actions are left out. Raises ApiError without a
    response.
    """
    # Several actions need the same permission: each is checked once.
    needed = list(dict.fromkeys(need for needs in NEEDS.values() for need in needs))
    missing = set(await missing_rights(api, needed, namespace))
    return {
        action: f"in {namespace} you may not {', '.join(str(need) for need in needs if need in missing)}"
        for action, needs in NEEDS.items()
        if missing.intersection(needs)
    }


PROBE_SECONDS: Final = 60.0
# Prefix of the probe's own lines: images may print a banner before the command runs.
_MARK: Final = "l2r-probe"
_SCRIPT: Final = (
    f'for f in /dev/nvidia[0-9]*; do [ -e "$f" ] && echo "{_MARK} device $f"; done; '
    f'command -v nvidia-smi >/dev/null && nvidia-smi -L | sed "s/^/{_MARK} smi /"; echo "{_MARK} end"'
)
_OF_RUNS: Final = (RoleScope.VIEWER, RoleScope.RESEARCHER)
_WIDER: Final = (Right("list", "Node"), Right("list", "Pod"))
_OWN_FINDING: Final = ("Lease",)
"""Kinds whose missing permissions are reported as separate findings."""


async def diagnose(context: ClusterContext) -> tuple[Finding, ...]:
    """Return what works in this cluster, what does not, and what to do; ApiError when the server is silent."""
    api, namespace = context.api, context.namespace
    nodes = (await context.snapshot()).nodes.values()
    major, minor = api.server_version
    server = f"Kubernetes {major}.{minor} at {api.server}, context {api.context or 'none'}"
    findings = [Finding(Severity.OK, "server", server)]
    gone = await gone_namespaces(api)
    hint = "Choose another namespace with -n, or ask an administrator for this one."
    findings += [Finding(Severity.REFUSAL, "namespace", sentence.rstrip("."), hint) for sentence in gone]
    findings += await _rights(api, namespace)
    findings.append(await slot_races.protection(context))
    findings += await quota_usage(api, namespace)
    findings.append(await _binding(api, namespace, tuple(nodes), context.settings.image))
    return tuple(findings)


async def _rights(api: Api, namespace: str) -> list[Finding]:
    missing = await missing_rights(api, needed(_OF_RUNS), namespace)
    creations = {right for right in needed((RoleScope.RESEARCHER,)) if right.verb == "create"}
    # A viewer lacks every right to create, and has been given this Role on purpose.
    is_viewer = creations.issubset(missing) and not set(missing).intersection(needed((RoleScope.VIEWER,)))
    if is_viewer:
        sentence = f"in {namespace} you may see runs and their logs; launch, kill and destroy need more rights"
        findings = [Finding(Severity.OK, "rights", sentence, role_hint(missing))]
    elif missing:
        sentence = f"in {namespace} you may not {', '.join(map(str, missing))}"
        findings = [Finding(Severity.WARNING, "rights", sentence, role_hint(missing))]
    else:
        findings = [Finding(Severity.OK, "rights", f"all that runs need in {namespace}")]
    findings += await _optional_rights(api, namespace, (RoleScope.VIEWER,) if is_viewer else _OF_RUNS)
    # Without these the pods of other users are invisible, and their slots would look free.
    for right in await missing_rights(api, _WIDER, None):
        sentence = f"you may not {right} of the whole cluster: use by others reads unknown"
        findings.append(Finding(Severity.WARNING, "ledger", sentence, role_hint([right], RoleScope.CLUSTER)))
    return findings


async def _optional_rights(api: Api, namespace: str, parts: tuple[RoleScope, ...]) -> list[Finding]:
    """Return a finding for each feature of these Roles that is lost with permissions that few commands need."""
    by_right: dict[Right, list[RightRow]] = {}
    for row in rows_of(*parts):
        by_right.setdefault(row.right, []).append(row)
    optional = [right for right, rows in by_right.items() if all(row.is_optional for row in rows)]
    optional = [right for right in optional if right.kind not in _OWN_FINDING and await _is_served(api, right.kind)]
    rights_by_loss: dict[str, dict[Right, None]] = {}
    for right in await missing_rights(api, optional, namespace):
        for row in by_right[right]:
            if loss := row.without or (f"needed for {row.only_for}" if row.only_for else ""):
                rights_by_loss.setdefault(loss, {})[right] = None
    return [
        Finding(
            Severity.WARNING,
            "optional rights",
            f"in {namespace} you may not {', '.join(map(str, rights))}: {loss}",
            role_hint(rights),
        )
        for loss, rights in rights_by_loss.items()
    ]


async def _is_served(api: Api, kind: str) -> bool:
    """Return whether the server has a kind that does not exist on every server, such as the kind of an add-on."""
    path = KINDS[kind]
    try:
        return path.is_everywhere or bool(await api.group_versions(path.group))
    except ApiError as error:
        if error.is_forbidden:  # a hardened server hides its groups: the permission is checked anyway
            return True
        raise


async def _binding(api: Api, namespace: str, nodes: tuple[Node, ...], image: str) -> Finding:
    subject = "binding env"
    open_nodes = (node for node in nodes if node.ready and node.is_schedulable)
    gpus = [node.gpus[0] for node in open_nodes if node.gpus and not node.gpus[0].is_cpu]
    if not nodes:
        return Finding(Severity.OK, subject, "not probed: no node can be seen")
    if not gpus:
        return Finding(Severity.OK, subject, "not probed: no node that is ready has a GPU")
    if not image:
        advice = "Set `image`, then `l2rtui check` again."
        return Finding(Severity.OK, subject, "not probed: no image is set", advice)
    if not await api.can("create", "Pod", namespace):
        return Finding(Severity.WARNING, subject, f"not probed: you may not create pods in {namespace}")
    return await probe_binding(api, namespace, gpus[0], image)


async def probe_binding(api: Api, namespace: str, gpu: Gpu, image: str) -> Finding:
    """Start a pod that is pinned to a GPU by its variables, and read the devices that it sees.

    Raises:
        ApiError: The server does not respond.
    """
    subject, name = "binding env", f"{_MARK}-{uuid.uuid4().hex[:8]}"
    try:
        await api.create(_probe_pod(name, namespace, gpu, image))
        phase, why = await _wait_ended(api, namespace, name)
        if phase != "Succeeded":
            return Finding(Severity.WARNING, subject, f"not known: the probe on {gpu.node} is {phase}{why}")
        raw = await api.request("GET", KINDS["Pod"].path(namespace, name, "log"))
    except ApiError as error:
        if error.is_unreachable:
            raise
        return Finding(Severity.WARNING, subject, f"not known: {error.message.rstrip('.')}", error.hint)
    finally:
        # Shielded: a cancelled check must not leave its probe behind.
        with suppress(ApiError):
            await asyncio.shield(asyncio.ensure_future(api.delete("Pod", namespace, name, grace_seconds=0)))
    return interpret_probe(raw.decode("utf-8", "replace"), gpu)


def interpret_probe(log: str, gpu: Gpu) -> Finding:
    """Interpret the output of the probe."""
    subject, probe = "binding env", f"a pod with {NVIDIA}={gpu.uuid or gpu.index} on {gpu.node}"
    lines = [line.split(maxsplit=2)[1:] for line in log.splitlines() if line.startswith(f"{_MARK} ")]
    # The last line is missing if the log was cut or the image has no shell.
    if ["end"] not in lines:
        return Finding(Severity.WARNING, subject, f"not known: {probe} gave no answer that can be read")
    paths = (rest[0] for kind, *rest in lines if kind == "device")
    devices = sorted({int(number) for path in paths for number in re.findall(r"\d+$", path)})
    if not devices:
        sentence = f"no GPU device appears: {probe} finds no /dev/nvidia*"
        hint = (
            "The variables are switched off here, or the node's runtime is not NVIDIA's: choose another --binding."
        )
        return Finding(Severity.WARNING, subject, sentence, hint)
    device_list = ", ".join(f"/dev/nvidia{number}" for number in devices)
    if devices == [gpu.index]:
        sentence = f"it works: {probe} sees {device_list} alone, which CUDA counts as 0"
        return Finding(Severity.OK, subject, sentence, "Keep `cuda_index` at zero.")
    if gpu.index in devices:
        sentence = f"{probe} sees {device_list}: other GPUs are not hidden from it"
        return Finding(Severity.WARNING, subject, sentence, "Set `cuda_index` to same.")
    sentence = f"{probe} sees {device_list}, which is another GPU"
    return Finding(Severity.WARNING, subject, sentence, "Choose another --binding.")


def _probe_pod(name: str, namespace: str, gpu: Gpu, image: str) -> dict[str, Any]:
    value = gpu.uuid or str(gpu.index)
    container = {
        "name": "probe",
        "image": image,
        "command": ["sh", "-c", _SCRIPT],
        "env": [{"name": NVIDIA, "value": value}, {"name": CUDA, "value": value}],
    }
    deadline = int(PROBE_SECONDS)
    pod = helper_pod(name, namespace, "probe", container, user=1000, deadline_seconds=deadline, owns_volumes=False)
    # Pinned like the pods of a run, and tolerating the usual taint of GPU nodes.
    pod["spec"] |= {
        "nodeSelector": {labels.HOSTNAME: gpu.node},
        "tolerations": [{"key": WHOLE_GPU, "operator": "Exists", "effect": "NoSchedule"}],
    }
    return pod


async def _wait_ended(api: Api, namespace: str, name: str) -> tuple[str, str]:
    """Wait until the probe has ended or timed out; return its phase, and why it waits."""
    until = asyncio.get_running_loop().time() + PROBE_SECONDS
    while True:
        status = (await api.read("Pod", namespace, name)).get("status") or {}
        phase = str(status.get("phase", "Pending"))
        if phase in ("Succeeded", "Failed") or asyncio.get_running_loop().time() > until:
            states = [
                (container.get("state") or {}).get("waiting") or {}
                for container in status.get("containerStatuses") or ()
            ]
            reasons = [str(state["reason"]) for state in states if state.get("reason")]
            return phase, f": {', '.join(reasons)}" if reasons else ""
        await asyncio.sleep(0.3)
