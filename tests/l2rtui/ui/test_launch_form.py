"""Launch form: templates to choose from, and pods that start in waves."""

from __future__ import annotations

import re
from pathlib import Path

from textual.widgets import Input, Static

from l2rtui.backends.fake import FakeBackend
from l2rtui.backends.queue_store import QueueStore
from l2rtui.config import user_name
from l2rtui.domain.node import Gpu, Node
from l2rtui.services.spec import templates
from l2rtui.ui.dialogs.launch import SpecTable

SPEC = Path(__file__).parents[3] / "manifests" / "cartpole-ppo.yaml"


async def test_a_template_is_chosen_and_starts_in_waves(desk, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    templates.save("night", str(SPEC))
    async with desk(size=(120, 40), ready=False) as one:
        await one.press("L")
        await one.until(lambda: re.search("night +ppo +CartPole-v1 +3 +3 slots", one.words()))
        one.app.screen.query_one("#wave", Input).value = "2"
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen")
        await one.until(lambda: "launch -t night --wave 2" in one.words())
        assert one.app.screen.prepared.plan.wave == 2
        await one.press("enter")
        await one.until(lambda: one.cluster.snapshot.run_named("cartpole-ppo"))
        launched = one.cluster.snapshot.run_named("cartpole-ppo").uid
        await one.until(lambda: one.cluster.panes.runs.cursor_key == launched, "the new run is selected")


async def test_waves_that_are_no_number_are_a_sentence(desk):
    async with desk(size=(80, 24), ready=False) as one:
        await one.press("L")
        await one.until(lambda: one.top == "LaunchScreen")
        await one.until(lambda: one.app.screen.query_one(SpecTable).cursor_key)
        for text in ("-1", "x", "1e9", "123456789"):
            one.app.screen.query_one("#wave", Input).value = text
            await one.press("enter")
            await one.until(lambda t=text: f"{t!r} is no number of pods." in _error(one), text)
        assert one.top == "LaunchScreen"


async def test_the_command_line_takes_the_name_of_a_template(desk, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    templates.save("night", str(SPEC))
    async with desk(size=(120, 40), ready=False) as one:
        await one.press("colon", *"place ni", "tab")
        await one.until(lambda: "place night" in one.words())
        await one.press("enter")
        await one.until(lambda: one.top == "PlaceScreen")
        await one.until(lambda: "cartpole-ppo" in one.words())


def _error(one) -> str:
    return str(one.app.screen.query_one("#error", Static).render())


def _names(one) -> list[str]:
    model = one.app.screen.query_one(SpecTable).model
    return [model.rows[key].cells[0].text for key in model.displayed]


async def test_typed_letters_filter_the_specs_and_the_chosen_one_is_shown(desk):
    async with desk(size=(120, 40), ready=False) as one:
        await one.press("L")
        await one.until(
            lambda: one.top == "LaunchScreen" and re.search("racing-sac +sac +racing +6 +6 slots", one.words())
        )
        assert "name: racing-sac" in one.words(), "the preview"
        assert _names(one)[0] == "racing-sac"
        await one.press(*"x/nowhere")
        await one.until(lambda: "No row matches the filter. enter reads this path." in one.words())
        await one.press(*["backspace"] * 9, *"cartpole")
        await one.until(lambda: _names(one) and all("cartpole" in name for name in _names(one)))
        assert "algorithm: bc" in one.words()
        await one.press("space", *"dqn")
        await one.until(lambda: _names(one) == ["cartpole-dqn"])
        assert one.app.screen.query_one("#name", Input).placeholder == "cartpole-dqn"
        await one.press(*["backspace"] * 12, *"cartpole-dqn.yaml")
        await one.until(lambda: _names(one) == ["cartpole-dqn"], "the name of its file means the same")
        await one.press(*["backspace"] * 17, "down", "up", "up")
        await one.until(lambda: one.app.screen.query_one(SpecTable).cursor_key.endswith("cartpole-bc.yaml"))
        await one.press("enter")
        await one.until(lambda: "planning …" in one.words() or one.top == "ReviewScreen")
        await one.until(lambda: one.top == "ReviewScreen" and "cartpole-bc.yaml" in one.words())


async def test_the_placement_is_a_choice_and_settings_replace_those_of_the_file(desk):
    async with desk(size=(120, 40), ready=False) as one:
        await one.press("L", *"cartpole-ppo")
        await one.until(lambda: _names(one) == ["cartpole-ppo"])
        await one.press("tab", "tab", "tab")
        assert one.app.screen.focused.id == "policy"
        await one.until(lambda: "< the file's: pack >" in one.words())
        await one.press("right", "right")
        assert one.app.screen.query_one("#policy").value == "spread"
        await one.press("f")
        assert one.app.screen.query_one("#policy").value == "free-memory"
        await one.press("tab", "tab", "tab", *"train.ppo.gamma=0.5", "enter")
        await one.until(lambda: one.top == "ReviewScreen")
        assert one.app.screen.command.endswith("--policy free-memory --set train.ppo.gamma=0.5")
        assert '"gamma":0.5' in one.app.screen.prepared.plan.runs[0].spec.train


async def test_everything_typed_goes_to_place_mode_and_back(desk):
    async with desk(size=(120, 40), ready=False) as one:
        await one.press("L", *"cartpole-ppo", "tab", *"pole", "tab", *"0-1", "tab", "tab", *"phortx2/1")
        await one.press("tab", "4", "tab", *"train.gamma=0.5", "ctrl+g")
        await one.until(lambda: one.top == "PlaceScreen" and one.app.screen.draft.specs)
        editor = one.app.screen.editor
        assert [spec.name for spec in editor.draft.specs] == ["pole-s0", "pole-s1"]
        assert {f"{slot.node}/{slot.gpu}" for slot in editor.draft.taken()} == {"phortx2/1"}
        command = " ".join(editor.command(one.cluster.snapshot.ledger))
        assert "--seeds 0-1 --wave 4 --set train.gamma=0.5 --on phortx2/1.0-3" in command
        await one.press("x", "s", *"0-2", "enter", "escape")
        await one.until(lambda: one.top == "LaunchScreen")
        form = one.app.screen
        values = {
            field: form.query_one(f"#{field}", Input).value for field in ("name", "seeds", "on", "wave", "set")
        }
        assert values == {"name": "pole", "seeds": "0-2", "on": "", "wave": "4", "set": "train.gamma=0.5"}
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen")


async def test_the_form_of_place_mode_has_all_that_was_chosen_there(desk):
    async with desk(size=(120, 40), ready=False) as one:
        await one.press("colon", *"place manifests/cartpole-ppo.yaml", "enter")
        await one.until(lambda: one.top == "PlaceScreen" and one.app.screen.draft.specs)
        await one.press("tab", "3", "s", *"5,7", "enter", "a", "L")
        await one.until(lambda: one.top == "LaunchScreen")
        form = one.app.screen
        assert form.query_one("#seeds", Input).value == "5,7"
        assert form.query_one("#set", Input).value == "workers.0.replicas=3"
        assert form.query_one("#policy").value == "pack"
        await one.press("enter")
        await one.until(lambda: one.top == "ReviewScreen")
        assert "2 runs, 10 pods, 10 slots" in one.words()


async def test_the_review_says_in_one_line_what_fits_and_lists_the_runs_with_their_slots(desk):
    async with desk(size=(120, 40), ready=False) as one:
        # 28 slots are free: nine runs of three fit, and one slot is left.
        await one.press("L", *"cartpole-ppo", "tab", "tab", *"0-11", "enter")
        await one.until(lambda: one.top == "ReviewScreen" and "36 slots asked, 28 free" in one.words())
        await one.until(lambda: "12 runs, 36 pods, 36 slots" in one.words(), "what is asked, not what was placed")
        await one.until(lambda: "9 of 12 runs fit, 3 do not" in one.words())
        assert one.words().count("not fit") <= 3, "equal refusals are one line"
        table = one.app.screen.query_one("#planned")
        assert len(table.model.rows) == 12
        await one.until(lambda: any("✔" in line and "passed" in line for line in one.words().splitlines()))
        grid = one.app.screen.query_one("#map")
        assert len(grid.ghosts) == 28


async def test_where_runs_can_wait_the_line_says_how_many_start_and_how_many_wait(desk, tmp_path):
    backend = FakeBackend(is_empty=True, owner=user_name())
    backend.put_node(Node("n0", (Gpu("n0", 0, slots=8), Gpu("n0", 1, slots=2))))
    backend.queue = QueueStore(tmp_path / "queue")
    async with desk(backend=backend, ready=False, size=(80, 24)) as one:
        await one.press("L", *"cartpole-ppo", "tab", "tab", *"0-5", "enter")
        line = "18 slots asked, 10 free: 3 of 6 runs start now, 3 wait for slots"
        await one.until(lambda: one.top == "ReviewScreen" and line in one.words())
        await one.until(lambda: "6 runs, 18 pods, 18 slots" in one.words())
        assert "not fit" not in one.words()
        assert "--queue" in one.app.screen.command


async def test_the_review_of_a_sweep_has_the_values_of_its_trials_and_a_launch_its_steps(desk):
    for size in ((80, 24), (120, 40)):
        async with desk(size=size, ready=False) as one:
            await one.press("L", *"cartpole-sweep", "enter")
            await one.until(lambda: one.top == "ReviewScreen" and "lr 0.001, minibatch_size 1024" in one.words())
            assert one.words().count("lr 0.0001") == 2
            assert not one.app.screen.query_one("#steps").display
            one.backend.broken_pods["cartpole-sweep-t1-w-0"] = "no space left on device"
            await one.press("enter")
            await one.until(lambda: one.app.screen.query_one("#steps").display and "✔ done" in one.words())
