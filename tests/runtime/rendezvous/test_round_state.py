"""Rounds of a rendezvous as plain values: members, awaited nodes, lost nodes."""

from __future__ import annotations

import pytest

from runtime.rendezvous.round_state import (
    BeatWatch,
    RendezvousNode,
    RoundState,
    StateError,
    completed,
    decode_state,
    ended,
    joined,
    with_beat,
    without,
)


def node(name: str, processes: int = 1) -> RendezvousNode:
    return RendezvousNode(name, name, "127.0.0.1", 1000, processes)


def round_of(*names: str, max_nodes: int = 4) -> RoundState:
    state = RoundState()
    for name in names:
        state = joined(state, node(name), max_nodes)
    return completed(state)


def ids(members) -> list[str]:
    return [member.id for member in members]


def test_nodes_gather_until_there_are_enough_and_ranks_follow_from_age_then_id():
    state = joined(RoundState(), node("b"), 4)
    assert not state.is_enough(2)
    state = joined(state, node("a"), 4)
    assert state.is_enough(2)
    state = completed(state)
    assert (state.round, ids(state.members)) == (0, ["a", "b"])
    assert not state.is_enough(2), "a complete round gathers nobody"


def test_a_newcomer_begins_a_round_that_waits_for_the_nodes_of_the_last_and_ranks_after_them():
    state = joined(round_of("m", "z"), node("a"), 4)
    assert (state.round, ids(state.members), ids(state.expected)) == (1, ["a"], ["m", "z"])
    assert not state.is_enough(1), "the others still end their processes"
    state = joined(joined(state, node("z"), 4), node("m"), 4)
    assert state.is_enough(1)
    assert ids(completed(state).members) == ["m", "z", "a"], "rank 0 stays where the newest state is"


def test_a_lost_node_breaks_a_complete_round_but_not_one_that_gathers():
    state = without(round_of("a", "b", "c"), {"a"})
    assert (state.round, state.is_complete, ids(state.expected)) == (1, False, ["b", "c"])
    state = without(joined(state, node("b"), 4), {"c"})
    assert (state.round, ids(state.members), state.is_enough(1)) == (1, ["b"], True)


def test_a_node_that_restarts_its_program_takes_all_others_along():
    state = joined(round_of("a", "b"), node("a"), 4)
    assert (state.round, ids(state.members), ids(state.expected)) == (1, ["a"], ["b"])


def test_a_node_beyond_the_most_waits_disturbs_nobody_and_gets_a_lost_nodes_room():
    full = round_of("a", "b", max_nodes=2)
    state = joined(full, node("c"), 2)
    assert (state.round, state.is_complete, ids(state.waiting)) == (0, True, ["c"])
    assert joined(state, node("c"), 2) == state, "waiting writes nothing again and again"
    state = without(state, {"a"})
    state = joined(joined(state, node("c"), 2), node("b"), 2)
    assert (ids(state.members), state.waiting) == (["c", "b"], ())
    # While nodes gather, the places of expected ones are kept.
    gathering = joined(without(round_of("a", "b", "c", max_nodes=3), {"c"}), node("a"), 2)
    assert ids(joined(gathering, node("d"), 2).waiting) == ["d"]


def test_the_first_end_stands():
    assert ended(ended(RoundState(), "failed"), "finished").end == "failed"


def test_a_silent_node_is_lost_after_the_patience_and_not_because_the_observer_slept():
    watch = BeatWatch(patience_seconds=10.0, longest_seconds=1.0)
    state = round_of("a", "b")
    assert not watch.lost(state.everyone(), "a", 0.0)
    assert not watch.lost(state.everyone(), "a", 3600.0), "a look counts for a second at most"
    for second in range(3601, 3609):
        assert not watch.lost(state.everyone(), "a", float(second))
    assert watch.lost(state.everyone(), "a", 3609.0) == {"b"}, "and never the observer itself"
    assert not watch.lost(with_beat(state, "b").everyone(), "a", 3610.0), "a beat ends the silence"
    assert with_beat(state, "nobody") == state


def test_a_state_of_another_form_is_a_sentence():
    for text in ("{", '{"round": "x"}', '{"unknown": 1}', "[]"):
        with pytest.raises(StateError, match="cannot be read"):
            decode_state(text)
    assert decode_state("") == RoundState()
