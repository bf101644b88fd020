"""Identity of an experiment: its name, its spec without name and seed, and its place.

Runs that differ in one of these are not averaged: a mean over two specs or two clusters is meaningless.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from l2rtui.domain.workload import RunSpec

Key = tuple[str, str, str]
"""Name, place and id of the spec of an experiment."""
T = TypeVar("T")
_NOT_OF_SPEC: Final = frozenset(("name", "experiment", "seed", "trial"))
_NOT_OF_SET: Final = frozenset(("binding", "may_use_cpu"))
"""How a replica gets its device. It may differ between seeds of one launch, depending on which slots are free."""


@lru_cache(maxsize=4096)
def spec_id(spec: RunSpec | str) -> str:
    """Return an id of a spec without its name and seed: runs with the same id are seeds of one experiment.

    Args:
        spec: The spec, or its stored JSON. Empty and absent fields are equal, as later versions add fields.

    Returns:
        8 hexadecimal digits; empty for invalid JSON.
    """
    try:
        document = json.loads(spec) if isinstance(spec, str) else asdict(spec)
        fields_of = {name: value for name, value in document.items() if name not in _NOT_OF_SPEC}
        text = json.dumps(_filled(fields_of), sort_keys=True)
    except (ValueError, TypeError, AttributeError):
        return ""
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest() if fields_of else ""


def _filled(value: object) -> object:
    if isinstance(value, dict):
        items = ((name, _filled(item)) for name, item in value.items() if name not in _NOT_OF_SET)
        return {name: item for name, item in items if item not in (None, "", [], {}, 0)}
    return [_filled(item) for item in value] if isinstance(value, list | tuple) else value


def variants_of(keys: Iterable[Key]) -> dict[Key, str]:
    """Return what distinguishes each experiment from others of its name: ``spec 3f2a91c0, on lab``; empty if
    unique.
    """
    every = list(keys)
    variants: dict[Key, str] = {}
    for key in every:
        name, place, spec = key
        others = [other for other in every if other[0] == name]
        differing = (
            f"spec {spec or 'unknown'}" if len({other[2] for other in others}) > 1 else "",
            f"on {place or 'this machine'}" if len({other[1] for other in others}) > 1 else "",
        )
        variants[key] = ", ".join(filter(None, differing))
    return variants


def newest_by_seed(
    runs: Iterable[T], seed_of: Callable[[T], int], age_of: Callable[[T], Any]
) -> tuple[list[T], tuple[int, ...]]:
    """Return the newest run of each seed, and the seeds that several runs have."""
    newest: dict[int, T] = {}
    repeated: set[int] = set()
    for run in runs:
        seed = seed_of(run)
        if seed in newest:
            repeated.add(seed)
        if seed not in newest or age_of(run) > age_of(newest[seed]):
            newest[seed] = run
    return [newest[seed] for seed in sorted(newest)], tuple(sorted(repeated))
