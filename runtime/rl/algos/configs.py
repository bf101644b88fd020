"""Methods by name: their settings (declared in `runtime.base.methods`) and the classes that learn.

Classes are named, so that workers need not import them, and torch with them.
"""

from collections.abc import Mapping
from typing import Final

from runtime.base.methods import (
    METHODS,
    BCConfig,
    DQNConfig,
    ImpalaConfig,
    PPOConfig,
    SACConfig,
    TD3Config,
)

CLASSES: Final[Mapping[str, str]] = {
    "sac": "runtime.rl.algos.off_policy.sac:SAC",
    "dqn": "runtime.rl.algos.off_policy.dqn:DQN",
    "td3": "runtime.rl.algos.off_policy.td3:TD3",
    "ppo": "runtime.rl.algos.ppo:PPO",
    "impala": "runtime.rl.algos.impala:Impala",
    "bc": "runtime.rl.algos.cloning:BehaviourCloning",
}
"""Class of the learner's half of each."""
RECURRENT: Final[Mapping[str, str]] = {
    "ppo": "runtime.rl.algos.recurrent.actor_critic:RecurrentPPO",
    "impala": "runtime.rl.algos.recurrent.actor_critic:RecurrentImpala",
    "sac": "runtime.rl.algos.recurrent.soft_actor_critic:RecurrentSAC",
}
"""Class of those that can learn a policy with memory."""
DISCRETE_SAC: Final = "runtime.rl.algos.off_policy.sac:DiscreteSAC"
RECURRENT_DISCRETE_SAC: Final = "runtime.rl.algos.recurrent.soft_actor_critic:RecurrentDiscreteSAC"

__all__ = [
    "CLASSES",
    "DISCRETE_SAC",
    "METHODS",
    "RECURRENT",
    "RECURRENT_DISCRETE_SAC",
    "BCConfig",
    "DQNConfig",
    "ImpalaConfig",
    "PPOConfig",
    "SACConfig",
    "TD3Config",
]
