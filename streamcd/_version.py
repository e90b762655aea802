"""Version of the package, read by everything and importing nothing."""

__version__ = "0.1.0"
