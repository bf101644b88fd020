"""The main job by keys: launch, watch, kill, scale, destroy with a receipt; a selection that stays where it is."""

from __future__ import annotations

import asyncio
import dataclasses
from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual import events
from textual.geometry import Region
from textual.widgets import Input

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import Settings, user_name
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role
from l2rtui.ui.text import Span, TextStyle
from l2rtui.ui.widgets.grid.lines import lay_out

SPEC = """kind: learner-workers
name: drive
learner: {}
workers: [{name: w, replicas: 2}]
train: {environment: racing}
"""


async def test_a_pod_that_is_not_where_its_plan_says_is_flagged_with_a_sentence(desk):
    async with desk(demo=True) as one:
        cluster = one.cluster
        pod = cluster.snapshot.pods_of("racing-sac-s0", "w")[1]
        assert "mismatch" not in one.words()
        one.backend.put_pod(replace(pod, flags=("names device 3, its plan says 0",)))
        one.backend.advance(1)
        await one.until(lambda: "≠ mismatch 1" in one.words())
        await one.press("2", "down")
        await one.until(lambda: "racing-sac-s0" in str(cluster.panes.pods.border_title))
        assert cluster.panes.pods.model.rows[pod.uid].is_fault
        await one.press("3", "down", "down", "down")
        await one.until(lambda: cluster.panes.pods.cursor_key == pod.uid)
        sentence = f"{pod.name} names device 3, its plan says 0"
        await one.until(
            lambda: any(f"▲ {sentence}" in span.text for line in cluster.panes.detail.lines for span in line)
        )
        assert "names device 3, its plan says 0" in one.words()
        await one.press("d")
        await one.until(lambda: one.top == "DetailScreen")
        assert sentence in one.words()
        await one.press("escape")
        one.backend.put_pod(pod)
        one.backend.advance(1)
        await one.until(lambda: "mismatch" not in one.words())


@pytest.mark.slow
async def test_a_run_is_launched_watched_killed_scaled_and_destroyed_with_a_receipt(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a short path: the command line is not broken over two lines
    spec = Path("drive.yaml")
    spec.write_text(SPEC, "utf-8")
    async with desk() as one:
        cluster = one.cluster
        await one.press("L")
        await one.until(lambda: one.top == "LaunchScreen")
        one.app.screen.query_one("#spec").value = str(spec)
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen")
        assert "1 run, 3 pods, 3 slots" in one.words()
        assert f"l2rtui --backend demo launch -f {spec}" in one.words()
        await one.press("enter")
        await one.until(lambda: one.top == "ClusterScreen" and len(cluster.snapshot.pods_of("drive")) == 3)
        await one.pass_time(2, lambda: all(pod.ready for pod in cluster.snapshot.pods_of("drive")))

        await one.press("2", "G")
        await one.until(lambda: "drive" in str(cluster.panes.pods.border_title))
        assert cluster.panes.runs.model.rows[cluster.panes.runs.cursor_key].cells[0].text == "drive"
        old = cluster.snapshot.pods_of("drive", "w")[0]
        await one.press("3", "down", "K")
        await one.until(lambda: one.top == "ConfirmScreen")
        await one.press("y")
        await one.until(lambda: cluster.snapshot.pods[old.uid].is_terminating)
        await one.pass_time(5, lambda: old.uid not in cluster.snapshot.pods)
        await one.pass_time(5, lambda: all(pod.ready for pod in cluster.snapshot.pods_of("drive")))
        assert cluster.panes.pods.model.rows[cluster.panes.pods.cursor_key].cells[0].text == old.name

        await one.press("plus")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "from 2 to 3" in one.words()
        await one.press("y")
        await one.until(lambda: len(cluster.snapshot.pods_of("drive", "w")) == 3)

        await one.press("2", "ctrl+d")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "frees    4 slots" in one.words()
        assert one.app.screen.focused.id == "no"
        await one.press("enter")
        await one.until(lambda: one.top == "ClusterScreen")
        assert cluster.snapshot.run_named("drive") is not None
        await one.press("ctrl+d", "y")
        await one.until(lambda: one.top == "ReceiptScreen")
        await one.pass_time(5, lambda: "nothing left of drive (5 objects, 0 leaks" in one.words())
        await one.press("enter")
        await one.until(lambda: one.top == "ClusterScreen" and not cluster.snapshot.run_named("drive"))


async def test_a_refused_plan_cannot_be_launched(desk, tmp_path):
    spec = tmp_path / "big.yaml"
    spec.write_text(SPEC.replace("replicas: 2", "replicas: 500"), "utf-8")
    async with desk() as one:
        await one.press("L")
        await one.until(lambda: one.top == "LaunchScreen")
        one.app.screen.query_one("#spec").value = str(spec)
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen")
        assert "refusal: " in one.words()
        assert "Preflight refuses this plan" in one.words()
        await one.press("enter", "enter")
        await one.pilot.pause()
        assert one.top == "ReviewScreen"
        assert (await one.backend.snapshot()).run_named("drive") is None


async def test_the_review_on_a_cluster_warns_of_an_image_that_its_registry_does_not_have(desk, tmp_path):
    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    registry = await asyncio.start_server(refuse, "127.0.0.1", 0)
    image = f"127.0.0.1:{registry.sockets[0].getsockname()[1]}/lab/wrong:1"
    spec = tmp_path / "drive.yaml"
    spec.write_text(f"image: {image}\n{SPEC}", "utf-8")
    async with registry, desk() as one:
        one.backend.name = "kubernetes"
        await one.press("L")
        await one.until(lambda: one.top == "LaunchScreen")
        one.app.screen.query_one("#spec").value = str(spec)
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen" and f"has no image {image}" in one.words())


async def test_mistakes_in_the_form_are_sentences_and_leave_the_form_open(desk, tmp_path):
    async with desk() as one:
        await one.press("L")
        await one.until(lambda: one.top == "LaunchScreen")
        for field, value, sentence in (
            ("spec", str(tmp_path / "no-such-file"), "no-such-file"),
            ("seeds", "one", "is not a seed"),
            ("policy", "heap", "is no policy"),
            ("on", "here", "names no slot"),
            ("set", "train.gamma", "write it as field.field=value"),
            ("set", "'a", "Close the quote"),
        ):
            entry = one.app.screen.query_one(f"#{field}")
            before, entry.value = entry.value, value
            entry.focus()
            await one.press("enter")
            await one.until(lambda sentence=sentence: sentence in one.words(), sentence)
            assert one.top == "LaunchScreen"
            entry.value = before


async def test_a_launch_that_breaks_says_so_and_leaves_nothing(desk, tmp_path):
    spec = tmp_path / "drive.yaml"
    spec.write_text(SPEC, "utf-8")
    async with desk() as one:
        one.backend.broken_pods["drive-w-1"] = "no space left on device"
        await one.press("L")
        await one.until(lambda: one.top == "LaunchScreen")
        one.app.screen.query_one("#spec").value = str(spec)
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen")
        await one.press("enter")
        await one.until(lambda: one.app.background.doing)
        for _ in range(10):
            one.backend.advance(1)
            await one.pilot.pause()
        await one.until(lambda: not one.app.background.doing)
        assert "no space left on device" in one.words()
        assert (await one.backend.snapshot()).run_named("drive") is None


async def test_destroying_many_pods_or_those_of_others_wants_a_typed_name(desk):
    async with desk() as one:
        one.app.ctx.is_admin = True
        run = next(run for run in one.cluster.snapshot.runs.values() if run.owner != user_name())
        one.cluster.panes.runs.move_to(run.uid)
        await one.press("ctrl+d")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert f"not yours: {run.owner}" in one.words()
        await one.press("y", "enter")
        await one.pilot.pause()
        assert one.top == "ConfirmScreen"
        await one.press("backspace", *run.name.replace("-", "\0").replace("\0", "-"))
        await one.press("enter")
        await one.until(lambda: one.top == "ReceiptScreen")


async def test_the_selection_stays_on_its_uid_whatever_comes_and_goes(desk):
    async with desk() as one:
        cluster = one.cluster
        await one.press("A", "3", "down", "down", "down")
        await one.pilot.pause()
        chosen = cluster.panes.pods.cursor_key
        line = cluster.panes.pods.model.position(chosen)
        first = cluster.snapshot.pods[cluster.panes.pods.model.displayed[0]]
        one.backend.put_pod(replace(first, uid="new", name="aaa", run="", set_name=""))
        await one.until(lambda: "new" in cluster.panes.pods.model.rows)
        assert cluster.panes.pods.cursor_key == chosen
        assert cluster.panes.pods.model.position(chosen) == line + 1
        one.backend.drop_pod("new")
        one.backend.drop_pod(first.uid)
        await one.until(lambda: first.uid not in cluster.panes.pods.model.rows)
        assert cluster.panes.pods.cursor_key == chosen
        await one.press("full_stop", "comma")
        assert cluster.panes.pods.cursor_key == chosen


async def test_keys_in_quick_succession_act_on_where_the_cursor_is(desk):
    async with desk(demo=True) as one:
        one.app.ctx.is_admin = True
        await one.press("3")
        third = one.cluster.snapshot.pods[one.cluster.panes.pods.model.displayed[2]].name
        for key in ("j", "j", "K"):
            one.app.post_message(events.Key(key, key))
        await one.until(lambda: one.top == "ConfirmScreen")

        assert f"Kill {third}?" in one.words()


async def test_what_is_typed_faster_than_the_line_opens_belongs_to_the_line(desk):
    async with desk() as one:
        await one.press("2")
        for character in "/lK3":
            one.app.post_message(events.Key("slash" if character == "/" else character, character))
        await one.until(lambda: one.cluster.panes.runs.model.filter_text == "lK3")
        assert one.top == "ClusterScreen"
        assert one.cluster.focused is one.cluster.command_line.prompt


async def test_filter_faults_and_marks(desk):
    async with desk(demo=True) as one:
        one.app.ctx.is_admin = True
        cluster = one.cluster
        everything = len(cluster.panes.runs.model.displayed)
        await one.press("slash", *"racing", "enter")
        await one.until(lambda: 0 < len(cluster.panes.runs.model.displayed) < everything)
        assert "/racing" in str(cluster.panes.runs.border_title)
        await one.press("escape")
        await one.until(lambda: len(cluster.panes.runs.model.displayed) == everything)
        await one.press("exclamation_mark")
        await one.until(lambda: len(cluster.panes.runs.model.displayed) == 1)
        assert "Degraded" in one.words()
        await one.press("escape", "3", "g", "space", "space")
        assert len(cluster.panes.pods.marked) == 2
        await one.press("K")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "Kill 2 pods?" in one.words()
        assert one.app.screen.focused.id == "no"


async def test_the_log_follows_the_selection_and_a_pod_that_comes_back(desk):
    async with desk(demo=True) as one:
        cluster = one.cluster
        await one.press("2", "down")
        await one.until(lambda: cluster.panes.logs.active.selection.run == "racing-sac-s0")
        await one.press("enter", "down", "down")
        pod = cluster.snapshot.pods[cluster.panes.pods.cursor_key]
        await one.until(lambda: cluster.panes.logs.active.selection.title == pod.name)
        await one.until(lambda: {entry.pod for entry in cluster.panes.log_pane.ring} == {pod.name})
        await one.press("2")
        await one.until(
            lambda: cluster.panes.logs.active.selection.is_merged and len(cluster.panes.log_pane.hues) > 3
        )
        one.backend.drop_pod(pod.uid)
        one.backend.put_pod(replace(pod, uid="again", started=one.backend.now()))
        await one.until(lambda: "again" in cluster.snapshot.pods)
        lines = len(cluster.panes.log_pane.ring)
        await one.pass_time(30, lambda: len(cluster.panes.log_pane.ring) > lines)
        newest = [entry for entry in cluster.panes.log_pane.ring if entry.pod == pod.name][-1]
        await one.pass_time(30, lambda: one.backend.now() > newest.time)
        assert len({(entry.time, entry.pod, entry.text) for entry in cluster.panes.log_pane.ring}) == len(
            cluster.panes.log_pane.ring
        )


async def test_the_slot_cursor_selects_the_pod_that_holds_the_slot(desk):
    async with desk() as one:
        cluster = one.cluster
        await one.press("1", "right")
        slot = cluster.panes.slots.cursor_slot
        holder = cluster.snapshot.ledger.slots[slot].pod
        await one.until(lambda: f" {holder}, " in one.words())
        await one.press("enter")
        await one.until(lambda: cluster.panes.focused_pane == "pods")
        assert cluster.snapshot.pods[cluster.panes.pods.cursor_key].name == holder


async def test_an_outage_is_shown_and_what_was_seen_stays(desk):
    async with desk() as one:
        one.backend.outage = "the wire is cut"
        one.backend.advance(1)
        await one.until(lambda: "stale" in one.words())
        assert "the wire is cut" in one.words()
        assert "racing-sac-s0" in one.words()
        one.backend.outage = ""
        await one.until(lambda: "● live" in one.words())


@pytest.mark.slow
async def test_leaving_while_something_is_destroyed_asks_first(desk):
    async with desk() as one:
        await one.press("2", "down", "ctrl+d", "y")
        await one.until(lambda: one.app.background.doing)
        await one.press("escape", "q")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "Leave all the same?" in one.words()
        await one.press("escape")
        await one.pass_time(5, lambda: any("nothing left of" in sentence for sentence in one.says()))
        await one.press("q")
        await one.until(lambda: one.has_left)
        assert one.app.return_code == 0


async def test_an_empty_cluster_says_what_to_do(desk):
    async with desk(backend=FakeBackend(is_empty=True), ready=False) as one:
        await one.until(lambda: "enter  train the example" in one.words())
        await one.until(lambda: all(f"{key}      " in one.words() for key in "LPH?"))
        await one.press("K", "ctrl+d", "plus", "d", "p", "1", "enter", "right", "5", "n", "2", "space")
        assert one.top == "ClusterScreen"
        assert all("elect" in sentence for sentence in one.says())


async def test_enter_on_the_empty_screen_plans_the_example(desk):
    backend = FakeBackend(is_empty=True)
    backend.put_node(Node("box", (Gpu("box", 0, slots=16),)))
    async with desk(backend=backend, ready=False) as one:
        await one.until(lambda: "enter  train the example" in one.words())
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen")
        await one.until(lambda: "launch -f" in one.words() and "racing-sac" in one.words())
        await one.press("escape")
        await one.until(lambda: one.top == "LaunchScreen")
    async with desk(backend=FakeBackend(is_empty=True), ready=False, readonly=True) as one:
        await one.until(lambda: "enter  train the example" in one.words())
        await one.press("enter")
        await one.until(lambda: any("Launching is off" in sentence for sentence in one.says()))
        assert one.top == "ClusterScreen"


async def test_small_terminals_show_one_list_and_the_log_and_tiny_ones_a_sentence(desk):
    async with desk(size=(80, 24)) as one:
        assert "1 Slots   2 RUNS" in one.words()
        await one.press("1")
        await one.until(lambda: "1 SLOTS" in one.words() and "phortx1" in one.words())
        await one.press("z")
        await one.until(lambda: "5 Log" not in one.words())
        await one.press("escape", "3")
        await one.until(lambda: "3 PODS" in one.words())
        await one.pilot.resize_terminal(20, 5)
        await one.until(lambda: "This terminal is" in one.words())
        await one.pilot.resize_terminal(160, 45)
        await one.until(lambda: "3 PODS" in one.words() and "1 Slots" in one.words())


async def test_a_pod_that_cannot_start_says_why(desk):
    backend = FakeBackend(is_empty=True)
    async with desk(backend=backend, ready=False) as one:
        from l2rtui.domain.snapshot import PodView

        backend.put_pod(PodView("u", "stuck", phase=Phase.PENDING, reason="Unschedulable", message="no node fits"))
        await one.press("3")
        await one.until(lambda: "stuck waits to start: no node fits" in one.words())


async def test_a_small_terminal_lays_the_slots_out_for_its_width_and_not_for_that_of_a_hidden_grid(desk):
    async with desk(demo=True, size=(80, 24), ready=False) as one:
        grid = one.cluster.panes.slots
        await one.press("1")
        await one.until(lambda: grid.size.width)
        lines = [
            slot.y
            for slot in lay_out(
                one.cluster.snapshot, grid._columns - 2, level=None, room=grid._room - 2
            ).slots.values()
        ]
        assert [cell.y for cell in grid.slots.values()] == lines
        assert "a100-0" in one.words() or len(set(lines)) < len(one.cluster.snapshot.ledger.slots) / 4


async def test_the_letter_of_a_slot_becomes_large_when_its_pod_runs(desk):
    async with desk(size=(160, 45)) as one:
        snapshot, grid = one.cluster.snapshot, one.cluster.panes.slots
        pod = next(pod for pod in snapshot.pods.values() if pod.run and pod.slots and pod.ready)
        slot = next(iter(pod.slots))

        def letter() -> str:
            cell = grid.slots[slot]
            return grid.render_line(cell.y + 1).text[cell.x + 2]

        was = letter()
        assert was.isupper()
        one.backend.put_pod(replace(pod, phase=Phase.PENDING, ready=False, created=one.backend.now() + 60))
        await one.until(lambda: letter() == was.lower(), "a small letter")
        before = one.cluster.snapshot.ledger
        one.backend.put_pod(pod)
        await one.until(lambda: letter() == was, "a capital letter")
        assert one.cluster.snapshot.ledger.slots == before.slots


async def test_each_question_names_context_namespace_and_user(desk):
    async with desk(ready=False) as one:
        backend, asked = one.backend, []

        def acts_on(namespaces=()):
            asked.append(set(namespaces))
            return "on context lab, namespace team-a, as alice"

        backend.acts_on = acts_on
        for keys in (["2", "down", "ctrl+d"], ["plus"], ["3", "K"]):
            await one.press(*keys)
            await one.until(lambda: one.top == "ConfirmScreen")
            assert "place    on context lab, namespace team-a, as alice" in one.words()
            await one.press("escape")
            await one.until(lambda: one.top == "ClusterScreen")
        assert len(asked) == 3


async def test_a_cluster_that_answers_nothing_is_not_live_and_each_question_says_so(desk):
    async with desk(ready=False) as one:
        await one.until(lambda: "● live" in one.words())
        one.backend.silent_since = one.backend.now() - 23.0
        await one.pass_time(0.0, lambda: "▲ no answer for 20s" in one.words())
        await one.until(lambda: "● live" not in one.words(), "neither the connection nor the learning is live")
        for keys in (["2", "down", "ctrl+d"], ["plus"], ["3", "K"]):
            await one.press(*keys)
            await one.until(lambda: one.top == "ConfirmScreen")
            assert "on the demo cluster, which has not answered for 23 s" in one.words()
            await one.press("escape")
            await one.until(lambda: one.top == "ClusterScreen")
        one.backend.silent_since = None
        await one.pass_time(0.0, lambda: "● live" in one.words())


async def test_a_launch_names_where_it_goes(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("drive.yaml").write_text(SPEC)
    async with desk(ready=False) as one:
        await one.press("L")
        await one.until(lambda: one.top == "LaunchScreen")
        one.app.screen.query_one("#spec").value = "drive.yaml"
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen")
        assert "enter launch on the demo cluster" in one.words()


async def test_a_filter_of_the_pods_says_which_run_it_searches_and_the_command_searches_all(desk):
    async with desk(demo=True, ready=False) as one:
        pods = one.cluster.panes.pods
        await one.press("3", "slash", *"status~Crash")
        await one.until(lambda: "9 hidden" in one.words())
        assert "These are the pods of lidar-ppo; A looks at those of all 3 runs. esc shows all." in one.words()
        await one.press("escape", "colon", *"pods status~Crash", "enter")
        await one.until(lambda: [pods.model.rows[key].cells[0].text for key in pods.model.displayed])
        assert "racing-sac-s1-w-3" in one.words()
        await one.press("slash", *"nodde=n1")
        await one.until(lambda: "There is no column 'nodde'. Did you mean node?" in one.words())


async def test_slots_without_a_node_that_matches_say_so(desk):
    async with desk(ready=False) as one:
        await one.press("colon", *"slots free>=40", "enter")
        await one.until(lambda: "No node matches the filter. esc shows all." in one.words())
        await one.press("escape")
        await one.until(lambda: "No node matches" not in one.words())


async def test_a_node_is_described_and_not_the_run_beside_it(desk):
    async with desk(ready=False) as one:
        await one.press("4", "d")
        await one.until(lambda: one.top == "DetailScreen")
        text = "\n".join("".join(span.text for span in line) for line in one.app.screen.lines)
        node = one.cluster.snapshot.nodes[one.cluster.panes.nodes.cursor_key]
        assert node.name in text
        assert text.count("device") == len(node.gpus)
        about = text.partition("events:")[0]  # those are of its pods, which have the names of their runs
        assert not any(run.name in about for run in one.cluster.snapshot.runs.values())


async def test_a_description_has_headings_labels_and_events_in_columns(desk):
    async with desk(demo=True) as one:
        await one.press("2", "down", "down", "d")
        await one.until(lambda: one.top == "DetailScreen")
        lines = one.app.screen.lines
        text = ["".join(span.text for span in line) for line in lines]
        start = text.index("run racing-sac-s1")
        assert lines[start] == (Span("run racing-sac-s1", TextStyle.HEADING),)
        assert lines[start + 1][0] == Span("  owner:       ", TextStyle.DIM)
        events = [line for line in lines[text.index("events:") + 1 :] if len(line) == 3]
        assert len({line[2].text.index("Pod ") for line in events if "Pod " in line[2].text}) == 1
        assert {line[1].style for line in events if "Warning" in line[1].text} == {TextStyle.WARN}


HEADINGS = {
    (): "Everywhere on the cluster screen",
    ("slash",): "Filters",
    ("colon",): "Commands, after :",
    ("5",): "In the log",
    ("1",): "In the slot grid",
}


@pytest.mark.slow
async def test_help_opens_where_it_was_asked_for(desk):
    async with desk(ready=False) as one:
        for keys, heading in HEADINGS.items():
            await one.press("2", *keys, "question_mark")
            await one.until(lambda heading=heading: one.top == "HelpScreen" and f" {heading} " in one.words())
            await one.press("escape")
            await one.until(lambda: one.top == "ClusterScreen")
            assert not one.cluster.command_line.is_open


async def test_a_command_that_is_not_there_names_the_likely_one(desk):
    async with desk(ready=False) as one:
        for word, hint in (("descrbe", "Did you mean describe?"), ("zzzz", "`:?` lists them.")):
            await one.press("colon", *word, "enter")
            sentence = f"There is no command '{word}'. {hint}"
            await one.until(lambda sentence=sentence: sentence in one.says())
        await one.press("2", "j", "3", "colon", *"kil", "enter")  # the beginning of one name alone
        await one.until(lambda: one.top == "ConfirmScreen" and "Kill" in one.words())


async def test_a_command_that_acts_on_the_selection_takes_no_other_target(desk):
    async with desk(ready=False) as one:
        await one.press("2", "colon", *"describe n1", "enter")
        sentence = ":describe takes no argument. It acts on the selection: go to the row first."
        await one.until(lambda: sentence in one.says())
        assert one.top == "ClusterScreen"
        await one.press("colon", *"quit now", "enter")
        await one.until(lambda: ":quit takes no argument." in one.says())


async def test_pods_of_a_run_that_is_not_selected_are_not_called_silent(desk):
    async with desk(demo=True, size=(200, 60)) as one:
        content, pods = one.cluster.content, one.cluster.panes.pods.model
        first = one.cluster.panes.runs.cursor_key
        await one.until(lambda: any(record.rate for record in content.records.values()))
        own = {uid for uid, record in content.records.items() if record.rate}
        await one.press("A", "2", "j")
        await one.until(lambda: one.cluster.panes.runs.cursor_key != first)
        one.backend.advance(60)
        content.draw_ages()
        at = [column.title for column in pods.columns].index("steps/s")
        shown = own & pods.rows.keys()
        assert shown
        await one.until(
            lambda: all(pods.rows[uid].cells[at].text.endswith("?") for uid in shown), "no silent worker"
        )


async def test_a_learner_that_hangs_is_seen_by_the_age_of_its_numbers(desk):
    """As after SIGSTOP: the pod runs, its log has no new line, and nothing arrives but time."""
    backend = FakeBackend(owner=user_name())
    lines_of, is_hung = backend.logs, False

    async def logs(pod, query):
        async for line in lines_of(pod, query):
            if not is_hung:
                yield line

    backend.logs = logs
    async with desk(backend=backend) as one:
        cluster = one.cluster
        await one.until(lambda: len(cluster.metrics) == 3)
        rates = [run.env_steps_per_second for run in cluster.metrics.values()]
        assert all(rates)
        assert "silent" not in one.words()
        is_hung = True
        backend.advance(120)
        cluster.content.draw_ages()
        runs = cluster.panes.runs.model.rows
        await one.until(lambda: all("silent 2m" in [cell.text for cell in row.cells] for row in runs.values()))
        assert "silent 2m" in one.words()
        await one.until(lambda: "▲ 2m old: the learner no longer prints records" in one.words())
        above_log = one.words().split("5 Log")[0]  # the log is of the past, and may show them
        assert not any(f"{rate:,.0f}" in above_log for rate in rates)
        assert "learning  ✖ stalled for 2m: its learner has" in one.words()
        await one.until(lambda: "stalled ✖ 3" in one.words().splitlines()[0])
        assert all(row.is_fault for row in runs.values())
        # The reason is said once: in the line of the learning, and in the first line of a pane that has no other.
        assert "✖ lidar-ppo 9/9 running, stalled" in one.words()
        assert one.words().split("5 Log")[0].count(": its learner has") == 1
        # The slot of each learner shows it, also where its pod is healthy.
        learners = [pod for pod in cluster.snapshot.pods.values() if pod.role is Role.LEARNER]
        assert {slot for pod in learners for slot in pod.slots} == set(cluster.panes.slots.ghosts)
        await one.until(lambda: any("racing-sac-s0 is stalled: its learner" in text for text in one.says()))
        is_hung = False
        backend.advance(1)
        await one.until(lambda: "silent" not in one.words())
        await one.until(lambda: "stalled for" not in one.words() and not cluster.panes.slots.ghosts)
        await one.until(lambda: "racing-sac-s0 learns again" in one.says())


async def test_a_lost_watch_makes_all_learning_unknown_and_back(desk):
    async with desk(demo=True) as one:
        cluster = one.cluster
        runs = cluster.panes.runs.model.rows

        def words():
            return {
                cell.text for row in runs.values() for cell in row.cells if cell.text[2:] in ("live", "unknown")
            }

        await one.until(lambda: words() == {"● live"})
        health = cluster.health
        cluster.health = dataclasses.replace(health, error="refused", silent_seconds=30.0)
        await one.until(lambda: words() == {"◌ unknown"})
        assert "cannot be seen: refused" in one.words()
        cluster.health = health
        await one.until(lambda: words() == {"● live"})


async def resized(one, size: tuple[int, int]) -> None:
    """Give the terminal another size, and take all toasts away."""
    one.app.clear_notifications()
    await one.pilot.resize_terminal(*size)
    await one.until(lambda: one.app.screen.size == size and not one.app.screen.query("Toast"))


def show_toasts(one, number: int, rest: str = "") -> None:
    """Show sentences that stay: a busy machine must not take them away before they are looked at."""
    for each in range(number):
        one.app.notify(f"sentence {each}{rest}", timeout=3600.0, markup=False)


LONG = ", which is so long that it takes more than one line of a toast"


def toasts(one) -> list[Region]:
    """Return where the toasts stand."""
    shown = [toast for toast in one.app.screen.query("Toast") if toast.display]
    return [region for toast in shown if (region := one.app.screen.find_widget(toast).visible_region)]


TYPED_INTO = [("slash", "x"), ("colon", "x"), ("L", "tab"), ("L", "tab", "tab", "tab", "tab")]
"""Keys that lead into an input field."""


async def test_toasts_never_cover_what_is_typed(desk):
    async with desk(size=(80, 24), ready=False, has_toasts=True) as one:
        for size, keys in product([(80, 24), (60, 20)], TYPED_INTO):
            await resized(one, size)
            await one.press(*keys)
            await one.until(lambda: isinstance(one.app.focused, Input) and one.app.focused.region.height)
            show_toasts(one, 6, LONG)
            await one.until(lambda: len(one.app.screen.query("Toast")) == 6)
            await one.until(lambda: "sentence 5" in one.words(), f"the newest toast after {keys}")
            field = one.app.focused.region
            assert not any(toast.overlaps(field) for toast in toasts(one)), (size, keys)
            await one.press("y", "z")
            assert one.app.focused.value.endswith("yz")
            assert "yz" in one.words().splitlines()[field.y]
            await one.press("escape")
            await one.until(lambda: one.top == "ClusterScreen" and not isinstance(one.app.focused, Input))


async def test_toasts_cover_nothing_of_a_question(desk):
    async with desk(size=(80, 24), ready=False, has_toasts=True) as one:
        for size in ((80, 24), (120, 40)):
            await resized(one, size)
            await one.press("2", "y")
            await one.until(lambda: one.top == "DetailScreen" and "esc closes" in one.words())
            show_toasts(one, 6, LONG)
            await one.until(lambda: "sentence 5" in one.words(), "the newest toast")
            assert "esc closes" in one.words()
            title = one.app.screen.query_one("#title").region
            assert not any(toast.overlaps(title) for toast in toasts(one)), size
            await one.press("escape")
            await one.until(lambda: one.top == "ClusterScreen")


async def test_toasts_leave_the_key_bar_in_sight_however_many_there_are(desk):
    async with desk(size=(80, 24), ready=False, has_toasts=True) as one:
        prompt, bar = one.cluster.command_line.prompt, one.cluster.panes.key_bar
        show_toasts(one, 30)
        for keys in ((), ("5",), ("slash", "x")):
            await one.press(*keys)
            await one.until(lambda: len(one.app.screen.query("Toast")) == 30)
            await one.until(lambda: "sentence 9" in one.words(), "as many as there is room for")
            last = prompt if keys[:1] == ("slash",) else bar  # the prompt stands in the place of the bar
            assert last.display
            assert not any(toast.overlaps(last.region) for toast in toasts(one))
            assert ("x" if last is prompt else "? help") in one.words().splitlines()[last.region.y]


async def test_toasts_are_ascii_in_the_ascii_theme(desk):
    async with desk(settings=Settings(backend="demo", theme="l2r-ascii"), has_toasts=True) as one:
        one.app.background.say("a fault", is_error=True)
        one.app.background.say("a sentence")
        await one.until(lambda: "a fault" in one.words() and "a sentence" in one.words(), "both toasts")
        assert one.words().isascii()


async def test_a_narrow_title_says_what_is_hidden_before_the_names_of_other_views(desk):
    async with desk(demo=True, size=(80, 24), ready=False) as one:
        await one.until(lambda: "1 Slots   2 RUNS (3)   3 Pods" in one.words())
        await one.press("slash", *"sac", "enter")
        await one.until(lambda: "1  2 RUNS (2)  3  4  6  7  8   1 hidden · /sac" in one.words())


async def test_a_prompt_says_what_is_asked_and_takes_the_place_of_the_key_bar_alone(desk):
    async with desk(size=(80, 24), ready=False) as one:
        for size in ((80, 24), (120, 40)):
            await resized(one, size)
            await one.until(lambda: "L launch" in one.words())
            before = one.words().splitlines()
            await one.press("colon", *"xyz")
            await one.until(lambda: "command  xyz" in one.words())
            *panes, last = one.words().splitlines()
            assert last.startswith(" command  xyz")
            assert "L launch" not in one.words()
            assert panes[-1] == before[-2], "the frame of the lowest pane stays where it was"
            await one.press("escape", "slash", *"sac")
            await one.until(lambda: " filter   sac" in one.words().splitlines()[-1])
            await one.press("escape")
            await one.until(lambda before=before: one.words().splitlines()[-1] == before[-1])
