"""One thing has one word: words that the app no longer uses do not come back."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import l2rtui
import l2rtui.ui.home.screen  # so that every table is a subclass
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT
from l2rtui.ui.state.connection_status import ConnectionStatus
from l2rtui.ui.state.snapshot_index import PodCounts
from l2rtui.ui.widgets.grid import legend, lines
from l2rtui.ui.widgets.status_bar import Slots, left_of
from l2rtui.ui.widgets.virtual_table import VirtualTable

pytestmark = pytest.mark.xdist_group("words")  # one process parses the modules, once
ROOT = Path(l2rtui.__file__).parent
OLD_WORDS = {
    "process before": "previous",
    "from now on": "live output",
    "printed nothing": "no output",
    "is held by {": "the name of the pod, and its state",
    "fails again and again": "crash-looping",
    "shares its machine": "other load on its node",
    "share of time without data": "waiting for data",
    "lag, versions": "policy lag",
    "in evaluation": "eval progress",
    " too old": "dropped as stale",
    "calls it back": "cancels it",
    "call back": "undo",
    "called back": "cancelled",
    "stays as it is.": "no changes",
    "Nothing is left of": "no leaks",
    "Asking.": "Loading…",
    "is being read": "Loading…",
    "train on": "resume",
    "nearer": "zoom in",
    "farther": "zoom out",
    "put/take": "place/remove",
    "looked again": "refreshed",
    "a line across the log": "a marker",
    "the program's affair": "how it reacts is up to the program",
    "± sd": "95 % interval",
    "is reserved for": "reserved … for",
    "is being destroyed": "stopping",
    "acts     ": "place",
    "where    ": "place",
    "looking at the queue": "Loading the queue…",
    " cm": "cpu and mem",
    "wrote 1 line": "saved",
}
"""Old words, and what the app says instead."""
EVERYWHERE = {
    " find no ": "do not fit",
    "when is unknown": "what is not known is left out",
    "are being read": "loading",
    "more are held": "as many as there are",
}
"""Old words that commands used too."""
OLD_LABELS = {
    "rate": "steps/s",
    "seeds": "runs",
    "cm": "cpu and mem",
    "RW": "nothing",
    "sims": "simulators",
    "its GPU%": "GPU %",
    "nearer": "zoom in",
    "train on": "resume",
    "elsewhere": "location",
    "see": "camera",
    "leave": "cancel",
    "mine": "my slots",
}
"""Old headings of columns, rows and counts, which may be words of a sentence."""
UI = sorted((ROOT / "ui").rglob("*.py"))


@cache
def sentences(path: Path) -> list[str]:
    """Texts of a module that may be shown: string constants without docstrings, actions and ids."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    quiet = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in quiet
    ]
    names = ("nearer(1)", "nearer(-1)", "grid.nearer", "grid.farther")
    return [text for text in texts if text not in names]


@pytest.mark.parametrize("path", UI, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_app_uses_none_of_its_old_words(path):
    found = {word: text for text in sentences(path) for word in OLD_WORDS if word in text}
    assert not found, {word: OLD_WORDS[word] for word in found}


def test_the_sentences_of_runs_and_pods_have_none_of_them_either():
    for name in ("status.py", "runstatus.py", "curves/chart.py", "topology.py"):
        found = [word for text in sentences(ROOT / "domain" / name) for word in OLD_WORDS if word in text]
        assert not found, name


def test_the_sentences_of_all_floors_have_none_of_the_old_words_of_commands():
    found = {
        f"{path.relative_to(ROOT)}: {word}"
        for path in ALL
        for text in sentences(path)
        for word in EVERYWHERE
        if word in text and "room" not in text
    }
    assert not found


def test_no_heading_is_an_old_word():
    tables = [VirtualTable]
    for table in tables:
        tables += table.__subclasses__()
    titles = {column.title for table in tables for column in table.COLUMNS}
    titles |= {label for row, label in lines.LABELS.items()} | {
        str(word) for word in legend.WORDS_OF_STATES.values()
    }
    titles |= {
        pair[0].text.strip()
        for pair in left_of(
            EMPTY_SNAPSHOT, ConnectionStatus(is_connected=True), PodCounts(1, 1, 1), Slots(2, 1, 1, off=1)
        )
    }
    assert {"steps/s", "unusable", "my slots"} <= titles
    assert not titles & OLD_LABELS.keys()


SPACED = re.compile(r"(?:^|\d) %(?![sd(])")
"""Another form of ``38%``; the value before it may be computed."""
ALL = sorted(path for floor in ("ui", "cli", "domain", "services") for path in (ROOT / floor).rglob("*.py"))


def test_a_percentage_has_one_form_in_app_and_commands():
    spaced = {
        f"{path.relative_to(ROOT)}: {text}" for path in ALL for text in sentences(path) if SPACED.search(text)
    }
    assert not spaced
