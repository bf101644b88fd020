"""Kinds without a learner on this machine: addresses, programs, a volume that stays, and the end of a run."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from l2rtui.config import Settings
from l2rtui.domain.containers import Mount, PodSettings
from l2rtui.domain.preflight import refusals
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Kind, Program, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.services import launcher
from tests.l2rtui.backends.local.conftest import WORKER

TELL = (sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))")


async def start(lab, *sets, kind=Kind.PARAMETER_SERVER, name="run", train="{}"):
    spec = RunSpec(kind, name, name, sets, train=train)
    prepared = await launcher.prepare_runs(lab.backend, [spec])
    assert refusals(prepared.findings) == ()
    done = [done async for done in lab.backend.launch(prepared.plan)]
    assert [step_done.error for step_done in done] == [""] * len(done)


def stable(name, role, command, **more):
    wishes = {"slots": 0, "restart": RestartPolicy.ON_FAILURE, "stable": True, "port": 2222, "grace_seconds": 2.0}
    return SetSpec(name, role, tuple(command), **{**wishes, **more})


async def told(lab, name):
    """The environment printed by a process of TELL."""
    await lab.pod(lambda pod: pod.phase is Phase.SUCCEEDED, name)
    return json.loads((await lab.lines(name=name))[0])


async def test_servers_end_with_their_workers_and_all_know_each_other(lab):
    await start(
        lab,
        stable("ps", Role.PS, (*WORKER, "sleep", "600"), replicas=2),
        stable("worker", Role.WORKER, TELL, replicas=2),
        train='{"learning_rate": 0.1}',
    )

    environment = await told(lab, "run-worker-1")
    peers = json.loads(environment["L2R_PEERS"])
    assert {name: len(ends) for name, ends in peers.items()} == {"ps": 2, "worker": 2}
    sockets = Path(peers["ps"][0].removeprefix("ipc://")).parent
    assert peers["ps"] == [f"ipc://{sockets}/ps-{index}" for index in range(2)]
    assert [(sockets / f"ps-{index}").stat().st_mode & 0o777 for index in range(2)] == [0o700] * 2
    cluster = json.loads(environment["TF_CONFIG"])
    assert cluster["task"] == {"type": "worker", "index": 1}
    ports = [end.rpartition(":")[2] for side in ("ps", "worker") for end in cluster["cluster"][side]]
    assert len(set(ports)) == 4
    plain = ("JOB_NAME", "TASK_INDEX", "LEARNING_RATE", "L2R_POD_IP", "POD_NAME")
    assert [environment[name] for name in plain] == ["worker", "1", "0.1", "127.0.0.1", "run-worker-1"]
    for index in range(2):
        await lab.pod(lambda pod: pod.phase is Phase.SUCCEEDED and not pod.restarts, f"run-ps-{index}")


async def test_a_rendezvous_has_a_port_that_no_other_run_gets(lab):
    meeting = stable("rdzv", Role.RENDEZVOUS, (*WORKER, "sleep", "600"), port=29400)
    nodes = SetSpec("nodes", Role.WORKER, TELL, slots=0, restart=RestartPolicy.NEVER, bounds=(1, 4))
    ends = set()
    for name in ("one", "two"):
        await start(lab, meeting, nodes, kind=Kind.ELASTIC, name=name)
        (end,) = json.loads((await told(lab, f"{name}-nodes-0"))["L2R_PEERS"])["rdzv"]
        ends.add(end)
        host, _, port = end.removeprefix("tcp://").partition(":")
        with socket.socket() as probe:
            probe.bind((host, int(port)))  # the address is free
    assert len(ends) == 2


async def test_a_program_travels_with_its_run(lab, tmp_path):
    program = Program("hello.py", "import sys; print('hello', sys.argv[1])\n")
    set_spec = SetSpec("job", Role.JOB, ("python3", "{program}", "you"), slots=0, restart=RestartPolicy.NEVER)
    await start(lab, replace(set_spec, program=program), kind=Kind.JOB)

    await lab.until_line("hello you", "run-job-0")
    await lab.destroy()
    assert not lab.folder().path.exists()


@pytest.mark.parametrize("where", ["claim", "host_path"])
async def test_what_is_mounted_at_l2r_outlives_the_run(lab, tmp_path, where):
    write = "import os, sys; open(os.path.join(os.environ['L2R_DIR'], 'mark'), 'a').write('x')"
    source = {"claim": "shop"} if where == "claim" else {"host_path": str(tmp_path / "there")}
    pod = PodSettings(mounts=(Mount("/l2r", **source), Mount("/data")))
    set_spec = SetSpec(
        "job", Role.JOB, (sys.executable, "-c", write), slots=0, restart=RestartPolicy.NEVER, pod=pod
    )
    for _ in range(2):
        await start(lab, set_spec, kind=Kind.JOB)
        await lab.pod(lambda pod_view: pod_view.phase is Phase.SUCCEEDED, "run-job-0")
        await lab.destroy(purge=True)
    folder = lab.state / "volumes" / "shop" if where == "claim" else tmp_path / "there"
    assert (folder / "mark").read_text() == "xx"


async def test_long_paths_get_short_sockets_for_every_replica(tmp_path, lab):
    from l2rtui.backends.local.backend import LocalBackend

    lab.state = tmp_path / ("long-" * 16) / "local"
    lab.backend = LocalBackend(Settings(), state=lab.state)
    await start(lab, stable("ps", Role.PS, TELL), stable("worker", Role.WORKER, TELL, replicas=11))

    ends = json.loads((await told(lab, "run-worker-0"))["L2R_PEERS"])["worker"]
    assert all(len(f"{end.removeprefix('ipc://')}/model.sock") <= 103 for end in ends)
    assert (await lab.destroy()).left == ()
