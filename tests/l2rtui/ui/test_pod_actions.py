"""Keys that reach into a pod or change a run: whose it is, what is asked, what is done, and what is off and why."""

from __future__ import annotations

import re
import shlex
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from textual.drivers.headless_driver import HeadlessDriver

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import user_name
from l2rtui.domain.log import CommandOutput
from l2rtui.domain.metrics import PodMetrics, RunMetrics
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role
from l2rtui.services import destroyed_specs
from l2rtui.ui.home.pod_actions import ports_of
from l2rtui.ui.widgets.metric_strip import about_pod

MINE = ["2", "down"]
"""To the first run that is mine."""


async def to_worker(one, run: str = "racing-sac-s0", index: int = 0) -> None:
    """Put the cursor of the pods on a worker."""
    view = one.cluster.snapshot.run_named(run)
    one.cluster.panes.runs.move_to(view.uid)
    await one.press("3")
    pod = next(pod for pod in one.cluster.snapshot.pods_of(run, "w") if pod.index == index)
    await one.until(lambda: one.cluster.panes.pods.move_to(pod.uid))


# --- simulators ---
@pytest.mark.slow
async def test_workers_show_their_simulators_and_one_can_be_restarted_and_seen(desk):
    async with desk(demo=True) as one:
        await to_worker(one, index=2)
        await one.until(lambda: "● ready x1" in one.words(), "the column of simulators")
        await one.until(lambda: "the simulator hangs" in one.words(), "the last error among the details")
        await one.press("i")
        await one.until(lambda: one.top == "SimulatorsScreen" and "reference" in one.words())
        assert "l2rtui --backend demo simulator status racing-sac-s0-w-2" in one.words()
        await one.press("v")
        await one.until(lambda: one.top == "FrameScreen" and one.words().count("▀") > 200)
        await one.press("escape", "R")
        await one.until(lambda: one.top == "ConfirmScreen" and "Its episode is lost" in one.words())
        assert "l2rtui --backend demo simulator restart racing-sac-s0-w-2" in one.words()
        await one.press("y")
        await one.until(lambda: one.top == "SimulatorsScreen" and "by request" in one.words())
        await one.press("S", *"USR1", "enter")
        await one.until(lambda: one.top == "ConfirmScreen" and "It gets USR1" in one.words())
        await one.press("y")
        await one.until(lambda: any(said.startswith("asked: signal") for said in one.says()))


async def test_ascii_shows_a_picture_in_shades(desk):
    async with desk() as one:
        one.app.theme = "l2r-ascii"
        await to_worker(one)
        await one.press("i")
        await one.until(lambda: one.top == "SimulatorsScreen" and "reference" in one.words())
        await one.press("v")
        await one.until(lambda: one.top == "FrameScreen" and one.words().count("=") > 50)
        assert one.words().isascii()


async def test_a_pod_without_simulators_says_so(desk):
    async with desk() as one:
        await one.press(*MINE, "3", "i")
        await one.until(lambda: "drives no simulators now" in one.words())
        assert one.says() == [], "the dialog has said it"


# --- whose it is ---
async def test_other_peoples_runs_are_left_alone_until_admin_is_said(desk):
    async with desk(demo=True) as one:
        before = await one.backend.snapshot()
        for keys in (["ctrl+d"], ["R"], ["plus"], ["e"], ["3", "K"], ["3", "S"]):
            said = len(one.says())
            await one.press("2", *keys)
            await one.until(lambda said=said: len(one.says()) > said)
            assert "u17" in one.says()[-1]
            assert ":admin" in one.says()[-1]
            assert one.top == "ClusterScreen"
        await one.press("colon", *"admin", "enter")
        await one.until(lambda: "ADMIN" in one.words())
        await one.press("2", "ctrl+d")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "type lidar-ppo to confirm" in one.words()
        assert "l2rtui --backend demo destroy lidar-ppo --admin" in one.words()
        await one.press("escape", "colon", *"admin", "enter")
        await one.until(lambda: "ADMIN" not in one.words())
        assert await one.backend.snapshot() == before


async def test_rights_that_are_missing_turn_keys_off_by_name_of_the_verb(desk):
    backend = FakeBackend(owner=user_name())

    async def denied():
        return {"exec": "in l2r you may not get pods/exec", "launch": "in l2r you may not create configmaps"}

    backend.denied = denied
    async with desk(backend=backend) as one:
        await one.until(lambda: "(place)" in one.words() and "(shell)" in one.words())
        assert "(destroy)" not in one.words()
        for key, reason in (("P", "create configmaps"), ("s", "get pods/exec"), ("i", "get pods/exec")):
            await one.press(key)
            await one.until(lambda reason=reason: reason in one.says()[-1] if one.says() else False)
            assert one.top == "ClusterScreen"
        bar = next(line for line in one.words().splitlines() if "(launch)" in line)
        await one.pilot.hover("KeyBar", offset=(bar.index("(launch)"), 0))
        await one.until(lambda: "create configmaps" in str(one.cluster.panes.key_bar.tooltip))
        await one.press("colon", *"launch", "enter")
        await one.until(lambda: ":launch is off: in l2r you may not create configmaps" in one.says()[-1])


# --- by row, cell, column and all ---
async def test_a_column_of_cells_is_stopped_in_every_marked_run(desk):
    async with desk(demo=True) as one:
        await one.press("2", "down", "space", "space", "right", "right", "ctrl+d")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "Scale w of 2 runs" in one.words()
        assert "l2rtui --backend demo scale racing-sac-s0/w 0 &&" in one.words()
        await one.press("y")

        def is_stopped() -> bool:
            one.backend.advance(1)
            runs = [run for run in one.cluster.snapshot.runs.values() if run.owner == user_name()]
            return [each.replicas for run in runs for each in run.sets if each.name == "w"] == [0, 0]

        await one.until(is_stopped)


@pytest.mark.slow
async def test_all_of_mine_can_be_named_at_once(desk):
    async with desk(demo=True) as one:
        for verb, title in (("kill", "Kill 1"), ("destroy", "Destroy 2 runs"), ("relaunch", "Relaunch 2 runs")):
            await one.press("colon", *f"{verb} mine", "enter")
            await one.until(lambda title=title: one.top == "ConfirmScreen" and title in one.words())
            await one.press("escape")
            await one.until(lambda: one.top == "ClusterScreen")


async def test_a_run_that_is_gone_is_launched_again_by_one_key(desk):
    async with desk() as one:
        spec = await one.backend.spec("racing-sac-s0")
        destroyed_specs.keep(replace(spec, name="gone"))
        await one.press("colon", *"relaunch gone", "enter")
        await one.until(lambda: one.top == "ReviewScreen")
        assert "Launch gone" in one.words()
        assert "l2rtui --backend demo relaunch gone" in one.words()
        await one.press("escape", "colon", *"relaunch nothing", "enter")
        await one.until(lambda: any("No destroyed run is named nothing" in said for said in one.says()))


# --- attach, signal, ports ---
async def test_attach_gives_the_screen_to_one_pod_and_esc_takes_it_back(desk):
    async with desk() as one:
        await to_worker(one)
        await one.press("a")
        await one.until(lambda: "live output" in one.words() and "2 Runs" not in one.words())
        assert any("has no standard input. This is its output" in said for said in one.says())
        assert len(one.cluster.panes.logs.controllers) == 2
        await one.pass_time(10, lambda: len(one.cluster.panes.log_pane.ring) > 0)
        await one.press("escape")
        await one.until(lambda: "2 Runs" in one.words() and len(one.cluster.panes.logs.controllers) == 1)
        assert one.cluster.panes.logs.controllers[0].pane.display


async def test_attach_to_a_process_with_input_asks_for_the_terminal(desk, monkeypatch):
    async with desk() as one:
        left: list[str] = []

        @asynccontextmanager
        async def attach(pod):
            yield SimpleNamespace(has_terminal=True)
            left.append(pod.name)

        monkeypatch.setattr(one.backend, "attach", attach)
        await to_worker(one)
        await one.press("a")
        # The terminal of a test cannot be lent; the sentence names the command that needs no app.
        await one.until(
            lambda: any("l2rtui --backend demo attach racing-sac-s0-w-0" in said for said in one.says())
        )
        assert left == ["racing-sac-s0-w-0"]
        assert "live output" not in one.words()


async def test_a_signal_is_named_asked_and_sent_beside_the_process(desk, monkeypatch):
    async with desk() as one:
        asked: list[tuple[str, ...]] = []

        async def capture(pod, argv):
            asked.append((pod.name, *argv))
            return CommandOutput(0 if "USR1" in argv[-1] else 1, b"", b"no such process")

        monkeypatch.setattr(one.backend, "capture", capture)
        await to_worker(one)
        await one.press("S", *"sigusr1", "enter")
        await one.until(lambda: one.top == "ConfirmScreen")
        command = one.app.screen.question.command  # the dialog breaks the line
        assert command == "l2rtui --backend demo exec racing-sac-s0-w-0 -- sh -c 'kill -s USR1 1'"
        assert asked == []
        await one.press("y")
        await one.until(lambda: asked == [("racing-sac-s0-w-0", "sh", "-c", "kill -s USR1 1")])
        await one.press("S", *"term", "enter", "y")
        await one.until(
            lambda: any("was not sent to racing-sac-s0-w-0: no such process" in said for said in one.says())
        )
        await one.press("S", *"nonsense;reboot", "enter")
        await one.until(lambda: any("There is no signal" in said for said in one.says()))
        assert one.top == "ClusterScreen"


async def test_a_port_is_carried_until_the_key_is_pressed_again(desk):
    backend = FakeBackend(owner=user_name())
    ended: list[str] = []

    async def forward(pod, local, remote):
        try:
            yield f"127.0.0.1:{local} leads to {remote} of {pod.name}"
            import asyncio

            await asyncio.Event().wait()
        finally:
            ended.append(pod.name)

    async def nothing(*_):
        return ()

    backend.inspector = SimpleNamespace(forward=forward, describe=nothing, events=nothing)
    async with desk(backend=backend) as one:
        await to_worker(one)
        await one.press("F", *"7007:6006", "enter")
        await one.until(lambda: any("127.0.0.1:7007 leads to 6006" in said for said in one.says()))
        await one.press("F")
        await one.until(lambda: ended == ["racing-sac-s0-w-0"])
        await one.press("F", *"none", "enter")
        await one.until(lambda: any("is not LOCAL:REMOTE" in said for said in one.says()))


@pytest.mark.parametrize(("text", "ports"), [("6006", (6006, 6006)), ("0:80", (0, 80)), (" 1:2 ", (1, 2))])
def test_ports_are_read_as_people_write_them(text, ports):
    assert ports_of(text) == ports


# --- edit ---
def editor(tmp_path, monkeypatch, *commands: str) -> None:
    """An editor that changes the file with sed, another change each time it is opened."""
    script = tmp_path / "editor"
    lines = [f'case "$(cat {tmp_path}/times)" in']
    lines += [f'{number}) sed -i {shlex.quote(command)} "$1" ;;' for number, command in enumerate(commands)]
    text = "\n".join(["#!/bin/sh", *lines, "esac", f"echo $(($(cat {tmp_path}/times) + 1)) > {tmp_path}/times", ""])
    script.write_text(text, "utf-8")
    script.chmod(0o755)
    (tmp_path / "times").write_text("0", "utf-8")
    monkeypatch.setenv("VISUAL", str(script))


class Lent:
    """A driver that can lend its terminal, as a real one can."""

    can_suspend = True

    def suspend_application_mode(self):
        pass

    def resume_application_mode(self):
        pass


@pytest.fixture
def lending(monkeypatch):
    """Terminals of tests cannot be lent; these say that they can."""
    monkeypatch.setattr(HeadlessDriver, "can_suspend", True)
    for name in ("suspend_application_mode", "resume_application_mode"):
        monkeypatch.setattr(HeadlessDriver, name, getattr(Lent, name), raising=False)


@pytest.mark.process
@pytest.mark.parametrize(
    ("editor_command", "words"),
    [
        ("no-such-editor -w", "no-such-editor cannot be used: No such file or directory"),
        ("vim 'x", 'EDITOR is "vim \'x": No closing quotation'),
        ("false", "false ended with 1"),
    ],
)
async def test_the_app_takes_its_terminal_back_from_an_editor_that_fails(
    desk, monkeypatch, lending, editor_command, words
):
    monkeypatch.setenv("VISUAL", " ")
    monkeypatch.setenv("EDITOR", editor_command)
    is_lent: list[bool] = []
    for name, state in (("suspend_application_mode", True), ("resume_application_mode", False)):
        monkeypatch.setattr(HeadlessDriver, name, lambda _, state=state: is_lent.append(state))
    async with desk() as one:
        await one.press(*MINE, "e")
        await one.until(lambda: any(words in said for said in one.says()))
        assert is_lent in ([], [True, False])


@pytest.mark.process
async def test_other_numbers_of_replicas_are_scaled_after_a_look_at_the_difference(
    desk, tmp_path, monkeypatch, lending
):
    editor(tmp_path, monkeypatch, "s/replicas: 4/replicas: 3/")
    async with desk(demo=True) as one:
        await one.press(*MINE, "e")
        await one.until(lambda: one.top == "ConfirmScreen")
        assert "Scale racing-sac-s0/w?" in one.words()
        assert "-  replicas: 4" in one.words()
        assert "+  replicas: 3" in one.words()
        assert "l2rtui --backend demo scale racing-sac-s0/w 3" in one.words()
        await one.press("y")

        def is_scaled() -> bool:
            one.backend.advance(1)
            return len(one.cluster.snapshot.pods_of("racing-sac-s0", "w")) == 3

        await one.until(is_scaled)


@pytest.mark.process
async def test_another_spec_is_launched_in_place_of_the_old_one(desk, tmp_path, monkeypatch, lending):
    editor(tmp_path, monkeypatch, "s/grace_seconds: 10.0/grace_seconds: 7.0/")
    async with desk() as one:
        await one.press(*MINE, "e")
        await one.until(lambda: one.top == "ConfirmScreen" and "Relaunch racing-sac-s0?" in one.words())
        assert "+  grace_seconds: 7.0" in one.words()
        first = one.cluster.snapshot.run_named("racing-sac-s0")
        await one.press("y")

        def is_new() -> bool:
            one.backend.advance(1)
            run = one.cluster.snapshot.run_named("racing-sac-s0")
            return run is not None and run.uid != first.uid

        await one.until(is_new)
        assert {each.grace_seconds for each in (await one.backend.spec("racing-sac-s0")).sets} == {7.0}


@pytest.mark.process
async def test_a_mistake_is_shown_and_can_be_mended_or_given_up(desk, tmp_path, monkeypatch, lending):
    editor(
        tmp_path,
        monkeypatch,
        "s/replicas: 4/replicas: many/",
        "s/replicas: many/replicas: 4/",
        "s/^name: .*/name: other/",
    )
    async with desk(demo=True) as one:
        await one.press(*MINE, "e")
        await one.until(lambda: one.top == "ConfirmScreen" and "Edit it again?" in one.words())
        assert "replicas" in one.words()
        await one.press("y")
        await one.until(lambda: any("no changes" in said for said in one.says()))
        await one.press("e")
        await one.until(lambda: one.top == "ConfirmScreen" and "and that stays" in one.words())
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen")


@pytest.mark.slow
async def test_a_terminal_that_cannot_be_lent_gives_the_command_line(desk):
    async with desk() as one:
        await one.press(*MINE, "e")
        await one.until(
            lambda: any("Use `l2rtui --backend demo scale racing-sac-s0/SET N`" in said for said in one.says())
        )


# --- what runs without a learner are at ---
def test_what_a_worker_says_of_its_gpu_stands_among_its_facts():
    news = PodMetrics("worker", rate=12.0, gpu_percent=45.0, gpu_memory_bytes=float(3 << 30))
    runs = PodView("u", "p", phase=Phase.RUNNING)
    said = ["".join(span.text for span in line) for line in about_pod(runs, 0.0, news)]
    assert any("45%" in line and "3" in line.partition("45%")[2] for line in said)
    metrics = RunMetrics("r", device="cuda:0 H100", gpu_percent=41.0, gpu_memory_bytes=float(3 << 30))
    learner = about_pod(PodView("u", "p", role=Role.LEARNER), 0.0, None, metrics)
    assert "".join(span.text for span in learner[-1]).split("   ")[1:] == [
        "learns on cuda:0 H100", "41% busy", "3Gi in use",
    ]  # fmt: skip
    assert about_pod(PodView("u", "p", role=Role.WORKER), 0.0, None, metrics) == about_pod(
        PodView("u", "p", role=Role.WORKER), 0.0
    ), "the learner's device is not the worker's"
    silent = [
        "".join(span.text for span in line) for line in about_pod(PodView("u", "p"), 0.0, PodMetrics("worker"))
    ]
    assert not any("GPU" in line for line in silent)


async def test_steps_and_ranks_stand_in_the_tables(desk, monkeypatch):
    async with desk(demo=True) as one:
        await one.press("2", "down")
        pods = one.cluster.snapshot.pods_of("racing-sac-s0", "w")
        await one.until(lambda: all(pod.uid in one.cluster.content.records for pod in pods))
        one.cluster.content.take_records(
            {
                pods[0].uid: PodMetrics("elastic", rank=0, world_size=4, step="epoch 3", round=17),
                pods[1].uid: PodMetrics("elastic", rank=1, world_size=4, step="epoch 3"),
                pods[2].uid: PodMetrics("step", step="train running"),
            }
        )
        await one.until(lambda: "4 ranks  epoch 3, train run" in one.words(), "the run's row")
        await one.until(lambda: re.search(r"0/4 +17 +epoch 3", one.words()), "the rank and round of a pod")
