"""Runs and their sets: names, seeds, replicas, restart policies."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from l2rtui.domain.containers import PodSettings
from l2rtui.domain.kinds import Binding
from l2rtui.domain.workload import (
    MAX_NAME,
    MAX_SET_NAME,
    Kind,
    Queue,
    QueueSystem,
    RestartPolicy,
    Role,
    RunSpec,
    SetSpec,
    Workdir,
    cpu_reason,
    name_problem,
    numbered,
    pod_name,
    with_binding,
    with_seeds,
    without_shared_pods,
)

BY_PLUGIN = PodSettings(binding=Binding.DEVICE_PLUGIN)
SPEC = RunSpec(
    Kind.LEARNER_WORKERS,
    "exp",
    "exp",
    (SetSpec("learner", Role.LEARNER, ("l",)), SetSpec("w", Role.WORKER, ("w",), replicas=4)),
)


@pytest.mark.parametrize(
    ("policy", "after_success", "after_failure"),
    [
        (RestartPolicy.ALWAYS, True, True),
        (RestartPolicy.ON_FAILURE, False, True),
        (RestartPolicy.NEVER, False, False),
    ],
)
def test_restart_policies_are_those_of_kubernetes(policy, after_success, after_failure):
    assert policy.restarts_after(0) is after_success
    assert policy.restarts_after(1) is after_failure
    assert policy.restarts_after(137) is after_failure


def test_a_set_is_found_by_name():
    assert SPEC.set_named("w") is SPEC.sets[1]
    assert SPEC.set_named("nothing") is None


def test_replicas_change_in_one_set_alone():
    changed = SPEC.with_replicas("w", 9)
    assert [one.replicas for one in changed.sets] == [1, 9]
    assert [one.replicas for one in SPEC.sets] == [1, 4]


def test_seeds_give_a_run_each():
    runs = with_seeds(SPEC, (0, 7))
    assert [(run.name, run.seed, run.experiment) for run in runs] == [("exp-s0", 0, "exp"), ("exp-s7", 7, "exp")]
    assert with_seeds(SPEC, ()) == (SPEC,)


@pytest.mark.parametrize("name", ["a", "racing-sac", "r7", "a" * MAX_NAME, "a-1"])
def test_names_that_are_right(name):
    assert name_problem(name) == ""


@pytest.mark.parametrize(
    "name", ["", "A", "7up", "a_b", "a.b", "-a", "a-", "a b", "ä", "a/b", "a\n", "a" * (MAX_NAME + 1)]
)
def test_names_that_are_wrong_are_named(name):
    assert repr(name) in name_problem(name)


@given(
    st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True),
    st.from_regex(r"[a-z]([-a-z0-9]{0,12}[a-z0-9])?", fullmatch=True),
    st.integers(min_value=0, max_value=99_999),
)
def test_names_that_are_right_make_pod_names_that_are_right(run, one, index):
    assert not name_problem(run)
    assert not name_problem(one, MAX_SET_NAME)
    assert not name_problem(pod_name(run, one, index), 63)


def test_a_binding_mode_is_changed_where_a_device_is_used():
    sets = (SetSpec("learner", Role.LEARNER, ("l",), slots=0), SetSpec("w", Role.WORKER, ("w",)))
    changed = with_binding(replace(SPEC, sets=sets), Binding.SHARED)
    assert [one.pod.binding for one in changed.sets] == [Binding.ENV, Binding.SHARED]


def test_workers_of_one_pod_become_pods_on_slots_where_there_is_no_device_plugin():
    shared = SetSpec("w", Role.WORKER, ("w",), replicas=4, workers_per_pod=4, pod=BY_PLUGIN)
    whole = SetSpec("own", Role.WORKER, ("o",), pod=BY_PLUGIN)
    changed = without_shared_pods(replace(SPEC, sets=(shared, whole)))
    assert [(one.num_pods, one.pod.binding) for one in changed.sets] == [
        (4, Binding.ENV),
        (1, Binding.DEVICE_PLUGIN),
    ]


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("r", ["r", "r-2", "r-3"]),
        ("r-2", ["r-2", "r-3", "r-4"]),
        ("r-1", ["r-1", "r-1-2", "r-1-3"]),
        ("r" * MAX_NAME, ["r" * MAX_NAME, "r" * (MAX_NAME - 2) + "-2", "r" * (MAX_NAME - 2) + "-3"]),
    ],
)
def test_the_next_names_of_a_name_that_is_taken(name, names):
    assert list(islice(numbered(name), 3)) == names
    assert not any(map(name_problem, names))


@pytest.mark.parametrize(("slots", "binding", "needs"), [(1, "env", True), (0, "env", False), (1, "cpu", False)])
def test_a_set_needs_a_device_unless_it_wants_none(slots, binding, needs):
    one = SetSpec("w", Role.WORKER, ("w",), slots=slots, pod=PodSettings(binding=Binding(binding)))
    assert one.needs_device is needs


@pytest.mark.parametrize(
    ("one", "replicas", "problem"),
    [
        (SetSpec("w", Role.WORKER, ("w",)), 0, ""),
        (SetSpec("w", Role.WORKER, ("w",)), 9, ""),
        (SetSpec("w", Role.WORKER, ("w",)), -1, "a worker set has 0 replicas or more"),
        (SetSpec("l", Role.LEARNER, ("l",)), 1, ""),
        (SetSpec("l", Role.LEARNER, ("l",)), 2, "a learner set has exactly one replica"),
        (SetSpec("n", Role.WORKER, ("n",), replicas=2, bounds=(1, 4)), 4, ""),
        (SetSpec("n", Role.WORKER, ("n",), replicas=2, bounds=(1, 4)), 5, "it was launched for 1 to 4 replicas"),
        (SetSpec("n", Role.WORKER, ("n",), replicas=2, bounds=(1, 4)), 0, "it was launched for 1 to 4 replicas"),
        (SetSpec("w", Role.WORKER, ("w",), replicas=4, workers_per_pod=4, pod=BY_PLUGIN), 8, ""),
        (SetSpec("w", Role.WORKER, ("w",), replicas=4, workers_per_pod=4, pod=BY_PLUGIN), 6, "a multiple of 4"),
        (SetSpec("ps", Role.PS, ("p",), replicas=2, stable=True), 2, ""),
        (SetSpec("ps", Role.PS, ("p",), replicas=2, stable=True), 3, "stay as they were launched"),
    ],
)
def test_how_many_replicas_a_set_may_have(one, replicas, problem):
    found = one.scale_problem(replicas)
    assert (problem in found) if problem else found == ""


def simulated(kind):
    return f'{{"environment": "l2r", "environment_options": {{"simulator": {{"kind": "{kind}"}}}}}}'


def ours(role, *, train="{}", env=(), command=None, run_env=(), template=""):
    part = SetSpec("s", role, command or ("l2r-runtime", str(role)), env=env, template=template)
    return replace(SPEC, sets=(part,), train=train, env=run_env), part


@pytest.mark.parametrize(
    ("role", "options", "reason"),
    [
        (Role.WORKER, {}, "its environment needs no GPU"),
        (Role.EVALUATOR, {"train": '{"environment": "CartPole-v1"}'}, "its environment needs no GPU"),
        (Role.WORKER, {"train": '{"environment": "l2r"}'}, ""),
        (Role.WORKER, {"train": '{"environment": "l2r/L2R-v0", "environment_options": 3}'}, ""),
        (Role.WORKER, {"train": simulated("sidecar")}, ""),
        (Role.WORKER, {"train": simulated("reference")}, "the reference simulator needs no GPU"),
        (Role.WORKER, {"command": ("python", "mine.py")}, ""),
        (Role.WORKER, {"command": ("l2r-runtime", "elastic")}, ""),
        (Role.WORKER, {"template": "{}"}, ""),
        (Role.WORKER, {"env": (("CUDA_VISIBLE_DEVICES", "0"),)}, ""),
        (Role.WORKER, {"run_env": (("NVIDIA_VISIBLE_DEVICES", "3"),)}, ""),
        (Role.LEARNER, {}, ""),
        (Role.LEARNER, {"train": '{"device": "cuda"}'}, ""),
        (Role.LEARNER, {"train": '{"device": "cpu"}'}, "it learns on the CPU"),
    ],
)
def test_why_a_set_computes_on_no_gpu(role, options, reason):
    assert cpu_reason(*ours(role, **options)) == reason


def test_a_mode_that_is_named_is_no_choice_any_more():
    part = SetSpec("w", Role.WORKER, ("w",), may_use_cpu=True)
    (bound,) = with_binding(replace(SPEC, sets=(part,)), Binding.ENV).sets
    assert not bound.may_use_cpu


@pytest.mark.parametrize(
    ("queue", "sentence"),
    [
        (None, ""),
        (Queue(QueueSystem.VOLCANO, "gpus"), ""),
        (Queue(QueueSystem.JOBSET), "its Jobs are parts of a JobSet, whose templates cannot be changed"),
        (Queue(QueueSystem.KUEUE, "team"), "the queue team has admitted its pods as a whole, and takes no others"),
    ],
)
def test_a_run_that_was_admitted_as_a_whole_keeps_its_size(queue, sentence):
    spec = RunSpec(Kind.JOB, "r", "r", (SetSpec("w", Role.WORKER, ("w",)),), queue=queue)
    assert spec.scale_problem() == sentence


def test_own_code_names_its_files_and_sizes():
    code = Workdir(".", "3f2a9c10" + "0" * 56, files=12, num_bytes=34_918, packed_bytes=11_264)
    assert code.size == "12 files, 34.1KiB (11KiB packed, 3f2a9c10)"
