"""Errors as one line for a sentence."""

from __future__ import annotations

import pytest

from runtime.base.errors import first_line, unexpected_reason


def test_an_error_without_a_text_is_its_type() -> None:
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("a.\nb")) == "a"


def test_an_unexpected_error_says_what_it_is_and_where_it_was_raised() -> None:
    with pytest.raises(KeyError) as raised:
        {}["x"]
    assert unexpected_reason(raised.value).startswith("KeyError: 'x', test_errors.py line ")
    assert unexpected_reason(ValueError()) == "ValueError"
