"""Python imports this where it starts: the tests' processes have this folder on their PYTHONPATH."""

import quick_processes  # noqa: F401
