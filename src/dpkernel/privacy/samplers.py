r"""Exact samplers for integer noise and random batches, driven by random words.

The distributions are::

    Discrete Gaussian  P(y) proportional to exp(-y^2 / (2 scale^2)),  y in Z.
    Discrete Laplace   P(y) proportional to exp(-|y| / scale),        y in Z.
    Categorical        P(i) proportional to exp(rate * utility_i).
    Batches            uniform indices, permutations and subsets; independent coins.

**Method.** Write ``|y| = j w + x`` with w a power of two and 0 <= x < w. The bucket j comes from a
table of cumulative weights of the points j w. The offset x is uniform, and the pair is accepted
with probability weight(j w + x) / weight(j w). The sign is a coin toss, and "minus zero" is
rejected. For both distributions this gives P(y) and accepts 65 to 91 % of the attempts.

**Exactness.** Of a uniform variable U, only the first 32 bits are drawn at first. They decide a
comparison of U with a real number unless they coincide with the first bits of that number. If they
coincide (about once in 10^8 draws), more words are drawn, and the comparison is settled in decimal
arithmetic whose precision grows with the number of bits. No probability is ever rounded and no tail
is cut. Given independent uniform words, the distribution is therefore exactly the stated one, and
nothing has to be added to delta for the sampler. (A sampler with 64-bit thresholds and a tail cut
at
9.3 standard deviations would cost (1 + e^epsilon) 3e-18 per draw.)

**Not handled:** constant time. How long integer noise takes depends on the noise, not on the data.
A choice among utilities takes longer if they are huge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np
from scipy.special import gammaincinv, ndtri

from dpkernel.foundations.entropy import WordSource
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, IntArray, is_whole

SMALLEST_SCALE = 2.0**-4
LARGEST_SCALE = 2.0**58
_ATTEMPTS = 1 << 15  # attempts per pass, so that the working arrays stay in the cache
_BAND = 2.0**-45  # allowed relative error of the float acceptance probability; it is below 2^-47
_INT64 = 1 << 64

T = TypeVar("T")


def discrete_gaussian(scale: float, size: int, source: WordSource) -> IntArray:
    """Draw ``size`` independent discrete Gaussian variables with parameter ``scale``.

    Parameters
    ----------
    scale : float
        The parameter of the distribution, in grid steps.
    size : int
        The number of variables.
    source : WordSource
        The source of uniform 64-bit words.
    """
    return _fill(_law("gaussian", _checked(scale)), size, source)


def discrete_laplace(scale: float, size: int, source: WordSource) -> IntArray:
    """Draw ``size`` independent discrete Laplace variables with parameter ``scale``.

    Parameters
    ----------
    scale : float
        The parameter of the distribution, in grid steps.
    size : int
        The number of variables.
    source : WordSource
        The source of uniform 64-bit words.
    """
    return _fill(_law("laplace", _checked(scale)), size, source)


def categorical(utilities: Array, rate: float, source: WordSource) -> int:
    """Draw an index i with probability proportional to exp(rate * utilities[i]), exactly.

    The distribution is that of the index of the largest ``rate * utilities[i] + Gumbel_i``. Drawing
    it through one uniform variable keeps the probabilities exact, which float Gumbel noise would
    not.

    Parameters
    ----------
    utilities : array
        One finite number per index.
    rate : float
        The factor of the utilities in the exponent.
    source : WordSource
        The source of uniform 64-bit words.
    """
    with np.errstate(
        all="ignore"
    ):  # a huge utility gives an infinite slack, and then the exact path decides
        exponents = rate * utilities
        reach = float(np.abs(exponents).max())
        cumulative = np.cumsum(np.exp(exponents - exponents.max()))
    unit = 2.0**-52
    slack = float(cumulative[-1]) * unit * (len(utilities) + 8.0 * reach + 16.0)
    bits = int(source.words(1)[0])
    point = bits / _INT64 * float(cumulative[-1])
    index = int(np.searchsorted(cumulative, point))
    below = cumulative[index - 1] if index > 0 else -math.inf
    if index < len(utilities) - 1 and not point + slack < cumulative[index]:
        return _categorical_exactly(utilities, rate, bits, source)
    if not below + slack < point:
        return _categorical_exactly(utilities, rate, bits, source)
    return min(index, len(utilities) - 1)


def l2_gamma(dimension: int, scale: float, source: WordSource) -> Array:
    """Draw a vector with density proportional to exp(-||v||_2 / scale), in float arithmetic.

    It is a uniform direction times a Gamma(dimension, scale) radius. Unlike most samplers of this
    file it is not exact: mechanisms that use it ask the user to accept idealised reals.

    Parameters
    ----------
    dimension : int
        The length of the vector.
    scale : float
        The scale of the radius.
    source : WordSource
        The source of uniform 64-bit words.
    """
    direction = normals(dimension, source)
    direction /= np.linalg.norm(direction)
    uniform = (float(source.words(1)[0]) + 0.5) / _INT64
    radius = scale * float(gammaincinv(dimension, min(uniform, 1 - 2.0**-53)))
    return np.asarray(radius * direction)


# --- batches ------------------------------------------------------------------------------


def uniform_indices(n: int, count: int, source: WordSource) -> IntArray:
    """Draw ``count`` independent uniform indices below n, exactly.

    A word is rejected if it lies in the last, incomplete run of n words below 2^64.

    Parameters
    ----------
    n : int
        The indices are 0 .. n - 1.
    count : int
        The number of variables.
    source : WordSource
        The source of uniform 64-bit words.
    """
    _check_size("n", n, 1, _INT64 // 2)
    out = np.empty(count, dtype=np.int64)
    complete, filled = np.uint64(_INT64 // n * n - 1), 0  # the largest word that is accepted
    while filled < count:
        words = source.words(count - filled)
        kept = words[words <= complete] % np.uint64(n)
        out[filled : filled + len(kept)] = kept.view(np.int64)
        filled += len(kept)
    return out


def permutation(n: int, source: WordSource) -> IntArray:
    """Draw a uniform permutation of 0 .. n - 1: the order of n words, redrawn if two are equal.

    Parameters
    ----------
    n : int
        The number of places.
    source : WordSource
        The source of uniform 64-bit words.
    """
    _check_size("n", n, 0, _INT64 // 2)
    while True:
        words = source.words(n)
        order = np.argsort(words)
        ranked = words[order]
        if not np.any(ranked[1:] == ranked[:-1]):
            return np.asarray(order, dtype=np.int64)


def subset(n: int, size: int, source: WordSource) -> IntArray:
    """Draw a uniform subset of 0 .. n - 1 of this size, in increasing order.

    A small subset consists of the first ``size`` different values among uniform indices. A large
    one consists of the places of the ``size`` smallest of n words, all redrawn if the next word
    ties. Both ways treat all indices alike, so all subsets are equally likely.

    Parameters
    ----------
    n : int
        The number of indices.
    size : int
        The size of the subset.
    source : WordSource
        The source of uniform 64-bit words.
    """
    _check_size("n", n, 1, _INT64 // 2)
    _check_size("size", size, 0, n)
    if size == n:
        return np.arange(n)
    if size > n // 16:
        while True:
            words = source.words(n)
            places = np.argpartition(words, size)
            if words[places[:size]].max() < words[places[size]]:
                return np.asarray(np.sort(places[:size]), dtype=np.int64)
    chosen = np.empty(0, dtype=np.int64)  # in the order of drawing
    while len(chosen) < size:
        more = int(1.1 * (size - len(chosen))) + 8
        drawn = np.concatenate((chosen, uniform_indices(n, more, source)))
        _, first = np.unique(drawn, return_index=True)
        chosen = drawn[np.sort(first)]
    return np.sort(chosen[:size])


def poisson_subset(n: int, rate: float, source: WordSource) -> IntArray:
    """Include each of 0 .. n - 1 independently, with probability floor(2^64 rate) / 2^64 <= rate.

    The first 16 bits of an index's uniform variable nearly always decide; 48 more follow if they
    tie.

    Parameters
    ----------
    n : int
        The number of indices.
    rate : float
        The probability of each index, in [0, 1].
    source : WordSource
        The source of uniform 64-bit words.
    """
    _check_size("n", n, 0, _INT64 // 2)
    if not 0 <= rate <= 1:
        allowed = "a float in the range [0, 1]"
        raise ParameterError(parameter_message("sampler", "rate", allowed, rate))
    if rate == 1:
        return np.arange(n)
    first, rest = divmod(math.floor(Fraction(float(rate)) * _INT64), 1 << 48)
    bits = source.words(-(-n // 4)).view(np.uint16)[:n]
    chosen = bits < first
    ties = np.flatnonzero(bits == first)
    chosen[ties] = source.words(len(ties)) >> np.uint64(16) < np.uint64(rest)
    return np.flatnonzero(chosen)


# --- the two distributions on the integers ----------------------------------------------


@dataclass(frozen=True, eq=False)
class _Law:
    """A symmetric distribution on Z with weight exp(-exponent(|y|)), in buckets of 2^log_width."""

    scale: float
    log_width: int
    exponent: Callable[[int], Fraction]
    step: Callable[[Array, Array], Array]  # float exponent(base + x) - exponent(base)
    thresholds: IntArray  # floor(2^32 * P(bucket <= j)), up to the first value 2^32 - 1

    def decide_bucket(self, first_bits: int, source: WordSource) -> int:
        """Return the bucket of a uniform variable that begins with these 32 bits."""

        def settle(low: Fraction, high: Fraction, digits: int) -> int | None:
            slack = Fraction(1, 10 ** (digits - 5))
            edge = Fraction(0)
            for j, upper in enumerate(_bucket_edges(self, digits)):
                if edge + slack <= low and high <= upper - slack:
                    return j
                edge = upper
            return None

        # The edge below bucket 0 is exactly zero, so the slack must not exclude it.
        def settle_from_zero(low: Fraction, high: Fraction, digits: int) -> int | None:
            first = _bucket_edges(self, digits)[0]
            if high <= first - Fraction(1, 10 ** (digits - 5)):
                return 0
            return settle(low, high, digits)

        return _refine(first_bits, 32, settle_from_zero, source)

    def decide_acceptance(
        self, bucket: int, offset: int, first_bits: int, source: WordSource
    ) -> bool:
        """Decide U < weight(bucket w + offset) / weight(bucket w) for U beginning with these bits."""
        base = bucket << self.log_width
        exponent = self.exponent(base + offset) - self.exponent(base)

        def settle(low: Fraction, high: Fraction, digits: int) -> bool | None:
            slack = Fraction(1, 10 ** (digits - 5))
            probability = _exp(-exponent, digits)
            if exponent == 0 or high <= probability - slack:
                return True
            if low >= probability + slack:
                return False
            return None

        return _refine(first_bits, 32, settle, source)


@lru_cache(maxsize=64)
def _law(kind: str, scale: float) -> _Law:
    log_width = max(0, math.frexp(scale)[1] - 2)  # 2^log_width in (scale/4, scale/2], or 1
    exact = Fraction(scale)
    if kind == "gaussian":
        rate = 1.0 / (2.0 * scale * scale)

        def exponent(y: int) -> Fraction:
            return Fraction(y * y) / (2 * exact * exact)

        def step(base: Array, x: Array) -> Array:
            return x * (2.0 * base + x) * rate
    else:
        rate = 1.0 / scale

        def exponent(y: int) -> Fraction:
            return Fraction(y) / exact

        def step(base: Array, x: Array) -> Array:
            return x * rate

    bare = _Law(scale, log_width, exponent, step, np.empty(0, dtype=np.int64))
    floors = [math.floor(edge * 2**32) for edge in _bucket_edges(bare, 60)]
    last = next((i for i, t in enumerate(floors) if t >= 2**32 - 1), len(floors) - 1)
    thresholds = np.array(floors[: last + 1], dtype=np.int64)
    return _Law(scale, log_width, exponent, step, thresholds)


def _fill(law: _Law, size: int, source: WordSource) -> IntArray:
    """Run vectorised attempts until ``size`` of them are accepted."""
    out = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        attempts = min(_ATTEMPTS, int(1.3 * (size - filled)) + 16)
        drawn = _attempt(law, source.words(2 * attempts), source)[: size - filled]
        out[filled : filled + len(drawn)] = drawn
        filled += len(drawn)
    return out


def _attempt(law: _Law, words: np.ndarray, source: WordSource) -> IntArray:
    """Return the accepted outcomes of one pass, which uses two words per attempt."""
    half = len(words) // 2
    choice, place = words[:half], words[half:]
    bucket_bits = (choice >> np.uint64(32)).view(np.int64)
    accept_bits = (choice & np.uint64(0xFFFFFFFF)).view(np.int64)
    offset = ((place >> np.uint64(1)) >> np.uint64(63 - law.log_width)).view(np.int64)
    negative = (place & np.uint64(1)).view(np.int64)

    bucket = np.searchsorted(law.thresholds, bucket_bits)
    table = np.append(law.thresholds, -1)
    tie = (table[bucket] == bucket_bits) | (bucket == len(law.thresholds))
    base = bucket << law.log_width
    probability = np.exp(-law.step(base.astype(np.float64), offset.astype(np.float64))) * 2.0**32
    accepted = accept_bits + 1.0 <= probability * (1.0 - _BAND)
    open_question = tie | ~(accepted | (accept_bits >= probability * (1.0 + _BAND)))
    for i in np.flatnonzero(open_question):
        j = law.decide_bucket(int(bucket_bits[i]), source) if tie[i] else int(bucket[i])
        base[i] = _wrap(j << law.log_width)
        accepted[i] = law.decide_acceptance(j, int(offset[i]), int(accept_bits[i]), source)

    magnitude = base + offset
    accepted &= (magnitude != 0) | (negative == 0)
    signed = magnitude * (1 - 2 * negative)
    return np.asarray(signed[accepted])


# --- comparing a lazily drawn uniform variable with a real number -------------------------


def _refine(
    bits: int, count: int, settle: Callable[[Fraction, Fraction, int], T | None], source: WordSource
) -> T:
    """Draw further bits of the uniform variable until ``settle(low, high, digits)`` has an answer.

    ``settle`` knows its real numbers to an error below 10^-(digits - 5). It returns None if the
    interval [low, high] of the uniform variable is too close to one of them.
    """
    while True:
        answer = settle(Fraction(bits, 1 << count), Fraction(bits + 1, 1 << count), 40 + count)
        if answer is not None:
            return answer
        bits = (bits << 64) | int(source.words(1)[0])
        count += 64


def _exp(exponent: Fraction, digits: int) -> Fraction:
    """Return exp(exponent), exponent <= 0, with an error below 10^-(digits - 1)."""
    with localcontext() as context:
        context.prec = digits + 10
        value = (Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()
    return Fraction(value)


@lru_cache(maxsize=128)
def _bucket_edges(law: _Law, digits: int) -> tuple[Fraction, ...]:
    """Return P(bucket <= j) for j = 0, 1, ... until the remaining probability is below 10^-digits."""
    weights: list[Fraction] = []
    while not weights or weights[-1] * 10 ** (digits + 5) > 1:
        weights.append(_exp(-law.exponent(len(weights) << law.log_width), digits + 5))
    total = sum(weights, Fraction(0))
    edges, running = [], Fraction(0)
    for weight in weights:
        running += weight
        edges.append(running / total)
    return tuple(edges[:-1])


def _categorical_exactly(utilities: Array, rate: float, bits: int, source: WordSource) -> int:
    exact = [Fraction(float(u)) for u in utilities]
    top = max(exact)
    scale = Fraction(rate)

    def settle(low: Fraction, high: Fraction, digits: int) -> int | None:
        weights = [_exp(scale * (u - top), digits) for u in exact]
        total = sum(weights, Fraction(0))
        slack = len(exact) * Fraction(1, 10 ** (digits - 5))
        running = Fraction(0)
        for i, weight in enumerate(weights):
            lower, running = running, running + weight
            above_lower = i == 0 or low * total >= lower + slack
            below_upper = i == len(exact) - 1 or high * total <= running - slack
            if above_lower and below_upper:
                return i
        return None

    return _refine(bits, 64, settle, source)


def normals(count: int, source: WordSource) -> Array:
    """Draw independent normal variables in float arithmetic; they are not exact.

    Parameters
    ----------
    count : int
        The number of variables.
    source : WordSource
        The source of uniform 64-bit words.
    """
    return normals_of(source.words(count))


def normals_of(words: np.ndarray) -> Array:
    """Return one normal variable per 64-bit word, by the inverse of the distribution function.

    Like ``l2_gamma`` this is not exact. Mechanisms that use it ask the user to accept idealised
    reals and round to a grid that is coarse compared with the 2^-52 between neighbouring values.
    One word must not make two variables: with few bits each, a pair could be recognised as noise.

    Parameters
    ----------
    words : array of uint64
        Uniform words.
    """
    tail = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-53
    sign = 1.0 - 2.0 * (words & np.uint64(1)).astype(np.float64)
    return np.asarray(sign * ndtri(tail))


def _wrap(value: int) -> int:
    """Reduce to int64, like the sum of value and noise; this is post-processing of the release."""
    return (value + (1 << 63)) % _INT64 - (1 << 63)


def _check_size(name: str, value: int, least: int, most: int) -> None:
    if not is_whole(value) or not least <= value <= most:
        allowed = f"an int from {least} to {most}"
        raise ParameterError(parameter_message("sampler", name, allowed, value))


def _checked(scale: float) -> float:
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        allowed = "a float in the range [2^-4, 2^58]"
        advice = "Choose a finer or coarser grid for the released value."
        raise ParameterError(parameter_message("sampler", "scale", allowed, scale, advice))
    return float(scale)
