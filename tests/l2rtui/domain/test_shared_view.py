"""Links of views: a written link is read back unchanged, and anything else is refused with a sentence."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.domain.sanitize import HIDDEN
from l2rtui.domain.selection.shared_view import MAX_CHARS, MAX_VALUE, PANES, SCHEME, TABLES, SharedView, parse_view

TEXTS = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=40).filter(
    lambda text: not HIDDEN.search(text)
)
FULL = SharedView(
    *("kubernetes", "arn:aws:eks:eu:1:cluster/blue", ("rl", "lab-2"), "pods", "race-s1", "race-s1-w-0"),
    *(True, True, True),
    (("runs", "state=failed 'x' & y"), ("pods", "status~Fail")),
    (("pods", "-restarts"),),
)


def test_a_view_is_one_word_and_is_read_back():
    assert parse_view(f" {FULL.link}\n") == FULL
    assert not set(FULL.link) & set(" '\"\\$`;<>|")
    assert parse_view(SharedView().link) == parse_view(SCHEME) == SharedView()


@given(st.sampled_from(PANES), TEXTS, TEXTS, st.dictionaries(st.sampled_from(TABLES), TEXTS))
def test_any_visible_text_is_read_back(pane, run, selected, filters):
    ordered = tuple((table, filters[table]) for table in TABLES if table in filters)
    view = SharedView(pane=pane, run=run, selected=selected, filters=ordered)
    assert parse_view(view.link) == view


@given(st.text(max_size=200))
def test_any_other_text_is_a_view_or_a_sentence(text):
    for link in (text, SCHEME + text):
        with suppress(ValueError):
            assert isinstance(parse_view(link), SharedView)


@pytest.mark.parametrize(
    ("link", "sentence"),
    [
        ("https://example.org", "not a link of a view"),
        (f"{SCHEME}pane", "damaged"),
        (f"{SCHEME}run=%ff", "damaged"),
        (SCHEME + "&".join(["run=x"] * 40), "damaged"),
        (f"{SCHEME}pane=cellar", "the view 'cellar'"),
        (f"{SCHEME}kubeconfig=/tmp/x", "no field 'kubeconfig'"),
        (f"{SCHEME}as=root", "no field 'as'"),
        (f"{SCHEME}run=a&run=b", "run twice"),
        (f"{SCHEME}mine=yes", "mine of the link is 'yes'"),
        (f"{SCHEME}context=--kubeconfig", "would be an option"),
        (f"{SCHEME}namespaces=rl,../x", "the namespace '../x'"),
        (f"{SCHEME}run=%1b%5b2J", "cannot be seen"),
        (f"{SCHEME}run=a%0Ab", "cannot be seen"),
        (f"{SCHEME}filter.pods=%E2%80%AE", "cannot be seen"),
        (f"{SCHEME}filter.pods={'x' * (MAX_VALUE + 1)}", "501 characters"),
        (f"{SCHEME}filter.pods={'x' * MAX_CHARS}", f"{MAX_CHARS} at most"),
    ],
)
def test_what_is_not_as_agreed_is_refused(link, sentence):
    with pytest.raises(ValueError, match=sentence.replace("[", r"\[")):
        parse_view(link)
