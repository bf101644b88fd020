"""Quantities: Kubernetes' own examples, and back again."""

from __future__ import annotations

import re
from contextlib import suppress
from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.domain.quantity import (
    age,
    format_bytes,
    format_cores,
    format_rate,
    parse_bytes,
    parse_cores,
    parse_quantity,
    rfc3339,
    utc,
    whole_number,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500m", 0.5),
        ("16Gi", 16 * 2**30),
        ("1", 1.0),
        (" 2 ", 2.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("+3", 3.0),
        ("-4k", -4000.0),
        ("1e3", 1000.0),
        ("1E3", 1000.0),
        ("12e-2", 0.12),
        ("1E", 1e18),
        ("100n", 1e-7),
        ("7u", 7e-6),
        ("2Ki", 2048.0),
        ("3M", 3e6),
        ("1Pi", 2.0**50),
        ("0", 0.0),
        (3, 3.0),
        (0.25, 0.25),
    ],
)
def test_reads_what_kubernetes_reads(text, number):
    assert parse_quantity(text) == pytest.approx(number)


@pytest.mark.parametrize(
    "text", ["", "Gi", "1 Gi", "1gi", "1KiB", "0x10", "1,5", "one", "--1", "1e", "\u0663", "1\n2"]
)
def test_refuses_what_is_none_and_names_it(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["1e400", "1E+9999999", "9" * 400, "1" + "0" * 300 + "Ei", inf, nan, 10**400])
def test_refuses_what_no_number_can_hold(text):
    with pytest.raises(ValueError, match="not a number of cores or bytes"):
        parse_quantity(text)


@given(st.one_of(st.text(), st.from_regex(r"[-+]?[0-9.]+([eE][-+]?[0-9]+|[a-zA-Z]{0,2})", fullmatch=True)))
def test_any_text_is_a_finite_number_or_a_value_error(text):
    with suppress(ValueError):
        assert isfinite(parse_quantity(text))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1.5Ki"),
        (16 * 2**30, "16Gi"),
        (1000 * 2**20, "1000Mi"),
        (1023.9 * 2**20, "1024Mi"),
        (2000 * 2**50, "2000Pi"),
        (5 * 2**40, "5Ti"),
        (3 * 2**50, "3Pi"),
        (-2048, "-2Ki"),
    ],
)
def test_bytes_are_short(count, text):
    assert format_bytes(count) == text


@given(st.floats(min_value=0, max_value=2**59))
def test_bytes_come_back_within_three_digits(count):
    assert parse_quantity(format_bytes(count)) == pytest.approx(count, rel=0.006, abs=0.01)


@given(st.integers(min_value=0, max_value=1_000_000))
def test_millicores_come_back_exactly(millicores):
    assert round(parse_quantity(format_cores(millicores / 1000)) * 1000) == millicores


@pytest.mark.parametrize(
    ("cores", "text"), [(2, "2"), (0.5, "500m"), (1.25, "1250m"), (0, "0"), (12345678, "12345678")]
)
def test_cores_are_written_as_kubernetes_does(cores, text):
    assert format_cores(cores) == text


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (-5, "<10s"),
        (9, "<10s"),
        (19, "10s"),
        (59, "50s"),
        (60, "1m"),
        (3599, "59m"),
        (3600, "1h00m"),
        (90061, "1d01h"),
        (864_000, "10d"),
        (5_200_000, "60d"),
    ],
)
def test_ages_go_in_coarse_steps(seconds, written):
    assert age(seconds) == written


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.7e9, "2023-11-14T22:13:20.000Z"),
        (0.25, "1970-01-01T00:00:00.250Z"),
        (-1e14, None),
        (0.0, None),
        (None, None),
        (1e300, None),
        (1e13, None),
        (nan, None),
    ],
)
def test_a_time_is_written_in_utc_or_not_at_all(seconds, text):
    assert rfc3339(seconds) == text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("999999999999999", 999_999_999_999_999),
        ("1000000000000000", None),
        ("9" * 5000, None),
        ("-1", None),
        ("\u0663", None),  # a digit, though not of ASCII
        ("", None),
    ],
)
def test_a_whole_number_is_short_and_of_ascii(text, number):
    assert whole_number(text) == number


# --- kubernetes/website#30499, kubernetes/kubernetes#103761, bentoml/Yatai#485 -----------------------------------
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("512m", "'512m' is less than one byte: did you mean 512Mi?"),
        ("2000m", "'2000m' is 2 bytes: did you mean 2000Mi?"),
        ("512u", "is less than one byte"),
        (512, "512 is 512 bytes: did you mean 512Mi?"),
        ("0.5", "is less than one byte: did you mean 0.5Mi?"),
        ("512MB", "is not a quantity: did you mean 512Mi?"),
        ("2GB", "did you mean 2Gi?"),
        ("2 GiB", "did you mean 2Gi?"),
        ("2gi", "did you mean 2Gi?"),
        ("64kb", "did you mean 64Ki?"),
        ("much", "'much' is not a quantity: write"),
        ("-1Gi", "is less than nothing"),
    ],
)
def test_memory_of_another_unit_is_refused_with_the_one_that_is_meant(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "number"), [("512Mi", 2**29), (0, 0), ("1e9", 10**9), ("64Ki", 2**16), ("128974848000m", 128974848)]
)
def test_memory_of_a_plausible_size_is_taken(text, number):
    assert parse_bytes(text) == number


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2Gi", "'2Gi' is 2.147e+09 cores: did you mean 2?"),
        ("500M", "did you mean 500m?"),
        (8000, "8000 is 8000 cores: did you mean 8000m?"),
        ("5u", "'5u' is less than a thousandth of a core"),
        ("-1", "is less than nothing"),
    ],
)
def test_cores_of_another_unit_are_refused(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_cores(text)


@pytest.mark.parametrize(("text", "number"), [("500m", 0.5), (2, 2), ("1m", 0.001), (0, 0), ("128", 128)])
def test_cores_of_a_plausible_number_are_taken(text, number):
    assert parse_cores(text) == number


def test_a_time_for_people_has_no_t_and_no_fraction():
    assert utc(1_795_794_589.25) == "2026-11-27 15:49:49 UTC"
    assert utc(0) == utc(None) == utc(1e30) == ""


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B/s"), (512, "512 B/s"), (370 * 2**10, "370 KiB/s"), (2**33, "8 GiB/s")]
)
def test_bytes_a_second_have_a_unit(count, text):
    assert format_rate(count) == text
