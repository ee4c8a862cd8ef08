"""Random batches: every index, order and subset as likely as it should be, from replayed words too.

Chi-square tests run on seeded words; a right sampler fails one of them for a share FALSE_ALARM of
the seeds, and each of them rejects the twin that is named next to it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from dpkernel import SeededNoise
from dpkernel.foundations.entropy import SeededEntropy
from dpkernel.foundations.errors import ParameterError
from dpkernel.privacy.noise import OpenDPNoise, SystemNoise
from dpkernel.privacy.samplers import permutation, poisson_subset, subset, uniform_indices
from test_samplers import FALSE_ALARM, Replay

DRAWS = 20_000
TOP = 2**64


def pvalue(outcomes, expected):
    """Return the chi-square p-value of outcomes against probabilities by outcome."""
    counts = Counter(map(tuple, outcomes))
    assert set(counts) <= set(expected)
    cells = list(expected)
    frequencies = np.array([expected[c] for c in cells]) * len(outcomes)
    assert frequencies.min() > 10
    return chisquare([counts[c] for c in cells], frequencies).pvalue


def evenly(cells):
    cells = list(cells)
    return {cell: 1 / len(cells) for cell in cells}


# --- indices ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_indices_are_uniform(n, seed):
    found = uniform_indices(n, 100 * n + DRAWS, SeededEntropy(seed))
    assert found.dtype == np.int64 and found.shape == (100 * n + DRAWS,)
    assert found.min() >= 0 and found.max() < n
    if n > 1:
        assert chisquare(np.bincount(found, minlength=n)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("n", [3, 10**6, 2**62 + 1])
def test_words_of_the_incomplete_run_are_not_used(n):
    used = TOP // n * n  # words below it fall evenly on the indices
    assert used < TOP
    source = Replay([used, TOP - 1, used - 1, 0])
    assert uniform_indices(n, 1, Replay([used - 1])).tolist() == [n - 1]
    assert uniform_indices(n, 2, source).tolist() == [n - 1, 0]
    assert source.left == []


def test_all_words_are_used_for_a_power_of_two():
    assert uniform_indices(8, 3, Replay([TOP - 1, 8, 3])).tolist() == [7, 0, 3]
    assert uniform_indices(1, 2, Replay([TOP - 1, 0])).tolist() == [0, 0]


# --- permutations ---------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4])
def test_permutations_are_uniform(n, seed):
    source = SeededEntropy(seed)
    found = [permutation(n, source) for _ in range(DRAWS)]
    assert pvalue(found, evenly(itertools.permutations(range(n)))) > FALSE_ALARM


def test_a_permutation_is_drawn_again_on_a_tie():
    source = Replay([5, 9, 5, 3, 1, 2])
    assert permutation(3, source).tolist() == [1, 2, 0]
    assert source.left == []
    assert permutation(0, Replay([])).tolist() == []


# --- subsets --------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "size"), [(5, 1), (5, 2), (6, 4), (40, 2), (33, 2), (32, 2)])
def test_subsets_are_uniform(n, size, seed):
    """Both ways of drawing: up to a 16th of n, and more."""
    source = SeededEntropy(seed)
    found = [subset(n, size, source) for _ in range(DRAWS + 5000 * (n > 30))]
    assert pvalue(found, evenly(itertools.combinations(range(n), size))) > FALSE_ALARM


def test_a_twin_that_cuts_the_sorted_indices_is_seen(seed):
    source = SeededEntropy(seed)
    found = []
    while len(found) < DRAWS:
        drawn = np.unique(uniform_indices(40, 10, source))[:2]  # not the first two that were drawn
        found += [drawn] if len(drawn) == 2 else []
    assert pvalue(found, evenly(itertools.combinations(range(40), 2))) < FALSE_ALARM


def test_a_small_subset_keeps_the_first_different_ones():
    source = Replay([7, 7, 3, 7, 90, 1, 2, 4, 5, 6, 8])  # 10 of 100 indices: 1.1 * 2 + 8
    assert subset(100, 2, source).tolist() == [3, 7]
    again = Replay([7] * 10 + [7, 7, 9, *range(20, 26)])
    assert subset(100, 2, again).tolist() == [7, 9]


def test_a_large_subset_is_drawn_again_on_a_tie():
    source = Replay([4, 4, 9, 1, 5, 2])
    assert subset(3, 1, source).tolist() == [0]
    assert source.left == []


def test_sizes_of_subsets():
    source = SeededEntropy(0)
    assert subset(7, 0, source).tolist() == []
    assert subset(7, 7, Replay([])).tolist() == list(range(7))
    far = subset(10**15, 1000, source)
    assert len(np.unique(far)) == 1000 and far.max() > 9 * 10**14
    assert np.all(np.diff(far) > 0)
    for n, size in ((1000, 500), (1000, 990), (1000, 62), (1000, 63)):
        found = subset(n, size, source)
        assert len(found) == size and np.all(np.diff(found) > 0)
        assert found[0] >= 0 and found[-1] < n


# --- independent coins ------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.9])
def test_coins_are_independent(rate, seed):
    source = SeededEntropy(seed)
    found = [poisson_subset(3, rate, source) for _ in range(DRAWS)]
    cells = [c for size in range(4) for c in itertools.combinations(range(3), size)]
    expected = {c: rate ** len(c) * (1 - rate) ** (3 - len(c)) for c in cells}
    assert pvalue(found, expected) > FALSE_ALARM


def test_a_rare_coin(seed):
    """A rate below 2^-16, where only ties count."""
    rate, n = 3e-6, 10**7
    count = len(poisson_subset(n, rate, SeededEntropy(seed)))
    assert abs(count - n * rate) < 6 * math.sqrt(n * rate)


@pytest.mark.parametrize("rate", [0.3, 2.0**-20, 1e-9, 1 - 2.0**-53, 1 / 3])
def test_the_threshold_of_a_coin_is_not_above_its_rate(rate):
    threshold = int(rate * 2**64)  # exact: a product with a power of two, then rounded down
    first, rest = divmod(threshold, 2**48)
    for bits, inside in ((rest - 1, True), (rest, False)):
        if 0 <= bits < 2**48:
            tie = Replay([first, bits << 16 | 0xFFFF])
            assert poisson_subset(1, rate, tie).tolist() == ([0] if inside else [])
    if first > 0:
        assert poisson_subset(1, rate, Replay([first - 1])).tolist() == [0]
    if first < 2**16 - 1:
        assert poisson_subset(1, rate, Replay([first + 1])).tolist() == []


def test_certain_and_impossible_coins():
    assert poisson_subset(5, 1.0, Replay([])).tolist() == list(range(5))
    assert poisson_subset(9, 0.0, SeededEntropy(0)).tolist() == []
    assert poisson_subset(1, 0.0, Replay([0, 0])).tolist() == []


# --- the sources --------------------------------------------------------------------------


def test_sources_hand_them_out():
    words = SeededEntropy(3)
    noise = SeededNoise(3)
    assert np.array_equal(noise.uniform_indices(9, 20), uniform_indices(9, 20, words))
    assert np.array_equal(noise.permutation(9), permutation(9, words))
    assert np.array_equal(noise.subset(90, 3), subset(90, 3, words))
    assert np.array_equal(noise.poisson_subset(90, 0.3), poisson_subset(90, 0.3, words))
    for source in (SystemNoise(), OpenDPNoise()):
        assert sorted(source.permutation(50)) == list(range(50))
        assert not np.array_equal(source.permutation(50), source.permutation(50))


@pytest.mark.parametrize("n", [-1, 2.0, True, None, 2**63 + 1])
def test_bad_sizes(n):
    source = SeededEntropy(0)
    for draw in (
        lambda: uniform_indices(n, 1, source),
        lambda: permutation(n, source),
        lambda: subset(n, 0, source),
        lambda: subset(5, n, source),
        lambda: poisson_subset(n, 0.5, source),
    ):
        with pytest.raises(ParameterError, match="parameter of sampler must be an int from"):
            draw()


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_bad_rates(rate):
    with pytest.raises(ParameterError, match=r"a float in the range \[0, 1\]"):
        poisson_subset(5, rate, SeededEntropy(0))
