"""Load a spec file, a Helm values file or Kubernetes YAML as a launch request.

msgspec checks values and names the path of a wrong one; ``yaml_lines`` has the line of that path, and ``mistakes``
makes a sentence of both.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from l2rtui.domain.placement import Pin, PlacementPolicy, parse_pins, parse_seeds
from l2rtui.domain.preflight import Finding
from l2rtui.domain.secret import find_secrets
from l2rtui.domain.sidecar import sidecar_of
from l2rtui.domain.workload import Queue, QueueSystem, RunSpec, Workdir, cpu_reason, numbered, renamed, with_seeds
from l2rtui.errors import SpecError, UsageError
from l2rtui.services.spec import import_helm
from l2rtui.services.spec.decode import check_image, kind_of, sets_of, train_of, unbound_sets, variables
from l2rtui.services.spec.encode import alerts_in, limits_in, to_document
from l2rtui.services.spec.mistakes import explain_all, explain_mistake
from l2rtui.services.spec.other_files import other_tool, refuse_program
from l2rtui.services.spec.schema import QueueForm, SpecForm, WorkdirForm
from l2rtui.services.spec.sweep_fields import sweep_in, with_values
from l2rtui.services.spec.yaml_lines import Keys, Locations, apply_override, dotted, parse_yaml, read_bytes
from runtime.base import bounded_json
from runtime.base.limits import Limits

NO_LIMITS = Limits()
_NO_PROGRAMS = ("env", "train")
"""Fields of a spec below which `program` is a user-defined name."""
_WORKDIRS = (("workdir",), ("workdir", "path"))
"""Paths of the fields that name the folder of own code."""


class LaunchRequest(Struct, frozen=True):
    """A launch as described by a spec file.

    Attributes:
        spec: The run without its seeds; for a sweep, without the values of any trial.
        source: The file, for messages.
        notes: Findings about changes made by an import; they are shown with the plan.
        trials: One run for each trial of a sweep, before its seeds; empty without a sweep.
        seeds: Seeds of its runs, unless the launch names others; empty for the spec's own.
    """

    spec: RunSpec
    policy: PlacementPolicy = PlacementPolicy.PACK
    pins: tuple[Pin, ...] = ()
    source: str = ""
    notes: tuple[Finding, ...] = ()
    trials: tuple[RunSpec, ...] = ()
    seeds: tuple[int, ...] = ()

    def runs(self, seeds: tuple[int, ...] = ()) -> tuple[RunSpec, ...]:
        """Return the specs of all runs: each trial with each seed.

        Args:
            seeds: Replace the seeds of the file.
        """
        specs = self.trials or (self.spec,)
        return tuple(run for spec in specs for run in with_seeds(spec, seeds or self.seeds))

    def free_name(self, seeds: tuple[int, ...], used: AbstractSet[str]) -> str:
        """Return the first of NAME, NAME-2, NAME-3 … that is unused, and with which no run has a used name."""

        def is_free(name: str) -> bool:
            return name not in used and used.isdisjoint(run.name for run in self.named(name).runs(seeds))

        return next(filter(is_free, numbered(self.spec.name)))

    def named(self, name: str) -> LaunchRequest:
        """Return the request with another name of its run, or of its experiment."""
        return self.changed(lambda spec: renamed(spec, name))

    def changed(self, change: Callable[[RunSpec], RunSpec]) -> LaunchRequest:
        """Return the request with a change in each of its specs."""
        return replace(self, spec=change(self.spec), trials=tuple(map(change, self.trials)))


def load(
    path: str,
    overrides: Sequence[str] = (),
    name: str = "",
    *,
    binding: str = "",
    limits: Limits = NO_LIMITS,
    more: Sequence[str] = (),
    allows_outside: bool = False,
) -> LaunchRequest:
    """Read a spec file, a values file of the Helm chart, or files with Kubernetes objects.

    Args:
        path: ``-`` reads the standard input.
        more: Further files, whose Kubernetes objects belong to the same run.
        overrides: ``field.field=value`` in the form of ``--set``; list items by number, the value is YAML.
        name: Replaces the file's ``name``.
        binding: Binding mode if the file names none.
        limits: Limits if the file names none.
        allows_outside: The file may name programs and a workdir outside of its own folder.

    Raises:
        SpecError: the file is missing or wrong; names file, line and field.
    """
    raw = read_bytes(path)
    refuse_program(path, raw)
    if (request := _objects_request(path, raw, overrides, name, binding, limits, more)) is not None:
        return request
    data, locations = parse_yaml(raw, path)
    locations.allows_outside = allows_outside
    if not isinstance(data, dict):
        raise SpecError(f"{path}: a spec is a mapping of fields, this file holds {_kind(data)}.", "See manifests/.")
    if "kind" not in data and (refusal := other_tool(path, data)) is not None:
        raise refusal
    for override in overrides:
        locations.set_by_flag(apply_override(data, override), f"--set {override}")
    if name:
        data["name"] = name
        locations.set_by_flag(("name",), f"--name {name}")
    _refuse_secrets(data, locations)
    if import_helm.is_values(data):
        return _loaded(data, locations, binding, limits)
    sweep = sweep_in(data, locations)
    if sweep is None:
        return _loaded(data, locations, binding, limits)
    # The spec itself is checked first: an error that all trials share must not be reported for the first trial.
    base = {field: value for field, value in data.items() if field != "sweep"}
    request = _loaded(base, locations, binding, limits)
    trials = []
    for trial in sweep.trials:
        spec = _loaded(*with_values(data, trial, locations), binding, limits).spec
        trials.append(renamed(replace(spec, trial=trial), spec.experiment))
    if sweep.seeds and request.seeds:
        sentence = f"{path}: the sweep and the spec both have seeds."
        raise SpecError(sentence, "Leave out one of the two.")
    return replace(request, trials=tuple(trials), seeds=sweep.seeds or request.seeds)


def with_changes(spec: RunSpec, overrides: Sequence[str]) -> RunSpec:
    """Return a spec with other settings, in the form of ``--set``.

    A name without a dot that is no field of a spec is a setting of its training, or of its method: ``gamma=0.9``.

    Raises:
        SpecError: a setting is wrong, or the spec was imported from Kubernetes YAML.
    """
    data, locations = to_document(spec), Locations(spec.name)
    for override in overrides:
        change = _full_name(data, override)
        locations.set_by_flag(apply_override(data, change), f"--set {change}")
    return _loaded(data, locations, "", NO_LIMITS).spec


def _full_name(data: dict[str, Any], override: str) -> str:
    from l2rtui.services.spec import reference  # which composes the whole schema

    name, equals, value = override.partition("=")
    train = data.get("train")
    algorithm = train.get("algorithm", "sac") if isinstance(train, dict) else ""
    for candidate in (name, f"train.{name}", f"train.{algorithm}.{name}"):
        with contextlib.suppress(UsageError):
            reference.explained(candidate)
            return f"{candidate}{equals}{value}"
    return override


def _objects_request(
    path: str,
    raw: bytes,
    overrides: Sequence[str],
    name: str,
    binding: str,
    limits: Limits,
    more: Sequence[str],
) -> LaunchRequest | None:
    """Return the request of files with Kubernetes objects; None if the first is a spec file."""
    if b"apiVersion" in raw.replace(b"\0", b""):  # this import takes a moment, and few files need it
        from l2rtui.services.spec import import_kubernetes

        if import_kubernetes.holds_objects(raw):
            files = [(path, raw), *((other, read_bytes(other)) for other in more)]
            made, changes = import_kubernetes.load_objects(files, overrides, name)
            if isinstance(made, RunSpec):
                return LaunchRequest(made, source=path, notes=changes)
            request = _loaded(made, Locations(path), binding, limits)
            return replace(request, notes=(*changes, *request.notes))
    if more:
        sentence = f"{path} is a spec of a whole run: several files with -f are for Kubernetes objects."
        raise SpecError(sentence, "Launch each spec separately.")
    return None


def _loaded(data: dict[str, Any], locations: Locations, binding: str, limits: Limits) -> LaunchRequest:
    """Decode the data of a spec or a values file, without a sweep. Raises SpecError."""
    path = locations.path
    if not locations.allows_outside:
        _refuse_outside(data, locations)
    notes: tuple[Finding, ...] = ()
    form: SpecForm
    try:
        if import_helm.is_values(data):
            form, notes = import_helm.form_of(bounded_json.convert(data, import_helm.Values), data)
        else:
            form = bounded_json.convert(data, SpecForm)
    except msgspec.ValidationError as error:
        explain = explain_mistake if import_helm.is_values(data) else explain_all
        raise explain(error, data, locations) from None
    except ValueError as error:
        raise SpecError(f"{path}: {error}.") from None
    unbound = unbound_sets(form)
    if form.secrets:  # sets the same field for the pods of all sets
        form.pod = msgspec.structs.replace(form.pod, secrets=[*form.secrets, *form.pod.secrets])
    # The setting is weaker than the file: a spec that names a mode was tried with that mode.
    if binding and form.pod.binding is None:
        form.pod = msgspec.structs.replace(form.pod, binding=binding)
    request = _request_of(form, locations, limits)
    return replace(request, spec=_with_choice(request.spec, unbound), notes=(*notes, *request.notes))


def _with_choice(spec: RunSpec, unbound: Collection[str]) -> RunSpec:
    """Return the spec with marks on the sets that placement may bind to the CPU, because they need no GPU."""
    sets = (
        replace(
            part,
            may_use_cpu=part.name in unbound
            and part.needs_device
            and not (part.gpus or part.gpu_wish)
            and bool(cpu_reason(spec, part)),
        )
        for part in spec.sets
    )
    return replace(spec, sets=tuple(sets))


def _refuse_secrets(data: Any, locations: Locations) -> None:
    """Refuse a spec that contains a secret: specs are stored and shown. The message names the field, not the
    value.
    """
    for keys, what in find_secrets(data):
        place = locations.of(keys)
        # The text of a --set would repeat the secret.
        where = "--set" if place.startswith("--set ") else f"{place}:"
        hint = "Keep it with `l2rtui secret create NAME --prompt KEY`, and name it: pod: {secrets: [NAME]}."
        raise SpecError(f"{where} {dotted(keys)} looks like {what}, and specs are no place for it.", hint)


def _refuse_outside(data: Any, locations: Locations, keys: Keys = ()) -> None:
    """Refuse a program or a workdir outside of the spec's folder: it is sent with the run, and the spec may be
    another user's.
    """
    if isinstance(data, list):
        for number, value in enumerate(data):
            _refuse_outside(value, locations, (*keys, number))
    for key, value in data.items() if isinstance(data, dict) else ():
        here = (*keys, str(key))
        if isinstance(value, str) and (key == "program" or here in _WORKDIRS):
            folder = Path(locations.path).parent.resolve()
            if not _is_below(value, folder):
                sentence = (
                    f"{locations.of(here)}: {dotted(here)}: {value} is outside of {folder}, the spec's folder."
                )
                raise SpecError(sentence, "Copy it there, or add --allow-outside if you trust this spec.")
        elif key not in _NO_PROGRAMS:
            _refuse_outside(value, locations, here)


def _is_below(source: str, folder: Path) -> bool:
    try:
        return "://" in source or (folder / source).resolve().is_relative_to(folder)
    except (OSError, ValueError, RuntimeError):  # a cycle of links, a null byte: reading the file reports it
        return True


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a spec file."""
    from l2rtui.services.spec import reference  # which a launch has no use for

    return reference.schema()


def _kind(data: Any) -> str:
    return {type(None): "nothing", list: "a list", str: "text"}.get(type(data), "a single value")


def _queue_of(form: QueueForm | bool | None) -> tuple[Queue | None, bool]:
    """Return the queue of a cluster named by a spec, and True if the run may wait in l2rtui's queue."""
    if form is None or isinstance(form, bool):
        return None, bool(form)
    return Queue(QueueSystem(form.by), form.name, form.scheduler), False


def _request_of(form: SpecForm, locations: Locations, limits: Limits) -> LaunchRequest:
    """Turn a decoded form into a request; checks constraints that a schema cannot express."""
    path = locations.path
    try:
        sets, env = sets_of(form, Path(path).parent), variables(form.env)
    except ValueError as error:
        raise SpecError(f"{path}: {error}{'' if str(error).endswith('?') else '.'}") from None
    workdir, notes = _workdir_of(form, locations)
    names = [set_spec.name for set_spec in sets]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise SpecError(f"{path}: two sets are named {double}.", "Give each set a name of its own.")
    try:
        pins = parse_pins(form.placement.on) if form.placement.on else ()
    except ValueError as error:
        raise SpecError(f"{locations.of(('placement', 'on'))}: placement.on: {error}.") from None
    queue, may_wait = _queue_of(form.queue)
    if queue is not None and queue.by is QueueSystem.KUEUE and not queue.name:
        sentence = f"{locations.of(('queue',))}: Kueue needs the name of a LocalQueue."
        raise SpecError(sentence, "Write `queue: {by: kueue, name: NAME}`; `kubectl get localqueues` lists them.")
    train = msgspec.to_builtins(train_of(form))
    try:
        json.dumps(train, allow_nan=False)  # msgspec would silently write null
    except ValueError:
        sentence = f"{locations.of(('train',))}: train holds .nan or .inf, which JSON does not have."
        raise SpecError(sentence) from None
    spec = RunSpec(
        kind_of(form),
        experiment=form.name,
        name=form.name,
        sets=sets,
        seed=form.seed,
        image=form.image,
        env=env,
        train=msgspec.json.encode(train).decode(),
        queue=queue,
        may_wait=may_wait,
        limits=limits_in(form, locations, limits),
        alerts=alerts_in(form, locations),
        workdir=workdir,
    )
    # The local backend runs no image, but the same file is meant for others.
    for image in filter(None, (spec.image, *(set_spec.pod.image for set_spec in sets))):
        check_image(path, image)
    try:
        with_sidecar = [set_spec for set_spec in sets if sidecar_of(spec, set_spec) is not None]
    except ValueError as error:
        raise SpecError(f"{locations.of(('train', 'environment_options', 'simulator'))}: {error}.") from None
    if crowded := next((set_spec.name for set_spec in with_sidecar if set_spec.pod.host_network), None):
        sentence = (
            f"{path}: {crowded}: pod.host_network gives every simulator the same ports, which are its node's."
        )
        raise SpecError(sentence, "Leave out host_network, or choose another kind of simulator.")
    seeds = _seeds_of(form, locations)
    return LaunchRequest(spec, PlacementPolicy(form.placement.policy), pins, path, notes, seeds=seeds)


def _workdir_of(form: SpecForm, locations: Locations) -> tuple[Workdir | None, tuple[Finding, ...]]:
    """Return the packed own code of a run, and findings on it; the trials of a sweep share one archive."""
    if not form.workdir:
        if form.setup:
            sentence = f"{locations.of(('setup',))}: setup runs in workdir, and there is none."
            raise SpecError(sentence, "Write `workdir: .`, which sends the folder of this file.")
        return None, ()
    value = WorkdirForm(form.workdir) if isinstance(form.workdir, str) else form.workdir
    if value.path not in locations.packed:
        from l2rtui.services.spec.workdir import pack  # tarfile, gzip: only for specs with own code

        folder, where = Path(locations.path).parent, locations.of(("workdir",))
        locations.packed[value.path] = pack(value.path, folder, where, allows_outside=locations.allows_outside)
    workdir, notes = locations.packed[value.path]
    return replace(workdir, setup=tuple(map(tuple, form.setup)), volume=value.volume), notes


def _seeds_of(form: SpecForm, locations: Locations) -> tuple[int, ...]:
    """Return the seeds of a spec; empty where it has one run."""
    if form.seeds is None:
        return ()
    if form.seed:
        raise SpecError(f"{locations.of(('seeds',))}: seed and seeds both say it.", "Leave out one of the two.")
    items = form.seeds if isinstance(form.seeds, list) else [form.seeds]
    try:
        return parse_seeds(",".join(map(str, items)))
    except ValueError as error:
        raise SpecError(f"{locations.of(('seeds',))}: seeds: {error}.") from None
