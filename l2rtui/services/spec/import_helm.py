"""Import of a values file of a Helm chart ``distributed-tensorflow`` as a run of parameter servers.

The run does the same as the chart, with two differences: the chart's StatefulSets restarted finished workers
forever, and Helm has no slots. A finding reports each difference.

Two charts of that name are public (helm/charts, incubator and later stable; Dysproz/distributed-tensorflow-helm).
Both run ``python train_distributed.py`` in their own image with hyper-parameters as flags, each only if it is set:
learning rate and batch size, and those of the second chart, which also has ``limit`` for each side. Its worker
takes some of its limits from ``ps.limit``; here each side has its own. Besides the charts' values, these fields of
a spec file may be added, or given by ``--set``: name, image, command, seed, env, placement, pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from l2rtui.domain.preflight import Finding, Severity
from l2rtui.services.spec.schema import (
    EnvValue,
    MountForm,
    ParameterServerForm,
    PlacementForm,
    PodForm,
    Port,
    PsWorkersForm,
    ResourcesForm,
    ServersForm,
)

DEFAULT_NAME = "distributed-tensorflow"
_SETTINGS = {
    "batchsize": "batch_size",
    "learningrate": "learning_rate",
    "trainsteps": "train_steps",
    "hiddenunits": "hidden_units",
    "datadir": "data_dir",
    "logdir": "log_dir",
}
"""Names of hyper-parameters: the chart's, and ours."""


class ImageValues(Struct):
    """An image in its three parts."""

    repository: str = ""
    tag: str | int | float = ""
    pullPolicy: str = ""  # noqa: N815  (the chart's word)


class LimitValues(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Limits of one side, which are its requests as well."""

    cpu: str | int | float | None = None
    memory: str | int | float | None = None


class SideValues(Struct):
    """Values of the workers, or of the servers."""

    number: Annotated[int, Meta(ge=1, le=4096)] = 1
    image: ImageValues = field(default_factory=ImageValues)
    port: Port = 2222
    gpuCount: Annotated[int, Meta(ge=0, le=64)] = 0  # noqa: N815  (the chart's word)
    env: dict[str, EnvValue] = {}
    resources: dict[str, dict[str, str | int | float]] = {}
    limit: LimitValues = field(default_factory=LimitValues)
    privileged: bool = False
    podManagementPolicy: str = ""  # noqa: N815  (the chart's word)


class HyperValues(Struct):
    """Hyper-parameters of the training."""

    batchsize: int = 20
    learningrate: float = 0.001
    trainsteps: Annotated[int, Meta(ge=0)] = 0
    hiddenunits: int | None = None
    datadir: str | None = None
    logdir: str | None = None


class VolumeMountValues(Struct):
    """Mount of a volume."""

    name: str
    mountPath: Annotated[str, Meta(pattern="^/")]  # noqa: N815  (Kubernetes' word)
    subPath: str = ""  # noqa: N815
    readOnly: bool = False  # noqa: N815


class Values(Struct):
    """The chart's values file, and the fields that may be added to it."""

    worker: SideValues
    ps: SideValues
    hyperparams: HyperValues = field(default_factory=HyperValues)
    volumes: list[dict[str, Any]] = []
    volumeMounts: list[VolumeMountValues] = []  # noqa: N815
    name: str = DEFAULT_NAME
    image: str = ""
    command: list[str] = []
    seed: int = 0
    env: dict[str, EnvValue] = {}
    placement: PlacementForm = field(default_factory=PlacementForm)
    pod: PodForm = field(default_factory=PodForm)


def is_values(data: Any) -> bool:
    """Return True for a file with the chart's values: no kind, but numbers of workers and of servers."""
    return (
        isinstance(data, Mapping)
        and "kind" not in data
        and all(isinstance(data.get(side), Mapping) and "number" in data[side] for side in ("worker", "ps"))
    )


def form_of(values: Values, data: Mapping[str, Any]) -> tuple[ParameterServerForm, tuple[Finding, ...]]:
    """Return the form of the run, and findings about the differences from the chart.

    Args:
        data: The same values before decoding; unused fields are reported.

    Raises:
        ValueError: a volume is of a kind that a run cannot mount.
    """
    notes: list[Finding] = []

    def say(subject: str, sentence: str, weight: Severity = Severity.OK) -> None:
        notes.append(Finding(weight, subject, sentence))

    volumes = {str(volume.get("name", "")): volume for volume in values.volumes}
    mounts = [_mount(mount, volumes.get(mount.name)) for mount in values.volumeMounts]
    train = _train(values, [mount.path for mount in mounts if not mount.read_only])
    say("values", "workers and servers become Jobs: finished workers stay finished, and servers end with the run")
    if not values.hyperparams.trainsteps:
        sentence = "0 means no end: the workers train until the run is destroyed"
        say("hyperparams.trainsteps", sentence, Severity.WARNING)
    if values.image:
        theirs = dict.fromkeys(filter(None, (_image(values.worker), _image(values.ps))))
        say("image", f"{values.image} in place of {' and '.join(theirs) or 'none'}")
    if not values.command:
        runs = "l2r-runtime" if values.image else "the chart's python train_distributed.py"
        say("command", f"the values name no command: {runs} is run")
    for where, unknown in _unknown(data):
        sentence = f"{unknown} is not used: the templates of both charts do not read it"
        say(where, sentence, Severity.WARNING)
    form = ParameterServerForm(
        name=values.name,
        seed=values.seed,
        image=values.image,
        env=values.env,
        train=train,
        placement=values.placement,
        pod=values.pod,
        servers=ServersForm(**_side(values, values.ps, mounts, "ps", say)),
        workers=PsWorkersForm(**_side(values, values.worker, mounts, "ps-worker", say)),
    )
    return form, tuple(notes)


def _side(values: Values, side: SideValues, mounts: list[MountForm], own: str, say: Any) -> dict[str, Any]:
    """Return the fields of one set."""
    pod: dict[str, Any] = {"mounts": mounts}
    # An image given for the whole run replaces those of the chart, with its command and security as well.
    if not values.image:
        pod |= {"image": _image(side), "pull_policy": side.image.pullPolicy or None}
    if side.privileged or (not values.image and not values.pod.security):
        # The chart has no Pod Security settings, and its images run as root.
        pod["security"] = "privileged" if side.privileged else "baseline"
        say(own, f"its pods keep Pod Security {pod['security']}, as the chart's do", Severity.WARNING)
    if side.gpuCount:
        # The chart requested GPUs from the plugin and pinned nothing; slots of l2rtui would change its behaviour.
        pod["binding"] = "device-plugin"
        say(own, f"{side.gpuCount} GPU of each pod comes from the device plugin, as in the chart")
    # Requests win over limits, as the scheduler counts them.
    amounts: dict[str, Any] = {
        "cpu": side.limit.cpu,
        "memory": side.limit.memory,
        **side.resources.get("limits", {}),
        **side.resources.get("requests", {}),
    }
    if side.limit.cpu is not None:  # by default a run has no CPU limit
        limits = {"limits": {"cpu": str(side.limit.cpu)}}
        pod["template"] = {"spec": {"containers": [{"name": "main", "resources": limits}]}}
    return {
        "replicas": side.number,
        "port": side.port,
        "slots": 1 if side.gpuCount else 0,
        "command": values.command or (["l2r-runtime", own] if values.image else _chart_command(values, side)),
        "env": side.env,
        "restart": "OnFailure",
        "resources": ResourcesForm(amounts.get("cpu"), amounts.get("memory")),
        "pod": PodForm(**pod),
    }


def _chart_command(values: Values, side: SideValues) -> list[str]:
    """Return the command of the chart's templates."""
    hyper = values.hyperparams
    gpus = ["--num_gpus", str(side.gpuCount)] if side.gpuCount else []
    numbers = ["--learning_rate", f"{hyper.learningrate:g}", "--batch_size", str(hyper.batchsize)]
    optional = {
        "--train_steps": hyper.trainsteps,
        "--data_dir": hyper.datadir,
        "--log_dir": hyper.logdir,
        "--hidden_units": hyper.hiddenunits,
    }
    others = [word for flag, value in optional.items() if value for word in (flag, str(value))]
    return ["python", "train_distributed.py", *gpus, *numbers, *others]


def _image(side: SideValues) -> str:
    image = side.image
    return f"{image.repository}:{image.tag}" if image.repository and image.tag != "" else image.repository


def _train(values: Values, writable: list[str]) -> dict[str, Any]:
    """Return hyper-parameters by our names; logs go to the only writable volume unless ``logdir`` is set."""
    # The chart wrote its logs to the mounted volume, whose path is only in the mount.
    settings = {ours: getattr(values.hyperparams, theirs) for theirs, ours in _SETTINGS.items()}
    if settings["log_dir"] is None and len(writable) == 1:
        settings["log_dir"] = writable[0]
    return {name: value for name, value in settings.items() if value is not None}


def _mount(mount: VolumeMountValues, volume: Mapping[str, Any] | None) -> MountForm:
    if volume is None:
        raise ValueError(f"volumeMounts: there is no volume {mount.name}")
    plain: dict[str, Any] = {"path": mount.mountPath, "sub_path": mount.subPath, "read_only": mount.readOnly}
    # ``emptyDir:`` without a value is null in YAML and means the defaults.
    sources = {key: value or {} for key, value in volume.items() if key != "name"}
    match sources:
        case {"hostPath": {"path": str(path)}}:
            return MountForm(host_path=path, **plain)
        case {"persistentVolumeClaim": {"claimName": str(claim)}}:
            return MountForm(claim=claim, **plain)
        case {"emptyDir": dict(options)}:
            return MountForm(in_memory=options.get("medium") == "Memory", size=options.get("sizeLimit"), **plain)
        case _:
            kinds = ", ".join(map(str, sources)) or "nothing"
            raise ValueError(
                f"volumes: {mount.name} is of {kinds}: a run mounts hostPath, persistentVolumeClaim and emptyDir"
            )


def _unknown(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return fields that are not read, each with the part of the file that has it."""
    forms: dict[str, Any] = {"worker": SideValues, "ps": SideValues, "hyperparams": HyperValues}
    unknown = [("values", str(key)) for key in data if key not in Values.__struct_fields__]
    for part, form in forms.items():
        inner = data.get(part)
        keys = inner if isinstance(inner, Mapping) else {}
        unknown += [(part, str(key)) for key in keys if key not in form.__struct_fields__]
    return unknown
