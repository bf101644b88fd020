"""Login of a user at the API server, and the interface of login sources.

Below credentials, OIDC and credential plugins, so that none of these needs to import another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.kubernetes.api.errors import ApiError

EksSigner = Callable[[str, str, str, str], tuple[str, float]]
"""``(cluster, region, profile, role) → (token, expiry in seconds since the epoch)``. ImportError means no
botocore.
"""


class Confidential(Struct, frozen=True):
    """Struct that contains tokens or keys. Its ``repr`` is its name alone: a traceback with locals, or a failed
    assertion, would print them.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return []


class ApiLogin(Confidential, frozen=True):
    """Header and client certificate that authenticate requests.

    Attributes:
        authorization: Value of the ``Authorization`` header; empty for none.
        certificate, key: PEM of the client certificate; empty for none.
        expires: Seconds since the epoch; None for never.
    """

    authorization: str = ""
    certificate: bytes = b""
    key: bytes = b""
    expires: float | None = None

    def is_same_as(self, other: ApiLogin) -> bool:
        """Return True if both look the same to the server; expiry is ignored."""
        return replace(other, expires=self.expires) == self


class LoginSource(Protocol):
    """Source of logins: the kubeconfig itself, a credential plugin, an identity provider."""

    async def fetch(self) -> ApiLogin:
        """Fetch a fresh login; on failure ApiError with a sentence on the reason."""


def login_error(message: str, hint: str = "") -> ApiError:
    """Create the error for a login that cannot be obtained: nothing was sent to the server."""
    return ApiError(message, hint, status=401, reason="NoCredential", detail=message)
