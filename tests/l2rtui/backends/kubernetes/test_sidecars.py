"""The simulator's container: its place in the pod, and its loop in a real shell, driven by a worker's end."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from msgspec.structs import replace

from l2rtui.backends.kubernetes.manifests import render, sidecars
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
from l2rtui.domain.containers import Mount, PodSettings
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import build_ledger
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.errors import SpecError
from l2rtui.services.spec import spec_file
from runtime.sim.launchers.sidecar import SimulatorSidecar
from runtime.sim.launchers.simulator_process import Cause
from runtime.sim.wire.errors import StartError

pytestmark = pytest.mark.process

NODES = {"n1": Node("n1", (Gpu("n1", 0, "GPU-0", slots=8),))}
SECONDS = 20.0


def train(**simulator):
    options = {"track": "harbour", "simulator": {"kind": "sidecar", **simulator}}
    return {"environment": "l2r", "environment_options": options, "num_envs": 1, "eval_episodes": 1}


def pod_of(role=Role.WORKER, version=(1, 20), restart=RestartPolicy.ON_FAILURE, settings=None, **simulator):
    """The spec of the one pod of a run."""
    item = SetSpec("w", role, ("l2r-runtime", "worker"), restart=restart, pod=settings or PodSettings())
    spec = RunSpec(Kind.LEARNER_WORKERS, "r", "r", (item,), image="node:1", env=(("A", "1"),))
    spec = replace(spec, train=spec_file.json.dumps(train(**simulator)))
    placement = place((spec,), build_ledger(NODES.values(), []))
    plan = plan_launch([spec], placement, NODES, owner="anna", uids=["1" * 32])
    manifest = render.run_objects(plan.runs[0], namespace="ml", token="s", server=ServerFacts(version))[-1]
    return manifest["spec"]["template"]["spec"]


def env(container):
    return {item["name"]: item.get("value") for item in container["env"]}


# --- in the pod -----------------------------------------------------------------------------------------------


def test_a_newer_server_has_it_as_a_sidecar_and_the_workers_command_stays_as_it_is():
    pod = pod_of(version=(1, 29))
    (worker,), (simulator,) = pod["containers"], pod["initContainers"]
    assert (simulator["name"], simulator["restartPolicy"], simulator["image"]) == ("simulator", "Always", "node:1")
    assert worker["command"] == ["l2r-runtime", "worker"]
    assert env(worker)["L2R_SIDECAR"] == sidecars.FOLDER
    assert simulator["command"][-3:] == ["l2r-runtime", "simulator", "--fast"]


@pytest.mark.parametrize(("restart", "last"), [("OnFailure", "no"), ("Never", "yes")])
def test_an_older_server_has_it_as_a_second_container_that_ends_with_the_worker(restart, last):
    pod = pod_of(restart=RestartPolicy(restart))
    worker, simulator = pod["containers"]
    assert "initContainers" not in pod
    assert "restartPolicy" not in simulator
    assert worker["command"][3:] == ["l2r-worker", sidecars.FOLDER, last, "l2r-runtime", "worker"]


def test_a_worker_that_never_ends_needs_no_shell_before_it():
    worker, _ = pod_of(restart=RestartPolicy.ALWAYS)["containers"]
    assert worker["command"] == ["l2r-runtime", "worker"]


def test_both_see_the_gpu_and_the_folders_of_the_spec_and_only_the_worker_the_key():
    mounts = (Mount("/tracks", claim="tracks", read_only=True),)
    worker, simulator = pod_of(settings=PodSettings(mounts=mounts), env={"B": "2"})["containers"]
    assert env(worker)["NVIDIA_VISIBLE_DEVICES"] == env(simulator)["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
    assert {"A": "1", "B": "2", "L2R_RUN": "r"}.items() <= env(simulator).items()
    observed = {mount["mountPath"]: mount["name"] for mount in simulator["volumeMounts"]}
    theirs = {mount["mountPath"]: mount["name"] for mount in worker["volumeMounts"]}
    assert set(observed) == {"/tracks", sidecars.FOLDER, "/tmp"}
    assert (observed["/tracks"], observed[sidecars.FOLDER]) == (theirs["/tracks"], theirs[sidecars.FOLDER])
    assert observed["/tmp"] != theirs["/tmp"]
    assert "/run/l2r" in theirs
    assert not any("hostPath" in volume for volume in pod_of()["volumes"]), "no socket of the node, ever"


def test_dra_shares_its_claim_with_the_simulator():
    worker, simulator = (
        (pod := pod_of(settings=PodSettings(binding=Binding.DRA), version=(1, 34)))["containers"][0],
        pod["initContainers"][0],
    )
    assert worker["resources"]["claims"] == simulator["resources"]["claims"] == [{"name": "gpu"}]


def test_another_image_has_its_command_user_and_share_and_stays_within_pod_security():
    command = ["/opt/sim/ArrivalSim.sh", "-Port={control}"]
    _, simulator = pod_of(
        image="sim:1", command=command, user="1234", cpu_cores=2.5, memory_bytes=2**30, folder="/opt/sim"
    )["containers"]
    assert simulator["command"][-2:] == ["/opt/sim/ArrivalSim.sh", "-Port=16000"]
    assert (simulator["image"], simulator["workingDir"]) == ("sim:1", "/opt/sim")
    assert simulator["resources"] == {
        "requests": {"cpu": "2500m", "memory": "1073741824"},
        "limits": {"memory": "1073741824"},
    }
    assert simulator["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsUser": 1234,
    }


def test_a_learner_has_none():
    assert len(pod_of(role=Role.LEARNER)["containers"]) == 1


def test_the_kubelet_makes_one_dollar_of_two():
    _, simulator = pod_of()["containers"]
    assert simulator["command"][2].replace("$$", "$") == sidecars.LOOP


@pytest.mark.parametrize(
    ("sentences", "sentence"),
    [
        ({"image": "sim:1"}, "simulator.image needs a command"),
        ({"mounts": ["/a:/b"]}, "write them under pod.mounts"),
        ({"user": "anna"}, "user is 'anna': of a sidecar it is a number other than 0"),
        ({"command": "sim"}, "command is 'sim': it must be a list of texts"),
        ({"command": ["sim", "{port}"]}, "command has a placeholder 'port'; there are {control}"),
        ({"cpu_cores": -1}, "cpu_cores is -1: it must be a number from 0"),
    ],
)
def test_mistakes_are_told_with_their_field_before_anything_is_made(tmp_path, sentences, sentence):
    path = tmp_path / "spec.yaml"
    document = {"kind": "learner-workers", "name": "r", "train": train(**sentences)}
    path.write_text(spec_file.json.dumps(document))
    with pytest.raises(SpecError, match=r"spec\.yaml:1: ") as variables:
        spec_file.load(str(path))
    assert sentence in variables.value.message


def test_several_environments_for_one_simulator_are_a_mistake(tmp_path):
    path = tmp_path / "spec.yaml"
    document = {"kind": "learner-workers", "name": "r", "train": {**train(), "num_envs": 16}}
    path.write_text(spec_file.json.dumps(document))
    with pytest.raises(SpecError, match=r"train\.num_envs must be 1"):
        spec_file.load(str(path))


# --- its loop, and the worker at the other end ----------------------------------------------------------------


@pytest.fixture
def beside(tmp_path):
    """Start the loop with a command as its simulator; stop it at the end of the test."""
    started = []

    def start(*command, grace=1):
        argv = ["/bin/sh", "-c", sidecars.LOOP, "l2r-simulator", str(tmp_path), str(grace), *command]
        process = subprocess.Popen(argv, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until(condition):
    end = time.monotonic() + SECONDS
    while not (results := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return results


def text(path):
    return path.read_text().strip() if path.exists() else ""


def test_the_first_is_taken_as_it_is_and_what_ended_is_started_anew(beside, tmp_path):
    beside("/bin/sh", "-c", "echo $$ > %s; exec sleep 600" % (tmp_path / "pid"))
    first = SimulatorSidecar(tmp_path)
    assert first.ended() is None, "it may not be there yet"
    pid = int(until(lambda: text(tmp_path / "pid")))

    os.kill(pid, signal.SIGSEGV)
    failure = until(first.ended)
    assert (failure.cause, str(failure)) == (Cause.CRASHED, "the simulator crashed with SIGSEGV")

    third = SimulatorSidecar(tmp_path)
    until(lambda: text(tmp_path / "state") == "2 running")
    assert first.ended() == failure
    assert third.ended() is None
    assert third.stop(1.0) == 0
    assert third.ended() is None, "it was asked to end, so that is no failure"
    assert text(tmp_path / "state") == "2 ended 143"


def test_a_worker_that_is_started_anew_drives_no_simulator_of_its_forerunner(beside, tmp_path):
    beside("sleep", "600")
    SimulatorSidecar(tmp_path)
    until(lambda: text(tmp_path / "state") == "1 running")
    another = SimulatorSidecar(tmp_path)
    until(lambda: text(tmp_path / "state") == "2 running")
    assert another.ended() is None


def test_one_that_ignores_sigterm_is_ended_after_its_grace(beside, tmp_path):
    ready = tmp_path / "ready"
    beside("/bin/sh", "-c", f"trap '' TERM; : > {ready}; while :; do sleep 0.1; done")
    until(ready.exists)
    assert SimulatorSidecar(tmp_path).stop(1.0) == 0
    assert text(tmp_path / "state") == "1 ended 137"


def test_it_is_signalled_by_way_of_its_container(beside, tmp_path):
    ready, observed = tmp_path / "ready", tmp_path / "seen"
    beside("/bin/sh", "-c", f"trap ': > {observed}' USR1; : > {ready}; while :; do sleep 0.1; done")
    until(ready.exists)
    SimulatorSidecar(tmp_path).signal(signal.SIGUSR1)
    until(observed.exists)


def test_one_that_does_not_start_is_told_with_its_code(beside, tmp_path):
    beside("/no/such/simulator")
    handle = SimulatorSidecar(tmp_path)
    assert str(until(handle.ended)) == "the simulator exited with code 127"


def test_a_container_that_was_started_anew_counts_on(beside, tmp_path):
    item = beside("sleep", "600")
    until(lambda: text(tmp_path / "state") == "1 running")
    handle = SimulatorSidecar(tmp_path)
    os.killpg(item.pid, signal.SIGKILL)
    item.wait()
    (tmp_path / "want").write_text("stop 2\n")  # not of a live worker: a new container ignores it
    beside("sleep", "600")
    assert str(until(handle.ended)) == "the simulator's container was restarted"
    assert SimulatorSidecar(tmp_path).ended() is None


@pytest.mark.parametrize("state", ["", "garbage\n", "1\n", "one running\n", "9" * 200, "1 ended x\n"])
def test_garbage_in_the_shared_folder_hurts_neither_side(beside, tmp_path, state):
    (tmp_path / "state").write_text(state)
    assert SimulatorSidecar(tmp_path).ended() is None
    beside("sleep", "600")
    until(lambda: text(tmp_path / "state").endswith(" running"))
    (tmp_path / "want").write_text("nonsense\n")
    until(lambda: not (tmp_path / "want").exists())
    assert SimulatorSidecar(tmp_path).stop(1.0) == 0


@pytest.mark.parametrize(
    ("last", "command", "code", "ends"),
    [("no", "exit 0", 0, True), ("no", "exit 3", 3, False), ("yes", "exit 3", 3, True)],
)
def test_the_simulator_ends_when_the_worker_has_ended_for_good(beside, tmp_path, last, command, code, ends):
    loop = beside("sleep", "600")
    until(lambda: text(tmp_path / "state") == "1 running")
    argv = ["/bin/sh", "-c", sidecars.UNTIL_DONE, "l2r-worker", str(tmp_path), last, "/bin/sh", "-c", command]
    assert subprocess.run(argv, timeout=SECONDS, check=False).returncode == code
    assert (tmp_path / "end").exists() is ends
    if ends:
        assert loop.wait(SECONDS) == 0
        assert text(tmp_path / "state") == "1 ended 143"
    else:
        assert loop.poll() is None


def test_a_worker_that_is_asked_to_stop_ends_in_its_own_way(tmp_path):
    script = "trap 'sleep 0.3; exit 0' TERM; : > ready; while :; do sleep 0.05; done"
    argv = ["/bin/sh", "-c", sidecars.UNTIL_DONE, "l2r-worker", str(tmp_path), "no", "/bin/sh", "-c", script]
    with subprocess.Popen(argv, cwd=tmp_path) as process:
        until((tmp_path / "ready").exists)
        process.terminate()
        assert process.wait(SECONDS) == 0
    assert (tmp_path / "end").exists()


def test_without_a_pod_there_is_nothing_beside_it(monkeypatch):
    monkeypatch.delenv("L2R_SIDECAR", raising=False)
    with pytest.raises(StartError, match="kind sidecar is for Kubernetes pods"):
        SimulatorSidecar()
