"""Attacks on what streamcd keeps on disk and claims: ``python -m tools.faults --help``."""
