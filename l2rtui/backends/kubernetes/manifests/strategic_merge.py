"""Strategic merge patch of a pod template: Kubernetes' rules as a pure function on plain dicts.

Maps merge key by key, and null deletes a key. A list is replaced, except for lists that Kubernetes merges by a key
of their elements (containers by name, mounts by their path) or as sets of scalars; the table below names them. The
directives are Kubernetes' own: ``$patch: replace`` or ``delete`` in a map or in a list element, ``$retainKeys``,
and ``$deleteFromPrimitiveList/FIELD``.

Sources: kubernetes/community, contributors/devel/sig-api-machinery/strategic-merge-patch.md; mergeMap and
mergeSlice of k8s.io/apimachinery/pkg/util/strategicpatch; the tags ``patchStrategy`` and ``patchMergeKey`` of
PodSpec, Container and ObjectMeta in k8s.io/api (1.20 to 1.36).

One difference: `kubectl patch` puts a new element before elements that the patch does not name. Here it comes after
them, so that the process of the set stays the first container, which `kubectl logs` shows by default.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

Document = dict[str, Any]

_DIRECTIVE: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_DELETE_SCALARS: Final = "$deleteFromPrimitiveList/"
_CONTAINER: Final = {
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
MERGE_KEYS: Final[dict[str, str]] = {
    "metadata.ownerReferences": "uid",
    # A set of scalars has no key, but its strategy is merge too.
    "metadata.finalizers": "",
    "spec.volumes": "name",
    "spec.imagePullSecrets": "name",
    "spec.hostAliases": "ip",
    "spec.topologySpreadConstraints": "topologyKey",
    "spec.resourceClaims": "name",
    "spec.schedulingGates": "name",
    **{f"spec.{containers}": "name" for containers in _CONTAINERS},
    **{f"spec.{containers}.{field}": key for containers in _CONTAINERS for field, key in _CONTAINER.items()},
}
"""Lists of a pod template that merge, by their path without indices, and the key of their elements."""


def merge(original: Document, patch: Document) -> Document:
    """Return a pod template with a patch applied; neither argument is changed.

    Raises:
        ValueError: The patch is malformed; the message names the field.
    """
    return _merge_maps(deepcopy(original), patch, "")


def _merge_maps(original: Document, patch: Document, path: str) -> Document:
    match patch.get(_DIRECTIVE):
        case None:
            pass
        case "replace":
            content: Document = _plain(patch, path)
            return content
        case "delete":
            return {}
        case other:
            raise ValueError(f"{_joined(path, _DIRECTIVE)} is {other!r}: write replace or delete")
    _check_directives(patch, path)
    if (retained := patch.get(_RETAIN)) is not None:
        names = _scalars(retained, _joined(path, _RETAIN))
        original = {key: value for key, value in original.items() if key in names}
    for key, value in patch.items():
        if key.startswith(_DELETE_SCALARS):
            _delete_scalars(original, key.removeprefix(_DELETE_SCALARS), value, path)
        elif value is None:
            original.pop(key, None)
        elif not key.startswith("$"):
            original[key] = _merged(original.get(key), value, _joined(path, key))
    return original


def _merged(original: Any, value: Any, path: str) -> Any:
    if isinstance(value, dict):
        return _merge_maps(original if isinstance(original, dict) else {}, value, path)
    if isinstance(value, list) and path in MERGE_KEYS:
        return _merge_lists(original if isinstance(original, list) else [], value, path)
    return _plain(value, path)


def _merge_lists(original: list[Any], patch: list[Any], path: str) -> list[Any]:
    key = MERGE_KEYS[path]
    if not key:
        return list(dict.fromkeys([*original, *_scalars(patch, path)]))
    for element in patch:
        if not isinstance(element, dict):
            raise ValueError(f"{path}: {element!r} is not a mapping, and its elements have a {key}")  # noqa: TRY004
    # ``- $patch: replace`` among the elements: elements without a directive form the whole list.
    if any(element.get(_DIRECTIVE) == "replace" for element in patch):
        original, patch = [], [element for element in patch if _DIRECTIVE not in element]
    merged = list(original)
    for element in patch:
        if key not in element:
            raise ValueError(f"{path}: an element has no {key}, by which it is merged")
        if element.get(_DIRECTIVE, "delete") != "delete":
            raise ValueError(f"{path}: $patch of an element is {element[_DIRECTIVE]!r}: write replace or delete")
        position = next((n for n, own in enumerate(merged) if _key(own, key) == element[key]), None)
        if element.get(_DIRECTIVE) == "delete":
            # Kubernetes deletes every element with that key, which a list of ports can have twice.
            merged = [own for own in merged if _key(own, key) != element[key]]
        elif position is None:
            merged.append(_merge_maps({}, element, path))
        else:
            merged[position] = _merge_maps(merged[position], element, path)
    return merged


def _key(element: Any, key: str) -> Any:
    # An imported template may contain anything; the server refuses non-mappings here.
    return element.get(key) if isinstance(element, dict) else None


def _delete_scalars(original: Document, field: str, values: Any, path: str) -> None:
    deleted = _scalars(values, _joined(path, _DELETE_SCALARS + field))
    if isinstance(original.get(field), list):
        original[field] = [value for value in original[field] if value not in deleted]


def _plain(value: Any, path: str) -> Any:
    """Return a copy of a new value without directives, as there is nothing for them to act on."""
    if isinstance(value, dict):
        content = {key: inner for key, inner in value.items() if key != _DIRECTIVE}
        _check_directives(content, path)
        return {
            key: _plain(inner, _joined(path, key))
            for key, inner in content.items()
            if not key.startswith("$") and inner is not None
        }
    return [_plain(inner, path) for inner in value] if isinstance(value, list) else value


def _check_directives(patch: Document, path: str) -> None:
    for key in patch:
        if key.startswith("$") and key not in (_DIRECTIVE, _RETAIN) and not key.startswith(_DELETE_SCALARS):
            # kubectl generates $setElementOrder for itself; it is not needed in hand-written patches.
            raise ValueError(f"{_joined(path, key)} is not a supported directive")


def _scalars(value: Any, path: str) -> list[Any]:
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return value
    raise ValueError(f"{path} is {value!r}: write a list of plain values")


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
