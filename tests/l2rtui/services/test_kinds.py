"""Elastic jobs, parameter servers, steps and old charts in spec files: the resulting specs, and their errors."""

from __future__ import annotations

import json

import pytest
import yaml

from l2rtui.domain.containers import Mount, Security
from l2rtui.domain.kinds import Binding
from l2rtui.domain.preflight import Severity
from l2rtui.domain.workload import Kind, Program, RestartPolicy, Role
from l2rtui.errors import SpecError
from l2rtui.services import runtime_commands
from l2rtui.services.spec import encode, script_source, spec_file

ELASTIC = """\
kind: elastic
name: digits
image: lab/l2r:1
nodes: {replicas: 2, min: 1, max: 4, slots: 2, command: [python, t.py]}
rendezvous: {backend: etcd-v2, image: lab/etcd:1}
pod: {shm: 1Gi}
"""
SERVERS = """\
kind: parameter-server
name: digits
servers: {replicas: 2}
workers: {replicas: 3, port: 3000}
train: {learning_rate: 0.1}
"""
STEPS = """\
kind: job
name: shop
steps:
  - {name: data, command: [fetch]}
  - name: train
    nodes: {replicas: 2, max: 3, command: [python, t.py]}
  - {name: look, command: [look], replicas: 2, restart: OnFailure}
  - {name: report, command: [report], after: [data, look]}
pod: {mounts: [{path: /l2r, claim: shop}]}
"""
CHART = """\
worker:
  number: 2
  podManagementPolicy: Parallel
  image: {repository: lab/tf, tag: 1.7.0, pullPolicy: IfNotPresent}
  port: 9000
  gpuCount: 1
ps:
  number: 2
  image: {repository: lab/tf, tag: 1.7.0, pullPolicy: IfNotPresent}
  port: 8000
  env: {A: 1}
  resources: {limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 500m}}
hyperparams: {batchsize: 20, learningrate: 0.001, trainsteps: 0}
volumes:
- {name: logs, hostPath: {path: /srv/logs}}
- {name: data, persistentVolumeClaim: {claimName: mnist}}
volumeMounts:
- {name: logs, mountPath: /tmp/mnist-log}
- {name: data, mountPath: /data, readOnly: true}
"""


@pytest.fixture
def load(tmp_path):
    def _load(text, *overrides, **options):
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        return spec_file.load(str(path), overrides, **options)

    return _load


def test_an_elastic_job_is_a_place_to_meet_and_nodes(load):
    spec = load(ELASTIC).spec
    meeting, nodes = spec.sets

    assert spec.kind is Kind.ELASTIC
    assert (meeting.name, meeting.role, meeting.slots, meeting.stable, meeting.port) == (
        "rdzv", Role.RENDEZVOUS, 0, True, 29400,
    )  # fmt: skip
    assert meeting.command == ("l2r-runtime", "rendezvous", "--backend", "etcd-v2")
    assert (meeting.pod.image, meeting.pod.shm_bytes) == ("lab/etcd:1", None)
    assert (nodes.role, nodes.replicas, nodes.bounds, nodes.restart) == (
        Role.WORKER, 2, (1, 4), RestartPolicy.ON_FAILURE,
    )  # fmt: skip
    variables, command = runtime_commands.read_elastic(nodes.command)
    assert (variables, command) == (
        runtime_commands.ElasticCommand("rdzv", "etcd-v2", 1, 4, processes=None),
        ("python", "t.py"),
    )
    assert nodes.pod.shm_bytes == 2**30


def test_parameter_servers_have_names_and_ports(load):
    spec = load(SERVERS).spec

    assert [(item.name, item.role, item.replicas, item.slots, item.port, item.stable) for item in spec.sets] == [
        ("ps", Role.PS, 2, 0, 2222, True),
        ("worker", Role.WORKER, 3, 1, 3000, True),
    ]
    assert [item.command for item in spec.sets] == [("l2r-runtime", "ps"), ("l2r-runtime", "ps-worker")]


def test_steps_wait_for_those_before_them(load):
    sets = load(STEPS).spec.sets

    assert [item.name for item in sets] == ["data", "train-rdzv", "train", "look", "report"]
    assert sets[1].command[-2:] == ("--until", "train")
    variables = [runtime_commands.read_step(item.command) for item in sets if item.role is not Role.RENDEZVOUS]
    assert [step for step, _ in variables] == [
        runtime_commands.Step("data", is_once=True),
        runtime_commands.Step("train", ("data",)),
        runtime_commands.Step("look", ("train",), parts=2),
        runtime_commands.Step("report", ("data", "look"), is_once=True),
    ]
    assert runtime_commands.read_elastic(variables[1][1])[0].rendezvous == "train-rdzv"


@pytest.mark.parametrize("text", [ELASTIC, SERVERS, STEPS, CHART])
def test_a_spec_written_down_is_the_same_again(load, text):
    spec = load(text).spec
    assert load(yaml.safe_dump(encode.to_document(spec), sort_keys=False)).spec == spec


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind: elastic\nname: e\n", "nodes is missing"),
        ("kind: elastic\nname: e\nnodes: {replicas: 5, max: 4}\n", "5 replicas are not within min 1 and max 4"),
        ("kind: elastic\nname: e\nnodes: {replica: 1}\n", "Did you mean replicas?"),
        ("kind: elastic\nname: e\nnodes: {restart: Always}\n", "restart Always would start processes again"),
        ("kind: elastic\nname: e\nnodes: {}\nrendezvous: {backend: zk}\n", "rendezvous.backend is 'zk'"),
        ("kind: parameter-server\nname: p\nworkers: {replicas: 0}\n", "workers.replicas is 0"),
        ("kind: parameter-server\nname: p\nworkers: {prot: 1}\n", "Did you mean port?"),
        ("kind: job\nname: j\n", "write either job, with a command, or steps"),
        ("kind: job\nname: j\njob: {}\n", "job: write its command, or its program"),
        ("kind: job\nname: j\nsteps: [{name: a, command: [a], after: [b]}]\n", "there is no step b above it"),
        (
            "kind: job\nname: j\nsteps: [{name: a, command: [a]}, {name: a, command: [a]}]\n",
            "two steps are named a",
        ),
        ("kind: job\nname: j\nsteps: [{name: a, command: [a], rendezvous: {}}]\n", "is for steps with nodes"),
        ("kind: job\nname: j\nsteps: [{name: a, command: [a], nodes: {}}]\n", "stand under its nodes"),
        ("kind: job\nname: j\nsteps: [{name: a, command: [a], restart: Always}]\n", "have finished"),
    ],
)
def test_a_mistake_gets_a_sentence(load, text, sentence):
    with pytest.raises(SpecError) as caught:
        load(text)
    assert sentence in f"{caught.value} {caught.value.hint}"


# --- programs ---------------------------------------------------------------------------------------------------


def elastic(source, command=""):
    return f"kind: elastic\nname: e\nnodes: {{program: {source}{command}}}\n"


@pytest.mark.parametrize("source", ["../key.py", "{outside}", "sub/../../key.py", "link.py"])
@pytest.mark.parametrize(
    "text",
    [
        "kind: elastic\nname: e\nnodes: {{program: {source}}}\n",
        "kind: job\nname: e\njob: {{command: [python, '{{program}}'], program: {source}}}\n",
        "kind: job\nname: e\nsweep: {{job.slots: [1]}}\njob: {{command: ['{{program}}'], program: {source}}}\n",
    ],
)
def test_a_program_outside_of_the_specs_folder_is_read_only_when_asked_for(tmp_path, source, text):
    (tmp_path / "key.py").write_text("secret = 1\n")
    folder = tmp_path / "spec"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.py").symlink_to("../key.py")
    source = source.format(outside=tmp_path / "key.py")
    (folder / "r.yaml").write_text(text.format(source=source))
    with pytest.raises(SpecError) as raised:
        spec_file.load(str(folder / "r.yaml"))
    assert f"{source} is outside of {folder}, the spec's folder" in str(raised.value)
    assert "--allow-outside" in raised.value.hint
    allowed = spec_file.load(str(folder / "r.yaml"), allows_outside=True)
    assert any(part.program and part.program.text == "secret = 1\n" for part in allowed.runs()[0].sets)


def test_a_program_comes_from_beside_the_spec_or_from_s3(load, tmp_path):
    (tmp_path / "train.py").write_text("print('ä')\n")

    near = load(elastic("./train.py")).spec.sets[1]
    assert near.program == Program("train.py", "print('ä')\n")
    assert near.command[-2:] == ("python", "{program}")
    far = load(elastic("s3://bucket/dir/train.py", ", command: [sh, '{program}', x]")).spec.sets[1]
    assert far.program == Program("train.py", url="s3://bucket/dir/train.py")
    assert far.command[-3:] == ("sh", "{program}", "x")


@pytest.mark.parametrize(
    ("source", "content", "sentence"),
    [
        ("gone.py", None, "cannot be read: No such file"),
        ("t.py", b"#" * (script_source.MAX_BYTES + 1), "is larger than the 256Ki that travel with a run"),
        ("t.py", b"\xff\xfe", "is not UTF-8 text"),
        ("t.py", b"\n", "is empty"),
        ("'a b.py'", b"x", "is not a plain file name"),
        ("s3://bucket", None, "is not s3://BUCKET/KEY"),
        ("https://example.org/t.py", None, "is not s3://BUCKET/KEY"),
        ("t.py, command: [python, t.py]", b"x", "write {program} where its path belongs"),
        ("t.sh", b"echo x", 'is a shell script, and python would run it: write command: [sh, "{program}"]'),
        ("train", b"#!/usr/bin/env bash\necho x", 'write command: [bash, "{program}"]'),
    ],
)
def test_a_program_that_cannot_travel_is_named(load, tmp_path, source, content, sentence):
    if content is not None:
        (tmp_path / source.partition(",")[0].strip("'")).write_bytes(content)
    with pytest.raises(SpecError) as caught:
        load(elastic(source))
    assert sentence in str(caught.value)


# --- the old chart ----------------------------------------------------------------------------------------------


def notes(wish):
    return {item.subject: item.sentence for item in wish.notes}


def test_the_charts_values_are_its_run(load):
    wish = load(CHART)
    ps, worker = wish.spec.sets

    assert (wish.spec.kind, wish.spec.name) == (Kind.PARAMETER_SERVER, "distributed-tensorflow")
    assert [(item.name, item.replicas, item.port) for item in (ps, worker)] == [
        ("ps", 2, 8000),
        ("worker", 2, 9000),
    ]
    assert {item.pod.image for item in (ps, worker)} == {"lab/tf:1.7.0"}
    assert (ps.slots, worker.slots, worker.pod.binding) == (0, 1, Binding.DEVICE_PLUGIN)
    numbers = ("--learning_rate", "0.001", "--batch_size", "20")
    assert ps.command == ("python", "train_distributed.py", *numbers)
    assert worker.command == ("python", "train_distributed.py", "--num_gpus", "1", *numbers)
    assert (ps.env, ps.resources.cpu_cores, ps.resources.memory_bytes) == ((("A", "1"),), 0.5, 2**30)
    assert ps.pod.mounts == (
        Mount("/tmp/mnist-log", host_path="/srv/logs"),
        Mount("/data", claim="mnist", read_only=True),
    )
    assert ps.pod.security is Security.BASELINE
    assert json.loads(wish.spec.train)["log_dir"] == "/tmp/mnist-log"
    assert "no end" in notes(wish)["hyperparams.trainsteps"]


def test_the_charts_values_run_with_our_image(load):
    added = ("image=l2r:1", "hyperparams.trainsteps=200", "pod.node_selector={a: b}", "ps.label=x")
    wish = load(CHART, *added, name="mnist")
    ps, worker = wish.spec.sets

    assert (wish.spec.name, wish.spec.image, ps.pod.image) == ("mnist", "l2r:1", "")
    assert (ps.command, worker.command) == (("l2r-runtime", "ps"), ("l2r-runtime", "ps-worker"))
    assert json.loads(wish.spec.train)["train_steps"] == 200
    assert (ps.pod.node_selector, ps.pod.security) == ((("a", "b"),), Security.RESTRICTED)
    assert "in place of lab/tf:1.7.0" in notes(wish)["image"]
    assert "label is not used" in notes(wish)["ps"]
    assert {item.severity for item in wish.notes if item.subject == "ps"} == {Severity.WARNING}


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("number: 2", "number: two", ":2: worker.number is 'two': expected a whole number"),
        ("hostPath: {path: /srv/logs}", "nfs: {server: a}", "logs is of nfs: a run mounts hostPath"),
        ("- {name: logs, hostPath: {path: /srv/logs}}\n", "", "there is no volume logs"),
    ],
)
def test_values_that_cannot_be_read_are_named(load, old, new, sentence):
    with pytest.raises(SpecError) as caught:
        load(CHART.replace(old, new, 1))
    assert sentence in str(caught.value)
