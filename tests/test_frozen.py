"""The outside of streamcd stays as it was recorded (``frozen_cases.py`` has the cases, ``frozen.json`` their outcomes)."""

from __future__ import annotations

import pytest
from frozen_cases import CASES, Bench, differences, machine, outcome_of, read_record

RECORD = read_record()
SAME_MACHINE = RECORD["machine"] == machine()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("frozen"))


@pytest.mark.parametrize("name", CASES)
def test_the_outside_is_as_recorded(name: str, bench: Bench) -> None:
    wrong = differences(outcome_of(name, bench), RECORD["cases"][name], same_machine=SAME_MACHINE)
    assert not wrong, "\n".join(wrong)


def test_every_case_is_recorded() -> None:
    assert RECORD["cases"].keys() == CASES.keys()


def test_bits_are_compared_where_they_were_recorded() -> None:
    if not SAME_MACHINE:
        pytest.skip(
            f"bits of weights and fingerprints were recorded with {RECORD['machine']}, this is {machine()}"
        )
