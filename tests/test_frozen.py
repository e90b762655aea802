"""The outside of streamcd stays as it was recorded (``frozen_cases.py`` has the cases, ``frozen.json`` their outcomes)."""

from __future__ import annotations

import pytest
from frozen_cases import CASES, MORE_PASSES, Bench, differences, outcome_of, read_record

RECORD = read_record()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("frozen"))


@pytest.mark.parametrize("name", CASES)
def test_the_outside_is_as_recorded(name: str, bench: Bench) -> None:
    wrong = differences(outcome_of(name, bench), RECORD[name], more_passes=MORE_PASSES.get(name, 0.1))
    assert not wrong, "\n".join(wrong)


def test_every_case_is_recorded() -> None:
    assert RECORD.keys() == CASES.keys()
