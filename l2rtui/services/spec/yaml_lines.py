"""YAML of a spec file, with file and line of every value, and the values of ``--set`` written into it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from l2rtui import bounded_yaml
from l2rtui.domain.preflight import Finding
from l2rtui.domain.quantity import counted
from l2rtui.domain.workload import Workdir
from l2rtui.errors import SpecError

MAX_FILE_BYTES = 1_048_576
MAX_VALUES = 20_000
"""Values in one file with every alias expanded: more is an attempt to fill the memory."""
_MAX_DEPTH = 40
_TOO_MUCH = "too many or too deeply nested values for a spec."

Keys = tuple[str | int, ...]
"""Path of a value: keys of mappings and indices of lists."""


@dataclass(slots=True)
class Locations:
    """File and line of each value of a spec, for messages.

    Attributes:
        path: The file.
        by_keys: ``FILE:LINE``, or the flag that has set the value, by the path of the value.
        allows_outside: The spec may name files outside of its own folder.
        packed: Folders of own code that were packed, with findings, by their path: trials of a sweep share them.
    """

    path: str
    by_keys: dict[Keys, str] = field(default_factory=dict)
    allows_outside: bool = False
    packed: dict[str, tuple[Workdir, tuple[Finding, ...]]] = field(default_factory=dict)

    def of(self, keys: Keys) -> str:
        """Return the location of a value, or of the nearest value around it."""
        while keys and keys not in self.by_keys:
            keys = keys[:-1]
        return self.by_keys.get(keys, self.path)

    def set_by_flag(self, keys: Keys, flag: str) -> None:
        """Record that a flag has set a value; lines of the replaced values are dropped."""
        self.by_keys = {other: place for other, place in self.by_keys.items() if other[: len(keys)] != keys}
        self.by_keys[keys] = flag


TEMPLATE_HINT: Final = (
    "It looks like a template. Render it first, for example `helm template CHART | l2rtui plan -f -`."
)
EXAMPLES_HINT: Final = "`l2rtui launch -t cartpole-ppo` takes an example, `l2rtui new NAME` writes a spec."


_BOOL, _INT, _FLOAT, _TIMESTAMP = (f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "timestamp"))
_TEXT: Final = "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """YAML with the words and numbers of version 1.2, and ``1_000``.

    ``on`` and ``no`` are words, ``1e-4`` and ``010`` (ten) are numbers, ``12:30`` and ``2026-11-28`` are text.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  (a class attribute by PyYAML's design)
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in {_BOOL, _INT, _FLOAT, _TIMESTAMP}]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node)).replace("_", "")
        is_prefixed = text.lstrip("+-")[:2].lower() in ("0x", "0o", "0b")
        return int(text, 0 if is_prefixed else 10)


_Loader.add_constructor(_INT, _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(_BOOL, re.compile("(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    _INT,
    re.compile(r"[-+]?(?:0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+|[0-9][0-9_]*)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"""(?:[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*\.[0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
        re.VERBOSE,
    ),
    list("-+.0123456789"),
)


def read_bytes(path: str) -> bytes:
    """Read a spec file; ``-`` is the standard input.

    Raises:
        SpecError: it is missing, unreadable or too large.
    """
    try:
        # The standard input stays open: a later question must find its end.
        with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        hint = f"Download it first: curl -LO {path}" if "://" in path else EXAMPLES_HINT
        raise SpecError(f"There is no spec file {path}.", hint) from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.", EXAMPLES_HINT) from error
    if len(raw) > MAX_FILE_BYTES:
        raise SpecError(f"{path} is larger than 1 MiB, which no spec is.", EXAMPLES_HINT)
    return raw


def parse_yaml(raw: bytes, path: str) -> tuple[Any, Locations]:
    """Parse one YAML document; return its value, and the location of each value in it.

    Raises:
        SpecError: it is not YAML, has a key twice, or is too large.
    """
    try:
        bounded_yaml.check(raw, _Loader, max_values=MAX_VALUES)
        loader = _Loader(raw)
        try:
            node = loader.get_single_node()
            locations = Locations(path)
            if node is not None:
                _walk(node, (), locations)
            with bounded_yaml.constructing():
                return (loader.construct_document(node) if node is not None else None), locations
        finally:
            loader.dispose()
    except yaml.composer.ComposerError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        if "another document" not in str(error.problem):
            raise SpecError(f"{path}:{line}: not YAML: {error.problem}.") from None
        sentence = f"{path}:{line}: a second document begins here; a file holds one spec."
        raise SpecError(sentence, "Write each spec into a file of its own, and launch each.") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(
            f"{path}:{line}: not YAML: {error.problem}.", TEMPLATE_HINT if b"{{" in raw else ""
        ) from None
    except yaml.reader.ReaderError as error:
        sentence = f"{path}: not YAML: what stands at byte {error.position} is no text in UTF-8."
        raise SpecError(sentence, EXAMPLES_HINT) from None
    except bounded_yaml.TooMuchError:
        raise SpecError(f"{path}: {_TOO_MUCH}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: not YAML: {error}.") from None


_NO_NAMES: Final = {
    "tag:yaml.org,2002:null": "empty",
    "tag:yaml.org,2002:bool": "true or false",
    "tag:yaml.org,2002:seq": "a list",
    "tag:yaml.org,2002:map": "a mapping",
}
"""Keys that YAML has, but not JSON, in which specs are stored. An anchor before a name makes it empty."""


def _walk(node: yaml.Node, keys: Keys, locations: Locations) -> None:
    """Record the location of every value; refuse what PyYAML accepts: duplicate keys and nested aliases."""
    path, places = locations.path, locations.by_keys
    # Counted with aliases expanded ("billion laughs"): a few bytes of YAML can expand to gigabytes of values.
    if len(places) > MAX_VALUES or len(keys) > _MAX_DEPTH:
        raise SpecError(f"{path}: {_TOO_MUCH}")
    places[keys] = f"{path}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            _walk(item, (*keys, number), locations)
    elif isinstance(node, yaml.MappingNode):
        if _is_variables(keys):
            node.value = [(key, _as_text(value)) for key, value in node.value]
        for key, value in node.value:
            if key.tag in _NO_NAMES:
                sentence = f"{path}:{key.start_mark.line + 1}: the name of a field is {_NO_NAMES[key.tag]}."
                raise SpecError(sentence, "Put it in quotes if you mean it.")
            inner = (*keys, str(key.value))
            # "<<" may occur several times: each merges another mapping (YAML 1.1 merge keys).
            if inner in places and key.value != "<<":
                raise SpecError(f"{path}:{key.start_mark.line + 1}: {dotted(inner)} is written twice.")
            _walk(value, inner, locations)
            # A field is reported at its key, which may be lines above its value.
            places[inner] = f"{path}:{key.start_mark.line + 1}"


def _is_variables(keys: Keys) -> bool:
    """Say whether a path is that of environment variables; settings of an environment are values."""
    return bool(keys) and keys[-1] == "env" and keys[0] != "train"


def _as_text(node: yaml.Node) -> yaml.Node:
    """Return a number as the text that it is written as: ``3.10`` is not 3.1 for the program that reads it."""
    if not isinstance(node, yaml.ScalarNode) or node.tag not in (_INT, _FLOAT):
        return node
    # A new node: an alias elsewhere may mean the number.
    return yaml.ScalarNode(_TEXT, node.value, node.start_mark, node.end_mark)


def apply_override(data: dict[str, Any], override: str) -> Keys:
    """Write one ``--set FIELD.FIELD=VALUE`` into the data; return the path of the value.

    Raises:
        SpecError: the list item does not exist, or the path leads through a plain value.
    """
    where, equals, text = override.partition("=")
    keys = where.strip().split(".")
    if not equals or not all(keys):
        raise SpecError(f"--set {override}: write it as field.field=value, such as train.batch_size=128.")
    path: Keys = tuple(keys)
    try:
        bounded_yaml.check(text, _Loader, max_values=MAX_VALUES)
        loader = _Loader(text)
        node = loader.get_single_node()
        if isinstance(node, yaml.CollectionNode):
            _walk(node, path, Locations(f"--set {where}"))
        elif node is not None and _is_variables(path[:-1]):
            node = _as_text(node)
        with bounded_yaml.constructing():
            value = loader.construct_document(node) if node is not None else None
    except bounded_yaml.TooMuchError:
        raise SpecError(f"--set {where}: {_TOO_MUCH}") from None
    except yaml.YAMLError:
        value = text  # such as ``image=a:b: c``: not YAML, so meant as text
    return write_value(data, keys, value, f"--set {override}")


def write_value(data: dict[str, Any], keys: Sequence[str], value: Any, where: str) -> Keys:
    """Write a value into the data; return its path, with list items by number.

    Args:
        where: Start of a message about the path.

    Raises:
        SpecError: the list item does not exist, or the path leads through a plain value.
    """
    target: Any = data
    written: list[str | int] = []
    for number, key in enumerate(keys):
        here = f"{where}: {'.'.join(keys[: number + 1])}"
        # A list item may be given by its name, and is returned by its index: locations use indices.
        last = _item(target, key, here) if isinstance(target, list) else key
        written.append(last)
        if number + 1 < len(keys):
            target = _inner(target, last, here)
        else:
            target[last] = value
    return tuple(written)


def _inner(target: Any, key: str | int, where: str) -> Any:
    inner = target.setdefault(key, {}) if isinstance(target, dict) else target[key]
    if inner is None:
        inner = target[key] = {}
    if not isinstance(inner, dict | list):
        raise SpecError(f"{where} is a plain value and has no fields.")
    return inner


def _item(target: list[Any], key: str, where: str) -> int:
    """Find a list item by number or by its ``name``."""
    for number, item in enumerate(target):
        if key == str(number) or (isinstance(item, dict) and item.get("name") == key):
            return number
    raise SpecError(f"{where}: the list has {counted(len(target), 'item')}, and none is number or name {key!r}.")


def dotted(keys: Keys) -> str:
    """Return a path in the form ``workers[0].replicas``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
