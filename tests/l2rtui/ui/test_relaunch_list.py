"""List of runs that are gone: ``:gone``, and what ``:relaunch`` completes."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from l2rtui.services import destroyed_specs
from l2rtui.services.spec import spec_file

SPEC = spec_file.load(str(Path(__file__).parents[3] / "manifests" / "cartpole-ppo.yaml")).spec


def destroyed(*names: str) -> None:
    for seed, name in enumerate(names):
        destroyed_specs.keep(replace(SPEC, name=name, experiment="night", seed=seed))


async def test_what_is_gone_is_listed_and_launched_again(desk):
    async with desk(size=(120, 40), ready=False) as one:
        present = next(iter(one.cluster.snapshot.runs.values())).name
        destroyed("night-s0", "night-s1", present)
        await one.press("colon", *"gone", "enter")
        await one.until(lambda: one.top == "ChoiceScreen")
        await one.until(lambda: "night-s1" in one.words())
        lines = [line for line in one.words().splitlines() if "destroyed" in line]
        assert ["night-s1" in line for line in lines] == [True, False]  # newest first, and no run that is there
        assert "night, seed 0, " in lines[1]
        await one.press("down", "enter")
        await one.until(lambda: one.top == "ReviewScreen")
        await one.until(lambda: "l2rtui --backend demo relaunch night-s0" in one.words())
        await one.press("enter")
        await one.until(lambda: one.cluster.snapshot.run_named("night-s0"))


async def test_names_of_gone_runs_are_completed(desk):
    async with desk(size=(120, 40), ready=False) as one:
        destroyed("zebra")
        await one.press("colon", *"relaunch ze", "tab")
        await one.until(lambda: "relaunch zebra" in one.words())


async def test_nothing_that_is_gone_is_a_sentence(desk):
    async with desk(size=(80, 24), ready=False) as one:
        await one.press("colon", *"gone", "enter")
        await one.until(lambda: any("Nothing that was destroyed from here is gone." in text for text in one.says()))
        assert one.top == "ClusterScreen"


async def test_readonly_forbids_to_launch_again(desk):
    async with desk(size=(80, 24), ready=False, readonly=True) as one:
        destroyed("zebra")
        await one.press("colon", *"gone", "enter")
        await one.until(lambda: any(":gone is off" in text for text in one.says()))
