"""Games of several agents by PettingZoo's parallel interface: each agent is a copy, and all share one policy.

Terry et al., *PettingZoo* (2021, arXiv:2009.14471), and parameter sharing after Gupta et al. 2017. An agent whose
episode ends before those of its game has no place to begin anew: until the game does, its rows are padding (zeros,
no reward, terminated), which is no episode and is not recorded, as SuperSuit's `black_death` pads it. PettingZoo
itself is imported only where the environment comes from there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.base.environments import CHECK_BOUNDS, FRAME_STACK, PETTINGZOO, PROCESSES, WRAPPERS
from runtime.base.errors import EnvironmentFault, SetupError
from runtime.rl.envs.base import EpisodeSummary, StepResult, close_all
from runtime.rl.envs.gym_spaces import RowReader, actions, flag_value, frame_seconds, reset_values, reward_value

_MAKER: Final = "parallel_env"
"""Name of the function of a module that makes a game, by PettingZoo's convention."""
_ANSWERS: Final = ("observations", "rewards", "terminations", "truncations", "infos")
_OF_ALL: Final = _ANSWERS[1:4]
"""Those that every agent which acted has; one that left may be without an observation."""
Game = Any
"""Object with the methods and attributes of `pettingzoo.ParallelEnv`."""


class ParallelGames:
    """Games whose agents are the copies; see ``runtime.rl.envs.base.VectorEnv`` for the methods."""

    def __init__(self, name: str, num_envs: int, options: Mapping[str, Any]) -> None:
        """Make as many games as have ``num_envs`` agents; fewer agents than one game has are only for its spaces.

        ValueError for a module that is not there, options that it does not take, and agents that differ.
        """
        for option in {FRAME_STACK, WRAPPERS, PROCESSES} & set(options):
            raise ValueError(f"{name} cannot take the option {option}: it wraps single agents; leave it out")
        self._name, self.num_envs = name, num_envs
        game_options = dict(options)
        is_exact = game_options.pop(CHECK_BOUNDS, True)
        make = _maker(name, game_options)
        self._games: list[Game] = []
        try:
            self._games.append(game := make())
            self._agents = _alike_agents(game, name)
            first = self._agents[0]
            self._rows = RowReader(game.observation_space(first), name, is_exact=is_exact)
            self.obs_space = self._rows.obs_space
            self.action_space, self._act = actions(game.action_space(first), name)
            self.step_seconds = frame_seconds(game)
            if num_envs >= len(self._agents):
                self._check_count()
            for number in range(1, num_envs // len(self._agents)):
                self._games.append(other := make())
                self._check_alike(number, other)
        except BaseException:
            self.close()
            raise
        self._obs = np.zeros((num_envs, self.obs_space.width), self.obs_space.dtype)
        """Rows of the agents as they are now; zeros of those that are absent."""
        self._is_present = np.zeros(num_envs, np.bool_)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._return = np.zeros(num_envs)

    def _check_alike(self, number: int, game: Game) -> None:
        first = self._agents[0]
        if _alike_agents(game, self._name) != self._agents or game.observation_space(first) != self._rows.space:
            raise ValueError(f"{self._name}: game {number} has other agents or observations than game 0")

    def _check_count(self) -> None:
        agents = len(self._agents)
        if self.num_envs % agents:
            raise ValueError(
                f"{self._name} has {agents} agents, each a copy, and {self.num_envs} copies make no whole games: "
                f"take a multiple of {agents} for num_envs and eval_episodes"
            )

    def reset(self, seed: int) -> NDArray[Any]:
        """Reset every game. SetupError for fewer copies than a game has agents."""
        try:
            self._check_count()
        except ValueError as error:
            raise SetupError(str(error)) from error
        self._obs = np.zeros_like(self._obs)
        for number in range(len(self._games)):
            self._begin(number, seed + number)
        return self._obs

    def _begin(self, number: int, seed: int | None = None) -> None:
        """Reset a game, in the rows of its agents."""
        observations = reset_values(self._games[number].reset(seed=seed), self._name, f"game {number}")
        self._by_agent("observations", number, observations)
        rows = slice(number * len(self._agents), (number + 1) * len(self._agents))
        self._steps[rows], self._return[rows], self._is_present[rows] = 0, 0.0, False
        self._obs[rows] = 0
        self._see(number, observations)

    def _see(self, number: int, observations: Mapping[Any, Any]) -> None:
        """Write the observations of the agents that play."""
        playing = set(self._games[number].agents) & set(observations)
        observed = [index for index, agent in enumerate(self._agents) if agent in playing]
        if not observed:
            return
        rows = number * len(self._agents) + np.array(observed)
        names = [self._agents[index] for index in observed]
        self._obs[rows] = self._rows.read([observations[agent] for agent in names], names, "agent")
        self._is_present[rows] = True

    def _by_agent(self, what: str, number: int, values: Any, agents: Iterable[Any] = ()) -> None:
        """Raise EnvironmentFault unless ``values`` is a dict that has all of ``agents``."""
        if not isinstance(values, Mapping):
            raise EnvironmentFault(
                f"{self._name}: {what} of game {number} are {type(values).__name__}; expected a dict by agent"
            )
        if missing := [agent for agent in agents if agent not in values]:
            raise EnvironmentFault(
                f"{self._name}: {what} of game {number} lack {missing[0]!r}, which acted; there are "
                f"{', '.join(map(repr, values)) or 'none'}"
            )

    def step(self, action: NDArray[Any]) -> StepResult:
        """Advance every game by one step, and reset games without players."""
        count, agents = self.num_envs, self._agents
        acted = self._is_present.copy()
        reward = np.zeros(count, np.float32)
        # Padding is terminated, so that nothing is expected of it and nothing before it expects anything of it.
        terminated, truncated = ~acted, np.zeros(count, np.bool_)
        final_obs = np.zeros_like(self._obs)
        self._obs = np.zeros_like(self._obs)
        episodes: list[EpisodeSummary] = []
        for number, game in enumerate(self._games):
            first = number * len(agents)
            moves = {agent: first + at for at, agent in enumerate(agents) if acted[first + at]}
            answers = game.step({agent: self._act(action[row]) for agent, row in moves.items()})
            if not isinstance(answers, tuple) or len(answers) != len(_ANSWERS):
                got = f"{len(answers)} values" if isinstance(answers, tuple) else type(answers).__name__
                raise EnvironmentFault(
                    f"{self._name}: step of game {number} returned {got}; expected five: {', '.join(_ANSWERS)}"
                )
            for what, values in zip(_ANSWERS, answers, strict=True):
                self._by_agent(what, number, values, moves if what in _OF_ALL else ())
            observations, rewards, terminations, truncations, _ = answers
            self._is_present[first : first + len(agents)] = False
            for agent, row in moves.items():
                whose = f"agent {agent} of game {number}"
                reward[row] = reward_value(rewards[agent], self._name, whose)
                terminated[row] = flag_value(terminations[agent], "terminated", self._name, whose)
                # Some environments report both; the end by the rules wins, so that no value is bootstrapped. One
                # that leaves without either has been cut.
                is_cut = flag_value(truncations[agent], "truncated", self._name, whose) or agent not in game.agents
                truncated[row] = is_cut and not terminated[row]
                self._steps[row] += 1
                self._return[row] += reward[row]
                if terminated[row] or truncated[row]:
                    episodes.append(EpisodeSummary(row, int(self._steps[row]), float(self._return[row])))
                    self._steps[row], self._return[row] = 0, 0.0
            observed = [agent for agent in moves if agent in observations]
            if observed:
                final_obs[[moves[agent] for agent in observed]] = self._rows.read(
                    [observations[a] for a in observed], observed, "agent"
                )
            if game.agents:
                self._see(number, observations)
            else:
                self._begin(number)
        absent = None if acted.all() else ~acted
        return StepResult(self._obs, reward, terminated, truncated, final_obs, tuple(episodes), absent=absent)

    def close(self) -> None:
        """Close every game."""
        close_all(self._games, self._name)
        self._games = []

    def render(self) -> NDArray[np.uint8] | None:
        """Return the picture (height, width, 3) of the first game; None where it was made without one."""
        picture = self._games[0].render()
        return np.asarray(picture, dtype=np.uint8) if isinstance(picture, np.ndarray) else None


def _maker(name: str, options: dict[str, Any]) -> Callable[[], Game]:
    """Return the factory of a game. Raises ValueError if its module is missing or refuses the options."""
    try:
        make = _entry_point(name.removeprefix(PETTINGZOO))
    # Whatever a module does at its import is its own: a sentence names it.
    except Exception as error:
        raise ValueError(
            f"{name} cannot be imported ({type(error).__name__}: {error}); pip install pettingzoo and what the "
            "environment needs, or name a module of another package"
        ) from error
    if make is None:
        raise ValueError(f"{name}: the module has no {_MAKER}, so its agents do not act at the same time")

    def game() -> Game:
        try:
            return make(**options)
        # Foreign code may raise anything; the sentence names the environment.
        except Exception as error:
            raise ValueError(f"{name} cannot be made with the options {options}: {error}") from error

    return game


def _entry_point(module: str) -> Callable[..., Game] | None:
    """Return the maker of an id in PettingZoo's registry (with a slash), or of a module; None if that has none."""
    if "/" in module:
        return partial(import_module("pettingzoo").make, "parallel", module)
    try:
        is_theirs = find_spec(f"pettingzoo.{module}") is not None
    except ModuleNotFoundError:
        is_theirs = False
    with warnings.catch_warnings():
        # From 1.27 on its own modules ask for the registry; earlier versions have none.
        warnings.simplefilter("ignore", DeprecationWarning)
        maker: Callable[..., Game] | None = getattr(
            import_module(f"pettingzoo.{module}" if is_theirs else module), _MAKER, None
        )
    return maker


def _alike_agents(game: Game, name: str) -> tuple[Any, ...]:
    """Return the agents of a game. ValueError unless one policy can act for all of them."""
    agents = tuple(getattr(game, "possible_agents", ()))
    if not agents:
        raise ValueError(f"{name} does not say who its possible_agents are; one policy needs to know how many")
    for kind in ("observation", "action"):
        spaces = [getattr(game, f"{kind}_space")(agent) for agent in agents]
        for agent, space in zip(agents, spaces, strict=True):
            if space != spaces[0]:
                raise ValueError(
                    f"{name}: the {kind}s of {agents[0]} are {spaces[0]} and those of {agent} {space}; one policy "
                    "acts for all, so they must be alike: pad them by a wrapper (SuperSuit's pad_observations)"
                )
    return agents
