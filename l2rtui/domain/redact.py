"""Redaction of secrets in text that is stored for people to read, such as a log.

`find_secrets` decides whether a value is a secret; this module hides everything that may be one. Hiding a harmless
word costs little; a token in a bug report costs a lot.
"""

from __future__ import annotations

import re
from typing import Final

from l2rtui.domain.secret import SECRET_FORMS

HIDDEN_TEXT: Final = "[hidden]"
_MAX_CHARS: Final = 65_536
"""Longest text that is searched. The rest is dropped, since unsearched text may hold a secret."""

# Before the other patterns: only the header line of a private key matches a pattern, the lines below it are secret.
_PRIVATE_KEY = re.compile(r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)")
_USER_INFO = re.compile(r"://[^/\s@]+@")
_COOKIES = re.compile(r"(?i)(\bcookie\s*:\s*)[^\r\n]+")  # several pairs, separated by semicolons
_OPTION = re.compile(r"(?i)(--[a-z-]{0,40}(?:token|secret|password|key)\s+)(?!-)\S+")
_SCHEME = re.compile(r"(?i)\b(bearer|basic|negotiate)\s+[A-Za-z0-9._~+/=-]{6,}")
_EKS_TOKEN = re.compile(r"k8s-aws-v1\.[A-Za-z0-9_=-]+")
# The end of the name of a header, a variable, a JSON field or a query parameter, and its value. The beginning of
# the name is not matched: it is not replaced anyway, and a prefix of any length would make the search quadratic.
_NAMED = re.compile(
    r"""(?ix)
    (?P<name> authorization | cookie | token | secret | password | passwd | pass | [_-]pwd | credentials?
        | signature | api[_-]?key | access[_-]?key | private[_-]?key | [_-]key | key[_-]?data )
    (?P<sign> \\*["']? \s* [:=] \s* [\[({\\"']* )  # backslashes: of JSON in JSON
    (?: (?:bearer|basic|negotiate) \s+ )?
    (?! \[hidden\] ) [^\s"',;&}\\]+
    """
)


def redact(text: str) -> str:
    """Return the text with everything that looks like a secret replaced by ``[hidden]``. Idempotent."""
    text = _PRIVATE_KEY.sub(HIDDEN_TEXT, text[:_MAX_CHARS])
    text = _USER_INFO.sub(f"://{HIDDEN_TEXT}@", text)
    text = _COOKIES.sub(rf"\1{HIDDEN_TEXT}", text)
    text = _OPTION.sub(rf"\1{HIDDEN_TEXT}", text)
    text = _NAMED.sub(rf"\g<name>\g<sign>{HIDDEN_TEXT}", text)
    text = _SCHEME.sub(rf"\1 {HIDDEN_TEXT}", text)
    text = _EKS_TOKEN.sub(HIDDEN_TEXT, text)
    for pattern, _ in SECRET_FORMS:
        text = re.sub(pattern, HIDDEN_TEXT, text)
    return text


def redact_long(text: str) -> str:
    """Redact a text of any length; single lines are truncated as in `redact`.

    The text is split between lines and searched piece by piece, since searching one long text is not linear.
    """
    text = _PRIVATE_KEY.sub(HIDDEN_TEXT, text)  # the only pattern that spans lines
    pieces: list[str] = [""]
    for line in text.splitlines(keepends=True):
        if len(pieces[-1]) + len(line) > _MAX_CHARS:
            pieces.append("")
        pieces[-1] += line
    return "".join(map(redact, pieces))
