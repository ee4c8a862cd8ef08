"""Gaussian mixing: the profile against closed forms and 40 digits, and the law of what is released."""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.stats import chi2, kstest

from dpkernel import Budget, Ledger, SeededNoise, SystemNoise
from dpkernel.foundations.errors import AssumptionError, LedgerError, ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.privacy.folds import GramFolds
from dpkernel.privacy.mechanisms import IDEALISED, GaussianMixing
from dpkernel.privacy.mechanisms import mixing as mixing_module
from dpkernel.privacy.noise import Part, Plan
from dpkernel.privacy.profiles import (
    GaussianProfile,
    MixingProfile,
    PureProfile,
    compose,
    mixing_ratio,
    rdp_delta,
)
from dpkernel.privacy.profiles.mixing import growing_delta, shrinking_delta
from dpkernel.privacy.sensitivity import declared, record_norm
from dpkernel.privacy.statistics import GramLayout, GramSum

REPLACE, ZERO, ADD = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE
ACCEPT = (IDEALISED,)


def sides(k, t, epsilon):
    """Return delta_+ and delta_- with 40 digits."""
    with mpmath.workdps(40):
        half, t, e = mpmath.mpf(k) / 2, mpmath.mpf(t), mpmath.mpf(epsilon)
        shift = half * mpmath.log1p(t)

        def head(x):
            return mpmath.gammainc(half, 0, x / 2, regularized=True)

        w = 2 * (1 + t) / t * max(e + shift, 0)
        v = 2 * (1 + t) / t * max(shift - e, 0)
        grow = 1 - head(w / (1 + t)) - mpmath.exp(e) * (1 - head(w))
        return grow, head(v) - mpmath.exp(e) * head(v / (1 + t))


def product(k, t, epsilon, points=200_001):
    """Integrate delta_- of the second factor over the first, on a fine grid (rel. error near 1e-6)."""
    shift, slope = k / 2 * math.log1p(t), t / (2 * (1 + t))
    x = np.linspace(0, chi2.isf(1e-18, k), points)
    left = epsilon - (slope * (1 + t) * x - shift)
    v = 2 * (1 + t) / t * np.maximum(shift - left, 0)
    inner = chi2.cdf(v, k) - np.exp(np.minimum(left, 50)) * chi2.cdf(v / (1 + t), k)
    return float(np.trapezoid(chi2.pdf(x, k) * np.where(left < shift, inner, 0), x))


# --- the profile --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "t", "k", "grow", "shrink"),
    [(0.5, 0.05, 100, 0.0185200, 0.0102541), (0.3, 0.5, 2, 0.0813054, 0.0145268)],
)
def test_both_directions_have_the_known_values(epsilon, t, k, grow, shrink):
    assert growing_delta(k, t, np.array([epsilon]))[0] == pytest.approx(grow, rel=1e-5)
    assert shrinking_delta(k, t, np.array([epsilon]))[0] == pytest.approx(shrink, rel=1e-5)


@pytest.mark.parametrize("k", [1, 2, 7, 60, 1000])
@pytest.mark.parametrize("t", [1e-4, 0.03, 0.7, 20.0])
def test_both_directions_are_upper_bounds_and_tight(k, t):
    deviation = t / (1 + t) * math.sqrt(k / 2)
    for step in (-3.0, -0.4, 0.0, 0.7, 2.0, 5.0):
        epsilon = step * deviation
        grow, shrink = sides(k, t, epsilon)
        for found, exact in (
            (growing_delta(k, t, np.array([epsilon]))[0], grow),
            (shrinking_delta(k, t, np.array([epsilon]))[0], shrink),
        ):
            assert exact <= found
            # with one or two rows the loss has an end, where a rounded threshold counts for more
            gap = 1e-6 if k > 2 else 1e-3
            assert found <= exact * (1 + gap) + mpmath.mpf(1e-9) * min(1, t)
        assert MixingProfile(k, t, "zero-out").delta(epsilon) >= max(grow, shrink)


def test_a_loss_that_can_not_be_exceeded():
    """The shrinking pair has the largest loss k/2 log(1 + t)."""
    most = 2.5 * math.log1p(0.3)
    assert shrinking_delta(5, 0.3, np.array([most * 1.001]))[0] == 0
    assert shrinking_delta(5, 0.3, np.array([most * 0.9]))[0] > 1e-6
    assert growing_delta(5, 0.3, np.array([most * 1.001]))[0] > 1e-6


@pytest.mark.parametrize("t", [1e-3, 0.1, 1.0, 30.0])
def test_two_rows_and_a_replaced_record_have_a_closed_form(t):
    """Differences of exponential variables: delta = t/(2 + t) e^(-epsilon/t)."""
    profile = MixingProfile(2, t, "replace-one")
    for epsilon in (0.0, 0.2 * t, t, 5 * t, 14 * t):
        exact = t / (2 + t) * math.exp(-epsilon / t)
        assert exact * (1 - 1e-13) <= profile.delta(epsilon) <= exact * (1 + 2e-4)
        mirrored = -math.expm1(-epsilon) + math.exp(-epsilon) * exact
        assert mirrored * (1 - 1e-13) <= profile.delta(-epsilon) <= mirrored * (1 + 2e-4)
    far = t / (2 + t) * math.exp(-70)  # beyond the nodes: the tail is still counted
    assert far <= profile.delta(70 * t) < 1e-24


@pytest.mark.parametrize(
    ("k", "t", "epsilon"),
    [(5, 0.05, 0.2), (5, 2.0, 1.5), (50, 1 / 31.6, 1.0), (300, 0.01, 0.6), (300, 0.01, -0.3)],
)
def test_a_replaced_record_against_quadrature(k, t, epsilon):
    exact = product(k, t, epsilon)
    assert exact * (1 - 1e-5) <= MixingProfile(k, t, "replace-one").delta(epsilon)
    assert MixingProfile(k, t, "replace-one").delta(epsilon) <= exact * (1 + 3e-4)


@pytest.mark.parametrize("relation", list(Neighbours))
def test_more_rows_or_a_longer_record_are_worse(relation):
    for epsilon in (-0.3, 0.0, 0.4, 1.0):
        deltas = [MixingProfile(k, 0.05, relation.value).delta(epsilon) for k in (1, 4, 30, 200)]
        assert deltas == sorted(deltas) and deltas[0] < deltas[-1]
        deltas = [MixingProfile(20, t, relation.value).delta(epsilon) for t in (0.01, 0.1, 1.0)]
        assert deltas == sorted(deltas) and deltas[0] < deltas[-1]


def test_a_replaced_record_costs_more_than_a_blanked_one_and_less_than_twice():
    one, two = (MixingProfile(200, 1 / 60, r.value) for r in (ZERO, REPLACE))
    assert MixingProfile(200, 1 / 60, ADD.value).delta(0.5) == one.delta(0.5)
    for epsilon in (0.3, 1.0):
        twice = (1 + math.exp(epsilon / 2)) * one.delta(epsilon / 2)
        assert one.delta(epsilon) < two.delta(epsilon) < twice


@pytest.mark.parametrize(
    ("rows", "epsilon", "blanked", "replaced"),
    [
        (50, 1, 26.8645, 34.6501),
        (200, 1, 47.8563, 65.2991),
        (200, 4, 13.3995, 18.1),
        (1000, 1, 99.9915, 143.6),
    ],
)
def test_noise_at_one_in_a_million(rows, epsilon, blanked, replaced):
    """Known values; under replace-one the exact profile needs less than the Renyi bound."""
    assert 1 / mixing_ratio(epsilon, 1e-6, rows, ZERO) == pytest.approx(blanked, rel=1e-5)
    found = 1 / mixing_ratio(epsilon, 1e-6, rows, REPLACE)
    assert blanked < found < replaced
    assert rdp_delta(
        MixingProfile(rows, 1 / replaced, "replace-one").rdp, epsilon
    ) == pytest.approx(1e-6, rel=0.1)


def test_renyi_divergences():
    assert MixingProfile(100, 0.05, "zero-out").rdp(8) == pytest.approx(0.637513, rel=1e-5)
    both = MixingProfile(100, 0.05, "replace-one").rdp(8)
    assert both == pytest.approx(0.637513 + 0.384636, rel=1e-5)
    assert MixingProfile(100, 0.05, "zero-out").rdp(21.1) == math.inf


def test_whitened_covariances_stay_inside_the_ratio(rng):
    """Random neighbours: one eigenvalue grows, one shrinks, each by 1 + t at most."""
    noise, worst = 1.7, 0.0
    for _ in range(300):
        others = rng.normal(size=(rng.integers(0, 4), 3))
        x, y = rng.normal(size=(2, 3))
        x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
        base = others.T @ others + noise**2 * np.eye(3)
        ratios = np.linalg.eigvals(
            np.linalg.solve(base + np.outer(y, y), base + np.outer(x, x))
        ).real
        assert np.sum(ratios > 1 + 1e-9) <= 1 and np.sum(ratios < 1 - 1e-9) <= 1
        worst = max(worst, ratios.max(), 1 / ratios.min())
    bound = 1 + 1 / noise**2
    assert 0.9 * (bound - 1) < worst - 1 <= (bound - 1) * (1 + 1e-9)


def test_copies_add_their_rows():
    for relation in ("zero-out", "replace-one"):
        one = MixingProfile(30, 0.02, relation)
        assert one.repeat(3) == compose([one] * 3) == MixingProfile(90, 0.02, relation)
        assert one.repeat(1) == one and one.repeat(0).delta(0.0) == 0
        pld = one.pld().repeat(3)
        for epsilon in (-0.2, 0.0, 0.3, 0.8):
            exact = one.repeat(3).delta(epsilon)
            assert exact * (1 - 2e-4) <= pld.delta(epsilon) <= exact * 1.003 + 1e-9


def test_composition_with_others():
    """A Gaussian on top: more than each alone, less than basic, and no more than Renyi bounds give."""
    mixed, gaussian = MixingProfile(50, 0.02, "replace-one"), GaussianProfile(0.15)
    both = compose([gaussian, mixed, PureProfile(0.1)])
    for epsilon in (0.3, 0.8, 1.5):
        delta = both.delta(epsilon)
        assert delta > max(mixed.delta(epsilon), gaussian.delta(epsilon))
        assert delta <= rdp_delta(both.rdp, epsilon)
    different = compose([mixed, MixingProfile(50, 0.03, "replace-one")])
    assert len(different.parts) == 2
    more = MixingProfile(100, 0.03, "replace-one").delta(0.8)
    assert mixed.repeat(2).delta(0.8) < different.delta(0.8) < more


@pytest.mark.parametrize(
    ("rows", "ratio", "relation", "name"),
    [
        (0, 0.1, "zero-out", "rows"),
        (2.5, 0.1, "zero-out", "rows"),
        (True, 0.1, "zero-out", "rows"),
        (3, 0.0, "zero-out", "ratio"),
        (3, math.nan, "zero-out", "ratio"),
        (3, "1", "zero-out", "ratio"),
        (3, 0.1, "nobody", "value"),
    ],
)
def test_bad_profiles(rows, ratio, relation, name):
    with pytest.raises(ParameterError, match=f"'{name}' parameter"):
        MixingProfile(rows, ratio, relation)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-6), (1.0, 0.0), (math.nan, 0.1)])
def test_bad_budgets(epsilon, delta):
    with pytest.raises(ParameterError, match="Gaussian mixing needs delta > 0"):
        mixing_ratio(epsilon, delta, 10, ZERO)


# --- normals ------------------------------------------------------------------------------------


def test_normals_are_normal_and_independent(seed):
    """Fixed seeds: distribution, fourth moment, tail, and no correlation between halves."""
    draws = SeededNoise(seed).standard_normals(1_000_001)
    assert len(draws) == 1_000_001
    assert kstest(draws, "norm").pvalue > 1e-6
    assert np.mean(draws**4) == pytest.approx(3, abs=0.06)
    assert np.mean(np.abs(draws) > 4) == pytest.approx(6.334e-5, rel=0.6)
    half = len(draws) // 2
    one, other = draws[:half], draws[half + 1 :]
    for f in (lambda v: v, np.square):
        assert abs(np.corrcoef(f(one), f(other))[0, 1]) < 6 / math.sqrt(half)


def test_normals_of_extreme_words_are_finite():
    words = np.array([0, 2**64 - 1, 2**24 - 1, 2**63], dtype=np.uint64)
    draws = SystemNoise().normals_of(words)
    assert np.all(np.isfinite(draws)) and 8 < np.abs(draws).max() < 9


def test_noise_has_no_structure_that_a_candidate_table_reveals(seed):
    """Pairs of numbers made from few bits lie on few rays: whitening with the true table shows them."""
    n, d, rows = 400, 3, 60
    draws = np.random.default_rng(seed)
    table = draws.uniform(-0.5, 0.5, (n, d))
    other = table.copy()
    other[0] = -other[0] + 0.4
    found = GaussianMixing.calibrate(
        record_norm(REPLACE, row=1.0),
        Budget(0.1, 1e-9),
        rows=rows,
        dimension=d,
        accept=(IDEALISED,),
    )
    noise = Ledger().spend(found.profile(), "sketch", noise=SystemNoise())
    sketch = found.release_gram(table.T @ table, noise)
    scores = []
    for candidate in (table, other):
        values, vectors = np.linalg.eigh(candidate.T @ candidate)
        white = (sketch @ vectors / np.sqrt(values + found.sigma**2)).ravel()
        assert len(np.unique(white)) == white.size
        half = white.size // 2
        turns = np.arctan2(white[half:], white[:half]) / (2 * np.pi) * 2**24
        scores.append(np.mean(np.abs(turns - np.rint(turns)) < 0.1))
    assert max(scores) < 0.5  # a fifth by chance; 1 for the true table if 24 bits make an angle


# --- the mechanism --------------------------------------------------------------------------------


def granted(mechanism, seed=0, draws=1):
    plan = Plan((Part("sketch", mechanism.profile(), draws),), nothing_proved=True)
    ledger = Ledger(neighbours=mechanism.sensitivity.neighbours)
    return ledger.spend(plan, "sketch", noise=SeededNoise(seed))


@pytest.fixture
def mechanism():
    return GaussianMixing.calibrate(1.0, Budget(4.0, 1e-4), rows=3000, dimension=4, accept=ACCEPT)


@pytest.fixture
def short():
    """Far fewer rows than columns: the mixing matrix itself is drawn."""
    return GaussianMixing.calibrate(1.0, Budget(4.0, 1e-4), rows=1, dimension=4, accept=ACCEPT)


@pytest.fixture
def records(rng):
    rows = rng.normal(size=(500, 4)) * [0.5, 0.2, 0.1, 0.0]
    return rows / np.maximum(np.linalg.norm(rows, axis=1), 1)[:, None]


def chunks(X):
    for start in range(0, len(X), 77):
        yield X[start : start + 77]


@pytest.mark.parametrize("way", ["array", "blocks", "gram", "short", "short blocks"])
def test_rows_of_a_sketch_are_normal_with_the_stated_covariance(
    mechanism, short, records, way, seed
):
    """Every direction: k chi-squared draws; all ways have one law. Fixed seed."""
    table = (lambda: chunks(records)) if way.endswith("blocks") else (lambda: records)
    if way.startswith("short"):
        mechanism, noise = short, granted(short, seed, draws=600)
        sketch = np.vstack([short.release(table(), noise) for _ in range(600)])
    elif way == "gram":
        sketch = mechanism.release_gram(records.T @ records, granted(mechanism, seed))
    else:
        sketch = mechanism.release(table(), granted(mechanism, seed))
    rows = 600 if way.startswith("short") else 3000
    assert sketch.shape == (rows, 4)
    covariance = records.T @ records + mechanism.sigma**2 * np.eye(4)
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    white = sketch @ root.T
    assert kstest(white.ravel(), "norm").pvalue > 1e-6
    assert np.linalg.norm(white.T @ white / rows - np.eye(4), 2) < 8 / np.sqrt(rows)
    assert np.array_equal(np.rint(sketch / mechanism.grid), sketch / mechanism.grid)


@pytest.mark.parametrize("name", ["mechanism", "short"])
def test_records_longer_than_the_bound_are_cut(name, records, request):
    mechanism = request.getfixturevalue(name)
    long = records.copy()
    long[7] = [300.0, -400.0, 0.0, 0.0]
    cut = long.copy()
    cut[7] /= 500.0 * (1 + 1e-15)
    one, two = (mechanism.release(X, granted(mechanism)) for X in (long, cut))
    np.testing.assert_allclose(one, two, atol=2 * mechanism.grid)
    assert not np.allclose(one, mechanism.release(records, granted(mechanism)), atol=1e-3)


def test_the_mixing_matrix_is_never_there_as_a_whole(short, records, monkeypatch):
    """At most so many words at once as a part needs, whatever n is; and n k normals in all."""
    monkeypatch.setattr(mixing_module, "_ENTRIES", 100)
    counts = []

    class Counting(SeededNoise):
        def words(self, count):
            counts.append(count)
            return super().words(count)

        def restarted(self):
            return self

    ledger = Ledger(neighbours=REPLACE)
    noise = ledger.spend(short.profile(), "sketch", noise=Counting(0))
    short.release(records, noise)
    assert max(counts) <= 100 and sum(counts) == 500 + 4


def use_threads(monkeypatch, threads):
    given = contextlib.nullcontext(threads)
    monkeypatch.setattr(mixing_module, "block_threads", lambda *_: given)


def test_threads_do_not_change_the_sketch(mechanism, records, monkeypatch):
    monkeypatch.setattr(mixing_module, "_MOST_BLOCK_ROWS", 64)
    found = []
    for threads in (1, 3):
        use_threads(monkeypatch, threads)
        found.append(mechanism.release(records, granted(mechanism)))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", ["mechanism", "short"])
def test_blocks_may_be_overwritten_by_whoever_hands_them_out(name, records, monkeypatch, request):
    mechanism = request.getfixturevalue(name)
    use_threads(monkeypatch, 3)

    def reused():
        memory = np.empty((77, 4))
        for block in chunks(records):
            memory[: len(block)] = block
            yield memory[: len(block)]

    one, two = (mechanism.release(X, granted(mechanism)) for X in (chunks(records), reused()))
    np.testing.assert_array_equal(one, two)


def test_a_sketch_is_fresh(mechanism, records):
    ledger = Ledger(neighbours=REPLACE)
    two = [mechanism.release(records, ledger.spend(mechanism.profile(), "s")) for _ in range(2)]
    assert abs(np.corrcoef(two[0][:, 0], two[1][:, 0])[0, 1]) < 0.15
    assert not np.array_equal(*two)


def test_the_signature_is_needed():
    with pytest.raises(AssumptionError, match="idealised-arithmetic"):
        GaussianMixing.calibrate(1.0, Budget(1.0, 1e-6), rows=5, dimension=2)


@pytest.mark.parametrize("relation", list(Neighbours))
def test_calibration_of_all_relations(relation):
    budget = Budget(0.7, 1e-7)
    found = GaussianMixing.calibrate(
        declared(2.0, relation), budget, rows=40, dimension=3, accept=ACCEPT
    )
    assert found.profile().neighbours == relation.value
    assert found.profile().supports(budget)
    exact = Fraction(2) ** 2 / Fraction(found.sigma) ** 2
    assert exact <= Fraction(found.profile().ratio) <= exact * (1 + Fraction(1, 10**14))
    assert 4 / found.sigma**2 == pytest.approx(mixing_ratio(0.7, 1e-7, 40, relation), rel=1e-6)


def test_bad_rows_and_gram(mechanism):
    with pytest.raises(ParameterError, match="'rows' parameter of GaussianMixing"):
        GaussianMixing.calibrate(1.0, Budget(1.0, 1e-6), rows=0, dimension=2, accept=ACCEPT)
    with pytest.raises(ParameterError, match=r"'gram' .* shape \(4, 4\). Got 'shape \(3, 3\)'"):
        mechanism.release_gram(np.eye(3), granted(mechanism))
    with pytest.raises(ParameterError, match=r"shape \(n, 4\). Got 'shape \(5, 3\)'"):
        mechanism.release(iter([np.zeros((5, 3))]), granted(mechanism))


def test_a_gram_matrix_of_nonsense_neither_fails_nor_warns(mechanism, recwarn):
    for fill in (np.nan, np.inf, -np.inf, 1e308, -1.0):
        gram = np.eye(4)
        gram[0, 0] = fill
        assert np.all(np.isfinite(mechanism.release_gram(gram, granted(mechanism))))
    assert len(recwarn) == 0


# --- the statistic --------------------------------------------------------------------------------


def test_the_norm_of_a_record():
    for relation in Neighbours:
        found = record_norm(relation, row=3.0, target=2.0, targets=2, constant=1.0)
        assert found.value >= math.sqrt(18) and found.value == pytest.approx(math.sqrt(18))
    for bad in (-1.0, math.inf, math.nan):
        with pytest.raises(ParameterError):
            record_norm(ZERO, row=bad)


def test_a_statistic_gives_the_sketch_of_its_records(rng, seed):
    budget = Budget(2.0, 1e-5)
    layout = GramLayout.choose(3, 1, 1.0, REPLACE, 400, budget)
    Z, y = rng.normal(size=(400, 3)) / 3, rng.uniform(-1, 1, (400, 1))
    mechanism = layout.mixing(budget, 4000, ACCEPT)
    sketch = GramSum(layout).update(Z, y).sketch(mechanism, granted(mechanism, seed))
    assert sketch.shape == (4000, 5)
    records = np.column_stack(
        [Z / np.maximum(1, np.linalg.norm(Z, axis=1))[:, None], y, np.ones(400)]
    )
    covariance = records.T @ records + np.diag((mechanism.sigma * layout.units) ** 2)
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    white = sketch @ root.T
    assert kstest(white.ravel(), "norm").pvalue > 1e-6
    np.testing.assert_allclose(white.T @ white / 4000, np.eye(5), atol=0.12)


def test_a_statistic_refuses_the_mechanism_of_another():
    budget = Budget(2.0, 1e-5)
    layout = GramLayout.choose(3, 1, 1.0, REPLACE, 400, budget)
    other = GaussianMixing.calibrate(1.0, budget, rows=10, dimension=5, accept=ACCEPT)
    with pytest.raises(LedgerError, match="not calibrated for the records"):
        GramSum(layout).sketch(other, granted(other))
    own = layout.mixing(budget, 10, ACCEPT)
    with pytest.raises(ValueError, match="one fold"):
        GramFolds(layout, 2).sketch(own, granted(own))
