"""Claims: of two launches on one slot one wins; and if a launch is interrupted, existing objects are visible."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from l2rtui.backends.local.backend import LocalBackend
from l2rtui.backends.local.supervision import client
from l2rtui.config import Settings
from l2rtui.domain.containers import Mount, PodSettings
from l2rtui.domain.plan import LaunchPlan
from l2rtui.domain.preflight import Severity
from l2rtui.domain.workload import RestartPolicy, Role
from l2rtui.errors import BackendError, RefusedError
from runtime.base.installation import install_hint


async def drain(backend, plan):
    return [done async for done in backend.launch(plan)]


async def test_of_launches_on_the_last_slot_exactly_one_wins(lab):
    lab.settings = Settings(max_cpu_slots=1)
    lab.backend = lab.another()
    plans = [await lab.plan(lab.set("sleep", "600"), name=f"run-{number}") for number in range(4)]
    results = await asyncio.gather(*(drain(lab.another(), plan) for plan in plans), return_exceptions=True)
    refused = [result for result in results if isinstance(result, RefusedError)]
    assert len(refused) == 3
    assert all("is held by run-" in str(result) for result in refused)
    assert len((await lab.backend.snapshot()).runs) == 1
    assert len(lab.processes()) == 4


async def test_a_name_is_taken_once(lab):
    plan = await lab.plan(lab.set("sleep", "600"))
    other = await lab.plan(lab.set("sleep", "600", slots=0))
    await drain(lab.backend, plan)
    with pytest.raises(RefusedError, match="A run named run exists"):
        await drain(lab.backend, other)
    with pytest.raises(RefusedError, match="is held by run-w-0"):
        await drain(lab.backend, plan)


async def test_several_runs_are_claimed_together_or_not_at_all(lab):
    first = await lab.plan(lab.set("sleep", "600"), name="run-a")
    second = await lab.plan(lab.set("sleep", "600"), name="run-b")
    with pytest.raises(RefusedError, match="run-a-w-0, so run-b-w-0 cannot sit there"):
        await drain(lab.backend, LaunchPlan((*first.runs, *second.runs)))
    assert not (await lab.backend.snapshot()).runs
    done = await drain(lab.backend, first)
    assert [step_done.error for step_done in done] == ["", ""]


async def test_a_plan_with_conflicts_or_without_such_a_slot_is_refused(lab):
    plan = await lab.plan(lab.set("sleep", "600", replicas=999))
    with pytest.raises(RefusedError, match="not fit"):
        await drain(lab.backend, plan)
    plan = await lab.plan(lab.set("sleep", "600"))
    small = lab.another(Settings(max_cpu_slots=1))
    seat = replace(plan.runs[0].pods[0].seat, slots=(next(iter(await slots(lab)))[-1:] or ()))
    assert seat
    await drain(small, plan)
    with pytest.raises(RefusedError, match="There is no slot"):
        await drain(small, await lab.plan(lab.set("sleep", "600"), name="other"))


async def slots(lab):
    return [list((await lab.backend.snapshot()).ledger.slots)]


async def test_an_unwritable_state_folder_is_named_with_the_next_step(tmp_path):
    (tmp_path / "file").touch()
    backend = LocalBackend(Settings(), state=tmp_path / "file" / "local")
    assert not (await backend.snapshot()).runs
    findings = await backend.check(LaunchPlan(()))
    assert findings[0].severity == "refusal"
    with pytest.raises(BackendError, match=r"state folder .*file/local cannot be written: .* set XDG_STATE_HOME"):
        await drain(backend, LaunchPlan(()))
    await backend.close()


async def test_a_failure_while_writing_takes_back_what_was_written(lab):
    first = await lab.plan(lab.set("sleep", "600"), name="run-a")
    second = await lab.plan(lab.set("sleep", "600", slots=0), name="run-b")
    client.make_root(lab.root)
    # The second run's folder cannot be created: its path is taken.
    (lab.state / "runs" / f".new-{second.runs[0].uid}").touch()
    with pytest.raises(BackendError, match="cannot be written"):
        await drain(lab.backend, LaunchPlan((*first.runs, *second.runs)))
    assert not (await lab.backend.snapshot()).runs
    assert not lab.processes()


async def test_a_supervisor_that_cannot_start_fails_each_step(lab, monkeypatch):
    monkeypatch.setattr("sys.executable", "/no/python")
    done = await lab.launch(lab.set("sleep", "600"))
    assert len(done) == 2
    assert all("The supervisor of run did not start" in step_done.error for step_done in done)
    monkeypatch.undo()
    assert not (await lab.destroy()).left


async def test_long_paths_get_short_sockets_of_our_own(lab, monkeypatch, tmp_path):
    temp = tmp_path / "t"
    temp.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temp))
    lab.state = tmp_path / ("d" * 60) / ("e" * 60)
    lab.backend = lab.another()
    await lab.launch(lab.set("env", "L2R_ENDPOINT", "sleep", "600"))
    (folder,) = temp.glob("l2r-*")
    assert await lab.until_line(f"L2R_ENDPOINT=ipc://{folder}")
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "data.sock").touch()
    receipt = await lab.destroy()
    assert receipt.left == ()
    assert receipt.objects == 4
    assert list(temp.iterdir()) == []


@pytest.mark.parametrize("seed", range(8))
async def test_a_launch_that_is_cancelled_anywhere_can_be_destroyed(lab, seed):
    plan = await lab.plan(lab.set("sleep", "600", replicas=3))
    task = asyncio.ensure_future(drain(lab.backend, plan))
    await asyncio.sleep(random.Random(seed).random() * 0.25)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    view = (await lab.backend.snapshot()).runs.get(plan.runs[0].uid)
    if view is not None:
        items = [item async for item in lab.backend.destroy(view, grace_seconds=1.0)]
        assert items[-1].left == ()
    assert not lab.processes()
    assert (await lab.backend.leaks()).leaks == ()
    assert list((lab.state / "runs").iterdir()) == [] if lab.state.exists() else True


async def test_check_names_what_a_plan_lacks(lab, monkeypatch):
    plan = await lab.plan(
        lab.set(name="a", command=("no-such-command",), slots=0),
        lab.set(name="b", command=("l2r-runtime", "worker"), slots=0),
        lab.set(name="c", command=("./not-executable",), slots=0, restart=RestartPolicy.NEVER),
    )
    plan = LaunchPlan((replace(plan.runs[0], spec=replace(plan.runs[0].spec, image="me/racing:1")),))
    findings = {finding.subject: finding for finding in await lab.backend.check(plan)}
    assert findings["no-such-command"].severity == findings["./not-executable"].severity == "refusal"
    assert findings["l2r-runtime"].severity == "ok"
    assert Path(findings["l2r-runtime"].sentence.split()[-1]).name == "l2r-runtime"
    assert "is not used" in findings["image"].sentence
    monkeypatch.setattr("l2rtui.backends.local.preflight._RUNTIME_NEEDS", ("torch_that_is_not_there",))
    findings = {finding.subject: finding for finding in await lab.backend.check(plan)}
    assert findings["l2r-runtime"].severity == "refusal"
    assert findings["l2r-runtime"].hint == install_hint("runtime")


@pytest.mark.parametrize(
    ("train", "weight", "sentence"),
    [
        ("{}", "ok", "the training settings are understood"),
        ('{"learnrate":1}', "refusal", "train of run: there is no setting 'learnrate'"),
        ('{"num_envs":0}', "refusal", "num_envs"),
        (
            '{"environment":"racin"}',
            "ok",
            "are read when there is such an environment",
        ),  # refused without the runtime
        (
            '{"environment":"no_such_module:Task-v0","algorithm":"ppo"}',
            "refusal",
            "No module named 'no_such_module'",
        ),
        ('{"environment":"CartPole-v1","algorithm":"td3"}', "refusal", "takes choices and TD3 needs numbers"),
    ],
)
async def test_check_lets_the_runtime_judge_the_training_settings(lab, train, weight, sentence):
    plan = await lab.plan(lab.set(command=("l2r-runtime", "worker"), slots=0))
    run = plan.runs[0]
    plan = LaunchPlan((replace(run, spec=replace(run.spec, train=train)),))

    finding = {checked.subject: checked for checked in await lab.backend.check(plan)}["train"]

    assert finding.severity == weight
    assert sentence in finding.sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "#!/bin/sh\r\ntrue\n",
            "its interpreter '/bin/sh\\r' is not there, as its lines end like those of Windows",
        ),
        ("#! /no/such/python -u\n", "its interpreter '/no/such/python' is not there"),
        ("true\n", "it has no first line that names an interpreter, such as #!/bin/sh"),
        ("#!/bin/sh -e\ntrue\n", ""),
    ],
)
async def test_a_script_that_the_kernel_cannot_start_is_refused_with_the_reason(lab, tmp_path, text, sentence):
    script = tmp_path / "run.sh"
    script.write_text(text, newline="")
    script.chmod(0o755)
    plan = await lab.plan(lab.set(command=(str(script),), slots=0))
    finding = {checked.subject: checked for checked in await lab.backend.check(plan)}[str(script)]
    assert (finding.severity == "refusal") is bool(sentence)
    assert sentence in finding.sentence


@pytest.mark.parametrize("word", ["python train.py", "cd", "FOO=1", "~/run.sh"])
async def test_what_only_a_shell_reads_is_refused_with_a_list_of_words(lab, word):
    plan = await lab.plan(lab.set(command=(word,), slots=0))
    finding = {checked.subject: checked for checked in await lab.backend.check(plan)}[word]
    assert finding.severity == "refusal"
    assert finding.hint.startswith("No shell reads a command: write its words, [python, train.py]")


async def test_an_environment_that_takes_long_is_a_warning_that_names_the_run(lab, monkeypatch):
    monkeypatch.setattr("l2rtui.backends.local.preflight._CONFIG_SECONDS", 0.01)
    plan = await lab.plan(lab.set(command=("l2r-runtime", "worker"), slots=0))
    finding = {checked.subject: checked for checked in await lab.backend.check(plan)}["train"]
    assert finding.severity == "warning"
    assert "train of run: its environment has not made a step within 0.01 s" in finding.sentence


async def test_a_script_that_is_not_there_is_a_warning(lab, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    async def warnings(*command: str) -> list[str]:
        findings = await lab.backend.check(await lab.plan(lab.set(command=command, slots=0)))
        return [item.sentence for item in findings if "its command runs" in item.sentence]

    where = f"which is not in {tmp_path}, where it starts"
    assert await warnings("python", "trian.py", "--lr", "1") == [f"its command runs trian.py, {where}"]
    assert await warnings("l2r-runtime", "elastic", "--", "python3", "x.py") == [f"its command runs x.py, {where}"]
    for command in (("python", "train.py"), ("python", "-m", "x"), ("sh", "-c", "x.sh"), ("echo", "x.py")):
        assert await warnings(*command) == []


async def test_a_folder_that_the_learner_would_read_in_vain_is_a_warning(lab, tmp_path):
    plan = await lab.plan(lab.set(command=("l2r-runtime", "learner"), role=Role.LEARNER, slots=0))
    run = plan.runs[0]

    async def warnings(**train: str) -> list[str]:
        spec = replace(run.spec, train=json.dumps({"environment": "CartPole-v1", "algorithm": "ppo", **train}))
        findings = await lab.backend.check(LaunchPlan((replace(run, spec=spec),)))
        return [f"{item.sentence} {item.hint}" for item in findings if "does not exist" in item.sentence]

    (warning,) = await warnings(resume_from="/no/such/folder")
    assert warning.startswith("train.resume_from of run: /no/such/folder does not exist on this machine")
    (warning,) = await warnings(init_policy="~/no-such-folder")
    assert "nothing replaces ~ here" in warning
    assert await warnings(resume_from=str(tmp_path)) == []
    assert await warnings(resume_from="s3://bucket/run") == []


async def test_an_environment_does_not_read_what_is_piped_to_the_command(lab, monkeypatch, tmp_path):
    (tmp_path / "reads.py").write_text("import sys\nraise ValueError(f'got {sys.stdin.read()!r}')\n")
    (tmp_path / "typed").write_text("next line of a loop")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plan = await lab.plan(lab.set(command=("l2r-runtime", "worker"), slots=0))
    run = plan.runs[0]
    plan = LaunchPlan(
        (replace(run, spec=replace(run.spec, train='{"environment":"reads:A-v0","algorithm":"ppo"}')),)
    )
    saved = os.dup(0)
    try:
        with (tmp_path / "typed").open() as typed:
            os.dup2(typed.fileno(), 0)
        finding = {checked.subject: checked for checked in await lab.backend.check(plan)}["train"]
    finally:
        os.dup2(saved, 0)
        os.close(saved)
    assert "got ''" in finding.sentence


async def test_the_doctor_looks_at_everything(lab, monkeypatch):
    await lab.launch(lab.set("sleep", "600"))
    lab.kill_supervisor()
    findings = {finding.subject: finding for finding in await lab.backend.doctor()}
    assert set(findings) == {"node", "state", "disk", "runtime", "gpu", "run"}
    assert findings["run"].sentence.startswith("its supervisor has ended")
    assert findings["gpu"].severity == "ok"


async def test_names_that_are_no_names_never_become_folders(lab):
    with pytest.raises(RefusedError, match=r"'\.\./x' is not a name"):
        await drain(lab.backend, await lab.plan(lab.set("sleep", "600"), name="../x"))
    assert not list((lab.state / "runs").iterdir())


async def test_the_next_launch_sweeps_what_a_broken_one_left(lab, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    client.make_root(lab.root)
    for path in (lab.state / "runs" / ".new-1", lab.state / "runs" / ".gone-2", tmp_path / "l2r-3"):
        path.mkdir()
        os.utime(path, (0, 0))
    (tmp_path / "l2r-3" / "run").symlink_to(lab.state / "runs" / "gone")
    (tmp_path / "l2r-of-another-program").mkdir()
    monkeypatch.setattr("l2rtui.backends.local.preflight._STALE_SECONDS", 0.0)
    assert {leak.kind for leak in (await lab.backend.leaks()).leaks} == {"Folder", "Sockets"}
    await lab.launch(lab.set("sleep", "600"))
    assert (await lab.backend.leaks()).leaks == ()
    assert (tmp_path / "l2r-of-another-program").exists()


async def test_a_working_folder_that_is_gone_stops_nobody(lab, monkeypatch, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    plan = await lab.plan(lab.set("sleep", "600"))
    assert not [finding for finding in await lab.backend.check(plan) if finding.severity == "refusal"]
    assert [done.error for done in await drain(lab.backend, plan)] == ["", ""]
    await lab.pod(lambda pod: pod.ready)


async def test_a_state_that_is_no_folder_is_a_problem_and_not_an_end(lab):
    lab.state.mkdir()
    (lab.state / "runs").touch()
    snapshot = await lab.backend.snapshot()
    assert any("cannot be read: Not a directory" in problem for problem in snapshot.problems)
    assert snapshot.nodes


async def test_somebody_who_keeps_the_lock_is_named(lab, monkeypatch):
    monkeypatch.setattr(client, "_LOCK_SECONDS", 0.1)
    async with client.lock_state(lab.root):
        with pytest.raises(BackendError, match=r"has held .*/lock for 0.1 s"):
            await drain(lab.another(), LaunchPlan(()))


async def test_what_only_containers_have_is_refused_or_said(lab):
    imported = replace(lab.set("sleep", "600"), template="{}")
    (refused,) = [
        finding
        for finding in await lab.backend.check(await lab.plan(imported))
        if finding.severity is Severity.REFUSAL
    ]
    assert refused.sentence == "it is a pod template in Kubernetes' own words, and the local backend runs commands"
    mounting = replace(lab.set("sleep", "600"), pod=PodSettings(mounts=(Mount("/data", claim="c"),)))
    sentences = [
        finding.sentence
        for finding in await lab.backend.check(await lab.plan(mounting))
        if finding.severity is Severity.WARNING
    ]
    assert "the local backend mounts nothing: /data stays as it is" in sentences


async def test_the_folder_in_the_environment_is_the_one_a_process_starts_in(lab, monkeypatch, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    shown = lab.set(command=(sys.executable, "-c", "import os; print(os.environ['PWD'], 'OLDPWD' in os.environ)"))
    monkeypatch.chdir(tmp_path / "real")
    monkeypatch.setenv("OLDPWD", "/")
    for number, shell in enumerate(("/", str(tmp_path / "link"))):
        monkeypatch.setenv("PWD", shell)
        await lab.launch(replace(shown, restart=RestartPolicy.NEVER), name=f"run{number}")
    await lab.until_line(f"{tmp_path / 'real'} False", "run0-w-0")
    await lab.until_line(f"{tmp_path / 'link'} False", "run1-w-0")
