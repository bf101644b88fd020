"""Import of a file with Kubernetes objects: its placeholders, YAML documents and ``--set``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from l2rtui import bounded_yaml
from l2rtui.backends.kubernetes.manifests import import_yaml
from l2rtui.domain.preflight import Finding
from l2rtui.domain.secret import find_secrets
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import SpecError
from l2rtui.services.spec.yaml_lines import MAX_VALUES

_MARK = "l2r-placeholder-{}-"
_MARKED = re.compile(r"l2r-placeholder-(\d{1,7})-")


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
    # Marks are numbered, since one placeholder may stand several times and inside longer words.
    names: list[str] = []

    def mark(match: Any) -> str:
        names.append(match[1])
        return _MARK.format(len(names) - 1)

    # ``{{NAME}}`` without quotes is not valid YAML, so a plain word replaces each placeholder until after parsing.
    try:
        text = import_yaml.PLACEHOLDER.sub(mark, raw.decode("utf-8"))
        documents = bounded_yaml.load_all(text, max_values=MAX_VALUES)
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not YAML: it is no text in UTF-8.") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"{path}:{line}: not YAML: {error.problem}.") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: not YAML: {error}.") from None
    # After parsing, so that a value is text whatever it contains: it cannot add YAML of its own.
    documents = [_unmarked(document, names, values) for document in documents]
    _refuse_unused(path, values, set(names))
    # A plan fills in the rest later, when slots and seeds are known.
    unfilled = sorted(import_yaml.placeholders(documents) - set(import_yaml.KNOWN))
    if unfilled:
        flags = " ".join(f"--set {name_left}=VALUE" for name_left in unfilled)
        raise SpecError(f"{path}: nothing is known for {', '.join(unfilled)}.", f"Add {flags}.")
    for document in documents:
        _set_everywhere(document, values)
        for keys, what in find_secrets(document):
            raise SpecError(
                f"{path}: {'.'.join(map(str, keys))} looks like {what}, and specs are no place for it.",
                "Keep it with `l2rtui secret create`, and refer to that: valueFrom: {secretKeyRef: ...}.",
            )
    return import_yaml.read_kubernetes_yaml(documents, path, name)


def _override(override: str) -> tuple[str, str]:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"--set {override}: write it as NAME=value, such as image=registry/l2r:1.")
    return key.strip(), value


def _refuse_unused(path: str, values: dict[str, str], names: set[str]) -> None:
    for key in values:
        if key not in names and key not in ("image", "replicas"):
            there = f"its placeholders are {', '.join(sorted(names))}" if names else "it has no placeholders"
            sentence = f"--set {key}: {path} holds Kubernetes' own objects, and {there}."
            raise SpecError(sentence, "Besides placeholders, image and replicas can be set.")


def _unmarked(value: Any, names: Sequence[str], values: dict[str, str]) -> Any:
    """Return parsed values with each mark replaced by its value, or by the placeholder where it has none."""
    if isinstance(value, str):

        def text_of(match: re.Match[str]) -> str:
            if int(match[1]) >= len(names):  # no mark of ours, only a text that looks like one
                return match[0]
            name = names[int(match[1])]
            return values.get(name, f"{{{{{name}}}}}")

        return _MARKED.sub(text_of, value)
    if isinstance(value, list):
        return [_unmarked(item, names, values) for item in value]
    if isinstance(value, dict):
        return {str(key): _unmarked(item, names, values) for key, item in value.items()}
    return value


def _set_everywhere(document: Any, values: dict[str, str]) -> None:
    """Apply ``image=`` and ``replicas=`` to one object."""
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        return
    if "replicas" in values and document.get("kind") != "Pod":
        # Still text here: the import checks that it is a number, and names the object if it is not.
        spec["parallelism" if document.get("kind") == "Job" else "replicas"] = values["replicas"]
    template = spec.get("template")
    pod = template.get("spec") if isinstance(template, dict) else spec
    if "image" in values and isinstance(pod, dict):
        for container in pod.get("containers") or ():
            if isinstance(container, dict):
                container["image"] = values["image"]
