"""Objective perturbation as a mechanism: what is drawn, what is claimed, and the real solver inside.

Noise is seeded, except in the audit of the sound mechanism (false alarms below 1e-8).
"""

from __future__ import annotations

import dataclasses
import json
import math
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy.stats import chisquare, kstest

import dpkernel.solvers.objective_perturbation as solver
from dpkernel import Certificate, Ledger, SeededNoise
from dpkernel.foundations.errors import CertificateError, NoiseError, ParameterError
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.models.losses import Huber, Logistic, SmoothedHinge
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.mechanisms import ObjectivePerturbation, PureObjectivePerturbation
from dpkernel.privacy.noise import Part, Plan
from dpkernel.privacy.profiles import ObjectiveProfile, objective_multiplier
from dpkernel.privacy.sensitivity import loss_gradient
from dpkernel.proof.audit.core import Case
from dpkernel.solvers.objective_perturbation import BlockRecords, Problem, minimise

REPLACE, ZERO, ADD = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE
BUDGET = Budget(1.0, 1e-6)


def make(budget=BUDGET, relation=REPLACE, dimension=3, x=0.05, error=1e-6, log_miss=-60.0):
    """Return a mechanism for a loss of slope and curvature 1 on rows of norm 1."""
    limits = {"gaussian": 0.01, "slack": 1e-9, "log_miss": log_miss}
    m = objective_multiplier(budget, [1.0], [x * (1 + 1e-15)], relation, **limits)
    return ObjectivePerturbation.build(
        loss_gradient(relation, slope=1.0, row=1.0),
        dimension=dimension,
        curvature=1.0,
        ridge=1 / x,
        m=m,
        output_mu=0.1 * m,
        log_miss=log_miss,
        error=error if callable(error) else lambda sigma, largest: error,
    )


def make_pure(epsilon=1.0, dimension=3, x=0.05, error=1e-6):
    sensitivity = loss_gradient(REPLACE, slope=1.0, row=1.0)
    return PureObjectivePerturbation.build(
        sensitivity,
        epsilon,
        dimension=dimension,
        curvature=1.0,
        ridge=1 / x,
        error=error if callable(error) else lambda scale, largest: error,
    )


def noise_for(mechanism, source=None, draws=1):
    relation = mechanism.sensitivity.neighbours
    plan = Plan((Part("x", mechanism.profile(), draws),))
    return Ledger(neighbours=relation).spend(plan, "x", noise=source or SeededNoise(0))


class Script(SeededNoise):
    """Noise that begins with given draws and remembers what was asked for."""

    def __init__(self, *first):
        super().__init__(0)
        self.first, self.asked = list(first), []

    def discrete_gaussian(self, scale, size):
        self.asked.append((scale, size))
        return self.first.pop(0) if self.first else super().discrete_gaussian(scale, size)


# --- what is drawn ----------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 3, 400])
def test_what_is_drawn(dimension):
    found, source, seen = make(dimension=dimension), Script(), []

    def solve(b):
        seen.append(b)
        return np.zeros(dimension)

    out = found.release(solve, noise_for(found, source))
    (b,) = seen
    assert b.shape == out.shape == (dimension,)
    assert np.array_equal(np.rint(b / found.grid) * found.grid, b)
    assert np.linalg.norm(b) <= found.reach * found.sigma
    inside, outside = source.asked
    assert inside == (found.sigma / found.grid, dimension)
    assert outside[1] == dimension and outside[0] ** 2 >= found.output_sigma**2 + 4
    assert outside[0] == pytest.approx(math.sqrt(found.output_sigma**2 + 4), rel=1e-14)


def test_b_is_drawn_again_while_it_is_too_long():
    found, seen = make(), []
    limit = found.reach * found.sigma / found.grid
    long = np.array([int(limit * 1.001), 0, 0])
    fine = np.array([0, -int(limit * 0.999), 0])
    source = Script(long, long, fine)
    found.release(lambda b: (seen.append(b), np.zeros(3))[1], noise_for(found, source))
    assert len(seen) == 1 and np.array_equal(seen[0], fine * found.grid)
    assert len(source.asked) == 4


def test_the_law_of_b():
    """Kolmogorov-Smirnov and a coarse chi-square test of 20,000 coordinates; both reject twins."""
    found, seen = make(dimension=20_000), []
    found.release(lambda b: (seen.append(b), np.zeros(20_000))[1], noise_for(found))
    b = seen[0] / found.sigma

    def plausible(values):
        edges = [-math.inf, -2, -1, -0.5, 0, 0.5, 1, 2, math.inf]
        counts = np.histogram(values, edges)[0]
        cdf = [mpmath.ncdf(e) for e in edges]
        expected = np.array([float(high - low) for low, high in pairwise(cdf)])
        coarse = chisquare(counts, expected * len(values)).pvalue
        return min(coarse, kstest(values, "norm").pvalue) > 1e-4

    assert plausible(b)
    assert not plausible(b / 2) and not plausible(1.05 * b) and not plausible(b + 0.05)


def test_the_noise_on_the_solution():
    found = make(dimension=20_000)
    solution = np.linspace(-5, 5, 20_000)
    out = found.release(lambda b: solution, noise_for(found))
    spread = (out - solution) / (found.output_sigma * found.output_grid)
    assert np.mean(spread**2) == pytest.approx(1, abs=6 * math.sqrt(2 / 20_000))
    assert np.mean(spread) == pytest.approx(0, abs=6 / math.sqrt(20_000))
    assert np.std(np.diff(np.sign(spread))) > 0.5


@pytest.mark.parametrize("mechanism", [make(), make_pure()], ids=lambda m: m.kind)
def test_one_spend_is_one_solve(mechanism):
    solved = []

    def solve(b):
        solved.append(b)
        return np.zeros(3)

    noise = noise_for(mechanism)
    mechanism.release(solve, noise)
    with pytest.raises(NoiseError, match="drawn already"):
        mechanism.release(solve, noise)
    assert len(solved) == 1
    with pytest.raises(NoiseError, match="ledger of 'zero-out' neighbours"):
        mechanism.release(solve, Ledger(neighbours=ZERO).spend(mechanism.profile(), "x"))
    assert len(solved) == 1


# --- what is claimed --------------------------------------------------------------------------


@pytest.mark.parametrize("relation", list(Neighbours))
@pytest.mark.parametrize("budget", [Budget(0.1, 1e-9), BUDGET, Budget(8.0, 1e-5)], ids=str)
@pytest.mark.parametrize("dimension", [1, 50, 10**5])
def test_building_ends_on_the_private_side(relation, budget, dimension):
    x = math.expm1(budget.epsilon / 8)
    found = make(budget, relation, dimension, x=x, error=lambda sigma, largest: 1e-6 * largest)
    profile = found.profile()
    limits = {"gaussian": 0.01, "slack": 1e-9, "log_miss": -60.0}
    m = objective_multiplier(budget, [1.0], [x * (1 + 1e-15)], relation, **limits)
    assert profile.supports(budget) and profile.neighbours == relation.value
    assert m * (1 - 1e-13) <= profile.stages[0][0] <= m
    assert found.output_mu == profile.mu_value <= 0.1 * m
    assert found.output_mu >= 0.1 * m * (1 - 1e-9)
    assert profile.stages[0][1] >= found.curvature / found.ridge
    assert found.log_miss <= -60.0 and found.slack <= 1e-9


def test_both_ratios_are_rounded_up(rng):
    base = make()
    for _ in range(200):
        sigma, ridge, curvature = 10.0 ** rng.uniform(-1, 1, 3)
        grid = 2.0 ** math.floor(math.log2(sigma) - 45)
        found = dataclasses.replace(base, sigma=sigma, grid=grid, ridge=ridge, curvature=curvature)
        m, x = (Fraction(value) for value in found.profile().stages[0])
        assert (
            Fraction(2) / Fraction(sigma)
            <= m
            <= Fraction(2) / Fraction(sigma) * (1 + Fraction(1, 10**15))
        )
        exact = Fraction(curvature) / Fraction(ridge)
        assert exact <= x <= exact * (1 + Fraction(1, 10**15))


def test_the_solver_is_asked_for_what_it_has_to_hide():
    asked = []
    found = make(error=lambda sigma, largest: (asked.append((sigma, largest)), 1e-7)[1])
    assert asked == [(found.sigma, pytest.approx(found.reach * found.sigma, rel=1e-11))]
    assert asked[0][1] >= found.reach * found.sigma and found.error == 1e-7


@pytest.mark.parametrize("dimension", [1, 7, 10**6])
@pytest.mark.parametrize("error", [1e-12, 1e-3, 10.0])
def test_the_mu_of_the_output_noise_is_rounded_up(dimension, error):
    found = make(dimension=dimension, error=error)
    with mpmath.workdps(60):
        root = mpmath.sqrt(dimension)
        values = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
        grid, sigma, reach, ridge, out_sigma, out_grid = (
            mpmath.mpf(values[name])
            for name in ("grid", "sigma", "reach", "ridge", "output_sigma", "output_grid")
        )
        off = mpmath.mpf(found.error) + root * grid / 2 + reach * sigma / mpmath.mpf(2) ** 53
        exact = (2 * off / ridge + root * out_grid) / (out_sigma * out_grid)
        assert exact <= found.output_mu <= exact * (1 + mpmath.mpf("1e-12"))
    assert root * grid / 2 <= 2.0**-40 * sigma  # the grid of b costs nothing
    assert 2 * off / ridge / (16 * root) <= out_grid <= 2 * off / ridge / (8 * root)


@pytest.mark.parametrize("loss", [Logistic(), Huber(1.0), SmoothedHinge(1.0)], ids=repr)
def test_given_the_ideal_minimiser_computed_ones_differ_as_little_as_stated(loss, rng):
    """Neighbours with one ideal minimiser: their computed solutions are within output_mu sigma."""
    x, wanted = 0.2, 3e-3
    ridge = np.full(3, 1 / x)
    most = 0.0
    for _ in range(25):
        z = rng.normal(size=(12, 3))
        z *= (1 - 2.0**-40) / np.linalg.norm(z, axis=1, keepdims=True)
        y = rng.choice([-1.0, 1.0], 12)
        other = z.copy()
        other[0] = -z[1]
        sigma = make(x=x).sigma
        ideal_b = rng.normal(size=3) * sigma
        largest = make(x=x).reach * sigma
        sharp, loose = (
            Problem(loss, 12, 1.0, ridge, 1.0, largest * 1.1, 512, tolerance)
            for tolerance in (0.0, wanted)
        )
        found = make(x=x, error=loose.tolerance)

        def records(rows, y=y):
            return BlockRecords(lambda: [(rows, y, None)], loss)

        beta = minimise(records(z), sharp, ideal_b)
        # the b for which the neighbour has the same ideal minimiser
        moved = records(z).sums(beta)[0] - records(other).sums(beta)[0]
        solutions = []
        for rows, b in ((z, ideal_b), (other, ideal_b + moved)):
            drawn = np.rint(b / found.grid) * found.grid
            solutions.append(solver._descend(records(rows), loose, drawn, 1))  # it stops early
        apart = np.linalg.norm(solutions[0] - solutions[1])
        hidden = found.output_mu * found.output_sigma * found.output_grid
        assert apart <= hidden
        most = max(most, apart / hidden)
    assert most > 1e-3


# --- certificates -----------------------------------------------------------------------------


def certified():
    mechanism = make()
    noise = noise_for(mechanism, draws=2)
    for _ in range(2):
        mechanism.release(lambda b: b, noise)
    request = Budget(2.5, 1e-5)
    return Certificate.issue("t", request, [Release("x", mechanism, 2)], noise, public={})


def test_a_certificate_of_two_draws():
    certificate = certified()
    assert isinstance(certificate.profile, ObjectiveProfile)
    assert len(certificate.profile.stages) == 2
    again = Certificate.from_json(certificate.to_json())
    assert again == certificate and again.verify().epsilon <= 2.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["profile"].update(stages=d["profile"]["stages"][:1]), "not the one"),
        (lambda d: d["profile"].update(stages=[[0.01, 0.05]] * 2), "not the one"),
        (lambda d: d["profile"].update(mu=0.0), "not the one"),
        (lambda d: d["profile"].update(slack=0.0), "not the one"),
        (lambda d: d["profile"].update(log_miss=-1e300), "not the one"),
        (lambda d: d["profile"].update(neighbours="zero-out"), "not the one"),
        (lambda d: d["releases"][0].update(draws=3), "prove delta"),
        (lambda d: d["releases"][0].update(ridge=1.0), "prove delta"),
        (lambda d: d["releases"][0].update(curvature=20.0), "prove delta"),
        (lambda d: d["releases"][0].update(error=1.0), "prove delta"),
        (lambda d: d["releases"][0].update(output_sigma=1.0), "prove delta"),
        (lambda d: d["releases"][0].update(sigma=2.0, noise_scale=2.0), "prove delta"),
        (lambda d: d.update(epsilon=1.0), "prove delta"),
    ],
)
def test_forged_certificates_do_not_verify(change, message):
    data = json.loads(certified().to_json())
    change(data)
    with pytest.raises(CertificateError, match=message):
        Certificate.from_json(json.dumps(data)).verify()


def test_a_forged_relation_is_refused():
    data = json.loads(certified().to_json())
    data["releases"][0]["sensitivity"]["neighbours"] = "zero-out"
    with pytest.raises(CertificateError):
        Certificate.from_json(json.dumps(data)).verify()


# --- pure epsilon -----------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [math.log1p(0.05) / 0.99 * (1 + 1e-6), 0.06, 0.3, 1.0, 30.0])
@pytest.mark.parametrize("error", [1e-9, 1e-2])
def test_the_three_parts_of_epsilon(epsilon, error):
    found = make_pure(epsilon, error=error)
    with mpmath.workdps(50):
        inside = mpmath.mpf(2) / mpmath.mpf(found.scale)
        determinant = mpmath.log1p(mpmath.mpf(1) / mpmath.mpf(found.ridge))
        outside = 2 * mpmath.mpf(error) / mpmath.mpf(found.ridge) / mpmath.mpf(found.output_scale)
        exact = inside + determinant + outside
        assert (
            exact <= found.profile().epsilon_value <= epsilon <= exact * (1 + mpmath.mpf("1e-12"))
        )


def test_exact_densities_are_within_epsilon():
    """One dimension, noise of density e^(-|b|/s), in the coordinates that both data sets share."""
    epsilon, x = 1.0, 0.3
    found = make_pure(epsilon, dimension=1, x=x)
    u = np.linspace(-40, 40, 20_001) * found.scale / 4
    loss, ridge = Huber(1.0), found.ridge
    beta = -u / ridge
    logs = {}
    for label in (None, 0.0, 0.7, 1e6, -1e6):
        slope = bend = np.zeros_like(u)
        if label is not None:
            slope = loss.derivative(np.full_like(u, label), beta)
            bend = loss.curvature(np.full_like(u, label), beta)
        logs[label] = -np.abs(u - slope) / found.scale + np.log1p(bend / ridge)
    worst = max(np.max(one - other) for one in logs.values() for other in logs.values())
    assert 0.7 * epsilon < worst <= found.profile().epsilon_value


def test_pure_noise_is_what_it_claims():
    found, seen = make_pure(dimension=5), []
    noise = noise_for(found, draws=600)
    outs = [found.release(lambda b: (seen.append(b), np.zeros(5))[1], noise) for _ in range(600)]
    inside = np.linalg.norm(seen, axis=1) / found.scale
    outside = np.linalg.norm(outs, axis=1) / found.output_scale
    for radii in (inside, outside):
        assert kstest(radii, "gamma", args=(5,)).pvalue > 1e-4
        assert kstest(radii / 2, "gamma", args=(5,)).pvalue < 1e-9
    assert np.corrcoef(inside, outside)[0, 1] == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize("dimension", [1, 2, 17, 1000, 10**5])
def test_pure_noise_never_reaches_its_limit(dimension):
    """So that cutting it off there does not condition it: the largest uniform, as the sampler has it."""
    from scipy.special import gammaincinv

    assert gammaincinv(dimension, 1 - 2.0**-53) < 0.99 * make_pure(dimension=dimension).reach


@pytest.mark.parametrize("epsilon", [0.04, 0.0, -1.0, math.nan, "1"])
def test_an_epsilon_that_the_ridge_uses_up(epsilon):
    with pytest.raises((ParameterError, TypeError)) as error:
        make_pure(epsilon)
    if not isinstance(epsilon, str):
        assert "above 0.0488, the cost of this ridge" in str(error.value)


@pytest.mark.parametrize(
    ("name", "bad"),
    [(name, bad) for name in ("m", "output_mu") for bad in (0.0, -1.0, math.nan, math.inf, None)]
    + [("log_miss", bad) for bad in (0.0, 1.0, math.nan)],
)
def test_bad_multipliers(name, bad):
    options = {"m": 0.3, "output_mu": 0.03, "log_miss": -60.0, "dimension": 3, "curvature": 1.0}
    with pytest.raises(
        ParameterError, match=r"of ObjectivePerturbation must be a float in the range"
    ):
        ObjectivePerturbation.build(
            loss_gradient(REPLACE, slope=1.0, row=1.0),
            ridge=20.0,
            error=lambda sigma, largest: 1e-6,
            **(options | {name: bad}),
        )


# --- end to end, with the real solver ---------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Leave the search for BLAS threads out of ten thousand solves with one row."""
    from contextlib import nullcontext

    monkeypatch.setattr(solver, "block_threads", lambda *sizes: nullcontext(1))


def audited(solve):
    """Return the case of one Huber record, with a kink or far away, solved by this function."""
    loss, budget, x = Huber(1.0), Budget(8.0, 1e-5), 0.3

    def problem(sigma, largest):
        return Problem(loss, 1, 1.0, np.array([1 / x]), 1e3, largest, 512, 1e-9)

    mechanism = make(budget, dimension=1, x=x, error=lambda s, r: problem(s, r).tolerance)
    public = problem(mechanism.sigma, mechanism.reach * mechanism.sigma * (1 + 1e-12))
    records = [
        BlockRecords(lambda y=y: [(np.ones((1, 1)), np.array([y]), None)], loss) for y in (0.0, 1e3)
    ]

    def run(neighbour, noise):
        return float(mechanism.release(lambda b: solve(records[neighbour], public, b), noise)[0])

    return Case("huber", mechanism.profile(), mechanism, run)


def test_the_real_solver_is_not_contradicted(quick):
    assert not audited(minimise).audit(1000).violated


def test_a_solver_that_gives_up_is_rejected(quick, seed):
    """Eight steps are plenty inside the parabola, and never enough on the straight part."""

    def capped(records, problem, b):
        beta = np.zeros(1)
        for _ in range(8):
            gradient = records.sums(beta)[0] + problem.ridge * beta + b
            if problem.accepts(gradient, beta):
                return beta
            beta = beta - gradient / problem.smoothness
        return np.array([1e6])

    assert audited(capped).audit(1000, noise=SeededNoise(seed)).violated
