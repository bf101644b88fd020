"""Secrets of runs: stored by the backend, named in specs, and detected if a spec contains one by mistake.

A spec is stored in files, in Kubernetes objects and in shell histories, so it must hold no secret itself.
`find_secrets` decides whether a value is a secret.

Text that is stored for people to read, such as a log, is redacted: everything that may be a secret is hidden.
Hiding a harmless word costs little; a token in a bug report costs a lot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from runtime.base.contract import SET_BY_LAUNCHERS

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
MAX_BYTES = 512 << 10  # Kubernetes allows 1 MiB an object, and base64 adds a third
REGISTRY_KEY = ".dockerconfigjson"


class SecretKind(StrEnum):
    """Purpose of a secret."""

    VARIABLES = "variables"
    REGISTRY = "registry"


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret to be stored.

    Attributes:
        values: Text by key: variables, or registry logins in the format of Docker's config.json.
    """

    name: str
    kind: SecretKind
    values: tuple[tuple[str, str], ...] = field(repr=False)

    def problem(self) -> str:
        """Return a sentence on the first invalid part, without any value; empty if the secret is valid."""
        if not re.fullmatch(_NAME, self.name) or len(self.name) > 63:
            return f"{self.name!r} is not a name: use lower-case letters, digits, '-' and '.'"
        if not self.values:
            return f"{self.name} would hold nothing"
        for key, value in self.values:
            if self.kind is SecretKind.VARIABLES and not re.fullmatch(_VARIABLE, key):
                return f"{key!r} is not a variable name"
            if key in SET_BY_LAUNCHERS:
                return f"l2rtui sets {key} itself in every process; rename the variable"
            if not value:
                return f"{key} is empty"
            if "\0" in value:
                return f"{key} holds a character that no variable can hold"
        if sum(len(value) for _, value in self.values) > MAX_BYTES:
            return f"{self.name} is larger than {MAX_BYTES >> 10} KiB"
        return ""


class SecretView(Struct, frozen=True):
    """Public part of a secret, without its values.

    Attributes:
        keys: Names of its variables. created: RFC 3339.
    """

    name: str
    kind: SecretKind
    keys: tuple[str, ...]
    owner: str = ""
    created: str = ""


SpecPath = tuple[str | int, ...]
"""Keys and indices from the root of a decoded file."""

# Formats that are unmistakable: prefixes that the issuers publish for secret scanners. As texts, since few commands
# need them, and compiling them costs each start some milliseconds.
SECRET_FORMS: Final = (
    (r"(?<![A-Z0-9])(AKIA|ASIA)[A-Z2-7]{16}(?![A-Z0-9])", "an AWS access key id"),
    (r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----", "a private key"),
    (r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{36,}", "a token of GitHub's"),
    (r"(?<![A-Za-z0-9])github_pat_[A-Za-z0-9_]{40,}", "a token of GitHub's"),
    (r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{30,}", "a token of Hugging Face's"),
    (r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{32,}", "an API key"),
    (r"(?<![A-Za-z0-9])xox[abprs]-[A-Za-z0-9-]{20,}", "a token of Slack's"),
    (r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_-]{20,}", "a token of GitLab's"),
    (r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}", "a signed token"),
    (r"hooks\.slack\.com/(services|workflows)/\w{3,}", "an address of a Slack webhook"),
    (r"://[^/\s:@{}$]+:[^/\s:@{}$]{3,}@", "a password in an address"),
    (r"(?i)\b(password|passwd)\s*=\s*[^\s$&<{][^\s]{3,}", "a password"),
    (r"(?i)(secret|token|[_-]key)\s*=\s*(?=[^\s]*[0-9])[A-Za-z0-9_+/=.-]{16,}", "a key"),
)
# The formats below are ambiguous: 40 characters may be an AWS secret key or a git revision. They count only under a
# name that suggests a secret.
_SUSPECT_NAMES = (
    r"(?i)(^|_|-|\.)(password|passwd|pass|pwd|secret|token|api_?key|access_?key|private_?key|credentials?)$|_KEY$"
)
_HARMLESS = r"(?i)_(file|path|dir|name|url|id)$"
_AWS_FORM = r"[A-Za-z0-9/+]{40}"
_HEX = r"[0-9a-f]{32,64}"
# `$NAME`, `${NAME}`, `$(NAME)` and paths refer to a secret and do not contain one.
_REFERENCE = r"\$\{?[A-Za-z_][A-Za-z0-9_]*\}?|\$\([A-Za-z_][A-Za-z0-9_]*\)|/[\w./-]*"
_NO_SECRETS = ("pull_secrets", "secrets", "secretName", "secretKeyRef", "imagePullSecrets")
"""Fields that name secrets but do not contain any."""
_HIDDEN_WORDS: Final = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL")


def is_secret_variable(name: str) -> bool:
    """True for a variable whose value must not be displayed, judged by its name; when in doubt, hide."""
    is_secret = any(word in name.upper() for word in _HIDDEN_WORDS) or name.upper().endswith("_PWD")
    return is_secret and not name.endswith("_FILE")


def find_secrets(data: Any, path: SpecPath = ()) -> Iterator[tuple[SpecPath, str]]:
    """Yield path and kind of each text of a decoded file that looks like a secret, never the text itself.

    Args:
        path: Path of the data in the file.
    """
    if isinstance(data, Mapping):
        entry_name = data.get("name")
        for key, value in data.items():
            if key in _NO_SECRETS:
                continue
            # Kubernetes writes variables as a list of name and value.
            label = str(entry_name) if key == "value" and isinstance(entry_name, str) else str(key)
            yield from _check_value(value, (*path, str(key)), label)
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from _check_value(value, (*path, number), str(path[-1]) if path else "")


def _check_value(value: Any, path: SpecPath, label: str) -> Iterator[tuple[SpecPath, str]]:
    if isinstance(value, str):
        if what := _kind_of(value, label):
            yield path, what
    else:
        yield from find_secrets(value, path)


def _kind_of(text: str, label: str) -> str:
    for pattern, what in SECRET_FORMS:
        if re.search(pattern, text):
            return what
    if not re.search(_SUSPECT_NAMES, label) or re.search(_HARMLESS, label) or re.fullmatch(_REFERENCE, text):
        return ""
    if re.fullmatch(_HEX, text):
        return "a key of Weights & Biases" if "WANDB" in label.upper() else "a key"
    if re.fullmatch(_AWS_FORM, text):
        return "an AWS secret key" if "AWS" in label.upper() else "a key"
    # Words such as `enabled` or `required` occur under such names too. To avoid those, a password of only
    # lower-case letters is missed.
    return "a password or key" if len(text) >= 8 and not text.islower() else ""


HIDDEN_TEXT: Final = "[hidden]"
_MAX_CHARS: Final = 65_536
"""Longest text that is searched. The rest is dropped, since unsearched text may hold a secret."""

# Only the header line of a private key matches another pattern, and the lines below it are secret.
_PRIVATE_KEY: Final = r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)"
# The end of the name of a header, a variable, a JSON field or a query parameter, and its value. The beginning of
# the name is not matched: it is not replaced anyway, and a prefix of any length would make the search quadratic.
_NAMED: Final = r"""(?ix)
    (?P<name> authorization | cookie | token | secret | password | passwd | pass | [_-]pwd | credentials?
        | signature | api[_-]?key | access[_-]?key | private[_-]?key | [_-]key | key[_-]?data )
    (?P<sign> \\*["']? \s* [:=] \s* [\[({\\"']* )  # backslashes: of JSON in JSON
    (?: (?:bearer|basic|negotiate) \s+ )?
    (?! \[hidden\] ) [^\s"',;&}\\]+
    """
_REDACTIONS: Final = (
    (_PRIVATE_KEY, HIDDEN_TEXT),
    (r"://[^/\s@]+@", f"://{HIDDEN_TEXT}@"),
    (r"(?i)(\bcookie\s*:\s*)[^\r\n]+", rf"\1{HIDDEN_TEXT}"),  # several pairs, separated by semicolons
    (r"(?i)(--[a-z-]{0,40}(?:token|secret|password|key)\s+)(?!-)\S+", rf"\1{HIDDEN_TEXT}"),
    (_NAMED, rf"\g<name>\g<sign>{HIDDEN_TEXT}"),
    (r"(?i)\b(bearer|basic|negotiate)\s+[A-Za-z0-9._~+/=-]{6,}", rf"\1 {HIDDEN_TEXT}"),
    (r"k8s-aws-v1\.[A-Za-z0-9_=-]+", HIDDEN_TEXT),  # a token of EKS
    *((form, HIDDEN_TEXT) for form, _ in SECRET_FORMS),
)
"""Pattern and replacement, in this order."""


def redact(text: str) -> str:
    """Return the text with everything that looks like a secret replaced by ``[hidden]``. Idempotent."""
    text = text[:_MAX_CHARS]
    for pattern, hidden in _REDACTIONS:
        text = re.sub(pattern, hidden, text)
    return text


def redact_long(text: str) -> str:
    """Redact a text of any length; single lines are truncated as in `redact`.

    The text is split between lines and searched piece by piece, since searching one long text is not linear.
    """
    text = re.sub(_PRIVATE_KEY, HIDDEN_TEXT, text)  # the only pattern that spans lines
    pieces: list[str] = [""]
    for line in text.splitlines(keepends=True):
        if len(pieces[-1]) + len(line) > _MAX_CHARS:
            pieces.append("")
        pieces[-1] += line
    return "".join(map(redact, pieces))
