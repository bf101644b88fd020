"""The matrix of seeds and sets, the views that share a place, filters by column, and commands."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from l2rtui.domain.receipt import Leak
from l2rtui.domain.status import Phase
from l2rtui.services.history import journal


def cells(one, run: str) -> dict[str, str]:
    model = one.cluster.panes.runs.model
    row = next(row for row in model.rows.values() if row.cells[0].text == run)
    return {column.key: model.text(row, number) for number, column in enumerate(model.columns)}


def select_run(one, name: str) -> None:
    one.cluster.panes.runs.move_to(one.cluster.snapshot.run_named(name).uid)


async def test_each_set_of_a_run_has_a_cell_with_ready_replicas_and_a_mark_for_failures(desk):
    async with desk(demo=True) as one:
        found = cells(one, "racing-sac-s1")
        assert (found["set:learner"], found["set:w"], found["set:eval"]) == ("1/1", "3/4 ✖", "1/1")
        pod = one.cluster.snapshot.pods_of("racing-sac-s0", "w")[0]
        one.backend.put_pod(replace(pod, phase=Phase.PENDING, ready=False, reason="Pulling"))
        await one.until(lambda: cells(one, "racing-sac-s0")["set:w"] == "3/4 ◌")


async def test_a_cell_is_killed_scaled_and_stopped_as_one(desk):
    async with desk(demo=True) as one:
        select_run(one, "racing-sac-s0")
        await one.press("right", "right")
        assert one.cluster.panes.runs.cursor_set == "w"
        await one.until(lambda: one.cluster.panes.logs.active.selection.title == "racing-sac-s0/w")
        await one.press("K")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "l2rtui --backend demo kill racing-sac-s0/w" in one.words()
        await one.press("y")
        pods = lambda: one.cluster.snapshot.pods_of("racing-sac-s0", "w")  # noqa: E731
        await one.until(lambda: all(pod.is_terminating for pod in pods()))
        await one.pass_time(5, lambda: not any(pod.is_terminating for pod in pods()))
        await one.press("plus", "y")
        await one.until(lambda: len(pods()) == 5)
        await one.press("ctrl+d")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "from 5 to 0" in one.words()
        await one.press("y")
        await one.pass_time(5, lambda: not pods())
        assert one.cluster.snapshot.run_named("racing-sac-s0") is not None
        assert cells(one, "racing-sac-s0")["set:w"] == "0/0"


async def test_the_pods_of_the_selected_run_are_killed_from_its_row(desk):
    async with desk(ready=False) as one:
        await one.press("2", "j", "K")
        await one.until(lambda: one.top == "ConfirmScreen" and "Kill 3 pods?" in one.words())


async def test_no_second_learner_is_asked_for(desk):
    async with desk() as one:
        select_run(one, "racing-sac-s0")
        await one.press("right", "plus")
        assert one.cluster.panes.runs.cursor_set == "learner"
        await one.until(lambda: any("it keeps its number of pods" in said for said in one.says()))
        assert one.top == "ClusterScreen"


async def test_escape_leaves_the_cell_and_a_relaunch_is_of_the_whole_run(desk):
    async with desk() as one:
        select_run(one, "racing-sac-s0")
        await one.press("right", "right")
        assert one.cluster.panes.runs.cursor_set
        await one.press("R")
        await one.until(lambda: one.top == "ConfirmScreen" and "Relaunch racing-sac-s0?" in one.words())
        await one.press("escape", "escape")
        await one.until(lambda: not one.cluster.panes.runs.cursor_set)
        await one.press("K")
        await one.until(lambda: one.top == "ConfirmScreen" and "Kill 3 pods" in one.words())


async def test_a_run_is_relaunched_on_the_slots_that_it_had(desk):
    async with desk() as one:
        select_run(one, "racing-sac-s0")
        before = {pod.name: pod.slots for pod in one.cluster.snapshot.pods_of("racing-sac-s0")}
        old = one.cluster.snapshot.run_named("racing-sac-s0").uid
        await one.press("R")
        await one.until(lambda: one.top == "ConfirmScreen")
        await one.press("y")

        def is_back() -> bool:
            one.backend.advance(1)
            run = one.cluster.snapshot.run_named("racing-sac-s0")
            return run is not None and run.uid != old and len(one.cluster.snapshot.pods_of(run.name)) == len(before)

        await one.until(is_back)
        assert {pod.name: pod.slots for pod in one.cluster.snapshot.pods_of("racing-sac-s0")} == before


async def test_what_was_confirmed_can_be_called_back_for_some_seconds(desk):
    async with desk(cancel_seconds=60.0) as one:
        select_run(one, "racing-sac-s0")
        await one.press("ctrl+d", "y")
        await one.until(lambda: "destroying racing-sac-s0 in" in one.app.background.doing)
        await one.press("u")
        await one.until(lambda: not one.app.background.doing)
        assert any("cancelled: destroying racing-sac-s0" in sentence for sentence in one.says())
        await one.press("u")
        assert any("nothing to undo" in sentence for sentence in one.says())
        assert one.cluster.snapshot.run_named("racing-sac-s0") is not None


async def test_a_protected_context_wants_its_name_typed(desk):
    async with desk() as one:
        one.app.ctx.is_admin = True
        one.app.ctx.protected = "production"
        await one.press("3", "K")
        await one.until(lambda: one.top == "ConfirmScreen")
        await one.press("y", "enter")
        assert one.top == "ConfirmScreen"
        await one.press("backspace", *"production", "enter")
        await one.until(lambda: one.top == "ClusterScreen")


async def test_missing_rights_turn_a_key_off_and_say_why(desk):
    async with desk() as one:
        one.app.ctx.denied["destroy"] = "you may not delete pods here"
        await one.press("ctrl+d")
        await one.until(one.says)
        assert "off: you may not delete pods here" in one.says()[0]
        assert one.top == "ClusterScreen"


async def test_views_share_a_place_and_the_way_back_is_remembered(desk):
    async with desk(demo=True) as one:
        one.backend.leaked = [Leak("old", "Pod", "old-w-0", "its run is gone")]
        await one.press("4")
        await one.until(lambda: "4 NODES" in one.words() and "▲ cordoned" in one.words())
        await one.press("7")
        await one.until(lambda: "its run is gone" in one.words())
        await one.press("8")
        await one.until(lambda: "policy lag" in one.words())
        await one.press("left_square_bracket", "left_square_bracket")
        await one.until(lambda: one.cluster.panes.focused_pane == "nodes")
        await one.press("right_square_bracket")
        await one.until(lambda: one.cluster.panes.focused_pane == "leaks")
        await one.press("minus")
        await one.until(lambda: one.cluster.panes.focused_pane == "nodes")
        await one.press("6")
        await one.until(lambda: "Claimed" in one.words() and "Pod segment-train-0" in one.words())


@pytest.mark.slow
async def test_filters_compare_with_columns_and_slots_are_filtered_by_their_nodes(desk):
    async with desk(demo=True) as one:
        await one.press("4", "slash", *"free>=20", "enter")
        assert one.cluster.panes.nodes.model.displayed == ["phortx2"]
        await one.press("escape", "1", "slash", *"state~cordoned", "enter")
        await one.until(lambda: one.cluster.panes.slots.only == {"phortx3"})
        assert "phortx1" not in "\n".join(one.words().splitlines()[:8])
        await one.press("escape")
        assert one.cluster.panes.slots.only is None
        await one.press("slash", *"gpu.free>=4 gpu.model=A100", "enter")
        await one.until(lambda: one.cluster.panes.slots.only == {"phortx1", "phortx2"})
        await one.press("escape", "slash", *"gpu.memory>=90G", "enter")
        await one.until(lambda: one.cluster.panes.slots.only == frozenset())


@pytest.mark.slow
async def test_commands_complete_act_and_say_what_they_do_not_know(desk, tmp_path):
    async with desk(demo=True) as one:
        cluster = one.cluster
        await one.press("colon", *"no", "tab", "space", *"fr", "tab", *"<1", "enter")
        await one.until(lambda: cluster.panes.nodes.model.filter_text == "free<1")
        shown = cluster.panes.nodes.model
        await one.press("colon", *"sort gpu", "tab", "enter")
        await one.until(lambda: shown.sort_column is not None and shown.columns[shown.sort_column].key == "gpus")
        await one.press("colon", *"sort -free", "enter")
        await one.until(lambda: shown.is_descending and shown.columns[shown.sort_column or 0].key == "free")
        await one.press("colon", *"sort weight", "enter")
        await one.until(lambda: any("no column 'weight'. Columns: node, state" in text for text in one.says()))
        await one.press("1", "colon", *"sort free", "enter")
        await one.until(lambda: any("Go to a table first" in text for text in one.says()))
        await one.press("colon", *"frobnicate", "enter")
        await one.until(lambda: any("no command 'frobnicate'" in sentence for sentence in one.says()))
        await one.press("colon", *"log racing-sac-s1/w", "enter")
        await one.until(lambda: len(cluster.panes.logs.controllers) == 2)
        await one.until(lambda: len(cluster.panes.logs.controllers[1].pane.ring))
        assert cluster.panes.logs.controllers[1].selection.title == "racing-sac-s1/w"
        await one.press("escape", "2", "colon", *f"export {tmp_path}/runs.csv", "enter")
        await one.until((tmp_path / "runs.csv").exists)
        assert (tmp_path / "runs.csv").read_text().startswith("run,state,learning,return,trend,ready,set:learner")
        await one.press("colon", *"theme l2r-ascii", "enter")
        await one.until(lambda: one.app.theme == "l2r-ascii")
        await one.until(lambda: one.words().isascii(), "nothing beyond ASCII")
        await one.press("colon", "up")
        assert cluster.command_line.prompt.value == "theme l2r-ascii"
        await one.press("escape", "colon", *"destroy racing-sac-s1", "enter")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "Destroy racing-sac-s1?" in one.words()


async def test_the_journal_lists_what_was_changed_from_here(desk, tmp_path):
    async with desk() as one:
        await one.press("colon", *"journal", "enter")
        await one.until(lambda: "Nothing was changed from here yet." in one.words())
        await one.press("escape")
        journal.record("launch", "first-run", "done")
        with (tmp_path / "state" / "l2rtui" / "journal.jsonl").open("a") as file:
            file.write('3\n{"verb": "kill"}\n')
        journal.record("destroy", "\x1b[2Jlater-run", "left")
        await one.press("colon", *"journal", "enter")
        await one.until(lambda: "first-run" in one.words())
        rows = [
            line for line in one.words().splitlines() if "-run" in line and ("launch" in line or "destroy" in line)
        ]
        assert ["destroy" in rows[0], "left" in rows[0], "launch" in rows[1], "done" in rows[1]] == [True] * 4
        assert rows[0].index("left") == rows[1].index("done"), "outcomes stand in a column"
        assert " ago  " in rows[0]
        assert "\x1b" not in one.words()


async def test_the_menu_shows_the_command_line_of_each_action_and_copies_it(desk):
    async with desk(demo=True) as one:
        select_run(one, "racing-sac-s1")
        await one.press("m")
        await one.until(lambda: one.top == "MenuScreen")
        assert "l2rtui --backend demo destroy racing-sac-s1" in one.words()
        await one.press("end", "up", "c")
        assert one.app.clipboard == "l2rtui --backend demo destroy racing-sac-s1"
        await one.press("enter")
        await one.until(lambda: one.top == "ConfirmScreen")


async def test_mine_hides_the_runs_of_others(desk):
    async with desk(demo=True) as one:
        assert "lidar-ppo" in one.words()
        await one.press("o")
        await one.until(lambda: len(one.cluster.panes.runs.model.displayed) == 2)
        await one.press("o")
        await one.until(lambda: len(one.cluster.panes.runs.model.displayed) == 3)


async def test_a_run_that_fails_rings_once(desk):
    async with desk() as one:
        pod = one.cluster.snapshot.pods_of("racing-sac-s0", "w")[0]
        one.backend.put_pod(replace(pod, phase=Phase.FAILED, ready=False, exit_code=1))
        await one.until(lambda: any("racing-sac-s0 fails" in sentence for sentence in one.says()))
        one.backend.put_pod(replace(pod, phase=Phase.FAILED, ready=False, exit_code=2))
        await one.until(lambda: one.cluster.snapshot.pods[pod.uid].exit_code == 2)
        assert sum("fails" in sentence for sentence in one.says()) == 1


async def test_sets_are_folded_unless_a_pod_is_missing_and_a_column_that_tells_no_rows_apart_is_left_out(desk):
    async with desk(size=(200, 45), ready=False) as one:
        heading = lambda: next(line for line in one.words().splitlines() if " state " in line).split()  # noqa: E731
        await one.until(lambda: "● Running" in one.words())
        assert heading()[1:5] == ["run", "state", "learning", "return"]
        assert "pods" in heading()
        assert "learner" not in heading(), "no set of a run misses a pod"
        assert "seed" not in heading(), "both runs have seed 0"
        assert "owner" in heading(), "the runs have different owners"
        await one.press("right")
        await one.until(lambda: "[1/1]" in one.words() and "w" in heading())
        await one.press("escape")
        await one.until(lambda: "learner" not in heading())
        pod = next(pod for pod in one.cluster.snapshot.pods.values() if pod.set_name == "w")
        one.backend.put_pod(replace(pod, ready=False))
        await one.until(lambda: "w" in heading() and "learner" not in heading())
        # A filter still reads a column that is not shown.
        await one.press("slash", *"seed=0", "enter")
        await one.until(lambda: len(one.cluster.panes.runs.model.displayed) == 2)
        assert not one.cluster.panes.runs.model.misread
