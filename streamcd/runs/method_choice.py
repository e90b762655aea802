"""Which method suits a dataset: a rule measured on real sets.

Passes to a relative gap of 1e-3 with squared hinge, dual (accelerated) and primal; q is the mean of ``‖x‖²``:

| set (rows / features, q)      | C = 1   | C = 10     | C = 100    |
| ---                           | ---     | ---        | ---        |
| heart_scale (21, 8.1)         | 10, 21  | 15, 29     | 20, 35     |
| ijcnn1 (2272, 1.5)            | 7, 44   | 8, 58      | 10, 72     |
| a9a (265, 13.9)               | 8, 196  | 12, 264    | 20, 364    |
| mushrooms (73, 21), separable | 33, 1084 | 48, >500  | 23, >500   |
| kdd99 10 % (4187, 9.5)        | 13, 3000 |           |            |
| imdb bigrams (0.02, 1)        | 5, 35   |            |            |

So the dual is taken wherever the problem has one; only an unpenalised bias needs the primal.
"""

from __future__ import annotations

METHOD, REASON = "dual", "accelerated, it needs the fewest passes on every real set measured"


def choose_method(unpenalized_bias: bool) -> tuple[str, str]:
    """Choose for ``--method auto``: the method, and why, in words. No layout is built."""
    if unpenalized_bias:
        return "primal", "only primal methods leave the bias unpenalised"
    return METHOD, REASON
