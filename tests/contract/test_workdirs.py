"""Own code on every backend: the processes start in it, setup runs before them, and it goes with the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from l2rtui.domain.log import LogQuery
from l2rtui.domain.preflight import refusals
from l2rtui.domain.workload import RunSpec
from l2rtui.services import launcher
from l2rtui.services.spec import spec_file
from tests.cluster.conftest import IMAGE
from tests.contract.test_backend import backend, destroyed, fake_engine, kubeconfig, launched, namespace, until

__all__ = ["backend", "fake_engine", "kubeconfig", "namespace"]  # fixtures
SPEC = """\
kind: job
name: own
workdir: .
job: {command: [sh, lib/go.sh], slots: 0, restart: OnFailure, grace_seconds: 1}
pod: {node_selector: {kubernetes.io/hostname: phortx0}}
"""
"""On a cluster the real node; no other backend has labels of nodes."""
FILES = {
    "lib/go.sh": "cat made; cat 'odd name é.txt'; echo \"path $PYTHONPATH\"; exec sleep 600\n",
    "odd name é.txt": "an odd name\n",
    "make.sh": 'echo setting up; echo "made with $PIP_TARGET" >made\n',
    "fail.sh": "echo first; echo the index does not answer; exit 5\n",
}
HAS_PROCESSES = ("local", "kubernetes", "docker")


def spec(folder: Path, *overrides: str) -> RunSpec:
    for name, text in {"own.yaml": SPEC, **FILES}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return spec_file.load(str(folder / "own.yaml"), (f"image={IMAGE}", *overrides)).spec


def runs_processes(backend, request) -> bool:
    return backend.name in HAS_PROCESSES and "fake" not in request.node.name


async def lines_of(backend, snapshot) -> list[str]:
    """Return what the run has written up to the last line of its command."""
    (pod,) = snapshot.pods_of("own")
    lines: list[str] = []
    async for line in backend.logs(pod, LogQuery(follow=True)):
        lines.append(line.text)
        if line.text.startswith("path "):
            break
    return lines


async def test_processes_start_in_own_code_after_its_setup(backend, request, tmp_path):
    one = spec(tmp_path, "setup=[[sh, make.sh]]")
    snapshot = await launched(backend, one)
    assert await backend.spec("own") == one
    if runs_processes(backend, request):
        lines = await lines_of(backend, snapshot)
        made, odd, path = lines[-3:]
        tree, packages = path.removeprefix("path ").split(":")[:2]
        assert (made, odd) == (f"made with {packages}", "an odd name")
        assert tree.removesuffix("/tree") == packages.removesuffix("/packages")
        assert "setting up" in lines
    _, receipt = await destroyed(backend, snapshot.run_named("own"))
    assert receipt.left == ()


async def test_a_setup_that_fails_is_the_reason_of_the_run_with_its_last_line(backend, request, tmp_path):
    if not runs_processes(backend, request):
        pytest.skip("nothing runs on this backend")
    prepared = await launcher.prepare_runs(backend, [spec(tmp_path, "setup=[[sh, fail.sh]]", "job.restart=Never")])
    assert not refusals(prepared.findings)
    async for done in backend.launch(prepared.plan):
        assert done.error == ""
    snapshot = await until(
        backend, lambda seen: any("the index does not answer" in pod.message for pod in seen.pods_of("own"))
    )
    (pod,) = snapshot.pods_of("own")
    assert "setup: sh fail.sh ended with exit code 5: the index does not answer" in pod.message


async def test_a_workdir_that_is_not_stored_any_more_is_refused(backend, tmp_path):
    one = spec(tmp_path)
    lost = replace(one, workdir=replace(one.workdir, sha256="0" * 64))
    prepared = await launcher.prepare_runs(backend, [lost])
    (finding,) = refusals(prepared.findings)
    assert finding.sentence == "The workdir 00000000 is not stored on this machine"
