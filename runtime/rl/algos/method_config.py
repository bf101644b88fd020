"""Settings that a user-defined method derives its `Config` from; declared in `runtime.base.methods`.

`number` and `choice` declare a field with bounds; a type such as `runtime.base.setting.Positive` does the same.
"""

from typing import Final

from runtime.base.methods import MethodConfig, ReplayConfig, RolloutConfig, check_one_choice
from runtime.base.setting import choice, number

SHARE: Final = {"above": 0.0, "at most": 1.0}
WHOLE_SHARE: Final = {"at least": 0.0, "at most": 1.0}
POSITIVE: Final = {"above": 0.0}
COUNT: Final = {"at least": 1.0}
NOT_NEGATIVE: Final = {"at least": 0.0}

__all__ = [
    "COUNT",
    "NOT_NEGATIVE",
    "POSITIVE",
    "SHARE",
    "WHOLE_SHARE",
    "MethodConfig",
    "ReplayConfig",
    "RolloutConfig",
    "check_one_choice",
    "choice",
    "number",
]
