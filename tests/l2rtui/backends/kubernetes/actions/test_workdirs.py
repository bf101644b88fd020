"""Own code on a cluster: one ConfigMap for all runs of the same files, which goes with the last of them."""

from __future__ import annotations

import base64
import json

import pytest

from l2rtui.backends.common import workdirs
from l2rtui.backends.kubernetes.actions import destroy as destroying
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.config import Settings
from l2rtui.domain.plan import StepVerb
from l2rtui.domain.preflight import refusals
from l2rtui.domain.receipt import Receipt
from l2rtui.services import launcher
from l2rtui.services.spec import spec_file
from tests.fakes.kubernetes_objects import Failure, serving
from tests.l2rtui.backends.kubernetes.actions.verbs import FullServer, Program, own_code

KINDS = {
    "learner-workers": "workers: [{name: w}]\nevaluator: {}",
    "elastic": "nodes: {command: [python, train.py]}",
    "parameter-server": "servers: {}\nworkers: {}",
    "job": "steps:\n  - {name: a, command: [python, a.py]}\n  - {name: b, nodes: {command: [python, b.py]}}",
}


@pytest.fixture
async def program(tmp_path, monkeypatch):
    monkeypatch.setattr(destroying, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(destroying, "_ROUND_SECONDS", (0.01,))
    async with serving(FullServer()) as server:
        config = {
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
            "clusters": [{"name": "c", "cluster": {"server": server.base}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        backend = KubernetesBackend(Settings(namespaces=("ml",), image="i:1"), str(path))
        (await backend.api()).server_version = (1, 34)
        yield Program(server, backend)
        await backend.close()


def shared(program):
    return [item for (kind, _, name), item in program.server.objects.items() if name.startswith("l2r-workdir.")]


async def destroyed(program, name):
    *_, receipt = [item async for item in program.backend.destroy(await program.run(name))]
    assert isinstance(receipt, Receipt)
    assert receipt.left == ()
    return receipt


async def test_runs_of_the_same_files_share_what_was_sent_once(program):
    code = own_code()
    plan = await program.plan("a", "b", workdir=code)
    (step,) = [step for step in plan.steps() if step.name.startswith("l2r-workdir.")]
    assert (step.verb, step.kind) == (StepVerb.CREATE, "ConfigMap")
    assert code.size in step.detail
    manifests = await program.backend.manifests(plan)
    assert sum(item["metadata"]["name"] == step.name for item in manifests) == 1
    await program.launch("a", "b", workdir=code)
    (item,) = shared(program)
    assert base64.b64decode(item["binaryData"]["workdir.tar.gz"]) == workdirs.packed(code)
    assert {owner["name"] for owner in item["metadata"]["ownerReferences"]} == {"l2r-a", "l2r-b"}
    later = await program.plan("c", workdir=code)
    (step,) = [step for step in later.steps() if step.name.startswith("l2r-workdir.")]
    assert step.verb is StepVerb.KEEP
    program.server.failures.append(
        Failure("PATCH", "ConfigMap", 409)
    )  # another launch adds itself at the same time
    await program.launch("c", workdir=code)
    (item,) = shared(program)
    assert {owner["name"] for owner in item["metadata"]["ownerReferences"]} == {"l2r-a", "l2r-b", "l2r-c"}


async def test_it_goes_with_its_last_run_and_is_counted(program):
    code = own_code()
    await program.launch("plain")
    await program.launch("a", workdir=code)
    await program.launch("b", workdir=code)
    plain = await destroyed(program, "plain")
    first = await destroyed(program, "a")
    assert len(shared(program)) == 1
    last = await destroyed(program, "b")
    assert shared(program) == []
    assert (first.objects, last.objects) == (plain.objects, plain.objects + 1)


async def test_a_run_that_is_watched_costs_nobody_its_bytes(program):
    await program.launch("a", workdir=own_code())
    api = await program.backend.api()
    listed = await api.list("ConfigMap", "ml", labels="app.kubernetes.io/managed-by=l2rtui")
    assert not any(item["metadata"]["name"].startswith("l2r-workdir.") for item in listed)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_processes_of_each_kind_start_in_it(program, tmp_path, kind):
    text = f'kind: {kind}\nname: own\nimage: i:1\nworkdir: .\nsetup: [[make, "it\'s"]]\n{KINDS[kind]}\n'
    (tmp_path / "own.yaml").write_text(text)
    prepared = await launcher.prepare(program.backend, spec_file.load(str(tmp_path / "own.yaml")))
    templates = [
        item["spec"]["template"]["spec"]
        for item in await program.backend.manifests(prepared.plan)
        if item["kind"] in ("Job", "ReplicaSet")
    ]
    with_code = [spec for spec in templates if "initContainers" in spec]
    assert len(with_code) == len(templates) - (kind == "elastic") - (kind == "job")  # the rendezvous needs none
    for spec in with_code:
        (main,), (init,) = spec["containers"], spec["initContainers"]
        assert (main["workingDir"], main["command"][:2]) == ("/l2r-workdir/tree", ["/bin/sh", "-c"])
        assert main["command"][4] in ("l2r-runtime", "python")
        assert "run make 'it'\"'\"'s'" in init["command"][2]
        assert init["env"] == main["env"]
        assert init["securityContext"] == main["securityContext"]
        assert {mount["mountPath"] for mount in init["volumeMounts"]} > {
            mount["mountPath"] for mount in main["volumeMounts"]
        }


async def test_an_archive_beyond_a_config_map_needs_a_volume(program, tmp_path, monkeypatch):
    from l2rtui.backends.kubernetes.manifests import workdirs as manifests

    monkeypatch.setattr(manifests, "MAX_BYTES", 100)
    (tmp_path / "own.yaml").write_text("kind: job\nname: own\nimage: i:1\nworkdir: .\njob: {command: [x]}\n")
    path = str(tmp_path / "own.yaml")
    prepared = await launcher.prepare(program.backend, spec_file.load(path))
    (finding,) = [item for item in refusals(prepared.findings) if item.subject == "workdir"]
    assert "a ConfigMap carries 100B" in finding.sentence
    assert "`workdir: {path: ., volume: CLAIM}`" in finding.hint
    wish = spec_file.load(path, ("workdir={path: ., volume: data}",))
    prepared = await launcher.prepare(program.backend, wish)
    assert not [item for item in refusals(prepared.findings) if item.subject == "workdir"]
    (step,) = [step for step in prepared.plan.steps() if step.kind == "File"]
    assert step.name == f"data:.l2r-workdirs/{wish.spec.workdir.sha256}.tar.gz"
    (job,) = [item for item in await program.backend.manifests(prepared.plan) if item["kind"] == "Job"]
    spec = job["spec"]["template"]["spec"]
    volume = next(item for item in spec["volumes"] if item["name"] == "workdir-packed")
    assert volume["persistentVolumeClaim"] == {"claimName": "data"}
