"""What foreign environments give is compared with their spaces: each fault of a bug report is one sentence.

The classes are those of public reports (hill-a/stable-baselines#1162, DLR-RM/stable-baselines3#1422, #1201, #897,
Farama-Foundation/Gymnasium#1445 and others), each beside its siblings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from runtime.base import contract
from runtime.base.errors import EnvironmentFault, NotFiniteError
from runtime.rl.envs.base import StepResult, VectorEnv
from runtime.rl.envs.gym_spaces import FIRST_STEPS, SAMPLED
from runtime.rl.envs.registry import make_vector_env

NAME = "tests/Foreign-v0"
FOUR = spaces.Box(-1, 1, (4,), np.float32)
PICTURE = spaces.Box(0, 255, (16, 16, 3), np.uint8)
NESTED = spaces.Dict(
    {"camera": PICTURE, "inner": spaces.Tuple((FOUR, spaces.Discrete(3))), "switch": spaces.MultiBinary(2)}
)


class Foreign(gymnasium.Env[Any, Any]):
    """Environment whose answers, from step `late` on, are what a test says."""

    made: list[Foreign] = []  # noqa: RUF012

    def __init__(self, **faults: Any) -> None:
        self.faults = faults
        self.observation_space = faults.get("space", FOUR)
        self.action_space = faults.get("action_space", spaces.Discrete(2))
        self.steps, self.is_closed, self.taken = 0, False, list[Any]()
        self.late = faults.get("late", 0)
        Foreign.made.append(self)

    def _obs(self) -> Any:
        if "obs" in self.faults and self.steps >= self.late:
            return self.faults["obs"]
        return right(self.observation_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.faults["reset"] if "reset" in self.faults else (self._obs(), {})

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.taken.append(action)
        values = [self._obs(), 1.0, False, self.steps % 20 == 0, {}]
        if self.steps >= self.late:
            for place, name in enumerate(("", "reward", "terminated", "truncated", "info")):
                values[place] = self.faults.get(name, values[place])
            if "step" in self.faults:
                return self.faults["step"]
        return tuple(values)

    def close(self) -> None:
        self.is_closed = True


def right(space: Any) -> Any:
    """An observation of the space that a fault is put into."""
    if isinstance(space, spaces.Dict):
        return {key: right(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(right, space.spaces))
    if isinstance(space, spaces.Box):
        return np.full(space.shape, 0.5 if space.dtype != np.uint8 else 7, space.dtype)
    return 1 if isinstance(space, spaces.Discrete) else np.zeros(space.shape, np.int8)


def nested(**changed: Any) -> Any:
    return {**right(NESTED), **changed}


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    gymnasium.register(NAME, entry_point=Foreign)
    yield
    del gymnasium.registry[NAME]


def drive(env: VectorEnv, steps: int) -> list[StepResult]:
    env.reset(0)
    rng = np.random.default_rng(0)
    return [env.step(env.action_space.at_random(env.num_envs, rng)) for _ in range(steps)]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "short": ({"obs": np.full(3, 0.5, np.float32)}, r"observation of copy 0 has the shape \(3,\); expected \(4,\)"),
    "long": ({"obs": np.zeros(5, np.float32)}, r"has the shape \(5,\); expected \(4,\)"),
    "one number": ({"obs": 0.5}, r"has the shape \(\); expected \(4,\)"),
    "a row": ({"obs": np.zeros((1, 4), np.float32)}, r"has the shape \(1, 4\); expected \(4,\)"),
    "none": ({"obs": None}, "observation of copy 0 is None; expected numbers of Box"),
    "text": ({"obs": "seen"}, "observation of copy 0 is 'seen'; expected numbers"),
    "ragged": ({"obs": [[1.0], [1.0, 2.0]]}, r"observation of copy 0 is \[\[1.0\], \[1.0, 2.0\]\]; expected"),
    "beyond": ({"obs": np.array([0, 0, 3, 0])}, r"observation of copy 0 is 3 at \[2\]; expected -1 to 1"),
    "not finite": ({"obs": np.array([0, np.nan, 0, 0])}, "observation of copy 0 has nan, which is not finite"),
    "old reset": ({"reset": np.zeros(4)}, r"reset of copy 0 returned an array of float64 of the shape \(4,\)"),
    "reset without info": ({"reset": (np.zeros(4), None)}, "reset of copy 0 returned None as the info"),
    "floats for bytes": (
        {"space": PICTURE, "obs": np.full((16, 16, 3), 0.9, np.float32)},
        r"observation of copy 0 is of float32 \(first 0.9\); expected whole numbers of Box",
    ),
    "a byte too large": (
        {"space": PICTURE, "obs": np.full((16, 16, 3), 300)},
        r"observation of copy 0 is 300 at \[0, 0, 0\]; expected 0 to 255",
    ),
    "a negative byte": ({"space": PICTURE, "obs": np.full((16, 16, 3), -5)}, "is -5 at .*expected 0 to 255"),
    "a turned picture": (
        {"space": PICTURE, "obs": np.zeros((3, 16, 16), np.uint8)},
        r"has the shape \(3, 16, 16\); expected \(16, 16, 3\)",
    ),
    "a wrong choice": ({"space": spaces.Discrete(3), "obs": -1}, "observation of copy 0 is -1; expected 0 to 2"),
    "half a choice": ({"space": spaces.Discrete(3), "obs": 1.0}, "is of float64 .*expected whole numbers"),
    "wrong choices": (
        {"space": spaces.MultiDiscrete([2, 3]), "obs": np.array([1, 3])},
        r"observation of copy 0 is 3 at \[1\]; expected 0 to 2",
    ),
    "no switch": ({"space": spaces.MultiBinary(2), "obs": np.array([0, 2])}, r"is 2 at \[1\]; expected 0 to 1"),
    "a part is lacking": (
        {"space": NESTED, "obs": {"camera": right(PICTURE), "switch": np.zeros(2)}},
        "observation of copy 0 has the parts 'camera', 'switch'; expected 'camera', 'inner', 'switch'",
    ),
    "a part too many": ({"space": NESTED, "obs": nested(more=1)}, "has the parts .*'more'.*; expected"),
    "no dict": ({"space": NESTED, "obs": np.zeros(4)}, "observation of copy 0 is an array .*; expected a dict of"),
    "a picture within": (
        {"space": NESTED, "obs": nested(camera=np.zeros((16, 16, 3)))},
        r"observation\['camera'\] of copy 0 is of float64",
    ),
    "a vector within": (
        {"space": NESTED, "obs": nested(inner=(np.zeros(3), 1))},
        r"observation\['inner'\]\[0\] of copy 0 has the shape \(3,\); expected \(4,\)",
    ),
    "a choice within": (
        {"space": NESTED, "obs": nested(inner=(np.zeros(4), 3))},
        r"observation\['inner'\]\[1\] of copy 0 is 3; expected 0 to 2",
    ),
    "a short tuple": (
        {"space": NESTED, "obs": nested(inner=(np.zeros(4),))},
        r"observation\['inner'\] of copy 0 is 1 parts; expected a tuple of 2 parts",
    ),
    "rewards": ({"reward": np.ones(2)}, r"reward of copy 0 is an array .* shape \(2,\); expected a number"),
    "no reward": ({"reward": None}, "reward of copy 0 is None; expected a number"),
    "a reward of text": ({"reward": "1"}, "reward of copy 0 is '1'; expected a number"),
    "an infinite reward": ({"reward": float("inf")}, "reward of copy 0 is inf, which is not finite"),
    "NaN in an array": ({"reward": np.array([np.nan])}, "reward of copy 0 is nan, which is not finite"),
    "no info": ({"info": None}, "info of copy 0 is None; expected a dict"),
    "no end": ({"terminated": None}, "terminated of copy 0 is None; expected true or false"),
    "ends": ({"truncated": np.zeros(2, bool)}, "truncated of copy 0 is an array .*; expected true or false"),
    "four values": ({"step": (np.zeros(4), 1.0, False, {})}, "step of copy 0 returned 4 values; expected five"),
    "no values": ({"step": None}, "step of copy 0 returned None; expected five"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("late", [0, 3])
def test_each_fault_is_a_sentence_that_names_environment_value_expected_and_actual(fault: str, late: int) -> None:
    faults, sentence = FAULTS[fault]
    env = make_vector_env(NAME, 2, options={**faults, "late": late})
    error = NotFiniteError if "finite" in sentence else EnvironmentFault
    with pytest.raises(error, match=sentence) as caught:
        drive(env, 5)
    assert str(caught.value).startswith(f"{NAME}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(FOUR, None),
        spaces.OneOf([FOUR, spaces.Discrete(2)]),
        spaces.Dict({"numbers": FOUR, "mission": spaces.Text(5)}),
        None,
        (4,),
    ],
    ids=repr,
)
def test_an_observation_that_no_network_takes_is_a_sentence(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Foreign, "made", [])
    with pytest.raises(ValueError, match=f"^{NAME}: observations of .* are not supported; wrap it"):
        make_vector_env(NAME, 1, options={"space": space})
    assert all(env.is_closed for env in Foreign.made)


@pytest.mark.parametrize(
    "space",
    [spaces.Text(5), spaces.Box(0, 5, (2,), np.int64), spaces.Dict({"a": spaces.Discrete(2)}), None],
    ids=repr,
)
def test_an_action_that_no_policy_gives_is_a_sentence(space: Any) -> None:
    with pytest.raises(ValueError, match=f"^{NAME}: actions of .* are not supported; wrap it"):
        make_vector_env(NAME, 1, options={"action_space": space})


NOTHING = spaces.Box(-1.0, 1.0, (0,))


@pytest.mark.parametrize("space", [NOTHING, spaces.Dict({"a": NOTHING})], ids=repr)
def test_an_observation_without_a_number_is_a_sentence(space: Any) -> None:
    with pytest.raises(ValueError, match=f"^{NAME}: observations of .* have no number; give one"):
        make_vector_env(NAME, 1, options={"space": space})


@pytest.mark.parametrize("space", [NOTHING, spaces.Box(-1.0, 1.0, (2, 0))], ids=repr)
def test_an_action_without_a_number_is_a_sentence(space: Any) -> None:
    with pytest.raises(ValueError, match=f"^{NAME}: actions of .* have no number; a policy needs"):
        make_vector_env(NAME, 1, options={"action_space": space})


@pytest.mark.parametrize("space", [spaces.Box(-2.0, 3.0, ()), spaces.Box(-2.0, 3.0, (2, 2))], ids=repr)
def test_an_action_has_the_shape_of_its_space(space: spaces.Box) -> None:
    env: Any = make_vector_env(NAME, 1, options={"action_space": space})
    drive(env, 3)
    assert all(space.contains(action) for action in env.envs[0].unwrapped.taken)


@pytest.mark.parametrize("kind", ["observation_space", "action_space"])
@pytest.mark.parametrize("options", [{}, {"frame_stack": 2}])
def test_a_space_that_is_lacking_is_named(
    kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(self: Foreign, **faults: Any) -> None:
        begin(self, **faults)
        delattr(self, kind)

    begin = Foreign.__init__
    monkeypatch.setattr(Foreign, "__init__", without)
    monkeypatch.setattr(Foreign, "made", [])
    with pytest.raises(EnvironmentFault, match=f"^{NAME} has no {kind}; it must declare one of gymnasium.spaces"):
        make_vector_env(NAME, 1, options=options)
    assert all(env.is_closed for env in Foreign.made)


@pytest.mark.parametrize("frames", ["sixty", -5, 0, None])
def test_metadata_that_say_no_time_of_a_step_are_no_fault(frames: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Foreign, "metadata", {"render_modes": [], "render_fps": frames})
    assert make_vector_env(NAME, 1, options={}).step_seconds == 0.0


@pytest.mark.parametrize("fault", ["short", "floats for bytes", "a wrong choice", "no info", "four values"])
def test_wrappers_do_not_hide_whose_fault_it_is(fault: str) -> None:
    faults, sentence = FAULTS[fault]
    env = make_vector_env(NAME, 1, options={**faults, "frame_stack": 2})
    with pytest.raises(EnvironmentFault, match=sentence.replace("copy 0", "(a copy|an instance, its own)")):
        drive(env, 3)


@pytest.mark.parametrize(
    ("obs", "space", "row"),
    [
        ([0.5, 0, 0, 1], FOUR, [0.5, 0, 0, 1]),
        (np.array([1.000001, 0, 0, 0]), FOUR, [1.000001, 0, 0, 0]),
        (np.float64(2.5), spaces.Box(-np.inf, np.inf, ()), [2.5]),
        (np.array([2]), spaces.Discrete(3), [0, 0, 1]),
        (np.int64(4), spaces.Discrete(3, start=3), [0, 1, 0]),
        (np.array([1, 2]), spaces.MultiDiscrete([2, 3]), [0, 1, 0, 0, 1]),
        (np.array([True, False]), spaces.MultiBinary(2), [1, 0]),
    ],
)
def test_what_means_the_same_is_taken(obs: Any, space: Any, row: list[float]) -> None:
    env = make_vector_env(NAME, 2, options={"obs": obs, "space": space})
    assert env.reset(0).tolist() == [pytest.approx(row)] * 2


@pytest.mark.parametrize("reward", [np.array([2.0]), np.float32(2), 2, np.array(2)])
def test_a_reward_of_one_number_is_taken_whatever_holds_it(reward: Any) -> None:
    (result,) = drive(make_vector_env(NAME, 2, options={"reward": reward, "terminated": np.array([True])}), 1)
    assert result.reward.tolist() == [2.0, 2.0]
    assert result.terminated.all()


def test_a_number_beyond_its_bounds_is_found_later_too() -> None:
    env = make_vector_env(NAME, 1, options={"obs": np.full(4, 2.0), "late": FIRST_STEPS + 20})
    with pytest.raises(EnvironmentFault, match="is 2 at"):
        drive(env, FIRST_STEPS + 21 + 2 * SAMPLED)


def test_bounds_that_are_no_bounds_can_be_left_unchecked() -> None:
    env = make_vector_env(NAME, 1, options={"obs": np.full(4, 2.0), "check_bounds": False})
    assert drive(env, 3)[-1].obs.tolist() == [[2.0] * 4]
    with pytest.raises(ValueError, match="check_bounds is 1; it must be true or false"):
        make_vector_env(NAME, 1, options={"check_bounds": 1})


def test_an_observation_that_the_environment_writes_again_is_not_changed_in_the_rows() -> None:
    own = np.zeros(4, np.float32)
    env = make_vector_env(NAME, 1, options={"obs": own})
    first = env.reset(0)
    own[:] = 1.0
    assert first.tolist() == [[0.0] * 4]


def test_copies_that_differ_are_a_sentence_and_all_of_them_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    Foreign.made.clear()
    made: list[Foreign] = []

    def differ(self: Foreign, **faults: Any) -> None:
        made.append(self)
        original(self, **faults, **({"space": spaces.Box(-1, 1, (5,))} if len(made) == 3 else {}))

    original = Foreign.__init__
    monkeypatch.setattr(Foreign, "__init__", differ)
    with pytest.raises(ValueError, match=r"observation_space of copy 2 is Box.*\(5,\).* copy 0 Box.*\(4,\)"):
        make_vector_env(NAME, 3, options={})
    assert [env.is_closed for env in made] == [True] * 3


@pytest.mark.parametrize(
    ("space", "lowest", "highest"),
    [
        (spaces.Box(0.0, np.inf, (1,)), 0.0, 2.0),
        (spaces.Box(5.0, np.inf, (1,)), 5.0, 7.0),
        (spaces.Box(-5.0, np.inf, (1,)), -1.0, 1.0),
        (spaces.Box(-np.inf, 0.0, (1,)), -2.0, 0.0),
        (spaces.Box(-np.inf, 9.0, (1,)), -1.0, 1.0),
        (spaces.Box(-np.inf, np.inf, (1,)), -1.0, 1.0),
        (spaces.Box(-3.0, 1.0, (1,)), -3.0, 1.0),
        (spaces.Box(np.float32(0.1), np.float32(0.3), (1,)), 0.1, 0.3),
        (spaces.Box(-3e38, 3e38, (1,)), -3e38, 3e38),
        (spaces.Box(-1.7e308, 1.7e308, (1,), np.float64), -1.7e308, 1.7e308),
    ],
)
def test_actions_stay_inside_their_bounds(space: spaces.Box, lowest: float, highest: float) -> None:
    env: Any = make_vector_env(NAME, 1, options={"action_space": space})
    env.reset(0)
    for number in (-1.0, 1.0, -7.0, 0.3):
        env.step(np.array([[number]], np.float32))
    taken = env.envs[0].unwrapped.taken
    assert all(space.contains(action) for action in taken)
    assert [float(action[0]) for action in taken[:2]] == pytest.approx([lowest, highest])


def vector(change: Callable[[list[Any]], Any]) -> type:
    class Vector(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            return tuple(change(list(super().step(actions))))

    return Vector


def put(place: int, value: Any) -> Callable[[list[Any]], Any]:
    return lambda values: [*values[:place], value, *values[place + 1 :]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (put(0, np.zeros((2, 3))), r"observation of copy 0 has the shape \(3,\); expected \(4,\)"),
        (put(0, np.full((2, 4), 5.0)), r"observation of copy 0 is 5 at \[0\]; expected -1 to 1"),
        (put(1, np.zeros((2, 3))), r"rewards are of float64 and the shape \(2, 3\); expected one of each of 2"),
        (put(1, np.array([0.0, np.inf])), "reward of copy 1 is inf, which is not finite"),
        (put(2, np.zeros(3)), r"terminated are of float64 and the shape \(3,\)"),
        (lambda values: values[:4], "returned other values than the five"),
        (put(4, None), "returned other values than the five"),
    ],
)
def test_vector_environments_are_compared_too(change: Callable[[list[Any]], Any], sentence: str) -> None:
    kind = vector(change)
    gymnasium.register(
        "tests/ForeignVector-v0",
        vector_entry_point=lambda num_envs: kind([Foreign] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP),
    )
    try:
        env: Any = make_vector_env("tests/ForeignVector-v0", 2, options={})
        with pytest.raises((EnvironmentFault, NotFiniteError), match=sentence):
            drive(env, 3)
        env.close()
    finally:
        del gymnasium.registry["tests/ForeignVector-v0"]


GAME = """
import numpy as np
from gymnasium.spaces import Box, Discrete


class Game:
    possible_agents = ["a", "b"]
    closed = []

    def __init__(self, place=None, value=None, reset=None, spaces=False):
        self.place, self.value, self.begin, self.spaces = place, value, reset, spaces

    def observation_space(self, agent):
        return Box(-1, 1, (2,))

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return self.begin if self.begin is not None else ({agent: np.zeros(2) for agent in self.agents}, {})

    def step(self, actions):
        values = [{agent: what for agent in actions} for what in (np.zeros(2), 1.0, False, False, {})]
        if self.place in range(5):
            values[self.place] = self.value
        return tuple(values) if self.place != 9 else tuple(values[:4])

    def close(self):
        self.closed.append(self)


parallel_env = Game
"""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"reset": {"a": 1}}, "reset of game 0 returned .*; expected an observation and an info"),
        (
            {"place": 0, "value": {"a": np.zeros(3), "b": np.zeros(2)}},
            r"observation of agent a has the shape \(3,\)",
        ),
        ({"place": 0, "value": {"a": np.zeros(2), "b": np.full(2, 4)}}, r"observation of agent b is 4 at \[0\]"),
        ({"place": 0, "value": [1, 2]}, "observations of game 0 are list; expected a dict by agent"),
        ({"place": 1, "value": {"a": 1.0}}, "rewards of game 0 lack 'b', which acted"),
        ({"place": 1, "value": {"a": 1.0, "b": np.inf}}, "reward of agent b of game 0 is inf"),
        ({"place": 2, "value": {"a": None, "b": False}}, "terminated of agent a of game 0 is None"),
        ({"place": 4, "value": None}, "infos of game 0 are NoneType; expected a dict by agent"),
        ({"place": 9}, "step of game 0 returned 4 values"),
    ],
)
def test_games_of_several_agents_are_compared_too(
    options: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "foreign_game.py").write_text(GAME)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "foreign_game", raising=False)
    env: Any = make_vector_env("pettingzoo:foreign_game", 4, options=options)
    with pytest.raises((EnvironmentFault, NotFiniteError), match=sentence):
        drive(env, 2)
    env.close()
    assert len(sys.modules["foreign_game"].Game.closed) == 2


@pytest.mark.process
@pytest.mark.parametrize("end", ["sys.exit(0)", "raise KeyboardInterrupt"])
def test_an_environment_that_ends_the_process_is_no_run_that_is_done(end: str, tmp_path: Path) -> None:
    lines = ["import sys, gymnasium", f"def make(): {end}", "gymnasium.register('Ends-v0', entry_point=make)"]
    (tmp_path / "ending.py").write_text("\n".join(lines))
    settings = {"environment": "ending:Ends-v0", "algorithm": "ppo"}
    variables = {
        **os.environ,
        contract.ENV_ENDPOINT: f"ipc://{tmp_path}",
        contract.ENV_DIR: str(tmp_path / "run"),
        contract.ENV_CONFIG: json.dumps(settings),
        "PYTHONPATH": f"{Path.cwd()}:{tmp_path}",
    }
    command = [sys.executable, "-m", "runtime", "learner"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == contract.EXIT_ENVIRONMENT
    assert "l2r-runtime: the environment's code ended the process" in done.stderr
    assert "Traceback" not in done.stderr
