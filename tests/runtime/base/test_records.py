"""Reading of metric records, and manifests of checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.base.checkpoint_manifest import (
    ManifestError,
    checkpoint_name,
    decode_manifest,
    encode_manifest,
    file_sha256,
    find_damage,
    is_manifest,
)
from runtime.base.contract import METRIC_PREFIX
from runtime.base.metrics import MAX_LINE, integer, number, parse_record, record, text

ARRAYS = b"arrays of a checkpoint"
NAME = checkpoint_name(7, 70)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(max_size=10), st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=4))
def test_what_is_written_is_read(kind: str, fields: dict[str, object]) -> None:
    fields = {name: value for name, value in fields.items() if name not in ("l2r", "time")}
    line = record(kind, fields)
    assert line.startswith(METRIC_PREFIX)
    parsed = parse_record(line)
    assert parsed is not None
    assert parsed["l2r"] == kind
    assert set(parsed) == {"l2r", "time", *fields}


@pytest.mark.parametrize("before", ["half a line", "Epoch 3:  5%|#  | ", "\r", '{"l2r', "\x1b[0m"])
def test_a_record_behind_half_a_line_is_read(before: str) -> None:
    parsed = parse_record(before + record("learner", {"updates": 7}))
    assert parsed is not None
    assert parsed["updates"] == 7
    assert parse_record('{"inner": ' + record("learner", {"updates": 7}) + "}") is None


@given(st.text() | st.builds(METRIC_PREFIX.__add__, st.text()))
def test_no_line_breaks_the_parser(line: str) -> None:
    parsed = parse_record(line)
    assert parsed is None or isinstance(parsed["l2r"], str)


def test_the_longest_line_is_read_and_a_longer_one_is_not() -> None:
    line = METRIC_PREFIX + 'x"'
    assert parse_record(line + " " * (MAX_LINE - len(line) - 1) + "}") == {"l2r": "x"}
    assert parse_record(line + " " * (MAX_LINE - len(line)) + "}") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (-2.5, -2.5),
        (True, None),
        ("3", None),
        (None, None),
        ([3], None),
        (math.nan, None),
        (math.inf, None),
        (-math.inf, None),
        (10**400, None),
        (1e308, None),
    ],
)
def test_a_number_is_finite_and_no_boolean(value: object, expected: float | None) -> None:
    assert number(value) == expected
    assert integer(value) == (None if expected is None else int(expected))


def test_numbers_and_texts_are_bounded() -> None:
    assert (number(100, 100), number(-101, 100), integer(2.9), integer(-2.9)) == (100.0, None, 2, -2)
    assert (text("abcdef", 3), text(None), text(7)) == ("abc", "", "")


def manifest(**changes: object) -> bytes:
    fields = json.loads(encode_manifest(NAME, 7, 70, ARRAYS, {"made": {"run": "r"}}))
    return json.dumps({**fields, **changes}).encode()


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    path = tmp_path / f"{NAME}.safetensors"
    path.write_bytes(ARRAYS)
    return path


def test_a_manifest_says_what_was_written_however_it_is_formatted(arrays: Path) -> None:
    decoded = decode_manifest(manifest())  # on one line; the file is indented
    assert decoded == decode_manifest(encode_manifest(NAME, 7, 70, ARRAYS, {"made": {"run": "r"}}))
    assert (decoded.updates, decoded.env_steps, decoded.bytes) == (7, 70, len(ARRAYS))
    assert decoded.sha256 == file_sha256(arrays)
    assert decoded.data == arrays.name
    assert find_damage(manifest(), arrays) is None


def test_a_manifest_of_an_earlier_release_is_read() -> None:
    text_of_2026 = (
        b'{\n "format": 2,\n "data": "ckpt-0000000001-000000000010.safetensors",\n "bytes": 3,\n "sha256": "'
        b'a9993e364706816aba3e25717850c26c9cd0d89d",\n "updates": 1,\n "env_steps": 10,\n "facts": {"loss": NaN},\n'
        b' "check": "CHECK"\n}'
    )
    fields = json.loads(text_of_2026)
    del fields["check"]
    import hashlib

    check = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    decoded = decode_manifest(text_of_2026.replace(b"CHECK", check.encode()))
    assert math.isnan(decoded.facts["loss"])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (manifest(env_steps=71), "its check sum is wrong"),
        (manifest(facts={}), "its check sum is wrong"),
        (manifest(format=3, bytes="many"), "it is of another format"),
        (manifest(bytes="many"), "bytes"),
        (b"{}", "format"),
        (b"[]", "cannot be used"),
        (b"null", "cannot be used"),
        (b"", "cannot be used"),
        (b"\xff", "cannot be used"),
        (b"[" * 100_000, "cannot be used"),
    ],
)
def test_a_wrong_manifest_is_refused_with_the_reason(wrong: bytes, sentence: str, arrays: Path) -> None:
    with pytest.raises(ManifestError, match=sentence):
        decode_manifest(wrong)
    assert sentence in (find_damage(wrong, arrays) or "")


def test_damage_of_the_arrays_is_found(arrays: Path) -> None:
    arrays.write_bytes(ARRAYS[:-1])
    assert find_damage(manifest(), arrays) == f"it has {len(ARRAYS) - 1} bytes of {len(ARRAYS)}"
    arrays.write_bytes(ARRAYS[:-1] + b"x")
    assert find_damage(manifest(), arrays) == "its check sum is wrong"
    arrays.unlink()
    with pytest.raises(FileNotFoundError):
        find_damage(manifest(), arrays)


def test_names_sort_by_age_and_manifests_are_known_by_name() -> None:
    names = [checkpoint_name(updates, 10 * updates) for updates in (9, 10, 11_000_000)]
    assert names == sorted(names)
    assert is_manifest(f"{NAME}.json")
    assert not any(is_manifest(name) for name in (f"{NAME}.safetensors", ".tmp-ckpt-1.json", "metrics.json"))
