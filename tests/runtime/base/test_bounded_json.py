"""The single decoder of JSON from outside: excessive depth is an ordinary error, for any input type."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from runtime.base import bounded_json
from runtime.base.bounded_json import MAX_DEPTH, UndecodableError


class Item(msgspec.Struct):
    name: str = ""
    more: Any = None


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 990, 1_100, 100_000])
@pytest.mark.parametrize(
    "read",
    [
        bounded_json.loads,
        bounded_json.decode,
        lambda text: bounded_json.decode(text, dict[str, Any]),
        lambda text: bounded_json.decode(text.encode(), Item),
        lambda text: bounded_json.decode(msgspec.Raw(text.encode()), Item),
        lambda text: bounded_json.loads(bytearray(text, "utf-8")),
    ],
)
def test_a_text_that_is_nested_too_deeply_is_refused(read, depth):
    with pytest.raises(UndecodableError, match="nested more than 100 deep"):
        read(f'{{"name": "x", "more": {nested(depth)}}}')


def test_what_is_within_the_bounds_is_read():
    assert bounded_json.decode(nested(MAX_DEPTH)) == bounded_json.loads(nested(MAX_DEPTH))
    assert bounded_json.decode(b"[" + b",".join([b"[]"] * 5_000) + b"]") == [[]] * 5_000
    assert bounded_json.decode(msgspec.Raw(b'{"name": "[[["}'), Item) == Item("[[[")


def test_numbers_that_only_python_writes_are_read_by_loads_alone():
    assert math.isnan(bounded_json.loads('{"loss": NaN}')["loss"])
    with pytest.raises(UndecodableError):
        bounded_json.decode('{"loss": NaN}')


@pytest.mark.parametrize("text", ["", "{", b"\xff", "\ud800", '{"name": 3}', "[]"])
def test_every_error_is_the_same_and_a_value_error(text):
    with pytest.raises(UndecodableError) as raised:
        bounded_json.decode(text, Item)
    assert isinstance(raised.value, ValueError)


SAME_TYPE = """
import sys, threading, msgspec
from runtime.base.bounded_json import convert

sys.setswitchinterval(1e-6)
for number in range(100):
    inner = msgspec.defstruct("Inner", [(f"f{place}", int, 0) for place in range(30)])
    middle = msgspec.defstruct("Middle", [(f"g{place}", inner | None, None) for place in range(10)])
    outer = msgspec.defstruct("Outer", [("a", list[middle]), ("b", dict[str, inner])])
    start = threading.Barrier(4)

    def work():
        start.wait()
        assert convert({"a": [{"g0": {"f0": 1}}], "b": {"x": {"f1": 2}}}, outer).b["x"].f1 == 2

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.process
def test_threads_that_convert_to_the_same_new_type_do_not_end_the_process():
    done = subprocess.run(
        [sys.executable, "-c", SAME_TYPE], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
