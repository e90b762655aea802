"""The numbers that tell the models of a run apart: C, and λ of the penalty."""

from __future__ import annotations

from typing import NamedTuple


class Setting(NamedTuple):
    """Cost and strength of L1 of a model."""

    C: float
    l1: float = 0.0  # 0: the penalty has no L1

    def __str__(self) -> str:
        return f"C = {self.C:g}" + (f", l1 = {self.l1:g}" if self.l1 else "")

    @property
    def name(self) -> str:
        """Name of a file of it, to all digits."""
        return f"C={self.C!r}" + (f",l1={self.l1!r}" if self.l1 else "")

    @classmethod
    def named(cls, name: str) -> Setting:
        """Read a `name`; raises ValueError for another text."""
        C, _, l1 = name.removeprefix("C=").partition(",l1=")
        return cls(float(C), float(l1 or 0.0))

    def fits(self, C: float | None, l1: float | None) -> bool:
        """Check if it has the values that are asked for; None for any."""
        return C in (None, self.C) and l1 in (None, self.l1)


def cost_name(C: float) -> str:
    """Name the scores of a C, to all digits: ``1`` for 1.0."""
    short = f"{C:g}"
    return short if float(short) == C else repr(C)


def asked_text(C: float | None, l1: float | None) -> str:
    """Tell the values that are asked for."""
    asked = {"C": C, "l1": l1}
    return ", ".join(f"{name} = {value:g}" for name, value in asked.items() if value is not None)
