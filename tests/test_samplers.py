"""The samplers: their laws, their ties, and the broken twins that the same tests reject.

Chi-square tests run on seeded words, so they are repeatable; a right sampler fails one of them for
a share FALSE_ALARM of the seeds. Comparisons that the first bits leave open are fed with replayed
words on either side of a threshold that mpmath computes to 200 digits. The comparison with OpenDP
draws real entropy: see REAL_FALSE_ALARM.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom, chi2, chi2_contingency, gamma, kstest, laplace

from dpkernel.foundations.entropy import SeededEntropy
from dpkernel.foundations.errors import ParameterError
from dpkernel.privacy import samplers
from dpkernel.privacy.noise import OpenDPNoise, SystemNoise
from dpkernel.privacy.samplers import (
    _law,
    categorical,
    discrete_gaussian,
    discrete_laplace,
    l2_gamma,
)

FALSE_ALARM = 1e-6  # of each comparison on seeded words, over seeds
# Of each of the 4 tests on real entropy. They compare with a hundredth of it, which covers what the
# chi-square approximation gets wrong so far out (every cell expects FEWEST draws or more).
REAL_FALSE_ALARM = 1e-8
FEWEST = 50
DRAWS = 200_000

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
DRAW = {"gaussian": discrete_gaussian, "laplace": discrete_laplace}
Sampler = Callable[[float, int, SeededEntropy], np.ndarray]


class Replay:
    """Words from a list; running out of them is an error."""

    private = False
    generator = "replay"

    def __init__(self, words: Iterable[int]) -> None:
        self.left = list(words)

    def words(self, count: int) -> np.ndarray:
        assert count <= len(self.left), "more words were drawn than expected"
        taken, self.left = self.left[:count], self.left[count:]
        return np.array(taken, dtype=np.uint64)


def pmf(kind: str, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return y and P(y), out to where a weight is below 1e-40."""
    reach = math.ceil(scale * {"gaussian": 14, "laplace": 95}[kind]) + 2
    y = np.arange(-reach, reach + 1)
    exponent = (y / scale) ** 2 / 2 if kind == "gaussian" else np.abs(y) / scale
    weights = np.exp(-exponent)
    return y, weights / weights.sum()


def cells(probabilities: np.ndarray, least: float) -> np.ndarray:
    """Return where the cells start, each with at least this probability."""
    starts, begun = [0], 0.0
    for i, below in enumerate(np.cumsum(probabilities)):
        if below - begun >= least and 1 - below >= least:
            starts.append(i + 1)
            begun = below
    return np.array(starts)


def p_value(draws: np.ndarray, kind: str, scale: float) -> float:
    """Return the chi-square p-value of these draws under the exact law."""
    y, probabilities = pmf(kind, scale)
    if np.abs(draws).max() > y[-1]:
        return 0.0
    counts = np.bincount(draws - y[0], minlength=len(y))
    starts = cells(probabilities, max(FEWEST / len(draws), 1 / 400))
    return chi_square(
        np.add.reduceat(counts, starts), np.add.reduceat(probabilities, starts) * len(draws)
    )


def chi_square(observed: np.ndarray, expected: np.ndarray | float) -> float:
    statistic = float(np.sum((observed - expected) ** 2 / expected))
    return float(chi2.sf(statistic, len(observed) - 1))


def uniform_p_value(counts: np.ndarray) -> float:
    return chi_square(counts, counts.sum() / len(counts))


def twin(scale, size, source, *, minus_zero=False, accept=lambda p: p):
    """Draw discrete Gaussians by the bucket method in plain floats, with a fault on request."""
    width = 2 ** max(0, math.frexp(scale)[1] - 2)
    buckets = np.exp(-((np.arange(60) * width / scale) ** 2) / 2)
    u = (source.words(6 * size) >> np.uint64(11)).astype(float).reshape(3, -1) * 2.0**-53
    base = width * np.searchsorted(np.cumsum(buckets) / buckets.sum(), u[0])
    offset, negative = np.divmod(np.floor(u[1] * 2 * width).astype(int), 2)
    fine = u[2] < accept(np.exp(-offset * (2 * base + offset) / (2 * scale**2)))
    fine &= minus_zero | (base + offset > 0) | (negative == 0)
    return ((base + offset) * (1 - 2 * negative))[fine][:size]


@pytest.fixture(autouse=True)
def many_digits():
    with mpmath.workdps(200):
        yield


# --- the law ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["discrete_gaussian_pmf"], ids=lambda c: str(c["scale"]))
def test_the_pmf_of_these_tests_is_the_golden_one(case):
    y, probabilities = pmf("gaussian", case["scale"])
    exact = np.array(case["value"], dtype=float)
    np.testing.assert_allclose(probabilities[y >= 0][: len(exact)], exact, rtol=1e-12)


@pytest.mark.parametrize("scale", [0.3, 1, 2.1, 3.9, 4, 5.3, 40, 1000.7])
@pytest.mark.parametrize("kind", DRAW)
def test_law_on_the_integers(kind, scale, seed):
    draws = DRAW[kind](scale, DRAWS, SeededEntropy(seed))
    assert draws.dtype == np.int64
    assert draws.shape == (DRAWS,)
    assert p_value(draws, kind, scale) > FALSE_ALARM
    for wrong in (max(scale / 2, 0.2), scale * 1.05):
        draws = DRAW[kind](wrong, DRAWS, SeededEntropy(seed))
        assert p_value(draws, kind, scale) < FALSE_ALARM


@pytest.mark.parametrize("scale", [2.0**-4, 0.1])
def test_law_of_tiny_scales(scale, seed):
    assert not np.any(discrete_gaussian(scale, 500, SeededEntropy(seed)))  # P(y != 0) < 1e-21
    count = np.count_nonzero(discrete_laplace(scale, DRAWS, SeededEntropy(seed)))
    chance = 2 * math.exp(-1 / scale) / (1 + math.exp(-1 / scale))
    assert binom.cdf(count, DRAWS, chance) > FALSE_ALARM / 2
    assert binom.sf(count - 1, DRAWS, chance) > FALSE_ALARM / 2


@pytest.mark.parametrize("scale", [2**40.5, 2.0**58])
@pytest.mark.parametrize("kind", DRAW)
def test_law_of_large_scales(kind, scale, seed):
    # the grid is so fine that the continuous law has the same quantiles, and low bits are uniform
    draws = DRAW[kind](scale, DRAWS, SeededEntropy(seed))
    cdf = {"gaussian": ndtr, "laplace": laplace.cdf}[kind]

    def quantile_p_value(values):
        return uniform_p_value(np.histogram(cdf(values / scale), bins=200, range=(0, 1))[0])

    assert quantile_p_value(draws) > FALSE_ALARM
    assert quantile_p_value(draws // 2) < FALSE_ALARM
    assert uniform_p_value(np.bincount(draws & 255, minlength=256)) > FALSE_ALARM


def test_draws_are_independent(seed):
    draws = discrete_gaussian(2.1, DRAWS, SeededEntropy(seed))
    clipped = np.clip(draws, -4, 4)
    table = np.histogram2d(clipped[:-1:2], clipped[1::2], bins=9)[0]
    assert chi2_contingency(table).pvalue > FALSE_ALARM
    walk = clipped + np.roll(clipped, 1)  # neighbours share a draw
    table = np.histogram2d(walk[:-1:2], walk[1::2], bins=9)[0]
    assert chi2_contingency(table).pvalue < FALSE_ALARM


@pytest.mark.parametrize("scale", [2.1, 5.3, 40])
def test_the_plain_twin_without_a_fault_passes(scale, seed):
    assert p_value(twin(scale, DRAWS, SeededEntropy(seed)), "gaussian", scale) > FALSE_ALARM


BROKEN: dict[str, Sampler] = {
    "keeps minus zero": lambda s, n, e: twin(s, n, e, minus_zero=True),
    "half the scale": lambda s, n, e: discrete_gaussian(s / 2, n, e),
    "floors the acceptance": lambda s, n, e: twin(s, n, e, accept=lambda p: np.floor(16 * p) / 16),
    "accepts always": lambda s, n, e: twin(s, n, e, accept=np.ones_like),
    "floors a continuous Gaussian": lambda s, n, e: np.floor(
        s * ndtri((e.words(n) >> np.uint64(11)).astype(float) * 2.0**-53 + 2.0**-54)
    ).astype(np.int64),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_broken_twins_are_rejected(broken, seed):
    assert p_value(broken(5.3, DRAWS, SeededEntropy(seed)), "gaussian", 5.3) < FALSE_ALARM


@pytest.mark.parametrize("kind", DRAW)
def test_sizes(kind):
    assert DRAW[kind](3.0, 0, SeededEntropy(1)).shape == (0,)
    assert DRAW[kind](3.0, 1, SeededEntropy(1)).shape == (1,)
    many = DRAW[kind](3.0, 100_000, SeededEntropy(1))  # more than one pass
    assert many.shape == (100_000,)
    assert not np.array_equal(many[:1000], many[-1000:])


@pytest.mark.parametrize("scale", [2.0**-5, 2.0**59, 0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("kind", DRAW)
def test_scale_outside_the_range(kind, scale):
    message = r"'scale' parameter of sampler must be a float in the range \[2\^-4, 2\^58\]. Got"
    with pytest.raises(ParameterError, match=message + ".*Choose a finer or coarser grid"):
        DRAW[kind](scale, 1, SeededEntropy(0))


# --- the tables behind the law --------------------------------------------------------------


def weight(kind: str, scale: float, y: int) -> mpmath.mpf:
    s = mpmath.mpf(scale)
    return mpmath.exp(-(mpmath.mpf(y) ** 2) / (2 * s**2) if kind == "gaussian" else -y / s)


def edges(kind: str, scale: float) -> list[mpmath.mpf]:
    """Return P(bucket <= j), j = 0, 1, ..., to 190 digits."""
    width, weights = 1 << _law(kind, scale).log_width, [mpmath.mpf(1)]
    while weights[-1] > mpmath.mpf(10) ** -195:
        weights.append(weight(kind, scale, len(weights) * width))
    total, running, found = mpmath.fsum(weights), mpmath.mpf(0), []
    for one in weights:
        running += one
        found.append(running / total)
    return found


def acceptance(kind: str, scale: float, bucket: int, offset: int) -> mpmath.mpf:
    base = bucket << _law(kind, scale).log_width
    return weight(kind, scale, base + offset) / weight(kind, scale, base)


@pytest.mark.parametrize("case", GOLDEN["discrete_gaussian_pmf"], ids=lambda c: str(c["scale"]))
def test_buckets_times_acceptance_is_the_golden_law(case):
    law, scale = _law("gaussian", case["scale"]), case["scale"]
    cumulative = [mpmath.mpf(0)] + [
        mpmath.mpf(edge.numerator) / edge.denominator for edge in samplers._bucket_edges(law, 60)
    ]
    chances = []
    for y in range(len(case["value"])):
        bucket, offset = divmod(y, 1 << law.log_width)
        share = cumulative[bucket + 1] - cumulative[bucket]
        chances.append(share * acceptance("gaussian", scale, bucket, offset))
    total = chances[0] + 2 * mpmath.fsum(chances[1:])
    for chance, exact in zip(chances, case["value"], strict=True):
        assert mpmath.almosteq(chance / total, mpmath.mpf(exact), rel_eps=mpmath.mpf("1e-16"))


@pytest.mark.parametrize("scale", [0.3, 5.3, 1000.7, 2**40.5])
@pytest.mark.parametrize("kind", DRAW)
def test_thresholds_are_the_first_32_bits_of_the_edges(kind, scale):
    first_bits = [int(mpmath.floor(edge * 2**32)) for edge in edges(kind, scale)]
    below = [b for b in first_bits if b < 2**32 - 1]
    assert _law(kind, scale).thresholds.tolist() == [*below, 2**32 - 1]


@pytest.mark.parametrize("scale", [40.0, 1000.7, 2**40.5, 2.0**58, 1.999 * 2.0**57])
@pytest.mark.parametrize("kind", DRAW)
def test_float_acceptance_is_within_its_band(kind, scale, rng):
    law = _law(kind, scale)
    buckets = rng.integers(0, len(law.thresholds) + 1, 100)
    offsets = rng.integers(0, 1 << law.log_width, 100)
    offsets[:10] = (1 << law.log_width) - 1
    bases = (buckets << law.log_width).astype(float)
    found = np.exp(-law.step(bases, offsets.astype(float)))
    for bucket, offset, value in zip(buckets, offsets, found, strict=True):
        exact = acceptance(kind, scale, int(bucket), int(offset))
        assert abs(mpmath.mpf(float(value)) / exact - 1) < samplers._BAND / 4


@pytest.mark.parametrize("scale", [0.3, 2.1, 5.3, 1000.7])
@pytest.mark.parametrize("kind", DRAW)
def test_vectorised_attempts_equal_one_by_one(kind, scale, seed):
    count = 2000
    words = SeededEntropy(seed).words(2 * count)
    law, table = _law(kind, scale), np.array(edges(kind, scale), dtype=float)
    expected = []
    for choice, place in zip(words[:count].tolist(), words[count:].tolist(), strict=True):
        bucket = int(np.searchsorted(table, ((choice >> 32) + 0.5) / 2**32))
        offset = place >> (64 - law.log_width)
        accept = float(acceptance(kind, scale, bucket, offset))
        size = (bucket << law.log_width) + offset
        negative = place & 1
        if ((choice & 0xFFFFFFFF) + 0.5) / 2**32 < accept and not (size == 0 and negative):
            expected.append(-size if negative else size)
    assert samplers._attempt(law, words, Replay([])).tolist() == expected


# --- comparisons that the first bits leave open ---------------------------------------------


def around(threshold: mpmath.mpf, first: int, rounds: int) -> dict[str, tuple[int, list[int]]]:
    """Return the bits of the nearest uniforms below and above a real number.

    Each is ``first`` bits and then one word a round; only the last word tells it from the threshold.
    """
    count = first + 64 * rounds
    middle = int(mpmath.floor(threshold * 2**count))
    found = {}
    for side, bits in (("below", middle - 1), ("above", middle + 1)):
        words = [(bits >> 64 * (rounds - 1 - i)) & (2**64 - 1) for i in range(rounds)]
        assert bits >> 64 == middle >> 64 or rounds == 0
        found[side] = bits >> (64 * rounds), words
    return found


BUCKET_TIES = [(0, 1), (0, 2), (0, 3), (3, 1), (3, 2), (12, 1), (18, 1), (25, 2), (40, 3), (40, 4)]
ACCEPTANCE_TIES = [(0, 1), (0, 2), (3, 1), (3, 3), (9, 1), (30, 2)]


@pytest.mark.parametrize(("bucket", "rounds"), BUCKET_TIES)
@pytest.mark.parametrize("kind", DRAW)
def test_bucket_tie(kind, bucket, rounds):
    law = _law(kind, 5.3)
    sides = around(edges(kind, 5.3)[bucket], 32, rounds)
    for side, answer in (("below", bucket), ("above", bucket + 1)):
        first_bits, words = sides[side]
        source = Replay(words)
        assert law.decide_bucket(first_bits, source) == answer
        assert source.left == []
        source = Replay(words)
        choice = first_bits << 32  # accepted whatever the probability is
        drawn = samplers._attempt(law, np.array([choice, 0], dtype=np.uint64), source)
        assert drawn.tolist() == [answer << law.log_width]
        assert source.left == []


def test_tail_ties_lie_beyond_the_table():
    for kind, bucket in (("gaussian", 18), ("gaussian", 40), ("laplace", 60)):
        first_bits, _ = around(edges(kind, 5.3)[bucket], 32, 4)["below"]
        assert first_bits == 2**32 - 1
        assert bucket >= len(_law(kind, 5.3).thresholds)


def test_tail_is_not_cut():
    law = _law("gaussian", 5.3)
    source = Replay([2**64 - 1] * 6 + [0])
    last = law.decide_bucket(2**32 - 1, source)
    assert source.left == []
    tail = [1 - edge for edge in edges("gaussian", 5.3)]
    assert tail[last] < mpmath.mpf(2) ** -(32 + 6 * 64) < tail[last - 1]


def test_first_bits_zero_need_no_more():
    assert _law("gaussian", 5.3).decide_bucket(0, Replay([])) == 0


@pytest.mark.parametrize(("bucket", "rounds"), ACCEPTANCE_TIES)
@pytest.mark.parametrize("kind", DRAW)
def test_acceptance_tie(kind, bucket, rounds):
    law, offset = _law(kind, 5.3), 1
    assert law.log_width == 1
    sides = around(acceptance(kind, 5.3, bucket, offset), 32, rounds)
    for side, answer in (("below", True), ("above", False)):
        first_bits, words = sides[side]
        source = Replay(words)
        assert law.decide_acceptance(bucket, offset, first_bits, source) is answer
        assert source.left == []


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("kind", DRAW)
def test_acceptance_tie_in_an_attempt(kind, rounds):
    law, bucket, offset = _law(kind, 5.3), 2, 1
    place = (offset << 63) | 1  # the offset is the highest bit, the sign is minus
    inside = int(law.thresholds[bucket] - 5)  # a choice that is clearly in the bucket
    sides = around(acceptance(kind, 5.3, bucket, offset), 32, rounds)
    for side, answer in (("below", [-5]), ("above", [])):
        first_bits, words = sides[side]
        source = Replay(words)
        attempt = np.array([(inside << 32) | first_bits, place], dtype=np.uint64)
        assert samplers._attempt(law, attempt, source).tolist() == answer
        assert source.left == []


def test_both_ties_in_one_attempt():
    law = _law("gaussian", 5.3)
    bucket_bits, bucket_words = around(edges("gaussian", 5.3)[1], 32, 2)["above"]
    sides = around(acceptance("gaussian", 5.3, 2, 1), 32, 2)
    for side, answer in (("below", [5]), ("above", [])):
        accept_bits, accept_words = sides[side]
        source = Replay(bucket_words + accept_words)
        attempt = np.array([(bucket_bits << 32) | accept_bits, 1 << 63], dtype=np.uint64)
        assert samplers._attempt(law, attempt, source).tolist() == answer
        assert source.left == []


def test_zero_has_one_sign():
    law = _law("gaussian", 5.3)
    for sign, answer in ((0, [0]), (1, [])):
        attempt = np.array([0, sign], dtype=np.uint64)
        assert samplers._attempt(law, attempt, Replay([])).tolist() == answer


def test_certain_acceptance_needs_no_more_words():
    law = _law("gaussian", 5.3)
    attempt = np.array([2**32 - 1, 0], dtype=np.uint64)  # bucket 0, offset 0, acceptance bits all 1
    assert samplers._attempt(law, attempt, Replay([])).tolist() == [0]


# --- categorical ----------------------------------------------------------------------------


def categorical_counts(utilities, rate, count, seed) -> np.ndarray:
    source, values = SeededEntropy(seed), np.array(utilities, dtype=float)
    draws = [categorical(values, rate, source) for _ in range(count)]
    return np.bincount(draws, minlength=len(utilities))


def softmax(utilities, rate) -> np.ndarray:
    scores = rate * np.array(utilities, dtype=float)
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("utilities", "rate"),
    [((0.0, 1.0, 2.0, -1.0), 0.7), ((5.0, 5.0, 5.0), 3.0), ((1e6, 1e6 - 1), 1.0), ((0.0, -3.0), 1)],
)
def test_categorical_is_softmax(utilities, rate, seed):
    counts = categorical_counts(utilities, rate, 20_000, seed)
    assert chi_square(counts, softmax(utilities, rate) * 20_000) > FALSE_ALARM
    if len(set(utilities)) > 1:
        assert chi_square(counts, softmax(utilities, rate / 2) * 20_000) < FALSE_ALARM


def test_categorical_is_the_largest_gumbel(seed, rng):
    utilities, rate = np.array([0.0, 1.0, 2.0, -1.0, 2.0]), 0.7

    def gumbel_counts(rate):
        scores = rate * utilities + rng.gumbel(size=(20_000, 5))
        return np.bincount(scores.argmax(axis=1), minlength=5)

    ours = categorical_counts(utilities, rate, 20_000, seed)
    assert chi2_contingency([ours, gumbel_counts(rate)]).pvalue > FALSE_ALARM
    assert chi2_contingency([ours, gumbel_counts(rate / 2)]).pvalue < FALSE_ALARM


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize(
    ("utilities", "rate"),
    [((1e308, 1e308, -1e308), 10.0), ((1e308, 1e308, 0.0), 1.0), ((-1e308, -1e308), 1.0)],
)
def test_categorical_with_huge_utilities(utilities, rate, seed):
    counts = categorical_counts(utilities, rate, 1000, seed)
    assert uniform_p_value(counts[:2]) > FALSE_ALARM
    assert counts[:2].sum() == 1000


def test_categorical_never_draws_what_has_no_weight(seed):
    assert categorical_counts((0.0, -1e5, -1e5), 1.0, 1000, seed).tolist() == [1000, 0, 0]
    assert categorical_counts((-1e5, 0.0), 1.0, 1000, seed).tolist() == [0, 1000]


@pytest.mark.parametrize("utility", [0.0, -5.0, 1e300])
def test_single_candidate(utility):
    for word in (0, 1, 2**63, 2**64 - 1):
        source = Replay([word])
        assert categorical(np.array([utility]), 1.0, source) == 0
        assert source.left == []


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
@pytest.mark.parametrize("boundary", [0, 1, 2])
def test_categorical_tie(boundary, rounds):
    utilities, rate = np.array([0.3, -1.2, 0.9, 0.1]), 1.7
    weights = [mpmath.exp(mpmath.mpf(rate) * mpmath.mpf(float(u))) for u in utilities]
    threshold = mpmath.fsum(weights[: boundary + 1]) / mpmath.fsum(weights)
    sides = around(threshold, 64, rounds)
    for side, answer in (("below", boundary), ("above", boundary + 1)):
        first_word, words = sides[side]
        source = Replay([first_word, *words])
        assert categorical(utilities, rate, source) == answer
        assert source.left == []


def test_categorical_ties_that_floats_put_on_the_wrong_side(rng):
    fooled = {"below": 0, "above": 0}
    for _ in range(60):
        utilities, rate = rng.uniform(-1, 1, 8) + rng.uniform(-40, 40), float(rng.uniform(0.5, 4))
        weights = [mpmath.exp(mpmath.mpf(rate) * mpmath.mpf(float(u))) for u in utilities]
        threshold = mpmath.fsum(weights[:4]) / mpmath.fsum(weights)
        naive = np.cumsum(np.exp(rate * utilities - (rate * utilities).max()))
        for side, (first_word, words) in around(threshold, 64, 0).items():
            answer = {"below": 3, "above": 4}[side]
            fooled[side] += int(np.searchsorted(naive, first_word / 2**64 * naive[-1])) != answer
            assert categorical(utilities, rate, Replay([first_word, *words])) == answer
    assert min(fooled.values()) > 5


def test_categorical_tie_at_a_binary_fraction():
    utilities = np.array([2.0, 2.0])
    for words, answer in (
        ([2**63, 0, 0, 5], 1),
        ([2**63 - 1, 2**64 - 1, 2**64 - 2], 0),
        ([2**63 + 1], 1),
        ([2**63 - 2], 0),
    ):
        source = Replay(words)
        assert categorical(utilities, 1.0, source) == answer
        assert source.left == []


@pytest.mark.parametrize("word", [0, 1, 2**64 - 1, 2**64 - 2])
def test_categorical_at_the_ends(word):
    source = Replay([word, 12345])
    answer = 0 if word < 2 else 2
    assert categorical(np.array([0.1, 0.2, 0.3]), 1.0, source) == answer


# --- l2 noise -------------------------------------------------------------------------------


def l2_draws(dimension: int, scale: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    source = SeededEntropy(seed)
    draws = np.array([l2_gamma(dimension, scale, source) for _ in range(5000)])
    radius = np.linalg.norm(draws, axis=1)
    return radius, draws / radius[:, None]


@pytest.mark.parametrize("dimension", [1, 2, 3, 50])
def test_l2_radius_is_gamma(dimension, seed):
    radius, _ = l2_draws(dimension, 2.5, seed)
    assert kstest(radius, gamma(dimension, scale=2.5).cdf).pvalue > FALSE_ALARM
    assert kstest(radius, gamma(dimension + 1, scale=2.5).cdf).pvalue < FALSE_ALARM
    assert kstest(radius, gamma(dimension, scale=1.25).cdf).pvalue < FALSE_ALARM


@pytest.mark.parametrize("dimension", [2, 3, 50])
def test_l2_direction_is_uniform(dimension, seed, rng):
    radius, direction = l2_draws(dimension, 1.0, seed)
    turn = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
    square = beta(0.5, (dimension - 1) / 2).cdf  # of one coordinate of a uniform unit vector
    for axis in (np.eye(dimension)[0], np.eye(dimension)[-1], turn[0]):
        along = direction @ axis
        assert kstest(along**2, square).pvalue > FALSE_ALARM
        assert uniform_p_value(np.bincount(along > 0, minlength=2)) > FALSE_ALARM
    halves = np.histogram2d(radius > np.median(radius), direction[:, 0] > 0, bins=2)[0]
    assert chi2_contingency(halves).pvalue > FALSE_ALARM
    if dimension < 50:
        cube = rng.uniform(-1, 1, size=(20_000, dimension))
        cube /= np.linalg.norm(cube, axis=1)[:, None]
        assert kstest(cube[:, 0] ** 2, square).pvalue < FALSE_ALARM


def test_l2_sign_in_one_dimension(seed):
    _, direction = l2_draws(1, 1.0, seed)
    assert set(direction.ravel()) == {-1.0, 1.0}
    assert uniform_p_value(np.bincount(direction.ravel() > 0, minlength=2)) > FALSE_ALARM


def test_l2_extreme_words_are_finite():
    for word in (0, 2**64 - 1):
        found = l2_gamma(3, 1.0, Replay([word] * 4))
        assert np.all(np.isfinite(found))
        assert np.linalg.norm(found) > 0


# --- OpenDP ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "scale"), [("gaussian", 1.0), ("gaussian", 5.3), ("laplace", 3.0), ("laplace", 40.0)]
)
def test_opendp_draws_the_same_law(kind, scale):
    count = 20_000
    y, probabilities = pmf(kind, scale)
    starts = y[cells(probabilities, max(FEWEST / count, 1 / 100))]

    def counts(source, scale):
        draws = getattr(source, f"discrete_{kind}")(scale, count)
        return np.bincount(np.searchsorted(starts[1:], draws, side="right"), minlength=len(starts))

    theirs, ours, half = (
        counts(OpenDPNoise(), scale),
        counts(SystemNoise(), scale),
        counts(SystemNoise(), scale / 2),
    )
    assert chi2_contingency([theirs, ours]).pvalue > REAL_FALSE_ALARM / 100
    assert chi2_contingency([theirs, half]).pvalue < REAL_FALSE_ALARM / 100
