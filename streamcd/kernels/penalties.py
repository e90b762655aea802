"""The penalty g(w), and the map from ``v = Σ s_i a_i x_i`` to weights, ``w = ∇g*(v)``; stated once, feature by feature.

Here ``g(w) = Σ ½ r_j w_j²``: r is 1, or 0 for a bias that is not penalised. With the proximal term ``kappa/2 ‖w - c‖²``
of acceleration the map is ``w = (v + kappa c)/(r + kappa)``. The penalty's part of the gap is ``g(w) + g*(v) - w·v``;
where r is 0, g* is finite at v = 0 alone. Another penalty is another map with its own terms: here, and nowhere else.

With L1, ``g(w) = Σ l1 |w_j| + ½ l2 w_j²`` (below), g* is ``Σ soft(v_j, l1)² / (2 l2)``; without l2 it is finite where
``|v_j| <= l1`` alone, and 0 there.
"""

from __future__ import annotations

from .compile import inlined


@inlined
def weight_of(v, centre, kappa, inverse_mu):
    """Return the weight that belongs to v; `inverse_mu` is ``1/(r + kappa)``."""
    return (v + kappa * centre) * inverse_mu


@inlined
def sum_of(w, moved, kappa):
    """Return the v to which the weight w belongs, which has moved by `moved` from the centre."""
    return w + kappa * moved


@inlined
def penalty(w):
    """Return the weight's term of g, where it is penalised."""
    return 0.5 * w * w


@inlined
def gap_term(w, v):
    """Return ``g(w) + g*(v) - w v`` where the weight is penalised, never negative."""
    return 0.5 * (w - v) * (w - v)


@inlined
def penalty_slope(w, ridge):
    """Return the derivative of g; its second one is the ridge."""
    return ridge * w


@inlined
def penalty_change(w, step, ridge):
    """Return the difference that a step makes to g."""
    return ridge * (w * step + 0.5 * step * step)


# ---------------------------------------------------------------------------------------------------------------------
# Elastic net; LIBLINEAR's L1 where l2 is 0, ridge where l1 is 0


@inlined
def soft(u, threshold):
    """Move u towards 0 by the threshold, not beyond."""
    return max(u - threshold, 0.0) + min(u + threshold, 0.0)


@inlined
def elastic_gap_term(w, v, l1, l2):
    """Return ``g(w) + g*(v) - w v``, never negative; without l2 where ``|v| <= l1``."""
    within = min(max(v, -l1), l1)
    apart = w - (v - within) / l2 if l2 > 0.0 else 0.0
    return l1 * abs(w) - w * within + 0.5 * l2 * apart * apart


@inlined
def elastic_sensitivity(w, v, l1, l2):
    """Return the derivative of `elastic_gap_term` with respect to v, whose own derivative is ``1/l2`` at most."""
    return soft(v, l1) / l2 - w if l2 > 0.0 else -w


@inlined
def elastic_move(pull, w, curvature, l1, l2):
    """Return the step s for which ``½ h s² - pull s + g(w + s)`` is least."""
    if curvature + l2 > 0.0:
        return soft(curvature * w + pull, l1) / (curvature + l2) - w
    return -w if abs(pull) < l1 else 0.0  # where the loss is flat the penalty alone decides


@inlined
def elastic_slope(w, gradient, l1, l2):
    """Return the smallest derivative of g and a function with this gradient, 0 where w is optimal."""
    if w == 0.0:
        return soft(gradient, l1)
    return gradient + l2 * w + (l1 if w > 0.0 else -l1)
