"""JSON documents of objects. ``docs/json.md`` describes the fields, which are stable across versions.

A missing text is null, a time is RFC 3339 in UTC, a duration is in seconds, memory in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from l2rtui.backends.kubernetes import labels
from l2rtui.domain.ledger import Ledger, Slot, SlotState
from l2rtui.domain.node import CPU
from l2rtui.domain.quantity import rfc3339
from l2rtui.domain.snapshot import PodView, RunView, SetView, has_finished
from l2rtui.domain.status import Phase
from l2rtui.domain.sweeps import trial_document

if TYPE_CHECKING:
    from l2rtui.domain.log import LogLine
    from l2rtui.domain.metrics import ExchangeFigures, RunMetrics
    from l2rtui.domain.node import GpuShare, Node
    from l2rtui.domain.plan import LaunchPlan, PodPlan, RunPlan, ScalePlan
    from l2rtui.domain.preflight import Finding
    from l2rtui.domain.queue import Ticket
    from l2rtui.domain.receipt import Receipt
    from l2rtui.domain.runstatus import LearningState
    from l2rtui.domain.snapshot import ClusterSnapshot
    from l2rtui.domain.topology import Topology
    from l2rtui.domain.workload import RunSpec
    from l2rtui.services.destroyed_specs import DestroyedRun
    from l2rtui.services.job_status import RunProgress
    from l2rtui.services.queue.listing import QueueRow


def node_document(node: Node, ledger: Ledger, num_pods: int | None = None) -> dict[str, Any]:
    """One node and its GPUs; ``num_pods`` is the number of its pods, None if unknown."""
    gpus = []
    for gpu in node.gpus:
        states = [slot.state for slot in ledger.of_gpu(node.name, gpu.index)]
        use = node.use(gpu.index)
        gpus.append(
            {
                "gpu": gpu.index,
                "device": gpu.label,
                "uuid": gpu.uuid or None,
                "model": gpu.model or None,
                "memory_bytes": node.gpu_memory_bytes(gpu) or None,
                "numa": gpu.numa,
                "memory_used_bytes": use.memory_used_bytes if use else None,
                "use_percent": use.percent if use else None,
                "power_watts": use.watts if use else None,
                "temperature_celsius": use.celsius if use else None,
                "shares": to_builtins(use.shares) if use else [],
                "slots": gpu.slots,
                "free": states.count(SlotState.FREE),
            }
        )
    cpu = [slot.state for gpu in node.devices if gpu.is_cpu for slot in ledger.of_gpu(node.name, gpu.index)]
    return {
        "node": node.name,
        "ready": node.ready,
        "schedulable": node.is_schedulable,
        "use_known": node.is_use_known,
        "slots": sum(gpu.slots for gpu in node.gpus),
        "free": sum(gpu["free"] for gpu in gpus),
        "cpu_slots": len(cpu),
        "cpu_free": cpu.count(SlotState.FREE),
        "cpu_cores": node.cpu_cores,
        "cpu_used": node.cpu_used,
        "memory_bytes": node.memory_bytes,
        "memory_used_bytes": node.memory_used_bytes,
        "gpus": gpus,
        "resources": [
            {
                "resource": name,
                "capacity": count.resource.capacity,
                "allocatable": count.resource.allocatable,
                "requested": count.requested,
                "free": count.free,
            }
            for name, count in (ledger.nodes[node.name].counts or {}).items()
        ]
        if node.name in ledger.nodes
        else [],
        "taints": to_builtins(node.taints),
        "labels": dict(node.labels),
        "ip": node.ip or None,
        "message": node.message or None,
        "pods": num_pods,
        "created": rfc3339(node.created),
        **_context(node),
    }


def _context(row: Node | PodView | RunView) -> dict[str, str]:
    """Context of a row; left out if only one context is shown, as in documents of earlier versions."""
    return {"context": row.context} if row.context else {}


def slot_document(
    slot: Slot, node: Node, mismatches: Sequence[str] = (), num_free: int | None = None
) -> dict[str, Any]:
    """One slot and its holder.

    Args:
        mismatches: Mismatches of its holder.
        num_free: Free slots of its GPU; None for a CPU.
    """
    gpu, use = node.gpu(slot.id.gpu), node.use(slot.id.gpu)
    return {
        "id": str(slot.id),
        "node": slot.id.node,
        # The CPU of a GPU node has no index; the CPU of a node without GPUs has been 0 since the first version.
        "gpu": slot.id.gpu if slot.id.gpu != CPU else None,
        "kind": "cpu" if slot.is_cpu else "gpu",
        "device": gpu.label if gpu else None,
        "slot": slot.id.slot,
        "state": str(slot.state),
        "owner": slot.owner or None,
        "run": slot.run or None,
        "set": slot.set_name or None,
        "pod": slot.pod or None,
        "pods": [slot.pod, *slot.sharing] if slot.pod else [],
        "reserved_by": slot.reservation.owner if slot.reservation else None,
        "reserved_until": rfc3339(slot.reservation.until) if slot.reservation else None,
        "reserved_note": slot.reservation.note or None if slot.reservation else None,
        "gpu_model": gpu.model or None if gpu else None,
        "gpu_memory_bytes": node.gpu_memory_bytes(gpu) or None if gpu else None,
        "gpu_free": num_free,
        "gpu_use_percent": use.percent if use else None,
        "gpu_memory_used_bytes": use.memory_used_bytes if use else None,
        "mismatches": list(mismatches),
        **_context(node),
    }


def pod_document(
    pod: PodView, mismatches: Sequence[str] = (), shares: Mapping[int, GpuShare | None] = MappingProxyType({})
) -> dict[str, Any]:
    """One pod; ``mismatches`` are sentences about differences between the pod and its place.

    Args:
        shares: Its part of each GPU that it uses; None if unknown.
    """
    status = pod.status
    return {
        "pod": pod.name,
        "uid": pod.uid,
        "namespace": pod.namespace or None,
        "node": pod.node or None,
        "owner": pod.owner or None,
        "run": pod.run or None,
        "set": pod.set_name or None,
        "role": str(pod.role) if pod.role else None,
        "index": pod.index,
        "seed": pod.seed,
        "slots": [str(slot) for slot in pod.slots],
        "phase": str(pod.phase),
        "status": status.word,
        "level": str(status.level),
        "sentence": status.sentence,
        "reason": pod.reason or None,
        "message": pod.message or None,
        "ready": pod.ready,
        "terminating": pod.is_terminating,
        "restarts": pod.restarts,
        "exit_code": pod.exit_code,
        "pid": pod.pid,
        "created": rfc3339(pod.created),
        "started": rfc3339(pod.started),
        "ip": pod.ip or None,
        "labels": _labels(pod),
        "mismatches": list(mismatches),
        "gpu_shares": [
            {
                "gpu": gpu,
                "use_percent": share.percent if share else None,
                "memory_bytes": share.memory_bytes if share else None,
            }
            for gpu, share in sorted(shares.items())
        ],
        **_several_containers(pod),
        **({} if pod.worker is None else {"worker": pod.worker}),
        **_context(pod),
    }


def _several_containers(pod: PodView) -> dict[str, int]:
    """Return the container counts of a pod with several containers; for a single one ``ready`` is enough."""
    return {"containers": pod.containers, "containers_ready": pod.containers_ready} if pod.containers > 1 else {}


def _labels(pod: PodView) -> dict[str, str]:
    """Labels of the pod; for a pod launched by l2rtui, also the labels that are the same on every backend."""
    if not pod.run:
        return dict(pod.labels)
    return {
        labels.RUN: pod.run,
        labels.OWNER: pod.owner,
        labels.SEED: str(pod.seed),
        labels.SET: pod.set_name,
        labels.ROLE: str(pod.role) if pod.role else "",
        **dict(pod.labels),
    }


def learning_document(learning: LearningState) -> dict[str, Any]:
    """State of the learning of a run."""
    return {
        "learning": str(learning.state),
        "learning_since": rfc3339(learning.since),
        "learning_reason": learning.reason,
        "learning_level": str(learning.level),
    }


def run_document(run: RunView, snapshot: ClusterSnapshot, learning: LearningState) -> dict[str, Any]:
    """One run, its sets and its learning."""
    from l2rtui.domain.runstatus import run_status

    pods = snapshot.pods_of(run.name)
    status = run_status(run, pods)
    return {
        "run": run.name,
        "uid": run.uid,
        "namespace": run.namespace or None,
        "experiment": run.experiment,
        "state": status.word,
        "level": str(status.level),
        "sentence": status.sentence,
        "owner": run.owner or None,
        "seed": run.seed,
        "trial": trial_document(run.trial),
        "kind": run.kind or None,
        "sets": set_documents(run, pods),
        "pods": len(pods),
        "ready": sum(pod.ready for pod in pods),
        "failing": sum(pod.is_failing for pod in pods),
        "finished": sum(pod.phase is Phase.SUCCEEDED for pod in pods),
        "complete": has_finished(run, pods),
        "terminating": run.is_terminating,
        "reason": run.reason or None,
        "message": run.message or None,
        "silent_since": rfc3339(run.silent_since or snapshot.silent_since),
        "created": rfc3339(run.created),
        "labels": {
            labels.RUN: run.name,
            labels.EXPERIMENT: run.experiment,
            labels.OWNER: run.owner,
            labels.SEED: str(run.seed),
        },
        **learning_document(learning),
        **_context(run),
    }


def set_documents(run: RunView, pods: Sequence[PodView]) -> list[dict[str, Any]]:
    """The sets of a run."""
    return [
        {
            "set": set_view.name,
            "role": str(set_view.role),
            "replicas": set_view.replicas,
            "ready": sum(pod.ready for pod in pods if pod.set_name == set_view.name),
        }
        for set_view in run.sets
    ]


def launched_document(run: RunView, snapshot: ClusterSnapshot) -> dict[str, Any]:
    """A newly launched run, with its pods."""
    pods = snapshot.pods_of(run.name)
    return _launched(run, pods, [pod_document(pod) for pod in pods])


def _launched(run: RunView, pods: Sequence[PodView], pod_documents: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "run": run.name,
        "uid": run.uid,
        "experiment": run.experiment,
        "seed": run.seed,
        "trial": trial_document(run.trial),
        "sets": set_documents(run, pods),
        "pods": pod_documents,
    }


def started_document(run: RunPlan) -> dict[str, Any]:
    """A newly launched run whose pods are not visible yet: the planned pods."""
    from l2rtui.domain.plan import planned_view

    spec = run.spec
    pods = [planned_view(pod, spec.name, run.owner, spec.seed) for pod in run.pods]
    view = _view_of(spec, run.uid, run.owner)
    documents = [pod_document(pod) for pod in pods]
    for document, pod in zip(documents, run.pods, strict=True):
        document |= {"uid": None, "slots": [str(slot) for slot in pod.seat.slots]}
    return _launched(view, pods, documents)


def _view_of(spec: RunSpec, uid: str, owner: str) -> RunView:
    """Return the expected row of a planned run."""
    sets = tuple(SetView(part.name, part.role, part.replicas, part.slots > 0) for part in spec.sets)
    kind = str(spec.kind)
    return RunView(uid, spec.name, spec.experiment, owner, spec.seed, kind, sets=sets, trial=spec.trial)


def plan_document(plan: LaunchPlan, findings: Iterable[Finding], *, is_refused: bool) -> dict[str, Any]:
    """Plan of a launch: the objects it would create, and the findings of preflight."""
    return {
        "refused": is_refused,
        "runs": [_planned_run(run) for run in plan.runs],
        "findings": [finding_document(finding) for finding in findings],
    }


def _planned_run(run: RunPlan) -> dict[str, Any]:
    spec = run.spec
    return {
        "run": spec.name,
        "experiment": spec.experiment,
        "owner": run.owner,
        "seed": spec.seed,
        "trial": trial_document(spec.trial),
        "kind": str(spec.kind),
        "sets": [
            {"set": part.name, "role": str(part.role), "replicas": part.replicas, "slots": part.slots}
            | ({"workers_per_pod": part.workers_in_pod} if part.workers_in_pod > 1 else {})
            for part in spec.sets
        ],
        "pods": [planned_pod(pod, spec.name) for pod in run.pods],
    }


def planned_pod(pod: PodPlan, run: str) -> dict[str, Any]:
    """One replica of a plan."""
    return {
        "pod": pod.name,
        "run": run,
        "set": pod.set_spec.name,
        "role": str(pod.set_spec.role),
        "node": pod.node or None,
        "slots": [str(slot) for slot in pod.seat.slots],
        "command": list(pod.set_spec.command),
        "env": dict(pod.env),
    }


def scale_document(plan: ScalePlan) -> dict[str, Any]:
    """Requested change of a scale."""
    return {
        "run": plan.run,
        "set": plan.set_name,
        "replicas": plan.replicas,
        "added": [pod.name for pod in plan.added],
        "removed": list(plan.removed),
    }


def destroyed_document(run: DestroyedRun) -> dict[str, Any]:
    """Destroyed run that can be launched again."""
    spec = run.spec
    return {
        "name": spec.name,
        "experiment": spec.experiment,
        "seed": spec.seed,
        "pods": sum(part.replicas for part in spec.sets),
        "destroyed": rfc3339(run.destroyed_at),
    }


def finding_document(finding: Finding) -> dict[str, Any]:
    """One finding of preflight or of the doctor."""
    return {
        "weight": str(finding.severity),
        "subject": finding.subject,
        "sentence": finding.sentence,
        "hint": finding.hint or None,
    }


def receipt_document(receipt: Receipt) -> dict[str, Any]:
    """Receipt of a destroy."""
    return {
        "run": receipt.run,
        "objects": receipt.objects,
        "left": len(receipt.left),
        "leftovers": to_builtins(receipt.left),
        "seconds": round(receipt.seconds, 3),
        "kept": receipt.results_location or None,
        "queued": receipt.was_queued,
        "counted": dict(receipt.counted),
        "possible": to_builtins(receipt.possible),
        "not_seen": receipt.not_seen or None,
    }


def queue_document(row: QueueRow) -> dict[str, Any]:
    """One run that waits for slots."""
    return {"run": row.run, "position": row.position, "waits_for": row.waits_for, "since": rfc3339(row.since)}


def queued_document(ticket: Ticket) -> dict[str, Any]:
    """A newly queued run, in the form of a launched one, without pods."""
    spec = ticket.spec
    return {**_launched(_view_of(spec, ticket.uid, ticket.owner), (), []), "queued": True}


def line_document(line: LogLine) -> dict[str, Any]:
    """One line of a log."""
    pod, container = line.pod, line.container
    return {"time": rfc3339(line.time), "pod": pod, "container": container, "text": line.text, "mark": line.is_mark}


def progress_document(progress: RunProgress) -> dict[str, Any]:
    """Progress of a run without a learner."""
    evaluation = progress.evaluation
    return {
        "run": progress.run,
        "kind": progress.kind,
        "steps": [
            {
                "step": step.name,
                "state": step.state,
                "exit_code": step.exit_code,
                "seconds": step.seconds,
                "detail": step.detail or None,
                "time": rfc3339(step.time),
            }
            for step in progress.steps
        ],
        "nodes": [
            {**to_builtins(node), "state": node.state or None, "time": rfc3339(node.time)}
            for node in progress.nodes
        ],
        "peers": [
            {**to_builtins(process), "role": process.role or None, "time": rfc3339(process.time)}
            for process in progress.peers
        ],
        "evaluation": evaluation and {**to_builtins(evaluation), "time": rfc3339(evaluation.time)},
    }


def metrics_document(metrics: RunMetrics, now: float, *, is_learning: bool = True) -> dict[str, Any]:
    """Newest metrics of a run's learner.

    Args:
        now: Seconds since the epoch, for the age of the record.
        is_learning: The learner exists, so that the rates of a new record are current.
    """
    from l2rtui.domain.metrics import is_old

    age_seconds = max(0.0, now - metrics.time) if metrics.time else None
    return {
        "run": metrics.run,
        "env_steps": metrics.env_steps,
        "updates": metrics.updates,
        "policy_version": metrics.policy_version,
        "policy_lag": metrics.policy_lag,
        "policy_lag_max": metrics.policy_lag_max,
        "mean_return": metrics.mean_return,
        "eval_return": metrics.eval_return,
        "eval_progress": metrics.eval_progress,
        "env_steps_per_second": metrics.env_steps_per_second,
        "updates_per_second": metrics.updates_per_second,
        "workers": metrics.workers,
        "time": rfc3339(metrics.time),
        "age_seconds": None if age_seconds is None else round(age_seconds, 1),
        "is_live": is_learning and age_seconds is not None and not is_old(age_seconds, metrics.interval_seconds),
        "return": metrics.reported_return,
        "device": metrics.device or None,
        "gpu_percent": metrics.gpu_percent,
        "gpu_memory_bytes": _whole(metrics.gpu_memory_bytes),
        "gpu_reserved_bytes": _whole(metrics.gpu_reserved_bytes),
        "exchange": exchange_document(metrics.exchange),
    }


def exchange_document(figures: ExchangeFigures) -> dict[str, Any] | None:
    """Figures of a learner's exchange; None if its records have none."""
    if not figures.is_recorded:
        return None
    return {
        "messages_in_per_second": figures.messages_in,
        "bytes_in_per_second": figures.bytes_in,
        "messages_out_per_second": figures.messages_out,
        "bytes_out_per_second": figures.bytes_out,
        "replay": figures.replay,
        "inflight_transitions": figures.inflight,
        "stale": figures.stale,
        "evaluators": figures.evaluators,
    }


def topology_document(topology: Topology) -> dict[str, Any]:
    """Learner of a run and its peers."""
    return {
        "learner": topology.learner,
        "node": topology.node or None,
        "ip": topology.ip or None,
        "listens": list(topology.listens),
        "time": rfc3339(topology.time),
        "peers": [
            {
                "pod": link.pod,
                "role": str(link.role) if link.role else None,
                "node": link.node or None,
                "ip": link.ip or None,
                "connected": link.is_connected,
                "state": link.state or None,
            }
            for link in topology.links
        ],
        "exchange": exchange_document(topology.exchange) if topology.exchange else None,
    }


def _whole(count: float | None) -> int | None:
    return None if count is None else int(count)
