"""Common parts of the kernels: constants, argument tuples, random orders and hashes, products of a row and weights.

Kernels are numba functions over arrays, and nothing else. A loss is an integer constant and an `if` (`losses`): as fast as
a function argument, and the only form that the compile cache supports. Related arguments are grouped in named tuples of
importable classes, which the cache supports too. A kernel that uses another file's code or constants is a
`compile.kernel`.

Arguments that all dual kernels share
-------------------------------------
order : (n,) int64             offsets of the rows to visit, in this order
rows, costs, variables, steering, lanes
                               `Rows`, `Costs`, `Variables`, `Steering`, `Lanes`
totals : (lanes, N_TOTALS)     sums over the visited rows, columns as named below
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compile import inlined, kernel
from .loss_table import Loss


class Total(IntEnum):
    """Columns of `totals`.

    The rows' terms of the gap, of the primal loss and of the dual objective (for a visit, the change of the latter); the
    largest and smallest projected gradient; numbers of rows visited, still active, and shrunk (wholly, or some of their
    classes), and of inner Newton steps. SLOPE bounds how the terms of the gap change with the margins, times ‖x‖, and is
    summed at fixed w, as is ALPHA_SQUARE, ``Σ a² q``. For acceleration the changes of ``Σ a``, ``Σ a² q/mu`` (times C - a
    over C for the logistic loss; both of a row's own class for Crammer–Singer, and of the other classes' rows for a twin
    plane) and ``Σ a² q/mu``. AT_ZERO is the objective with all weights 0, which no kernel sums, but the first read does.
    """

    GAP, LOSS, DUAL, VIOLATION_MAX, VIOLATION_MIN, N_VISITED, N_ACTIVE, N_SHRUNK, N_STEPS = range(9)
    SLOPE, ALPHA, ALPHA_CURVATURE, ALPHA_SQUARE, AT_ZERO = range(9, 14)


N_TOTALS = len(Total)

UNIT = 1.01 * 2.0**-53
"""Unit roundoff u of float64, with a margin for rounding in the bounds themselves."""

PATIENCE = 2
"""Successive visits at which a row of an accelerated lane must qualify for shrinking before it leaves: a moving centre moves
the thresholds. All rows return every few passes (`solvers.acceleration`); without that it takes 1.2 to 2 times the passes,
whatever this number."""

NO_STEP = 1e-12
"""A projected gradient below this is not worth a step (LIBLINEAR's figure)."""


# Distances of prefetching, in rows ahead of the one being solved: first a row's record, then its entries, then the weights
# of these, unless all weights fit in the second-level cache. Measured on synthetic text (32 M entries, 300,000 features,
# rows of 107): 61-123 M entries/s without, 180 (random order over all rows) to 310 (over windows of 4 M entries) with; 1 to
# 3 rows ahead differ by less than the noise.
_AHEAD = 2  # of weights; entries are fetched three times as far ahead, records six times
_CACHED_WEIGHTS = 16384


class Rows(NamedTuple):
    """Rows as an arena holds them; never changed by a kernel."""

    indptr: np.ndarray  # (rows + 1,) int64: entries of row i are ``indptr[i]:indptr[i + 1]``
    feature: np.ndarray  # (entries,), 0-based
    value: np.ndarray  # (entries,)
    code: np.ndarray  # (rows,) int32: index of the row's label among the classes
    weight: np.ndarray  # (rows,) float64
    fold: np.ndarray  # (rows,) uint8: lane l leaves the row out where ``left_out[lane_fold[l], fold[i]]``
    target: np.ndarray  # (rows,) float64: the number to predict; empty where rows have classes


class Costs(NamedTuple):
    """A problem: loss, bias, and the lanes' signs and costs."""

    loss: Loss
    bias: float  # value of the constant feature; 0 for none
    # (classes, lanes): sign of a row of that class in that lane; (1, lanes), 1 for rows with targets
    sign: np.ndarray
    cost: np.ndarray  # (classes, lanes): C of a row of that class in that lane; 0 leaves the class out
    lane_fold: np.ndarray  # (lanes,) int64: the fold that the lane leaves out, -1 for none
    left_out: np.ndarray  # (folds + 1, 256) bool: the cells of rows of each fold; none in the last row


class Variables(NamedTuple):
    """Dual variables and weights; changed in place by a visit.

    For the logistic loss `alpha` holds C - alpha in a second half; for Crammer–Singer every lane has k columns. A flag is 0
    where shrinking took the row out of the lane, or the class out of the row's problem; else 1, and 1 more for each of the
    last visits in a row at which it was eligible (up to `PATIENCE`, with acceleration only). The weights of a feature in all
    lanes are neighbours; those of the bias come last and stay 0 where there is none.
    """

    alpha: np.ndarray  # (rows, lanes) float64
    active: np.ndarray  # (rows, lanes) uint8
    w: np.ndarray  # ((d + 1) * lanes,) float64


class Steering(NamedTuple):
    """Parameters of the steps of a pass, each (lanes,) float64."""

    high: np.ndarray  # rows at 0 with a gradient above this leave the active set
    low: np.ndarray  # rows at their upper bound with a gradient below this leave it
    tolerance: np.ndarray  # of Newton's method (logistic)
    omega: np.ndarray  # over-relaxation of the closed-form steps, in (0, 2); 1 is plain coordinate descent
    # 1/mu, where ``w = (w(alpha) + kappa v)/mu``; 1 without acceleration (see `solvers.acceleration`)
    inverse_mu: np.ndarray
    uncounted: np.ndarray  # 1 where no pass has added the rows' alpha to the sums for acceleration, else 0


class Lanes(NamedTuple):
    """Lanes to work on, and scratch arrays for one row."""

    chosen: np.ndarray  # (k,) int64, ascending
    fetched: np.ndarray  # (lanes + 1,) int64, see `choose_fetched`
    dots: np.ndarray  # (lanes,) float64
    live: np.ndarray  # (lanes,) int64
    steps: np.ndarray  # (lanes,) float64: zeros, before and after


@intrinsic
def load8(typingctx: Any, text: Any, position: Any) -> Any:
    """Load eight bytes of ``text`` from ``position`` on as one little-endian integer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.gep(array.data, [args[1]])
        word = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(text, types.int64), codegen


@intrinsic
def multiply_high(typingctx: Any, a: Any, b: Any) -> Any:
    """Return the upper 64 bits of the product of two unsigned 64-bit integers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


def _of_word(function: str, *flags: int) -> Any:
    """Make an instruction of one unsigned 64-bit integer."""

    @intrinsic
    def instruction(typingctx: Any, word: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, function)(args[0], *(ir.Constant(ir.IntType(1), flag) for flag in flags))

        return types.uint64(types.uint64), codegen

    return instruction


trailing_zeros = _of_word("cttz", 0)
leading_zeros = _of_word("ctlz", 0)
"""Numbers of bits of a word; all 64 are zeros of 0."""


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask the processor to fetch ``array[index]`` into its caches; never faults."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        position = cgutils.unpack_tuple(builder, args[1]) if isinstance(index, types.BaseTuple) else [args[1]]
        pointer = cgutils.get_item_pointer(context, builder, signature.args[0], array, position)
        flag = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer.type], ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag])
        )
        builder.call(function, [pointer, flag(0), flag(3), flag(1)])  # for reading, keep in all caches, data
        return context.get_dummy_value()

    whole = types.UniTuple(types.intp, len(index)) if isinstance(index, types.BaseTuple) else types.intp
    return types.void(array, whole), codegen


def _of_vectors(n_vectors: int, *, adds: bool) -> Any:
    """Make an intrinsic: a row's entries against ``8 n_vectors`` neighbouring lanes of ``w``, by vector operations.

    It computes ``numbers[low:] = Σ_k w[feature[k], low:] value[k]`` or, with `adds`, adds ``numbers[low:] value[k]`` to
    ``w[feature[k], low:]``. Arguments: feature, value, start, stop (of the row's entries), w, its number of lanes, low,
    numbers. Every lane's terms are rounded, and added up, as by the plain loop. (numba does not vectorize over eight
    neighbours by itself; sixteen lanes by a plain loop took twice the time.)
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = [
            context.make_array(kind)(context, builder, argument).data
            if isinstance(kind, types.Array)
            else argument
            for kind, argument in zip(signature.args, args, strict=True)
        ]
        feature, value, start, stop, w, n_lanes, low, numbers = arrays
        long = ir.IntType(64)
        double = ir.DoubleType()
        vector = ir.VectorType(ir.DoubleType(), 8 * n_vectors)

        def at(array: Any, index: Any) -> Any:
            return builder.bitcast(builder.gep(array, [index]), vector.as_pointer())

        def splat(number: Any) -> Any:
            one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.IntType(32)(0))
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), 8 * n_vectors), [0] * 8 * n_vectors)
            return builder.shuffle_vector(one, one, lanes)

        mine = at(numbers, low)
        first = builder.load(mine, align=8) if adds else splat(ir.Constant(double, 0.0))
        before = builder.block
        test = builder.append_basic_block("test")
        body = builder.append_basic_block("entry")
        after = builder.append_basic_block("after")
        builder.branch(test)
        builder.position_at_end(test)
        k = builder.phi(long)
        total = builder.phi(vector)
        builder.cbranch(builder.icmp_signed("<", k, stop), body, after)
        builder.position_at_end(body)
        index = builder.load(builder.gep(feature, [k]))
        number = builder.load(builder.gep(value, [k]))
        index = builder.zext(index, long) if index.type.width < 64 else index
        number = number if number.type == double else builder.fpext(number, double)
        weights = at(w, builder.add(builder.mul(index, n_lanes), low))
        known = builder.load(weights, align=8)
        factor = splat(number)
        new = total
        if adds:
            builder.store(builder.fadd(known, builder.fmul(total, factor)), weights, align=8)
        else:
            new = builder.fadd(total, builder.fmul(known, factor))
        k.add_incoming(start, before)
        k.add_incoming(builder.add(k, long(1)), body)
        total.add_incoming(first, before)
        total.add_incoming(new, body)
        builder.branch(test)
        builder.position_at_end(after)
        if not adds:
            builder.store(total, mine, align=8)
        return context.get_dummy_value()

    def typed(
        typingctx: Any,
        feature: Any,
        value: Any,
        start: Any,
        stop: Any,
        w: Any,
        n_lanes: Any,
        low: Any,
        numbers: Any,
    ) -> Any:
        integer = types.int64
        return types.void(feature, value, integer, integer, w, integer, integer, numbers), codegen

    return intrinsic(typed)


dot_of_8, dot_of_16, dot_of_32 = (_of_vectors(n_vectors, adds=False) for n_vectors in (1, 2, 4))
add_to_8, add_to_16, add_to_32 = (_of_vectors(n_vectors, adds=True) for n_vectors in (1, 2, 4))


def unsigned(index):
    """View non-negative 32-bit indices as unsigned; 64-bit ones are returned as they are.

    numba tests every signed index for being negative, which costs a tenth of a visit (115 to 165 against 125 to 175 M
    entries/s in alternate runs). Products of unsigned 64-bit indices with an int64 would be floats.
    """
    return index.view(np.uint32) if index.dtype == np.int32 else index


# ---------------------------------------------------------------------------------------------------------------------
# Random order


@inlined
def mix(state):
    """Output function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection of 64-bit integers.

    ``mix.py_func`` takes arrays too.
    """
    z = np.uint64(state)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def _below(state, bound):
    """Return a random number below `bound`, as a function of `state`."""
    # high bits times range: the bias is at most bound / 2**32, too small to be seen in fewer than 2**32 rows
    return np.int64(((mix(state) >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


@kernel
def shuffle(order, key, block):
    """Permute blocks of successive items, and the items of each block, in place, as a function of `key` (uint64) alone.

    Blocks of one item give any order with the same probability (Fisher-Yates). Of larger ones the items that are left over
    stay last.
    """
    state = np.uint64(key)
    for i in range(order.size // block - 1, 0, -1):
        state += np.uint64(0x9E3779B97F4A7C15)
        j = _below(state, i + 1)
        for k in range(block):
            a = i * block + k
            b = j * block + k
            order[a], order[b] = order[b], order[a]
    if block > 1:
        for start in range(0, order.size, block):
            for i in range(min(block, order.size - start) - 1, 0, -1):
                state += np.uint64(0x9E3779B97F4A7C15)
                a = start + i
                b = start + _below(state, i + 1)
                order[a], order[b] = order[b], order[a]


@partial(kernel, strided="active")
def active_rows(row_start, row_stop, active, lanes, order):
    """Write the rows that are active in any of `lanes` to `order`, and return their number.

    `row_start`, `row_stop` (chunks,) int64 are ranges of rows; `active` (rows, lanes) uint8; `order` int64.
    """
    n = 0
    for chunk in range(row_start.size):
        for i in range(row_start[chunk], row_stop[chunk]):
            for lane in lanes:
                if active[i, lane]:
                    order[n] = i
                    n += 1
                    break
    return n


@kernel
def draw(candidates, key, order):
    """Fill `order` with independent uniform draws from `candidates`, with replacement, as a function of `key` alone."""
    state = np.uint64(key)
    for i in range(order.size):
        state += np.uint64(0x9E3779B97F4A7C15)
        order[i] = candidates[_below(state, candidates.size)]


@kernel
def add_entry_hashes(row, feature, value_bits, sums):
    """Add two independent 64-bit hashes of every entry (row, feature, bits of the value) to `sums` (2,) uint64, modulo 2^64.

    The sums are those of a set of entries, whatever their order.
    """
    first = sums[0]
    second = sums[1]
    for k in range(row.size):
        location = mix(np.uint64(row[k]) + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(feature[k])
        entry = mix(location) ^ np.uint64(value_bits[k])
        first += mix(entry)
        second += mix(entry * np.uint64(0xD6E8FEB86659FD93) + mix(location + np.uint64(0x632BE59BD9B4E019)))
    sums[0] = first
    sums[1] = second


# ---------------------------------------------------------------------------------------------------------------------
# One row against one lane of weights


@inlined
def row_dot(rows, w, start, stop):
    """Return x·w and x·x of the row with entries ``start:stop``; independent partial sums hide the latency of additions."""
    feature = rows.feature
    value = rows.value
    dot0 = dot1 = dot2 = dot3 = 0.0
    norm0 = norm1 = 0.0
    k = start
    while k + 4 <= stop:
        v0 = np.float64(value[k])
        v1 = np.float64(value[k + 1])
        v2 = np.float64(value[k + 2])
        v3 = np.float64(value[k + 3])
        dot0 += w[feature[k]] * v0
        dot1 += w[feature[k + 1]] * v1
        dot2 += w[feature[k + 2]] * v2
        dot3 += w[feature[k + 3]] * v3
        norm0 += v0 * v0 + v2 * v2
        norm1 += v1 * v1 + v3 * v3
        k += 4
    while k < stop:
        v0 = np.float64(value[k])
        dot0 += w[feature[k]] * v0
        norm0 += v0 * v0
        k += 1
    return (dot0 + dot1) + (dot2 + dot3), norm0 + norm1


@inlined
def row_square(rows, start, stop):
    """Return x·x of the row with entries ``start:stop``."""
    value = rows.value
    even = odd = 0.0
    for k in range(start, stop - 1, 2):
        v0 = np.float64(value[k])
        v1 = np.float64(value[k + 1])
        even += v0 * v0
        odd += v1 * v1
    if (stop - start) % 2:
        odd += np.float64(value[stop - 1]) * np.float64(value[stop - 1])
    return even + odd


@inlined
def add_row(rows, w, start, stop, step):
    """Add `step` times the row with entries ``start:stop`` to `w`, in place."""
    feature = rows.feature
    value = rows.value
    for k in range(start, stop):
        w[feature[k]] += step * value[k]


@inlined
def fetch_ahead(order, p, rows, w, n_columns, fetched):
    """Prefetch record, entries and weights of rows ahead; `w` is flat, with `n_columns` per feature, of which `fetched`."""
    indptr = rows.indptr
    feature = rows.feature
    value = rows.value
    last = order.size - 1
    i = order[min(p + 6 * _AHEAD, last)]
    prefetch(indptr, i)
    prefetch(indptr, i + 1)
    i = order[min(p + 3 * _AHEAD, last)]
    for k in range(indptr[i], indptr[i + 1], 16):
        prefetch(feature, k)
        prefetch(value, k)
    i = order[min(p + _AHEAD, last)]
    start = indptr[i]
    stop = indptr[i + 1] if w.size > _CACHED_WEIGHTS else 0
    for column in fetched:
        for k in range(start, stop):
            prefetch(w, feature[k] * n_columns + column)


@inlined
def fetch_variables_ahead(order, p, variables, fetched):
    """Prefetch the dual variables and flags of a row ahead, in the lanes `fetched`.

    Without it a visit of 40 lanes took 1.35 times as long, and that of a fourth of 105 lanes, a thread's share, 1.9 times.
    """
    i = order[min(p + _AHEAD, order.size - 1)]
    alpha = variables.alpha
    active = variables.active
    for lane in fetched:
        for column in range(lane, alpha.shape[1], active.shape[1]):
            prefetch(alpha, (i, column))
        prefetch(active, (i, lane))


@inlined
def choose_fetched(lanes):
    """Write lanes to the front of `fetched`, of which every chosen lane is one or less than a cache line after one.

    Returns their number.
    """
    fetched = lanes.fetched
    n = 0
    aligned = lanes.dots.size % 8 == 0
    for lane in lanes.chosen:
        if n == 0 or (lane // 8 > fetched[n - 1] // 8 if aligned else lane >= fetched[n - 1] + 8):
            fetched[n] = lane
            n += 1
    if n and not aligned and lanes.chosen[-1] > fetched[n - 1]:  # numbers of a line that begins in between
        fetched[n] = lanes.chosen[-1]
        n += 1
    return n


@inlined
def row_label(i, lane, rows, costs):
    """Return the sign s that a row has in a lane, and y as losses take it: the sign of its class, or its target."""
    sign = costs.sign[rows.code[i], lane]
    return sign, rows.target[i] if rows.target.size > 0 else sign


@inlined
def row_cost(i, lane, rows, costs):
    """Return C_i of a row in a lane; 0 if the lane leaves the row out."""
    if costs.left_out[costs.lane_fold[lane], rows.fold[i]]:
        return 0.0
    return costs.cost[rows.code[i], lane] * rows.weight[i]
