"""Changes: from one snapshot to another and nothing else."""

from __future__ import annotations

from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st

from l2rtui.domain.change import NodeGone, PodChanged, PodGone, ProblemsChanged, RunGone, apply, difference
from l2rtui.domain.node import Node
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView

NAMES = st.sampled_from("abcd")


def _by(key, values):
    return values.map(lambda found: MappingProxyType({getattr(one, key): one for one in found}))


SNAPSHOTS = st.builds(
    ClusterSnapshot,
    nodes=_by("name", st.lists(st.builds(Node, NAMES, ready=st.booleans()), max_size=4)),
    pods=_by("uid", st.lists(st.builds(PodView, NAMES, NAMES, restarts=st.integers(0, 2)), max_size=4)),
    runs=_by("uid", st.lists(st.builds(RunView, NAMES, NAMES, NAMES, is_terminating=st.booleans()), max_size=4)),
    revision=st.integers(0, 3),
    problems=st.lists(NAMES, max_size=2).map(tuple),
)


def _content(snapshot):
    return dict(snapshot.nodes), dict(snapshot.pods), dict(snapshot.runs), snapshot.problems


@given(SNAPSHOTS, SNAPSHOTS)
def test_the_difference_leads_from_one_to_the_other(old, new):
    assert _content(apply(old, difference(old, new))) == _content(new)


@given(SNAPSHOTS, SNAPSHOTS)
def test_the_revision_grows_exactly_when_something_differs(old, new):
    after = apply(old, difference(old, new))
    if _content(old) == _content(new):
        assert after is old
        assert difference(old, new) == ()
    else:
        assert after.revision == old.revision + 1


@given(SNAPSHOTS)
def test_everything_can_be_built_from_nothing(snapshot):
    assert _content(apply(EMPTY_SNAPSHOT, difference(EMPTY_SNAPSHOT, snapshot))) == _content(snapshot)


def test_going_twice_or_without_having_been_changes_nothing():
    assert apply(EMPTY_SNAPSHOT, [PodGone("x"), NodeGone("x"), RunGone("x")]) is EMPTY_SNAPSHOT


def test_the_newest_of_two_changes_counts_and_snapshots_do_not_change():
    first = apply(EMPTY_SNAPSHOT, [PodChanged(PodView("u", "p")), PodChanged(PodView("u", "p", restarts=1))])
    assert first.pods["u"].restarts == 1
    second = apply(first, [ProblemsChanged(("cannot list pods",))])
    assert (first.problems, second.problems) == ((), ("cannot list pods",))
    assert second.pods == first.pods
