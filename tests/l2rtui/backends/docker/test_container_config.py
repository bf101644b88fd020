"""Bodies of containers: compared as a whole with a reviewed file, and rule by rule.

After an intended change: ``L2R_WRITE_GOLDEN=1 pytest tests/l2rtui/backends/docker``, and review the diff.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from l2rtui.backends.common.nvml import GpuProcess, GpuReport
from l2rtui.backends.docker import container_config, engine_info, views
from l2rtui.backends.docker.backend import DockerBackend
from l2rtui.config import Settings
from l2rtui.domain.containers import Mount, PodSettings, Security
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import DeviceUsage, build_ledger
from l2rtui.domain.node import Gpu, GpuUse, Node
from l2rtui.domain.placement import place
from l2rtui.domain.plan import RunPlan, plan_launch
from l2rtui.domain.preflight import Severity
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import PROGRAM_WORD, Kind, Program, Resources, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.errors import BackendError
from runtime.base.docker_client import DockerEndpoint
from runtime.base.limits import Limits
from tests.fakes.docker_engine import FakeDockerEngine
from tests.fakes.nvml import GIB, FakeGpu, FakeNvml
from tests.l2rtui.backends.docker.conftest import launched, plan_of, run_spec

GOLDEN = Path(__file__).parent / "golden" / "containers.json"
NODES = {"box": Node("box", (Gpu("box", 0, "GPU-a", slots=4),), cpu_cores=8)}
MOUNTS = (
    Mount("/l2r", claim="results"),
    Mount("/data", host_path="/srv/data", read_only=True),
    Mount("/fast", in_memory=True, size_bytes=1 << 20),
    Mount("/scratch"),
)


def planned(spec: RunSpec) -> RunPlan:
    placement = place([spec], build_ledger(NODES.values(), ()))
    (run,) = plan_launch([spec], placement, NODES, owner="me", uids=["uid-1"]).runs
    return run


def full_spec() -> RunSpec:
    return RunSpec(
        Kind.LEARNER_WORKERS,
        "racing",
        "racing",
        (
            SetSpec(
                "learner", Role.LEARNER, ("l2r-runtime", "learner"), grace_seconds=2.5,
                resources=Resources(cpu_cores=1.5, memory_bytes=1 << 30),
                pod=PodSettings(mounts=MOUNTS, shm_bytes=1 << 27),
            ),
            SetSpec(
                "w", Role.WORKER, ("python", PROGRAM_WORD), replicas=1, restart=RestartPolicy.ON_FAILURE,
                program=Program("act.py", text="print()"), env=(("COLOUR", "red"),),
            ),
        ),
        image="registry.example/node:1",
    )  # fmt: skip


def test_the_bodies_of_a_run_are_those_of_the_file():
    run = planned(full_spec())
    bodies = {pod.name: container_config.container_body(run, pod, "incarnation") for pod in run.pods}
    for body in bodies.values():  # the plan is the domain's own JSON and has separate tests
        body["Labels"]["docker.l2rtui.io/pod"] = "…"
    text = json.dumps(bodies, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get("L2R_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_the_first_files_of_a_container():
    run = planned(full_spec())
    learner, worker = run.pods
    packed = container_config.initial_files(worker, b"secret", ["/data/new"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = {member.name: (oct(member.mode), member.uid) for member in archive.getmembers()}
        assert archive.extractfile("run/l2r/program/act.py").read() == b"print()"
    assert members == {
        "run/l2r": ("0o755", 1000), "run/l2r/token": ("0o400", 1000), "run/l2r/program": ("0o755", 1000),
        "run/l2r/program/act.py": ("0o644", 1000), "l2r": ("0o700", 1000), "data/new": ("0o770", 1000),
    }  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(container_config.initial_files(learner, b"secret"))) as archive:
        assert "l2r" not in archive.getnames()  # the spec has a mount there
    assert container_config.volumes_of(learner) == ("/l2r", "/scratch")


@pytest.mark.parametrize(
    ("security", "expected"),
    [
        (Security.RESTRICTED, ("1000", ["ALL"], None)),
        (Security.PRIVILEGED, (None, None, True)),
    ],
)
def test_rights(security, expected):
    spec = full_spec()
    sets = tuple(replace(row, pod=replace(row.pod, security=security)) for row in spec.sets)
    run = planned(replace(spec, sets=sets))
    body = container_config.container_body(run, run.pods[0], "u")
    host = body["HostConfig"]
    assert (body.get("User"), host.get("CapDrop"), host.get("Privileged")) == expected


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"pod": PodSettings(mounts=(Mount("/x", claim="c", sub_path="y"),))}, "takes a part of a volume"),
        ({"pod": PodSettings(secrets=("s",))}, "takes variables from Kubernetes secrets"),
        ({"pod": PodSettings(binding=Binding.DRA)}, "is bound by dra"),
        ({"program": Program("p", url="https://x/p")}, "fetched from an address"),
        ({"template": "{}"}, "a pod template"),
    ],
)
def test_fields_that_only_kubernetes_implements_are_named(change, sentence):
    spec = run_spec()
    spec = replace(spec, sets=(replace(spec.sets[0], **change), *spec.sets[1:]))
    assert [sentence in problem for problem in container_config.unsupported(spec)] == [True]


async def test_the_preflight_of_images_and_gpus(backend, fake: FakeDockerEngine):
    plan = await plan_of(backend, run_spec())
    (finding,) = await backend.check(plan)
    assert (finding.severity, finding.subject) == (Severity.OK, "img:1")
    plan = await plan_of(backend, run_spec(image="none:1"))
    (finding,) = await backend.check(plan)
    assert (finding.severity, finding.hint) == (Severity.REFUSAL, "Run `docker pull none:1`.")
    plan = await plan_of(backend, run_spec(image=""))
    assert "names no image" in (await backend.check(plan))[0].sentence


async def test_limits_of_a_run_without_a_learner_are_a_warning(backend):
    limited = replace(run_spec(), limits=Limits(wall=60))
    assert [finding.severity for finding in await backend.check(await plan_of(backend, limited))] == [Severity.OK]
    rest = tuple(part for part in limited.sets if part.role is not Role.LEARNER)
    findings = await backend.check(await plan_of(backend, replace(limited, kind=Kind.JOB, sets=rest)))
    assert [finding.sentence for finding in findings if finding.severity is Severity.WARNING] == [
        "its limits end nothing here: no learner enforces them, and the Engine knows no deadline"
    ]


def test_the_findings_of_an_engine():
    info = {"ServerVersion": "27.0", "Warnings": ["No swap limit support"]}
    gpus = GpuReport((Gpu("n", 0, "GPU-a"),))
    engine, gpu, warning = engine_info.diagnose(info, "/x.sock", gpus)
    assert engine.sentence == "Docker 27.0 answers at /x.sock"
    assert (gpu.severity, "nvidia-ctk" in gpu.hint) == (Severity.REFUSAL, True)
    assert (warning.severity, warning.sentence) == (Severity.WARNING, "No swap limit support")
    assert engine_info.diagnose({"Runtimes": {"nvidia": {}}}, "", gpus)[1].severity is Severity.OK
    assert engine_info.diagnose({"CDISpecDirs": ["/etc/cdi"]}, "", gpus)[1].severity is Severity.OK
    assert engine_info.diagnose({}, "", GpuReport(problem="no driver"))[1].severity is Severity.WARNING


async def test_the_node_shows_what_its_gpus_and_its_machine_do(fake: FakeDockerEngine):
    fake.info["MemTotal"] = psutil.virtual_memory().total
    nvml = FakeNvml(FakeGpu(percent=71, used_bytes=5 * GIB, watts=250.0, celsius=58))
    backend = DockerBackend(Settings(), endpoint=DockerEndpoint(fake.url), nvml=nvml)
    (node,) = (await backend.snapshot()).nodes.values()
    assert node.gpu_use == (GpuUse(0, 71.0, 5 * GIB, 80 * GIB, 250.0, 58.0),)
    assert node.cpu_used is not None
    assert node.memory_used_bytes > 0
    assert node.created == pytest.approx(psutil.boot_time(), abs=60.0)
    await backend.close()
    assert nvml.opened == 0


def test_the_load_of_an_engine_in_a_virtual_machine_is_unknown():
    assert engine_info.EngineLoad().read({"MemTotal": 1 << 33}) == (None, None)


def test_the_node_of_an_engine():
    info = {"Name": "My_Box.example", "NCPU": 4, "MemTotal": 5}
    node = engine_info.node(info, Settings(slots_per_core=2, max_cpu_slots=6), GpuReport())
    assert (node.name, node.cpu_cores, node.memory_bytes, node.created) == ("my-box", 4.0, 5, 0.0)
    assert (node.gpus[0].is_cpu, node.gpus[0].slots) == (True, 6)
    assert engine_info.node_name({"Name": "…"}) == "docker"


@pytest.mark.parametrize(
    ("state", "phase", "reason"),
    [
        ({"Status": "created"}, Phase.PENDING, ""),
        ({"Status": "created", "Error": "no such file"}, Phase.FAILED, "StartError"),
        ({"Status": "running"}, Phase.RUNNING, ""),
        ({"Status": "restarting"}, Phase.RUNNING, "CrashLoopBackOff"),
        ({"Status": "paused"}, Phase.RUNNING, "Paused"),
        ({"Status": "exited", "ExitCode": 0}, Phase.SUCCEEDED, ""),
        ({"Status": "exited", "ExitCode": 3}, Phase.FAILED, "Error"),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, Phase.FAILED, "OOMKilled"),
        ({"Status": "strange"}, Phase.UNKNOWN, ""),
    ],
)
async def test_phases(backend, fake, state, phase, reason):
    await launched(backend)
    fake.by_name("run-w-0")["State"] |= {"FinishedAt": "2023-11-14T22:13:20.5Z", **state}
    pod = (await backend.snapshot()).select("run/w/0")[0]
    assert (pod.phase, pod.reason) == (phase, reason)
    assert pod.ended == (1_700_000_000.5 if phase.is_over else None)


def test_times_keep_their_nanoseconds():
    assert views.nanoseconds_of("2023-11-14T22:13:20.123456789Z") == 1_700_000_000_123_456_789
    assert views.nanoseconds_of("2023-11-14T22:13:20Z") == 1_700_000_000_000_000_000
    assert views.nanoseconds_of("2023-11-14T22:13:20.5+00:00") == 1_700_000_000_500_000_000


def test_a_record_that_cannot_be_read_says_how_to_remove_it():
    with pytest.raises(BackendError, match="l2rtui destroy r"):
        views.spec_of({"Name": "l2rtui-r", "Labels": {"docker.l2rtui.io/run": "r"}})


def test_limits_are_a_variable_of_the_learner_alone():
    run = planned(replace(full_spec(), limits=Limits(wall=60)))
    learner, worker = (container_config.container_body(run, pod, "x")["Env"] for pod in run.pods)
    assert 'L2R_LIMITS={"wall":60,"gpus":1}' in learner
    assert not any(variable.startswith("L2R_LIMITS") for variable in worker)


@pytest.mark.parametrize(
    ("groups", "container"),
    [
        (f"0::/system.slice/docker-{'ab' * 32}.scope\n", "ab" * 32),
        (f"12:pids:/docker/{'cd' * 32}\n0::/\n", "cd" * 32),
        ("0::/user.slice/user-1000.slice\n", ""),
    ],
)
def test_a_process_on_a_gpu_belongs_to_the_container_of_its_control_group(tmp_path, groups, container):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(groups)
    assert engine_info.container_of(GpuProcess(7, DeviceUsage(0)), tmp_path) == container
    assert engine_info.container_of(GpuProcess(8, DeviceUsage(0)), tmp_path) == ""


def test_the_nodes_of_a_learner_meet_at_the_name_of_the_first():
    learner = SetSpec("learner", Role.LEARNER, ("l2r-runtime", "learner"), replicas=2, stable=True, port=29400)
    run = planned(RunSpec(Kind.LEARNER_WORKERS, "r", "r", (learner,), image="i"))
    for number, pod in enumerate(run.pods):
        body = container_config.container_body(run, pod, "incarnation")
        variables = dict(variable.split("=", 1) for variable in body["Env"])
        assert json.loads(variables["L2R_PEERS"])["learner"][0] == "tcp://r-learner-0:29400"
        assert (variables["L2R_INDEX"], variables["L2R_POD_IP"]) == (str(number), f"r-learner-{number}")
