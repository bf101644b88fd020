"""Keys and logins that runs need: kept by the backend, named by specs, never written out again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
MAX_BYTES = 512 << 10
REGISTRY_KEY = ".dockerconfigjson"


class SecretKind(StrEnum):
    """What a secret is for."""

    VARIABLES = "variables"
    REGISTRY = "registry"


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret that is to be kept.

    Attributes:
        values: Text by key: the variables, or the logins of a registry as Docker writes them.
    """

    name: str
    kind: SecretKind
    values: tuple[tuple[str, str], ...] = field(repr=False)

    def problem(self) -> str:
        """Say what is wrong with it, without its values; empty when it is right."""
        if not _NAME.fullmatch(self.name) or len(self.name) > 63:
            return f"{self.name!r} is not a name: use lower-case letters, digits, '-' and '.'"
        if not self.values:
            return f"{self.name} would hold nothing"
        for key, value in self.values:
            if self.kind is SecretKind.VARIABLES and not _VARIABLE.fullmatch(key):
                return f"{key!r} is no name of a variable"
            if not value:
                return f"{key} is empty"
            if "\0" in value:
                return f"{key} holds a character that no variable can hold"
        if sum(len(value) for _, value in self.values) > MAX_BYTES:
            return f"{self.name} is larger than {MAX_BYTES >> 10} KiB"
        return ""


@dataclass(frozen=True, slots=True)
class SecretView:
    """What is shown of a secret: everything but its values.

    Attributes:
        keys: Names of its variables. created: RFC 3339.
    """

    name: str
    kind: SecretKind
    keys: tuple[str, ...]
    owner: str = ""
    created: str = ""
