"""Errors of the API server as one exception with a sentence.

The sentence names the verb and the object, and ends with the server's own message; the hint names the usual remedy.
The server's text is raw: screens and the command line sanitise it before display.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from msgspec import Struct

from l2rtui.errors import BackendError
from runtime.base import bounded_json

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
    "TooManyRequests": "The server is busy: try again in a moment.",
    "ServiceUnavailable": "The server is starting or overloaded: try again in a moment.",
}
# Wording of the RBAC authorizer; messages of other authorizers are shown unchanged.
_MISSING = re.compile(
    r'User "([^"]*)" cannot (\S+) resource "([^"]*)" in API group "([^"]*)"( at the cluster scope)?'
)
_DENIED = re.compile(r'User "[^"]*" cannot ')
"""Beginning of every authorizer's message; admission control refuses with the same status and reason."""
_NO_RIGHT = "Ask an administrator for this right; `l2rtui check` lists what is missing."
_NO_ADMISSION = "A policy of the cluster forbids it: change the spec, or ask an administrator."
_ADMISSION_HINTS: Final = {
    "because it is being terminated": "Wait until the namespace is gone, or choose another with -n.",
    "exceeded quota": "Free some of the quota, or ask for a larger one.",
    "must specify": "A quota of the namespace needs these values: set them under `resources` in the spec.",
    "usage per ": "A LimitRange of the namespace sets these limits: change `resources` in the spec.",
}
"""Next steps for refusals of Kubernetes' own admission plugins, by a phrase of their message."""
PROXY: Final = "Is there a proxy or a log-in page before the API server?"
_NO_PATH = "404 page not found"
"""The API server's own text for a path of a group or version that it does not serve."""
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_MOST_OF_PAGE, _MOST_SHOWN = 1 << 13, 300
_OF_OBJECTS = (403, 404, 405)
"""Statuses that say something about an object or a permission if the API server sends them."""
_REFUSED = "ConnectionRefused"


class MissingRight(NamedTuple):
    """Missing permission: verb, resource with its subresource (``pods/log``), API group."""

    verb: str
    resource: str
    group: str


NO_ANSWER = 0
"""Status of an error without any response of the server."""


class ApiError(BackendError):
    """The API server refused, failed or did not respond.

    Attributes:
        status: HTTP status; 0 if there was no response.
        reason: ``reason`` of the server's Status, such as ``AlreadyExists`` or ``Conflict``; empty without one.
        detail: ``message`` of the server's Status.
        retry_after_seconds: Value of the ``Retry-After`` header; None without one.
        is_foreign: A proxy or log-in page responded instead of the API server, so 403 and 404 say nothing about
            permissions and objects.
        is_repeated: The request was already sent on a connection that broke, and may have been carried out then.
        missing: Missing permission that caused the refusal; None for other causes or other authorizers' messages.
    """

    is_foreign: bool = False
    is_repeated: bool = False
    missing: MissingRight | None = None

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
    def reason_left(self) -> str:
        """Reason for an object in a receipt; names the Role with the permission if one is missing."""
        return str(self) if self.missing else self.message

    @property
    def is_not_found(self) -> bool:
        """True if the object, or its kind, does not exist."""
        return self.status == 404 and not self.is_foreign

    @property
    def is_conflict(self) -> bool:
        """True if the object was changed, another manager owns the field, or the name exists."""
        return self.status == 409

    @property
    def is_taken(self) -> bool:
        """True if an object of this name exists."""
        return self.reason == "AlreadyExists"

    @property
    def is_forbidden(self) -> bool:
        """True if the user lacks the permission."""
        return self.status == 403 and not self.is_foreign

    @property
    def is_denied(self) -> bool:
        """True if this kind cannot be listed by this user on this server: forbidden, unknown, or not listable."""
        return self.status in (403, 404, 405) and not self.is_foreign

    @property
    def is_final(self) -> bool:
        """True if a retry cannot help: the user lacks the permission, or is not logged in."""
        return self.status in (401, 403)

    @property
    def is_unauthorized(self) -> bool:
        """True on HTTP 401: the server does not accept the login, or no longer accepts it."""
        return self.status == 401

    @property
    def is_gone(self) -> bool:
        """True if the requested revision has been compacted."""
        # A watch event has either of these reasons, and not always the code.
        return self.status == 410 or self.reason in ("Expired", "Gone")

    @property
    def is_invalid(self) -> bool:
        """True if the object or query is invalid."""
        return self.status in (400, 422)

    @property
    def is_busy(self) -> bool:
        """True if the server throttles the client (API priority and fairness)."""
        return self.status == 429

    @property
    def is_unreachable(self) -> bool:
        """True if there was no response: the request may or may not have been carried out."""
        return self.status == NO_ANSWER

    @property
    def is_refused(self) -> bool:
        """True if the connection was refused: nothing listens at the address."""
        return self.reason == _REFUSED


class RequestInfo(Struct, frozen=True):
    """Method and path of a request, for messages."""

    method: str
    path: str

    def __str__(self) -> str:
        verb, what = _VERBS.get(self.method, self.method.lower()), _object(self.path)
        # These POSTs do not create an object in the usual sense.
        if self.method == "POST" and self.path.endswith(("/eviction", "/exec", "/portforward", "/binding")):
            verb = "use"
        return f"{verb} {what}"


def response_error(request: RequestInfo, status: int, body: bytes, retry_after: str = "") -> ApiError:
    """Create the error for a response with a status of 300 or more; the body is a Status object, or anything
    else.
    """
    reason, detail, is_foreign = _REASONS.get(status, ""), "", True
    try:
        parsed = bounded_json.loads(body)
    except ValueError:
        # A proxy or load balancer responded: the beginning of its page is the only hint.
        detail = _page_text(body)
        is_foreign = not detail.startswith(_NO_PATH)
    else:
        if isinstance(parsed, dict):
            reason = _text(parsed.get("reason")) or reason
            detail = _text(parsed.get("message"))
            is_foreign = parsed.get("kind") != "Status"
    error = status_error(request, status, reason, detail, _seconds(retry_after))
    if is_foreign and status in _OF_OBJECTS:
        error.is_foreign, error.hint = True, PROXY
    return error


def _page_text(body: bytes) -> str:
    """Return the beginning of a page without its markup."""
    text = body[:_MOST_OF_PAGE].decode("utf-8", "replace")
    return " ".join(_TAG.sub(" ", text).split())[:_MOST_SHOWN]


def status_error(
    request: RequestInfo, status: int, reason: str, detail: str, retry_after_seconds: float | None = None
) -> ApiError:
    """Create the error for a Status, from a response or from an ERROR event of a watch."""
    cause = _missing_permission(detail) or detail or reason or f"HTTP {status}"
    error = ApiError(
        f"The server did not {request}: {cause.rstrip('.')}.",
        _refusal_hint(detail) if status == 403 else _HINTS.get(reason, ""),
        status=status,
        reason=reason,
        detail=detail,
        retry_after_seconds=retry_after_seconds,
    )
    if status == 403 and (match := _MISSING.search(detail)):
        error.missing = MissingRight(*match.group(2, 3, 4))
    return error


def _refusal_hint(detail: str) -> str:
    if not detail or _DENIED.search(detail):
        return _NO_RIGHT
    return next((hint for phrase, hint in _ADMISSION_HINTS.items() if phrase in detail), _NO_ADMISSION)


def _missing_permission(detail: str) -> str:
    """Shorten the server's sentence on a missing permission; empty for any other sentence.

    The namespace is left out, as the request names it.
    """
    if (match := _MISSING.search(detail)) is None:
        return ""
    user, verb, what, _, everywhere = match.groups()
    return f"{user} lacks the right to {verb} {what}{' in all namespaces' if everywhere else ''}"


def unanswered_error(request: RequestInfo, server: str, cause: str, *, is_refused: bool = False) -> ApiError:
    """Create the error for a connection that was refused, broken or silent."""
    return ApiError(
        f"No answer from {server} to: {request} ({cause.rstrip('.')}).",
        "Check that the cluster is reachable from here (`kubectl version`).",
        reason=_REFUSED if is_refused else "",
        detail=cause,
    )


def _object(path: str) -> str:
    """Describe the object of a path: ``pods/x in the namespace ml``, ``nodes``."""
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
    except ValueError:  # an HTTP date, which no Kubernetes server sends
        return None
