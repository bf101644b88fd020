"""Settings of the methods, as a spec writes them: frozen values with their bounds, without torch.

A worker reads some of them (how many steps a reward is summed over, how large a segment must be), so they stand
apart from the methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from runtime.base import replay_memory
from runtime.rl.algos.actor import Head
from runtime.rl.algos.method_config import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    WHOLE_SHARE,
    MethodConfig,
    ReplayConfig,
    RolloutConfig,
    check_one_choice,
    choice,
    number,
)
from runtime.rl.spaces import ActionSpace


@dataclass(frozen=True, slots=True)
class SACConfig(ReplayConfig):
    """Soft actor-critic. The defaults were chosen on the racing environment, see tests/bench/racing.py."""

    label: ClassVar[str] = "SAC"

    hidden: tuple[int, ...] = replay_memory.SAC_HIDDEN
    """Widths of the hidden layers of actor and critics. Wider costs time before it costs quality on a CPU."""
    gamma: float = number(0.98, SHARE)
    """Discount a step; 1 / (1 - gamma) steps is how far ahead the policy cares: 50, or 5 s of driving."""
    tau: float = number(0.01, SHARE)
    """Share of the critics that the target critics take over in one update; the paper's 0.005 is calmer."""
    target_updates: int = number(1, COUNT)
    """Updates between two steps of the target critics. With `tau: 1` they are copies and stand still in between, as
    those of DQN do, which is calmer where values are large beside their differences."""
    actor_lr: float = number(5e-4, POSITIVE)
    """Step size of the actor (Adam). 1e-3 laps as soon, but forgets how to again and again in a long run."""
    critic_lr: float = number(5e-4, POSITIVE)
    """Step size of the critics (Adam). Lower both to 3e-4 where the returns swing."""
    alpha_lr: float = number(1e-3, NOT_NEGATIVE)
    """Step size of the temperature's logarithm (Adam). 0 keeps `init_alpha` for good."""
    anneal_updates: int | None = number(None, COUNT)
    """Updates over which the three step sizes fall to nothing; None keeps them."""
    init_alpha: float = number(0.1, POSITIVE)
    """Temperature at the start; a few percent of the largest reward explores without drowning it."""
    target_entropy: float | None = None
    """Entropy that the temperature holds, nats; None means minus the number of action dimensions, and for one of n
    choices 0.98 log n."""

    random_shift: int = number(0, NOT_NEGATIVE)
    """Pixels by which the pictures of a batch are shifted at random (DrQ, Kostrikov et al. 2020). 4 for 84 x 84, 2
    for 32 x 32; costs a copy of the batch, and is what keeps learning from cameras from overfitting."""
    burn_in: int = number(0, NOT_NEGATIVE)
    """With memory: first steps of each segment that only bring the memory up to date (R2D2, Kapturowski et al.
    2019). A quarter of `segment_steps` is a good start; they are computed and not learned from."""

    @classmethod
    def head(cls, action: ActionSpace) -> Head:
        """Return a squashed Gaussian for numbers, logits for one choice."""
        check_one_choice(action, cls.label)
        return ReplayConfig.head(action)


@dataclass(frozen=True, slots=True)
class PPOConfig(RolloutConfig):
    """Proximal policy optimisation. The defaults are those of the paper's successors for small networks."""

    label: ClassVar[str] = "PPO"

    epochs: int = number(10, COUNT)
    """Times that an update goes over its batch."""
    minibatch_size: int = number(replay_memory.PPO_MINIBATCH_SIZE, COUNT)
    """Env steps in one gradient step."""
    gae_lambda: float = number(0.95, SHARE)
    """How far the advantage looks past the value's own guess; 1 trusts the rewards alone."""
    clip: float = number(0.2, POSITIVE)
    """How far the probability of an action may move in one update before its slope is cut."""
    lr: float = number(3e-4, POSITIVE)
    """Step size (Adam)."""
    anneal_updates: int | None = number(None, COUNT)
    """Updates over which the step size falls to nothing; None keeps it."""
    entropy_cost: float = number(0.0, NOT_NEGATIVE)
    """Reward for a policy that stays random, a nat."""
    value_cost: float = number(0.5, POSITIVE)
    """Weight of the value's error."""
    value_clip: float | None = number(None, POSITIVE)
    """How far a value may move in one update before its slope is cut (detail 9 of Huang et al. 2022); None, since
    Andrychowicz et al. 2021 found that it rarely helps. With normalise_returns, OpenAI baselines take 0.2."""
    max_grad_norm: float = number(0.5, POSITIVE)
    """Largest norm of the gradient; longer ones are scaled down."""
    target_kl: float | None = number(None, POSITIVE)
    """End an update once the policy has moved so far, nats; None goes through all epochs."""
    is_synchronous: bool = True
    """Workers wait for each new policy, as the paper has it. False collects the next batches meanwhile: faster
    where the update takes long, and some versions behind, up to queue_batches."""

    @property
    def waits_for_policy(self) -> bool:
        """True if workers wait for each new policy."""
        return self.is_synchronous


@dataclass(frozen=True, slots=True)
class ImpalaConfig(RolloutConfig):
    """Importance-weighted actor-learner; with `clip` it is APPO."""

    label: ClassVar[str] = "IMPALA"

    batch_steps: int = number(replay_memory.IMPALA_BATCH_STEPS, COUNT)
    """Env steps in one update, over all workers; a multiple of num_envs x segment_steps."""
    queue_batches: int = number(2, COUNT)
    """Batches that collection may be ahead of learning. More hides a slow network, at the price of older data."""
    reward_scale: float = number(1.0, POSITIVE)
    """Factor on rewards; leave it with normalise_returns. A value is learned soonest where returns are near 1; with
    rewards of 1 a step and few updates, try a few times 1 - gamma, and a smaller entropy_cost with it."""
    rho_bar: float = number(1.0, POSITIVE)
    """Largest importance weight of a value's target."""
    c_bar: float = number(1.0, POSITIVE)
    """Largest importance weight of the trace behind it."""
    lr: float = number(6e-4, POSITIVE)
    """Step size (Adam)."""
    anneal_updates: int | None = number(None, COUNT)
    """Updates over which the step size falls to nothing; None keeps it."""
    entropy_cost: float = number(0.01, NOT_NEGATIVE)
    """Reward for a policy that stays random, a nat."""
    value_cost: float = number(0.5, POSITIVE)
    """Weight of the value's error."""
    max_grad_norm: float = number(40.0, POSITIVE)
    """Largest norm of the gradient; longer ones are scaled down."""
    clip: float | None = number(None, POSITIVE)
    """As in PPO: bound the move of an action's probability; None is plain IMPALA."""
    epochs: int = number(1, COUNT)
    """Times that an update goes over its batch; more than one needs `clip`."""
    sends_gradients: bool = False
    """Workers compute the gradient of each of their segments, and the learner applies it. For environments whose
    observations are large and whose networks are small; each worker then needs torch."""

    @property
    def waits_for_policy(self) -> bool:
        """False: V-trace corrects for the age of the data."""
        return False

    def __post_init__(self) -> None:
        """Refuse values that cannot learn, with a ValueError that says what they may be."""
        RolloutConfig.__post_init__(self)
        if self.epochs > 1 and self.clip is None:
            raise ValueError(f"IMPALA: epochs is {self.epochs}; more than one needs clip, for example 0.2")
        if self.epochs > 1 and self.sends_gradients:
            raise ValueError("IMPALA: sends_gradients works with epochs of 1 alone: a gradient is applied once")


@dataclass(frozen=True, slots=True)
class BCConfig(ReplayConfig):
    """Behaviour cloning of recorded episodes."""

    label: ClassVar[str] = "BC"

    for_method: str = choice("ppo", ("ppo", "impala", "sac", "td3"))
    """Method whose network the policy has, so that it can go on with it (init_policy)."""
    lr: float = number(1e-3, POSITIVE)
    """Step size (Adam)."""
    anneal_updates: int | None = number(None, COUNT)
    """Updates over which the step size falls to nothing; None keeps it."""


@dataclass(frozen=True, slots=True)
class SGDConfig(MethodConfig):
    """Asynchronous gradient descent on examples: the learner is a parameter server."""

    label: ClassVar[str] = "SGD"

    hidden: tuple[int, ...] = (64,)
    """Widths of the hidden layers."""
    batch_size: int = number(64, COUNT)
    """Examples in one gradient."""
    gradients_per_update: int = number(1, COUNT)
    """Gradients whose mean makes one step: 1 applies each as it comes."""
    max_staleness: int = number(4, NOT_NEGATIVE)
    """Versions that a gradient's weights may be behind; 0 makes all workers wait for each step."""
    lr: float = number(0.1, POSITIVE)
    """Step size."""
    momentum: float = number(0.0, NOT_NEGATIVE)
    """Share of the step before that is taken again. Staleness acts like it, so take less with many workers."""
    max_grad_norm: float = number(10.0, POSITIVE)
    """Largest norm of the gradient; longer ones are scaled down."""


@dataclass(frozen=True, slots=True)
class DQNConfig(ReplayConfig):
    """Deep Q-network; `double`, `dueling`, `n_step` and `prioritised` are switches for parts of Rainbow."""

    label: ClassVar[str] = "DQN"

    lr: float = number(5e-4, POSITIVE)
    """Step size (Adam)."""
    anneal_updates: int | None = number(None, COUNT)
    """Updates over which the step size falls to nothing; None keeps it."""
    target_updates: int = number(200, COUNT)
    """Updates between two copies of the network to the target. Fewer learn sooner and swing more."""
    double: bool = True
    """The network chooses the next action and the target values it (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Two streams of layers, for the value of the state and for what each choice adds (Wang et al. 2016). Pays
    where many choices are as good as others."""
    exploration_begin: float = number(1.0, WHOLE_SHARE)
    """Share of random actions at the first update."""
    exploration_end: float = number(0.05, WHOLE_SHARE)
    """Share of random actions at the end, for good."""
    exploration_updates: int = number(2_000, COUNT)
    """Updates over which it falls. Longer where rewards are rare."""
    max_grad_norm: float = number(10.0, POSITIVE)
    """Largest norm of the gradient; longer ones are scaled down."""

    @classmethod
    def head(cls, action: ActionSpace) -> Head:
        """Return values of choices."""
        if not action.choices:
            raise ValueError("takes numbers and DQN one of several choices; set algorithm to sac, td3 or ppo")
        check_one_choice(action, cls.label)
        return "greedy"


@dataclass(frozen=True, slots=True)
class TD3Config(ReplayConfig):
    """Twin delayed deep deterministic policy gradient. The defaults are the paper's but for the sizes."""

    label: ClassVar[str] = "TD3"

    tau: float = number(5e-3, SHARE)
    """Share of the networks that their targets take over in each update of the policy."""
    actor_lr: float = number(1e-3, POSITIVE)
    """Step size of the policy (Adam)."""
    critic_lr: float = number(1e-3, POSITIVE)
    """Step size of the critics (Adam). Lower both where the returns swing."""
    anneal_updates: int | None = number(None, COUNT)
    """Updates over which both step sizes fall to nothing; None keeps them."""
    policy_delay: int = number(2, COUNT)
    """Updates of the critics for one of the policy and of all targets."""
    exploration_noise: float = number(0.1, NOT_NEGATIVE)
    """Deviation of the noise that workers add to actions, of -1 to 1. Raise it where nothing is found."""
    exploration_end: float | None = number(None, NOT_NEGATIVE)
    """Deviation at the end, for good; None keeps `exploration_noise`."""
    exploration_updates: int | None = number(None, COUNT)
    """Updates over which it falls to `exploration_end`."""
    target_noise: float = number(0.2, NOT_NEGATIVE)
    """Deviation of the noise on the target's action, so that values are smooth in it."""
    target_noise_clip: float = number(0.5, NOT_NEGATIVE)
    """Largest such noise."""

    def __post_init__(self) -> None:
        """Refuse values that cannot learn, with a ValueError that says what they may be."""
        ReplayConfig.__post_init__(self)
        if (self.exploration_end is None) != (self.exploration_updates is None):
            raise ValueError("TD3: exploration_end and exploration_updates go together; set both or neither")

    @classmethod
    def head(cls, action: ActionSpace) -> Head:
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
    "sgd": SGDConfig,
}
"""Config of each method, by the name of its settings in a spec."""
CLASSES: Final[Mapping[str, str]] = {
    "sac": "runtime.rl.algos.off_policy.sac:SAC",
    "dqn": "runtime.rl.algos.off_policy.dqn:DQN",
    "td3": "runtime.rl.algos.off_policy.td3:TD3",
    "ppo": "runtime.rl.algos.ppo:PPO",
    "impala": "runtime.rl.algos.impala:Impala",
    "bc": "runtime.rl.algos.cloning:BehaviourCloning",
}
"""Class of the learner's half of each, named so that workers need not import it (and torch with it)."""
RECURRENT: Final[Mapping[str, str]] = {
    "ppo": "runtime.rl.algos.recurrent.ppo:RecurrentPPO",
    "impala": "runtime.rl.algos.recurrent.impala:RecurrentImpala",
    "sac": "runtime.rl.algos.recurrent.soft_actor_critic:RecurrentSAC",
}
"""Class of those that can learn a policy with memory."""
DISCRETE_SAC: Final = "runtime.rl.algos.off_policy.discrete_sac:DiscreteSAC"
RECURRENT_DISCRETE_SAC: Final = "runtime.rl.algos.recurrent.soft_actor_critic:RecurrentDiscreteSAC"
