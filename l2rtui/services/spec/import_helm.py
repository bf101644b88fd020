"""The values of the Helm chart ``distributed-tensorflow`` as a run of parameter servers: the file is read as it is.

What the chart would have made of them is made again, but for what made its users unhappy: its StatefulSets started
finished workers again for ever, and helm knows nothing of slots. Every difference is said with the plan.

The chart (helm/charts, incubator and later stable) runs ``python train_distributed.py`` in its own image, with two
hyper-parameters as arguments and the others left to the program. Besides its values, the fields of a spec file
that say where and how a run is placed may be added, or given by ``--set``: name, image, command, seed, env,
placement, pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from l2rtui.domain.preflight import Finding, Weight
from l2rtui.services.specform import (
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
"""Names of the chart's hyper-parameters, and ours."""


class ImageValues(Struct):
    """An image in its three parts."""

    repository: str = ""
    tag: str | int | float = ""
    pullPolicy: str = ""  # noqa: N815  (the chart's word)


class SideValues(Struct):
    """What is said of the workers, or of the servers."""

    number: Annotated[int, Meta(ge=1, le=4096)] = 1
    image: ImageValues = field(default_factory=ImageValues)
    port: Port = 2222
    gpuCount: Annotated[int, Meta(ge=0, le=64)] = 0  # noqa: N815  (the chart's word)
    env: dict[str, EnvValue] = field(default_factory=dict)
    resources: dict[str, dict[str, str | int | float]] = field(default_factory=dict)
    privileged: bool = False
    podManagementPolicy: str = ""  # noqa: N815  (the chart's word)


class HyperValues(Struct):
    """What the training is told."""

    batchsize: int = 20
    learningrate: float = 0.001
    trainsteps: Annotated[int, Meta(ge=0)] = 0
    hiddenunits: int | None = None
    datadir: str | None = None
    logdir: str | None = None


class VolumeMountValues(Struct):
    """Where a volume appears."""

    name: str
    mountPath: Annotated[str, Meta(pattern="^/")]  # noqa: N815  (Kubernetes' word)
    subPath: str = ""  # noqa: N815
    readOnly: bool = False  # noqa: N815


class Values(Struct):
    """The chart's file, and what may be added to it."""

    worker: SideValues
    ps: SideValues
    hyperparams: HyperValues = field(default_factory=HyperValues)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    volumeMounts: list[VolumeMountValues] = field(default_factory=list)  # noqa: N815
    name: str = DEFAULT_NAME
    image: str = ""
    command: list[str] = field(default_factory=list)
    seed: int = 0
    env: dict[str, EnvValue] = field(default_factory=dict)
    placement: PlacementForm = field(default_factory=PlacementForm)
    pod: PodForm = field(default_factory=PodForm)


def is_values(data: Any) -> bool:
    """Whether a file holds the chart's values: it has no kind, and numbers of workers and of servers."""
    return (
        isinstance(data, Mapping)
        and "kind" not in data
        and all(isinstance(data.get(side), Mapping) and "number" in data[side] for side in ("worker", "ps"))
    )


def form_of(values: Values, data: Mapping[str, Any]) -> tuple[ParameterServerForm, tuple[Finding, ...]]:
    """The run that the values ask for, and what is different from the chart.

    Args:
        data: The same values before they were decoded: it may hold more, which is named.

    Raises:
        ValueError: a volume is of a kind that a run cannot mount.
    """
    notes: list[Finding] = []

    def say(subject: str, sentence: str, weight: Weight = Weight.OK) -> None:
        notes.append(Finding(weight, subject, sentence))

    mounts = _mounts(values)
    train = _train(values, [mount.path for mount in mounts if not mount.read_only])
    say("values", "workers and servers become Jobs: finished workers stay finished, and servers end with the run")
    if not values.hyperparams.trainsteps:
        say(
            "hyperparams.trainsteps", "0 means no end: the workers train until the run is destroyed", Weight.WARNING
        )
    if values.image:
        theirs = dict.fromkeys(filter(None, (_image(values.worker), _image(values.ps))))
        say("image", f"{values.image} in place of {' and '.join(theirs) or 'none'}")
    if not values.command:
        runs = "l2r-runtime" if values.image else "the chart's python train_distributed.py"
        say("command", f"the values name no command: {runs} is run")
    for where, unknown in _unknown(data):
        say(
            where,
            f"{unknown} is not used: the chart's templates that are known here do not read it",
            Weight.WARNING,
        )
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
    """The fields of one set."""
    pod: dict[str, Any] = {"mounts": mounts}
    if not values.image:
        pod |= {"image": _image(side), "pull_policy": side.image.pullPolicy or None}
    if side.privileged or (not values.image and not values.pod.security):
        # The chart knows nothing of Pod Security, and its images run as root.
        pod["security"] = "privileged" if side.privileged else "baseline"
        say(own, f"its pods keep Pod Security {pod['security']}, as the chart's do", Weight.WARNING)
    if side.gpuCount:
        pod["binding"] = "device-plugin"
        say(own, f"{side.gpuCount} GPU of each pod comes from the device plugin, as in the chart")
    asked = {**side.resources.get("limits", {}), **side.resources.get("requests", {})}
    return {
        "replicas": side.number,
        "port": side.port,
        "slots": 1 if side.gpuCount else 0,
        "command": values.command or (["l2r-runtime", own] if values.image else _theirs(values, side)),
        "env": side.env,
        "restart": "OnFailure",
        "resources": ResourcesForm(asked.get("cpu"), asked.get("memory")),
        "pod": PodForm(**pod),
    }


def _theirs(values: Values, side: SideValues) -> list[str]:
    """The command of the chart's templates."""
    hyper = values.hyperparams
    gpus = ["--num_gpus", str(side.gpuCount)] if side.gpuCount else []
    numbers = ["--learning_rate", f"{hyper.learningrate:g}", "--batch_size", str(hyper.batchsize)]
    return ["python", "train_distributed.py", *gpus, *numbers]


def _image(side: SideValues) -> str:
    image = side.image
    return f"{image.repository}:{image.tag}" if image.repository and image.tag != "" else image.repository


def _train(values: Values, writable: list[str]) -> dict[str, Any]:
    """The hyper-parameters by our names; logs go to the only volume where nothing else is said."""
    found = {ours: getattr(values.hyperparams, theirs) for theirs, ours in _SETTINGS.items()}
    if found["log_dir"] is None and len(writable) == 1:
        found["log_dir"] = writable[0]
    return {name: value for name, value in found.items() if value is not None}


def _mounts(values: Values) -> list[MountForm]:
    volumes = {str(one.get("name", "")): one for one in values.volumes}
    return [_mount(one, volumes.get(one.name)) for one in values.volumeMounts]


def _mount(one: VolumeMountValues, volume: Mapping[str, Any] | None) -> MountForm:
    if volume is None:
        raise ValueError(f"volumeMounts: there is no volume {one.name}")
    plain: dict[str, Any] = {"path": one.mountPath, "sub_path": one.subPath, "read_only": one.readOnly}
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
                f"volumes: {one.name} is of {kinds}: a run mounts hostPath, persistentVolumeClaim and emptyDir"
            )


def _unknown(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Fields that nothing here reads, each with where it stands."""
    forms: dict[str, Any] = {"worker": SideValues, "ps": SideValues, "hyperparams": HyperValues}
    found = [("values", str(key)) for key in data if key not in Values.__struct_fields__]
    for part, form in forms.items():
        inner = data.get(part)
        keys = inner if isinstance(inner, Mapping) else {}
        found += [(part, str(key)) for key in keys if key not in form.__struct_fields__]
    return found
