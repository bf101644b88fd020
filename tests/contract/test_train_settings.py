"""Wrong training settings have the same sentences on every backend, before anything is launched."""

from __future__ import annotations

import json

import pytest

from l2rtui.domain.preflight import refusals
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.services import launcher
from tests.cluster.conftest import IMAGE
from tests.contract.test_one_gpu import api_server, backend, engine

__all__ = ["api_server", "backend", "engine"]  # fixtures
pytestmark = pytest.mark.process

CARTPOLE = {"environment": "CartPole-v1"}
PPO = {**CARTPOLE, "algorithm": "ppo"}
WRONG = (
    ({"algorithm": "a2c"}, "algorithm is 'a2c'; it must be one of sac"),
    ({"algorithm": "PPO"}, "algorithm is 'PPO'"),
    ({"algorithm": 3}, "algorithm is 3"),
    ({**PPO, "preset": "none"}, "preset is 'none'; it must be sb3"),
    ({**PPO, "preset": ["sb3"]}, 'preset is ["sb3"]; it must be sb3'),
    ({**PPO, "preset": "cleanrl", "total_env_steps": "many"}, "total_env_steps is 'many'"),
    ({**CARTPOLE, "algorithm": "impala", "preset": "sb3"}, "preset: sb3 has no settings for impala"),
    ({"lr": 1}, "did you mean 'sac.actor_lr'"),
    ({**PPO, "lr": 1}, "did you mean 'ppo.lr'"),
    ({"learning_rate": 1}, "did you mean 'sac.actor_lr'"),
    ({"total_timesteps": 1e6}, "did you mean 'total_env_steps'"),
    ({"n_envs": 4}, "did you mean 'num_envs'"),
    ({"num_env": 4}, "did you mean 'num_envs'"),
    ({"zzz": 4}, "known are environment"),
    ({"sac": {"lr": 1}}, "SAC has no setting 'lr'"),
    ({"sac": {"gama": 0.9}}, "did you mean 'gamma'"),
    ({**PPO, "ppo": {"xyz": 1}}, "PPO has no setting 'xyz'"),
    ({"sac": 3}, "sac is 3; it must be an object"),
    ({"sac": {"tau": 2}}, "SAC: tau is 2; it must be above 0 and at most 1"),
    ({"sac": {"actor_lr": 0}}, "actor_lr is 0; it must be above 0"),
    ({"sac": {"actor_lr": "small"}}, "actor_lr is 'small'; it must be a number"),
    ({"sac": {"hidden": []}}, "needs at least one layer"),
    ({"sac": {"batch_size": 2.5}}, "batch_size is 2.5; it must be a whole number"),
    ({"num_envs": 0}, "num_envs is 0; it must be a whole number, at least 1"),
    ({"num_envs": "many"}, "num_envs is 'many'; it must be a whole number"),
    ({"num_envs": True}, "num_envs is true"),
    ({"total_env_steps": "1e6"}, "total_env_steps is '1e6'; it must be a whole number or null"),
    ({"updates_per_step": 0}, "updates_per_step is 0; it must be above 0"),
    ({"hidden": 64}, "hidden is 64; it must be a list of whole numbers or null"),
    ({"convolutions": [[1, 2]]}, "a list of lists of three whole numbers"),
    ({"device": "tpu"}, "device is 'tpu'; it must be one of auto, cpu, cuda, mps"),
    ({"precision": "fp16"}, "precision is 'fp16'"),
    ({"compile": "often"}, "compile is 'often'; it must be true, false or auto"),
    ({"lockstep": "yes"}, "lockstep is 'yes'; it must be true or false"),
    ({"band_steps": 10}, "band_steps is 10; it must hold at least two segments"),
    ({"memory": "rnn"}, "memory: kind is 'rnn'; it must be gru or lstm"),
    ({"encoder": "resnet"}, "encoder: name is 'resnet'"),
    ({"network": "mine"}, "network: name is 'mine'"),
    ({**PPO, "ppo": {"batch_steps": 100}}, "batch_steps is 100; it must be a multiple of"),
    ({**CARTPOLE, "algorithm": "td3"}, "CartPole-v1 takes choices and TD3 needs numbers"),
    ({"algorithm": "dqn"}, "racing takes numbers and DQN one of several choices"),
    ({"algorithm": "bc"}, "collect: dataset and dataset: FOLDER go together"),
    ({"sac": {"random_shift": 4}}, "random_shift shifts pictures, and racing shows none"),
    ({"algorithm": "td3", "td3": {"exploration_end": 0.1}}, "go together; set both or neither"),
)


def spec(train: object) -> RunSpec:
    sets = (
        SetSpec("learner", Role.LEARNER, ("l2r-runtime", "learner")),
        SetSpec("w", Role.WORKER, ("l2r-runtime", "worker"), may_use_cpu=True),
    )
    return RunSpec(Kind.LEARNER_WORKERS, "run", "run", sets, image=IMAGE, train=json.dumps(train))


async def test_a_wrong_setting_has_the_same_sentence_everywhere(backend):
    assert len(WRONG) >= 40
    for train, words in WRONG:
        prepared = await launcher.prepare_runs(backend, [spec(train)])
        sentences = [found.sentence for found in refusals(prepared.findings) if found.subject == "train"]
        assert len(sentences) == 1, (train, sentences)
        assert sentences[0].startswith("train of run: ")
        assert words in sentences[0]


async def test_all_mistakes_are_said_together(backend):
    train = {"num_envs": 0, "lr": 1, "sac": {"tau": 2, "gama": 1}}
    prepared = await launcher.prepare_runs(backend, [spec(train)])
    assert len([found for found in refusals(prepared.findings) if found.subject == "train"]) == 4
