"""Decoding of lists and watch events: pages in portions, malformed items and lines, lines of any length."""

from __future__ import annotations

import json

import pytest

from l2rtui.backends.kubernetes.api.decode import (
    UNDECODABLE,
    Bookmark,
    Decoder,
    Deletion,
    GarbledLine,
    LineBuffer,
    UndecodedObject,
    Upsert,
    WatchFailure,
)
from l2rtui.backends.kubernetes.api.structs import ConfigMapStruct, PodStruct
from tests.l2rtui.backends.kubernetes.api_server import config_map, event, status


def test_the_first_bytes_of_a_page_hold_the_token_of_the_next_page():
    decoder = Decoder(ConfigMapStruct)
    head = b'{"kind":"ConfigMapList","metadata":{"resourceVersion":"7","continue":"abc"},"items":[{"meta'
    assert decoder.continue_token(head) == "abc"
    assert decoder.continue_token(b'{"metadata":{"resourceVersion":"7"},"items":[{"meta') == ""
    assert decoder.continue_token(head[:40]) == ""
    assert decoder.continue_token(b'{"metadata": oh no,"items":[') == ""
    assert decoder.continue_token(b'{"items":[],"metadata":{"continue":"abc"}}') == ""


def test_a_long_page_is_read_in_parts_and_an_empty_one_in_one():
    decoder = Decoder(ConfigMapStruct)
    page = decoder.page(json.dumps({"metadata": {"resourceVersion": "7"}, "items": [{}] * 5}).encode())
    assert [(len(part.items), part.revision) for part in decoder.parts(page, 2)] == [(2, "7"), (2, "7"), (1, "7")]
    empty = decoder.page(b'{"metadata":{"resourceVersion":"8"},"items":null}')
    assert [(part.items, part.revision) for part in decoder.parts(empty, 2)] == [((), "8")]


def test_a_list_is_the_same_whether_it_is_read_at_once_or_item_by_item():
    decoder = Decoder(ConfigMapStruct)
    items = [config_map(name, 3) for name in "abc"]
    result = {}
    for length in (1, 5 << 20):  # the longer one is too long to be read in one piece
        items[0]["data"] = {"x": "y" * length}
        page = decoder.page(json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}).encode())
        result[length] = [item.metadata for part in decoder.parts(page, 2) for item in part.items]
        assert sum(part.lost for part in decoder.parts(page, 2)) == 0
    assert result[1] == result[5 << 20]
    assert [meta.name for meta in result[1]] == ["a", "b", "c"]


def decoded(kind, value):
    line = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Decoder(kind).event(line)


def test_events_become_values_by_their_types():
    item = config_map("a", 7)
    for kind in ("ADDED", "MODIFIED"):
        upsert = decoded(ConfigMapStruct, event(kind, item))
        assert isinstance(upsert, Upsert)
        assert (upsert.item.metadata, upsert.meta.resource_version) == (upsert.meta, "7")
    deletion = decoded(ConfigMapStruct, event("DELETED", {**item, "data": "odd"}))
    assert isinstance(deletion, Deletion), "metadata is enough for what is gone"
    assert decoded(ConfigMapStruct, event("BOOKMARK", item)) == Bookmark("7", is_end_of_initial=False)
    assert decoded(ConfigMapStruct, event("ERROR", status(410, "Expired", "old"))) == WatchFailure(
        410, "Expired", "old"
    )


DEEP = b'{"type":"ADDED","object":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001


def test_a_page_that_is_nested_without_end_is_no_list():
    with pytest.raises(UNDECODABLE):
        Decoder(ConfigMapStruct).page(b'{"items":' + b"[" * 20_000)


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b'{"type":"NEW"}', b"\xff", b'{"type":"ADDED","object":{"metadata":1}}', DEEP],
)
def test_a_line_that_is_no_event_is_a_value_as_well(line):
    assert isinstance(decoded(ConfigMapStruct, line), GarbledLine)


def test_an_object_that_does_not_match_its_struct_keeps_its_metadata_and_its_node():
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": 3}}
    upsert = decoded(PodStruct, event("ADDED", pod))
    assert isinstance(upsert.item, UndecodedObject)
    assert (upsert.item.metadata.name, upsert.item.node) == ("p", "n")
    assert "containers" in upsert.item.error


def test_of_a_page_with_malformed_items_the_others_are_read_and_the_nameless_are_counted():
    items = [config_map("a", 1), {"metadata": {"name": "b"}, "data": 3}, {"metadata": 3}]
    decoder = Decoder(ConfigMapStruct)
    (part,) = decoder.parts(decoder.page(json.dumps({"metadata": {}, "items": items}).encode()), 10)
    good, malformed = part.items
    assert (good.metadata.name, malformed.metadata.name, part.lost) == ("a", "b", 1)
    assert isinstance(malformed, UndecodedObject)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_they_are_cut(size):
    data = b"one\n\ntwo\r\n \nthree"
    lines = LineBuffer()
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    assert [line for chunk in chunks for line in lines.feed(chunk)] == [b"one", b"two\r"]
    assert list(lines.feed(b"!\n")) == [b"three!"]


def test_a_line_that_is_too_long_takes_bounded_memory_and_is_reported_once():
    lines = LineBuffer(longest=10)
    assert [line for _ in range(5) for line in lines.feed(b"x" * 6)] == []
    (mark, following) = lines.feed(b"x\nok\n")
    assert following == b"ok"
    assert isinstance(decoded(ConfigMapStruct, mark), GarbledLine)
