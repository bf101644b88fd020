"""Decoder of a run's stored spec: from a ConfigMap, a network, or the history."""

from __future__ import annotations

from l2rtui.domain.workload import RunSpec
from runtime.base import bounded_json


def decode(text: bytes | str) -> RunSpec:
    """Decode a stored spec and check that its JSON text fields can be decoded. Raises
    bounded_json.UndecodableError.
    """
    spec = bounded_json.decode(text, RunSpec)
    trial = (spec.trial.values,) if spec.trial is not None else ()
    for part in spec.sets:
        _check((part.template, *part.pod.templates), (dict, list))
    _check((spec.train, *trial), dict)
    _check((spec.extras,), list)
    return spec


def _check(texts: tuple[str, ...], kind: type | tuple[type, ...]) -> None:
    for text in texts:
        if text and not isinstance(bounded_json.loads(text), kind):
            raise bounded_json.UndecodableError("a part of it is not of its type")
