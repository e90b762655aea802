"""The run at scale, in small: killed and resumed to a certified gap, within the budget."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.scale import main


@pytest.mark.slow
def test_a_run_that_is_killed_twice_ends_certified_within_its_budget(tmp_path: Path) -> None:
    asked = ["--rows", "20000,300000", "--kills", "2", "--memory", "360MB"]
    done = CliRunner().invoke(main, [str(tmp_path), *asked], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "killed 2 times" in done.stdout
    found = re.search(r"gap ([0-9.e-]+) after", done.stdout)
    assert found
    assert float(found[1]) <= 1e-3
    peaks = [float(peak) for peak in re.findall(r"([0-9.]+) MB \|$", done.stdout, re.M)]
    assert len(peaks) == 2
    assert max(peaks) <= 360
