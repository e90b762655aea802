"""Newton's method for multinomial logistic regression with few features and classes."""

from __future__ import annotations

import numpy as np

from ..kernels import newton_multinomial as kernels
from ..kernels.newton import BLOCK, LENGTHS
from ..kernels.newton_multinomial import ClassScratch, ClassSums
from ..kernels.primitives import GAP, LOSS, LOSS_SLOPE, N_TOTALS, N_VISITED, ROUNDING, SLOPE, UNIT, W_ALPHA
from .block_sums import Blocks, BlockSums
from .class_biases import mixture
from .dual import primal_rounding, proven_gap
from .newton import NewtonSolver
from .protocol import State, certificate_of


class MultinomialNewtonSolver(NewtonSolver):
    """`NewtonSolver` for lanes of all classes, with a Hessian of (classes · features) squared.

    With the softmax of the scores for the shares of the dual variables the gap is ``½‖w - v‖²``; where biases are not
    penalised the shares are mixed with some of all rows, so that their sums are those of the classes (`class_biases`).
    """

    _visit_rows = staticmethod(kernels.multinomial_newton_visit)

    def _make_sums(self, blocks: Blocks, n_parts: int) -> BlockSums:
        n_lanes, width = self.problem.n_lanes, self._width
        shapes = (1, width), (width, width), (LENGTHS.size,), (width,), (N_TOTALS,)
        named = {name: (n_lanes, *shape) for name, shape in zip(ClassSums._fields, shapes, strict=True)}
        return BlockSums(ClassSums, named, blocks, n_parts)

    def _new_scratch(self) -> ClassScratch:
        k, size = self._n_vectors, self._size
        rows = np.zeros(BLOCK, dtype=np.int64), np.zeros(BLOCK), np.zeros((BLOCK, k))
        return ClassScratch(*rows, np.zeros((4, k)), np.zeros((BLOCK, size)), np.zeros((BLOCK, self._width)))

    def _with_distances(self, scratch: ClassScratch, distances: np.ndarray) -> ClassScratch:
        return scratch

    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute the certificate of every lane, as `dual.RowSolver.certificate`."""
        totals, w, n_lanes = state.totals, self._flat(state), self.problem.n_lanes
        n = totals[:, N_VISITED] + 100.0
        v = state.matrices["v"][:, 0].copy()
        if self.problem.free_bias:
            for lane in range(n_lanes):
                self._mix(state.matrices["class_sums"][lane], w[lane], v[lane], totals[lane])
            totals[:, ROUNDING] += 2.0 * n * totals[:, LOSS]  # the sums are equal up to rounding
        with np.errstate(all="ignore"):  # the loop says what is wrong
            apart = (w - v) * (self._ridge > 0.0)
            drift, norm = (np.sqrt(np.einsum("ij,ij->i", x, x)) for x in (apart, w))
            primal = self.problem.lane_penalties(state.w) + totals[:, LOSS]
            gap, rounding, _ = proven_gap(totals, norm, drift, np.zeros(n_lanes))
            of_primal = primal_rounding(totals, norm, np.zeros(n_lanes)) + n * UNIT * (
                primal - totals[:, LOSS]
            )
            return certificate_of(primal, gap, self.violation(state), rounding, of_primal)

    def _mix(self, class_sums: np.ndarray, w: np.ndarray, v: np.ndarray, totals: np.ndarray) -> None:
        """Change v, and the sums over the rows, to those of shares whose sums over the rows are those of the classes."""
        sums, own = class_sums.reshape(self._n_vectors, -1), v.reshape(self._n_vectors, -1)
        if not sums[:, -1].any():
            return
        t, rho = mixture(sums[:, -1], own[:, -1])
        of_shares = sums - rho[:, None] * sums.sum(axis=0)
        cost = sums[:, -1].sum() / self.problem.bias
        dual = -float(cost * np.sum(rho * np.log(np.maximum(rho, 1e-300))))
        of_w = float(np.einsum("j,j->", w, of_shares.reshape(-1)))
        totals[GAP] = t * max(of_w + totals[LOSS] - dual, 0.0)
        totals[SLOPE] = t * 2.0 * totals[LOSS_SLOPE]
        totals[W_ALPHA] = (1.0 - t) * totals[W_ALPHA] + t * totals[LOSS_SLOPE]
        totals[ROUNDING] += totals[N_VISITED] * t * (dual + abs(of_w))
        own *= 1.0 - t
        own += t * of_shares

    def _smaller_share(self) -> np.ndarray:
        """Return the share of the smallest class."""
        counts = self._class_counts
        assert counts is not None
        return np.full(self.problem.n_lanes, max(counts.min(), 1) / max(counts.sum(), 1))

    def _start_norm(self, state: State) -> np.ndarray:
        """Compute ``‖∇f(0)‖``, where all shares are the same."""
        sums = state.matrices["class_sums"].reshape(self.problem.n_lanes, self._n_vectors, -1)
        start = (sums - sums.mean(axis=1, keepdims=True)).reshape(self.problem.n_lanes, -1)
        return self._slope_norms(np.zeros_like(start), start)

    def _slope_norms(self, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        slope = self._ridge * w - v
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", slope, slope)))
