"""The form of a spec file: every field with its type, bounds, default and meaning.

One definition serves decoding, the sentences for mistakes, and the published JSON Schema (``l2rtui schema``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from l2rtui.domain.workload import MAX_NAME, MAX_SEED, MAX_SET_NAME

_LABEL = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
Name = Annotated[str, Meta(pattern=_LABEL, max_length=MAX_NAME, description="letters, digits and '-'")]
SetName = Annotated[str, Meta(pattern=_LABEL, max_length=MAX_SET_NAME, description="letters, digits and '-'")]
Count = Annotated[int, Meta(ge=0, le=4096)]
Slots = Annotated[int, Meta(ge=0, le=4096, description="slots of one device for each replica; 0: none")]
Grace = Annotated[float, Meta(ge=0, le=86_400, description="seconds between SIGTERM and SIGKILL")]
Quantity = str | int | float
Command = Annotated[list[str], Meta(min_length=1, description="argv; no shell reads it")]
EnvValue = str | int | float | bool
Restart = Literal["Always", "OnFailure", "Never"]


class ResourcesForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What one replica is expected to use."""

    cpu: Annotated[Quantity, Meta(description="CPU cores: 2, 500m")] | None = None
    memory: Annotated[Quantity, Meta(description="bytes: 2Gi, 512Mi")] | None = None


class _ProcessesForm(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What is said of every set of processes."""

    slots: Slots = 1
    env: dict[str, EnvValue] = field(default_factory=dict)
    restart: Restart = "OnFailure"
    resources: ResourcesForm = field(default_factory=ResourcesForm)
    grace_seconds: Grace = 10.0


class LearnerForm(_ProcessesForm, kw_only=True):
    """The one process that updates the policy."""

    name: SetName = "learner"
    command: Command = field(default_factory=lambda: ["l2r-runtime", "learner"])
    grace_seconds: Grace = 15.0


class WorkersForm(_ProcessesForm, kw_only=True):
    """One worker set: equal processes that collect experience."""

    name: SetName = "w"
    replicas: Count = 1
    command: Command = field(default_factory=lambda: ["l2r-runtime", "worker"])


class EvaluatorForm(_ProcessesForm, kw_only=True):
    """Processes that measure the newest policy."""

    name: SetName = "eval"
    replicas: Count = 1
    command: Command = field(default_factory=lambda: ["l2r-runtime", "evaluator"])


class TaskForm(_ProcessesForm, kw_only=True):
    """The processes of a job."""

    name: SetName = "job"
    replicas: Count = 1
    command: Command
    slots: Slots = 0
    restart: Restart = "Never"


class PlacementForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where replicas sit when the command line does not say it."""

    policy: Literal["pack", "spread"] = "pack"
    on: Annotated[str, Meta(description="node/gpu[.slot], ranges and commas: phortx1/0-3,phortx2/5.0-1")] = ""


class LearnerWorkersForm(
    Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="learner-workers"
):
    """Reinforcement learning: a learner, worker sets, evaluators."""

    name: Name
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] = 0
    image: Annotated[str, Meta(description="container image; this machine's own backend needs none")] = ""
    env: Annotated[dict[str, EnvValue], Meta(description="variables for every process")] = field(
        default_factory=dict
    )
    learner: LearnerForm = field(default_factory=LearnerForm)
    workers: list[WorkersForm] = field(default_factory=lambda: [WorkersForm()])
    evaluator: EvaluatorForm | None = None
    train: Annotated[dict[str, Any], Meta(description="training settings, see `l2r-runtime config`")] = field(
        default_factory=dict
    )
    placement: PlacementForm = field(default_factory=PlacementForm)


class JobForm(Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="job"):
    """Any command, once or as several replicas."""

    name: Name
    job: TaskForm
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] = 0
    image: Annotated[str, Meta(description="container image; this machine's own backend needs none")] = ""
    env: Annotated[dict[str, EnvValue], Meta(description="variables for every process")] = field(
        default_factory=dict
    )
    train: Annotated[dict[str, Any], Meta(description="settings, handed on as L2R_CONFIG")] = field(
        default_factory=dict
    )
    placement: PlacementForm = field(default_factory=PlacementForm)


SpecForm = LearnerWorkersForm | JobForm
SetForm = LearnerForm | WorkersForm | EvaluatorForm | TaskForm
