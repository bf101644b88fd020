"""Selection of rows: the filter language of all tables, label selectors, and name patterns of commands. Pure.

``phortx1 !eval free>=2 status=Failed model~A100``: every part must match. A word must appear somewhere in the row,
``!word`` nowhere. ``column OP value`` compares with one column: ``=`` and ``!=`` the whole cell, ``~`` and ``!~``
a part of it, ``<``, ``<=``, ``>``, ``>=`` its number. Numbers are written as displayed: ``7,610``, ``3/4`` (the
3), ``61%``, ``2h03m``, ``16Gi``. Case is ignored.

Columns whose names start with ``gpu.`` have a line for each GPU. All parts that name them must match the same GPU:
``gpu.free>=2 gpu.model=H100 gpu.memory>=40G``. There ``=`` also matches a single word of the cell.

Label selectors are those of ``kubectl -l``: ``gpu=a100,zone!=b``, ``team in (vision, rl)``, ``spot``, ``!spot``.
Grammar and meaning follow Kubernetes' set-based requirements: all must hold, and ``!=`` and ``notin`` also match
objects without that label.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

Cells = Callable[[int], str]
"""Text of a row's cell by column number."""
Test = Callable[[Cells, str], bool]
"""Predicate over the cells of a row and over its whole text, both in lower case."""

OF_GPU: Final = "gpu."
"""Prefix of the names of the columns that have a line for each GPU."""
_PART = r"(?P<column>[a-z][a-z0-9_/. -]*?)(?P<op>!=|>=|<=|!~|=|~|>|<)(?P<value>.*)"
_NUMBER = r"-?\d[\d,]*(\.\d+)?"
_SPAN = r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?"
_SIZES: Final = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def compile_filter(text: str, columns: Sequence[str]) -> Test | None:
    """Compile a filter into a test; None for an empty filter, which every row passes.

    Args:
        columns: Names of the columns in order; a part that names none of them is read as a word.
    """
    # Rows come in lower case as well (``Test``), so case is ignored.
    parts = text.casefold().split()
    of_gpu = [part for part in parts if _is_of_gpu(part, columns)]
    tests = [_test(part, columns) for part in parts if part not in of_gpu]
    if of_gpu:
        tests.append(_of_some_gpu(of_gpu, columns))
    if not tests:
        return None
    return lambda cells, everything: all(test(cells, everything) for test in tests)


def _is_of_gpu(part: str, columns: Sequence[str]) -> bool:
    match = re.fullmatch(_PART, part)
    number = _column(match["column"], columns) if match else None
    return number is not None and columns[number].startswith(OF_GPU)


def _of_some_gpu(parts: Sequence[str], columns: Sequence[str]) -> Test:
    """Return a test that passes if all parts match the same GPU."""
    numbers = [number for number, name in enumerate(columns) if name.startswith(OF_GPU)]
    tests = [_test(part, columns) for part in parts]

    def test_gpus(cells: Cells, everything: str) -> bool:
        lines = zip(*(cells(number).split("\n") for number in numbers), strict=True)
        gpus = (dict(zip(numbers, line, strict=True)) for line in lines)
        return any(all(test(gpu.__getitem__, everything) for test in tests) for gpu in gpus)

    return test_gpus


def misread_columns(text: str, columns: Sequence[str]) -> str:
    """Return a sentence about the first comparison with an unknown column or a limit that is no number; empty
    without one.

    Such a part is searched as a word: right for ``seed=3`` in a message, surprising after a typo.
    """
    for part in text.casefold().split():
        match = re.fullmatch(_PART, part)
        if match is None:
            continue
        if _column(match["column"], columns) is not None:
            # An empty limit is one that is being typed.
            if match["op"] in _ORDERS and match["value"] and number_of(match["value"]) is None:
                return f"{match['value']!r} in {part} is not a number: write 3, 61%, 2h or 16Gi."
            continue
        name = match["column"]
        matching = [column for column in columns if column.startswith(name)]
        if matching:
            return f"{name!r} may be {' or '.join(matching)}."
        from difflib import get_close_matches  # only for a mistake

        likely = get_close_matches(name, columns, n=1)
        hint = f" Did you mean {likely[0]}?" if likely else f" The columns are {', '.join(columns)}."
        return f"There is no column {name!r}.{hint}"
    return ""


def _test(part: str, columns: Sequence[str]) -> Test:
    match = re.fullmatch(_PART, part)
    number = _column(match["column"], columns) if match else None
    if match is not None and number is not None:
        is_of_words = columns[number].startswith(OF_GPU)
        return _comparison(number, match["op"], match["value"], is_of_words=is_of_words)
    if part.startswith("!") and len(part) > 1:
        word = part[1:]
        return lambda _, everything: word not in everything
    # A lone "!" is the beginning of "!word": while it is typed, every row stays.
    return lambda _, everything: part == "!" or part in everything


def _column(name: str, columns: Sequence[str]) -> int | None:
    """Return the column with this name, or the only column that starts with it."""
    if name in columns:
        return columns.index(name)
    matches = [number for number, column in enumerate(columns) if column.startswith(name)]
    return matches[0] if len(matches) == 1 else None


def _comparison(number: int, op: str, value: str, *, is_of_words: bool) -> Test:
    if op in ("~", "!~"):
        return lambda cells, _: (value in cells(number)) is (op == "~")
    if op in ("=", "!="):
        return lambda cells, _: _same(cells(number), value, is_of_words=is_of_words) is (op == "=")
    # A cell without a number, or a limit that is not a number yet while it is typed, matches nothing.
    order, limit = _ORDERS[op], number_of(value)

    def compare(cells: Cells, _: str) -> bool:
        value = number_of(cells(number))
        return value is not None and limit is not None and order(value, limit)

    return compare


def _same(cell: str, value: str, *, is_of_words: bool) -> bool:
    if is_of_words and value in re.split(r"[\s_-]+", cell):
        return True
    bare = cell.lstrip("●◌▲✖✔ ")  # the glyph of a state repeats its word
    bare = bare.partition(" ▲ ")[0]  # also drop the part that says how old the state is
    return value in (cell, bare) or (
        (left := number_of(bare)) is not None
        and left == number_of(value)
        and re.fullmatch(_NUMBER, value) is not None
    )


def number_of(text: str) -> float | None:
    """Return the number of a cell: ``7,610``, ``3/4`` (3), ``61%``, ``2h03m`` (seconds), ``16Gi``; otherwise
    None.
    """
    text = text.strip().casefold().lstrip("v<●◌▲✖✔ ")
    span = re.fullmatch(_SPAN, text)
    if span is not None and any(span.groups()):
        days, hours, minutes, seconds = (int(part or 0) for part in span.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    match = re.match(_NUMBER, text)
    if match is None:
        return None
    number = float(match[0].replace(",", ""))
    return number * _SIZES.get(text[match.end() :].strip().removesuffix("b"), 1.0)


GPU_COLUMNS: Final = (f"{OF_GPU}free", f"{OF_GPU}model", f"{OF_GPU}memory")


def gpu_cells(gpus: Iterable[tuple[int, str, int]]) -> tuple[str, str, str]:
    """Return the cells of ``GPU_COLUMNS``, with a line for each GPU; empty without GPUs.

    Args:
        gpus: Number of free slots, model (empty if unknown) and total memory in bytes (0 if unknown) of each.
    """
    rows = [(str(free), " ".join(model.split()), str(memory or "")) for free, model, memory in gpus]
    free, model, memory = ("\n".join(cells) for cells in zip(*rows, strict=True)) if rows else ("", "", "")
    return free, model, memory


def about_gpu(text: str) -> str:
    """Expand a filter with short names of GPU columns, such as ``free>=2 model=H100``, to their full names."""
    return " ".join(f"{OF_GPU}{part}" for part in text.casefold().split())


Labels = Mapping[str, str]
Selector = Callable[[Labels], bool]

_KEY: Final = r"(?P<key>[A-Za-z0-9](?:[A-Za-z0-9./_-]*[A-Za-z0-9])?)"
_VALUE: Final = r"[A-Za-z0-9._-]*"
_EQUALITY: Final = rf"{_KEY}\s*(?P<op>==|!=|=)\s*(?P<value>{_VALUE})"
_SET: Final = rf"{_KEY}\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)"
_PRESENCE: Final = rf"(?P<not>!?)\s*{_KEY}"
_COMMA: Final = r",(?![^()]*\))"
"""Comma between requirements, not inside the parentheses of a set."""


def compile_selector(text: str) -> Selector:
    """Compile a selector into a test of labels.

    Raises:
        ValueError: The selector is invalid; the message names the part.
    """
    requirements = [_requirement(part.strip()) for part in re.split(_COMMA, text)]
    return lambda labels: all(holds(labels) for holds in requirements)


def _requirement(part: str) -> Selector:
    if match := re.fullmatch(_EQUALITY, part):
        return _in(match["key"], frozenset((match["value"],)), is_in=match["op"] != "!=")
    if match := re.fullmatch(_SET, part):
        values = frozenset(value.strip() for value in match["values"].split(","))
        return _in(match["key"], values, is_in=match["op"] == "in")
    if match := re.fullmatch(_PRESENCE, part):
        key, is_present = match["key"], not match["not"]
        return lambda labels: (key in labels) is is_present
    raise ValueError(f"{part!r} is not a label selector: write KEY=VALUE, KEY!=VALUE, KEY, !KEY or 'KEY in (A,B)'")


def _in(key: str, values: frozenset[str], *, is_in: bool) -> Selector:
    return lambda labels: (labels.get(key) in values) is is_in


EXPERIMENT_WORDS: Final = ("experiment", "experiments", "exp")
"""Prefixes for the name of an experiment in a target: ``experiment/NAME``."""
KINDS: Final = {
    **dict.fromkeys(("po", "pod", "pods", "container", "containers", "ps", "worker", "workers", "actors"), "pods"),
    **dict.fromkeys(("no", "node", "nodes"), "nodes"),
    **dict.fromkeys(("run", "runs", "job", "jobs", "all", "task", "tasks", "release", "releases"), "runs"),
    **dict.fromkeys(("sts", "statefulset", "statefulsets", "rs", "replicaset", "replicasets"), "runs"),
    **dict.fromkeys(("deploy", "deployment", "deployments", "cluster"), "runs"),
    **dict.fromkeys(EXPERIMENT_WORDS, "experiments"),
    **dict.fromkeys(("slot", "slots", "gpu", "gpus"), "slots"),
    **dict.fromkeys(("ev", "event", "events"), "events"),
    **dict.fromkeys(("secret", "secrets"), "secret ls"),
    **dict.fromkeys(("pv", "pvc", "persistentvolumeclaims", "volume", "volumes"), "volume ls"),
    **dict.fromkeys(("image", "images"), "image ls"),
}
"""Verb that lists the objects of a kind, keyed by the names that other tools use for it."""
_WILDCARDS = frozenset("*?[")


def is_pattern(name: str) -> bool:
    """Return True if a name contains a shell wildcard."""
    return not _WILDCARDS.isdisjoint(name)


def matches_any(names: Iterable[str], patterns: Collection[str]) -> bool:
    """Return True if one of the names matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
