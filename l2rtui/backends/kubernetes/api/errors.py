"""What the API server answers when it does not do what was asked, as one error with a sentence.

The sentence names what was asked of which object and ends with the server's own words; the hint says what people
usually do about it. Text of the server is raw: the screen and the command line sanitise what they show.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from l2rtui.errors import BackendError

_VERBS = {"GET": "read", "POST": "create", "PUT": "replace", "PATCH": "change", "DELETE": "delete"}
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Gone",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_HINTS = {
    "Unauthorized": "Log in to the cluster again, then repeat it.",
    "Forbidden": "Ask an administrator for this right; `l2rtui check` lists what is missing.",
    "TooManyRequests": "The server is busy: try again in a moment.",
    "ServiceUnavailable": "The server is starting or overloaded: try again in a moment.",
}
_MISSING = re.compile(
    r'User "([^"]*)" cannot (\S+) resource "([^"]*)" in API group "[^"]*"( at the cluster scope)?'
)
_REFUSED = "ConnectionRefused"
NO_ANSWER = 0
"""Status of an error for which the server gave no answer at all."""


class ApiError(BackendError):
    """The API server refused, failed or did not answer.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        reason: The server's word for it: ``AlreadyExists``, ``Conflict``, ``Forbidden``; empty without an answer.
        detail: The server's own sentence.
        retry_after_seconds: How long the server asks to wait; None when it does not say.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int = NO_ANSWER,
        reason: str = "",
        detail: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.retry_after_seconds = retry_after_seconds

    @property
    def is_not_found(self) -> bool:
        """The object, or the kind, is not there."""
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """Somebody changed the object, or owns the field, or the name is taken."""
        return self.status == 409

    @property
    def is_taken(self) -> bool:
        """An object with this name is there already."""
        return self.reason == "AlreadyExists"

    @property
    def is_forbidden(self) -> bool:
        """The user lacks the right."""
        return self.status == 403

    @property
    def is_unauthorized(self) -> bool:
        """The server does not know the user, or no longer."""
        return self.status == 401

    @property
    def is_gone(self) -> bool:
        """The revision that was asked for is no longer kept."""
        return self.status == 410 or self.reason in ("Expired", "Gone")

    @property
    def is_invalid(self) -> bool:
        """The server understood and refuses the object as it stands."""
        return self.status in (400, 422)

    @property
    def is_busy(self) -> bool:
        """The server asks to come back later."""
        return self.status == 429

    @property
    def is_unreachable(self) -> bool:
        """There was no answer at all: nobody knows whether it was done."""
        return self.status == NO_ANSWER

    @property
    def is_refused(self) -> bool:
        """Nothing listens at the server's address."""
        return self.reason == _REFUSED


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked, for sentences."""

    method: str
    path: str

    def __str__(self) -> str:
        verb, what = _VERBS.get(self.method, self.method.lower()), _object(self.path)
        if self.method == "POST" and self.path.endswith(("/eviction", "/exec", "/portforward", "/binding")):
            verb = "use"
        return f"{verb} {what}"


def from_answer(asked: Asked, status: int, body: bytes, retry_after: str = "") -> ApiError:
    """The error for an answer with a status of 400 or more; the body is the server's Status object, or anything."""
    reason, detail = _REASONS.get(status, ""), ""
    try:
        parsed = json.loads(body)
    except ValueError:
        detail = body[:300].decode("utf-8", "replace").strip()
    else:
        if isinstance(parsed, dict):
            reason = _text(parsed.get("reason")) or reason
            detail = _text(parsed.get("message"))
    return from_status(asked, status, reason, detail, _seconds(retry_after))


def from_status(
    asked: Asked, status: int, reason: str, detail: str, retry_after_seconds: float | None = None
) -> ApiError:
    """The error for a Status that came as an answer or as an event of a watch."""
    words = _lacks(detail) or detail or reason or f"HTTP {status}"
    return ApiError(
        f"The server did not {asked}: {words.rstrip('.')}.",
        _HINTS.get(reason, ""),
        status=status,
        reason=reason,
        detail=detail,
        retry_after_seconds=retry_after_seconds,
    )


def _lacks(detail: str) -> str:
    """The server's long words for a missing right in few ones; empty when it says something else.

    The namespace is named by what was asked already.
    """
    if (found := _MISSING.search(detail)) is None:
        return ""
    user, verb, what, everywhere = found.groups()
    return f"{user} lacks the right to {verb} {what}{' in all namespaces' if everywhere else ''}"


def no_answer(asked: Asked, server: str, cause: str, *, is_refused: bool = False) -> ApiError:
    """The error for a connection that was refused, cut or silent."""
    return ApiError(
        f"No answer from {server} to: {asked} ({cause.rstrip('.')}).",
        "Check that the cluster is reachable from here (`kubectl version`).",
        reason=_REFUSED if is_refused else "",
        detail=cause,
    )


def _object(path: str) -> str:
    """Say what a path stands for: ``pods/x in the namespace ml``, ``all nodes``."""
    parts = [part for part in path.partition("?")[0].split("/") if part]
    parts = parts[2:] if parts[:1] == ["api"] else parts[3:] if parts[:1] == ["apis"] else parts
    where = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        where, parts = f" in the namespace {parts[1]}", parts[2:]
    return ("/".join(parts) or path) + where


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _seconds(text: str) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:  # a date: nobody who serves Kubernetes sends one
        return None
