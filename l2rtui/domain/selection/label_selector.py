"""Label selectors as in ``kubectl -l``: ``gpu=a100,zone!=b``, ``team in (vision, rl)``, ``spot``, ``!spot``.

Grammar and meaning follow Kubernetes' set-based requirements: all must hold, and ``!=`` and ``notin`` also match
objects without that label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

Labels = Mapping[str, str]
Selector = Callable[[Labels], bool]

_KEY: Final = r"(?P<key>[A-Za-z0-9](?:[A-Za-z0-9./_-]*[A-Za-z0-9])?)"
_VALUE: Final = r"[A-Za-z0-9._-]*"
_EQUALITY: Final = re.compile(rf"{_KEY}\s*(?P<op>==|!=|=)\s*(?P<value>{_VALUE})")
_SET: Final = re.compile(rf"{_KEY}\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_PRESENCE: Final = re.compile(rf"(?P<not>!?)\s*{_KEY}")
_COMMA: Final = re.compile(r",(?![^()]*\))")
"""Comma between requirements, not inside the parentheses of a set."""


def compile_selector(text: str) -> Selector:
    """Compile a selector into a test of labels.

    Raises:
        ValueError: The selector is invalid; the message names the part.
    """
    requirements = [_requirement(part.strip()) for part in _COMMA.split(text)]
    return lambda labels: all(holds(labels) for holds in requirements)


def _requirement(part: str) -> Selector:
    if match := _EQUALITY.fullmatch(part):
        return _in(match["key"], frozenset((match["value"],)), is_in=match["op"] != "!=")
    if match := _SET.fullmatch(part):
        values = frozenset(value.strip() for value in match["values"].split(","))
        return _in(match["key"], values, is_in=match["op"] == "in")
    if match := _PRESENCE.fullmatch(part):
        key, is_present = match["key"], not match["not"]
        return lambda labels: (key in labels) is is_present
    raise ValueError(f"{part!r} is not a label selector: write KEY=VALUE, KEY!=VALUE, KEY, !KEY or 'KEY in (A,B)'")


def _in(key: str, values: frozenset[str], *, is_in: bool) -> Selector:
    return lambda labels: (labels.get(key) in values) is is_in
