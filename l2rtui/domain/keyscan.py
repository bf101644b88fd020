"""Texts that look like keys, which a spec must not hold: it is kept in files, in objects and in histories."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

Path = tuple[str | int, ...]

_BY_FORM: Final = (
    (re.compile(r"(?<![A-Z0-9])(AKIA|ASIA)[A-Z2-7]{16}(?![A-Z0-9])"), "an AWS access key id"),
    (re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----"), "a private key"),
    (re.compile(r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{36,}"), "a token of GitHub's"),
    (re.compile(r"(?<![A-Za-z0-9])github_pat_[A-Za-z0-9_]{40,}"), "a token of GitHub's"),
    (re.compile(r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{30,}"), "a token of Hugging Face's"),
    (re.compile(r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{32,}"), "an API key"),
    (re.compile(r"(?<![A-Za-z0-9])xox[abprs]-[A-Za-z0-9-]{20,}"), "a token of Slack's"),
    (re.compile(r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_-]{20,}"), "a token of GitLab's"),
    (re.compile(r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"), "a signed token"),
    (re.compile(r"://[^/\s:@{}$]+:[^/\s:@{}$]{3,}@"), "a password in an address"),
    (re.compile(r"(?i)\b(password|passwd)\s*=\s*[^\s$&<{][^\s]{3,}"), "a password"),
    (re.compile(r"(?i)(secret|token|[_-]key)\s*=\s*(?=[^\s]*[0-9])[A-Za-z0-9_+/=.-]{16,}"), "a key"),
)
_NAMES = re.compile(
    r"(?i)(^|_|-|\.)(password|passwd|secret|token|api_?key|access_?key|private_?key|credentials?)$|_KEY$"
)
_HARMLESS = re.compile(r"(?i)_(file|path|dir|name|url|id)$")
_AWS_SECRET = re.compile(r"[A-Za-z0-9/+]{40}")
_HEX = re.compile(r"[0-9a-f]{32,64}")
_REFERENCE = re.compile(r"\$\{?[A-Za-z_][A-Za-z0-9_]*\}?|\$\([A-Za-z_][A-Za-z0-9_]*\)|/[\w./-]*")
_NO_SECRETS = ("pull_secrets", "secrets", "secretName", "secretKeyRef", "imagePullSecrets")
"""Fields that name secrets and hold none."""
_HIDDEN_WORDS: Final = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL")


def hides_value(name: str) -> bool:
    """Whether a variable's value is not to be shown; rather one too many than one too few."""
    return any(word in name.upper() for word in _HIDDEN_WORDS) and not name.endswith("_FILE")


def find_keys(data: Any) -> Iterator[tuple[Path, str]]:
    """Every place of a decoded file that looks like a key, and what it looks like; never the text itself."""
    yield from _walk(data, ())


def _walk(data: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(data, Mapping):
        named = data.get("name")
        for key, value in data.items():
            if key in _NO_SECRETS:
                continue
            # Kubernetes writes variables as a list of name and value.
            label = str(named) if key == "value" and isinstance(named, str) else str(key)
            yield from _looked_at(value, (*path, str(key)), label)
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from _looked_at(value, (*path, number), str(path[-1]) if path else "")


def _looked_at(value: Any, path: Path, label: str) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        if what := _kind_of(value, label):
            yield path, what
    else:
        yield from _walk(value, path)


def _kind_of(text: str, label: str) -> str:
    for pattern, what in _BY_FORM:
        if pattern.search(text):
            return what
    if not _NAMES.search(label) or _HARMLESS.search(label) or _REFERENCE.fullmatch(text):
        return ""
    if _HEX.fullmatch(text):
        return "a key of Weights & Biases" if "WANDB" in label.upper() else "a key"
    if _AWS_SECRET.fullmatch(text):
        return "an AWS secret key" if "AWS" in label.upper() else "a key"
    return "a password or key" if len(text) >= 8 and not text.islower() else ""
