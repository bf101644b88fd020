"""Stand-ins for programs that admit the pods of a run together, on the API server in memory.

They implement only the documented behaviour of the real ones: Kueue's webhook and its controller of groups of pods
(kueue.sigs.k8s.io, "Run Plain Pods"), the PodGroups of Volcano and of the scheduler plugin coscheduling, and the
Jobs of a JobSet (jobset.sigs.k8s.io).
"""

from __future__ import annotations

import copy
from typing import Any

from tests.fakes.kubernetes_objects import Manifest, ObjectServer, StatusError

SET_NAME = "jobset.sigs.k8s.io/jobset-name"
QUEUE, GROUP = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name"
COUNT, GATE = "kueue.x-k8s.io/pod-group-total-count", "kueue.x-k8s.io/admission"
FULL = "couldn't assign flavors to pod set main: insufficient unused quota for pods in flavor default"
PREEMPTED = "Preempted to accommodate a workload (UID: u-9) due to prioritization in the ClusterQueue"


def condition(kind: str, status: str, reason: str, message: str) -> Manifest:
    return {"type": kind, "status": status, "reason": reason, "message": message}


class GangServer(ObjectServer):
    """Server whose pods are admitted in groups.

    Attributes:
        room: Pods that may run at the same time.
    """

    room = 0

    def pods(self) -> list[Manifest]:
        return [item for (kind, _, _), item in list(self.objects.items()) if kind == "Pod"]

    def phases(self) -> list[str]:
        return sorted(pod["status"]["phase"] for pod in self.pods())

    def admit(self) -> None:
        """Admit the complete groups that have room."""
        for name in dict.fromkeys(filter(None, map(self.group_of, self.pods()))):
            members = [pod for pod in self.pods() if self.group_of(pod) == name]
            waiting = [pod for pod in members if pod["status"]["phase"] == "Pending"]
            used = sum(pod["status"]["phase"] == "Running" for pod in self.pods())
            is_complete = len(members) >= self.size_of(name, members)
            if waiting and is_complete and used + len(waiting) <= self.room:
                self.start(name, waiting)
            elif waiting:
                self.refuse(name, waiting)

    def group_of(self, pod: Manifest) -> str:
        raise NotImplementedError

    def size_of(self, name: str, members: list[Manifest]) -> int:
        raise NotImplementedError

    def start(self, name: str, waiting: list[Manifest]) -> None:
        for pod in waiting:
            self.change(pod, status={"phase": "Running"})

    def refuse(self, name: str, waiting: list[Manifest]) -> None:
        raise NotImplementedError

    def change(self, pod: Manifest, **fields: Any) -> None:
        key = ("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        self._store(key, {**self.objects[key], **fields}, "MODIFIED")

    def _create(self, item: Manifest, kind: str, namespace: str, *, is_dry: bool = False) -> Manifest:
        if kind == "Pod":
            self.intercept(item)
        created = super()._create(item, kind, namespace, is_dry=is_dry)
        if kind == "Pod" and not is_dry:
            self.admit()
        return created

    def intercept(self, pod: Manifest) -> None:
        raise NotImplementedError


class KueueServer(GangServer):
    """Kueue: a gate on every pod of a group, a Workload for the group, eviction of the whole group."""

    def intercept(self, pod: Manifest) -> None:
        own_labels = pod["metadata"].get("labels") or {}
        if QUEUE not in own_labels:
            return
        if not str((pod["metadata"].get("annotations") or {}).get(COUNT, "")).isdigit():
            raise StatusError(403, "Forbidden", f"metadata.annotations[{COUNT}]: Required value")
        pod["spec"]["schedulingGates"] = [{"name": GATE}]
        own_labels["kueue.x-k8s.io/managed"] = "true"
        gated = condition("PodScheduled", "False", "SchedulingGated", "Scheduling is blocked")
        pod["status"] = {"phase": "Pending", "conditions": [gated]}

    def group_of(self, pod: Manifest) -> str:
        return str(pod["metadata"]["labels"].get(GROUP, ""))

    def size_of(self, name: str, members: list[Manifest]) -> int:
        return int(members[0]["metadata"]["annotations"][COUNT])

    def start(self, name: str, waiting: list[Manifest]) -> None:
        for pod in waiting:
            self.change(pod, spec={**pod["spec"], "schedulingGates": None}, status={"phase": "Running"})
        self.report(name, condition("Admitted", "True", "Admitted", "The workload is admitted"))

    def refuse(self, name: str, waiting: list[Manifest]) -> None:
        self.report(name, condition("QuotaReserved", "False", "Pending", FULL))

    def report(self, name: str, state: Manifest) -> None:
        workload = {"metadata": {"name": name}, "status": {"conditions": [state]}}
        if (existing := self.get("Workload", name)) is None:
            self.put({"kind": "Workload", **workload})
        else:
            existing["status"] = workload["status"]

    def evict(self, name: str) -> None:
        """Mark the pods of a group as evicted; the real one then deletes them."""
        for pod in self.pods():
            if self.group_of(pod) == name:
                out = condition("TerminationTarget", "True", "Preempted", PREEMPTED)
                self.change(pod, status={"phase": "Running", "conditions": [out]})


class PodGroupServer(GangServer):
    """Volcano or coscheduling: pods of its scheduler wait until as many as ``minMember`` have room."""

    def __init__(self, scheduler: str, kind: str, message: str) -> None:
        super().__init__()
        self._scheduler, self._kind, self._message = scheduler, kind, message

    def intercept(self, pod: Manifest) -> None:
        if pod["spec"].get("schedulerName") == self._scheduler:
            pod["status"] = {"phase": "Pending"}

    def group_of(self, pod: Manifest) -> str:
        meta = pod["metadata"]
        if self._kind == "PodGroup":
            return str(meta["labels"].get("scheduling.x-k8s.io/pod-group", ""))
        return str((meta.get("annotations") or {}).get("scheduling.k8s.io/group-name", ""))

    def size_of(self, name: str, members: list[Manifest]) -> int:
        group = self.get(self._kind, name)
        # Pods of a group that does not exist wait forever, as with the real ones.
        return 1 << 20 if group is None else int(group["spec"]["minMember"])

    def refuse(self, name: str, waiting: list[Manifest]) -> None:
        for pod in waiting:
            state = condition("PodScheduled", "False", "Unschedulable", self._message)
            self.change(pod, status={"phase": "Pending", "conditions": [state]})


class JobSetServer(ObjectServer):
    """JobSet, with Kueue: the Jobs of a set are created together, suspended while its queue has no room.

    Attributes:
        room: Pods of a set that its queue admits.
    """

    room = 0

    def phases(self) -> list[str]:
        return sorted(item["status"]["phase"] for (kind, _, _), item in self.objects.items() if kind == "Pod")

    def admit(self) -> None:
        """Suspend the Jobs of sets without room, and resume those of the others."""
        for item in [item for (kind, _, _), item in self.objects.items() if kind == "JobSet"]:
            self._follow(item)

    def _create(self, item: Manifest, kind: str, namespace: str, *, is_dry: bool = False) -> Manifest:
        if kind == "JobSet":
            _validate_job_set(item)
        created = super()._create(item, kind, namespace, is_dry=is_dry)
        if kind == "JobSet" and not is_dry:
            self._follow(created)
        return created

    def _follow(self, item: Manifest) -> None:
        meta, parts = item["metadata"], item["spec"]["replicatedJobs"]
        size = sum(part["template"]["spec"]["parallelism"] for part in parts)
        is_suspended = QUEUE in meta["labels"] and size > self.room
        state = [condition("Suspended", "True", "SuspendedJobs", FULL)] if is_suspended else []
        item["status"] = {"conditions": state}
        for part in parts:
            name, template = f"{meta['name']}-{part['name']}-0", copy.deepcopy(part["template"])
            template["metadata"]["labels"][SET_NAME] = meta["name"]
            template["spec"]["template"]["metadata"]["labels"][SET_NAME] = meta["name"]
            owner = {"kind": "JobSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
            job = {
                "metadata": {**template["metadata"], "name": name, "ownerReferences": [owner]},
                "spec": template["spec"] | {"suspend": is_suspended},
                "status": {"conditions": [{**item, "reason": "JobSuspended"} for item in state]},
            }
            if (existing := self.get("Job", name, meta["namespace"])) is None:
                super()._create(job, "Job", meta["namespace"])
            else:
                key = ("Job", meta["namespace"], name)
                self._store(key, {**existing, "spec": job["spec"], "status": job["status"]}, "MODIFIED")
                self._reconcile()


def _validate_job_set(item: Manifest) -> None:
    """Refuse everything that the webhook of JobSet refuses: duplicate names, and missing targets."""
    names = [part["name"] for part in item["spec"]["replicatedJobs"]]
    targets = item["spec"].get("successPolicy", {}).get("targetReplicatedJobs", [])
    if len(set(names)) < len(names) or not set(targets) <= set(names):
        raise StatusError(422, "Invalid", f"spec.successPolicy.targetReplicatedJobs: {targets} of {names}")
