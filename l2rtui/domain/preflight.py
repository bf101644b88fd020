"""Preflight checks of a plan before its launch, as findings of one sentence each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from l2rtui.domain.node import CPU, Node
from l2rtui.domain.placement import can_wait
from l2rtui.domain.plan import LaunchPlan, gpu_count
from l2rtui.domain.quantity import counted, format_bytes, format_cores
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import MAX_SET_NAME, RunSpec, cpu_reason, name_problem
from runtime.base.limits import Limits, limit_label


class Severity(StrEnum):
    """Effect of a finding on the launch."""

    OK = "ok"
    WARNING = "warning"
    REFUSAL = "refusal"


class Finding(Struct, frozen=True):
    """One fact about a plan or a backend.

    Attributes:
        subject: The object concerned.
        sentence: The fact. hint: The next step; empty if none is needed.
    """

    severity: Severity
    subject: str
    sentence: str
    hint: str = ""


def preflight(plan: LaunchPlan, snapshot: ClusterSnapshot, facts: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """Check a plan against the newest snapshot.

    Args:
        facts: Findings that only the backend can make: commands, folders, permissions.

    Returns:
        Refusals first, then warnings, then passed checks.
    """
    findings = [*_names(plan, snapshot), *_places(plan, snapshot), *_room(plan, snapshot), *watched(plan), *facts]
    order = (Severity.REFUSAL, Severity.WARNING, Severity.OK)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))


def cluster_fields(specs: Iterable[RunSpec]) -> Iterable[Finding]:
    """Yield a warning for each field that only pods of Kubernetes have, for a backend that renders none."""
    for spec in specs:
        if spec.queue is not None:
            sentence = "queue is ignored: only clusters have queues that admit a run as a whole"
            yield Finding(Severity.WARNING, spec.name, sentence)
        for part in spec.sets:
            if part.pod.templates:
                sentence = "pod.template is ignored: only pods of Kubernetes have its fields"
                yield Finding(Severity.WARNING, f"{spec.name}/{part.name}", sentence)


def refusals(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings that forbid the launch."""
    return tuple(finding for finding in findings if finding.severity is Severity.REFUSAL)


def taken_names(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the runs of a plan that are refused because another run has the same name."""
    return tuple(finding.subject for finding in refusals(findings) if finding.sentence == _taken(finding.subject))


def _taken(name: str) -> str:
    return f"a run named {name} exists"


def _names(plan: LaunchPlan, snapshot: ClusterSnapshot) -> Iterable[Finding]:
    counted = Counter(run.spec.name for run in plan.runs)
    for run in plan.runs:
        name = run.spec.name
        problems = [name_problem(name), *(name_problem(set_spec.name, MAX_SET_NAME) for set_spec in run.spec.sets)]
        for problem in filter(None, problems):
            yield Finding(Severity.REFUSAL, name, problem)
        if snapshot.run_named(name) is not None:
            hint = f"Choose another with --name, or `l2rtui destroy {name}` first."
            yield Finding(Severity.REFUSAL, name, _taken(name), hint)
        elif counted[name] > 1:
            yield Finding(Severity.REFUSAL, name, f"the plan holds {counted[name]} runs named {name}")
        else:
            yield Finding(Severity.OK, name, "the name is free")


def _places(plan: LaunchPlan, snapshot: ClusterSnapshot) -> Iterable[Finding]:
    wait = "Wait with `launch --queue`, scale down, destroy a run, or name other slots with --on."
    if not snapshot.ledger.slots:
        wait = "No slot can be seen: `l2rtui check` says which right is missing."
    other_device = "Name a device of your nodes in pod.device; `l2rtui slots` lists them."
    for conflict in plan.conflicts:
        # placement writes `RUN/SET: sentence`; a conflict about a pin has no subject of its own.
        subject, colon, sentence = conflict.partition(": ")
        hint = wait if can_wait(conflict) else other_device
        yield Finding(Severity.REFUSAL, *((subject, sentence) if colon else ("placement", conflict)), hint)
    for problem in snapshot.problems if plan.conflicts else ():
        yield Finding(Severity.WARNING, "placement", f"not all can be seen: {problem.rstrip('.')}")
    slots = plan.slots
    yield from _shared(plan, snapshot)
    yield from _counted(plan, snapshot)
    yield from cpu_sets(plan)
    yield from shared_pods(plan)
    yield from _unused_pins(plan)
    if slots and not plan.conflicts and not plan.overcommitted:
        nodes = ", ".join(sorted({slot.node for slot in slots}))
        yield Finding(Severity.OK, "slots", f"{nodes}: every requested slot is free")
    for name in sorted({slot.node for slot in slots}):
        node = snapshot.nodes.get(name)
        if node is None:
            yield Finding(Severity.REFUSAL, name, f"node {name} is gone")
        # A warning, not a refusal: with permissions in only one namespace every node is like this.
        elif not node.is_use_known:
            yield Finding(Severity.WARNING, name, f"others may use the GPUs of {name}: their pods cannot be listed")


def _shared(plan: LaunchPlan, snapshot: ClusterSnapshot) -> Iterable[Finding]:
    """Return findings on over-committed slots, with the number of pods on each."""
    planned = Counter(plan.slots)
    for slot_id in plan.overcommitted:
        slot = snapshot.ledger.slots.get(slot_id)
        others = planned[slot_id] - 1
        # A slot that was already over-committed has several holders.
        sharing = [slot.pod, *slot.sharing] if slot is not None and slot.pod else []
        if others > 0:
            sharing.append("another worker of this plan" if others == 1 else f"{others} other workers of this plan")
        # On a node whose pods cannot all be listed, the other holders cannot be named.
        verb = "sits" if len(sharing) == 1 and others <= 1 else "sit"
        who = f"{' and '.join(sharing)} {verb} there too" if sharing else "others may sit there too"
        sentence = f"{slot_id} is over-committed: {who}"
        yield Finding(Severity.WARNING, str(slot_id), sentence, "Leave out --overcommit to refuse this.")


def _unused_pins(plan: LaunchPlan) -> Iterable[Finding]:
    """Return findings on runs that were sent to named places, and of which no set takes a slot there."""
    places = counted(len(plan.pins), "named place")
    verb = "is" if len(plan.pins) == 1 else "are"
    for run in plan.runs:
        if plan.pins and not plan.conflicts and not any(pod.node or pod.seat.slots for pod in run.pods):
            sentence = f"{places} {verb} not used: no set of it takes slots, so its pods may start on any node"
            yield Finding(Severity.WARNING, run.spec.name, sentence, "Write `slots: 1` into a set to place it.")


def _counted(plan: LaunchPlan, snapshot: ClusterSnapshot) -> Iterable[Finding]:
    """Return findings on GPUs that a plugin may hand out although a pod names them, or that are unhealthy."""
    pods = [pod for run in plan.runs for pod in run.pods if pod.gpu is not None and not pod.gpu.is_cpu]
    for name in dict.fromkeys(pod.node for pod in pods):
        node, part = snapshot.nodes.get(name), snapshot.ledger.nodes.get(name)
        if node is None or part is None:
            continue
        of_node = [pod for pod in pods if pod.node == name]
        by_plugin = {pod.gpu.resource for pod in of_node if pod.seat.resource and pod.gpu is not None}
        pinned = dict.fromkeys(
            slot.pod
            for slot in part.slots.values()
            if slot.pod and not slot.is_cpu and slot.resource in by_plugin and _is_pinned(slot.pod_uid, snapshot)
        )
        if pinned:
            names = ", ".join(list(pinned)[:3]) + (f" and {len(pinned) - 3} more" if len(pinned) > 3 else "")
            sentence = (
                f"the device plugin of {name} does not know that {names} names a GPU, and may give the same one"
            )
            yield Finding(Severity.WARNING, name, sentence, "Choose another node with --on, or --binding env.")
        health = next((item.health for item in node.resources or () if item.health and not item.device), "")
        if health and any(not pod.seat.resource for pod in of_node):
            sentence = f"{health} on {name}, and a pod that names its GPU may get another one"
            yield Finding(
                Severity.WARNING, name, sentence, "The plugin gives healthy ones: --binding device-plugin."
            )


def _is_pinned(uid: str, snapshot: ClusterSnapshot) -> bool:
    """Return True for a pod that uses a GPU without a request."""
    pod = snapshot.pods.get(uid)
    return pod is not None and not pod.requests


def cpu_sets(plan: LaunchPlan) -> Iterable[Finding]:
    """Return findings on sets that are placed on CPU slots of a GPU node because they need no GPU."""
    for run in plan.runs:
        named = {pod.set_spec.name for pod in run.pods if pod.gpu is not None and pod.gpu.index == CPU}
        for part in run.spec.sets:
            if part.name in named and (reason := cpu_reason(run.spec, part)):
                yield Finding(Severity.OK, f"{run.spec.name}/{part.name}", f"it sits on CPU slots: {reason}")


def shared_pods(plan: LaunchPlan) -> Iterable[Finding]:
    """Return findings on sets of which several workers share a pod; equal sets of many seeds are named once."""
    sets = {(part.name, part.num_pods, part.workers_in_pod): run for run in plan.runs for part in run.spec.sets}
    for (name, pods, workers), run in sets.items():
        if workers > 1:
            sentence = (
                f"{workers} workers share each of its {pods} pods"
                if pods > 1
                else f"{workers} workers share its pod"
            )
            yield Finding(Severity.OK, f"{run.spec.name}/{name}", sentence)
    ignored = {
        part.name: run
        for run in plan.runs
        for part in run.spec.sets
        if part.workers_per_pod > 1 and part.workers_in_pod == 1
    }
    for name, run in ignored.items():
        sentence = "each worker has its own slot: workers_per_pod only applies with binding device-plugin"
        yield Finding(Severity.OK, f"{run.spec.name}/{name}", sentence)


def watched(plan: LaunchPlan) -> Iterable[Finding]:
    """Return findings on the limits and alerts of runs, without duplicates."""
    stated: set[tuple[Limits | None, object]] = set()
    for run in plan.runs:
        if (key := (run.spec.limits, run.spec.alerts)) in stated:
            continue
        stated.add(key)
        if sentence := limits_text(run.spec):
            yield Finding(Severity.OK, run.spec.name, f"ends by {sentence}")
        limits = run.spec.limits
        if limits is not None and limits.gpu_hours and limits.wall is None and not gpu_count(run.pods):
            sentence = "limits.gpu_hours never ends it: it sits on no GPU"
            yield Finding(Severity.WARNING, run.spec.name, sentence, "Add limits.wall.")
        for rule in run.spec.alerts:
            yield Finding(Severity.OK, run.spec.name, f"on {', '.join(rule.when)}: {rule.target}")


def limits_text(spec: RunSpec) -> str:
    """Return the limits of a run for display: ``limit wall 12 h or limit idle 30 min``; empty without limits."""
    limits = spec.limits or Limits()
    values = ((name, getattr(limits, name)) for name in limits.__struct_fields__)
    return " or ".join(limit_label(name, value) for name, value in values if value is not None)


def _room(plan: LaunchPlan, snapshot: ClusterSnapshot) -> Iterable[Finding]:
    cores: defaultdict[str, float] = defaultdict(float)
    memory: defaultdict[str, int] = defaultdict(int)
    for pod in (pod for run in plan.runs for pod in run.pods):
        cores[pod.node] += pod.set_spec.pod_resources.cpu_cores or 0.0
        memory[pod.node] += pod.set_spec.pod_resources.memory_bytes or 0
    for name in sorted(cores):
        if (node := snapshot.nodes.get(name)) is not None:
            yield from _room_on(node, cores[name], memory[name])


def _room_on(node: Node, cores: float, memory: int) -> Iterable[Finding]:
    # Warnings only: pods that request more than a node has are slow or get killed, but some users want exactly
    # that.
    if node.cpu_cores and cores > node.cpu_cores:
        requested, available = format_cores(cores), format_cores(node.cpu_cores)
        sentence = f"{requested} CPU cores are requested on {node.name}, which has {available}: it will be slow"
        yield Finding(Severity.WARNING, node.name, sentence)
    # A node without metrics reports no memory in use; then its whole memory counts as available.
    left = node.memory_bytes - (node.memory_used_bytes or 0)
    if node.memory_bytes and memory > left:
        asked_of = f"{format_bytes(memory)} of memory are requested on {node.name}"
        sentence = f"{asked_of}, which has {format_bytes(left)} left: processes may be killed"
        yield Finding(Severity.WARNING, node.name, sentence)
