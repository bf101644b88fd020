"""Declaration of settings as typed data, and the check of values against it.

A setting is a field of a frozen dataclass. Its type carries the bounds (``Count``, ``Share``), and ``setting`` its
documentation: meaning, when to change it, unit, source, an example. msgspec checks values and makes the JSON Schema
of the same declaration; the sentences for mistakes are made here. Learners, workers, the app and the reference page
read nothing else.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
WholeShare = Annotated[float, Meta(ge=0, le=1)]
_ONE_LAYER: Final = {"sentence": "it needs at least one layer, each at least 1 wide"}
Widths = Annotated[tuple[Count, ...], Meta(min_length=1, extra=_ONE_LAYER)]

_MOST_SHOWN: Final = 60
_BOUNDS: Final = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_ITEMS: Final = {int: "whole numbers", float: "numbers", str: "texts"}
_NUMBERS: Final = {2: "two", 3: "three", 4: "four"}


def setting(meaning: str, *, when: str = "", unit: str = "", source: str = "", example: Any = None) -> Meta:
    """Return the documentation of a setting, for ``Annotated``.

    Args:
        meaning: A sentence. when: When to change it. unit: Of its value.
        source: Paper or program that it is from. example: A value, where the default is none.
    """
    notes = {"x-when": when, "x-unit": unit, "x-source": source}
    return Meta(
        description=f"{meaning} {when}".strip(),
        examples=None if example is None else [example],
        extra_json_schema={name: text for name, text in notes.items() if text} or None,
    )


# --- fields of one's own Config, which older files declare by values ----------------------------------------


def number(default: Any, bounds: Mapping[str, float]) -> Any:
    """Declare a setting that is a number within ``bounds``, for example ``{"above": 0.0}``."""
    return dataclasses.field(default=default, metadata={"bounds": bounds})


def choice(default: str, one_of: Sequence[str]) -> Any:
    """Declare a setting that is one of several words."""
    return dataclasses.field(default=default, metadata={"one_of": tuple(one_of)})


def types_of(kind: type) -> dict[str, Any]:
    """Return the type of each setting of a dataclass, by its name; Any where its file hides it."""
    return _types_of(kind)


@functools.cache
def _types_of(kind: Any) -> dict[str, Any]:
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:  # a type that a user's file imports only for type checkers
        hints = {}
    return {
        field.name: _with_metadata(hints.get(field.name, Any), field.metadata) for field in dataclasses.fields(kind)
    }


def _with_metadata(hint: Any, metadata: Mapping[str, Any]) -> Any:
    if words := metadata.get("one_of"):
        return Literal[words]
    if not (bounds := metadata.get("bounds")):
        return hint
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(_with_metadata(part, metadata) for part in get_args(hint))]  # noqa: UP007  (of a tuple)
    names = {words: name for name, words in _BOUNDS.items()}
    # msgspec takes no bound that is a float for a whole number.
    limits: dict[str, Any] = {names[words]: hint(limit) for words, limit in bounds.items() if hint in (int, float)}
    return Annotated[hint, Meta(**limits)] if limits else hint


# --- reading ------------------------------------------------------------------------------------------------


def read_fields(kind: type, values: Mapping[str, Any], label: str = "") -> tuple[dict[str, Any], list[str]]:
    """Return the values in their declared types, and a sentence for each mistake.

    Args:
        label: Name of the settings in sentences; empty for the training settings themselves.
    """
    types, fields, mistakes = types_of(kind), {}, []
    for name, value in values.items():
        if name not in types:
            mistakes.append(unknown(name, types, label))
        elif sentence := mistake(name, value, types[name]):
            mistakes.append(f"{label}: {sentence}" if label else sentence)
        else:
            fields[name] = msgspec.convert(value, types[name])
    return fields, mistakes


def unknown(name: str, names: Iterable[str], label: str, near: str = "") -> str:
    """Return the sentence for a setting that there is not, with those that there are or the one that was meant."""
    names = list(names)
    parts = [other for other in names if len(name) > 1 and name in other.split("_")]
    near = near or next(iter([*difflib.get_close_matches(name, names, n=1), *parts]), "")
    if label:
        question = f"; did you mean {near!r}?" if near else ""
        return f"{label} has no setting {name!r}; known are {', '.join(names)}{question}"
    hint = f"did you mean {near!r}?" if near else f"known are {', '.join(names)}"
    return f"there is no setting {name!r}; {hint}"


def mistake(name: str, value: Any, hint: Any) -> str:
    """Return the sentence for a value that is not of a type; empty where it is."""
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        if "out of range" in str(error):
            return f"{name} is too large"
    except TypeError:  # a type of one's own that msgspec does not know
        return ""
    else:
        return ""
    # A value of the right type breaks a bound: the sentence says which one, and not the type once more.
    is_of_type = _is_of_type(value, _without_bounds(hint))
    rule = _bounds(hint, isinstance(value, list | tuple)) if is_of_type else f"it must be {kind_text(hint)}"
    return f"{name} is {shown(value)}; {rule}"


def _is_of_type(value: Any, hint: Any) -> bool:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True


def shown(value: Any) -> str:
    """Return a value as a sentence shows it: a text in quotes, others as JSON."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=repr)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def _without_bounds(hint: Any) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _without_bounds(parts[0])
    if origin in (Union, UnionType):
        return Union[tuple(map(_without_bounds, parts))]  # noqa: UP007  (of a tuple)
    return tuple[tuple(map(_without_bounds, parts))] if origin is tuple else hint  # type: ignore[misc]


def kind_text(hint: Any) -> str:
    """Return a type in words: ``a whole number or null``, ``one of auto, cpu, cuda``."""
    words = _alternatives(hint)
    if get_origin(_bare(hint)) is Literal and len(words) > 2:
        return f"one of {', '.join(words)}"
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _bare(hint: Any) -> Any:
    return _bare(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def _alternatives(hint: Any) -> list[str]:
    if get_origin(hint) is Annotated:
        base, *metas = get_args(hint)
        own = next((meta.extra["kind"] for meta in metas if (meta.extra or {}).get("kind")), "")
        return [own] if own else _alternatives(base)
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return [word for part in parts for word in _alternatives(part)]
    if origin is Literal:
        return [str(part) for part in parts]
    if origin is tuple:
        item = _bare(parts[0])
        if get_origin(item) is tuple:
            inner = get_args(item)
            return [f"a list of lists of {_NUMBERS[len(inner)]} {_ITEMS[_bare(inner[0])]}"]
        return [f"a list of {_ITEMS[item]}"]
    words: dict[Any, list[str]] = {
        int: ["a whole number"],
        float: ["a number"],
        str: ["a text"],
        bool: ["true", "false"],
        NoneType: ["null"],
    }
    return words.get(hint, ["an object"])


def _bounds(hint: Any, is_list: bool) -> str:
    """Return the rule of a type's bounds: ``it must be above 0 and at most 1``."""
    metas = list(_metas(hint))
    for meta in metas:
        if sentence := (meta.extra or {}).get("sentence"):
            return str(sentence)
    limits = [
        f"{words} {limit:g}"
        for meta in metas
        for name, words in _BOUNDS.items()
        if (limit := getattr(meta, name)) is not None
    ]
    text = " and ".join(dict.fromkeys(limits))
    if is_list:
        return f"each must be {text}"
    return f"it must be a whole number, {text}" if _bare(hint) is int else f"it must be {text}"


def _metas(hint: Any) -> Iterable[Meta]:
    if get_origin(hint) is Annotated:
        yield from (meta for meta in get_args(hint)[1:] if isinstance(meta, Meta))
    for part in get_args(hint):
        yield from _metas(part)
