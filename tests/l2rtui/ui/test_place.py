"""Place mode: replicas put on slots by cursor, and nothing created before the plan is confirmed."""

from __future__ import annotations

import re

import pytest

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import user_name
from l2rtui.domain.containers import PodSettings
from l2rtui.domain.ledger import DeviceUsage, build_ledger
from l2rtui.domain.node import Gpu, GpuUse, Node, SlotId
from l2rtui.domain.placement import PlacementPolicy, Seat, parse_pins, place
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec, with_seeds
from l2rtui.services.spec.spec_file import LaunchRequest
from l2rtui.ui.placing.editor import PlacementEditor
from l2rtui.ui.state.placement_draft import PlacementDraft, free_name, loss_of, pin_text

SPEC = """# Four worker sets
kind: learner-workers
name: grid
learner: {slots: 0}
workers: [{name: w0}, {name: w1}, {name: w2}, {name: w3}]
train: {environment: racing}
"""


def eight_gpu_nodes(number: int) -> list[Node]:
    return [Node(f"n{one}", tuple(Gpu(f"n{one}", index) for index in range(8))) for one in range(number)]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Two nodes of eight GPUs and one spec file with four worker sets in manifests/."""
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "grid.yaml").write_text(SPEC, "utf-8")
    monkeypatch.chdir(tmp_path)
    backend = FakeBackend(is_empty=True, owner=user_name())
    for node in eight_gpu_nodes(2):
        backend.put_node(node)
    return backend


def staged(one) -> dict[str, str]:
    return {pod: " ".join(map(str, seat.slots)) for pod, seat in one.app.screen.draft.seats.items()}


async def open_place(one):
    await one.press("P")
    await one.until(lambda: one.top == "PlaceScreen" and one.app.screen.draft.specs, "the spec")


@pytest.mark.slow
async def test_twelve_seeds_of_four_sets_are_staged_and_planned_in_at_most_twelve_keys(desk, cluster):
    async with desk(backend=cluster, ready=False) as one:
        keys = ["P", "s", "0", "minus", "1", "1", "enter", "a", "enter"]
        assert len(keys) <= 12
        await open_place(one)
        await one.press(*keys[1:-1])
        await one.until(lambda: len(one.app.screen.draft.seats) == 48, "48 staged replicas")
        assert "staged 48/48" in one.words()
        assert not (await cluster.snapshot()).runs
        await one.press(keys[-1])
        await one.until(lambda: one.top == "ReviewScreen")
        assert "12 runs, 60 pods, 48 slots" in one.words()
        assert "l2rtui --backend demo launch -f manifests/grid.yaml --seeds 0-11 --policy pack" in one.words()
        assert not (await cluster.snapshot()).runs
        await one.press("enter")
        await one.until(lambda: one.top == "ClusterScreen" and len(one.cluster.snapshot.runs) == 12)


async def test_a_replica_is_put_taken_and_put_again_by_undo(desk, cluster):
    async with desk(backend=cluster, ready=False) as one:
        await open_place(one)
        await one.press("right", "space")
        assert staged(one) == {"grid-w0-0": "n0/0.1"}
        assert one.app.screen.editor.current_set == "w1"
        await one.press("space")
        assert staged(one) == {}
        await one.press("u")
        assert staged(one) == {"grid-w0-0": "n0/0.1"}
        await one.press("u", "u")
        assert staged(one) == {}
        assert any("nothing to undo" in sentence for sentence in one.says())


async def test_digits_set_the_replicas_and_a_range_takes_them(desk, cluster):
    async with desk(backend=cluster, ready=False) as one:
        await open_place(one)
        await one.press("1", "2")
        assert one.app.screen.draft.sets[1].replicas == 12
        await one.press("v", "right", "right", "right", "right", "space")
        assert sorted(staged(one).values()) == ["n0/0.0", "n0/0.1", "n0/0.2", "n0/0.3", "n0/1.0"]
        await one.press("A")
        await one.until(lambda: len(staged(one)) == 15)
        assert "--set workers.0.replicas=12" in one.words()
        await one.press("x")
        assert staged(one) == {}
        await one.press("shift+tab", "5")
        assert any("is its number of pods" in sentence for sentence in one.says())


async def test_the_plan_seats_every_replica_where_it_was_put(desk, cluster):
    async with desk(backend=cluster, ready=False) as one:
        await open_place(one)
        for move in (["down"], ["right", "right"], ["up"], ["right", "right", "right"]):
            await one.press(*move, "space")
        wanted = staged(one)
        assert len(wanted) == 4
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen")
        await one.press("enter")
        await one.until(lambda: one.top == "ClusterScreen" and len(one.cluster.snapshot.pods) == 5)
        pods = (await cluster.snapshot()).pods.values()
        assert {pod.name: " ".join(map(str, pod.slots)) for pod in pods if pod.slots} == wanted


async def test_slots_that_are_held_cannot_be_put_on_and_those_that_others_take_go_back(desk, cluster):
    other = PodView("u", "theirs", node="n0", devices=(DeviceUsage(0, 0),), phase=Phase.RUNNING, ready=True)
    cluster.put_pod(other)
    async with desk(backend=cluster, ready=False) as one:
        await one.until(lambda: one.cluster.snapshot.pods)
        await open_place(one)
        assert one.app.screen.view.grid.cursor_slot == SlotId("n0", 0, 1), "the first free slot"
        await one.press("left", "space")
        assert any("Slot n0/0.0 is held by theirs" in sentence for sentence in one.says())
        await one.press("right", "space")
        assert staged(one)
        cluster.put_pod(PodView("u2", "late", node="n0", devices=(DeviceUsage(0, 1),), phase=Phase.RUNNING))
        await one.until(lambda: not staged(one))
        assert any("1 staged replica went back" in sentence for sentence in one.says())


async def test_a_staged_replica_is_moved_by_keys_and_undo_brings_it_back(desk, cluster):
    cluster.put_pod(PodView("u", "theirs", node="n0", devices=(DeviceUsage(0, 0),), phase=Phase.RUNNING))
    async with desk(backend=cluster, ready=False) as one:
        await one.until(lambda: one.cluster.snapshot.pods)
        await open_place(one)
        await one.press("m")
        assert any("Nothing is staged under the cursor" in sentence for sentence in one.says())
        await one.press("space", "m")
        await one.press("left")
        await one.until(lambda: "Slot n0/0.0 is held by theirs." in one.words())
        await one.press("space")
        assert "Slot n0/0.0 is held by theirs." in one.says()
        assert staged(one) == {"grid-w0-0": "n0/0.1"}
        await one.press("right", "m", "right")
        await one.until(lambda: "grid-w0-0  n0/0.1 → n0/0.2" in one.words())
        await one.press("escape", "m")
        assert one.top == "PlaceScreen"
        assert any("Nothing is staged" in sentence for sentence in one.says())
        await one.press("left", "m", "right", "right", "enter")
        assert staged(one) == {"grid-w0-0": "n0/0.3"}
        assert one.top == "PlaceScreen"
        await one.press("u")
        assert staged(one) == {"grid-w0-0": "n0/0.1"}


async def test_a_staged_replica_is_dragged_by_the_mouse(desk, cluster):
    cluster.put_pod(PodView("u", "theirs", node="n1", devices=(DeviceUsage(0, 0),), phase=Phase.RUNNING))
    async with desk(backend=cluster, ready=False) as one:
        await one.until(lambda: one.cluster.snapshot.pods)
        await open_place(one)
        await one.press("space", "right", "space")
        grid, pilot = one.app.screen.query_one("#grid"), one.pilot

        def point(text: str) -> tuple[int, int]:
            cell, region = grid.slots[SlotId.parse(text)], grid.content_region
            return region.x + cell.x + 2, region.y + cell.y + 1

        async def drag(origin: str, target: tuple[int, int], sign: str) -> None:
            await pilot.mouse_down(offset=point(origin))
            await pilot.hover(offset=target)
            await one.until(lambda: sign in one.words(), sign)
            await pilot.mouse_up(offset=target)
            await one.until(lambda: "MOVE" not in one.words() and one.app.mouse_captured is None)

        await drag("n0/0.0", point("n1/3.2"), "grid-w0-0  n0/0.0 → n1/3.2")
        assert staged(one) == {"grid-w0-0": "n1/3.2", "grid-w1-0": "n0/0.1"}
        for target, reason in (
            (point("n1/0.0"), "Slot n1/0.0 is held by theirs."),
            (point("n0/0.1"), "grid-w1-0 is staged on slot n0/0.1."),
        ):
            await drag("n1/3.2", target, reason)
            assert reason in one.says()
        await drag("n1/3.2", (1, 0), "MOVE")  # let go beside the slots
        await drag("n0/0.1", point("n0/0.1"), "MOVE")  # a click
        assert staged(one) == {"grid-w0-0": "n1/3.2", "grid-w1-0": "n0/0.1"}
        await pilot.mouse_down(offset=point("n0/4.0"))  # nothing is staged there
        await pilot.hover(offset=point("n0/5.0"))
        await pilot.mouse_up(offset=point("n0/5.0"))
        assert staged(one) == {"grid-w0-0": "n1/3.2", "grid-w1-0": "n0/0.1"}
        await one.press("u")
        assert staged(one) == {"grid-w0-0": "n0/0.0", "grid-w1-0": "n0/0.1"}


async def test_a_replica_whose_slot_is_lost_is_no_longer_moved(desk, cluster):
    async with desk(backend=cluster, ready=False) as one:
        await open_place(one)
        await one.press("space", "m", "right")
        await one.until(lambda: "MOVE" in one.words())
        cluster.put_pod(PodView("u", "late", node="n0", devices=(DeviceUsage(0, 0),), phase=Phase.RUNNING))
        await one.until(lambda: not staged(one) and "MOVE" not in one.words())
        await one.press("space")
        assert staged(one) == {"grid-w1-0": "n0/0.1"}


async def test_ones_own_launch_is_not_somebody_else(desk, cluster):
    async with desk(backend=cluster, ready=False) as one:
        await open_place(one)
        await one.press("A", "enter")
        await one.until(lambda: one.top == "ReviewScreen")
        await one.press("enter")
        await one.until(lambda: one.top == "ClusterScreen" and len(one.cluster.snapshot.pods) == 5)
        assert not [sentence for sentence in one.says() if "went back" in sentence]


def test_seats_go_back_with_the_reason():
    seats = [Seat("r", "w", 0, (SlotId("n", 0, 0),)), Seat("r", "w", 1, (SlotId("n", 0, 1),))]

    def reason(*pods: PodView, has_node: bool = True) -> str:
        nodes = {"n": Node("n", (Gpu("n", 0),))} if has_node else {}
        return loss_of(seats, ClusterSnapshot(nodes, {pod.uid: pod for pod in pods}, {}).ledger, "me")

    def pod(run: str, owner: str, slot: int) -> PodView:
        # A cluster's name for it, which no plan knows.
        name, devices = f"{run}-w-hf2b{slot}", (DeviceUsage(0, slot),)
        return PodView(f"u{slot}", name, "n", owner, run, "w", devices=devices, phase=Phase.RUNNING)

    own = [pod("r", "me", number) for number in range(len(seats))]
    assert reason(*own) == ""
    assert reason(own[0], pod("r", "you", 1)) == "Another launch took slots: 1 staged replica went back."
    assert reason(own[0], pod("other", "me", 1)) == "Slots are no longer free: 1 staged replica went back."
    assert reason(has_node=False) == "Slots are no longer free: 2 staged replicas went back."


async def test_what_does_not_fit_is_said_and_cannot_be_planned(desk, cluster):
    async with desk(backend=cluster, ready=False) as one:
        await open_place(one)
        await one.press("s", *"0-19", "enter", "a")
        await one.until(lambda: len(staged(one)) == 64)
        assert "16 replicas still without a slot" in one.words()
        await one.press("enter")
        await one.until(lambda: any("still without a slot" in sentence for sentence in one.says()))
        assert one.top == "PlaceScreen"
        await one.press("s", *"x", "enter")
        await one.until(lambda: any("is not a seed" in sentence for sentence in one.says()))
        await one.press("escape", "n", *"other", "enter")
        await one.until(lambda: one.app.screen.draft.specs[0].name == "other-s0")
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen")
        assert not (await cluster.snapshot()).runs


async def test_a_mistake_in_the_training_settings_is_named_while_placing(desk, cluster, tmp_path):
    spec = SPEC.replace("{environment: racing}", "{environment: racin}")
    (tmp_path / "manifests" / "grid.yaml").write_text(spec, "utf-8")
    async with desk(backend=cluster, ready=False) as one:
        await open_place(one)
        await one.until(lambda: "there is no such environment" in one.words(), "the finding")


async def test_a_small_terminal_can_place_too(desk, cluster):
    async with desk(backend=cluster, ready=False, size=(80, 24)) as one:
        await open_place(one)
        await one.press("a")
        await one.until(lambda: len(staged(one)) == 4)
        words = one.words()
        assert "PLACE" in words
        assert "4/4" in words
        assert re.search(r"✔ \d checks? passed", words)
        assert "same as" in words


def test_staged_seats_are_what_place_gives_for_the_command_line():
    sets = (
        SetSpec("learner", Role.LEARNER, ("l",), slots=0),
        SetSpec("w", Role.WORKER, ("w",), replicas=3, slots=2),
        SetSpec("e", Role.EVALUATOR, ("e",), replicas=2),
    )
    ledger = build_ledger(eight_gpu_nodes(2), ())
    stage = PlacementDraft(with_seeds(RunSpec(Kind.LEARNER_WORKERS, "r", "r", sets), (0, 1)))
    stage = stage.put("e", [SlotId("n1", 7, 3), SlotId("n0", 0, 0)], ledger)
    stage = stage.put("w", [SlotId("n1", 2, 0), SlotId("n1", 2, 3), SlotId("n0", 3, 1)], ledger)
    assert len(stage.seats) == 4  # n1/2.3 has no second slot beside it
    stage, conflicts = stage.fill(PlacementPolicy.SPREAD, ledger)
    assert not conflicts
    text = pin_text(stage.pins())
    assert place(stage.specs, ledger, pins=parse_pins(text)).seats == stage.placement().seats
    assert stage.policy(ledger) is None
    assert (
        PlacementDraft(stage.specs).fill(PlacementPolicy.SPREAD, ledger)[0].policy(ledger) is PlacementPolicy.SPREAD
    )


def test_a_filling_by_load_is_repeated_by_its_slots_as_the_load_changes():
    nodes = [Node("n", tuple(Gpu("n", index) for index in range(2)), gpu_use=(GpuUse(0, 90.0), GpuUse(1, 5.0)))]
    ledger = build_ledger(nodes, ())
    set_spec = SetSpec("w", Role.WORKER, ("w",), replicas=2)
    draft = PlacementDraft((RunSpec(Kind.LEARNER_WORKERS, "r", "r", (set_spec,)),))
    filled, conflicts = draft.fill(PlacementPolicy.LEAST_BUSY, ledger, nodes)
    assert not conflicts
    assert pin_text(filled.pins()) == "n/1.0-1"
    assert filled.policy(ledger) is None


async def test_what_is_left_goes_by_keys_to_the_devices_with_least_load(desk):
    async with desk(demo=True) as one:
        await one.press("P")
        await one.until(lambda: one.top == "PlaceScreen" and one.app.screen.draft.specs)
        place_screen, nodes = one.app.screen, one.cluster.snapshot.nodes
        busy = {(name, use.gpu): use.percent for name, node in nodes.items() for use in node.gpu_use}
        memory = {(name, use.gpu): use.memory_used_bytes for name, node in nodes.items() for use in node.gpu_use}
        for key, figures in (("B", busy), ("f", memory)):
            await one.press(key)
            await one.until(lambda: not place_screen.draft.missing())
            used = {figures[slot.node, slot.gpu] for slot in place_screen.draft.taken()}
            assert used == {min(figures.values())}
            assert " --on " in one.words()
            await one.press("x")
            await one.until(place_screen.draft.missing)


def test_a_name_that_is_taken_gets_a_number():
    import asyncio

    snapshot = asyncio.run(FakeBackend(owner="me").snapshot())
    assert free_name("fresh", snapshot) == "fresh"
    assert free_name("racing-sac", snapshot) == "racing-sac-2"


def test_the_editor_goes_from_set_to_set_and_every_step_can_be_undone():
    sets = (
        SetSpec("learner", Role.LEARNER, ("l",), slots=1),
        SetSpec("w", Role.WORKER, ("w",), replicas=2, slots=1),
    )
    ledger = build_ledger(eight_gpu_nodes(1), ())
    editor = PlacementEditor()
    assert not editor.undo()
    editor.load("grid.yaml", LaunchRequest(RunSpec(Kind.LEARNER_WORKERS, "r", "r", sets)), EMPTY_SNAPSHOT)
    assert editor.is_learner_current
    steps = [editor.draft]
    assert editor.put((SlotId("n0", 0, 0),), ledger) == ""
    assert editor.current_set == "w"  # the learner has its slot
    steps.append(editor.draft)
    editor.set_replicas(1)
    steps.append(editor.draft)
    editor.fill(PlacementPolicy.PACK, ledger)
    assert not editor.draft.missing()
    assert "Every replica of w has a slot" in editor.put((SlotId("n0", 5, 0),), ledger)
    steps.append(editor.draft)
    editor.clear()
    for draft in reversed(steps):
        assert editor.undo()
        assert editor.draft == draft
    assert not editor.undo()


def test_the_editor_says_why_a_slot_cannot_be_used():
    sets = (SetSpec("w", Role.WORKER, ("w",), replicas=2, slots=2),)
    ledger = build_ledger(eight_gpu_nodes(1), ())
    editor = PlacementEditor()
    editor.load("grid.yaml", LaunchRequest(RunSpec(Kind.LEARNER_WORKERS, "r", "r", sets)), EMPTY_SNAPSHOT)
    last = SlotId("n0", 0, 3)
    assert editor.put((last,), ledger) == f"n0/0 has too few free slots after {last} for one replica of w."
    assert list(editor.command(ledger))[:3] == ["launch", "-f", "grid.yaml"]


def test_a_replica_of_several_slots_moves_as_a_whole_and_over_its_own_slots():
    sets = (SetSpec("w", Role.WORKER, ("w",), replicas=2, slots=2),)
    ledger = build_ledger(eight_gpu_nodes(1), ())
    editor = PlacementEditor()
    editor.load("grid.yaml", LaunchRequest(RunSpec(Kind.LEARNER_WORKERS, "r", "r", sets)), EMPTY_SNAPSHOT)
    first, second = SlotId("n0", 0, 0), SlotId("n0", 0, 1)
    assert editor.put((first,), ledger) == ""
    assert editor.move(second, second, ledger) == ""
    assert set(editor.draft.taken()) == {second, SlotId("n0", 0, 2)}
    last = SlotId("n0", 1, 3)
    assert editor.move(second, last, ledger) == f"n0/1 has too few free slots after {last} for one replica of w."
    assert set(editor.draft.taken()) == {second, SlotId("n0", 0, 2)}
    assert editor.move(second, SlotId("n0", 7, 1), ledger) == ""
    assert set(editor.draft.taken()) == {SlotId("n0", 7, 1), SlotId("n0", 7, 2)}
    assert editor.undo()
    assert editor.undo()
    assert set(editor.draft.taken()) == {first, second}


def test_a_node_without_the_labels_of_a_set_takes_none_of_its_replicas():
    nodes = [Node(f"n{number}", (Gpu(f"n{number}", 0),), labels=(("disk", disk),))
             for number, disk in enumerate(("HDD", "ssd"))]  # fmt: skip
    ledger = build_ledger(nodes, ())
    part = SetSpec("w", Role.WORKER, ("w",), replicas=6, pod=PodSettings(node_selector=(("disk", "ssd"),)))
    editor = PlacementEditor()
    request = LaunchRequest(RunSpec(Kind.LEARNER_WORKERS, "r", "r", (part,)))
    editor.load("r.yaml", request, ClusterSnapshot({node.name: node for node in nodes}, {}, {}))
    assert editor.put((SlotId("n0", 0, 0),), ledger) == "Node n0 has no label disk=ssd, which the set w needs."
    assert editor.put((SlotId("n0", 0, 1), SlotId("n1", 0, 1)), ledger) == ""
    refusal = "Node n0 has no label disk=ssd, which the set w needs."
    assert editor.move(SlotId("n1", 0, 1), SlotId("n0", 0, 1), ledger) == refusal
    editor.fill(PlacementPolicy.PACK, ledger)
    assert {slot.node for slot in editor.draft.taken()} == {"n1"}
    assert "node n0 has no label disk=ssd" in editor.conflicts[0]


async def test_ranges_of_gpus_and_nodes_take_all_sets_of_all_runs(desk, cluster):
    async with desk(backend=cluster, ready=False) as one:
        await open_place(one)
        grid = one.app.screen.view.grid
        await one.press("w", "w", "b")
        assert grid.cursor_slot == SlotId("n0", 1, 0)
        await one.press("s", *"0-1", "enter", "V")
        assert len(one.app.screen.view.pointed()) == 4
        await one.press("w", "space")
        # As many GPUs as runs: each run has its own.
        assert {pod: slots[:4] for pod, slots in staged(one).items()} == {
            f"grid-s{seed}-w{number}-0": f"n0/{seed + 1}" for seed in (0, 1) for number in range(4)
        }
        await one.press("u", "V", "V")
        assert len(one.app.screen.view.pointed()) == 32
        await one.press("escape")
        assert len(one.app.screen.view.pointed()) == 1
        # The bounds do not depend on the end at which a range began.
        await one.press("g", "w", "V", "b", "space")
        assert {slots[:4] for slots in staged(one).values()} == {"n0/0", "n0/1"}


async def test_a_range_of_fewer_gpus_than_runs_is_filled_run_after_run(desk, cluster):
    async with desk(backend=cluster, ready=False) as one:
        await open_place(one)
        await one.press("s", *"0-2", "enter", "V", "w", "space")
        assert len(staged(one)) == 8
        assert {pod for pod in staged(one) if pod.startswith("grid-s2")} == set()
        await one.press("w", "V", "space")
        assert len(staged(one)) == 12


async def test_runs_that_were_launched_are_selected(desk, cluster):
    async with desk(backend=cluster, ready=False) as one:
        await open_place(one)
        await one.press("s", *"0-2", "enter", "V", "V", "space", "enter")
        await one.until(lambda: one.top == "ReviewScreen")
        await one.press("enter")
        await one.until(lambda: one.top == "ClusterScreen" and len(one.cluster.panes.runs.marked) == 3)
        runs = one.cluster.snapshot.runs
        assert {runs[uid].name for uid in one.cluster.panes.runs.marked} == {"grid-s0", "grid-s1", "grid-s2"}
        assert runs[one.cluster.panes.runs.cursor_key].name == "grid-s0"
