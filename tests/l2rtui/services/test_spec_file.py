"""Spec files: valid ones are read completely, errors give a sentence with file, line and field."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import jsonschema
import pytest
import yaml

from l2rtui.domain.containers import LabelRule, Mount, Scheduling, Security, Toleration
from l2rtui.domain.kinds import Binding
from l2rtui.domain.placement import Pin, PlacementPolicy
from l2rtui.domain.workload import Kind, Queue, QueueSystem, RestartPolicy, Role
from l2rtui.errors import SpecError
from l2rtui.services.spec import encode, spec_file
from runtime.base.alert_rules import AlertRule
from runtime.base.limits import Limits

EXAMPLES = [path for path in sorted(Path("manifests").glob("*.yaml")) if "apiVersion:" not in path.read_text()]


@functools.cache
def published_schema():
    schema = spec_file.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


MINIMAL = """\
kind: learner-workers
name: r
"""

FULL = """\
kind: learner-workers
name: r
seed: 7
image: example/l2r:1
env: {A: 1, B: true}
learner:
  command: [python, -m, learn]
  slots: 2
  restart: Always
  resources: {cpu: 1500m, memory: 2Gi}
workers:
  - name: near
    replicas: 3
    env: {C: x y}
  - name: far
    replicas: 0
evaluator: {name: judge, grace_seconds: 1.5}
train: {env: racing, deep: [1, 2]}
placement: {policy: spread, on: "n1/0-1,n2/3.2"}
"""


@pytest.fixture
def write(tmp_path):
    def _write(text: str | bytes) -> str:
        path = tmp_path / "spec.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return _write


def test_defaults_make_a_learner_and_one_worker(write):
    wish = spec_file.load(write(MINIMAL))

    assert [(item.name, item.role, item.replicas) for item in wish.spec.sets] == [
        ("learner", Role.LEARNER, 1),
        ("w", Role.WORKER, 1),
    ]
    assert wish.spec.sets[0].command == ("l2r-runtime", "learner")
    assert (wish.policy, wish.pins) == (PlacementPolicy.PACK, ())


def test_every_field_arrives(write):
    wish = spec_file.load(write(FULL))
    learner, near, far, judge = wish.spec.sets

    assert wish.spec.kind is Kind.LEARNER_WORKERS
    assert (wish.spec.seed, wish.spec.image) == (7, "example/l2r:1")
    assert wish.spec.env == (("A", "1"), ("B", "true"))
    assert wish.spec.train == '{"env":"racing","deep":[1,2]}'
    assert (learner.command, learner.slots, learner.restart) == (("python", "-m", "learn"), 2, RestartPolicy.ALWAYS)
    assert (learner.resources.cpu_cores, learner.resources.memory_bytes) == (1.5, 2 * 2**30)
    assert (near.replicas, near.env, far.replicas) == (3, (("C", "x y"),), 0)
    assert (judge.name, judge.role, judge.grace_seconds) == ("judge", Role.EVALUATOR, 1.5)
    assert (wish.policy, wish.pins) == (PlacementPolicy.SPREAD, (Pin("n1", 0), Pin("n1", 1), Pin("n2", 3, 2)))


def test_a_job(write):
    wish = spec_file.load(write("kind: job\nname: j\njob: {command: [sleep, '1'], replicas: 2}\n"))

    assert [(item.role, item.slots, item.replicas) for item in wish.spec.sets] == [(Role.JOB, 0, 2)]


@pytest.mark.parametrize("text", [MINIMAL, FULL, "kind: job\nname: j\njob: {command: [ls]}\n"])
def test_writing_a_spec_back_gives_the_same_spec(write, text):
    spec = spec_file.load(write(text)).spec

    again = spec_file.load(write(yaml.safe_dump(encode.to_document(spec), sort_keys=False))).spec

    assert again == spec


def test_a_spec_is_written_with_its_name_first_and_without_empty_parts(write):
    document = encode.to_document(spec_file.load(write("kind: job\nname: j\njob: {command: [ls]}\n")).spec)

    assert list(document)[:2] == ["kind", "name"]
    assert document["job"]["command"] == ["ls"]
    assert not [field for field in ("env", "image", "train", "pod") if field in document]
    assert not [value for value in document["job"].values() if value in (None, "", [], {})]


def test_overrides_reach_fields_lists_and_names(write):
    path = write(FULL)
    overrides = ["workers.near.replicas=5", "workers.1.slots=2", "train.new.inner=[1, a]", "env.A=z=1"]

    spec = spec_file.load(path, overrides, name="other").spec

    assert (spec.name, spec.experiment) == ("other", "other")
    assert [item.replicas for item in spec.sets] == [1, 5, 0, 1]
    assert spec.sets[2].slots == 2
    assert '"new":{"inner":[1,"a"]}' in spec.train
    assert spec.env[0] == ("A", "z=1")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_load_and_fit_the_published_schema(path):
    spec_file.load(str(path))

    published_schema().validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind: learner-workers\nname: r\nworker: []\n", ":3: there is no field worker. Did you mean workers?"),
        ("kind: job\nname: r\nsets: []\n", ":3: there is no field sets. Kind job has steps and job."),
        (
            "kind: job\nname: r\nworker: []\n",
            "Kind job has steps and job; workers belongs to kind learner-workers and parameter-server.",
        ),
        (
            "kind: elastic\nname: r\nlearner: {}\n",
            "Kind elastic has nodes; learner belongs to kind learner-workers.",
        ),
        (
            "kind: learner-workers\nname: r\nworkers:\n - name: w\n   replica: 4\n",
            ":5: there is no field workers[0].replica. Did you mean replicas?",
        ),
        ("kind: learner-workers\nname: r\nzzz: 1\n", "The fields here are name, seed, image"),
        (
            "kind: learner-workers\nname: r\nworkers: [{replicas: -1}]\n",
            ":3: workers[0].replicas is -1: expected a whole number >= 0.",
        ),
        ("kind: learner-workers\nname: r\nseed: many\n", ":3: seed is 'many': expected a whole number, got text."),
        ("kind: learner-workers\nname: Big_Name\n", ":2: name is 'Big_Name': expected lower-case letters"),
        ("kind: learner-workers\n", "name is missing"),
        ("name: r\n", "kind is missing: write one of learner-workers, elastic, parameter-server, job"),
        ("kind: elastick\nname: r\n", ":1: kind 'elastick' is not known: write one of learner-workers, elastic, "),
        ("kind: job\nname: j\njob: {command: []}\n", ":3: job.command is []"),
        ("kind: job\nname: j\njob: {command: [a], restart: Sometimes}\n", "job.restart is 'Sometimes'"),
        (
            "kind: job\nname: j\njob: {command: [a], resources: {cpu: lots}}\n",
            "job: resources.cpu: 'lots' is not a quantity",
        ),
        (
            "kind: job\nname: j\njob: {command: [a], resources: {memory: -1Gi}}\n",
            "job: resources.memory: -1Gi is less than nothing",
        ),
        (
            "kind: job\nname: j\njob: {command: [a]}\ntrain: {rates: [1, .nan]}\n",
            ":4: train holds .nan or .inf, which JSON does not have",
        ),
        ("kind: job\nname: j\njob: {command: [a]}\nplacement: {on: x}\n", ":4: placement.on: 'x' names no slot"),
        ("kind: learner-workers\nname: r\nworkers: [{name: a}, {name: a}]\n", "two sets are named a"),
        ("kind: job\nkind: job\nname: j\n", ":2: kind is written twice"),
        ("kind: job\nname: j\njob: {command: [a]}\ntrain: {&fast: 1}\n", ":4: the name of a field is empty"),
        ("kind: job\nname: j\njob: {command: [a]}\ntrain: {true: 1}\n", ":4: the name of a field is true or false"),
        ("kind: job\nname: j\njob: {command: [a]}\ntrain: {? [a] : 1}\n", ":4: the name of a field is a list"),
        ("kind: [job\nname: j\n", ":2: not YAML"),
        ("kind: job\nname: j\njob: {program: x/a.py}\n", f"program: {Path(tempfile.gettempdir())}"),
        (
            'kind: job\nname: j\njob: {command: [a]}\nenv: {"A=B": 1}\n',
            "env: no process can have the variable 'A=B'",
        ),
        ('kind: job\nname: j\njob: {command: [a], env: {"": 1}}\n', "env: no process can have the variable ''"),
        ('kind: job\nname: j\njob: {command: [a], env: {X: "\\0"}}\n', "env: no process can have the variable 'X'"),
        (
            "kind: job\nname: j\njob: {command: [a]}\nenv: {L2R_RUN: x}\n",
            "env: l2rtui sets L2R_RUN itself in every process: set the field name instead.",
        ),
        (
            "kind: job\nname: j\njob: {command: [a], env: {L2R_POD: x}}\n",
            "env: l2rtui sets L2R_POD itself in every process: rename your variable.",
        ),
        ('kind: job\nname: j\njob: {command: [sh, "\\0"]}\n', "job: its command has a NUL character"),
        (
            "a: 1\n---\nb: 2\n",
            ":2: a second document begins here; a file holds one spec. Write each spec into a file",
        ),
        ("kind: job\nname: j\njob: {command: [a]}\nenv: {A: 1, B: null}\n", ":4: env.B is empty: expected true"),
        ("kind: job\nname: j\njob: {command: [a], env: {A: x, B: [1]}}\n", ":3: job.env.B is [1]: expected true"),
        (
            "kind: job\nname: j\njob: {command: [a]}\nlimits: {wall: 12:30}\n",
            "limits.wall: '12:30' is not a duration",
        ),
        ("", "this file holds nothing"),
        ("- 1\n", "this file holds a list"),
        (b"name: \xff\xfe\n", "not YAML"),
        (b"\x00\x01", "not YAML"),
    ],
)
def test_a_mistake_gets_a_sentence(write, text, sentence):
    with pytest.raises(SpecError) as caught:
        spec_file.load(write(text))

    assert sentence in str(caught.value)
    assert "Traceback" not in str(caught.value)


NUMBERS = ("3.10", "00501", "1_000", "1e-3", "0x1F", "12:30", "2026-11-28", "1.50", "+5", "on", ".inf")
NUMBER_VARIABLES = [(f"V{place}", text) for place, text in enumerate(NUMBERS)]
"""Texts that YAML 1.1 reads as numbers, dates or booleans."""


def test_a_variable_is_the_text_that_is_written(write):
    env = ", ".join(f"{name}: {text}" for name, text in NUMBER_VARIABLES)
    spec = f"kind: job\nname: j\ntrain: {{a: &a 1_000}}\nenv: {{{env}, A: *a}}\n"
    loaded = spec_file.load(write(f"{spec}job: {{command: [a], env: {{{env}}}}}\n")).spec
    assert loaded.env == (*NUMBER_VARIABLES, ("A", "1_000"))
    assert loaded.sets[0].env == tuple(NUMBER_VARIABLES)
    assert json.loads(loaded.train)["a"] == 1000, "elsewhere the number is one"

    changes = [f"job.env.{name}={text}" for name, text in NUMBER_VARIABLES]
    bare = "kind: job\nname: j\njob: {command: [a]}\n"
    for overrides in (changes, [f"job.env={{{env}}}"]):
        assert spec_file.load(write(bare), overrides).spec.sets[0].env == tuple(NUMBER_VARIABLES)


def test_numbers_are_those_of_yaml_1_2(write):
    values = "[010, 0x1F, 0o17, 1_000, 1e-4, .5, 1., -3, 12:30, 2026-11-28, 1.5e3]"
    loaded = spec_file.load(write(f"kind: job\nname: j\njob: {{command: [a]}}\ntrain: {{x: {values}}}\n"))
    assert json.loads(loaded.spec.train)["x"] == [10, 31, 15, 1000, 1e-4, 0.5, 1, -3, "12:30", "2026-11-28", 1500]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("seed", "write it as field.field=value"),
        ("=1", "write it as field.field=value"),
        ("workers.nobody.slots=1", "none is number or name 'nobody'"),
        ("name.x=1", "is a plain value"),
        ("sed=1", "there is no field sed. Did you mean seed?"),
    ],
)
def test_a_wrong_override_gets_a_sentence(write, override, sentence):
    with pytest.raises(SpecError) as caught:
        spec_file.load(write(FULL), [override])

    assert sentence in str(caught.value)


def test_a_missing_and_an_unreadable_file(tmp_path):
    with pytest.raises(SpecError, match="There is no spec file"):
        spec_file.load(str(tmp_path / "none.yaml"))
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        spec_file.load(str(tmp_path))


def test_a_huge_file_and_an_alias_bomb_are_refused(write):
    with pytest.raises(SpecError, match="larger than 1 MiB"):
        spec_file.load(write("#" * 1_100_000))
    bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
    )
    with pytest.raises(SpecError, match="too many or too deeply nested"):
        spec_file.load(write(bomb))


def test_a_file_and_an_override_that_nest_without_end_are_refused(write):
    with pytest.raises(SpecError, match="too many or too deeply nested"):
        spec_file.load(write("[" * 20_000))
    with pytest.raises(SpecError, match=r"--set train\.x: too many or too deeply nested"):
        spec_file.load(write("kind: learner-workers\nname: r\n"), ["train.x=" + "[" * 20_000])


def test_an_alias_to_itself_is_refused(write):
    with pytest.raises(SpecError, match="too many or too deeply nested"):
        spec_file.load(write("a: &a [*a]\n"))


@pytest.mark.parametrize(
    ("overrides", "name", "sentence"),
    [
        (
            ["workers.w.replicas=-1"],
            "",
            "--set workers.w.replicas=-1: workers[0].replicas is -1: expected a whole number",
        ),
        (["workers=[{replicas: x}]"], "", "--set workers=[{replicas: x}]: workers[0].replicas is 'x'"),
        (["sed=1"], "", "--set sed=1: there is no field sed. Did you mean seed?"),
        (["train.x={&fast: 1}"], "", "--set train.x:1: the name of a field is empty"),
        ([], "Big", "--name Big: name is 'Big': expected lower-case letters"),
        (["seed=1"], "", ""),
    ],
)
def test_a_mistake_on_the_command_line_is_not_blamed_on_the_file(write, overrides, name, sentence):
    path = write("kind: learner-workers\nname: r\nworkers:\n - name: w\n   replicas: 2\n")
    if not sentence:
        assert spec_file.load(path, overrides, name).spec.seed == 1
        return
    with pytest.raises(SpecError) as caught:
        spec_file.load(path, overrides, name)
    assert str(caught.value).startswith(sentence)


PODS = """\
kind: learner-workers
name: r
image: i:1
pod:
  binding: shared
  pull_secrets: [regcred]
  node_selector: {disk: ssd, zone: a}
  mounts: [{path: /data, claim: c, read_only: true}]
  tolerations: [{key: gpu, effect: NoSchedule}]
  shm: 1Gi
learner: {pod: {binding: env, security: baseline, mounts: [{path: /l2r, host_path: /srv/l2r}], ports: [6006]}}
workers: [{pod: {node_selector: {zone: b}, mounts: [{path: /fast, in_memory: true, size: 2Gi}], secrets: [aws]}}]
"""


def test_what_is_said_of_pods_holds_for_all_sets_and_a_sets_own_word_wins(write):
    learner, workers = (item.pod for item in spec_file.load(write(PODS)).spec.sets)

    assert (learner.binding, workers.binding) == (Binding.ENV, Binding.SHARED)
    assert (learner.security, workers.security) == (Security.BASELINE, Security.RESTRICTED)
    assert learner.mounts == (Mount("/data", claim="c", read_only=True), Mount("/l2r", host_path="/srv/l2r"))
    assert workers.mounts[1] == Mount("/fast", in_memory=True, size_bytes=2 * 2**30)
    assert dict(workers.node_selector) == {"disk": "ssd", "zone": "b"}
    assert learner.tolerations == (Toleration("gpu", "", "NoSchedule"),)
    assert (learner.pull_secrets, workers.secrets, learner.ports) == (("regcred",), ("aws",), (6006,))
    assert workers.shm_bytes == 2**30


def test_a_spec_with_pods_is_written_back_the_same(write):
    spec = spec_file.load(write(PODS)).spec
    document = encode.to_document(spec)
    assert spec_file.load(write(yaml.safe_dump(document))).spec == spec
    published_schema().validate(document)


def test_the_setting_decides_on_binding_where_the_spec_does_not(write):
    assert spec_file.load(write(MINIMAL), binding="cpu").spec.sets[0].pod.binding is Binding.CPU
    assert spec_file.load(write(PODS), binding="cpu").spec.sets[1].pod.binding is Binding.SHARED


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        ("{bindings: env}", ":3: there is no field pod.bindings. Did you mean binding?"),
        ("{mounts: [{path: /a, claims: c}]}", "there is no field pod.mounts[0].claims. Did you mean claim?"),
        ("{tolerations: [{keys: c}]}", "there is no field pod.tolerations[0].keys. Did you mean key?"),
        ("{binding: gpu}", ":3: pod.binding is 'gpu'"),
        ("{shm: lots}", "learner: pod.shm: 'lots' is not a quantity"),
        ("{shm: 0}", "learner: pod.shm: 0 is no size"),
        ("{mounts: [{path: /a, size: x}]}", "learner: pod.mounts: /a: size: 'x' is not a quantity"),
        ("{mounts: [{path: /a}, {path: /a/}]}", "learner: pod.mounts: /a is mounted twice"),
        ("{ports: [0]}", "pod.ports[0] is 0: expected a whole number >= 1"),
    ],
)
def test_a_mistake_in_pods_is_named(write, pod, sentence):
    with pytest.raises(SpecError) as caught:
        spec_file.load(write(f"kind: learner-workers\nname: r\npod: {pod}\n"))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "sets", "collect"),
    [
        ("", ["learner", "w"], None),
        ("workers: []\n", ["learner"], "device"),
        ("workers: []\ntrain: {environment: CartPole-v1}\n", ["learner"], "device"),
        ("train: {collect: device}\n", ["learner"], "device"),
        ("workers: []\ntrain: {collect: workers}\n", ["learner"], "workers"),
        ("workers: []\ntrain: {environment: Acrobot-v1}\n", ["learner"], None),
        ("workers: []\nlearner: {command: [mine]}\n", ["learner"], None),
    ],
)
def test_without_workers_a_learner_collects_by_itself_where_it_can(write, lines, sets, collect):
    spec = spec_file.load(write("kind: learner-workers\nname: r\n" + lines)).spec
    assert [part.name for part in spec.sets] == sets
    assert json.loads(spec.train).get("collect") == collect
    again = spec_file.load(write(yaml.safe_dump(encode.to_document(spec), sort_keys=False))).spec
    assert (again.sets, again.train) == (spec.sets, spec.train)


def test_workers_of_a_learner_that_collects_by_itself_are_refused(write):
    text = "kind: learner-workers\nname: r\nworkers: [{name: w}]\ntrain: {collect: device}\n"
    with pytest.raises(SpecError, match="the learner itself collects; leave workers out"):
        spec_file.load(write(text))


ONE_GPU = """\
kind: learner-workers
name: r
workers: [{name: w}, {name: mine, command: [python, mine.py]}, {name: none, slots: 0}]
evaluator: {}
train: {environment: racing}
"""


@pytest.mark.parametrize(
    ("edit", "chosen"),
    [
        (("", ""), ["w", "eval"]),
        (("evaluator: {}", "evaluator: {pod: {binding: env}}"), ["w"]),
        (("name: r", "name: r\npod: {binding: env}"), []),
        (("environment: racing", "environment: l2r"), []),
        (("environment: racing", "environment: racing, device: cpu"), ["learner", "w", "eval"]),
        (("name: w}", "name: w, env: {CUDA_VISIBLE_DEVICES: 3}}"), ["eval"]),
    ],
)
@pytest.mark.parametrize("setting", ["", "env", "hami"])
def test_sets_that_compute_on_no_gpu_may_be_bound_to_the_cpu(write, edit, chosen, setting):
    spec = spec_file.load(write(ONE_GPU.replace(*edit)), binding=setting).spec
    assert [part.name for part in spec.sets if part.may_use_cpu] == chosen
    assert spec.sets[2].pod.binding is Binding(setting or "env") or edit[1].endswith("binding: env}")


def test_a_job_is_never_moved_to_the_cpu(write):
    spec = spec_file.load("manifests/elastic-digits.yaml").spec
    assert not any(part.may_use_cpu for part in spec.sets)


def test_a_device_of_a_plugin_is_bound_by_it(tmp_path):
    path = tmp_path / "spec.yaml"
    text = "kind: learner-workers\nname: r\nimage: i\nlearner: {pod: {device: nvidia.com/mig-1g.5gb}}\n"
    path.write_text(text)
    learner, worker = spec_file.load(str(path), binding="env").spec.sets
    assert (learner.pod.device, learner.pod.binding) == ("nvidia.com/mig-1g.5gb", Binding.DEVICE_PLUGIN)
    assert (worker.pod.device, worker.pod.binding) == ("", Binding.ENV)
    path.write_text(text.replace("nvidia.com/mig-1g.5gb", "nvidia.com/gpu"))
    assert spec_file.load(str(path)).spec.sets[0].pod.device == ""
    path.write_text(text.replace("nvidia.com/mig-1g.5gb", "example.com/camera"))
    with pytest.raises(SpecError, match=r"learner: pod\.device: 'example\.com/camera' is no device"):
        spec_file.load(str(path))


def test_a_queue_survives_a_round_trip_and_kueue_needs_a_name(tmp_path):
    path = tmp_path / "spec.yaml"
    text = "kind: job\nname: r\nimage: i\nqueue: {by: volcano, name: gpus, scheduler: mine}\njob: {command: [x]}\n"
    path.write_text(text)
    spec = spec_file.load(str(path)).spec
    assert spec.queue == Queue(QueueSystem.VOLCANO, "gpus", "mine")
    path.write_text(yaml.safe_dump(encode.to_document(spec)))
    assert spec_file.load(str(path)).spec == spec
    path.write_text(text.replace("volcano, name: gpus", "kueue"))
    with pytest.raises(SpecError, match=r"spec\.yaml:4: Kueue needs the name of a LocalQueue"):
        spec_file.load(str(path))
    path.write_text(text.replace("scheduler", "schedule"))
    with pytest.raises(SpecError, match=r"there is no field queue\.schedule") as caught:
        spec_file.load(str(path))
    assert caught.value.hint == "Did you mean scheduler?"


def test_templates_survive_a_round_trip(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        "kind: job\nname: r\nimage: i\npod: {template: {spec: {a: 1}}}\n"
        "job: {command: [x], pod: {template: {spec: {b: [{c: null}]}}, device: amd.com/gpu}}\n"
    )
    spec = spec_file.load(str(path)).spec
    path.write_text(yaml.safe_dump(encode.to_document(spec)))
    assert spec_file.load(str(path)).spec == spec


def test_patches_of_scheduling_change_which_nodes_a_set_may_have(tmp_path):
    path = tmp_path / "spec.yaml"
    affinity = """{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
        {matchExpressions: [{key: zone, operator: In, values: [a, b]}]},
        {matchFields: [{key: metadata.name, operator: In, values: [n7]}]}]}}},
      nodeSelector: {disk: null, net: ib}, tolerations: [{key: team, operator: Exists}]}"""
    text = "kind: job\nname: r\nimage: i\npod: {node_selector: {disk: ssd}}\njob: {command: [x]}\n"
    path.write_text(text)
    plain = spec_file.load(str(path)).spec.sets[0].pod.scheduling
    assert plain.unmet({"disk": "hdd"}) == (LabelRule("disk", "In", ("ssd",)),)
    path.write_text(text.replace("[x]}", "[x], pod: {template: {spec: " + affinity + "}}}"))
    spec = spec_file.load(str(path)).spec
    net = LabelRule("net", "In", ("ib",))
    assert spec.sets[0].pod.scheduling == Scheduling(
        ((net, LabelRule("zone", "In", ("a", "b"))), (net, LabelRule("metadata.name", "In", ("n7",)))),
        (Toleration("team"),),  # a list without a merge key replaces the run's
    )
    path.write_text(yaml.safe_dump(encode.to_document(spec)))
    assert spec_file.load(str(path)).spec == spec
    path.write_text(text.replace("[x]}", "[x], pod: {template: {spec: {nodeSelector: [a]}}}}"))
    with pytest.raises(SpecError, match=r"pod\.template: .*nodeSelector"):
        spec_file.load(str(path))


WATCHED = """\
kind: learner-workers
name: r
limits: {wall: 12h, idle: 90, gpu_hours: 50}
alerts:
  - {when: [failed, learned=475], to: webhook, url_from: SLACK_URL, form: json}
  - {when: [limit], to: mail, address: ada@lab.org, after: 90s}
"""


def test_limits_and_alerts_survive_a_round_trip(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(WATCHED)
    spec = spec_file.load(str(path)).spec
    assert spec.limits == Limits(wall=43_200, idle=90, gpu_hours=50)
    assert spec.alerts == (
        AlertRule(("failed", "learned=475"), "webhook", url_from="SLACK_URL", form="json"),
        AlertRule(("limit",), "mail", address="ada@lab.org", after_seconds=90),
    )
    document = encode.to_document(spec)
    assert document["limits"]["wall"] == "12h"
    path.write_text(yaml.safe_dump(document))
    assert spec_file.load(str(path)).spec == spec


def test_limits_of_the_context_hold_where_the_spec_names_none(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(MINIMAL + "limits: {wall: 1h}")
    defaults = Limits(wall=99, idle=7)
    assert spec_file.load(str(path), limits=defaults).spec.limits == Limits(wall=3600, idle=7)
    path.write_text("kind: job\nname: j\njob: {command: [x]}")
    assert spec_file.load(str(path), limits=defaults).spec.limits == Limits(wall=99)
    assert spec_file.load(str(path)).spec.limits is None


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("limits.wall=soon", "limits.wall: 'soon' is not a duration"),
        ("limits.gpu_hours=-1", "limits.gpu_hours: -1 is not a number of hours"),
        ("limits.wal=1h", "there is no field limits.wal. Did you mean wall?"),
        ("alerts.0.when=[broken]", "spec.yaml:5: alerts[0]: when: 'broken' is not a state"),
        ("alerts.0.to=fax", "alerts[0].to is 'fax'"),
        ("alerts.0.url_from=https://chat.lab/T0K", "alerts[0]: url_from names a variable of a secret"),
        ("alerts.0.url_from=https://hooks.slack.com/services/T0K", "looks like an address of a Slack webhook"),
        ("alerts.1.address=nobody", "alerts[1]: address is not an e-mail address"),
        ("alerts.1.after=never", "alerts[1].after: 'never' is not a duration"),
    ],
)
def test_wrong_limits_and_alerts_are_named_and_no_secret_shown(tmp_path, override, sentence):
    path = tmp_path / "spec.yaml"
    path.write_text(WATCHED)
    with pytest.raises(SpecError) as caught:
        spec_file.load(str(path), [override])
    assert sentence in str(caught.value)
    assert "T0K" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ("limits: {idle: 5m}", "limits.idle is measured by a learner: this run has none."),
        ("alerts: [{when: [done], to: mail, address: a@b}]", "alerts are sent by a learner: this run has none."),
    ],
)
def test_what_only_a_learner_can_do_is_refused_to_a_job(tmp_path, fields, sentence):
    path = tmp_path / "spec.yaml"
    path.write_text(f"kind: job\nname: j\njob: {{command: [x]}}\n{fields}\n")
    with pytest.raises(SpecError, match=sentence):
        spec_file.load(str(path))


def test_workers_of_a_learner_that_reads_a_dataset_are_refused(write):
    text = "kind: learner-workers\nname: r\nworkers: [{name: w}]\ntrain: {algorithm: bc}\n"
    with pytest.raises(SpecError, match="reads a dataset"):
        spec_file.load(write(text))
