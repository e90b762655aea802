"""Attacks on streamcd's files and claims: ``python -m tools.faults --help``."""
