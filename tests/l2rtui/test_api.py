"""l2rtui.api: with asyncio over the demo, without it on this machine, and the example of docs/api.md."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from l2rtui import api
from l2rtui.config import user_name
from l2rtui.errors import NotFoundError, RefusedError, SpecError, UsageError
from tests.l2rtui.test_docs import DOCS

JOB = """\
kind: job
name: greeting
job: {command: [sh, -c, "echo hello; echo world"]}
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


@pytest.fixture
def demo(home):
    return api.Client(backend="demo")


@pytest.mark.usefixtures("home")
async def test_runs_are_launched_watched_and_destroyed(demo):
    async with demo as client:
        runs = await client.launch("racing-sac", name="mine", seeds=[3, 4], overrides={"workers.0.replicas": 1})
        assert runs == ("mine-s3", "mine-s4")
        reached = await client.wait("experiment/mine", until="running", timeout=30)
        assert set(reached) == {"mine-s3", "mine-s4"}
        assert {line.pod async for line in client.logs("mine-s3", tail=5)} <= {
            "mine-s3-learner-0",
            "mine-s3-w-0",
            "mine-s3-eval-0",
        }
        metrics = await client.metrics("mine-s3")
        assert metrics is None or metrics.run == "mine-s3"
        with pytest.raises(RefusedError, match="experiment/mine names 2 runs: mine-s3, mine-s4"):
            await client.destroy("experiment/mine")
        receipts = await client.destroy("experiment/mine", all_matching=True)
        assert [(receipt.run, receipt.left) for receipt in receipts] == [("mine-s3", ()), ("mine-s4", ())]
        with pytest.raises(NotFoundError, match="There is no run 'mine-s3'"):
            await client.metrics("mine-s3")
        assert await client.wait("mine-s3", until="gone", timeout=30) == {}


async def test_a_taken_name_is_refused_or_renamed(demo):
    async with demo as client:
        assert await client.launch("cartpole-ppo", name="twice") == ("twice",)
        with pytest.raises(RefusedError, match="twice"):
            await client.launch("cartpole-ppo", name="twice")
        assert await client.launch("cartpole-ppo", name="twice", rename=True) == ("twice-2",)


async def test_a_slot_that_another_launch_takes_is_replaced_by_another(demo):
    """Two launches at once want the same free slots: the second is planned again."""
    async with demo as client:
        one, two = await asyncio.gather(
            client.launch("cartpole-ppo", name="one"), client.launch("cartpole-ppo", name="two")
        )
        assert (one, two) == (("one",), ("two",))


async def test_what_is_wrong_is_the_sentence_of_the_commands(demo, home):
    async with demo as client:
        with pytest.raises(NotFoundError, match=r"no template 'cartpole-pro'\. Did you mean cartpole-ppo"):
            await client.launch("cartpole-pro")
        with pytest.raises(SpecError, match=r"nowhere\.yaml"):
            await client.launch(home / "nowhere.yaml")
        with pytest.raises(UsageError, match="'x' names no slot"):
            await client.launch("cartpole-ppo", on="x")
        with pytest.raises(NotFoundError, match="There is no run 'racin-sac'"):
            await client.destroy("racin-sac")
        for call, sentence in (
            (client.wait(), "No run is named"),
            (client.destroy(), "No run is named"),
            (client.wait("racing-sac-s0", until="soon"), "until is 'soon': write running, learned"),
        ):
            with pytest.raises(UsageError, match=sentence):
                await call
        with pytest.raises(TimeoutError):
            await client.wait("racing-sac-s0", until="gone", timeout=0.3)
    async with api.Client(backend="demo", readonly=True) as client:
        with pytest.raises(RefusedError, match="read-only"):
            await client.destroy("racing-sac-s0")
    with pytest.raises(UsageError, match="not open"):
        await api.Client(backend="demo").metrics("racing-sac-s0")
    with pytest.raises(UsageError, match=r"async with l2rtui\.api\.Client"):
        api.metrics("racing-sac-s0")


async def test_seeds_are_written_as_in_commands_too(demo):
    async with demo as client:
        assert await client.launch("cartpole-ppo", name="many", seeds="0-1,5") == ("many-s0", "many-s1", "many-s5")
        with pytest.raises(UsageError, match="seeds: "):
            await client.launch("cartpole-ppo", name="other", seeds="0-")


async def test_a_run_of_another_user_is_left_alone(demo):
    async with demo as client:
        mine = user_name()
        other = next(run for run in (await client._backend.snapshot()).runs.values() if run.owner != mine)
        with pytest.raises(RefusedError, match=f"{other.name} .{other.owner}. does not belong to you"):
            await client.destroy(other.name)


@pytest.mark.process
@pytest.mark.usefixtures("home")
def test_without_an_event_loop_on_this_machine(home):
    spec = home / "job.yaml"
    spec.write_text(JOB)
    began = time.time()
    assert api.launch(spec, backend="local") == ("greeting",)
    assert set(api.wait("greeting", timeout=60, backend="local")) == {"greeting"}
    lines = [line for line in api.logs("greeting", backend="local") if not line.is_mark]
    assert [line.text for line in lines] == ["hello", "world"]
    assert all(began - 1 < line.time <= time.time() for line in lines)
    with pytest.raises(api.OutOfReachError, match="greeting cannot fail any more: it has finished"):
        api.wait("greeting", until="failed", timeout=60, backend="local")
    (receipt,) = api.destroy("greeting", purge=True, backend="local")
    assert receipt.left == ()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_of_the_page_trains_on_this_machine(home):
    example = (DOCS / "api.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", example],
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "L2RTUI_BACKEND": "local"},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert float(first) > 9  # no episode of a pole is shorter
    assert last.startswith("nothing left of from-python")
