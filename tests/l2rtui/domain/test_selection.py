"""Selection of rows: label selectors as kubectl reads them, and the filter language of all tables."""

from __future__ import annotations

import pytest

from l2rtui.domain.selection.filter_language import (
    GPU_COLUMNS,
    about_gpu,
    compile_filter,
    compile_selector,
    gpu_cells,
    is_pattern,
    matches_any,
    misread_columns,
    number_of,
)

LABELS = {"gpu": "a100", "zone": "b", "l2rtui.io/run": "racing-sac-s0", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "is_match"),
    [
        ("gpu=a100", True),
        ("gpu==a100", True),
        ("gpu = h100", False),
        ("gpu!=h100", True),
        ("gpu!=a100", False),
        ("missing!=x", True),
        ("missing=x", False),
        ("gpu", True),
        ("missing", False),
        ("!missing", True),
        ("!gpu", False),
        ("empty=", True),
        ("missing=", False),
        ("zone in (a, b)", True),
        ("zone in (a,c)", False),
        ("zone notin (a,c)", True),
        ("zone notin (b)", False),
        ("missing notin (b)", True),
        ("gpu=a100,zone=b", True),
        ("gpu=a100,zone=c", False),
        ("zone in (a,b),gpu=a100,!missing", True),
        ("l2rtui.io/run=racing-sac-s0", True),
    ],
)
def test_a_selector_means_what_it_means_to_kubectl(selector, is_match):
    assert compile_selector(selector)(LABELS) is is_match


@pytest.mark.parametrize(
    "selector", ["", "=a", "gpu=a b", "gpu in a", "gpu>3", "a,,b", "!", "gpu=!x", "zone in (a"]
)
def test_what_is_no_selector_is_named(selector):
    with pytest.raises(ValueError, match="is not a label selector: write KEY=VALUE"):
        compile_selector(selector)


COLUMNS = ("node", "state", "slots", "free", "memory")
ROW = ("phortx1", "✖ NotReady", "3/4", "2", "16Gi")


def passes(text: str) -> bool:
    test = compile_filter(text, COLUMNS)
    assert test is not None
    cells = [cell.casefold() for cell in ROW]
    return test(lambda number: cells[number], " ".join(cells))


@pytest.mark.parametrize(
    ("text", "is_shown"),
    [
        ("phortx1", True),
        ("PHORTX1", True),
        ("phortx2", False),
        ("!phortx2", True),
        ("!phortx1", False),
        ("!", True),
        ("state=notready", True),
        ("state=ready", False),
        ("state!=ready", True),
        ("state~ready", True),
        ("state!~ready", False),
        ("free=2", True),
        ("free=2.0", True),
        ("slots>=3", True),
        ("slots<3", False),
        ("memory>8Gi", True),
        ("memory<=8Gi", False),
        ("node>3", False),
        ("free>many", False),
        ("fr=2 phortx1", True),
        ("s=3", False),
        ("nothing=2", False),
    ],
)
def test_a_filter_is_words_and_comparisons(text, is_shown):
    assert passes(text) is is_shown


GPUS = ("node", *GPU_COLUMNS)
NODE = ("n1", *gpu_cells([(4, "NVIDIA A10", 24 << 30), (1, "NVIDIA H100-80GB", 80 << 30), (2, "", 0)]))


@pytest.mark.parametrize(
    ("text", "is_shown"),
    [
        ("free>=4", True),
        ("free>=5", False),
        ("model=h100", True),
        ("model=H10", False),
        ("model~H10", True),
        ("model!=A10 memory>0", True),
        ("memory>=40G", True),
        ("memory>=90G", False),
        # Each matches some GPU, but no GPU matches both.
        ("free>=2 model=H100", False),
        ("free>=1 model=H100 memory>=40G", True),
        ("free=2 memory>0", False),
    ],
)
def test_all_that_is_said_of_a_gpu_must_hold_of_the_same(text, is_shown):
    for test, is_expected in (
        (compile_filter(about_gpu(text), GPUS), is_shown),
        (compile_filter(f"n1 {about_gpu(text)}", GPUS), is_shown),
        (compile_filter(f"n2 {about_gpu(text)}", GPUS), False),
    ):
        assert test is not None
        assert test(lambda number: NODE[number].casefold(), "n1") is is_expected


def test_without_gpus_nothing_that_is_said_of_one_holds():
    cells = ("n1", *gpu_cells([]))
    test = compile_filter("gpu.free>=0", GPUS)
    assert test is not None
    assert not test(lambda number: cells[number], "n1")
    assert misread_columns("gpu.fre>=1", ("node", *GPU_COLUMNS)) == ""
    assert "'gpu.' may be gpu.free or gpu.model" in misread_columns("gpu.>=1", GPUS)


def test_an_empty_filter_is_none():
    assert compile_filter("  ", COLUMNS) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("phortx1 free>=2", ""),
        ("nodde=n1", "There is no column 'nodde'. Did you mean node?"),
        ("xyzzy=1", "There is no column 'xyzzy'. The columns are node, state, slots, free, memory."),
        ("s=3", "'s' may be state or slots."),
    ],
)
def test_a_column_that_is_not_there_is_named(text, sentence):
    assert misread_columns(text, COLUMNS) == sentence


@pytest.mark.parametrize(
    ("shown", "number"), [("7,610", 7610), ("3/4", 3), ("1d02h", 93600), ("16Gi", 2**34), ("v12", 12), ("-", None)]
)
def test_numbers_are_read_as_they_are_shown(shown, number):
    assert number_of(shown) == number


@pytest.mark.parametrize(
    ("pattern", "is_one", "found"),
    [
        ("racing-sac-s*", True, True),
        ("racing-sac-s?", True, True),
        ("*-s[0-3]", True, False),
        ("racing-sac-s7", False, True),
        ("racing-sac", False, False),
        ("RACING-*", True, False),
    ],
)
def test_a_name_with_wildcards_selects_as_in_the_shell(pattern, is_one, found):
    assert is_pattern(pattern) is is_one
    assert matches_any(["racing-sac-s7", "racing-sac-s12"], [pattern]) is found
    assert not matches_any([], [pattern])


def test_a_limit_that_is_no_number_is_named():
    columns = ("restarts", "age")
    assert misread_columns("restarts>20o", columns) == ""  # 20 and a unit that is not known
    assert misread_columns("restarts>x", columns).startswith("'x' in restarts>x is not a number")
    for text in ("restarts>", "restarts>=3", "age<2h", "restarts=x", "restarts~x"):
        assert misread_columns(text, columns) == ""
