"""Words of specs that lists show as well: kinds, roles, restart policies, and how pods get their GPU.

Apart from ``workload``: listing a cluster needs no spec, and importing specs takes a tenth of a short command.
"""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """Pattern of how the processes of a run work together."""

    LEARNER_WORKERS = "learner-workers"
    ELASTIC = "elastic"
    PARAMETER_SERVER = "parameter-server"
    JOB = "job"


class Role(StrEnum):
    """Function of a process in its run."""

    LEARNER = "learner"
    WORKER = "worker"
    EVALUATOR = "evaluator"
    RENDEZVOUS = "rendezvous"
    PS = "ps"
    JOB = "job"


DECISIVE_ROLES = {Kind.LEARNER_WORKERS: Role.LEARNER, Kind.ELASTIC: Role.WORKER, Kind.PARAMETER_SERVER: Role.WORKER}
"""Role whose success finishes a run, by the kind of run. A job has none: each of its processes ends
independently.
"""


class RestartPolicy(StrEnum):
    """Rule for restarting a process that ended; the values are Kubernetes' own."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"

    def restarts_after(self, exit_code: int) -> bool:
        """True if a process that ended with this code is restarted."""
        return self is RestartPolicy.ALWAYS or (self is RestartPolicy.ON_FAILURE and exit_code != 0)


class Binding(StrEnum):
    """Mechanism by which a pod gets the device of its slot.

    ``env``: environment variables name the device, and the scheduler does not know about it. ``device-plugin``:
    whole GPUs, or other units that a plugin counts, by resource limits. ``shared``: a time-sliced or MPS share, by
    resource limits. ``hami``: HAMi's annotation with the GPU's UUID. ``dra``: a resource claim by UUID, shared by
    the pods of one device. ``cpu``: no GPU; the pod uses a CPU slot.
    """

    ENV = "env"
    DEVICE_PLUGIN = "device-plugin"
    SHARED = "shared"
    HAMI = "hami"
    DRA = "dra"
    CPU = "cpu"

    @property
    def chooses_gpu(self) -> bool:
        """True where the plan chooses the device of the node; otherwise the cluster does."""
        return self in (Binding.ENV, Binding.HAMI, Binding.DRA, Binding.CPU)

    @property
    def is_counted(self) -> bool:
        """True where pods request units of an extended resource, which the scheduler counts."""
        return self in (Binding.DEVICE_PLUGIN, Binding.SHARED, Binding.HAMI)
