"""Sanitize: for any input, a terminal only displays the output."""

from __future__ import annotations

import re
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.domain.log import last_words, visible_state
from l2rtui.domain.sanitize import MAX_LINE, sanitize

SGR = re.compile(r"\x1b\[[0-9;:]*m")
BIDI = {"\u061c", "\u200e", "\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
ZERO_WIDTH = {"\u00ad", "\u034f", "\u180e", "\u200b", "\u200c", "\u200d", "\u2060", "\u2064", "\u3164", "\ufeff"}
PIECES = st.sampled_from(
    [
        "\x1b", "\x1b[", "\x1b]", "\x1b]52;c;QUJD", "\x1b\\", "\x07", "\x9b", "\x9d", "\x9c", "\x90",
        "\x1b[31m", "31m", "\x1b[0;1:2m", "\x1bP", "\x1b(", "m", "[", "]", "0", ";", "\t", "\r", "\n", "\r\n",
        "\u202e", "\u200b", "\ud800", "\U000e0041", "\x85", "\x7f", "plain", "äöü", "日本", "\\",
    ]
)  # fmt: skip
HOSTILE = st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join))


def _is_harmless(text: str) -> bool:
    hidden = {"Cc", "Cs"}
    return not any(one in BIDI or one in ZERO_WIDTH or unicodedata.category(one) in hidden for one in text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain text", "plain text"),
        ("naïve 日本 ✔️", "naïve 日本 ✔️"),
        ("a\tb", "a       b"),
        ("a\r\nb\nc\rd", "a b c d"),
        ("bell\x07 nul\x00", "bell\\x07 nul\\x00"),
        ("del\x7f nel\x85", "del\\x7f nel\\x85"),
        ("\x1b[2J\x1b[1;1Hgone", "gone"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[?1049h\x1b[6n", ""),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]52;c;QUJD\x1b\\after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP+q544e\x1b\\after", "after"),
        ("\x9b2Jgone \x9d0;t\x9cafter", "gone after"),
        ("\x1b]0;never ended", ""),
        ("\x1b(0lqk", "lqk"),
        ("\x1bc reset", " reset"),
        ("\x1b", ""),
        ("\x1b\x1b\x1b[31m", ""),
        ("exe\u202etxt", "exe\\u202etxt"),
        ("a\u200bb\ufeffc\u00add", "a\\u200bb\\ufeffc\\xadd"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("half\udcff", "half\\udcff"),
        ("para\u2029", "para\\u2029"),
    ],
)
def test_what_is_shown(text, shown):
    assert sanitize(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[38;2;1;2;3mx\x1b[4:3m", "\x1b[38;2;1;2;3mx\x1b[4:3m"),
        ("\x1b[31m\x1b[2J\x07", "\x1b[31m\\x07"),
        ("\x1b[>4;1mx", "x"),
        ("\x9b31mx", "x"),
        ("\x1b[31", "31"),
    ],
)
def test_colours_are_kept_where_they_are_wanted(text, shown):
    assert sanitize(text, keep_sgr=True) == shown


@given(HOSTILE)
def test_no_control_bidi_or_zero_width_character_comes_through(text):
    assert _is_harmless(sanitize(text))


@given(HOSTILE)
def test_with_colours_kept_only_colours_come_through(text):
    assert _is_harmless(SGR.sub("", sanitize(text, keep_sgr=True)))


@given(HOSTILE, st.booleans())
def test_what_was_sanitised_stays_as_it_is(text, keep_sgr):
    once = sanitize(text, keep_sgr=keep_sgr)
    assert sanitize(once, keep_sgr=keep_sgr) == once


@pytest.mark.parametrize("character", sorted(BIDI | ZERO_WIDTH))
def test_every_hidden_character_is_made_visible(character):
    assert f"{ord(character):x}" in sanitize(f"a{character}b")


@pytest.mark.parametrize(
    "text",
    ["x" * (MAX_LINE + 1), "\x07" * MAX_LINE, "\t" * MAX_LINE, "é" * (3 * MAX_LINE), "\x1b[31mé" * MAX_LINE],
    ids=["long", "grows", "tabs", "unicode", "colours"],
)
@pytest.mark.parametrize("keep_sgr", [False, True])
def test_a_long_line_is_cut_with_a_mark_and_stays_cut(text, keep_sgr):
    shown = sanitize(text, keep_sgr=keep_sgr)
    assert len(shown) <= MAX_LINE
    assert shown.endswith(f" … cut, {len(text)} characters in all")
    assert _is_harmless(SGR.sub("", shown))
    assert sanitize(shown, keep_sgr=keep_sgr) == shown


def test_a_line_of_the_longest_length_is_whole():
    assert sanitize("x" * MAX_LINE) == "x" * MAX_LINE


@pytest.mark.parametrize("offset", range(6))
def test_a_cut_through_a_colour_leaves_no_half_sequence(offset):
    text = "x" * offset + "\x1b[31m" * MAX_LINE
    assert "\x1b" not in SGR.sub("", sanitize(text, keep_sgr=True))


@pytest.mark.parametrize(
    "unit",
    [
        "\x1b",
        "\x1b[",
        "\x1b]",
        "\x9d",
        "\x9b",
        "\x1b[0",
        "\x1b[ ",
        "\x1b(",
        "\x1b]a\x1b",
        "\x90\x1b[",
        "\t",
        "\u202e",
    ],
)
def test_time_is_linear_on_hostile_input(unit):
    """A quadratic pattern takes seconds for the longest accepted line; a linear one milliseconds."""
    text = (unit * MAX_LINE)[: MAX_LINE - 2] + "\x1b\x01"
    began = time.process_time()
    sanitize(text)
    sanitize(text, keep_sgr=True)
    assert time.process_time() - began < 0.5


def test_of_the_states_of_a_progress_bar_the_last_one_is_seen():
    assert visible_state("10 %\r20 %\r30 %") == "30 %"
    assert visible_state("10 %\r20 %\r") == "20 %\r"
    assert visible_state("a line of Windows\r") == "a line of Windows\r"
    assert visible_state("plain") == "plain"


def test_last_words_are_the_last_line_that_is_no_record():
    lines = ["Traceback", "l2r-runtime: environment Foo-v0 is unknown", '{"l2r":"worker","time":1.5}', "  "]
    assert last_words(lines) == "environment Foo-v0 is unknown"
    assert last_words([]) == ""
    assert last_words(["train.py FAILED", "=" * 60, "  "]) == "train.py FAILED"
    assert len(last_words(["x" * 10_000])) < 1_000


TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    step()"]
AGENT = [
    "E1128 17:03:55 api.py:869] failed (exitcode: 1)",
    *TRACEBACK,
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "=" * 60,
    "train.py FAILED",
    "Root Cause (first observed failure):",
    "  exitcode  : 1 (pid: 27781) ",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    "=" * 60,
]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*TRACEBACK, "KeyError: 'obs'", *AGENT], "KeyError: 'obs'"),
        ([f"[rank0]: {line}" for line in (*TRACEBACK, "ValueError: boom")], "ValueError: boom"),
        (
            [*TRACEBACK, "RuntimeError: CUDA error: assert", "", "Compile with `TORCH_USE_CUDA_DSA` to enable it."],
            "RuntimeError: CUDA error: assert",
        ),
        ([*TRACEBACK, "omegaconf.MissingError: lr", "", "Set HYDRA_FULL_ERROR=1."], "omegaconf.MissingError: lr"),
        ([*TRACEBACK, "KeyError: 1", "", "During handling", "", *TRACEBACK, "AssertionError"], "AssertionError"),
        ([*TRACEBACK, "KeyError: 1", "l2r-runtime: the environment failed"], "the environment failed"),
        ([*TRACEBACK, "KeyError: 1", *["step"] * 100, "no more data"], "no more data"),
        (AGENT, "traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"),
    ],
)  # fmt: skip
def test_the_error_of_a_traceback_is_the_reason_and_not_what_is_printed_below_it(lines, words):
    assert last_words(lines) == words
