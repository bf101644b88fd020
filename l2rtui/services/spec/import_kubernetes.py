"""Import of files with Kubernetes objects: their encoding, placeholders, YAML or JSON documents, and ``--set``.

They are read in the same way as by kubectl: YAML in any style, JSON, several documents, UTF-8 with or without a
byte order mark, UTF-16 with one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

from l2rtui import bounded_yaml
from l2rtui.backends.kubernetes.manifests import import_fields, import_yaml
from l2rtui.backends.kubernetes.manifests.import_fields import items, mapping
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.secret import SpecPath, find_secrets
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import SpecError
from l2rtui.services.spec import import_operators
from l2rtui.services.spec.decode import check_image
from l2rtui.services.spec.yaml_lines import MAX_VALUES, TEMPLATE_HINT

_MARK = "l2r-placeholder-{}-"
_MARKED = re.compile(r"l2r-placeholder-(\d{1,7})-")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
"""``$NAME`` and ``${NAME}``, which envsubst fills in; ``$(NAME)`` belongs to Kubernetes."""
_FREE_TEXT: Final = frozenset({"command", "args", "env", "data", "stringData", "annotations"})
"""Fields whose texts may mean a shell's variables."""
_FIRST_COLUMN = re.compile(r"^apiVersion[ \t]*:", re.MULTILINE)
_ENCODINGS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

Converted = tuple[dict[str, Any], tuple[Finding, ...]]
"""Data of a spec file made from an operator's job, and findings."""


def holds_objects(raw: bytes) -> bool:
    """Return True for a file of Kubernetes objects: its first document has an apiVersion.

    A file with one in the first column counts even if it is not valid YAML, so that the error is reported.
    """
    if b"a\0p\0i\0V" not in raw and b"\0a\0p\0i\0V" not in raw and b"apiVersion" not in raw:
        return False
    try:
        text = _decoded(raw, "")
        if _FIRST_COLUMN.search(text):
            return True
        documents = _parsed(text, [])
    except (SpecError, yaml.YAMLError):
        return False
    first = next((document for document in documents if document is not None), None)
    return isinstance(first, dict) and isinstance(first.get("apiVersion"), str)


def load_objects(
    files: Sequence[tuple[str, bytes]], overrides: Sequence[str] = (), name: str = ""
) -> tuple[RunSpec, tuple[Finding, ...]] | Converted:
    """Read the objects of files as one run; the job of an operator becomes the data of a spec file.

    Args:
        files: Path and contents of each.
        overrides: ``NAME=value`` for each placeholder ``{{NAME}}`` that no plan fills in, and for each variable
            ``$NAME`` or ``${NAME}``; ``image=…`` and ``replicas=…`` for every workload.

    Raises:
        SpecError: not YAML, no workload, a placeholder without a value, or an invalid image name.
    """
    values = dict(_override(override) for override in overrides)
    # Marks are numbered, since one placeholder may occur several times and inside longer words.
    names: list[str] = []
    documents = [document for path, raw in files for document in _documents(raw, path, names)]
    path = files[0][0]
    left_out = _remove_namespaces(documents)
    # After parsing, so that a value is text whatever it contains: it cannot add YAML.
    documents = [_unmarked(document, names, values) for document in documents]
    variables = dict(sorted(set().union(*map(_variables, documents))))
    documents = [_with_variables(document, values) for document in documents]
    _refuse_unused(path, values, {*names, *variables})
    # A plan fills in the rest later, when slots and seeds are known; a spec file has no placeholders.
    is_operators = any(import_operators.is_operator_job(document) for document in documents)
    if not is_operators:
        for _ in import_fields.objects(documents, path):
            pass  # a kind that no run has is refused before values are asked for
    unfilled = import_yaml.placeholders(documents) - set(() if is_operators else import_yaml.KNOWN)
    unfilled |= {name_left for name_left, needed in variables.items() if needed and name_left not in values}
    if unfilled:
        flags = " ".join(f"--set {name_left}=VALUE" for name_left in sorted(unfilled))
        raise SpecError(f"{path}: nothing is known for {', '.join(sorted(unfilled))}.", f"Add {flags}.")
    for document in documents:
        _set_everywhere(document, values)
        for keys, what in find_secrets(document):
            raise SpecError(
                f"{path}: {_place_in(document, keys)} looks like {what}, and specs are no place for it.",
                "Keep it with `l2rtui secret create`, and refer to that: valueFrom: {secretKeyRef: ...}.",
            )
        _check_images(document, path)
    literal = tuple(
        Finding(
            Severity.WARNING,
            str(document.get("kind")),
            f"the value of {variable} is the text {text}, which nothing fills in",
            f"Add --set {text.strip('${}')}=VALUE.",
        )
        for document in documents
        for variable, text in _literal_values(document)
    )
    if is_operators:
        data, notes = import_operators.spec_of(documents, path, name)
        for part in (data[key] for key in ("nodes", "workers", "servers") if key in data and "image" in values):
            part["pod"]["image"] = values["image"]
        return data, (*notes, *left_out, *literal)
    spec, notes = import_yaml.read_kubernetes_yaml(documents, path, name)
    return spec, (*notes, *left_out, *literal)


def _remove_namespaces(documents: list[Any]) -> list[Finding]:
    """Remove the Namespaces from the documents and their Lists; return a finding for each."""
    findings = []
    for document in tuple(documents):
        kind = document.get("kind") if isinstance(document, dict) else None
        if kind == "List" and isinstance(document.get("items"), list):
            findings += _remove_namespaces(document["items"])
        elif kind == "Namespace":
            documents.remove(document)
            name = mapping(document, "metadata").get("name")
            sentence = "it is left out: a run goes into the namespace of -n, which has to exist"
            hint = f"Write -n {name} if it belongs there."
            findings.append(Finding(Severity.WARNING, f"Namespace {name}", sentence, hint))
    return findings


def _documents(raw: bytes, path: str, names: list[str]) -> list[Any]:
    try:
        return _parsed(_decoded(raw, path), names)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        hint = TEMPLATE_HINT if b"{{" in raw else ""
        raise SpecError(f"{path}:{line}: not YAML: {error.problem}.", hint) from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: not YAML: {error}.") from None


def _decoded(raw: bytes, path: str) -> str:
    encoding = next((encoding for mark, encoding in _ENCODINGS if raw.startswith(mark)), "utf-8")
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not YAML: it is not UTF-8 text.") from None


def _parsed(text: str, names: list[str]) -> list[Any]:
    """Return the documents of a text, with a mark for each placeholder, whose name is appended."""

    def mark(match: re.Match[str]) -> str:
        names.append(match[1])
        return _MARK.format(len(names) - 1)

    # ``{{NAME}}`` without quotes is not valid YAML, so a plain word replaces each placeholder until after parsing.
    text = import_fields.PLACEHOLDER.sub(mark, text)
    if text.lstrip().startswith("{") and (objects := _json_objects(text)) is not None:
        return objects
    return bounded_yaml.load_all(text, max_values=MAX_VALUES)


def _json_objects(text: str) -> list[Any] | None:
    """Return the objects of a JSON text, one after the other as in kubectl; None if it is not JSON.

    PyYAML reads most JSON, but no tabs between values, and no second object without ``---``.
    """
    decoder, objects, at = json.JSONDecoder(), [], 0
    try:
        while at < len(text):
            if text[at].isspace():
                at += 1
                continue
            value, at = decoder.raw_decode(text, at)
            objects.append(value)
        for value in objects:  # within the limits of YAML, too
            bounded_yaml.check(json.dumps(value), yaml.SafeLoader, max_values=MAX_VALUES)
    except (ValueError, RecursionError):
        return None
    return objects


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


def _unmarked(document: Any, names: Sequence[str], values: dict[str, str]) -> Any:
    """Return a document with each mark replaced by its value, or by the placeholder if it has none."""

    def text_of(match: re.Match[str]) -> str:
        if int(match[1]) >= len(names):  # not a mark of ours, only a similar text
            return match[0]
        name = names[int(match[1])]
        return values.get(name, f"{{{{{name}}}}}")

    return import_yaml.with_texts(document, lambda text: _MARKED.sub(text_of, text))


def _with_variables(document: Any, values: dict[str, str]) -> Any:
    def text_of(match: re.Match[str]) -> str:
        return values.get(match[1] or match[2], match[0])

    return import_yaml.with_texts(document, lambda text: _VARIABLE.sub(text_of, text))


def _variables(value: Any, is_free: bool = False) -> set[tuple[str, bool]]:
    """Return the shell variables in a document, each with True if it stands where no shell would fill it in."""
    if isinstance(value, str):
        return {(braced or bare, not is_free) for braced, bare in _VARIABLE.findall(value)}
    if isinstance(value, list):
        return set().union(*(_variables(item, is_free) for item in value))
    if isinstance(value, dict):
        return set().union(*(_variables(item, is_free or key in _FREE_TEXT) for key, item in value.items()))
    return set()


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Yield each object in a document, at any depth."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _mappings(item)


def _literal_values(document: Any) -> Iterator[tuple[str, str]]:
    """Yield name and value of each variable of a container whose value is one shell variable."""
    for container in _mappings(document):
        for variable in items(container, "env"):
            if _VARIABLE.fullmatch(str(variable.get("value", ""))):
                yield str(variable.get("name")), str(variable["value"])


def _check_images(document: Any, path: str) -> None:
    """Check the images of all containers. Raises SpecError."""
    for container in _mappings(document):
        image = container.get("image")
        # A container has both; placeholders of a plan stay until the slots are known.
        if isinstance(image, str) and image and "name" in container and not import_yaml.placeholders(image):
            check_image(f"{path}: container {container['name']}", image)


def _place_in(document: Any, keys: SpecPath) -> str:
    """Return the path of a value, with the names of entries where they have one: ``env.HF_TOKEN.value``."""
    words = []
    for key in keys:
        document = document[key]
        has_name = isinstance(key, int) and isinstance(document, dict) and isinstance(document.get("name"), str)
        words.append(document["name"] if has_name else str(key))
    return ".".join(words)


def _set_everywhere(document: Any, values: dict[str, str]) -> None:
    """Apply ``image=`` and ``replicas=`` to one object."""
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        return
    if "replicas" in values and document.get("kind") != "Pod":
        # Still text here: the import checks that it is a number, and otherwise names the object.
        spec["parallelism" if document.get("kind") == "Job" else "replicas"] = values["replicas"]
    if "replicas" in values and document.get("kind") in ("ElasticJob", "PyTorchJob", "TFJob"):
        for part in spec.values():
            worker = part.get("Worker") if isinstance(part, dict) else None
            if isinstance(worker, dict):
                worker["replicas"] = values["replicas"]
    template = spec.get("template")
    pod = template.get("spec") if isinstance(template, dict) else spec
    if "image" in values and isinstance(pod, dict):
        for container in pod.get("containers") or ():
            if isinstance(container, dict):
                container["image"] = values["image"]
