"""A spec file in YAML to a RunSpec, and a sentence with file, line and field for every mistake in it.

Decoding keeps the YAML nodes beside the values: msgspec names the path of a wrong value, the node tells its line,
and the nearest right name comes from the form itself.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from l2rtui.domain.keyscan import find_keys
from l2rtui.domain.placement import Pin, Policy, parse_pins
from l2rtui.domain.preflight import Finding
from l2rtui.domain.sidecar import sidecar_of
from l2rtui.domain.workload import Kind, RunSpec
from l2rtui.errors import SpecError
from l2rtui.services import psvalues
from l2rtui.services.specbuild import kind_of, sets_of, variables
from l2rtui.services.specform import (
    ElasticForm,
    EvaluatorForm,
    JobForm,
    LearnerForm,
    LearnerWorkersForm,
    MountForm,
    NodesForm,
    ParameterServerForm,
    PlacementForm,
    PodForm,
    PsWorkersForm,
    RendezvousForm,
    ResourcesForm,
    ServersForm,
    SpecForm,
    StepForm,
    TaskForm,
    TolerationForm,
    WorkersForm,
)

MAX_FILE_BYTES = 1_048_576
MAX_VALUES = 20_000
"""Values in one file with every alias written out: more is no spec but an attempt to fill the memory."""
_TOO_MUCH = "too many or too deeply nested values for a spec."

_KUBERNETES = re.compile(rb"^apiVersion[ \t]*:", re.MULTILINE)

Keys = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a spec file asks for.

    Attributes:
        source: The file, for messages.
        notes: What was changed in a file that is not ours: it is shown with the plan.
    """

    spec: RunSpec
    policy: Policy = Policy.PACK
    pins: tuple[Pin, ...] = ()
    source: str = ""
    notes: tuple[Finding, ...] = ()


def load(path: str, overrides: Sequence[str] = (), name: str = "", *, binding: str = "") -> Wish:
    """Read a spec file, the values of an old Helm chart, or a file with Kubernetes' own objects.

    Args:
        overrides: ``field.field=value`` as ``--set`` takes them; list items by number, the value is YAML.
        name: Takes the place of the file's ``name``.
        binding: How pods get their GPU where the file does not say.

    Raises:
        SpecError: the file is missing or wrong; names file, line and field.
    """
    raw = _bytes(path)
    if _KUBERNETES.search(raw):
        from l2rtui.services.imported import load_objects

        spec, changes = load_objects(raw, path, overrides, name)
        return Wish(spec, source=path, notes=changes)
    data, places = _read(raw, path)
    if not isinstance(data, dict):
        raise SpecError(f"{path}: a spec is a mapping of fields, this file holds {_kind(data)}.", "See manifests/.")
    for override in overrides:
        where = _override(data, override)
        places = {keys: place for keys, place in places.items() if keys[: len(where)] != where}
        places[where] = f"--set {override}"
    if name:
        data["name"] = name
        places["name",] = f"--name {name}"
    _refuse_keys(data, path, places)
    notes: tuple[Finding, ...] = ()
    form: SpecForm
    try:
        if psvalues.is_values(data):
            form, notes = psvalues.form_of(msgspec.convert(data, psvalues.Values), data)
        else:
            form = msgspec.convert(data, SpecForm)
    except msgspec.ValidationError as error:
        raise _explained(error, data, path, places) from None
    except ValueError as error:
        raise SpecError(f"{path}: {error}.") from None
    if binding and form.pod.binding is None:
        form.pod = msgspec.structs.replace(form.pod, binding=binding)
    return replace(_wish(form, path, places), notes=notes)


def _refuse_keys(data: Any, path: str, places: dict[Keys, str]) -> None:
    """Refuse a spec that holds a key: specs are kept and shown; the sentence names the field and not the key."""
    for keys, what in find_keys(data):
        place = _place(path, places, keys)
        where = "--set" if place.startswith("--set ") else f"{place}:"  # what was set would hold the key
        raise SpecError(
            f"{where} {_dotted(keys)} looks like {what}, and specs are no place for it.",
            "Keep it with `l2rtui secret create NAME --prompt KEY`, and name it: pod: {secrets: [NAME]}.",
        )


def schema() -> dict[str, Any]:
    """Give the JSON Schema (draft 2020-12) of a spec file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(SpecForm)}


# --- YAML ------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML with the booleans of version 1.2: ``on``, ``off``, ``yes`` and ``no`` are words."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (a class attribute by PyYAML's design)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("true|True|TRUE|false|False|FALSE"), list("tTfF")
)


def _bytes(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise SpecError(f"There is no spec file {path}.", "Examples are in manifests/.") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.", "Examples are in manifests/.") from error
    if len(raw) > MAX_FILE_BYTES:
        raise SpecError(f"{path} is larger than 1 MiB, which no spec is.", "Examples are in manifests/.")
    return raw


def _read(raw: bytes, path: str) -> tuple[Any, dict[Keys, str]]:
    """Parse one YAML document; file and line of each value stand beside it, by the value's path."""
    try:
        loader = _Loader(raw)
        try:
            node = loader.get_single_node()
            places: dict[Keys, str] = {}
            if node is not None:
                _walk(node, (), places, path)
            return (loader.construct_document(node) if node is not None else None), places
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"{path}:{line}: not YAML: {error.problem}.") from None
    except yaml.reader.ReaderError as error:
        sentence = f"{path}: not YAML: what stands at byte {error.position} is no text in UTF-8."
        raise SpecError(sentence, "Examples are in manifests/.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(f"{path}: not YAML: {error}.") from None
    except RecursionError:
        raise SpecError(f"{path}: {_TOO_MUCH}") from None


def _walk(node: yaml.Node, keys: Keys, places: dict[Keys, str], path: str) -> None:
    """Note the place of every value, and refuse what PyYAML lets pass: double keys and endless aliases."""
    if len(places) > MAX_VALUES or len(keys) > 40:
        raise SpecError(f"{path}: {_TOO_MUCH}")
    places[keys] = f"{path}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            _walk(item, (*keys, number), places, path)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*keys, str(key.value))
            if inner in places and key.value != "<<":
                raise SpecError(f"{path}:{key.start_mark.line + 1}: {_dotted(inner)} is written twice.")
            _walk(value, inner, places, path)
            places[inner] = f"{path}:{key.start_mark.line + 1}"


def _override(data: dict[str, Any], override: str) -> Keys:
    """Write one ``--set`` into the data; the path of what was written."""
    where, equals, text = override.partition("=")
    keys = where.strip().split(".")
    if not equals or not all(keys):
        raise SpecError(f"--set {override}: write it as field.field=value, such as train.batch_size=128.")
    try:
        value = yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except RecursionError:
        raise SpecError(f"--set {where}: {_TOO_MUCH}") from None
    except yaml.YAMLError:
        value = text
    target: Any = data
    written: list[str | int] = []
    for number, key in enumerate(keys):
        here = f"--set {override}: {'.'.join(keys[: number + 1])}"
        last = _item(target, key, here) if isinstance(target, list) else key
        written.append(last)
        if number + 1 < len(keys):
            target = _inner(target, last, here)
        else:
            target[last] = value
    return tuple(written)


def _inner(target: Any, key: str | int, where: str) -> Any:
    found = target.setdefault(key, {}) if isinstance(target, dict) else target[key]
    if found is None:
        found = target[key] = {}
    if not isinstance(found, dict | list):
        raise SpecError(f"{where} is a plain value and has no fields.")
    return found


def _item(target: list[Any], key: str, where: str) -> int:
    """Find a list item by number or by its ``name``."""
    for number, item in enumerate(target):
        if key == str(number) or (isinstance(item, dict) and item.get("name") == key):
            return number
    raise SpecError(f"{where}: the list has {len(target)} items, and none is number or name {key!r}.")


# --- mistakes --------------------------------------------------------------------------------------------

_UNKNOWN = re.compile(r"unknown field `(?P<field>[^`]*)`")
_MISSING = re.compile(r"missing required field `(?P<field>[^`]*)`")
_AT = re.compile(r" - at `(?P<path>\$[^`]*)`$")
_TYPE = re.compile(r"`([^`]*)`")
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping of fields",
    "null": "nothing",
}
_PATTERN = re.compile(r"Expected `str` matching regex .*")


def _explained(
    error: msgspec.ValidationError, data: Mapping[str, Any], path: str, places: dict[Keys, str]
) -> SpecError:
    """Turn msgspec's sentence and path into ours, with the line and the nearest right name."""
    text = str(error)
    at = _AT.search(text)
    keys = _keys(at["path"]) if at else ()
    text = _AT.sub("", text)
    if unknown := _UNKNOWN.search(text):
        keys = (*keys, unknown["field"])
        return SpecError(f"{_place(path, places, keys)}: there is no field {_dotted(keys)}.", _nearest(keys, data))
    if missing := _MISSING.search(text):
        keys = (*keys, missing["field"])
        if keys == ("kind",):
            return SpecError(f"{_place(path, places, ())}: kind is missing: write one of {', '.join(Kind)}.")
        return SpecError(f"{_place(path, places, keys[:-1])}: {_dotted(keys)} is missing.")
    if keys == ("kind",):
        kinds = ", ".join(Kind)
        return SpecError(
            f"{_place(path, places, keys)}: kind {data.get('kind')!r} is not known: write one of {kinds}."
        )
    value = _value(data, keys)
    if _PATTERN.match(text):
        text = "Expected lower-case letters, digits and '-', first a letter"
    text = _TYPE.sub(lambda match: " or ".join(_TYPES.get(name, name) for name in match[1].split(" | ")), text)
    text = text[0].lower() + text[1:]
    return SpecError(f"{_place(path, places, keys)}: {_dotted(keys) or 'the file'} is {_shown(value)}: {text}.")


def _keys(text: str) -> Keys:
    """Read msgspec's path: ``$.workers[0].replicas``; ``[...]`` stands for a value of a mapping."""
    found: list[str | int] = []
    for name, number in re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", text):
        if name:
            found.append(name)
        elif number.isdigit():
            found.append(int(number))
    return tuple(found)


def _place(path: str, places: dict[Keys, str], keys: Keys) -> str:
    while keys and keys not in places:
        keys = keys[:-1]
    return places.get(keys, path)


def _dotted(keys: Keys) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")


def _nearest(keys: Keys, data: Mapping[str, Any]) -> str:
    """Name the field that was probably meant."""
    forms: dict[str, Any] = {
        Kind.JOB: JobForm,
        Kind.ELASTIC: ElasticForm,
        Kind.PARAMETER_SERVER: ParameterServerForm,
    }
    kind = data.get("kind")
    form: Any = forms.get(kind, LearnerWorkersForm) if isinstance(kind, str) else LearnerWorkersForm
    inner = {
        "learner": LearnerForm,
        "workers": PsWorkersForm if kind == Kind.PARAMETER_SERVER else WorkersForm,
        "servers": ServersForm,
        "nodes": NodesForm,
        "rendezvous": RendezvousForm,
        "steps": StepForm,
        "evaluator": EvaluatorForm,
        "job": TaskForm,
        "placement": PlacementForm,
        "resources": ResourcesForm,
        "pod": PodForm,
        "mounts": MountForm,
        "tolerations": TolerationForm,
    }
    for key in keys[:-1]:
        form = inner.get(str(key), form)
    names = [*form.__struct_fields__, *(["kind"] if len(keys) == 1 else [])]
    close = difflib.get_close_matches(str(keys[-1]), names, 1, 0.5)
    return f"Did you mean {close[0]}?" if close else f"The fields here are {', '.join(names)}."


def _value(data: Any, keys: Keys) -> Any:
    for key in keys:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _shown(value: Any) -> str:
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _kind(data: Any) -> str:
    return {type(None): "nothing", list: "a list", str: "text"}.get(type(data), "a single value")


# --- form to domain --------------------------------------------------------------------------------------


def _wish(form: SpecForm, path: str, places: dict[Keys, str]) -> Wish:
    try:
        sets = sets_of(form, Path(path).parent)
    except ValueError as error:
        raise SpecError(f"{path}: {error}.") from None
    names = [one.name for one in sets]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise SpecError(f"{path}: two sets are named {double}.", "Give each set a name of its own.")
    try:
        pins = parse_pins(form.placement.on) if form.placement.on else ()
    except ValueError as error:
        raise SpecError(f"{_place(path, places, ('placement', 'on'))}: placement.on: {error}.") from None
    train = msgspec.to_builtins(form.train)
    try:
        json.dumps(train, allow_nan=False)  # msgspec would write null for them
    except ValueError:
        sentence = f"{_place(path, places, ('train',))}: train holds .nan or .inf, which JSON does not have."
        raise SpecError(sentence) from None
    spec = RunSpec(
        kind_of(form),
        experiment=form.name,
        name=form.name,
        sets=sets,
        seed=form.seed,
        image=form.image,
        env=variables(form.env),
        train=msgspec.json.encode(train).decode(),
    )
    try:
        beside = [one for one in sets if sidecar_of(spec, one) is not None]
    except ValueError as error:
        raise SpecError(
            f"{_place(path, places, ('train', 'environment_options', 'simulator'))}: {error}."
        ) from None
    if crowded := next((one.name for one in beside if one.pod.host_network), None):
        sentence = (
            f"{path}: {crowded}: pod.host_network gives every simulator the same ports, which are its node's."
        )
        raise SpecError(sentence, "Leave out host_network, or choose another kind of simulator.")
    return Wish(spec, Policy(form.placement.policy), pins, path)
