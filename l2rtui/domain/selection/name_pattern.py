"""Names in command targets: kind prefixes and shell wildcards."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Final

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
