"""The errors that streamcd raises on purpose, and the warning of a training that has not converged."""

from .core.errors import BudgetError as BudgetError
from .core.errors import CheckpointError as CheckpointError
from .core.errors import ConvergenceWarning as ConvergenceWarning
from .core.errors import DataError as DataError
from .core.errors import DatasetError as DatasetError
from .core.errors import EnvironmentFailure as EnvironmentFailure
from .core.errors import Interrupted as Interrupted
from .core.errors import KeywordError as KeywordError
from .core.errors import LockError as LockError
from .core.errors import ModelError as ModelError
from .core.errors import StreamcdError as StreamcdError
from .core.errors import UsageError as UsageError
