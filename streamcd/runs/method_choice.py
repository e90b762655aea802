"""Choice of the method, by measurements on real sets.

Passes to a relative gap of 1e-3 with squared hinge, dual and primal, both accelerated; q is the mean of ``‖x‖²``:

| set (rows / features, q)      | C = 1   | C = 10     | C = 100    |
| ---                           | ---     | ---        | ---        |
| heart_scale (21, 8.1)         | 10, 10  | 15, 12     | 20, 16     |
| ijcnn1 (2272, 1.5)            | 7, 15   | 8, 19      | 10, 20     |
| a9a (265, 13.9)               | 8, 39   | 12, 42     | 20, 53     |
| mushrooms (73, 21), separable | 33, 152 | 48, >400   |            |
| imdb bigrams (0.02, 1)        | 5, 14   |            |            |

So the dual method is chosen, which needs no second layout, except for an unpenalised bias, which needs the primal.
"""

from __future__ import annotations

METHOD, REASON = "dual", "accelerated, it needs the fewest passes on all real sets measured but the smallest"


def choose_method(unpenalized_bias: bool) -> tuple[str, str]:
    """Choose for ``--method auto``: the method, and the reason as text. No layout is built."""
    if unpenalized_bias:
        return "primal", "only primal methods leave the bias unpenalised"
    return METHOD, REASON
