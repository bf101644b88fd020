"""Frames: an encoded message is decoded unchanged, and any other input raises a ProtocolError, nothing worse."""

from __future__ import annotations

import ast
import json
import pickle
from pathlib import Path
from typing import Annotated, TypeGuard, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import FieldInfo, fields

import runtime
from runtime.exchange.protocol import messages
from runtime.exchange.protocol.framing import HEADER_LIMIT, decode, encode
from runtime.exchange.protocol.messages import (
    KINDS,
    MAX_BUNDLE,
    MAX_INTEGER,
    MAX_TEXT,
    Count,
    Message,
    ProtocolError,
    Segments,
    Trajectory,
    has_arena,
)

COUNTS = st.integers(0, MAX_INTEGER)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.tuples(COUNTS, COUNTS, COUNTS, COUNTS, FLOATS, FLOATS, COUNTS).map(Trajectory._make)
VALUES = {
    Count: COUNTS,
    bool: st.booleans(),
    float: FLOATS,
    float | None: st.none() | FLOATS,
    tuple: st.lists(ROWS, min_size=1, max_size=3).map(tuple),
    str: st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Zs"))).filter(str.isprintable),
}
"""Values of each declared type."""


def declared(item: FieldInfo) -> object:
    """The type of a field without its bounds."""
    plain = get_args(item.type)[0] if get_origin(item.type) is Annotated and item.type != Count else item.type
    return get_origin(plain) if get_origin(plain) is tuple else plain


@st.composite
def any_message(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(sorted(KINDS)))
    cls = KINDS[kind]
    values = {item.name: draw(VALUES[declared(item)]) for item in fields(cls)}
    if kind == "hello":
        values["protocol"] = messages.PROTOCOL_VERSION
    return cls(**values)


ROW = Trajectory(2, 0, 0, 0, 0.0, 0.0)
TRAJECTORY = Segments(1, 1, False, (ROW,))


@given(any_message(), st.binary(max_size=64))
def test_every_message_survives_the_wire(message: Message, arena: bytes) -> None:
    frames = encode(message, arena if has_arena(message) else None)
    back, view = decode([bytes(frame) for frame in frames])
    assert back == message
    assert view is None if not has_arena(message) else bytes(view) == arena


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_random_bytes_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        decode(frames)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(any_message(), st.data())
def test_a_message_with_one_field_changed_is_valid_or_refused(message: Message, data: st.DataObject) -> None:
    """For any field value, the decoder returns a message of the declared types or raises a ProtocolError."""
    header = json.loads(bytes(encode(message, b"" if has_arena(message) else None)[0]))
    name = data.draw(st.sampled_from(sorted(header)))
    header[name] = data.draw(JSON)
    raw = [json.dumps(header).encode()] + ([b""] if has_arena(message) else [])
    try:
        back, _ = decode(raw)
    except ProtocolError:
        return
    for item in fields(back):
        value = getattr(back, item.name)
        if item.name == "rows":
            assert {tuple(map(type, row)) for row in value} == {(int, int, int, int, float, float, int)}
            continue
        assert isinstance(value, int if item.type == Count else declared(item))


@pytest.mark.parametrize(
    "header",
    [
        pickle.dumps({"kind": "ping"}),
        b"",
        b"[]",
        b"[" * 4000,
        b'{"kind":"exec"}',
        b'{"kind":["hello"]}',
        b'{"kind":"who"}',
        b'{"kind":"who","epoch":1,"more":2}',
        b'{"kind":"who","epoch":true}',
        b'{"kind":"who","epoch":-1}',
        b'{"kind":"who","epoch":1e3}',
        b'{"kind":"who","epoch":' + b"9" * 3000 + b"}",
        b'{"kind":"done","epoch":1,"reason":"\\u001b[2J"}',
        b'{"kind":"done","epoch":1,"reason":"\\ud800"}',
        b'{"kind":"done","epoch":1,"reason":"' + b"x" * (MAX_TEXT + 1) + b'"}',
        b'{"kind":"who","epoch":1}' + b" " * HEADER_LIMIT,
    ],
)
def test_what_is_no_message_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode([header])


@pytest.mark.parametrize(
    "header",
    [
        {"kind": "\x1b[2J"},
        {"kind": "who", "epoch": 1, "\x1b[2J": 2},
        {"kind": "hello", "protocol": "\x1b[2J"},
        {"kind": "done", "epoch": 1, "reason": "\x1b[2J"},
    ],
)
def test_the_reason_of_a_refusal_has_no_control_characters(header: dict[str, object]) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode([json.dumps(header).encode()])
    assert str(refused.value).isprintable()


class Trap:
    """Pickle that would run code when loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("a pickle was loaded",)


def test_a_pickle_is_refused_as_a_header_and_is_only_bytes_as_an_arena() -> None:
    poison = pickle.dumps(Trap())
    with pytest.raises(ProtocolError, match="not JSON"):
        decode([poison])
    _, arena = decode([bytes(encode(TRAJECTORY, b"")[0]), poison])
    assert arena is not None
    assert bytes(arena) == poison


def test_not_a_number_is_refused_both_ways() -> None:
    with pytest.raises(ProtocolError, match="traj"):
        encode(Segments(1, 1, False, (ROW._replace(return_sum=float("nan")),)), b"")
    header = bytes(encode(TRAJECTORY, b"")[0]).replace(b"0.0", b"NaN")
    with pytest.raises(ProtocolError, match="not JSON"):
        decode([header, b""])


def test_the_repr_of_a_message_never_shows_the_token() -> None:
    hello = messages.Hello(messages.PROTOCOL_VERSION, "r", "r-1", "s3cret", "worker", "w-0", 1, 1, "e", "x", 1, 8)
    for message in (hello, messages.Get("s3cret", 1, 0, "f4", "")):
        assert "s3cret" not in repr(message)
    assert "pod='w-0'" in repr(hello)


def test_an_arena_where_none_belongs_or_none_where_one_does() -> None:
    with pytest.raises(ProtocolError, match="needs arena"):
        encode(TRAJECTORY)
    with pytest.raises(ProtocolError, match="carries no arena"):
        encode(messages.RejoinRequest(1), b"x")
    with pytest.raises(ProtocolError, match="1 frames"):
        decode([bytes(encode(TRAJECTORY, b"")[0])])
    with pytest.raises(ProtocolError, match="2 frames"):
        decode([bytes(encode(messages.RejoinRequest(1))[0]), b"x"])


def test_a_hello_of_another_version_is_told_apart_whatever_else_is_in_it() -> None:
    with pytest.raises(messages.ForeignVersionError, match="version 99"):
        decode([b'{"kind":"hello","protocol":99,"shape":"of the future"}'])


def test_the_arena_is_not_copied() -> None:
    arena = bytearray(b"abcd")
    _, view = decode([bytes(encode(TRAJECTORY, arena)[0]), arena])
    arena[0] = ord("z")
    assert view is not None
    assert bytes(view) == b"zbcd"


@pytest.mark.parametrize(
    "rows",
    [
        b"[]",
        b"{}",
        b"[1]",
        b"[[]]",
        b"[[2,0,0,0,0.0,0.0]]",
        b"[[2,0,0,0,0.0,0.0,0,0]]",
        b"[[2,0,0,0,null,0.0,0]]",
        b"[[-1,0,0,0,0.0,0.0,0]]",
        b"[[2,0,0,0,0.0,0.0,-1]]",
        b"[" + b",".join([b"[2,0,0,0,0.0,0.0,0]"] * (MAX_BUNDLE + 1)) + b"]",
    ],
)
def test_rows_that_are_no_segments_are_refused(rows: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode([b'{"kind":"traj","epoch":1,"seq":1,"ring":true,"rows":' + rows + b"}"])


def _reads_arrays_alone(node: ast.AST) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "torch.load":
        return False
    return any(key.arg == "weights_only" and ast.unparse(key.value) == "True" for key in node.keywords)


@pytest.mark.slow
def test_nothing_in_the_runtime_unpickles_or_evaluates() -> None:
    modules = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    banned = {"eval", "exec", "torch.load", "torch.save", "yaml.load", "recv_pyobj", "send_pyobj", "allow_pickle"}
    root = Path(runtime.__file__).parent
    for path in root.rglob("*.py"):
        tree = ast.parse(path.read_text())
        # Only one place reads a published state dict, with torch's reader for arrays.
        arrays = {id(node.func) for node in ast.walk(tree) if _reads_arrays_alone(node)}
        assert not arrays or path == root / "rl/encoders/vae.py", path.name
        for node in ast.walk(tree):
            if id(node) in arrays:
                continue
            if isinstance(node, ast.Import):
                used = {alias.name.partition(".")[0] for alias in node.names} & modules
            elif isinstance(node, ast.ImportFrom):
                used = {(node.module or "").partition(".")[0]} & modules
            elif isinstance(node, ast.Attribute):
                used = {ast.unparse(node), f".{node.attr}"} & (banned | {".recv_pyobj", ".send_pyobj"})
            else:
                used = {getattr(node, "id", ""), getattr(node, "arg", "")} & banned
            assert not used, f"{path.name}, line {node.lineno}: {used}"
