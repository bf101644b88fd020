"""What only the cluster can tell about a plan: rights, a dry run of every object, images, storage, quotas, room.

Nothing is created: objects are sent with ``dryRun=All``, and so is one pod of each set, since quotas, limits and
Pod Security judge pods and not the controllers that make them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Final

from l2rtui.backends.kubernetes import bindings, checkroom, labels, render, sidecars
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.backends.kubernetes.launch import can_claim
from l2rtui.backends.kubernetes.podspec import ServerFacts
from l2rtui.domain.containers import Binding
from l2rtui.domain.node import Node, Taint
from l2rtui.domain.plan import LaunchPlan, RunPlan
from l2rtui.domain.preflight import Finding, Weight
from l2rtui.domain.sidecar import sidecar_of, socket_problem
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import SetSpec
from l2rtui.errors import RefusedError

_AT_ONCE: Final = 8
_MOST_TRIED: Final = 3
"""Runs of one launch whose objects are all tried; of more, the first and the last."""
_PLUGINS: Final = (Binding.DEVICE_PLUGIN, Binding.SHARED, Binding.HAMI)
_BLOCKING: Final = ("NoSchedule", "NoExecute")
_IMAGE: Final = re.compile(
    r"([a-zA-Z0-9][-a-zA-Z0-9.]*(:\d+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
Manifest = dict[str, Any]


async def check_plan(
    api: Api,
    plan: LaunchPlan,
    *,
    namespace: str,
    server: ServerFacts,
    snapshot: ClusterSnapshot,
    claims_namespace: str = "",
) -> tuple[Finding, ...]:
    """Judge a plan by what the cluster says; creates nothing.

    Raises:
        ApiError: the server does not answer.
    """
    findings = [finding for run in plan.runs for finding in bindings.explain(run, server.cuda)]
    findings += _images(plan)
    findings += _security(plan)
    findings += _simulators(plan, server.version)
    findings += _nodes(plan, snapshot)
    try:
        rendered = [render.run_objects(run, namespace=namespace, token="", server=server) for run in plan.runs]
    except RefusedError as error:
        return (*findings, Finding(Weight.REFUSAL, "binding", error.message.rstrip("."), error.hint))
    objects = [manifest for manifests in rendered for manifest in manifests]
    parts: list[Awaitable[Iterable[Finding]]] = [
        _rights(api, objects, namespace),
        _dry_run(api, objects, namespace, snapshot),
        _claims(api, plan, claims_namespace or namespace),
        _devices(api, plan),
        checkroom.secrets_and_accounts(api, objects, namespace),
        checkroom.volumes(api, objects, namespace),
        checkroom.quotas(api, objects, namespace),
        checkroom.room(api, plan, snapshot),
    ]
    for found in await asyncio.gather(*parts):
        findings += found
    return tuple(findings)


# --- what the plan itself says ------------------------------------------------------------------------------


def _images(plan: LaunchPlan) -> Iterable[Finding]:
    images: dict[str, str] = {}
    for run in plan.runs:
        for one in run.spec.sets:
            images.setdefault(one.pod.image or run.spec.image, f"{run.spec.name}/{one.name}")
            if (beside := sidecar_of(run.spec, one)) is not None and beside.image:
                images.setdefault(beside.image, f"{run.spec.name}/{one.name}: simulator")
    for image, subject in images.items():
        if not image:
            hint = "Write `image:` in the spec, or --set image=NAME."
            yield Finding(Weight.REFUSAL, subject, "it names no image, and pods are made from one", hint)
        elif not _IMAGE.fullmatch(image):
            yield Finding(Weight.REFUSAL, subject, f"{image!r} is no image name", "Such as registry.example/l2r:1.")
        else:
            yield Finding(Weight.OK, subject, f"image {image}")


def _security(plan: LaunchPlan) -> Iterable[Finding]:
    seen: set[tuple[str, ...]] = set()
    for run in plan.runs:
        for one in run.spec.sets:
            reasons = one.pod.loosenings()
            if reasons and not one.template and reasons not in seen:  # of a template the import has told it
                seen.add(reasons)
                sentence = f"its pods do not meet Pod Security restricted: {', '.join(reasons)}"
                yield Finding(Weight.WARNING, f"{run.spec.name}/{one.name}", sentence)


def _simulators(plan: LaunchPlan, version: tuple[int, int]) -> Iterable[Finding]:
    """What the plan has to say of the simulators beside workers."""
    for run in plan.runs:
        for one in run.spec.sets:
            if problem := socket_problem(run.spec, one):
                hint = "--set train.environment_options.simulator.kind=sidecar, or reference."
                yield Finding(Weight.REFUSAL, f"{run.spec.name}/{one.name}", problem, hint)
    for run in plan.runs:
        beside = [pod for pod in run.pods if sidecar_of(run.spec, pod.set_spec) is not None]
        if not beside:
            continue
        how = (
            "as sidecars"
            if version >= sidecars.NATIVE_SINCE
            else "as second containers, which end with the workers"
        )
        yield Finding(Weight.OK, run.spec.name, f"{len(beside)} simulators stand beside their workers {how}")
        blind = [pod for pod in beside if pod.gpu is not None and pod.set_spec.pod.binding in _PLUGINS]
        if blind:
            mode = blind[0].set_spec.pod.binding
            sentence = f"binding {mode} gives the GPU to the worker's container, so its simulator has none"
            hint = "Choose env or dra, with which both see it, where the simulator renders on the GPU."
            yield Finding(Weight.WARNING, run.spec.name, sentence, hint)


def _nodes(plan: LaunchPlan, snapshot: ClusterSnapshot) -> Iterable[Finding]:
    told: set[str] = set()
    for run in plan.runs:
        for pod in run.pods:
            node = snapshot.nodes.get(pod.node)
            if node is None:
                continue
            for sentence, hint in _node_problems(node, pod.set_spec, has_gpu=pod.gpu is not None):
                if sentence not in told:
                    told.add(sentence)
                    yield Finding(Weight.REFUSAL, node.name, sentence, hint)
    names = sorted({pod.node for run in plan.runs for pod in run.pods if pod.node})
    if names and not told:
        yield Finding(Weight.OK, "nodes", f"{', '.join(names)}: ready, and open to these pods")


def _node_problems(node: Node, one: SetSpec, *, has_gpu: bool) -> Iterable[tuple[str, str]]:
    if not node.ready:
        yield f"node {node.name} is not ready: {node.message or 'no reason given'}", "Choose another with --on."
    if not node.is_schedulable:
        yield f"node {node.name} is cordoned", f"`kubectl uncordon {node.name}`, or choose another with --on."
    for taint in node.taints:
        if taint.effect in _BLOCKING and not _is_tolerated(taint, one, has_gpu=has_gpu):
            shown = f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
            if not taint.key.startswith("node.kubernetes.io/"):  # those are said in other words above
                yield (
                    f"node {node.name} has the taint {shown}, which the set {one.name} does not tolerate",
                    "Write it under pod.tolerations.",
                )


def _is_tolerated(taint: Taint, one: SetSpec, *, has_gpu: bool) -> bool:
    own = has_gpu and not one.template and (taint.key, taint.effect) == (bindings.WHOLE_GPU, "NoSchedule")
    return own or any(
        wish.key in ("", taint.key) and wish.value in ("", taint.value) and wish.effect in ("", taint.effect)
        for wish in one.pod.tolerations
    )


# --- what the server says -----------------------------------------------------------------------------------


async def _rights(api: Api, objects: Sequence[Manifest], namespace: str) -> Iterable[Finding]:
    """Rights for this launch, and for what comes after it."""
    kinds = dict.fromkeys(str(manifest["kind"]) for manifest in objects)
    needed = [("create", kind) for kind in kinds]
    later = [("get", "ConfigMap"), ("list", "Pod"), *(("delete", kind) for kind in kinds)]
    asked = [*needed, *later]
    answers = await asyncio.gather(*(api.can(verb, kind, namespace) for verb, kind in asked))
    missing = [pair for pair, answer in zip(asked, answers, strict=True) if not answer]
    found = [
        Finding(
            Weight.REFUSAL if pair in needed else Weight.WARNING,
            f"right to {pair[0]} {KINDS[pair[1]].plural}",
            f"{api.user or 'you'} may not {pair[0]} {KINDS[pair[1]].plural} in {namespace}",
            "Ask an administrator for the Role in manifests/rbac.yaml.",
        )
        for pair in missing
    ]
    return found or [Finding(Weight.OK, "rights", f"all that this launch needs in {namespace}")]


async def _dry_run(
    api: Api, objects: Sequence[Manifest], namespace: str, snapshot: ClusterSnapshot
) -> Iterable[Finding]:
    """Let the server judge every object, and one pod of each set."""
    known = {run.name for run in snapshot.runs.values()}
    pods = list(_pods(objects)) if await api.can("create", "Pod", namespace) else []
    slots = asyncio.Semaphore(_AT_ONCE)

    async def judged(manifest: Manifest) -> Finding | None:
        async with slots:
            return await _judge(api, manifest)

    # A run that exists is told by preflight; its objects would all say so again.
    new = [one for one in objects if one["metadata"]["labels"][labels.RUN] not in known]
    runs = list(dict.fromkeys(one["metadata"]["labels"][labels.RUN] for one in new))
    tried = runs if len(runs) <= _MOST_TRIED else [runs[0], runs[-1]]  # seeds differ in names and in places alone
    others = [one for one in new if one["metadata"]["labels"][labels.RUN] not in tried]
    new = [one for one in new if one["metadata"]["labels"][labels.RUN] in tried]
    results, taken = await asyncio.gather(
        asyncio.gather(*map(judged, (*new, *pods))), _taken(api, others, namespace)
    )
    found: dict[str, Finding] = {one.sentence: one for one in (*results, *taken) if one is not None}
    if found:
        return list(found.values())
    also = " and a pod of each set" if pods else "; pods cannot be tried, since you may not create them"
    whose = f"all {len(new)} objects" if tried == runs else f"all objects of {tried[0]} and {tried[-1]}"
    return [Finding(Weight.OK, "dry run", f"the server accepts {whose}{also}")] if new else []


async def _taken(api: Api, objects: Sequence[Manifest], namespace: str) -> list[Finding]:
    """Which of these names somebody has already, told by one list of each kind."""
    wanted: dict[str, list[str]] = {}
    for one in objects:
        wanted.setdefault(one["kind"], []).append(one["metadata"]["name"])
    found = []
    for kind, names in wanted.items():
        try:
            there = {one["metadata"]["name"] for one in await api.list(kind, namespace)}
        except ApiError as error:
            if not error.is_forbidden:  # Secrets, most often: their owner's name tells enough
                raise
            continue
        found += [_is_there(kind, name) for name in names if name in there]
    return found


def _is_there(kind: str, name: str) -> Finding:
    subject = f"{kind} {name}"
    return Finding(
        Weight.REFUSAL, subject, f"{subject} is there already", "Choose another name with --name, or remove it."
    )


async def _judge(api: Api, manifest: Manifest) -> Finding | None:
    name = manifest["metadata"].get("name") or manifest["metadata"]["generateName"].rstrip("-")
    subject = f"{manifest['kind']} {name}"
    try:
        await api.create(manifest, dry_run=True)
    except ApiError as error:
        if error.is_taken:
            return _is_there(manifest["kind"], name)
        if "dry run" in error.detail or error.is_unreachable or error.status >= 500:
            return Finding(Weight.WARNING, subject, f"{manifest['kind']}s could not be tried: {error.detail}")
        return Finding(Weight.REFUSAL, subject, (error.detail or error.message).rstrip("."), error.hint)
    return None


def _pods(objects: Iterable[Manifest]) -> Iterable[Manifest]:
    """One pod of each set, as its controller would make it."""
    seen: set[tuple[str, str]] = set()
    for manifest in objects:
        template = manifest.get("spec", {}).get("template")
        if not template:
            continue
        found = manifest["metadata"]["labels"]
        key = (found["l2rtui.io/experiment"], found["l2rtui.io/set"])
        if key in seen:
            continue
        seen.add(key)
        meta = manifest["metadata"]
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **template["metadata"],
                "generateName": f"{meta['name']}-",
                "namespace": meta["namespace"],
            },
            "spec": template["spec"],
        }


async def _claims(api: Api, plan: LaunchPlan, claims_namespace: str) -> Iterable[Finding]:
    if not any(pod.seat.slots for run in plan.runs for pod in run.pods):
        return []
    if await can_claim(api, claims_namespace):
        return [Finding(Weight.OK, "claims", f"slots are claimed through Leases in {claims_namespace}")]
    sentence = (
        f"you may not use Leases in {claims_namespace}: slots are not claimed, and somebody who launches at the "
        "same moment may get the same ones"
    )
    return [Finding(Weight.WARNING, "claims", sentence, "Ask for the Role in manifests/rbac.yaml.")]


async def _devices(api: Api, plan: LaunchPlan) -> Iterable[Finding]:
    """Whether nodes offer the resources by which some binding modes give GPUs."""
    asked: dict[tuple[str, str], RunPlan] = {}
    for run in plan.runs:
        for pod in run.pods:
            limits = bindings.bind(run, pod, bindings.CudaIndex.SAME).limits
            asked |= {(pod.node, name): run for name in limits}
    return [one for (node, name), run in asked.items() for one in await _offers(api, node, name, run.spec.name)]


async def _offers(api: Api, node: str, resource: str, subject: str) -> Iterable[Finding]:
    try:
        status = (await api.read("Node", None, node)).get("status") or {}
    except ApiError as error:
        if error.is_forbidden or error.is_not_found:
            return []
        raise
    if str((status.get("allocatable") or {}).get(resource, "0")) != "0":
        return []
    hint = "Choose another mode with --binding."
    return [
        Finding(Weight.REFUSAL, subject, f"node {node} offers no {resource}, which the binding mode asks for", hint)
    ]
