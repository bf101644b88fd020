"""Fields of pods that a spec adds with ``pod.template``: merged into the rendered template, within limits.

A run keeps control of names, the labels by which pods and slots are counted, the node and the GPU of a slot, the
command, and restarts. The patched template is compared with the original, so that no directive of a patch can evade
the check; a difference is refused with the name of its field.

`merge` implements Kubernetes' strategic merge patch. Maps merge key by key, and null deletes a key. A list is
replaced, except for lists that Kubernetes merges by a key of their elements (containers by name, mounts by their
path) or as sets of scalars; the table below names them. The directives are Kubernetes' own: ``$patch: replace`` or
``delete`` in a map or in a list element, ``$retainKeys``, and ``$deleteFromPrimitiveList/FIELD``.

Sources: kubernetes/community, contributors/devel/sig-api-machinery/strategic-merge-patch.md; mergeMap and
mergeSlice of k8s.io/apimachinery/pkg/util/strategicpatch; the tags ``patchStrategy`` and ``patchMergeKey`` of
PodSpec, Container and ObjectMeta in k8s.io/api (1.20 to 1.36).

One difference: `kubectl patch` puts a new element before elements that the patch does not name. Here it comes after
them, so that the process of the set stays the first container, which `kubectl logs` shows by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.extended_resources import is_device
from l2rtui.backends.kubernetes.manifests.gpu_binding import CLAIM_NAME, DEVICE_VARIABLES, NO_GPU
from l2rtui.backends.kubernetes.manifests.pod_parts import restricted_container
from l2rtui.domain.containers import PodSettings, Security
from l2rtui.errors import RefusedError
from runtime.base import bounded_json

Document = dict[str, Any]

_DIRECTIVE: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_DELETE_SCALARS: Final = "$deleteFromPrimitiveList/"
_MERGE_KEYS: Final = {
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}
_MERGED_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
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
    **{f"spec.{containers}": "name" for containers in _MERGED_CONTAINERS},
    **{
        f"spec.{containers}.{field}": key for containers in _MERGED_CONTAINERS for field, key in _MERGE_KEYS.items()
    },
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


FIELD: Final = "pod.template"
_CONTAINERS: Final = ("containers", "initContainers")
_OWN_LABELS: Final = (labels.APP_NAME, labels.APP_INSTANCE, labels.APP_COMPONENT, labels.APP_PART_OF,
                      labels.APP_MANAGED_BY)  # fmt: skip
_OWN_ANNOTATIONS: Final = (labels.HAMI_ALLOCATED, labels.HAMI_GPU_UUID)
_TOKEN: Final = "token"  # noqa: S105  (the name of a volume)
_CONTRACT: Final = "L2R_"
_COUNTED: Final = "pods and their slots are counted by it"
_GPU: Final = "the slot determines the GPU; pod.binding says how the pod gets it"
_NODE: Final = "the plan chooses the node; name slots with --on"
_NAME: Final = "the processes of a run know each other by this name"
_COMMAND: Final = "a set says it by `command`"
_QUEUED: Final = "the run starts as a whole by it; see `queue`"
_GANG: Final = {
    labels.KUEUE_QUEUE,
    labels.KUEUE_GROUP,
    labels.KUEUE_COUNT,
    labels.VOLCANO_GROUP,
    labels.COSCHEDULING_GROUP,
}
_FIXED: Final = {
    "restartPolicy": "a set says it by `restart`",
    "nodeName": _NODE,
    "hostname": _NAME,
    "subdomain": _NAME,
}
_NAMED: Final = (
    ("resourceClaims", CLAIM_NAME, _GPU),
    ("volumes", _TOKEN, "it holds the key of the run's exchange"),
)


def problem(patch: Mapping[str, Any]) -> str:
    """Return a sentence on why a patch by itself is invalid; empty if it has the form of a pod template."""
    try:
        merged = merge({}, dict(patch))
    except ValueError as error:
        return str(error)
    if odd := next((key for key in patch if key not in ("metadata", "spec")), ""):
        return f"a pod template has no field {odd}: write metadata and spec"
    for part in patch:
        if not isinstance(patch[part], dict):
            return f"{part} is not a mapping of fields"
    meta = merged.get("metadata", {})
    if odd := next((key for key in meta if key not in ("labels", "annotations")), ""):
        return f"metadata.{odd} cannot be set: a run chooses it; write labels and annotations"
    for part, pairs in meta.items():
        if not isinstance(pairs, dict):
            return f"metadata.{part} is not a mapping of names to text"
        # YAML reads ``team: 7`` as a number, for which the server's error is unclear.
        if odd := next((key for key, value in pairs.items() if not isinstance(value, str)), ""):
            return f"metadata.{part}.{odd} is {pairs[odd]!r}, and it must be text: put it in quotes"
    return ""


def patched(template: Document, settings: PodSettings, device_env: Iterable[tuple[str, str]]) -> Document:
    """Return a rendered pod template with the patches of a spec.

    Args:
        device_env: Variables of the slot's device, which added containers get as well; empty if the cluster chooses
            the device.

    Raises:
        RefusedError: A patch is malformed, or changes a field that the run owns; the message names field and
            reason.
    """
    if not settings.templates:
        return template
    own = {name: _names(template["spec"], name) for name in _CONTAINERS}
    # A run without its own queue leaves these to the patch, so that a patch can also choose a queue.
    own |= {part: tuple(set(template["metadata"].get(part) or ()) & _GANG) for part in ("labels", "annotations")}
    own["spec"] = ("schedulerName",) if own["labels"] or own["annotations"] else ()
    merged = template
    for text in settings.templates:
        try:
            merged = merge(merged, bounded_json.loads(text))
        except ValueError as error:
            raise RefusedError(f"{FIELD}: {error}.") from None
    # A patch that deletes a part of the template must not delete the parts that are accessed below.
    merged = {"metadata": merged.get("metadata") or {}, "spec": merged.get("spec") or {}}
    _refuse_changes(_owned(template, own), _owned(merged, own))
    for name in _CONTAINERS:
        for container in merged["spec"].get(name) or ():
            if container["name"] not in own[name]:
                _complete(container, settings, tuple(device_env) or NO_GPU)
    return merged


def changed_fields(settings: PodSettings) -> tuple[str, ...]:
    """Return the fields that the patches of a spec name, without duplicates: ``spec.runtimeClassName``."""
    paths = (path for text in settings.templates for path in _leaves(bounded_json.loads(text), ""))
    return tuple(dict.fromkeys(paths))


def dropped_fields(sent: Any, returned: Any, path: str = "") -> Iterator[str]:
    """Yield paths of fields that were sent but are missing in the server's result.

    A server ignores unknown fields. Fields with an empty value are skipped: servers leave those out.
    """
    if isinstance(sent, dict):
        for key, value in sent.items():
            if value in (None, "", 0, False, [], {}):
                continue
            where = f"{path}.{key}" if path else str(key)
            if not isinstance(returned, dict) or key not in returned:
                yield where
            else:
                yield from dropped_fields(value, returned[key], where)
    elif isinstance(sent, list) and isinstance(returned, list) and len(sent) <= len(returned):
        for number, (value, result) in enumerate(zip(sent, returned, strict=False)):
            yield from dropped_fields(value, result, f"{path}[{number}]")


# --- ownership ----------------------------------------------------------------------------------------------
def _refuse_changes(before: Mapping[str, tuple[Any, str]], after: Mapping[str, tuple[Any, str]]) -> None:
    nothing = (None, "")
    for path in dict.fromkeys((*before, *after)):
        (old, reason), (new, other) = before.get(path, nothing), after.get(path, nothing)
        if old != new:
            raise RefusedError(
                f"{FIELD} cannot set {path}: {reason or other}.", f"Take {path} out of {FIELD} in the spec."
            )


def _owned(template: Document, own: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[Any, str]]:
    """Return the fields that a patch may not change, each with its value and the reason.

    Args:
        own: Names of the containers before the patch, and of the fields that queue the run.
    """
    fields: dict[str, tuple[Any, str]] = {}
    for part, names in (("labels", _OWN_LABELS), ("annotations", _OWN_ANNOTATIONS)):
        for key, value in (template["metadata"].get(part) or {}).items():
            if key.startswith(labels.PREFIX) or key in names:
                fields[f"metadata.{part}.{key}"] = (value, _COUNTED)
            elif key in own[part]:
                fields[f"metadata.{part}.{key}"] = (value, _QUEUED)
    spec = template["spec"]
    fields |= {f"spec.{name}": (spec.get(name), _QUEUED) for name in own["spec"]}
    fields |= {f"spec.{path}": (value, reason) for path, value, reason in _pod_fields(spec)}
    for part in _CONTAINERS:
        for container in spec.get(part) or ():
            path = f"spec.{part}[{container.get('name')}]"
            if container.get("name") in own[part]:
                fields[path] = (True, "it runs the set's own processes")
                argv = {name: container[name] for name in ("command", "args") if name in container}
                fields |= {f"{path}.{name}": (value, _COMMAND) for name, value in argv.items()}
            fields |= {f"{path}.{name}": (value, reason) for name, value, reason in _device_fields(container)}
    return fields


def _pod_fields(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield the fields of a pod's spec that a run owns."""
    yield from ((name, spec[name], reason) for name, reason in _FIXED.items() if name in spec)
    if labels.HOSTNAME in (selector := spec.get("nodeSelector") or {}):
        yield f"nodeSelector.{labels.HOSTNAME}", selector[labels.HOSTNAME], _NODE
    for part, name, reason in _NAMED:
        for element in spec.get(part) or ():
            if element.get("name") == name:
                yield f"{part}[{name}]", element, reason


def _device_fields(container: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield the fields of a container that bind a device, or give a process its role in the run."""
    for variable in container.get("env") or ():
        name = str(variable.get("name"))
        if name in DEVICE_VARIABLES:
            yield f"env[{name}]", variable, _GPU
        elif name.startswith(_CONTRACT):
            yield f"env[{name}]", variable, "it tells a process its part in the run"
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        for name, amount in (resources.get(part) or {}).items():
            if is_device(name):
                yield f"resources.{part}.{name}", amount, _GPU
    if "claims" in resources:
        yield "resources.claims", resources["claims"], _GPU


def _complete(container: Document, settings: PodSettings, device_env: tuple[tuple[str, str], ...]) -> None:
    """Complete a container that a patch has added."""
    # Without the variables a CUDA image would see every GPU of the node.
    container["env"] = [
        *(container.get("env") or ()),
        *({"name": name, "value": value} for name, value in device_env),
    ]
    if settings.security is Security.RESTRICTED:
        container.setdefault("securityContext", restricted_container())


def _names(spec: Mapping[str, Any], part: str) -> tuple[str, ...]:
    return tuple(str(container.get("name")) for container in spec.get(part) or ())


def _leaves(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and (merge_key := MERGE_KEYS.get(path)):
        yield from (f"{path}[{element.get(merge_key)}]" for element in value)
    else:
        yield path
