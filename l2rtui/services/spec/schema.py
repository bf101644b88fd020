"""Schema of a spec file: every field with its type, bounds, default and meaning.

One definition serves decoding, the messages for errors, and the published JSON Schema (``l2rtui schema``), in which
the docstrings are descriptions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from l2rtui.domain.sweeps import MAX_TRIALS
from l2rtui.domain.workload import MAX_NAME, MAX_SEED, MAX_SET_NAME
from runtime.base.contract import PS_PORT

# RFC 1123 label, but with a letter first: names become names of Services, which follow RFC 1035.
_LABEL = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
Name = Annotated[
    str,
    Meta(
        pattern=_LABEL,
        max_length=MAX_NAME,
        description="Name of the run: letters, digits and '-'.",
        examples=["racing-sac"],
    ),
]
SetName = Annotated[
    str,
    Meta(
        pattern=_LABEL,
        max_length=MAX_SET_NAME,
        description="Name of the set: letters, digits and '-'.",
        examples=["w"],
    ),
]
Count = Annotated[int, Meta(ge=0, le=4096, description="Processes of the set; each is a pod.")]
Slots = Annotated[int, Meta(ge=0, le=4096, description="slots of one device for each replica; 0: none")]
Grace = Annotated[float, Meta(ge=0, le=86_400, description="seconds between SIGTERM and SIGKILL")]
Quantity = str | int | float
Command = Annotated[
    list[str], Meta(min_length=1, description="argv; no shell reads it", examples=[["python", "train.py"]])
]
EnvValue = str | int | float | bool
_IMAGE = "ghcr.io/me/l2r:1"
# The words of Kubernetes' restartPolicy.
Restart = Annotated[
    Literal["Always", "OnFailure", "Never"],
    Meta(description="When a process is started again: after any end, after a failure, or never."),
]
_VARIABLES = [{"OMP_NUM_THREADS": "1"}]
Replicas = Annotated[int, Meta(ge=1, le=4096, description="Processes of the set; each is a pod.")]


class ResourcesForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Resources that one replica requests."""

    cpu: Annotated[Quantity, Meta(description="CPU cores: 2, 500m", examples=[2])] | None = None
    memory: Annotated[Quantity, Meta(description="bytes: 2Gi, 512Mi", examples=["2Gi"])] | None = None
    gpu: (
        Annotated[int, Meta(ge=1, le=64, description="whole GPUs; the same as `gpus` of the set", examples=[1])]
        | None
    ) = None


Gpus = Annotated[
    int,
    Meta(ge=1, le=64, description="whole GPUs of one node for each replica, in place of slots", examples=[1]),
]


class GpuForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """GPUs that suit a set: nodes without one are left out."""

    count: Annotated[
        int, Meta(ge=0, le=64, description="whole GPUs for each replica; 0: slots of a GPU, as many as `slots`")
    ] = 1
    model: Annotated[str, Meta(description="part of the GPU's model name: A100, RTX A6000", examples=["A100"])] = ""
    memory: Annotated[Quantity, Meta(description="smallest memory of a GPU: 40Gi", examples=["40Gi"])] | None = None


class TolerationForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A taint that the pods tolerate."""

    key: Annotated[str, Meta(description="Key of the taint; empty: every taint.", examples=["dedicated"])] = ""
    value: Annotated[str, Meta(description="Value of the taint; empty: any value.", examples=["rl"])] = ""
    effect: Annotated[
        Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"],
        Meta(description="Effect of the taint; empty: any.", examples=["NoSchedule"]),
    ] = ""


class MountForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A folder in the container; without claim and host_path an empty one that is removed with the pod."""

    path: Annotated[str, Meta(description="where it appears: /data", pattern="^/", examples=["/data"])]
    claim: Annotated[str, Meta(description="name of a PersistentVolumeClaim", examples=["data"])] = ""
    host_path: Annotated[
        str, Meta(description="folder of the node; breaks Pod Security `restricted`", examples=["/srv/data"])
    ] = ""
    in_memory: Annotated[bool, Meta(description="An empty folder in memory, which counts against the limit.")] = (
        False
    )
    size: Annotated[Quantity, Meta(description="limit of an empty folder: 2Gi", examples=["2Gi"])] | None = None
    read_only: Annotated[bool, Meta(description="The pods cannot write to it.")] = False
    sub_path: Annotated[str, Meta(description="Folder of the volume, in place of its root.", examples=["runs"])] = (
        ""
    )


Port = Annotated[int, Meta(ge=1, le=65_535, description="TCP port.", examples=[6006])]


class PodForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of containers. The run's apply to each set; a set's own value wins; lists are joined."""

    binding: Annotated[
        Literal["env", "device-plugin", "shared", "hami", "dra", "cpu"] | None,
        Meta(
            description="How pods get their GPU, docs/kubernetes.md; env and cpu on this machine.", examples=["env"]
        ),
    ] = None
    image: Annotated[
        str | None, Meta(description="Image of the set, in place of the run's.", examples=[_IMAGE])
    ] = None
    pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None, Meta(description="When nodes pull the image.")
    ] = None
    pull_secrets: Annotated[
        list[str], Meta(description="Secrets with the login of a registry.", examples=[["registry"]])
    ] = []
    secrets: Annotated[
        list[str], Meta(description="Secrets whose keys become variables", examples=[["wandb"]])
    ] = []
    service_account: Annotated[
        str | None, Meta(description="Service account of the pods.", examples=["l2r-worker"])
    ] = None
    node_selector: Annotated[
        dict[str, str], Meta(description="Labels that a node must have.", examples=[{"disk": "ssd"}])
    ] = {}
    tolerations: list[TolerationForm] = []
    mounts: list[MountForm] = []
    shm: Annotated[Quantity, Meta(description="size of /dev/shm: 1Gi", examples=["1Gi"])] | None = None
    ports: Annotated[
        list[Port], Meta(description="TCP ports that the learner's Service offers as well", examples=[[6006]])
    ] = []
    host_network: Annotated[
        bool | None, Meta(description="The pods share the network of their node.", examples=[False])
    ] = None
    security: Annotated[
        Literal["restricted", "baseline", "privileged"] | None,
        Meta(description="Pod Security Standard that the pods keep."),
    ] = None
    user: (
        Annotated[
            int,
            Meta(ge=1, le=2**31 - 1, description="number of the user under `restricted`", examples=[1000]),
        ]
        | None
    ) = None
    device: (
        Annotated[
            str,
            Meta(
                description="extended resource that pods request: amd.com/gpu, gpu.intel.com/xe, nvidia.com/a100, "
                "nvidia.com/mig-1g.5gb",
                examples=["amd.com/gpu"],
            ),
        ]
        | None
    ) = None
    template: (
        Annotated[
            dict[str, Any] | list[dict[str, Any]],
            Meta(
                description="any field of a Kubernetes pod template (metadata, spec), merged as kubectl does",
                examples=[{"spec": {"priorityClassName": "high"}}],
            ),
        ]
        | None
    ) = None


class _ProcessesForm(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Fields of every set of processes."""

    slots: Slots = 1
    gpus: Gpus | None = None
    gpu: (
        Annotated[Gpus | GpuForm, Meta(description="whole GPUs, or which ones suit", examples=[{"model": "A100"}])]
        | None
    ) = None
    env: Annotated[dict[str, EnvValue], Meta(description="variables for its processes", examples=_VARIABLES)] = {}
    restart: Restart = "OnFailure"
    resources: ResourcesForm = field(default_factory=ResourcesForm)
    grace_seconds: Grace = 10.0
    pod: PodForm = field(default_factory=PodForm)


class LearnerForm(_ProcessesForm, kw_only=True):
    """The learner, which updates the policy: one process, or equal ones on several nodes."""

    name: SetName = "learner"
    nodes: Annotated[
        int,
        Meta(ge=1, le=64, description="pods with a rank on each of their GPUs, which learn together", examples=[2]),
    ] = 1
    command: Command = field(default_factory=lambda: ["l2r-runtime", "learner"])
    grace_seconds: Grace = 15.0


class WorkersForm(_ProcessesForm, kw_only=True):
    """One worker set: equal processes that collect experience."""

    name: SetName = "w"
    replicas: Count = 1
    workers_per_pod: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="workers that share a pod and its GPU under binding device-plugin; a divisor of replicas",
        ),
    ] = 1
    command: Command = field(default_factory=lambda: ["l2r-runtime", "worker"])


class EvaluatorForm(_ProcessesForm, kw_only=True):
    """Processes that measure the newest policy."""

    name: SetName = "eval"
    replicas: Count = 1
    command: Command = field(default_factory=lambda: ["l2r-runtime", "evaluator"])


Source = Annotated[
    str,
    Meta(
        description="file that the command names as {program}: a path beside this file, or s3://BUCKET/KEY",
        examples=["train.py"],
    ),
]


class TaskForm(_ProcessesForm, kw_only=True):
    """The processes of a job."""

    name: SetName = "job"
    replicas: Count = 1
    command: Command = []
    program: Source = ""
    slots: Slots = 0
    restart: Restart = "Never"


class NodesForm(_ProcessesForm, kw_only=True):
    """The nodes of an elastic job: each starts equal processes of one program, which start and end together."""

    name: SetName = "nodes"
    replicas: Count = 1
    min: Annotated[int, Meta(ge=1, le=4096, description="fewest nodes that train")] = 1
    max: Annotated[int, Meta(ge=1, le=4096, description="most nodes; default: replicas", examples=[8])] | None = (
        None
    )
    nproc_per_node: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1024,
                description="processes of each node; default: one for each GPU, or on a CPU one for each slot",
                examples=[4],
            ),
        ]
        | None
    ) = None
    command: Command = field(default_factory=lambda: ["l2r-runtime", "classify", "train"])
    program: Source = ""


class RendezvousForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Rendezvous of an elastic job: a small process through which its nodes find each other."""

    backend: Annotated[
        Literal["c10d", "etcd-v2"], Meta(description="Store of the rendezvous; etcd-v2 needs etcd in its image.")
    ] = "c10d"
    image: Annotated[
        str, Meta(description="another image for it, with etcd in it; empty: the run's", examples=[_IMAGE])
    ] = ""


class ServersForm(_ProcessesForm, kw_only=True):
    """Parameter servers: each holds a part of the weights."""

    replicas: Replicas = 1
    command: Command = field(default_factory=lambda: ["l2r-runtime", "ps"])
    program: Source = ""
    slots: Slots = 0
    port: Port = PS_PORT


class PsWorkersForm(_ProcessesForm, kw_only=True):
    """Workers of parameter servers: each computes gradients on a part of the data."""

    replicas: Replicas = 1
    command: Command = field(default_factory=lambda: ["l2r-runtime", "ps-worker"])
    program: Source = ""
    port: Port = PS_PORT


class StepForm(_ProcessesForm, kw_only=True):
    """One step of a job: a command, or (with nodes) an elastic job."""

    name: SetName
    replicas: Replicas = 1
    command: Command = []
    program: Source = ""
    slots: Slots = 0
    restart: Restart = "Never"
    after: (
        Annotated[
            list[str],
            Meta(description="steps that come before it; default: the one above", examples=[["data"]]),
        ]
        | None
    ) = None
    nodes: NodesForm | None = None
    rendezvous: RendezvousForm | None = None


class PlacementForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Placement of replicas, unless given on the command line."""

    policy: Annotated[
        Literal["pack", "spread", "free-memory", "least-busy"],
        Meta(
            description="fill one GPU after the other, spread evenly, most free memory first, or least busy first"
        ),
    ] = "pack"
    on: Annotated[
        str,
        Meta(
            description="node/gpu[.slot], ranges and commas: phortx1/0-3,n2/5.0-1,n1/cpu", examples=["phortx1/0-3"]
        ),
    ] = ""


class QueueForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Queue of a cluster that starts all pods of the run together, or none."""

    by: Annotated[
        Literal["kueue", "volcano", "coscheduling", "jobset"], Meta(description="System that admits the run.")
    ]
    name: Annotated[
        str, Meta(description="LocalQueue of Kueue (also for a JobSet), Queue of Volcano", examples=["rl"])
    ] = ""
    scheduler: Annotated[
        str, Meta(description="schedulerName; default: that of the cluster", examples=["volcano"])
    ] = ""


Duration = Annotated[
    Quantity, Meta(description="Longest time of the run: seconds, or 30m, 12h, 1h30m, 2d.", examples=["12h"])
]


class LimitsForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of a run: at 90 % of one it warns, at 100 % it writes a checkpoint and ends as finished."""

    wall: Duration | None = None
    idle: Annotated[Quantity, Meta(description="time without data from workers: 30m", examples=["30m"])] | None = (
        None
    )
    no_progress: (
        Annotated[Quantity, Meta(description="time without a new best return: 2h", examples=["2h"])] | None
    ) = None
    gpu_hours: (
        Annotated[Quantity, Meta(description="hours times the GPUs that the run sits on: 50", examples=[50])] | None
    ) = None


class AlertForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Message that the run's learner sends, once for each state."""

    when: Annotated[
        list[str],
        Meta(description="stalled, diverged, failed, done, limit, learned=VALUE", examples=[["failed", "done"]]),
    ]
    to: Annotated[Literal["webhook", "mail", "command"], Meta(description="How the message is delivered.")]
    url_from: Annotated[
        str, Meta(description="variable of a secret in pod.secrets: the webhook's address", examples=["SLACK_URL"])
    ] = ""
    url_file: Annotated[
        str, Meta(description="file in the container with the webhook's address", examples=["/run/secrets/url"])
    ] = ""
    form: Annotated[
        Literal["slack", "mattermost", "json"], Meta(description="Form of the message to a webhook.")
    ] = "slack"
    address: Annotated[
        str, Meta(description="recipient; the learner's host sends with sendmail", examples=["me@lab.org"])
    ] = ""
    command: Annotated[
        list[str],
        Meta(description="argv; gets the message as JSON on its standard input", examples=[["notify-send", "l2r"]]),
    ] = []
    after: Annotated[Quantity, Meta(description="time without an update after which a run is stalled: 5m")] = "5m"


class RangeForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Range of a number in a sweep; whole numbers at both ends give whole numbers."""

    low: int | float
    high: int | float
    log: Annotated[bool, Meta(description="spread its logarithm evenly")] = False
    count: Annotated[int, Meta(ge=2, le=MAX_TRIALS, description="values of it in a grid")] | None = None


class RandomForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Random trials instead of a grid."""

    trials: Annotated[int, Meta(ge=1, le=MAX_TRIALS)]
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED, description="the same seed draws the same trials")] = 0


class HalvingForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Successive halving: the worst trials of a sweep are stopped early."""

    min_env_steps: Annotated[int, Meta(ge=1, description="env steps before which no trial is stopped")]
    factor: Annotated[int, Meta(ge=2, le=64, description="the best 1/factor go on to factor times the steps")] = 3


class WorkdirForm(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Folder of own code, and the volume that stores its packages, or itself if it is too large for a ConfigMap."""

    path: Annotated[str, Meta(min_length=1, description="folder: a path beside this file", examples=["."])]
    volume: Annotated[
        str,
        Meta(
            description="PersistentVolumeClaim for packages of setup and for more than 900 KiB packed",
            examples=["data"],
        ),
    ] = ""


class _RunForm(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Fields of every run."""

    name: Name
    seed: Annotated[
        int,
        Meta(ge=0, le=MAX_SEED, description="Random seed; --seeds makes one run for each of several."),
    ] = 0
    image: Annotated[
        str, Meta(description="container image; this machine's own backend needs none", examples=[_IMAGE])
    ] = ""
    seeds: Annotated[
        str | int | list[int] | None,
        Meta(description="One run for each of these seeds, unless --seeds names others.", examples=["0-3"]),
    ] = None
    env: Annotated[dict[str, EnvValue], Meta(description="variables for every process", examples=_VARIABLES)] = {}
    secrets: Annotated[
        list[str], Meta(description="Secrets whose keys become variables of every process.", examples=[["wandb"]])
    ] = []
    workdir: Annotated[
        str | WorkdirForm,
        Meta(
            description="folder of own code: packed, sent with the run, and where its processes start; "
            "docs/guides/own-code.md",
            examples=["."],
        ),
    ] = ""
    setup: Annotated[
        list[Command],
        Meta(
            description="commands that run once in workdir before the processes start, each an argv",
            examples=[[["pip", "install", "-r", "requirements.txt"]]],
        ),
    ] = []
    train: Annotated[
        dict[str, Any],
        Meta(
            description="training settings: docs/settings.md, `l2rtui explain train`",
            examples=[{"environment": "CartPole-v1", "algorithm": "ppo"}],
        ),
    ] = {}
    placement: PlacementForm = field(default_factory=PlacementForm)
    queue: Annotated[
        QueueForm | bool | None,
        Meta(description="true: wait in l2rtui's own queue for room; else the queue of a cluster"),
    ] = None
    limits: LimitsForm | None = None
    alerts: list[AlertForm] = []
    sweep: Annotated[
        dict[str, Any] | None,
        Meta(
            description="fields and their values: a list or a range for each path, and seeds: 0-4; docs/sweeps.md",
            examples=[{"train.ppo.lr": [0.0003, 0.001]}],
        ),
    ] = None
    pod: Annotated[PodForm, Meta(description="settings of the containers of every set")] = field(
        default_factory=PodForm
    )


class LearnerWorkersForm(_RunForm, tag_field="kind", tag="learner-workers", kw_only=True):
    """Reinforcement learning: a learner, worker sets, evaluators."""

    learner: LearnerForm = field(default_factory=LearnerForm)
    workers: Annotated[
        list[WorkersForm] | None,
        Meta(description="default: one set of one worker; none if the learner collects by itself"),
    ] = None
    evaluator: EvaluatorForm | None = None
    program: Annotated[
        str,
        Meta(
            description="Python file of the run's own classes: a path, or s3://BUCKET/KEY",
            examples=["reinforce.py"],
        ),
    ] = ""
    log_to: Annotated[
        Literal["wandb", "mlflow"] | None,
        Meta(
            description="tracker that gets the metrics while it trains (train.log_to): docs/guides/trackers.md",
            examples=["wandb"],
        ),
    ] = None


class ElasticForm(_RunForm, tag_field="kind", tag="elastic", kw_only=True):
    """Distributed training with torchrun, whose nodes may come, go and be lost while it trains."""

    nodes: NodesForm
    rendezvous: RendezvousForm = field(default_factory=RendezvousForm)


class ParameterServerForm(_RunForm, tag_field="kind", tag="parameter-server", kw_only=True):
    """Parameter servers and their workers, each with its own name and port."""

    servers: ServersForm = field(default_factory=ServersForm)
    workers: PsWorkersForm = field(default_factory=PsWorkersForm)


class JobForm(_RunForm, tag_field="kind", tag="job", kw_only=True):
    """Any command, once or as several replicas (job), or several one after the other (steps)."""

    job: TaskForm | None = None
    steps: list[StepForm] = []


SpecForm = LearnerWorkersForm | ElasticForm | ParameterServerForm | JobForm
SetForm = LearnerForm | WorkersForm | EvaluatorForm | TaskForm | NodesForm | ServersForm | PsWorkersForm | StepForm
