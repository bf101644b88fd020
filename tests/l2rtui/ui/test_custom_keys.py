"""Keys that a person binds otherwise, the page that lists them, filters with a name, protected contexts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.keys import format_key

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import Settings, load_settings, user_name
from l2rtui.errors import ConfigError
from l2rtui.services import filters
from l2rtui.ui.app import L2RApp
from l2rtui.ui.keys import docs
from l2rtui.ui.keys.keymap import face, key_table, keymap
from l2rtui.ui.keys.table import KEYS, KeyContext
from tests.l2rtui.ui.conftest import Desk

PAGE = Path(__file__).parents[3] / "docs" / "keys.md"


def test_the_page_of_keys_is_current():
    assert PAGE.read_text("utf-8") == docs.page(), "run `python -m l2rtui.ui.keys.docs > docs/keys.md`"


def test_without_wishes_the_table_is_as_it_is():
    assert key_table(()).keys == KEYS
    assert keymap(key_table(())) == {}


@pytest.mark.parametrize("key", [key for key in KEYS if "%" not in key.action], ids=lambda key: key.id)
def test_every_entry_can_be_bound_to_its_own_keys_by_name(key):
    assert key_table([(key.id, key.keys)]).of(key.context)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.destory", "x", "there is nothing named 'run.destory'. Did you mean run.destroy?"),
        ("run.destroy", "hyper", "run.destroy is bound to 'hyper', and there is no such key"),
        ("run.destroy", "pagedwn", "Did you mean pagedown?"),
        ("run.destroy", "", "there is no such key"),
        ("run.destroy", "ctrl+", "there is no such key"),
        ("run.destroy", "K", "K would be both pod.kill and run.destroy"),
        ("run.destroy", "ctrl+p", "ctrl+p would be both"),
        ("run.destroy", "ctrl+c", "ctrl+c"),
        ("place.replicas", "x", "takes digits"),
        ("app.palette", "space", "space would be both"),
    ],
)
def test_each_mistake_is_a_sentence(name, text, said):
    with pytest.raises(ConfigError) as caught:
        key_table([(name, text)])
    assert said in str(caught.value)
    assert "[keys]" in str(caught.value)


def test_two_keys_can_change_places():
    table = key_table([("pod.kill", "L"), ("run.launch", "K")])
    assert (table.face("pod.kill"), table.face("run.launch")) == ("L", "K")


def test_faces_of_keys():
    assert [face(name) for name in ("question_mark", "ctrl+x", "space", "left", "ctrl+left", "f2")] == [
        "?",
        "ctrl+x",
        "space",
        "←",
        "ctrl+←",
        "f2",
    ]
    assert format_key("question_mark") == face("question_mark")


def settings_of(tmp_path, text: str, **flags: object) -> Settings:
    path = tmp_path / "config.toml"
    path.write_text(text, "utf-8")
    return load_settings(flags, {"L2RTUI_CONFIG": str(path), "HOME": str(tmp_path)})


@pytest.mark.slow
async def test_bar_help_menu_and_key_follow_the_settings(desk, tmp_path):
    text = '[keys]\n"run.place" = "ctrl+x"\n"app.help" = "?,f1"\n"place.leave" = "Q"\n'
    backend = FakeBackend(owner=user_name())
    async with desk(backend=backend, settings=settings_of(tmp_path, text, backend="demo")) as one:
        assert "ctrl+x place" in one.words()
        await one.press("P")
        assert one.top == "ClusterScreen"
        await one.press("f1")
        await one.until(lambda: one.top == "HelpScreen" and "ctrl+x      Place a run" in one.words())
        await one.until(lambda: "? f1" in one.words())  # the dialog may still grow to its height
        await one.press("escape", "m")
        await one.until(lambda: one.top == "MenuScreen" and "ctrl+d  Destroy the run" in one.words())
        await one.press("escape", "ctrl+x")
        await one.until(lambda: one.top == "PlaceScreen")
        assert "Q cancel" in one.words()
        await one.press("Q")
        await one.until(lambda: one.top == "ClusterScreen")


def test_wrong_keys_and_filters_are_said_before_the_app_opens():
    with pytest.raises(ConfigError, match=r"Did you mean run\.place"):
        L2RApp(Settings(keys=(("run.plce", "x"),)), FakeBackend)
    with pytest.raises(ConfigError, match="it begins with a view"):
        L2RApp(Settings(filters=(("broken", "status=Failed"),)), FakeBackend)


async def test_keys_that_come_before_the_home_screen_are_kept_for_it():
    gate, backend = asyncio.Event(), FakeBackend()

    class Slow(L2RApp):
        async def _open(self) -> None:
            await gate.wait()
            await super()._open()

    app = Slow(Settings(backend="demo"), lambda: backend, clock=backend.now)
    async with app.run_test(size=(160, 45)) as pilot:
        one = Desk(app, pilot, backend)
        await one.until(lambda: "connecting" in one.words())
        await one.press("m")
        assert one.top == "SplashScreen"
        gate.set()
        await one.until(lambda: one.top == "MenuScreen")
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen" and "live" in one.words())


# --- filters ---
@pytest.mark.slow
async def test_a_filter_is_kept_shown_and_forgotten(desk):
    async with desk() as one:
        await one.press("3", "slash", *"node=phortx2", "enter")
        await one.press("colon", *"save-filter second", "enter")
        await one.until(lambda: "second" in filters.saved_filters())
        assert filters.saved_filters() == {"second": "pods node=phortx2"}
        await one.press("escape", "2", "colon", *"filter second", "enter")
        await one.until(lambda: one.cluster.panes.pods.model.filter_text == "node=phortx2")
        assert one.cluster.panes.focused_pane == "pods"
        await one.press("colon", *"delete-filter second", "enter")
        await one.until(lambda: not filters.saved_filters())
        await one.press("colon", *"filter second", "enter")
        await one.until(lambda: any("There is no filter 'second'" in said for said in one.says()))


async def test_filters_of_the_settings_are_there_and_stay(desk, tmp_path):
    settings = settings_of(tmp_path, '[filters]\nroomy = "nodes free>=20"\n', backend="demo")
    async with desk(settings=settings, demo=True) as one:
        await one.press("colon", *"filter roomy", "enter")
        await one.until(lambda: one.cluster.panes.nodes.model.displayed == ["phortx2"])
        await one.press("colon", *"forget roomy", "enter")
        await one.until(lambda: any("is defined in the settings file" in said for said in one.says()))


def test_a_broken_file_of_filters_is_as_none(tmp_path):
    path = filters.filters_path()
    path.parent.mkdir(parents=True)
    for text in ("[]", "{", '{"a": 3, "b": "", "c": "pods x", "d": "nowhere x"}'):
        path.write_text(text, "utf-8")
        assert filters.saved_filters() in ({}, {"c": "pods x"})


# --- contexts ---
CONTEXTS = """\
theme = "l2r-light"
slots_per_gpu = 2

[context.production]
protected = true
theme = "l2r-contrast"

[context.demo]
slots_per_gpu = 8
"""


def test_a_context_has_settings_of_its_own(tmp_path):
    production = settings_of(tmp_path, CONTEXTS, context="production")
    assert (production.protected, production.theme, production.slots_per_gpu) == (True, "l2r-contrast", 2)
    demo = settings_of(tmp_path, CONTEXTS, backend="demo")
    assert (demo.protected, demo.theme, demo.slots_per_gpu) == (False, "l2r-light", 8)
    flagged = settings_of(tmp_path, CONTEXTS, context="production", theme="l2r-dark")
    assert flagged.theme == "l2r-dark", "flags win over the context's part"


def test_the_current_context_of_the_kubeconfig_counts(tmp_path):
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text('current-context: "production"\n', "utf-8")
    assert settings_of(tmp_path, CONTEXTS).protected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[context.a]\nthem = 'x'\n", "context.a.them in"),
        ("[context.a]\nslots_per_gpu = 0\n", "context.a.slots_per_gpu in"),
        ("[context]\na = 3\n", "a table [context.a] is wanted"),
        ("[context.a]\nbackend = 'local'\n", "would change which context it is"),
        ("keys = 3\n", "a table of names and texts is wanted"),
        ("[keys]\nx = 3\n", "a table of names and texts is wanted"),
    ],
)
def test_mistakes_in_the_tables_are_sentences(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        settings_of(tmp_path, text)
    assert said in str(caught.value)


def test_tables_are_no_variables():
    with pytest.raises(ConfigError, match="can only be set in the file"):
        load_settings({}, {"L2RTUI_PROTECTED": "0"})


SPEC = "kind: learner-workers\nname: one\nlearner: {slots: 0}\nworkers: [{name: w}]\n"


async def test_a_protected_context_has_a_frame_and_wants_its_name(desk, tmp_path, monkeypatch):
    text = "[context.demo]\nprotected = true\n"
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "one.yaml").write_text(SPEC, "utf-8")
    monkeypatch.chdir(tmp_path)
    async with desk(settings=settings_of(tmp_path, text, backend="demo")) as one:
        assert "PROTECTED" in one.words()
        assert "┏" in one.words().splitlines()[0]
        await one.press("2", "down", "plus")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "type demo to confirm" in one.words()
        await one.press("escape", "P")
        await one.until(lambda: one.top == "PlaceScreen" and one.app.screen.draft.specs)
        await one.press("a", "enter")
        await one.until(lambda: one.top == "ReviewScreen")
        before = await one.backend.snapshot()
        await one.press("enter")
        await one.until(lambda: one.top == "ConfirmScreen" and "type demo to confirm" in one.words())
        await one.press("enter")
        assert one.top == "ConfirmScreen"
        assert await one.backend.snapshot() == before
        await one.press(*"demo", "enter")
        await one.until(lambda: one.cluster.snapshot.run_named("one") is not None)


def test_places_have_names_for_the_page():
    assert all(f"## {place}" in PAGE.read_text("utf-8") for place in KeyContext)
