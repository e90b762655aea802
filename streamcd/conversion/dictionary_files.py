"""Files of the strings that a conversion has met, in the directory of its dictionaries."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SAMPLES = "samples.json"
"""The first strings of hashed columns."""

DATA, OFFSETS, DOCUMENTS = "data.bin", "offsets.bin", "documents.bin"
"""Of the categories, tokens included: their bytes, where these end, and the documents in which tokens occur."""


def mapped(path: Path, dtype: str) -> np.ndarray:
    """Map a file of numbers into memory."""
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
