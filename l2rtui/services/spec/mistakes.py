"""Messages for errors in a spec file: an error of msgspec as a sentence with file, line and field."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from l2rtui.domain.workload import Kind
from l2rtui.errors import SpecError, nearest
from l2rtui.services.spec import schema
from l2rtui.services.spec.yaml_lines import Keys, Locations, dotted
from runtime.base import bounded_json

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
_NAMES = {type(None): "null", bool: "bool", int: "int", float: "float", str: "str", list: "array", dict: "object"}
"""Types as msgspec names them."""
_MOST_MISTAKES = 20
_SETS = ("learner", "workers", "servers", "nodes", "steps", "job")
_PATTERN = re.compile(r"Expected `str` matching regex .*")


def explain_mistake(
    error: msgspec.ValidationError,
    data: Mapping[str, Any],
    locations: Locations,
    under: Keys = (),
    form: Any = None,
) -> SpecError:
    """Turn an error of msgspec into a SpecError with file, line and the nearest field name.

    Args:
        data: Contents of the file.
        under: Path of the part that was decoded; empty for all of it.
        form: Form of that part; None for a full spec.
    """
    # msgspec gives the path and the kind of an error only in its message; the patterns above parse it.
    text = str(error)
    at = _AT.search(text)
    keys = (*under, *_keys(at["path"])) if at else under
    text = _AT.sub("", text)
    if unknown := _UNKNOWN.search(text):
        keys = (*keys, unknown["field"])
        return SpecError(f"{locations.of(keys)}: there is no field {dotted(keys)}.", _nearest(keys, data, form))
    if missing := _MISSING.search(text):
        keys = (*keys, missing["field"])
        if keys == ("kind",):
            return SpecError(f"{locations.of(())}: kind is missing: write one of {', '.join(Kind)}.")
        return SpecError(f"{locations.of(keys[:-1])}: {dotted(keys)} is missing.")
    if keys == ("kind",):
        from l2rtui.backends.kubernetes.manifests.import_fields import PARTS  # which specs do not need

        kind, kinds = data.get("kind"), ", ".join(Kind)
        hint = "An object of Kubernetes begins with its apiVersion: v1, apps/v1, batch/v1."
        is_object = isinstance(kind, str) and kind in PARTS
        sentence = f"{locations.of(keys)}: kind {kind!r} is not known: write one of {kinds}."
        return SpecError(sentence, hint if is_object else "")
    if at and at["path"].endswith("[...]"):
        keys = _item_of_type(text, keys, data)
    # The value is shown as it is in the file: after decoding it would be gone.
    value = _value(data, keys)
    if _PATTERN.match(text):
        text = "Expected lower-case letters, digits and '-', first a letter"
    text = _TYPE.sub(lambda match: " or ".join(_TYPES.get(name, name) for name in match[1].split(" | ")), text)
    if text.startswith("Invalid enum value") and (words := _words_of(keys, data)):
        text = f"write one of {', '.join(words)}"
    text = text[0].lower() + text[1:]
    return SpecError(f"{locations.of(keys)}: {dotted(keys) or 'the file'} is {_shown(value)}: {text}.")


def explain_all(error: msgspec.ValidationError, data: Mapping[str, Any], locations: Locations) -> SpecError:
    """Turn the first mistake in a spec, and those that follow, into one SpecError with a line for each."""
    errors, rest = [explain_mistake(error, data, locations)], copy.deepcopy(dict(data))
    # msgspec stops at the first: it is taken out, and the rest is read once more.
    while len(errors) < _MOST_MISTAKES and _take_out(str(error), rest):
        try:
            bounded_json.convert(rest, schema.SpecForm)
            break
        except msgspec.ValidationError as next_error:
            error = next_error
        # A field that is missing may be missing because its wrong value was taken out.
        if _MISSING.search(str(error)):
            break
        errors.append(explain_mistake(error, rest, locations))
    if len(errors) == 1:
        return errors[0]
    return SpecError("\n".join(map(str, errors)))


def _take_out(text: str, data: Any) -> bool:
    """Remove the field that a message of msgspec is about; False where that is not one field of a mapping."""
    at, unknown = _AT.search(text), _UNKNOWN.search(text)
    path = at["path"] if at else "$"
    keys = (*_keys(path), unknown["field"]) if unknown else _keys(path)
    if not keys or keys == ("kind",) or "[...]" in path or not isinstance(keys[-1], str):
        return False
    parent = _value(data, keys[:-1])
    return isinstance(parent, dict) and parent.pop(keys[-1], parent) is not parent


def _keys(text: str) -> Keys:
    """Parse a path of msgspec: ``$.workers[0].replicas``; ``[...]`` stands for a value of a mapping."""
    keys: list[str | int] = []
    for name, number in re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", text):
        if name:
            keys.append(name)
        elif number.isdigit():
            keys.append(int(number))
    return tuple(keys)


def _forms() -> dict[str, Any]:
    """Return the form of each kind of spec."""
    return {str(form.__struct_config__.tag): form for form in get_args(schema.SpecForm)}


def _form_of(keys: Keys, data: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the form that a field is in, and the forms of the parts of a spec."""
    forms = _forms()
    # A wrong or missing kind still gets hints for the most common one.
    kind = data.get("kind")
    form: Any = forms.get(kind, schema.LearnerWorkersForm) if isinstance(kind, str) else schema.LearnerWorkersForm
    inner = {
        "learner": schema.LearnerForm,
        "workers": schema.PsWorkersForm if kind == Kind.PARAMETER_SERVER else schema.WorkersForm,
        "servers": schema.ServersForm,
        "nodes": schema.NodesForm,
        "rendezvous": schema.RendezvousForm,
        "steps": schema.StepForm,
        "evaluator": schema.EvaluatorForm,
        "job": schema.TaskForm,
        "placement": schema.PlacementForm,
        "workdir": schema.WorkdirForm,
        "resources": schema.ResourcesForm,
        "queue": schema.QueueForm,
        "limits": schema.LimitsForm,
        "alerts": schema.AlertForm,
        "pod": schema.PodForm,
        "mounts": schema.MountForm,
        "tolerations": schema.TolerationForm,
    }
    for key in keys[:-1]:
        form = inner.get(str(key), form)
    return form, inner


def _words_of(keys: Keys, data: Mapping[str, Any]) -> list[str]:
    """Return the words that a field may be; none where it is not a choice of them."""
    form, _ = _form_of(keys, data)
    hint = get_type_hints(form, include_extras=True).get(str(keys[-1])) if keys else None
    words, parts = [], [hint]
    while parts:
        part = parts.pop(0)
        if get_origin(part) is Literal:
            words += [str(word) for word in get_args(part)]
        elif isinstance(part, type) and issubclass(part, Enum):
            words += [str(word.value) for word in part]
        else:
            parts = [*get_args(part), *parts]
    return words


def _nearest(keys: Keys, data: Mapping[str, Any], of_part: Any) -> str:
    """Return a hint that names the most similar field, or all fields."""
    form, inner = _form_of(keys, data)
    form = of_part or form
    names = [*form.__struct_fields__, *(["kind"] if len(keys) == 1 else [])]
    if len(keys) == 1 and not of_part:
        parts = [part for part in names if part in inner and keys[0] in inner[part].__struct_fields__]
        # Fields of a set that newcomers write at the top level: `resources`, `replicas`, `slots`.
        lists = (schema.WorkersForm, schema.StepForm)
        sets = [f"{part}.0" if inner[part] in lists else part for part in parts if part in _SETS]
        if sets and keys[0] != "name":
            return f"Did you mean {' or '.join(f'{part}.{keys[0]}' for part in sets)}?"
        if hint := _sets_of_kind(str(keys[0]), data):
            return hint
    is_of_spec = len(keys) == 1 and not of_part and not difflib.get_close_matches(str(keys[0]), names, 1, 0.75)
    if is_of_spec and (setting := _near_setting(str(keys[0]), data)):
        return f"Did you mean train.{setting}?"
    return nearest(str(keys[-1]), names) or f"The fields here are {', '.join(names)}."


def _sets_of_kind(name: str, data: Mapping[str, Any]) -> str:
    """Return a hint with the sets of a spec's kind; empty if the field is a set of no kind."""
    forms = _forms()
    kind = str(data.get("kind"))
    similar = difflib.get_close_matches(name, (*_SETS, "sets", "pods"), 1, 0.8)
    if kind not in forms or not similar or similar[0] in forms[kind].__struct_fields__:
        return ""
    sets = [part for part in _SETS if part in forms[kind].__struct_fields__]
    others = [other for other, form in forms.items() if similar[0] in form.__struct_fields__]
    here = f"Kind {kind} has {' and '.join(sets)}"
    return f"{here}; {similar[0]} belongs to kind {' and '.join(others)}." if others else f"{here}."


def _near_setting(name: str, data: Mapping[str, Any]) -> str:
    from runtime.base.training import near_setting  # only for mistakes

    train = data.get("train")
    algorithm = train.get("algorithm") if isinstance(train, Mapping) else None
    return near_setting(name, algorithm if isinstance(algorithm, str) else "sac")


def _item_of_type(text: str, keys: Keys, data: Mapping[str, Any]) -> Keys:
    """Return the path of the first item of a mapping that has the refused type, which msgspec does not name."""
    refused = text.rpartition("got ")[2].strip("`")
    values = _value(data, keys)
    for key, value in values.items() if isinstance(values, dict) else ():
        if _NAMES.get(type(value)) == refused:
            return (*keys, key)
    return keys


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
