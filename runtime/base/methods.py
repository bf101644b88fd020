"""Settings of the learning methods as typed data, without torch and NumPy.

Workers read some of them (how many steps a reward is summed over, how large a segment must be) and launchers check
all of them, so they are separate from the methods. The ``Config`` of a user-defined method derives from
``ReplayConfig`` or ``RolloutConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, Self

from runtime.base import replay_memory
from runtime.base.setting import (
    Count,
    Natural,
    NotNegative,
    Positive,
    Share,
    WholeShare,
    Widths,
    mistake,
    read_fields,
    setting,
    types_of,
)

Head = Literal["squashed", "gaussian", "categorical", "greedy", "deterministic"]
"""Meaning of the outputs. ``squashed``: means, then log standard deviations, of a Gaussian behind a tanh (SAC).
``gaussian``: means; the log standard deviations are parameters of their own (PPO). ``categorical``: logits of each
choice. ``greedy``: a value of each choice, of which the largest is taken but for a share at random (DQN).
``deterministic``: numbers before a tanh, to whose results noise is added (TD3)."""
_HAARNOJA: Final = "Haarnoja et al. 2018, arXiv:1812.05905"
_SCHAUL: Final = "Schaul et al. 2016, arXiv:1511.05952"
_SCHULMAN: Final = "Schulman et al. 2017, arXiv:1707.06347"
_ESPEHOLT: Final = "Espeholt et al. 2018, arXiv:1802.01561"
_MNIH: Final = "Mnih et al. 2015, doi:10.1038/nature14236"
_FUJIMOTO: Final = "Fujimoto et al. 2018, arXiv:1802.09477"


class Actions(Protocol):
    """Actions of an environment, as ``runtime.rl.spaces.ActionSpace`` has them."""

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of choices of each action; empty for numbers."""


@dataclass(frozen=True, slots=True)
class MethodConfig:
    """Settings of every method."""

    label: ClassVar[str] = "method"
    """Name of the method in sentences."""

    hidden: Annotated[
        Widths,
        setting(
            "Widths of the hidden layers of each network.",
            when="Wider costs time before it helps on a CPU.",
            unit="units",
        ),
    ] = replay_memory.HIDDEN

    def __post_init__(self) -> None:
        """Raise ValueError, with the valid range, for values that cannot learn."""
        types = types_of(type(self))
        for declared in fields(self):
            if sentence := mistake(declared.name, getattr(self, declared.name), types[declared.name]):
                raise ValueError(f"{self.label}: {sentence}")

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Self:
        """Return the config of the settings in a spec; ValueError names each wrong one and the valid values."""
        values, mistakes = read_fields(cls, settings, cls.label)
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return cls(**values)

    @classmethod
    def head(cls, action: Actions) -> Head:
        """Return how actions are drawn from a policy's outputs.

        ValueError for actions that the method cannot take: a sentence whose subject is the environment.
        """
        return "categorical" if action.choices else "gaussian"


@dataclass(frozen=True, slots=True)
class ReplayConfig(MethodConfig):
    """Settings of a method that learns from batches of transitions, which a replay buffer keeps."""

    batch_size: Annotated[
        Count,
        setting(
            "Transitions in one update.",
            when="More on a GPU, which is not busy with few.",
            unit="transitions",
        ),
    ] = replay_memory.SAC_BATCH_SIZE
    gamma: Annotated[
        Share,
        setting(
            "Discount a step; 1 / (1 - gamma) steps is how far ahead the policy cares.",
            when="Nearer to 1 where an action pays late.",
        ),
    ] = 0.99
    n_step: Annotated[
        Count,
        setting(
            "Steps whose rewards are summed before a critic estimates the rest.",
            when="3 spreads a late reward sooner, but uses actions of an older policy.",
            unit="env steps",
            source="Hessel et al. 2018, arXiv:1710.02298",
        ),
    ] = 1
    prioritised: Annotated[
        bool,
        setting(
            "Draw transitions with large errors more often.", when="Pays where rewards are rare.", source=_SCHAUL
        ),
    ] = False
    priority_exponent: Annotated[
        NotNegative,
        setting(
            "How strongly priorities count; 0 draws evenly.",
            when="Lower it where a few transitions are drawn again and again.",
            source=_SCHAUL,
        ),
    ] = 0.6
    priority_correction: Annotated[
        NotNegative,
        setting(
            "How far the weights undo the uneven drawing at the start; 1 undoes it fully.",
            when="Raise it where values drift.",
            source=_SCHAUL,
        ),
    ] = 0.4
    priority_correction_steps: Annotated[
        Count | None,
        setting(
            "Transitions over which the correction rises to 1; null keeps it, since the length of a run is not "
            "known "
            "before its end.",
            when="Set it to `total_env_steps`, as the paper does.",
            unit="transitions",
            source=f"{_SCHAUL}, section 3.4",
            example=1_000_000,
        ),
    ] = None

    @classmethod
    def head(cls, action: Actions) -> Head:
        """Return a squashed Gaussian for numbers, logits for choices."""
        return "categorical" if action.choices else "squashed"


@dataclass(frozen=True, slots=True)
class RolloutConfig(MethodConfig):
    """Settings of a method that learns from rollouts, each used in one update."""

    batch_steps: Annotated[
        Count,
        setting(
            "Env steps in one update, over all workers; a multiple of num_envs x segment_steps.",
            when="More for a steadier gradient, fewer for more updates.",
            unit="env steps",
        ),
    ] = replay_memory.PPO_BATCH_STEPS
    queue_batches: Annotated[
        Count,
        setting(
            "Batches that collection may be ahead of learning where workers do not wait.",
            when="More hides a slow network, at the price of older data.",
            unit="batches",
        ),
    ] = 1
    gamma: Annotated[
        Share,
        setting(
            "Discount a step; 1 / (1 - gamma) steps is how far ahead the policy cares.",
            when="Nearer to 1 where an action pays late.",
        ),
    ] = 0.99
    normalise_returns: Annotated[
        bool,
        setting(
            "Divide rewards by the running standard deviation of the discounted returns, over all workers.",
            when="For continuous control, where rewards have any scale; with normalise_observations.",
            source="Engstrom et al. 2020, arXiv:2005.12729",
        ),
    ] = False

    @property
    def waits_for_policy(self) -> bool:
        """True if workers wait for each new policy."""
        return True


def check_one_choice(action: Actions, label: str) -> None:
    """Raise ValueError, a sentence whose subject is the environment, for several simultaneous choices."""
    if len(action.choices) > 1:
        raise ValueError(
            f"takes {len(action.choices)} choices at once and {label} one; set algorithm to ppo or impala"
        )


_STEP_SIZE: Final = setting("Step size (Adam).", when="Lower it if returns swing, raise it if they do not move.")
_GRADIENT_NORM: Final = setting(
    "Largest norm of the gradient; longer ones are scaled down.", when="Lower it where single updates do damage."
)
_ENTROPY_COST: Final = setting(
    "Reward for a policy that stays random, a nat.", when="Raise it where the policy settles too soon."
)
_VALUE_COST: Final = setting(
    "Weight of the value's error.", when="Lower it where the value drowns the policy's gradient."
)
_CRITICS: Final = "Step size of the critics (Adam)."
_ADAM_EPS: Final = setting(
    "Number that Adam adds to its denominator.",
    when="1e-5 repeats PPO of Stable-Baselines3 and CleanRL, 1e-4 CleanRL's SAC on Atari.",
    source="Kingma & Ba 2015, arXiv:1412.6980",
)
_JOINT_CLIPPING: Final = setting(
    "One norm over the gradients of policy and value together; false clips each network by its own.",
    when="Stable-Baselines3 and CleanRL clip them together: a large error of the value then also shortens the "
    "policy's step.",
)
_SHARED_LAYERS: Final = setting(
    "The value is one layer on the policy's last hidden layer; false gives it a network of its own. With memory it "
    "always reads the memory.",
    when="CleanRL's Atari PPO: half of the convolutions, but value_cost then weighs two losses of one network.",
)


def _annealed(what: str) -> Any:
    return setting(
        f"Updates over which {what} to nothing; null keeps it.",
        when="Set it to the updates of the whole run for a calmer end.",
        unit="updates",
        example=10_000,
    )


_ANNEALED: Final = _annealed("the step size falls")


@dataclass(frozen=True, slots=True)
class SACConfig(ReplayConfig):
    """Soft actor-critic with the paper's defaults; racing and l2r take those of `runtime.base.presets.RACING`."""

    label: ClassVar[str] = "SAC"

    hidden: Annotated[
        Widths,
        setting(
            "Widths of the hidden layers of actor and critics.",
            when="[128, 128] costs a third of the time on a CPU, and is enough for racing.",
            unit="units",
            source=_HAARNOJA,
        ),
    ] = replay_memory.SAC_HIDDEN
    gamma: Annotated[
        Share,
        setting(
            "Discount a step; 1 / (1 - gamma) steps is how far ahead the policy cares.",
            when="Racing takes 0.98: 50 steps, or 5 s of driving.",
            source=_HAARNOJA,
        ),
    ] = 0.99
    tau: Annotated[
        Share,
        setting(
            "Share of the critics that the target critics take over in one update.",
            when="Racing takes 0.01, which learns sooner and less calmly.",
            source=_HAARNOJA,
        ),
    ] = 0.005
    target_updates: Annotated[
        Count,
        setting(
            "Updates between two steps of the target critics.",
            when="With `tau: 1` they are copies that stay fixed in between, as in DQN. This is more stable if "
            "values are large compared with their differences.",
            unit="updates",
        ),
    ] = 1
    actor_lr: Annotated[
        Positive,
        setting(
            "Step size of the actor (Adam).",
            when="Racing takes 5e-4; with 1e-3 it forgets how to lap again and again in a long run.",
            source=_HAARNOJA,
        ),
    ] = 3e-4
    critic_lr: Annotated[
        Positive,
        setting(_CRITICS, when="Lower actor_lr and critic_lr where the returns swing.", source=_HAARNOJA),
    ] = 3e-4
    alpha_lr: Annotated[
        NotNegative,
        setting(
            "Step size of the temperature's logarithm (Adam).",
            when="0 always keeps `init_alpha`.",
            source=_HAARNOJA,
        ),
    ] = 3e-4
    adam_eps: Annotated[Positive, _ADAM_EPS] = 1e-8
    anneal_updates: Annotated[Count | None, _annealed("the three step sizes fall")] = None
    init_alpha: Annotated[
        Positive,
        setting(
            "Temperature at the start.",
            when="A few percent of the largest reward explores without drowning it: 0.1 for racing.",
            unit="reward a nat",
            source=_HAARNOJA,
        ),
    ] = 1.0
    alpha_end: Annotated[
        Positive | None,
        setting(
            "Final temperature of a schedule that replaces learning it: the temperature falls from `init_alpha` by "
            "equal factors. null learns it by `alpha_lr`.",
            when="Where the bonus for a random policy exceeds the reward of the goal, as in LunarLander; set "
            "alpha_updates and alpha_lr: 0 with it.",
            unit="reward a nat",
            example=0.01,
        ),
    ] = None
    alpha_updates: Annotated[
        Count | None,
        setting(
            "Updates over which the temperature falls to `alpha_end`.",
            when="Set it with alpha_end.",
            unit="updates",
            example=100_000,
        ),
    ] = None
    entropy_in_target: Annotated[
        bool,
        setting(
            "The critics' target counts the policy's entropy as reward, as in the paper; false leaves it to the "
            "actor's loss.",
            when="False where the values grow although the returns do not, which means that the policy is paid for "
            "being random.",
            source="Zhou et al. 2022, arXiv:2209.10081",
        ),
    ] = True
    target_entropy: Annotated[
        float | None,
        setting(
            "Entropy that the temperature holds; null means minus the number of action dimensions, and for one of "
            "n "
            "choices 0.98 log n.",
            when="Lower it where actions stay too random.",
            unit="nats",
            source=f"{_HAARNOJA}; Christodoulou 2019, arXiv:1910.07207",
            example=-2.0,
        ),
    ] = None
    random_shift: Annotated[
        Natural,
        setting(
            "Pixels by which the pictures of a batch are shifted at random; keeps learning from cameras from "
            "overfitting, and costs a copy of the batch.",
            when="4 for 84 x 84, 2 for 32 x 32.",
            unit="pixels",
            source="DrQ, Kostrikov et al. 2020, arXiv:2004.13649",
        ),
    ] = 0
    burn_in: Annotated[
        Natural,
        setting(
            "With memory: first steps of each segment that only bring the memory up to date; they are computed and "
            "not learned from.",
            when="A quarter of `segment_steps` is a good start.",
            unit="env steps",
            source="R2D2, Kapturowski et al. 2019",
        ),
    ] = 0

    def __post_init__(self) -> None:
        """Raise ValueError, with the valid range, for values that cannot learn."""
        ReplayConfig.__post_init__(self)
        if (self.alpha_end is None) != (self.alpha_updates is None):
            raise ValueError("SAC: alpha_end and alpha_updates go together; set both or neither")
        if self.alpha_end is not None and self.alpha_lr:
            raise ValueError(
                f"SAC: alpha_lr is {self.alpha_lr}; with alpha_end the temperature follows its schedule and is not "
                "learned, so set alpha_lr: 0"
            )

    @classmethod
    def head(cls, action: Actions) -> Head:
        """Return a squashed Gaussian for numbers, logits for one choice."""
        check_one_choice(action, cls.label)
        return ReplayConfig.head(action)


@dataclass(frozen=True, slots=True)
class PPOConfig(RolloutConfig):
    """Proximal policy optimisation, with the defaults of the paper's successors for small networks."""

    label: ClassVar[str] = "PPO"

    epochs: Annotated[
        Count,
        setting(
            "Times that an update goes over its batch.",
            when="Fewer where the policy moves too far.",
            source=_SCHULMAN,
        ),
    ] = 10
    minibatch_size: Annotated[
        Count,
        setting(
            "Env steps in one gradient step; with collect: device a quarter of the batch.",
            when="More on a GPU, fewer for more gradient steps.",
            unit="env steps",
        ),
    ] = replay_memory.PPO_MINIBATCH_SIZE
    gae_lambda: Annotated[
        Share,
        setting(
            "How far the advantage looks past the value's own guess.",
            when="1 trusts only the rewards; lower it if they are noisy.",
            source="Schulman et al. 2016, arXiv:1506.02438",
        ),
    ] = 0.95
    clip: Annotated[
        Positive,
        setting(
            "How far the probability of an action may move in one update before its slope is cut.",
            when="Lower it where returns collapse.",
            source=_SCHULMAN,
        ),
    ] = 0.2
    lr: Annotated[Positive, _STEP_SIZE] = 3e-4
    adam_eps: Annotated[Positive, _ADAM_EPS] = 1e-8
    anneal_updates: Annotated[Count | None, _ANNEALED] = None
    entropy_cost: Annotated[NotNegative, _ENTROPY_COST] = 0.0
    value_cost: Annotated[Positive, _VALUE_COST] = 0.5
    value_clip: Annotated[
        Positive | None,
        setting(
            "How far a value may move in one update before its slope is cut; null, since it rarely helps "
            "(Andrychowicz et al. 2021).",
            when="With normalise_returns, OpenAI baselines take 0.2.",
            source="Huang et al. 2022, detail 9",
            example=0.2,
        ),
    ] = None
    max_grad_norm: Annotated[Positive, _GRADIENT_NORM] = 0.5
    joint_clipping: Annotated[bool, _JOINT_CLIPPING] = False
    shared_layers: Annotated[bool, _SHARED_LAYERS] = False
    target_kl: Annotated[
        Positive | None,
        setting(
            "End an update once the policy has moved so far; null goes through all epochs.",
            when="0.01 to 0.03 where returns collapse.",
            unit="nats",
            example=0.02,
        ),
    ] = None
    is_synchronous: Annotated[
        bool,
        setting(
            "Workers wait for each new policy, as the paper has it.",
            when="False collects the next batches meanwhile: faster where the update takes long, and some versions "
            "behind, up to queue_batches.",
        ),
    ] = True

    @property
    def waits_for_policy(self) -> bool:
        """True if workers wait for each new policy."""
        return self.is_synchronous


@dataclass(frozen=True, slots=True)
class ImpalaConfig(RolloutConfig):
    """Importance-weighted actor-learner; with `clip` it is APPO."""

    label: ClassVar[str] = "IMPALA"

    batch_steps: Annotated[
        Count,
        setting(
            "Env steps in one update, over all workers; a multiple of num_envs x segment_steps.",
            when="More for a steadier gradient, fewer for more updates.",
            unit="env steps",
        ),
    ] = replay_memory.IMPALA_BATCH_STEPS
    queue_batches: Annotated[
        Count,
        setting(
            "Batches that collection may be ahead of learning.",
            when="More hides a slow network, at the price of older data.",
            unit="batches",
        ),
    ] = 2
    reward_scale: Annotated[
        Positive,
        setting(
            "Factor on rewards; leave it with normalise_returns.",
            when="A value is learned soonest where returns are near 1; with rewards of 1 a step and few updates, "
            "try "
            "a few times 1 - gamma, and a smaller entropy_cost with it.",
        ),
    ] = 1.0
    rho_bar: Annotated[
        Positive,
        setting(
            "Largest importance weight of a value's target.",
            when="Leave it at 1 unless data is old.",
            source=_ESPEHOLT,
        ),
    ] = 1.0
    c_bar: Annotated[
        Positive,
        setting(
            "Largest importance weight of the trace behind it.",
            when="Leave it at 1 unless data is old.",
            source=_ESPEHOLT,
        ),
    ] = 1.0
    lr: Annotated[Positive, _STEP_SIZE] = 6e-4
    adam_eps: Annotated[Positive, _ADAM_EPS] = 1e-8
    anneal_updates: Annotated[Count | None, _ANNEALED] = None
    entropy_cost: Annotated[NotNegative, _ENTROPY_COST] = 0.01
    value_cost: Annotated[Positive, _VALUE_COST] = 0.5
    max_grad_norm: Annotated[Positive, _GRADIENT_NORM] = 40.0
    joint_clipping: Annotated[bool, _JOINT_CLIPPING] = False
    shared_layers: Annotated[bool, _SHARED_LAYERS] = False
    clip: Annotated[
        Positive | None,
        setting(
            "As in PPO: bound the move of an action's probability; null is plain IMPALA.",
            when="0.2 with more than one epoch.",
            source="Luo et al. 2020, arXiv:1912.00167",
            example=0.2,
        ),
    ] = None
    epochs: Annotated[
        Count,
        setting(
            "Times that an update goes over its batch; more than one needs `clip`.",
            when="More where steps are dear.",
        ),
    ] = 1
    sends_gradients: Annotated[
        bool,
        setting(
            "Workers compute the gradient of each of their segments, and the learner applies it.",
            when="For environments whose observations are large and whose networks are small; each worker then "
            "needs "
            "torch.",
        ),
    ] = False

    @property
    def waits_for_policy(self) -> bool:
        """False: V-trace corrects for the age of the data."""
        return False

    def __post_init__(self) -> None:
        """Raise ValueError, with the valid range, for values that cannot learn."""
        RolloutConfig.__post_init__(self)
        if self.epochs > 1 and self.clip is None:
            raise ValueError(f"IMPALA: epochs is {self.epochs}; more than one needs clip, for example 0.2")
        if self.epochs > 1 and self.sends_gradients:
            raise ValueError("IMPALA: sends_gradients only works with epochs of 1: a gradient is applied once")


@dataclass(frozen=True, slots=True)
class BCConfig(ReplayConfig):
    """Behaviour cloning of recorded episodes."""

    label: ClassVar[str] = "BC"

    for_method: Annotated[
        Literal["ppo", "impala", "sac", "td3"],
        setting(
            "Method whose network the policy has, so that it can go on with it (init_policy).",
            when="Set it to the method that continues.",
        ),
    ] = "ppo"
    lr: Annotated[Positive, _STEP_SIZE] = 1e-3
    adam_eps: Annotated[Positive, _ADAM_EPS] = 1e-8
    anneal_updates: Annotated[Count | None, _ANNEALED] = None


@dataclass(frozen=True, slots=True)
class DQNConfig(ReplayConfig):
    """Deep Q-network; `double`, `dueling`, `n_step` and `prioritised` are switches for parts of Rainbow."""

    label: ClassVar[str] = "DQN"

    lr: Annotated[Positive, _STEP_SIZE] = 5e-4
    adam_eps: Annotated[Positive, _ADAM_EPS] = 1e-8
    anneal_updates: Annotated[Count | None, _ANNEALED] = None
    target_updates: Annotated[
        Count,
        setting(
            "Updates between two copies of the network to the target.",
            when="Fewer learn sooner and swing more.",
            unit="updates",
            source=_MNIH,
        ),
    ] = 200
    double: Annotated[
        bool,
        setting(
            "The network chooses the next action and the target values it.",
            when="False is plain DQN, which overestimates.",
            source="van Hasselt et al. 2016, arXiv:1509.06461",
        ),
    ] = True
    dueling: Annotated[
        bool,
        setting(
            "Two streams of layers, for the value of the state and for what each choice adds.",
            when="Pays where many choices are as good as others.",
            source="Wang et al. 2016, arXiv:1511.06581",
        ),
    ] = False
    exploration_begin: Annotated[
        WholeShare,
        setting("Share of random actions at the first update.", when="Lower it for a policy that begins trained."),
    ] = 1.0
    exploration_end: Annotated[
        WholeShare,
        setting(
            "Final share of random actions.",
            when="Lower it where single wrong actions end episodes.",
        ),
    ] = 0.05
    exploration_updates: Annotated[
        Count,
        setting(
            "Updates over which the share of random actions falls.",
            when="Longer where rewards are rare.",
            unit="updates",
        ),
    ] = 2_000
    max_grad_norm: Annotated[Positive, _GRADIENT_NORM] = 10.0
    huber: Annotated[
        bool,
        setting(
            "Errors of more than 1 count by their size (Huber's loss). False counts every error by its square.",
            when="False where values grow without bound: large errors at ends of episodes then weigh more.",
            source=_MNIH,
        ),
    ] = True

    @classmethod
    def head(cls, action: Actions) -> Head:
        """Return values of choices."""
        if not action.choices:
            raise ValueError("takes numbers and DQN one of several choices; set algorithm to sac, td3 or ppo")
        check_one_choice(action, cls.label)
        return "greedy"


@dataclass(frozen=True, slots=True)
class TD3Config(ReplayConfig):
    """Twin delayed deep deterministic policy gradient. The defaults are the paper's but for the sizes."""

    label: ClassVar[str] = "TD3"

    tau: Annotated[
        Share,
        setting(
            "Share of the networks that their targets take over in each update of the policy.",
            when="Lower it where values swing.",
            source=_FUJIMOTO,
        ),
    ] = 5e-3
    actor_lr: Annotated[
        Positive,
        setting(
            "Step size of the policy (Adam).",
            when="Lower actor_lr and critic_lr where the returns swing.",
            source=_FUJIMOTO,
        ),
    ] = 1e-3
    critic_lr: Annotated[
        Positive,
        setting(_CRITICS, when="Lower actor_lr and critic_lr where the returns swing.", source=_FUJIMOTO),
    ] = 1e-3
    adam_eps: Annotated[Positive, _ADAM_EPS] = 1e-8
    anneal_updates: Annotated[Count | None, _annealed("both step sizes fall")] = None
    policy_delay: Annotated[
        Count,
        setting(
            "Updates of the critics for one of the policy and of all targets.",
            when="More where values are noisy.",
            unit="updates",
            source=_FUJIMOTO,
        ),
    ] = 2
    exploration_noise: Annotated[
        NotNegative,
        setting(
            "Deviation of the noise that workers add to actions, of -1 to 1.",
            when="Raise it where nothing is found.",
            source=_FUJIMOTO,
        ),
    ] = 0.1
    exploration_end: Annotated[
        NotNegative | None,
        setting(
            "Final deviation; null keeps `exploration_noise`.",
            when="Lower than exploration_noise where noise spoils good episodes; set exploration_updates with it.",
            example=0.02,
        ),
    ] = None
    exploration_updates: Annotated[
        Count | None,
        setting(
            "Updates over which the noise falls to `exploration_end`.",
            when="Set it with exploration_end.",
            unit="updates",
            example=100_000,
        ),
    ] = None
    target_noise: Annotated[
        NotNegative,
        setting(
            "Deviation of the noise on the target's action, so that values are smooth in it.",
            when="Lower it where actions must be exact.",
            source=_FUJIMOTO,
        ),
    ] = 0.2
    target_noise_clip: Annotated[
        NotNegative,
        setting(
            "Largest noise on the target's action.",
            when="Lower it where actions must be exact.",
            source=_FUJIMOTO,
        ),
    ] = 0.5

    def __post_init__(self) -> None:
        """Raise ValueError, with the valid range, for values that cannot learn."""
        ReplayConfig.__post_init__(self)
        if (self.exploration_end is None) != (self.exploration_updates is None):
            raise ValueError("TD3: exploration_end and exploration_updates go together; set both or neither")

    @classmethod
    def head(cls, action: Actions) -> Head:
        """Return one number for each dimension."""
        if action.choices:
            raise ValueError("takes choices and TD3 needs numbers; set algorithm to sac, dqn or ppo")
        return "deterministic"


METHODS: Final[Mapping[str, type[MethodConfig]]] = {
    "sac": SACConfig,
    "dqn": DQNConfig,
    "td3": TD3Config,
    "ppo": PPOConfig,
    "impala": ImpalaConfig,
    "bc": BCConfig,
}
"""Config of each method, by the name of its settings in a spec."""
RECURRENT: Final = ("ppo", "impala", "sac")
"""Methods that can learn a policy with memory."""
