"""Looks at a validation set while training: when they are due, what a state keeps of them, and lanes that they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.setting import Setting
from ..report.scores import describe_score, score_of
from ..solvers.protocol import CERTIFY, DONE

Validate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Computes the mean loss and the score of every lane's model, accuracy or R², shape (lanes,) each, at a state's weights."""

PATIENCE = 5
"""Looks without a smaller loss after which `--early-stop` ends the lanes of a C.

Weights at the end of an early pass swing: with three, a lane of a large C ended after its
fourth, with a loss a fifth above the least."""

_GROWTH = 1.25
"""Factor by which the passes between looks grow: looks take a small share of a long training (21 in 100 passes), and
`PATIENCE` of them are at least as many passes, and at most about twice those made."""


def new_look_arrays(n_lanes: int, *, has_targets: bool) -> dict[str, np.ndarray]:
    """Make the per-lane arrays of looks; those of one C have the same figures."""
    return {
        "look_loss": np.full(n_lanes, np.nan),
        f"look_{score_of(has_targets=has_targets)}": np.full(n_lanes, np.nan),
        "look_passes": np.zeros(n_lanes, dtype=np.int64),  # of the slowest lane, at the last look
        "best_loss": np.full(n_lanes, np.inf),
        "best_passes": np.zeros(n_lanes, dtype=np.int64),
        "looks_in_vain": np.zeros(n_lanes, dtype=np.int64),  # since the best one
    }


def look_is_due(lanes: Mapping[str, np.ndarray]) -> bool:
    """Tell whether to look: after passes 1 to 8, 10, 12, 15, 18, 22, ... and at the end."""
    passes, last = int(lanes["passes"].max()), int(lanes["look_passes"].max())
    is_open = bool((lanes["phase"] != DONE).any())
    return passes >= max(last + 1, int(_GROWTH * last) if is_open else 0)


def _score_in(lanes: Mapping[str, np.ndarray]) -> str:
    return score_of(has_targets="look_r2" in lanes)


def take_note(lanes: Mapping[str, np.ndarray], loss: np.ndarray, score: np.ndarray) -> None:
    """Keep the figures of a look; changes the arrays in place."""
    passes = int(lanes["passes"].max())
    lanes["look_loss"][:], lanes[f"look_{_score_in(lanes)}"][:], lanes["look_passes"][:] = loss, score, passes
    better, in_training = loss < lanes["best_loss"], lanes["phase"] != DONE
    lanes["best_loss"][better], lanes["best_passes"][better] = loss[better], passes
    lanes["looks_in_vain"][better] = 0
    lanes["looks_in_vain"][in_training & ~better] += 1


def lanes_to_stop(lanes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Find the lanes in training whose loss has not fallen for `PATIENCE` looks, int64."""
    in_training = (lanes["phase"] != DONE) & (lanes["reason"] == 0)
    return np.flatnonzero(in_training & (lanes["looks_in_vain"] >= PATIENCE))


def certify_next(lanes: Mapping[str, np.ndarray], ended: np.ndarray, reason: int) -> None:
    """Have lanes certified as they are, which ends them; changes the arrays in place."""
    lanes["phase"][ended], lanes["reason"][ended] = CERTIFY, reason


def figures(lanes: Mapping[str, np.ndarray], settings: Sequence[Setting]) -> list[dict[str, float]]:
    """Return loss and score of each C and λ at the last look; `settings` are the lanes'."""
    score = _score_in(lanes)
    return [
        {
            **setting._asdict(),
            "loss": float(lanes["look_loss"][lane]),
            score: float(lanes[f"look_{score}"][lane]),
        }
        for setting in dict.fromkeys(settings)
        for lane in [settings.index(setting)]
    ]


def report(lanes: Mapping[str, np.ndarray], settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """Return the figures of each C and λ, with the best ones, for a result; nothing where there was no validation set."""
    if "look_loss" not in lanes or not lanes["look_passes"].any():
        return []
    best = (
        (float(lanes["best_loss"][lane]), int(lanes["best_passes"][lane]))
        for lane in map(settings.index, dict.fromkeys(settings))
    )
    return [
        {**found, "best_loss": loss, "best_passes": passes}
        for found, (loss, passes) in zip(figures(lanes, settings), best, strict=True)
    ]


def describe(found: Sequence[Mapping[str, float]]) -> str:
    """Describe a look in words: of several C or λ the one of the smallest loss."""
    best = min(found, key=lambda each: each["loss"])
    which = f" at {Setting(best['C'], best['l1'])}, the best of {len(found)}" if len(found) > 1 else ""
    return f"validation loss {best['loss']:.4g}, {describe_score(best)}{which}"
