"""The settings file, read again by ``:reload`` while the app runs."""

from __future__ import annotations

import pytest

from l2rtui.config import Settings, load_settings
from l2rtui.ui.state.app_context import LIVE, ContextOpener, reloaded


@pytest.fixture
def opener(tmp_path):
    """Ways to the settings of a file, as the app has them from the command line."""
    path = tmp_path / "config.toml"
    environ = {"L2RTUI_CONFIG": str(path), "HOME": str(tmp_path)}

    def settings_for(context: str, namespaces: tuple[str, ...] | None) -> Settings:
        return load_settings({"backend": "demo", "context": context, "namespaces": namespaces}, environ)

    def make(_: Settings):
        raise AssertionError

    return path, ContextOpener(settings_for, make)


async def reload(one) -> None:
    await one.press("colon", *"reload", "enter")


async def test_what_is_read_again_counts_at_once(desk, opener):
    path, one_opener = opener
    async with desk() as one:
        one.app.opener = one_opener
        path.write_text(
            'theme = "l2r-light"\nreadonly = true\nslots_per_gpu = 2\n[keys]\n"app.help" = "f1"\n'
            '[filters]\nbroken = "pods status~Fail"\n'
        )
        await reload(one)
        await one.until(lambda: any("Counts now: " in text for text in one.says()))
        said = next(text for text in one.says() if "Counts now: " in text)
        assert said == "Counts now: readonly, theme, keys, filters. From the next start: slots_per_gpu."
        assert one.app.theme == "l2r-light"
        await one.until(lambda: "READ-ONLY" in one.words())
        assert one.app.ctx.settings.slots_per_gpu == Settings().slots_per_gpu
        await one.press("f1")
        await one.until(lambda: one.top == "HelpScreen")
        await one.press("escape")
        await one.press("colon", *"filter broken", "enter")
        await one.until(lambda: "status~Fail" in one.words())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("theme = [", "is not TOML"),
        ("them = 1", "is not known. The settings stay as they are. Did you mean theme?"),
        ('theme = "l2r-drak"', "There is no theme 'l2r-drak'. The settings stay as they are."),
        ('[keys]\n"run.destroy" = "K"', "K would be both pod.kill and run.destroy"),
        ('[filters]\nx = "podz"', "it begins with a view"),
        ('[limits]\nwall = "12q"', "'12q' is not a duration"),
    ],
)
async def test_a_broken_file_is_a_sentence_and_changes_nothing(desk, opener, text, sentence):
    path, one_opener = opener
    async with desk(ready=False) as one:
        one.app.opener = one_opener
        path.write_text(text)
        before, theme, keys = one.app.ctx.settings, one.app.theme, one.app.ctx.keys
        await reload(one)
        await one.until(lambda: any(sentence in said for said in one.says()), sentence)
        assert any("`l2rtui config check` names every mistake." in said for said in one.says())
        assert (one.app.ctx.settings, one.app.theme, one.app.ctx.keys) == (before, theme, keys)


@pytest.mark.slow
async def test_a_replay_has_nothing_to_read(desk):
    async with desk(ready=False) as one:
        await reload(one)
        await one.until(lambda: any("A replay has the settings" in said for said in one.says()))


def test_settings_that_are_the_same_change_nothing():
    before = Settings(theme="l2r-light")
    assert reloaded(before, Settings(theme="l2r-light")) == (before, "The settings are as they were.")


def test_settings_of_the_app_are_settings():
    assert Settings.__dataclass_fields__.keys() >= LIVE
