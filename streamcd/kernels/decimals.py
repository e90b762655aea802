"""Decimal numbers in text, parsed like Python's ``float()``: correctly rounded float64.

Text is read eight bytes at a time: at least eight more, of any content, must follow its last digit (`byte_sources.PADDING`).
"""

from __future__ import annotations

import numpy as np

from .compile import inlined, part
from .primitives import leading_zeros, load8, multiply_high, trailing_zeros

# outside of these, 19 digits times 10^power is zero or infinite
_MIN_POWER = -342
_MAX_POWER = 308
_EXACT_POWERS = np.array([10.0**power for power in range(23)])  # the powers of ten that float64 holds exactly
_TEN_TO = np.array([10**power for power in range(9)], dtype=np.uint64)
_TWO_TO = np.ldexp(1.0, np.arange(-1074, 972))  # the scale of a 53-bit significand; every one is exact


def _powers_of_five() -> tuple[np.ndarray, np.ndarray]:
    """Compute the leading 128 bits of 5^q, q = -342 … 308, as upper and lower halves.

    Rounded down where q is positive, up where it is negative (a reciprocal): Lemire, "Number parsing at a gigabyte per
    second", 2021, section 5, shows that this makes the product with a 64-bit significand decisive.
    """
    upper = []
    lower = []
    for q in range(_MIN_POWER, _MAX_POWER + 1):
        if q >= 0:
            power = 5**q
            shift = power.bit_length() - 128
            bits = power >> shift if shift > 0 else power << -shift
        else:
            power = 5**-q
            bits = (1 << (power.bit_length() + 127)) // power + 1
        upper.append(bits >> 64)
        lower.append(bits & 0xFFFFFFFFFFFFFFFF)
    return np.array(upper, dtype=np.uint64), np.array(lower, dtype=np.uint64)


_FIVES_UPPER, _FIVES_LOWER = _powers_of_five()

OK, MALFORMED, HARD = range(3)  # HARD: Python's float() has to decide


@part
def _scaled(significand, power):
    """Return ``significand · 10^power``, correctly rounded, and whether that was decided (for subnormal numbers it is not).

    The Eisel-Lemire algorithm: 5^power is known to 128 bits, the product's leading 64 bits (or, where these do not
    decide, its leading 128) give the 53 bits and how to round them. Source: Lemire 2021, Mushtak and Lemire 2023.
    """
    if significand == np.uint64(0) or power < _MIN_POWER:
        return 0.0, significand == np.uint64(0)
    if power > _MAX_POWER:
        return np.inf, True
    one = np.uint64(1)
    shift = leading_zeros(significand)
    w = significand << shift
    five = _FIVES_UPPER[power - _MIN_POWER]
    high = multiply_high(w, five)
    low = w * five
    # where the bits below the rounding bit are all set, more are needed
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):
        extra = multiply_high(w, _FIVES_LOWER[power - _MIN_POWER])
        low = low + extra
        if low < extra:
            high = high + one
        if low == np.uint64(0xFFFFFFFFFFFFFFFF) and (power < -27 or power > 55):
            return 0.0, False
    top = high >> np.uint64(63)
    dropped = top + np.uint64(9)
    mantissa = high >> dropped  # 54 bits: the last one rounds
    if low <= one and -4 <= power <= 23 and mantissa & np.uint64(3) == one and mantissa << dropped == high:
        mantissa = mantissa & ~one  # exactly half-way between two numbers: to the even one
    mantissa = (mantissa + (mantissa & one)) >> one
    # floor(log2(10^power)) by a multiplication that is exact in this range
    exponent = ((217706 * power) >> 16) + 63 + np.int64(top) - np.int64(shift) - 52
    if exponent < -1074:
        return 0.0, False  # subnormal: rare, and rounded at another bit
    if exponent > 971:
        return np.inf, True
    return np.float64(mantissa) * _TWO_TO[exponent + 1074], True


@inlined
def digits(text, position):
    """Parse the digits from `position` on: return their integer (modulo 2^64), and where they end.

    Eight bytes at a time: the digits among them are shifted to the top, so that zeros lead, then added in pairs, fours
    and eights.
    """
    total = np.uint64(0)
    while True:
        word = load8(text, position) ^ np.uint64(0x3030303030303030)  # a digit is now 0 … 9
        others = ((word + np.uint64(0x7676767676767676)) | word) & np.uint64(0x8080808080808080)
        bits = trailing_zeros(others)
        count = bits >> np.uint64(3)
        if count == np.uint64(0):
            return total, position
        word = word << (np.uint64(64) - (count << np.uint64(3)))
        word = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
        word = (word * np.uint64(100) + (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
        word = (word * np.uint64(10000) + (word >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
        total = total * _TEN_TO[count] + word
        position += np.int64(count)
        if count < np.uint64(8):
            return total, position


@part
def _long_number(text, start, stop, power):
    """Return the number of more than 18 digits in ``text[start:stop]`` (digits and at most one point), times 10^power.

    Its first 19 significant digits decide, unless these digits plus one round to another float64.
    """
    significand = np.uint64(0)
    n_digits = 0
    fraction = False
    cut = False
    for i in range(start, stop):
        if text[i] == 0x2E:
            fraction = True
            continue
        digit = text[i] - 48
        if n_digits < 19:
            significand = significand * np.uint64(10) + np.uint64(digit)
            n_digits += significand > np.uint64(0)
            power -= fraction
        else:
            cut = cut or digit != 0
            power += not fraction
    value, decided = _scaled(significand, power)
    if cut and decided:
        above, decided = _scaled(significand + np.uint64(1), power)
        decided = decided and above == value
    return value, decided


@part
def _exponent(text, position):
    """Parse the exponent whose ``e`` is at `position`: return it, limited to ± 99999, and its end (0: malformed)."""
    position += 1
    negative = text[position] == 0x2D
    if negative or text[position] == 0x2B:
        position += 1
    start = position
    exponent = 0
    while 0 <= text[position] - 48 <= 9:
        exponent = min(exponent * 10 + (text[position] - 48), 99999)
        position += 1
    if position == start:
        return 0, 0
    return (-exponent if negative else exponent), position


@inlined
def number_at(text, position):
    """Parse the decimal number at `position`: return value, end, and `OK`, `MALFORMED` or `HARD`."""
    negative = text[position] == 0x2D
    if negative or text[position] == 0x2B:
        position += 1
    start = position
    significand, position = digits(text, start)
    n_digits = position - start
    power = 0
    if text[position] == 0x2E:
        fraction, end = digits(text, position + 1)
        decimals = end - position - 1
        n_digits += decimals
        power = -decimals
        position = end
        if n_digits <= 18:
            for _ in range(decimals >> 3):
                significand = significand * np.uint64(100000000)
            significand = significand * _TEN_TO[decimals & 7] + fraction
    if n_digits == 0:
        return 0.0, position, MALFORMED
    stop = position
    exponent = 0
    if text[position] | 0x20 == 0x65:
        exponent, position = _exponent(text, position)
        if position == 0:
            return 0.0, stop, MALFORMED
        power += exponent
    decided = True
    if n_digits > 18:
        value, decided = _long_number(text, start, stop, exponent)
    elif significand <= np.uint64(1 << 53) and -22 <= power <= 22:
        value = np.float64(significand)  # an exact number multiplied or divided by another: rounded once
        value = value / _EXACT_POWERS[-power] if power < 0 else value * _EXACT_POWERS[power]
    else:
        value, decided = _scaled(significand, power)
    return (-value if negative else value), position, (OK if decided else HARD)
