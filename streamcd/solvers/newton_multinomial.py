"""Newton's method for multinomial logistic regression with few features and classes."""

from __future__ import annotations

import numpy as np

from ..kernels import newton_multinomial as kernels
from ..kernels.newton import BLOCK
from ..kernels.newton_multinomial import FAR, N_LINE, NEAR, ClassScratch, ClassSums
from ..kernels.primitives import GAP, LOSS, LOSS_SLOPE, N_TOTALS, N_VISITED, ROUNDING, SLOPE, W_ALPHA
from ..kernels.triangle import triangle_size
from .block_sums import Blocks, BlockSums
from .class_biases import mixture
from .newton import NewtonSolver
from .protocol import State


class MultinomialNewtonSolver(NewtonSolver):
    """`NewtonSolver` for lanes of all classes, with a Hessian of (classes · features) squared.

    The softmax of the scores gives the shares of the dual variables. Where biases are not penalised they are mixed with some
    of all rows, so that their sums are those of the classes (`class_biases`).
    """

    _visit_rows = staticmethod(kernels.multinomial_newton_visit)

    def _make_sums(self, blocks: Blocks, n_parts: int) -> BlockSums:
        n_lanes, width = self.problem.n_lanes, self._width
        shapes = (2, width), (triangle_size(width),), (N_LINE,), (2, width), (N_TOTALS,)
        named = {name: (n_lanes, *shape) for name, shape in zip(ClassSums._fields, shapes, strict=True)}
        return BlockSums(ClassSums, named, blocks, n_parts)

    def _new_scratch(self) -> ClassScratch:
        k, size = self._n_vectors, self._size
        rows = np.zeros(BLOCK, dtype=np.int64), np.zeros(BLOCK), np.zeros((BLOCK, k))
        return ClassScratch(*rows, np.zeros((4, k)), np.zeros((BLOCK, size)), np.zeros((BLOCK, self._width)))

    def _with_distances(self, scratch: ClassScratch, distances: np.ndarray) -> ClassScratch:
        return scratch

    def _dual_point(
        self, state: State, totals: np.ndarray, w: np.ndarray, share: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return v and its sizes, where shares are mixed with those of all rows by t, and with the row's class by 1 - r.

        Biases that are not penalised ask for the first, L1 alone, which bounds v, for the second. A row's term of the gap is
        convex in its shares, 0 at the softmax.
        """
        v = state.matrices["v"].sum(axis=1)
        t, of_mixture = np.zeros(v.shape[0]), np.zeros(v.shape[0])
        if self.problem.free_bias:
            for lane in range(t.size):
                class_sums = state.matrices["class_sums"][lane].sum(axis=0)
                t[lane], of_mixture[lane] = self._mix(class_sums, w[lane], v[lane], totals[lane])
        sizes = totals[:, W_ALPHA] + t * totals[:, LOSS_SLOPE]
        r = self._feasible_share(v, share * sizes)
        near, far = state.matrices["line"][:, NEAR], state.matrices["line"][:, FAR]
        short, t = 1.0 - r, r * t
        with np.errstate(all="ignore"):  # t is 1 where a class has all shares
            of_near = np.where(short > 0.0, short * short / (1.0 - t) * near, 0.0)
        totals[:, GAP] = t * of_mixture + short * far + of_near
        totals[:, SLOPE] = (2.0 * t + short) * totals[:, LOSS_SLOPE]
        return v * r[:, None], sizes

    def _least_gap(
        self, state: State, norm: np.ndarray, gap: np.ndarray, rounding: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the gap and its rounding: the model's dual variables are not compared."""
        return gap, rounding

    def _mix(
        self, class_sums: np.ndarray, w: np.ndarray, v: np.ndarray, totals: np.ndarray
    ) -> tuple[float, float]:
        """Change v to that of shares whose sums over the rows are those of the classes.

        Returns the share t of the rows' common shares in it, and the rows' terms of the gap at these.
        """
        sums, own = class_sums.reshape(self._n_vectors, -1), v.reshape(self._n_vectors, -1)
        if not sums[:, -1].any():
            return 0.0, 0.0
        t, rho = mixture(sums[:, -1], own[:, -1])
        of_shares = sums - rho[:, None] * sums.sum(axis=0)
        cost = sums[:, -1].sum() / self.problem.bias
        dual = -float(cost * np.sum(rho * np.log(np.maximum(rho, 1e-300))))
        of_w = float(np.einsum("j,j->", w, of_shares.reshape(-1)))
        totals[ROUNDING] += totals[N_VISITED] * t * (dual + abs(of_w))
        own *= 1.0 - t
        own += t * of_shares
        return t, max(of_w + totals[LOSS] - dual, 0.0)

    def _smaller_share(self) -> np.ndarray:
        """Return the share of the smallest class."""
        counts = self._class_counts
        assert counts is not None
        return np.full(self.problem.n_lanes, max(counts.min(), 1) / max(counts.sum(), 1))

    def _start_norm(self, state: State) -> np.ndarray:
        """Compute ``‖∇f(0)‖``, where all shares are the same."""
        sums = state.matrices["class_sums"].sum(axis=1).reshape(self.problem.n_lanes, self._n_vectors, -1)
        start = (sums - sums.mean(axis=1, keepdims=True)).reshape(self.problem.n_lanes, -1)
        return self._slope_norms(np.zeros_like(start), start)
