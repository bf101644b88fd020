"""Launches of an update, counted on the simulated device: nodes of its graph, and other launches."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
MOST_NODES = {"sac": 139, "sac by priority": 169, "dqn by priority": 84}
"""Operations of an update of small networks on vectors. On a card some of them are several kernels or none."""


@pytest.mark.parametrize("name", MOST_NODES)
def test_updates_of_a_launch_are_nodes_of_one_graph_and_nothing_is_launched_between_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Besides the graph, one copy sends the rows (none by priority), and another keeps the statistics."""
    from runtime.rl.algos.off_policy.graph_updates import GraphUpdates
    from runtime.rl.buffers.device_replay import DeviceRows
    from tests.fakes.cuda import kernels
    from tests.runtime.rl.algos.test_graph_updates import METHODS, PRIORITISED, SIZE, by_priority, filled

    method_name, _, by = name.partition(" ")
    make, *spaces = PRIORITISED[method_name] if by else METHODS[method_name]
    launched, replay_copy = kernels.launched, kernels.CopyNode.replay
    seen: Counter[str] = Counter()

    def counted(call: kernels.Call) -> object:
        seen[call.name] += not call.is_view
        return launched(call)

    def counted_copy(copy: kernels.CopyNode) -> None:
        seen["copy from the host"] += 1
        replay_copy(copy)

    nodes = {}
    for count in (1, 2):
        method = make(device="cuda")
        ring = by_priority(tuple(spaces), "cuda") if by else filled(*spaces, partial(DeviceRows, "cuda"))
        updates = GraphUpdates(method, ring, SIZE, lambda run: run())
        updates.run(count)  # the capture
        (graph,) = updates._graphs.values()
        nodes[count] = len(graph._graph.nodes)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "launched", counted)
            patch.setattr(kernels.CopyNode, "replay", counted_copy)
            method._explore = lambda: None  # DQN's share of random actions, which is only read when acting
            seen.clear()
            method.updates = 0  # no target update is due after the launch
            updates.run(count)
        beside = dict(+seen)
        expected = {"aten::copy_": 1} if by else {"aten::copy_": 1, "copy from the host": 1}
        assert {key: value for key, value in beside.items() if key != "aten::cat.out"} == expected
    assert nodes[2] == 2 * nodes[1]
    assert nodes[1] <= MOST_NODES[name]
