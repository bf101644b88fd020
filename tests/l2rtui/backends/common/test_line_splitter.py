"""Lines of a stream: a progress bar is reduced to its newest state, for any chunks and any duration."""

from __future__ import annotations

import pytest

from l2rtui.backends.common.log_merge import LineSplitter
from l2rtui.domain.log import visible_state

STAMP = b"2026-11-27T02:00:00.123456789Z "


@pytest.mark.parametrize("size", [1, 5, 64, 5000])
@pytest.mark.parametrize("stamp", [STAMP, b""])
@pytest.mark.parametrize("form", ["\r{}%|###|", "{}%|###|\r"])
def test_the_newest_state_of_a_bar_survives_the_limit(size, stamp, form):
    bar = "".join(form.format(number) for number in range(5000)).encode()
    text = stamp + b"one\n" + stamp + bar + b"\n" + stamp + b"two\r\n"
    splitter = LineSplitter()
    lines = [line for at in range(0, len(text), size) for line in splitter.feed(text[at : at + size])]
    assert [visible_state(line.decode()).rstrip("\r").removeprefix(stamp.decode()) for line in lines] == [
        "one",
        "4999%|###|",
        "two",
    ]
    assert all(line.startswith(stamp) for line in lines)


@pytest.mark.parametrize(
    ("text", "state"),
    [("a\rb", "b"), ("a\rb\r", "b\r"), ("a\r", "a\r"), ("\ra", "a"), ("a\r\r", "a\r\r"), ("", ""), ("\r", "\r")],
)
def test_what_is_behind_the_last_return_is_seen(text, state):
    assert visible_state(text) == state
