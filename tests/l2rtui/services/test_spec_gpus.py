"""Whole GPUs, models and memory in a spec file."""

from __future__ import annotations

import json

import pytest
import yaml

from l2rtui.domain.ledger import build_ledger
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.placement import obstacles, place
from l2rtui.domain.plan import gpu_count, plan_launch
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.errors import SpecError
from l2rtui.services.spec.encode import to_document
from l2rtui.services.spec.spec_file import load

JOB = "kind: job\nname: j\njob: {{command: [t], {}}}\n"


def loaded(tmp_path, text) -> RunSpec:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return load(str(path)).spec


@pytest.mark.parametrize(
    ("fields", "gpus", "model", "memory"),
    [
        ("gpus: 4", 4, "", 0),
        ("gpu: 1", 1, "", 0),
        ("resources: {gpu: 2}", 2, "", 0),
        ("gpu: 2, gpus: 2, slots: 1", 2, "", 0),
        ("gpu: {model: A100, memory: 40Gi}", 1, "A100", 40 << 30),
        ("gpu: {model: A100}, gpus: 8", 8, "A100", 0),
        ("gpu: {count: 0, model: RTX A6000}, slots: 2", 0, "RTX A6000", 0),
        ("slots: 2", 0, "", 0),
    ],
)
def test_every_way_to_ask_for_gpus_is_read_and_written_back(tmp_path, fields, gpus, model, memory):
    spec = loaded(tmp_path, JOB.format(fields))
    (part,) = spec.sets
    assert (part.gpus, part.gpu_model, part.gpu_memory_bytes) == (gpus, model, memory)
    assert part.needs_device
    assert loaded(tmp_path, yaml.safe_dump(to_document(spec))) == spec


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ("gpus: 2, gpu: 3", "gpus 2 and gpu 3 do not agree"),
        ("gpus: 2, slots: 2", "write slots, parts of a GPU, or gpus, whole ones"),
        ("gpus: 2, pod: {binding: cpu}", "binding cpu gives no whole GPU"),
        ("gpus: 2, pod: {binding: shared}", "binding shared gives no whole GPU"),
        ("gpus: 0", "gpus"),
        ("gpu: {model: A100, memory: lots}", "gpu.memory: 'lots' is not a quantity"),
    ],
)
def test_what_does_not_fit_together_gets_a_sentence(tmp_path, fields, sentence):
    with pytest.raises(SpecError, match=sentence):
        loaded(tmp_path, JOB.format(fields))


def test_gpus_stand_at_every_kind_of_set(tmp_path):
    workers = loaded(
        tmp_path,
        "kind: learner-workers\nname: r\nlearner: {gpu: 1}\nworkers: [{resources: {gpu: 2}, replicas: 2}]\n",
    )
    assert [(part.gpus, part.may_use_cpu) for part in workers.sets] == [(1, False), (2, False)]
    elastic = loaded(tmp_path, "kind: elastic\nname: e\nnodes: {gpus: 4, replicas: 2, max: 2}\n")
    assert [part.gpus for part in elastic.sets] == [0, 4]
    steps = loaded(
        tmp_path, "kind: job\nname: s\nsteps: [{name: a, command: [x], gpus: 2}, {name: b, nodes: {gpus: 2}}]\n"
    )
    assert sorted(part.gpus for part in steps.sets) == [0, 2, 2]
    with pytest.raises(SpecError, match="GPUs of an elastic step stand under its nodes"):
        loaded(tmp_path, "kind: job\nname: s\nsteps: [{name: b, gpus: 2, nodes: {}}]\n")


@pytest.mark.parametrize("has_uuids", [True, False])
def test_a_plan_takes_whole_gpus_of_one_node_together(tmp_path, has_uuids):
    spec = loaded(tmp_path, JOB.format("gpus: 2, replicas: 2"))
    nodes = {
        name: Node(name, tuple(Gpu(name, index, f"GPU-{name}{index}" if has_uuids else "") for index in range(3)))
        for name in ("a", "b")
    }
    placement = place([spec], build_ledger(nodes.values(), []))
    plan = plan_launch([spec], placement, nodes, owner="me", uids=["u"])
    assert not plan.conflicts
    assert [[(gpu.node, gpu.index) for gpu in pod.gpus] for pod in plan.runs[0].pods] == [
        [("a", 0), ("a", 1)],
        [("b", 0), ("b", 1)],
    ]
    assert gpu_count(plan.runs[0].pods) == 4
    visible = [dict(pod.env)["CUDA_VISIBLE_DEVICES"] for pod in plan.runs[0].pods]
    assert visible == (["GPU-a0,GPU-a1", "GPU-b0,GPU-b1"] if has_uuids else ["0,1", "0,1"])


def test_a_model_is_known_by_its_words():
    def suits(model, memory, **wish):
        return SetSpec("w", Role.WORKER, ("w",), **wish).suits(Gpu("n", 0, model=model, memory_bytes=memory << 20))

    assert suits("NVIDIA-A100-SXM4-40GB", 40536, gpu_model="A100", gpu_memory_bytes=40 << 30)
    assert not suits("NVIDIA-A100-SXM4-40GB", 40536, gpu_memory_bytes=80 << 30)
    assert not suits("NVIDIA-A100-SXM4-40GB", 40536, gpu_model="A10")
    assert suits("NVIDIA RTX A6000", 49140, gpu_model="rtx a6000", gpu_memory_bytes=48 << 30)


@pytest.mark.parametrize("wish", [{"gpus": 1}, {"slots": 1}])
def test_a_set_is_seated_on_the_model_that_it_needs_and_nodes_without_it_are_closed(wish):
    part = SetSpec("w", Role.WORKER, ("w",), gpu_model="A100", **wish)
    ledger = build_ledger(
        [Node(name, (Gpu(name, 0, model=model, slots=2),)) for name, model in (("a", "RTX A6000"), ("b", "A100"))],
        [],
    )
    (closed,) = obstacles(part, ledger).items()
    assert closed[0] == "a"
    assert closed[1].reason == "no GPU of model A100, which the set w needs"
    (seat,) = place([RunSpec(Kind.JOB, "r", "r", (part,))], ledger).seats
    assert {slot.node for slot in seat.slots} == {"b"}


NODES = "kind: learner-workers\nname: r\nlearner: {{nodes: 2{}}}\ntrain: {{environment: racing, {}}}\n"


@pytest.mark.parametrize(
    ("learner", "train", "devices"),
    [
        (", gpus: 4", "algorithm: ppo", 8),
        ("", "algorithm: sac", 2),
        (", pod: {binding: cpu}", "device: cpu, devices: 6", 6),
        (", command: [python, mine.py]", "algorithm: ppo", None),
    ],
)
def test_a_learner_of_nodes_has_ranks_on_all_of_them(tmp_path, learner, train, devices):
    spec = loaded(tmp_path, NODES.format(learner, train))
    assert json.loads(spec.train).get("devices") == devices
    part = spec.sets[0]
    assert (part.role, part.replicas, part.stable, part.port) == (Role.LEARNER, 2, True, 29400)
    assert part.scale_problem(3) == "its 2 replicas know each other by name, and stay as they were launched"
    assert to_document(spec)["learner"]["nodes"] == 2
    assert loaded(tmp_path, yaml.safe_dump(to_document(spec))).sets == spec.sets


def test_gradients_of_workers_need_a_learner_of_one_node(tmp_path):
    with pytest.raises(SpecError, match=r"leave out learner\.nodes"):
        loaded(tmp_path, NODES.format("", "algorithm: impala, impala: {sends_gradients: true}"))


LEARNER = "kind: learner-workers\nname: r\nlearner: {{gpus: 4{}}}\ntrain: {{environment: racing, {}}}\n"


@pytest.mark.parametrize(
    ("learner", "train", "devices"),
    [
        ("", "algorithm: ppo", 4),
        ("", "algorithm: impala, collect: device", 4),
        ("", "algorithm: ppo, devices: 2", 2),
        ("", "algorithm: sac", 4),
        ("", "algorithm: impala, impala: {sends_gradients: true}", None),
        ("", "algorithm: impala, impala: {sends_gradients: false}", 4),
        (", command: [python, mine.py]", "algorithm: ppo, collect: device", None),
    ],
)
def test_a_learner_has_a_rank_on_each_of_its_gpus(tmp_path, learner, train, devices):
    spec = loaded(tmp_path, LEARNER.format(learner, train))
    assert json.loads(spec.train).get("devices") == devices
