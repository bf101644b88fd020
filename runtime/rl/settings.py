"""Training settings, as learner, workers and evaluator read them; `runtime.base.training` declares them."""

from runtime.base.training import (
    ALGORITHMS,
    Settings,
    SettingsError,
    describe,
    describe_method,
    from_mapping,
    parse,
    read_object,
)

__all__ = [
    "ALGORITHMS",
    "Settings",
    "SettingsError",
    "describe",
    "describe_method",
    "from_mapping",
    "parse",
    "read_object",
]
