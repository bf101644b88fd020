"""Node selector, node affinity and tolerations of pods: written into a pod spec, and read from its patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from l2rtui.backends.kubernetes.manifests import strategic_merge
from l2rtui.domain.containers import GPU_TOLERATION, LabelRule, PodSettings, Scheduling, Toleration
from runtime.base import bounded_json


class _Form(msgspec.Struct, rename="camel"):
    """Kubernetes object with types for the fields that are read here."""


class _Rule(_Form):
    key: str
    operator: str
    values: tuple[str, ...] | None = None


class _Term(_Form):
    match_expressions: tuple[_Rule, ...] | None = None
    match_fields: tuple[_Rule, ...] | None = None


class _Required(_Form):
    node_selector_terms: tuple[_Term, ...] | None = None


class _NodeAffinity(_Form):
    required: _Required | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class _Affinity(_Form):
    node_affinity: _NodeAffinity | None = None


class _Toleration(_Form):
    key: str | None = None
    value: str | None = None
    effect: str | None = None


class _PodSpec(_Form):
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: tuple[_Toleration, ...] | None = None


def toleration(item: Toleration) -> dict[str, str]:
    """Return a toleration in the format of a pod spec."""
    fields = {"operator": "Equal" if item.value else "Exists"}
    parts = {"key": item.key, "value": item.value, "effect": item.effect}
    return fields | {key: value for key, value in parts.items() if value}


def patched(settings: PodSettings) -> Scheduling | None:
    """Return the scheduling of pods on a slot after the patches of a spec; None without patches.

    Raises:
        ValueError: A patch is malformed; the message names the field.
    """
    if not settings.templates:
        return None
    own: dict[str, Any] = {
        "nodeSelector": dict(settings.node_selector),
        "tolerations": [toleration(item) for item in (*settings.tolerations, GPU_TOLERATION)],
    }
    merged = {"spec": own}
    for text in settings.templates:
        merged = strategic_merge.merge(merged, bounded_json.loads(text))
    return of_pod(merged.get("spec") or {})


def of_pod(fields: Mapping[str, Any]) -> Scheduling:
    """Return the scheduling of a pod with this spec.

    Raises:
        ValueError: A field has the wrong type; the message names it.
    """
    try:
        spec = bounded_json.convert(fields, _PodSpec)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("$", "spec", 1)) from None
    selected = tuple(LabelRule(key, values=(value,)) for key, value in (spec.node_selector or {}).items())
    alternatives = tuple((*selected, *_rules(term)) for term in _terms(spec))
    tolerations = tuple(
        Toleration(item.key or "", item.value or "", item.effect or "") for item in spec.tolerations or ()
    )
    return Scheduling(alternatives, tolerations)


def _terms(spec: _PodSpec) -> tuple[_Term, ...]:
    """Return the alternatives of the required node affinity; without one, a single empty alternative."""
    affinity = spec.affinity and spec.affinity.node_affinity
    required = affinity and affinity.required
    return (required and required.node_selector_terms) or (_Term(),)


def _rules(term: _Term) -> tuple[LabelRule, ...]:
    rules = (*(term.match_expressions or ()), *(term.match_fields or ()))
    return tuple(LabelRule(rule.key, rule.operator, rule.values or ()) for rule in rules)
