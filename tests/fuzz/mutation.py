"""Inputs that are almost correct: valid ones with changed bytes, tokens, and values in JSON."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any, Final

_VALUES: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**53,
        2**63,
        2**64,
        -(2**70),
        0.5,
        1e308,
        -0.0,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        "x",
        "\x00",
        "\x1b[2J",
        "\u202e",
        "\ud800",
        "9" * 400,
        "1e999",
        "-1",
        "0x10",
        "2026-02-30T25:61:61Z",
        "../../x",
    ),
    *([], {}, [[]], [None], {"": None}, {"name": {}}, "x" * 70_000, [0] * 500),
)
_TOKENS: Final = (
    *(
        b"\x00",
        b"\xff",
        b"\xff\xff\xff\xff",
        b"\x80" * 9,
        b"\n",
        b"\t",
        b"{",
        b"}",
        b"[" * 300,
        b"[" * 1_100 + b"]" * 1_100,
        b'"',
        b"\\",
        b"\\ud800",
    ),
    *(
        b"1e999",
        b"-9223372036854775809",
        b"NaN",
        b"&a [*a]",
        b"*a",
        b"!!bool x",
        b"!!binary =",
        b"<<: ",
        b"? ",
        b"- " * 200,
    ),
    *(
        b"{{SEED}}",
        b"---\n",
        b"%YAML 9.9\n",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xef\xbb\xbf",
        b"\r",
        b"%s%n",
        b"../",
    ),
)
_LONGEST: Final = 200_000
_LONGEST_NESTED: Final = 2_000
"""Seeds of which every value in turn is nested."""
_DEPTHS: Final = (150, 990, 1_100, 50_000)
_BRACKETS: Final = ((b"[", b"]"), (b'{"a":', b"}"), (b"- ", b""), (b"(", b")"), (b"\x91", b""))
"""JSON, YAML's flow and block style, expressions, msgpack's lists."""


def nested(rng: random.Random, data: bytes, most: int) -> list[bytes]:
    """Return JSON with an unknown field, or one of its values, nested too deeply; empty for other data.

    Args:
        most: Number of texts; each is drawn by depth, kind of nesting and place.
    """
    head, brace, rest = data.partition(b"{")
    try:
        document = json.loads(brace + rest)
    except (ValueError, RecursionError):
        return []
    values = []
    for depth in _DEPTHS:
        deep = "[" * depth + "]" * depth
        values += [deep, json.dumps(deep), '{"a":' * depth + "1" + "}" * depth]
    choices = [(value, path) for value in values for path in [("zz",), *_paths(document)]]
    texts = []
    for value, path in rng.sample(choices, min(len(choices), most)):
        marked = copy.deepcopy(document)
        inner = marked
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = "\0"
        texts.append(head + json.dumps(marked).replace(json.dumps("\0"), value).encode())
    return texts


def _paths(document: Any) -> list[tuple[Any, ...]]:
    if not isinstance(document, dict | list):
        return []
    items = document.items() if isinstance(document, dict) else enumerate(document)
    return [path for key, item in items for path in [(key,), *((key, *rest) for rest in _paths(item))]]


def deepened(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a seed with one value, or one place of its text, nested too deeply."""
    data = rng.choice(seeds)
    if rng.random() < 0.5 and (texts := nested(rng, data[:_LONGEST_NESTED], 1)):
        return texts[0]
    depth, (before, after) = rng.choice(_DEPTHS), rng.choice(_BRACKETS)
    start = rng.randrange(len(data) + 1)
    return data[:start] + before * depth + after * depth + data[start:]


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a seed with one to eight changes."""
    data = rng.choice(seeds)
    if rng.random() < 0.5 and (changed := _changed_json(rng, data)) is not None:
        data = changed
        if rng.random() < 0.7:
            return data
    raw = bytearray(data)
    for _ in range(rng.randrange(1, 9)):
        _change(rng, raw, seeds)
    return bytes(raw[:_LONGEST])


def _change(rng: random.Random, raw: bytearray, seeds: Sequence[bytes]) -> None:
    start = rng.randrange(len(raw) + 1)
    end = min(len(raw), start + rng.choice((1, 2, 4, 8, 64, 512)))
    match rng.randrange(7):
        case 0 if start < len(raw):
            raw[start] ^= 1 << rng.randrange(8)
        case 1:
            del raw[start:end]
        case 2:
            raw[start:start] = rng.choice(_TOKENS)
        case 3:
            raw[start:end] = rng.randbytes(end - start)
        case 4:
            raw[start:start] = raw[start:end] * rng.choice((1, 3, 50))
        case 5:
            other = rng.choice(seeds)
            raw[start:end] = other[: rng.randrange(len(other) + 1)]
        case _:
            del raw[start:]


def _changed_json(rng: random.Random, data: bytes) -> bytes | None:
    """Return JSON with some of its values replaced, moved or removed; None for other data."""
    head, brace, rest = data.partition(b"{")
    try:
        document = json.loads(brace + rest)
    except (ValueError, RecursionError):
        return None
    for _ in range(rng.randrange(1, 5)):
        path = _random_path(rng, document)
        if not path:
            continue
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        if rng.random() < 0.2:
            del inner[path[-1]]
        elif rng.random() < 0.2 and isinstance(inner, dict):
            inner[str(rng.choice(_VALUES))] = inner.pop(path[-1])
        else:
            inner[path[-1]] = copy.deepcopy(rng.choice(_VALUES))
    return head + json.dumps(document).encode("utf-8", "surrogatepass")


def _random_path(rng: random.Random, document: Any) -> list[Any]:
    path: list[Any] = []
    inner = document
    while isinstance(inner, dict | list) and inner:
        key = rng.choice(list(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))
        path.append(key)
        inner = inner[key]
        if rng.random() < 0.25:
            break
    return path
