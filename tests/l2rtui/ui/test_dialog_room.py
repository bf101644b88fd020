"""Dialogs in a small terminal: what must be answered stays in sight, and what does not fit is said and reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.app import App

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.tables.summaries import EXPERIMENTS
from l2rtui.ui.dialogs.dialog import DetailScreen
from l2rtui.ui.dialogs.review import ReviewScreen
from l2rtui.ui.text import Span
from l2rtui.ui.widgets.table_model import RowModel, columns_of

SMALL = (80, 24)
SPEC = Path(__file__).parents[3] / "manifests" / "cartpole-ppo.yaml"
GAP = 2


def more(one) -> int:
    """Return the number of lines that the frame of the dialog says are below."""
    sign = re.search(r"↓ (\d+) more ─", one.words())
    return int(sign[1]) if sign else 0


async def test_a_long_text_is_read_to_its_end(desk):
    async with desk(demo=True, size=SMALL, ready=False) as one:
        await one.press("2", "y")
        await one.until(lambda: one.top == "DetailScreen")
        await one.until(lambda: more(one))
        below = more(one)
        await one.press("down")
        await one.until(lambda: more(one) == below - 1)
        assert "- evaluator" not in one.words()
        await one.press("end")
        await one.until(lambda: "- evaluator" in one.words())
        assert not more(one)


@pytest.mark.slow
async def test_long_lines_hang_beside_a_scrollbar_too(desk):
    async with desk(size=(160, 45), ready=False) as one:
        for letters in (2, 7):
            screen = DetailScreen([(Span(" ▲ "), Span("word" * letters + " "), Span("word " * 60))] * 40)
            one.app.push_screen(screen)
            await one.until(lambda screen=screen: one.app.screen is screen and more(one))
            left = screen.query_one("#lines").region.x
            rows = [row[left:] for row in one.words().splitlines() if " word " in row]
            assert len(rows) > 20
            assert all(row.startswith((" ▲ ", "   ")) for row in rows)
            await one.press("escape")


async def test_a_question_with_many_pods_shows_what_goes_and_its_buttons(desk):
    backend = FakeBackend(owner="somebody")
    async with desk(size=SMALL, ready=False, backend=backend) as one:
        await one.press("colon", *"admin", "enter")
        await one.press("2")
        one.cluster.panes.runs.action_mark_all()
        await one.press("ctrl+d")
        await one.until(lambda: one.top == "ConfirmScreen")
        await one.until(lambda: more(one))
        for text in (
            "keeps    checkpoints",
            "frees    ",
            "not yours",
            "to confirm",
            "Cancel",
            "Destroy",
            "same as",
        ):
            assert text in one.words(), text
        while before := more(one):
            await one.press("pagedown")
            await one.until(lambda before=before: more(one) < before)
        assert re.search(r"and \d+ more", one.words())
        await one.press("up")
        await one.until(lambda: more(one) == 1)
        assert one.app.screen.focused.id == "typed", "the field keeps the focus"


async def review_seeds(one, seeds: str) -> None:
    """Open the review of the example with so many seeds."""
    await one.press("L")
    await one.until(lambda: one.top == "LaunchScreen" and one.app.screen.query_one("#examples").cursor_key)
    one.app.screen.query_one("#spec").value = str(SPEC)
    one.app.screen.query_one("#seeds").value = seeds
    await one.press("enter")
    await one.until(lambda: one.top == "ReviewScreen")


async def test_the_plan_of_many_seeds_leaves_room_for_what_enter_does(desk):
    async with desk(size=SMALL, ready=False) as one:
        await review_seeds(one, "0-8")
        await one.until(lambda: more(one))
        assert "enter launch" in one.words()
        assert "esc back" in one.words()
        await one.press("end")
        await one.until(lambda: not more(one))
        assert "cartpole-ppo-s8" in one.words()
        # Another width gives findings and command another number of lines.
        await one.pilot.resize_terminal(70, 24)
        await one.until(lambda: one.app.size.width == 70 and "esc back" in one.words())


async def test_findings_beyond_the_room_are_said_and_reached_by_keys(desk):
    async with desk(demo=True, size=SMALL, ready=False) as one:
        await review_seeds(one, "0-1")
        findings = tuple(Finding(Severity.WARNING, f"set{number}", f"sentence {number}") for number in range(12))
        findings += tuple(Finding(Severity.WARNING, f"set{number}", "equal") for number in range(3))
        prepared = replace(one.app.screen.prepared, findings=findings)
        one.app.push_screen(ReviewScreen(one.app.ctx, prepared, "l2rtui launch"))
        await one.until(lambda: "more   tab scrolls them" in one.words())
        last = "set0 and 2 more  warning: equal"
        assert "warning: sentence 0" in one.words()
        assert last not in one.words()
        await one.press("tab")
        await one.until(lambda: "tab back to the steps" in one.words())
        await one.press("end")
        await one.until(lambda: last in one.words())
        assert re.search(r"↑ \d+ more   tab back", one.words())
        assert "enter launch" in one.words()
        await one.press("enter")
        await one.until(lambda: one.cluster.snapshot.run_named("cartpole-ppo-s1"))


async def test_the_menu_says_how_many_entries_lie_below(desk):
    async with desk(size=(80, 15), ready=False) as one:
        await one.press("m")
        await one.until(lambda: one.top == "MenuScreen" and more(one))
        await one.press("end")
        await one.until(lambda: not more(one))


async def test_an_error_of_two_lines_leaves_the_keys_of_the_form_in_sight(desk):
    async with desk(size=SMALL, ready=False) as one:
        await one.press("L")
        await one.until(lambda: one.top == "LaunchScreen" and one.app.screen.query_one("#examples").cursor_key)
        one.app.screen.query_one("#policy").value = "the-best-of-all-policies"
        await one.press("enter")
        await one.until(lambda: "Write one of" in one.words())
        assert one.app.screen.query_one("#error").size.height > 1
        assert "enter plan    ↑ ↓ choose   tab field   ctrl+g place   esc close" in one.words()


async def test_a_hint_names_only_keys_that_do_something(desk):
    async with desk(size=SMALL, ready=False) as one:
        await one.press("V")
        await one.until(lambda: "racing-data" in one.words())
        assert "enter open" in one.words()
        assert not re.search("D download|U upload|backspace up", one.words())
        await one.press("enter")
        await one.until(lambda: "D download" in one.words())
        assert "U upload" in one.words()
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen")
        await one.press("H")
        await one.until(lambda: "No run has been recorded yet." in one.words())
        assert not re.search("enter show|d diff|R repeat", one.words())


async def test_the_question_of_place_mode_says_what_is_asked(desk):
    async with desk(size=SMALL, ready=False) as one:
        await one.press("colon", *f"place {SPEC}", "enter")
        await one.until(lambda: one.top == "PlaceScreen" and "same as" in one.words())
        await one.press("s", *"0-2")
        await one.until(lambda: "Seeds: 0-11 or 1,5,7; empty: one run" in one.words())
        assert one.words().rstrip().endswith("0-2"), "the field is the last line"
        await one.press("enter")
        await one.until(lambda: "seeds 0-2" in one.words() and "same as" in one.words())


@pytest.mark.parametrize("width", range(20, 140))
def test_an_interval_is_shown_with_both_of_its_ends(width):
    model = RowModel(columns_of(EXPERIMENTS))
    shown = {model.columns[number].key for number, _ in model.visible_columns(width, GAP)}
    assert len(shown & {"low", "high"}) != 1


SCREENS = {
    "LaunchScreen": ("L",),
    "HelpScreen": ("question_mark",),
    "MenuScreen": ("m",),
    "ExperimentsScreen": ("E",),
    "OwnersScreen": ("O",),
    "PlaceScreen": ("P",),
    "DetailScreen": ("2", "d"),
    "ConfirmScreen": ("2", "j", "ctrl+d"),
}


@pytest.mark.slow
async def test_the_first_frame_of_a_screen_has_every_part_where_it_stays(desk, monkeypatch):
    """A list is laid out with all its lines at first: the terminal must not show it over fields and hints."""
    async with desk(size=SMALL, demo=True, ready=False, has_frames=True) as one:
        frames = []
        paint = App._display

        def painted(app, screen, renderable):
            regions = {part: part.region for part in screen.query("*") if part.id and part.display}
            frames.append((type(screen).__name__, regions))
            paint(app, screen, renderable)

        monkeypatch.setattr(App, "_display", painted)
        await one.until(lambda: len(one.cluster.metrics) == 3)
        for name, keys in SCREENS.items():
            frames.clear()
            await one.press(*keys)
            await one.until(lambda name=name: one.top == name and any(frame[0] == name for frame in frames), name)
            await one.pilot.pause(0.2)
            first = next(regions for top, regions in frames if top == name)
            moved = {part.id: (region, part.region) for part, region in first.items() if part.region != region}
            assert not moved, name
            await one.press("escape")
            await one.until(lambda: one.app.screen is one.cluster)
