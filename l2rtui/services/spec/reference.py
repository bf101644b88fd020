"""Reference of spec files: the JSON Schema of every field, and one field explained.

The forms of a spec and the training settings of `runtime.base` are declared once, for reading; this reads the same
declarations. Descriptions and examples that follow from them (defaults, fields of a part) are filled in here.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from l2rtui.errors import UsageError
from l2rtui.services.spec.schema import SpecForm
from runtime.base.methods import METHODS
from runtime.base.training import Settings, near_setting

SCHEMA_ID: Final = "urn:l2rtui:spec"
_REF: Final = "#/$defs/"
_TRAIN: Final = "Settings"


@functools.cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a spec file."""
    made = msgspec.json.schema(SpecForm)
    definitions: dict[str, Any] = made["$defs"]
    _, settings = msgspec.json.schema_components([Settings, *METHODS.values()], ref_template=f"{_REF}{{name}}")
    definitions |= settings
    # msgspec reads dataclasses leniently; the runtime refuses a name that is not declared.
    for name in settings:
        definitions[name]["additionalProperties"] = False
    for name, kind in METHODS.items():
        definitions[_TRAIN]["properties"][name] |= {"$ref": f"{_REF}{kind.__name__}"}
        del definitions[_TRAIN]["properties"][name]["type"]
    for definition in definitions.values():
        if kind_field := definition.get("properties", {}).get("kind", {}):
            kind_field.setdefault("description", f"Kind of the run. {definition.get('description', '')}".strip())
        for field in definition.get("properties", {}).values():
            _complete(field, definitions)
    # A user-defined learner reads any settings; the built-in one has the settings below.
    own_command = {"properties": {"learner": {"required": ["command"]}}, "required": ["learner"]}
    typed = {"properties": {"train": {"$ref": f"{_REF}{_TRAIN}"}}}
    definitions["LearnerWorkersForm"] |= {"if": own_command, "then": {}, "else": typed}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Spec file of l2rtui",
        **made,
    }


def _complete(field: dict[str, Any], definitions: Mapping[str, Any]) -> None:
    """Give a field its description and an example, as far as they follow from its type."""
    # Only the innermost type has words of its own where a field is one of several.
    parts = list(_parts(field))
    targets = [definitions[name] for part in parts if (name := _target(part))]
    for part in (*parts, *targets):
        if "description" not in field and (text := part.get("description")):
            field["description"] = text
    if "examples" not in field and (example := _example(parts, targets, definitions)) is not None:
        field["examples"] = [example]


def _parts(field: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a field and the types that it may have."""
    yield field
    for part in field.get("anyOf", ()):
        yield from _parts(part)


def _target(part: Mapping[str, Any]) -> str:
    """Return the name of the definition that a type refers to, itself or for its items; empty for none."""
    reference = part.get("$ref") or (part.get("items") or {}).get("$ref", "")
    return str(reference).removeprefix(_REF)


def _example(parts: Sequence[Mapping[str, Any]], targets: Sequence[Mapping[str, Any]], definitions: Any) -> Any:
    for part in parts:
        if part.get("examples"):
            return part["examples"][0]
    default = parts[0].get("default")
    if default not in (None, "", [], {}):
        return default
    for part in parts:
        if part.get("enum"):
            return next((word for word in part["enum"] if word), None)
    for target in targets:
        for name, field in target["properties"].items():
            _complete(field, definitions)
            if field.get("examples") and (name in target.get("required", ()) or not target.get("required")):
                value = {name: field["examples"][0]}
                return [value] if any("items" in part for part in parts) else value
    return None


class Field(Struct, frozen=True):
    """One field of a spec, with the kinds of runs in which it has this meaning."""

    path: str
    kinds: tuple[str, ...]
    schema: Mapping[str, Any]
    fields: Mapping[str, Mapping[str, Any]]
    """Those below it, by name."""

    @property
    def type(self) -> str:
        """Its type and bounds in words."""
        return _type_text(self.schema)


def explained(path: str) -> list[Field]:
    """Return the field of a path such as ``train.sac.actor_lr``, once for each of its meanings.

    Numbers of list items may be left out. The empty path is the spec itself.

    Raises:
        UsageError: there is no such field; names the nearest.
    """
    document = schema()
    definitions = document["$defs"]
    keys = [key for key in path.replace("[", ".").replace("]", "").split(".") if key and not key.isdigit()]
    # Kinds share most fields: one answer for all that mean the same.
    meanings: dict[str, Field] = {}
    for form in document["anyOf"]:
        definition = definitions[_target(form)]
        kind = definition["properties"]["kind"]["enum"][0]
        if (field := _walk(definition, keys, definitions, kind)) is None:
            continue
        text = repr((field, _below(field, definitions)))
        kinds = (*meanings[text].kinds, kind) if text in meanings else (kind,)
        meanings[text] = Field(".".join(keys), kinds, field, _below(field, definitions))
    if not meanings:
        raise UsageError(f"A spec has no field {path}.", near_field(path))
    return list(meanings.values())


def _walk(definition: Any, keys: Sequence[str], definitions: Mapping[str, Any], kind: str) -> Any:
    field = definition
    for number, key in enumerate(keys):
        below = _below(field, definitions)
        if key not in below:
            return None
        field = below[key]
        # ``train`` has fields of its own where the learner is ours.
        if number == 0 and key == "train" and kind == "learner-workers":
            field = {**field, "$ref": f"{_REF}{_TRAIN}"}
    return field


def _below(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields below a field, by name."""
    parts = list(_parts(field))
    targets = [definitions[name] for part in parts if (name := _target(part))]
    return {name: value for part in (*parts, *targets) for name, value in part.get("properties", {}).items()}


def every_path() -> Iterator[str]:
    """Yield the path of every field of a spec, each once."""
    document = schema()
    definitions = document["$defs"]

    def below(field: Any, keys: tuple[str, ...], kind: str) -> Iterator[str]:
        for name in _below(field, definitions):
            path = (*keys, name)
            yield ".".join(path)
            yield from below(_walk(definitions[form], path, definitions, kind), path, kind)

    paths: dict[str, None] = {}
    for form in (_target(form) for form in document["anyOf"]):
        kind = definitions[form]["properties"]["kind"]["enum"][0]
        paths |= dict.fromkeys(below(definitions[form], (), kind))
    yield from paths


def near_field(path: str, algorithm: str = "sac") -> str:
    """Return a question that names the fields that a wrong path may have meant; empty for none."""
    keys = [key for key in path.split(".") if not key.isdigit()] or [""]
    paths = list(every_path())
    same = [other for other in paths if other.split(".")[-1] == keys[-1] and not other.startswith("train.")]
    method = keys[1] if keys[0] == "train" and len(keys) > 2 else algorithm
    if (setting := near_setting(keys[-1], method)) and (keys[0] == "train" or not same):
        return f"Did you mean train.{setting}?"
    close = same[:2] or difflib.get_close_matches(path, paths, n=2, cutoff=0.6)
    return f"Did you mean {' or '.join(close)}?" if close else "`l2rtui explain` names all fields."


# --- in words -------------------------------------------------------------------------------------------------
_TYPES: Final = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "object": "mapping",
    "null": "null",
}
_LIMITS: Final = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


def _type_text(field: Mapping[str, Any]) -> str:
    """Return a type in words: ``number, above 0 and at most 1``."""
    if "anyOf" in field and all("pattern" in part or "enum" in part for part in field["anyOf"]):
        return ", ".join(map(str, field["anyOf"][0]["enum"])) + ", or package.module:Class"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(_type_text, field["anyOf"])))
    if "enum" in field:
        return ", ".join(str(word) or '""' for word in field["enum"])
    if "$ref" in field:
        return "mapping"
    if field.get("type") == "array":
        items: dict[str, Any] = field.get("items") or next(iter(field.get("prefixItems", ())), {})
        return f"list of: {_type_text(items)}" if items else "list"
    text = _TYPES.get(str(field.get("type")), "any value")
    limits = " and ".join(f"{words} {field[name]:,}" for name, words in _LIMITS.items() if name in field)
    return f"{text}, {limits}" if limits else text


def meaning(field: Mapping[str, Any]) -> str:
    """Return the description of a field without the parts that have their own line."""
    return str(field.get("description", "")).removesuffix(str(field.get("x-when", ""))).strip()


def described(field: Field) -> Iterator[tuple[str, str]]:
    """Yield a heading and its text for what is known of a field, in the order of reading."""
    schema_of = field.schema
    yield "FIELD", field.path or "the spec"
    yield "KINDS", ", ".join(field.kinds)
    yield "TYPE", field.type
    if schema_of.get("default") not in (None, "", [], {}):
        yield "DEFAULT", in_yaml(schema_of["default"])
    if examples := schema_of.get("examples"):
        yield "EXAMPLE", in_yaml(examples[0])
    for heading, key in (("UNIT", "x-unit"), ("CHANGE IT", "x-when"), ("SOURCE", "x-source")):
        if text := schema_of.get(key):
            yield heading, str(text)
    yield "MEANING", meaning(schema_of)


def in_yaml(value: Any) -> str:
    """Return a value as YAML on one line."""
    return msgspec.json.encode(value).decode() if not isinstance(value, str) else value


# --- page of the training settings -------------------------------------------------------------------------
_HEAD: Final = """\
# Training settings

These settings are under `train` in a spec. `--set train.sac.actor_lr=1e-4` changes one. `l2rtui explain
train.sac.actor_lr` prints one, and `l2rtui explain` any field of a spec.

`python -m l2rtui.services.spec.reference > docs/settings.md` generates this page from the declarations that
learners, workers and every launch use to check values. A test compares the two.
"""


def page() -> str:
    """Return the page of all training settings, as Markdown."""
    definitions = schema()["$defs"]
    parts = [_HEAD, "## Of every run\n", _table(definitions[_TRAIN]["properties"])]
    for name, kind in METHODS.items():
        definition = definitions[kind.__name__]
        parts += [f"## train.{name}\n", f"{definition['description']}\n", _table(definition["properties"])]
    return "\n".join(parts)


def _table(fields: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        "| setting | default | may be | meaning | change it | source |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, field in fields.items():
        default = field.get("default")
        unit = f" {field['x-unit']}" if "x-unit" in field and default is not None else ""
        cells = (
            f"`{name}`",
            "" if default is None and "anyOf" not in field else f"`{in_yaml(default)}`{unit}",
            _type_text(field),
            meaning(field),
            field.get("x-when", ""),
            field.get("x-source", ""),
        )
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(page(), end="")
