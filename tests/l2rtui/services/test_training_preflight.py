"""Preflight of training settings: environments that do not exist, and data that fit no memory of the plan."""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace

from l2rtui.domain.node import Gpu, GpuUse, Node
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.preflight import Severity
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import Kind, Resources, Role, RunSpec, SetSpec, with_seeds
from l2rtui.services.training_preflight import MEMORY, check_training

GIB = 1 << 30
L2R = "runtime.rl.envs.l2r_gym:l2r/L2R-v0"
ATARI = {"cameras": {"CameraFront": {"Height": 84, "Width": 84}}}
LARGE = {"cameras": ["CameraFront"]}


def node(memory=64 * GIB, card=80 * GIB, used=None, gpu_use=()):
    gpu = Gpu("n", 0, "GPU-0", "NVIDIA H100 80GB HBM3", card, 8) if card else Gpu("n", 0, slots=8, is_cpu=True)
    return Node("n", (gpu,), cpu_cores=16.0, memory_bytes=memory, memory_used_bytes=used, gpu_use=gpu_use)


def findings(train, at, *, limit=None, seeds=(), command=("l2r-runtime", "learner"), workers=True, gpus=0, nodes=1):
    learner = SetSpec("learner", Role.LEARNER, command, nodes, resources=Resources(memory_bytes=limit), gpus=gpus)
    text = train if isinstance(train, str) else json.dumps(train)
    sets = (learner, SetSpec("w", Role.WORKER, ("mine",), replicas=0)) if workers else (learner,)
    spec = RunSpec(Kind.LEARNER_WORKERS, "exp", "exp", sets, train=text)
    snapshot = ClusterSnapshot({"n": at})
    specs = with_seeds(spec, seeds)
    placement = place(specs, snapshot.ledger)
    plan = plan_launch(specs, placement, snapshot.nodes, owner="me", uids=[item.name for item in specs])
    return check_training(plan, snapshot)


@pytest.mark.parametrize(("name", "hint"), [("racin", "Did you mean racing?"), ("quake", "There are racing")])
def test_an_environment_that_does_not_exist_is_refused_once_for_all_seeds(name, hint):
    (finding,) = findings({"environment": name}, node(), seeds=(0, 1, 2))
    assert (finding.severity, finding.subject) == (Severity.REFUSAL, "exp")
    assert finding.sentence == f"train.environment is {name!r}, and there is no such environment"
    assert finding.hint.startswith(hint)


@pytest.mark.parametrize("settings", [{}, {"collect": "device"}])
def test_an_environment_that_does_not_exist_is_named_in_one_finding(settings):
    (finding,) = findings({"environment": "racin", **settings}, node(), workers=False)
    assert "there is no such environment" in finding.sentence


@pytest.mark.parametrize("command", [("python", "mine.py"), ("l2r-runtime", "elastic"), ("l2r-runtime",)])
def test_programs_of_others_are_not_checked(command):
    assert findings({"environment": "racin"}, node(), command=command) == ()


def test_what_is_known_of_racing_is_said_with_where_it_fits():
    (finding,) = findings({}, node())
    assert (finding.severity, finding.subject) == (Severity.OK, MEMORY)
    assert finding.sentence == (
        "replay takes 58.5Mi (500,000 transitions of 23 numbers), batches 103Ki; it fits GPU0 of n"
    )
    (finding,) = findings({}, node(card=0))
    assert finding.sentence.endswith("; it fits the memory of n (64Gi)")


def test_rollouts_are_counted_where_there_is_no_replay():
    (finding,) = findings({"algorithm": "ppo", "environment": "CartPole-v1"}, node())
    assert finding.sentence.startswith("rollouts and batches take ")
    gradients = {"algorithm": "impala", "impala": {"sends_gradients": True}}
    assert findings(gradients, node()) == (), "gradients need no data here"


def test_an_id_whose_observations_nobody_knows_is_called_unknown():
    (finding,) = findings({"environment": "ALE/Pong-v5"}, node(memory=GIB, card=0))
    assert finding.severity is Severity.OK
    assert finding.sentence == (
        "memory of replay and batches is unknown: only ALE/Pong-v5 knows the size of its observations"
    )


def pictures(options=LARGE, **train):
    return {"environment": L2R, "environment_options": options, **train}


def test_what_neither_card_nor_host_holds_is_refused_with_the_setting_to_change():
    (finding,) = findings(pictures(), node())
    assert finding.severity is Severity.REFUSAL
    assert "replay takes 301Gi (500,000 transitions of 384x512x3)" in finding.sentence
    assert finding.sentence.endswith(": more than GPU0 of n (80Gi) or the memory of n (64Gi) holds")
    assert finding.hint == "For example --set train.replay_capacity=60000, or smaller observations."
    (finding,) = findings(pictures(replay_capacity=60_000), node())
    assert finding.severity is Severity.OK, "the proposed value fits"


def test_a_card_that_is_too_small_leaves_the_data_to_the_host():
    (finding,) = findings(pictures(ATARI), node(card=8 * GIB))
    assert (finding.severity, finding.sentence[-30:]) == (Severity.OK, "it fits the memory of n (64Gi)")
    (finding,) = findings(pictures(ATARI), node(card=8 * GIB), limit=4 * GIB)
    assert finding.severity is Severity.REFUSAL
    assert finding.sentence.endswith("more than GPU0 of n (8Gi) or the memory limit of learner (4Gi) holds")


@pytest.mark.parametrize(
    ("settings", "at", "severity", "end"),
    [
        ({"replay_device": "device"}, node(card=8 * GIB), Severity.REFUSAL, "of n (8Gi) holds beside networks"),
        ({"replay_device": "host"}, node(memory=4 * GIB), Severity.REFUSAL, "than the memory of n (4Gi) holds"),
        ({"device": "cpu"}, node(memory=4 * GIB), Severity.REFUSAL, "than the memory of n (4Gi) holds"),
        ({}, node(card=0, used=60 * GIB), Severity.WARNING, "of the memory of n (64Gi) only 4Gi are left"),
        ({}, node(card=0, memory=0), Severity.OK, "how much memory its node has is unknown"),
        ({"total_env_steps": 10_000}, node(card=0, memory=4 * GIB), Severity.OK, "it fits the memory of n (4Gi)"),
    ],
)
def test_settings_say_where_the_data_may_live(settings, at, severity, end):
    (finding,) = findings(pictures(ATARI, **settings), at)
    assert finding.severity is severity
    assert finding.sentence.endswith(end)


def test_the_size_of_a_card_may_come_from_its_measurement():
    unnamed = node(memory=GIB, gpu_use=(GpuUse(0, memory_bytes=80 * GIB),))
    unnamed = replace(unnamed, gpus=(replace(unnamed.gpus[0], memory_bytes=0),))
    (finding,) = findings(pictures(ATARI), unnamed)
    assert finding.sentence.endswith("it fits GPU0 of n")
    (finding,) = findings(pictures(ATARI), replace(unnamed, gpu_use=()))
    assert finding.severity is Severity.WARNING, "it may well fit a card whose size nobody tells"
    assert finding.sentence.endswith("the memory of n (1Gi) holds, and the memory of GPU0 of n is unknown")


@pytest.mark.parametrize(
    ("at", "name"),
    [(node(card=30 * GIB), r"GPU0 of n \(30Gi\)"), (node(card=0, memory=30 * GIB), r"the memory of n \(30Gi\)")],
)
def test_learners_that_fit_alone_and_not_together_are_a_warning(at, name):
    (alone,) = findings(pictures(ATARI), at)
    assert alone.severity is Severity.OK
    fits, warning = findings(pictures(ATARI), at, seeds=(0, 1, 2))
    assert fits == alone
    assert warning.severity is Severity.WARNING
    assert re.fullmatch(
        rf"the data of 3 learners takes [\d.]+Gi together, more than {name} holds", warning.sentence
    )


def test_rollouts_that_fit_nowhere_name_their_own_setting():
    (finding,) = findings(pictures(algorithm="ppo", ppo={"batch_steps": 1 << 18}), node())
    assert finding.severity is Severity.REFUSAL
    assert finding.hint == "Lower train.ppo.batch_steps, or the size of the observations."


@pytest.mark.parametrize("train", ["{", "[]"])
def test_settings_that_are_none_are_left_to_the_runtime(train):
    assert findings(train, node()) == ()


def test_every_mistake_in_the_settings_is_refused_and_once_for_all_seeds():
    wrong = {"replay_capacity": "all", "lr": 1, "sac": {"gama": 0.9, "tau": 2}}
    refused = findings(wrong, node(), seeds=(0, 1))
    assert all(found.severity is Severity.REFUSAL for found in refused)
    assert [found.sentence.removeprefix("train of exp-s0: ").partition("; known")[0] for found in refused] == [
        "replay_capacity is 'all'; it must be a whole number",
        "there is no setting 'lr'; did you mean 'sac.actor_lr'?",
        "SAC has no setting 'gama'",
        "SAC: tau is 2; it must be above 0 and at most 1",
    ]


def test_more_devices_than_the_learner_gets_are_refused():
    (refusal, *_) = findings({"devices": 2}, node())
    assert refusal.sentence == "train.devices is 2, and its learner gets 1 GPU"
    assert all(found.severity is Severity.OK for found in findings({"devices": 2}, node(card=0)))


def test_gpus_that_the_learner_would_not_use_are_named():
    two = replace(node(), gpus=(*node().gpus, replace(node().gpus[0], index=1, uuid="GPU-1")))
    (warning,) = [each for each in findings({}, two, gpus=2) if each.severity is not Severity.OK]
    assert (warning.severity, warning.subject) == (Severity.WARNING, "exp")
    assert warning.sentence == "train.devices is 1, and its learner gets 2 GPUs"
    assert warning.hint.startswith("Leave out train.devices, and it uses all;")
    assert all(found.severity is Severity.OK for found in findings({"devices": 2}, two, gpus=2))


def test_devices_that_the_learners_nodes_cannot_divide_are_refused():
    (refusal, *_) = findings({"devices": 3, "device": "cpu", "sac": {"batch_size": 258}}, node(card=0), nodes=2)
    assert refusal.sentence == "train.devices is 3, and its learner has 2 nodes with equal numbers of ranks"
    assert all(found.severity is Severity.OK for found in findings({"devices": 4}, node(card=0), nodes=2))


def test_nodes_of_a_learner_that_would_share_a_gpu_are_named():
    (*_, warning) = findings({"devices": 2}, node(), nodes=2)
    assert warning.severity is Severity.WARNING
    assert "exp-learner-0 and exp-learner-1 would share the GPU n/0" in warning.sentence
    assert all(each.severity is Severity.OK for each in findings({"devices": 2, "device": "cpu"}, node(), nodes=2))


def test_a_run_in_which_nobody_collects_is_named():
    at, acrobot = node(), {"environment": "Acrobot-v1", "algorithm": "ppo"}
    (warning, *_) = findings(acrobot, at, workers=False)
    assert warning.severity is Severity.WARNING
    assert "no workers, and environment Acrobot-v1 has no device form" in warning.sentence
    (refusal, *_) = findings({**acrobot, "collect": "device"}, at, workers=False)
    assert (refusal.severity, refusal.subject) == (Severity.REFUSAL, "exp")
    assert refusal.sentence == "train.collect is device, and environment Acrobot-v1 has no device form"
    for settings in ({**acrobot, "collect": "workers"}, {"collect": "device"}, {}):
        assert all(each.severity is Severity.OK for each in findings(settings, at, workers=False))


def test_a_class_of_ones_own_on_tensors_is_collected_from_where_the_settings_say_so():
    own = {"environment": "mass:Mass", "algorithm": "ppo"}
    (memory,) = findings({**own, "collect": "device"}, node(), workers=False)
    assert memory.severity is Severity.OK
    assert "only mass:Mass knows the size" in memory.sentence
    (warning, *_) = findings(own, node(), workers=False)
    assert warning.severity is Severity.WARNING
    assert "With train.collect: device the learner itself steps a class on tensors" in warning.hint


def test_a_rollout_of_a_learner_that_collects_by_itself_is_its_batch():
    own = {"collect": "device", "algorithm": "ppo"}
    (small,) = findings({**own, "num_envs": 16}, node(), workers=False)
    (default,) = findings(own, node(), workers=False)
    assert size(default.sentence) == pytest.approx(64 * size(small.sentence), rel=0.1)


def size(sentence):
    text = sentence.split("take ")[1].split()[0]
    return float(text[:-2]) * {"Ki": 1 / 1024, "Mi": 1.0}[text[-2:]]
