"""The errors that streamcd raises on purpose, and the warning of a training that has not converged."""

from .core.errors import (
    BudgetError,
    CheckpointError,
    ConvergenceWarning,
    DataError,
    DatasetError,
    EnvironmentFailure,
    Interrupted,
    KeywordError,
    LockError,
    ModelError,
    StreamcdError,
    UsageError,
)

__all__ = [
    "BudgetError",
    "CheckpointError",
    "ConvergenceWarning",
    "DataError",
    "DatasetError",
    "EnvironmentFailure",
    "Interrupted",
    "KeywordError",
    "LockError",
    "ModelError",
    "StreamcdError",
    "UsageError",
]
