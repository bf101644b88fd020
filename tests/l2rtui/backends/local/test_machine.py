"""This machine as a node: GPUs by NVML, other people's processes, cores and limits."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import version
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

from l2rtui.backends.common import node_info
from l2rtui.backends.common.nvml import GpuProcess, GpuReader, GpuReport, cpu_device, shares_of
from l2rtui.backends.local import preflight
from l2rtui.backends.local.backend import LocalBackend
from l2rtui.config import Settings
from l2rtui.domain.ledger import DeviceUsage, SlotState
from l2rtui.domain.node import CPU, GpuShare, GpuUse
from runtime.base import cgroups
from runtime.base.contract import ENV_POD_ID
from tests.fakes.nvml import GIB, FakeGpu, FakeNvml

DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH = 9, 12, 18


@pytest.mark.process
async def test_gpus_are_devices_with_slots_and_strangers_hold_some(tmp_path):
    with subprocess.Popen(["sleep", "600"]) as foreign_pod:
        strangers = FakeGpu(
            "NVIDIA RTX 3090", "GPU-0", pids=[foreign_pod.pid, 2**22 + 1], graphics_pids=[foreign_pod.pid]
        )
        free = FakeGpu("NVIDIA RTX 3090", "GPU-1", unsupported=["nvmlDeviceGetGraphicsRunningProcesses"])
        nvml = FakeNvml(strangers, free)
        backend = LocalBackend(Settings(slots_per_gpu=3), state=tmp_path, nvml=nvml)
        snapshot = await backend.snapshot()
        (node,) = snapshot.nodes.values()
        assert [(gpu.uuid, gpu.model, gpu.slots, gpu.is_cpu) for gpu in node.gpus] == [
            ("GPU-0", "NVIDIA RTX 3090", 3, False),
            ("GPU-1", "NVIDIA RTX 3090", 3, False),
        ]
        (pod,) = snapshot.pods.values()
        assert (pod.name, pod.devices, pod.run) == (f"sleep-{foreign_pod.pid}", (DeviceUsage(0),), "")
        assert pod.owner == psutil.Process().username()
        assert snapshot.ledger.count(SlotState.BUSY) == 1
        await backend.close()
        assert nvml.opened == 0
        foreign_pod.kill()


async def test_our_own_processes_on_a_gpu_are_no_strangers(lab):
    await lab.launch(lab.set("escape", "say", "up", "sleep", "600"))
    await lab.until_line("up")
    nvml = FakeNvml(FakeGpu(pids=[process.pid for process in lab.processes()]))
    backend = LocalBackend(lab.settings, state=lab.state, nvml=nvml)
    assert [pod.name for pod in (await backend.snapshot()).pods.values()] == ["run-w-0"]
    await backend.close()


@pytest.mark.parametrize("error", [LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED])
async def test_without_a_driver_the_cpu_carries_the_slots(tmp_path, error):
    backend = LocalBackend(Settings(), state=tmp_path, nvml=FakeNvml(error=error))
    snapshot = await backend.snapshot()
    (node,) = snapshot.nodes.values()
    assert [gpu.label for gpu in node.gpus] == ["cpu"]
    assert snapshot.problems == ()
    await backend.close()


async def test_a_broken_driver_is_a_problem_and_no_reason_to_stop(tmp_path):
    nvml = FakeNvml(FakeGpu(), error=LIB_RM_VERSION_MISMATCH)
    backend = LocalBackend(Settings(), state=tmp_path, nvml=nvml)
    snapshot = await backend.snapshot()
    assert snapshot.problems == ("the GPUs cannot be read: NVML says RM has detected an NVML/RM version mismatch.",)
    # Its CPU can be used, together with GPUs that exist but cannot be read.
    assert {slot.gpu for slot in snapshot.ledger.slots} == {CPU}
    findings = {finding.subject: finding for finding in await backend.doctor()}
    assert findings["gpu"].severity == "warning"
    await backend.close()


def test_a_driver_that_breaks_later_is_opened_again():
    nvml = FakeNvml(FakeGpu())
    reader = GpuReader(4, nvml)
    assert len(reader.read("n").gpus) == 1
    nvml.error = LIB_RM_VERSION_MISMATCH
    assert "version mismatch" in reader.read("n").problem
    nvml.error = None
    assert reader.read("n").problem == ""
    assert nvml.opened == 1
    reader.close()


async def test_the_node_shows_what_its_gpus_do(tmp_path):
    nvml = FakeNvml(
        FakeGpu(percent=64, used_bytes=30 * GIB, watts=402.7, celsius=66),
        FakeGpu(unsupported=["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"]),
    )
    backend = LocalBackend(Settings(), state=tmp_path, nvml=nvml)
    (node,) = (await backend.snapshot()).nodes.values()
    assert node.gpu_use == (
        GpuUse(0, 64.0, 30 * GIB, 80 * GIB, 402.7, 66.0),
        GpuUse(1, None, 2 * GIB, 80 * GIB, None, 54.0),
    )
    await backend.close()


@pytest.mark.parametrize(
    ("answer", "severity", "sentence"),
    [
        (("2.13.0+cu130", "13.0", True), "ok", "torch 2.13.0+cu130 computes on GPUs"),
        (("2.13.0+cu130", "13.0", False), "warning", "torch 2.13.0+cu130 finds no GPU"),
        (("2.13.0+cpu", "", False), "warning", "torch 2.13.0+cpu is built without CUDA"),
    ],
)
def test_torch_that_cannot_use_the_gpus_is_named(answer, severity, sentence):
    finding = preflight.torch_finding(answer)
    assert finding.severity == severity
    assert finding.sentence.startswith(sentence)
    assert bool(finding.hint) == (severity == "warning")
    assert preflight.torch_finding(None) is None


@pytest.mark.process
async def test_the_doctor_asks_torch_in_a_process_of_its_own(tmp_path):
    nvml = FakeNvml(FakeGpu(), FakeGpu(), FakeGpu("NVIDIA RTX 3090"))
    backend = LocalBackend(Settings(), state=tmp_path, nvml=nvml)
    findings = {finding.subject: finding for finding in await backend.doctor()}
    await backend.close()
    assert findings["gpu"].sentence == ("3 GPUs: 2 x NVIDIA H100 80GB HBM3, 1 x NVIDIA RTX 3090, driver 580.95.05")
    assert version("torch").partition("+")[0] in findings["torch"].sentence


def test_a_missing_driver_is_not_searched_for_at_every_reading():
    nvml = FakeNvml(FakeGpu(), error=LIBRARY_NOT_FOUND)
    reader = GpuReader(4, nvml)
    assert [reader.read("n").gpus for _ in range(3)] == [(), (), ()]
    assert nvml.calls == ["nvmlInit"]


def test_a_card_that_fell_off_the_bus_takes_no_other_with_it():
    nvml = FakeNvml(FakeGpu(is_lost=True), FakeGpu(pids=[7]))
    reader = GpuReader(4, nvml)
    report = reader.read("n")
    assert [gpu.index for gpu in report.gpus] == [use.gpu for use in report.uses] == [1]
    assert [(process.pid, process.claim.gpu) for process in report.processes] == [(7, 1)]
    assert report.problem == "GPU0 cannot be read: NVML says GPU is lost"
    nvml.gpus[0].is_lost = False
    assert [gpu.index for gpu in reader.read("n").gpus] == [0, 1]
    assert nvml.opened == 1
    reader.close()


class CpuTimes(NamedTuple):
    """CPU times of all cores as reported by Linux; guest time is included in user."""

    user: float
    idle: float
    iowait: float
    guest: float


def test_load_is_the_load_average_at_the_first_look_and_then_what_was_measured(monkeypatch):
    clock, busy = [100.0], [10.0]
    monkeypatch.setattr("psutil.cpu_times", lambda: CpuTimes(busy[0] + 7.0, 1e6 + clock[0], 50.0 + clock[0], 7.0))
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("psutil.cpu_count", lambda: 4)
    monkeypatch.setattr("os.getloadavg", lambda: (6.8, 1.0, 1.0))
    load = node_info.CpuLoad(has_quota=False)
    assert load.read() == 4.0, "a load above all cores is all cores"
    clock[0], busy[0] = 102.0, 16.0
    assert load.read() == 3.0
    clock[0], busy[0] = 103.0, 15.99
    assert load.read() == 0.0, "the counter of idle time stepped back by a tick"


def test_in_a_container_load_and_memory_are_its_own(monkeypatch, tmp_path):
    files = {
        "cpu.max": "200000 100000",
        "cpu.stat": "usage_usec 7500000\nuser_usec 1",
        "memory.max": str(1 << 30),
        "memory.current": str(700 << 20),
        "memory.stat": f"anon 5\ninactive_file {200 << 20}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(cgroups, "own_cgroups", lambda _=None: iter([tmp_path]))
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(node_info, "own_cgroups", lambda: [tmp_path])
    load = node_info.CpuLoad()
    clock[0] = 102.0
    (tmp_path / "cpu.stat").write_text("usage_usec 10500000\n")
    assert load.read() == 1.5
    assert node_info.memory_used() == 500 << 20
    (tmp_path / "memory.max").write_text("max\n")
    machine = psutil.virtual_memory()
    assert node_info.memory_used() == pytest.approx(machine.total - machine.available, rel=0.2)


def test_without_the_module_there_is_a_sentence(monkeypatch):
    monkeypatch.setattr("importlib.import_module", lambda name: (_ for _ in ()).throw(ImportError(f"no {name}")))
    assert GpuReader(4).read("n").problem == "the GPUs cannot be read: no pynvml"


@pytest.mark.parametrize(("cores", "slots"), [(0.2, 1), (2, 8), (2.5, 10), (64, 64)])
def test_slots_of_the_cpu_follow_the_cores(cores, slots):
    assert cpu_device("n", cores, 4, 64).slots == slots


@pytest.mark.parametrize(
    ("host", "name"), [("phortx1.lab.example", "phortx1"), ("My_Mac.local", "my-mac"), ("---", "node")]
)
def test_the_node_has_a_dns_name(monkeypatch, host, name):
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=host))
    assert node_info.node_name.__wrapped__() == name


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({}, 8.0, None),
        ({"a/b/cpu.max": "150000 100000", "memory.max": "max"}, 1.5, None),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000", "a/memory.max": "1073741824"}, 0.5, 1 << 30),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0, None),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8.0, None),
    ],
)
def test_limits_of_containers_count(monkeypatch, tmp_path, files, cores, memory):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    monkeypatch.setattr(cgroups, "OWN", own)
    monkeypatch.setattr(cgroups, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert cgroups.usable_cores() == cores
    assert node_info.memory_limit() == memory


def test_processes_that_did_not_compute_take_no_share_beside_those_that_did():
    gpu = FakeGpu(pids=[5, 6], pid_bytes=[(5, GIB)], pid_percents=[(10, 5, 80), (20, 5, 40)])
    nvml = FakeNvml(gpu)
    reader = GpuReader(4, nvml)

    def figures():
        return [(process.pid, process.percent, process.memory_bytes) for process in reader.read("n").processes]

    assert figures() == [(5, 40.0, GIB), (6, 0.0, None)]
    assert figures() == [(5, None, GIB), (6, None, None)], (
        "a busy GPU without a newer sample says nothing of either"
    )
    gpu.percent = 0
    assert figures() == [(5, 0.0, GIB), (6, 0.0, None)]
    gpu.pid_percents.append((30, 6, 12))
    assert figures() == [(5, 0.0, GIB), (6, 12.0, None)]
    gpu.percent, gpu.unsupported = 50, ["nvmlDeviceGetProcessUtilization"]
    assert figures() == [(5, None, GIB), (6, None, None)]
    reader.close()


def test_the_part_of_a_pod_is_the_sum_of_its_processes_and_unknown_where_one_is():
    processes = (
        GpuProcess(1, DeviceUsage(0), 30.0, GIB),
        GpuProcess(2, DeviceUsage(0), 80.0, GIB),
        GpuProcess(3, DeviceUsage(0), None, None),
        GpuProcess(4, DeviceUsage(0), 5.0, None),
        GpuProcess(1, DeviceUsage(1), 2.0, 3),
        GpuProcess(9, DeviceUsage(1), 2.0, 3),
    )
    report = GpuReport(processes=processes, uses=(GpuUse(0, 99.0), GpuUse(1, 9.0)))
    pods = {1: "a", 2: "a", 3: "b", 4: "b"}
    first, second = shares_of(report, lambda process: pods.get(process.pid, ""))
    assert first.shares == (GpuShare("a", 100.0, 2 * GIB), GpuShare("b", None, None))
    assert second.shares == (GpuShare("a", 2.0, 3),)


@pytest.mark.process
async def test_the_share_of_a_run_and_of_a_stranger_stand_beside_each_other(tmp_path):
    tags = {"L2R_LOCAL_RUN": str(tmp_path / "runs" / "r"), ENV_POD_ID: "pod-1"}
    own = subprocess.Popen(["sleep", "600"], env={**os.environ, **tags})
    with own, subprocess.Popen(["sleep", "600"]) as stranger:
        pids = [own.pid, stranger.pid]
        samples = [(1, own.pid, 30), (1, stranger.pid, 20)]
        gpu = FakeGpu(pids=pids, pid_bytes=[(own.pid, GIB)], pid_percents=samples)
        backend = LocalBackend(Settings(), state=tmp_path, nvml=FakeNvml(gpu))
        snapshot = await backend.snapshot()
        (foreign,) = snapshot.pods.values()
        (use,) = next(iter(snapshot.nodes.values())).gpu_use
        assert use.share("pod-1") == GpuShare("pod-1", 30.0, GIB)
        assert snapshot.gpu_shares(foreign) == {0: GpuShare(foreign.uid, 20.0, None)}
        await backend.close()
        for process in (own, stranger):
            process.kill()
