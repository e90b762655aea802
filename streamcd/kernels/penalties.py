"""The penalty g(w), and the map from ``v = Σ s_i a_i x_i`` to weights, ``w = ∇g*(v)``; stated once, feature by feature.

Here ``g(w) = Σ ½ r_j w_j²``: r is 1, or 0 for a bias that is not penalised. With the proximal term ``kappa/2 ‖w - c‖²``
of acceleration the map is ``w = (v + kappa c)/(r + kappa)``. The penalty's part of the gap is ``g(w) + g*(v) - w·v``;
where r is 0, g* is finite at v = 0 alone. Another penalty is another map with its own terms: here, and nowhere else.
"""

from __future__ import annotations

from .compile import inlined


@inlined
def weight_of(v, centre, kappa, inverse_mu):
    """Return the weight that belongs to v; `inverse_mu` is ``1/(r + kappa)``."""
    return (v + kappa * centre) * inverse_mu


@inlined
def sum_of(w, moved, kappa):
    """Return the v to which the penalised weight w belongs, which has moved by `moved` from the centre."""
    return w + kappa * moved


@inlined
def penalty(w, ridge):
    """Return the weight's term of g."""
    return ridge * (0.5 * w * w)


@inlined
def conjugate(v):
    """Return the term of g* where the weight is penalised."""
    return 0.5 * v * v


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
