"""A file with Kubernetes' own objects to a RunSpec: its placeholders, its documents, and ``--set`` for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from l2rtui.backends.kubernetes import lab
from l2rtui.domain.keyscan import find_keys
from l2rtui.domain.preflight import Finding
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import SpecError

_MARK = "l2r-placeholder-{}-"


def load_objects(
    raw: bytes, path: str, overrides: Sequence[str] = (), name: str = ""
) -> tuple[RunSpec, tuple[Finding, ...]]:
    """Read the objects of a file as one run.

    Args:
        overrides: ``NAME=value`` for each placeholder ``{{NAME}}`` that no plan fills in; ``image=…`` and
            ``replicas=…`` for every workload.

    Raises:
        SpecError: not YAML, no workload, or a placeholder without a value.
    """
    values = dict(_override(override) for override in overrides)
    names: list[str] = []

    def mark(match: Any) -> str:
        names.append(match[1])
        return _MARK.format(len(names) - 1)

    # Unquoted braces are no YAML: a plain word stands in for each placeholder until the file is parsed.
    try:
        text = lab.PLACEHOLDER.sub(mark, raw.decode("utf-8"))
        documents = list(yaml.safe_load_all(text))
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not YAML: it is no text in UTF-8.") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"{path}:{line}: not YAML: {error.problem}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not YAML: {error}.") from None
    documents = [_unmarked(document, names, values) for document in documents]
    _refuse_unused(path, values, set(names))
    left = sorted(lab.placeholders(documents) - set(lab.KNOWN))
    if left:
        given = " ".join(f"--set {one}=VALUE" for one in left)
        raise SpecError(f"{path}: nothing is known for {', '.join(left)}.", f"Add {given}.")
    for document in documents:
        _set_everywhere(document, values)
        for keys, what in find_keys(document):
            raise SpecError(
                f"{path}: {'.'.join(map(str, keys))} looks like {what}, and specs are no place for it.",
                "Keep it with `l2rtui secret create`, and refer to that: valueFrom: {secretKeyRef: ...}.",
            )
    return lab.read(documents, path, name)


def _override(override: str) -> tuple[str, str]:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"--set {override}: write it as NAME=value, such as image=registry/l2r:1.")
    return key.strip(), value


def _refuse_unused(path: str, values: dict[str, str], names: set[str]) -> None:
    for key in values:
        if key not in names and key not in ("image", "replicas"):
            there = f"its placeholders are {', '.join(sorted(names))}" if names else "it has no placeholders"
            raise SpecError(
                f"--set {key}: {path} holds Kubernetes' own objects, and {there}.",
                "Besides placeholders, image and replicas can be set.",
            )


def _unmarked(value: Any, names: Sequence[str], values: dict[str, str]) -> Any:
    """The parsed values with each mark replaced by what was given for it, or by the placeholder itself."""
    if isinstance(value, str):
        for number, name in enumerate(names):
            value = value.replace(_MARK.format(number), values.get(name, f"{{{{{name}}}}}"))
        return value
    if isinstance(value, list):
        return [_unmarked(item, names, values) for item in value]
    if isinstance(value, dict):
        return {str(key): _unmarked(item, names, values) for key, item in value.items()}
    return value


def _set_everywhere(document: Any, values: dict[str, str]) -> None:
    """Carry out ``image=`` and ``replicas=``."""
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        return
    if "replicas" in values and document.get("kind") != "Pod":
        spec["parallelism" if document.get("kind") == "Job" else "replicas"] = values["replicas"]
    template = spec.get("template")
    pod = template.get("spec") if isinstance(template, dict) else spec
    if "image" in values and isinstance(pod, dict):
        for container in pod.get("containers") or ():
            if isinstance(container, dict):
                container["image"] = values["image"]
