"""A change to Python, imported by every process of the tests, that alters no result, only how long it takes to come.

No test cuts the power, so no process waits for a disk; the tests of what a power cut leaves (`crashing`) watch the calls.
"""

from __future__ import annotations

import os
from typing import Any


def _sync_nothing(descriptor: Any) -> None:
    os.fstat(descriptor if isinstance(descriptor, int) else descriptor.fileno())  # refuses what is not open


os.fsync = _sync_nothing
