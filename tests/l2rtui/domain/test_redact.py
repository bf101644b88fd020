"""Redaction hides possible secrets, keeps other text, and does not change its own result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.domain.secret import HIDDEN_TEXT, redact, redact_long

TOKEN = "abcDEF123456"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {TOKEN}",
        f"GET https://user:{TOKEN}@registry.example/v2/",
        f"Cookie: session={TOKEN}; theme=dark",
        f"docker login --password {TOKEN} registry.example",
        f"AWS_SECRET_ACCESS_KEY={TOKEN}",
        f'{{"token": "{TOKEN}"}}',
        f"k8s-aws-v1.{TOKEN}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{TOKEN}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{TOKEN}",
    ],
)
def test_what_may_be_a_secret_is_hidden(text):
    redacted = redact(text)
    assert TOKEN not in redacted
    assert HIDDEN_TEXT in redacted


@pytest.mark.parametrize("text", ["", "GET /api/v1/pods 200 in 0.01 s", "racing-w-0 runs", "key: [hidden]"])
def test_other_text_stays(text):
    assert redact(text) == text


def test_what_is_too_long_to_be_searched_is_dropped():
    assert len(redact("a" * 100_000)) < 100_000


@given(st.text(max_size=200))
def test_a_second_redaction_changes_nothing(text):
    assert redact(redact(text)) == redact(text)


def test_a_long_text_is_searched_to_its_end_and_loses_no_line():
    lines = [f"line {number}" for number in range(20_000)]
    key = ["-----BEGIN RSA PRIVATE KEY-----", *[TOKEN] * 3_000, "-----END RSA PRIVATE KEY-----"]
    text = "\n".join([*lines[:9_000], *key, *lines[9_000:], f"AWS_SECRET_ACCESS_KEY={TOKEN}", ""])

    redacted = redact_long(text)

    assert TOKEN not in redacted
    assert [line for line in redacted.splitlines() if line.startswith("line ")] == lines
    assert redact_long("") == ""
