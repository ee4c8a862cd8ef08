"""The solver of output perturbation: within its slack of the minimiser for every data set and loss."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

import dpkernel.solvers.output_perturbation as solver
from dpkernel import (
    Budget,
    Ledger,
    PrivateKernelClassifier,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
    SeededNoise,
)
from dpkernel.estimators.objective_plan import ConvexSetting, plan_objectives
from dpkernel.estimators.output_plan import plan_outputs
from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.methods import (
    PrivateCurator,
    PrivateHuberRegressor,
    PrivateKernelSVC,
    PrivateKernelSVR,
)
from dpkernel.models.losses import (
    REGISTRY,
    Absolute,
    Hinge,
    Huber,
    Logistic,
    Pinball,
    PowerAbsolute,
    PowerHinge,
    SmoothedHinge,
    SmoothedPinball,
    Squared,
)
from dpkernel.solvers import objective_perturbation
from dpkernel.solvers.objective_perturbation import BlockRecords
from dpkernel.solvers.output_perturbation import Risk, minimise_risk, smoothed
from dpkernel.solvers.penalties import SquaredNorm

KINKED = [Hinge(), Pinball(0.8), Absolute(0.0), Absolute(0.3), PowerHinge(1.0), PowerAbsolute(1.0)]


def table(rng, n=200, size=4, labels=True):
    z = rng.normal(size=(n, size))
    z /= 1.01 * np.maximum(1, np.linalg.norm(z, axis=1, keepdims=True))
    noise = z @ [1.0, -2.0, 0.5, 0.0] + 0.3 * rng.normal(size=n)
    return z, np.sign(noise) if labels else np.clip(noise, -1, 1)


def records_of(z, y, weights=None):
    return lambda loss: BlockRecords(lambda: [(z, y, weights)], loss)


def objective(loss, z, y, ridge, beta, weights=1.0):
    return float(np.sum(weights * loss.value(y, z @ beta)) + ridge / 2 * beta @ beta)


def test_every_loss_is_solved_or_refused_by_name():
    refused = {PowerHinge, PowerAbsolute}
    for cls in REGISTRY.values():
        if cls in refused:
            with pytest.raises(ParameterError, match=f"bounded slope.*{cls.kind} is neither"):
                Risk(cls(), 10, 2, 1.0, 1.0)
        else:
            assert Risk(cls(), 10, 2, 1.0, 1.0).problem.tolerance > 0


@pytest.mark.parametrize("loss", KINKED, ids=repr)
@pytest.mark.parametrize("width", [0.3, 0.01, 1e-4])
def test_kinks_become_parabolas_of_the_same_slopes(rng, loss, width):
    soft = smoothed(loss, width)
    y, s = np.sign(rng.normal(size=2000)), 3 * rng.normal(size=2000)
    assert soft.lipschitz == loss.lipschitz and soft.smoothness < np.inf
    assert np.abs(loss.value(y, s) - soft.value(y, s)).max() <= width / 2 + 1e-12


@pytest.mark.parametrize("loss", KINKED, ids=repr)
def test_a_narrow_parabola_finds_the_minimum_of_the_original_loss(rng, loss):
    """Its objective differs by n width / 2 at most, and strong convexity does the rest."""
    z, y = table(rng, labels=loss.labels)
    risk = Risk(loss, len(z), 4, 1.0, 3.0, width=1e-4)
    beta = minimise_risk(records_of(z, y), risk)
    at = objective(loss, z, y, 3.0, beta)
    trials = beta + 1e-2 * rng.normal(size=(50, 4))
    reached = minimize(lambda b: objective(loss, z, y, 3.0, b), beta, method="Nelder-Mead")
    for trial in (*trials, reached.x):
        assert at <= objective(loss, z, y, 3.0, trial) + len(z) * 1e-4 / 2 + 1e-5


@pytest.mark.parametrize("loss", [Hinge(), Logistic(), Huber(0.2), Squared()], ids=lambda v: v.kind)
def test_descent_alone_agrees_within_twice_the_slack(rng, loss, monkeypatch):
    z, y = table(rng, n=30, labels=loss.labels)
    risk = Risk(loss, 30, 4, 1.0, 6.0, width=0.5)
    found = minimise_risk(records_of(z, y), risk)
    monkeypatch.setattr("dpkernel.solvers.objective_perturbation._newton", lambda *a, **k: None)
    again = minimise_risk(records_of(z, y), risk)
    slack = risk.problem.tolerance / risk.ridge
    assert 0 < np.linalg.norm(found - again) <= 2 * slack


@pytest.mark.parametrize("loss", [Huber(0.2), Absolute(), Pinball(0.5)], ids=lambda v: v.kind)
@pytest.mark.parametrize("newton", [True, False])
def test_an_elastic_net_is_the_minimum_with_public_records(rng, loss, newton, monkeypatch):
    """3 sum_l loss(0, beta_l): three records per unit vector, as part of the table and as ``l1``."""
    z, y = table(rng, n=60, labels=False)
    if not newton:
        monkeypatch.setattr("dpkernel.solvers.objective_perturbation._newton", lambda *a, **k: None)
    more = np.vstack([z, *[np.eye(4)] * 3]), np.append(y, np.zeros(12))
    net, plain = (
        Risk(loss, 60, 4, 1.0, 6.0, width=0.5, l1=3.0),
        Risk(loss, 72, 4, 1.0, 6.0, width=0.5),
    )
    assert net.problem.tolerance == plain.problem.tolerance
    assert net.problem.smoothness == plain.problem.smoothness
    found, wanted = minimise_risk(records_of(z, y), net), minimise_risk(records_of(*more), plain)
    assert np.linalg.norm(found - wanted) <= 2 * net.problem.tolerance / 6.0
    without = minimise_risk(records_of(z, y), Risk(loss, 60, 4, 1.0, 6.0, width=0.5))
    assert np.abs(found).sum() < 0.98 * np.abs(without).sum()


def test_an_elastic_net_needs_residuals_and_a_bounded_slope():
    for loss, l1 in ((Hinge(), 1.0), (Squared(), 1.0), (Huber(0.2), -1.0), (Huber(0.2), np.inf)):
        with pytest.raises(ParameterError, match="'l1' parameter of Risk"):
            Risk(loss, 60, 4, 1.0, 6.0, l1=l1)


def test_the_squared_norm_has_the_derivatives_and_the_curvature_that_are_claimed(rng):
    for p, corner in ((1.05, 0.1), (1.5, 0.02), (1.9, 1.0)):
        term = SquaredNorm(p, 3.0, corner)

        def value(b, p=p, corner=corner):
            return 1.5 * (np.sum(np.hypot(b, corner) ** p) ** (2 / p) / (p - 1) - b @ b)

        for scale in (0.01, 1.0, 30.0):
            beta = rng.normal(size=5) * scale * 10.0 ** rng.uniform(-2, 0, 5)
            steps = np.eye(5) * 1e-5 * max(scale, corner)
            slopes = [(value(beta + h) - value(beta - h)) / (2 * h.max()) for h in steps]
            np.testing.assert_allclose(term.gradient(beta), slopes, rtol=1e-4, atol=1e-6 * scale)
            bends = [
                (term.gradient(beta + h) - term.gradient(beta - h)) / (2 * h.max()) for h in steps
            ]
            size = np.abs(bends).max()
            np.testing.assert_allclose(term.hessian(beta), bends, atol=1e-4 * size)
            curvature = np.linalg.eigvalsh(term.hessian(beta))
            assert curvature[0] >= -1e-9 * size  # so the whole is as strongly convex as the ridge
            assert curvature[-1] <= term.largest_curvature(5, float(np.linalg.norm(beta)))
    flat = SquaredNorm(1.2, 3.0, 0.5)
    assert np.all(flat.gradient(np.zeros(4)) == 0)
    one = np.array([1e-9, 0, 0, 0, 0])  # within the corner, where the curvature is largest
    assert SquaredNorm(1.5, 3.0, 0.1).hessian(one).max() > 3 / 0.5 * (5 ** (1 / 3) - 0.5) * 0.99


@pytest.mark.parametrize("loss", [Huber(0.2), Hinge(), Absolute()], ids=lambda v: v.kind)
@pytest.mark.parametrize("newton", [True, False])
def test_a_squared_norm_is_minimised_whatever_the_way(rng, loss, newton, monkeypatch):
    z, y = table(rng, n=60, labels=loss.labels)
    if not newton:
        monkeypatch.setattr("dpkernel.solvers.objective_perturbation._newton", lambda *a, **k: None)
    risk = Risk(loss, 60, 4, 1.0, 6.0, width=0.5, norm=1.5, l1=0.0 if loss.labels else 2.0)
    found, p, smooth = minimise_risk(records_of(z, y), risk), 1.5, risk.smooth_loss
    corner = getattr(smooth, "width", 0.5)

    def objective(beta):
        penalty = 6.0 * np.sum(np.hypot(beta, corner) ** p) ** (2 / p) / (2 * (p - 1))
        net = 0.0 if loss.labels else 2.0 * np.sum(smooth.value(np.zeros(4), beta))
        return np.sum(smooth.value(y, z @ beta)) + penalty + net

    exact = minimize(objective, np.zeros(4), method="BFGS", options={"gtol": 1e-9}).x
    slack = risk.problem.tolerance / risk.ridge
    assert np.linalg.norm(found - exact) <= slack + 1e-6
    plain = minimise_risk(records_of(z, y), Risk(loss, 60, 4, 1.0, 6.0, width=0.5))
    assert np.linalg.norm(found - plain) > 10 * slack


def test_a_squared_norm_needs_a_bounded_slope_and_corners_that_are_not_too_sharp():
    for loss, norm in ((Squared(), 1.5), (Huber(0.2), 1.0), (Huber(0.2), 2.5), (Hinge(), np.nan)):
        with pytest.raises(ParameterError, match="'norm' parameter of Risk"):
            Risk(loss, 60, 4, 1.0, 6.0, norm=norm)
    sharp = Risk(Absolute(), 10**6, 500, 1.0, 1e3, width=1e-3, norm=1.01)
    with pytest.raises(
        ParameterError, match=r"'norm' parameter of Me must be at least 1\.\d+ for"
    ) as e:
        sharp.refuse_endless("Me")
    least = float(re.search(r"at least ([\d.]+)", str(e.value))[1])
    Risk(Absolute(), 10**6, 500, 1.0, 1e3, width=1e-3, norm=least).refuse_endless("Me")
    assert Risk(Absolute(), 10**6, 500, 1.0, 1e3, width=1e-3, norm=least - 0.01).endless


def test_the_rough_start_changes_nothing_but_the_number_of_passes(rng, monkeypatch):
    z, y = table(rng, n=2000)
    risk = Risk(Hinge(), 2000, 4, 1.0, 3.0, width=0.02)
    warm = minimise_risk(records_of(z, y), risk)
    monkeypatch.setattr(solver, "_wide", lambda *a: None)
    cold = minimise_risk(records_of(z, y), risk)
    assert np.linalg.norm(warm - cold) <= 2 * risk.problem.tolerance / risk.ridge
    assert solver.smoothed(SmoothedHinge(0.02), 9.0) == SmoothedHinge(0.02)


@pytest.mark.parametrize("ridge", [0.01, 1.0, 300.0])
def test_least_squares_is_the_normal_equations(rng, ridge):
    """Also where residuals are as large as they can be."""
    z, y = table(rng, labels=False)
    z[:100], y[:100] = z[0], 1.0
    z[100:], y[100:] = z[0], np.where(np.arange(100) % 9, 1.0, -1.0)
    risk = Risk(Squared(), 200, 4, 1.0, ridge)
    exact = np.linalg.solve(z.T @ z + ridge * np.eye(4), z.T @ y)
    found = minimise_risk(records_of(z, y), risk)
    assert np.linalg.norm(found - exact) <= 1.01 * risk.problem.tolerance / ridge


@pytest.mark.parametrize("newton", [True, False])
def test_weighted_least_squares_is_the_weighted_normal_equations(rng, newton, monkeypatch):
    """Long rows with small weights: their residuals are far beyond those of rows within the bound."""
    z, y = table(rng, n=40, labels=False)
    z[:8] *= 1000.0
    weights = np.minimum(1, (1 - 1e-9) / np.add.reduce(z * z, axis=1))
    y[:8], ridge = np.sign(y[:8]), 3.0
    if not newton:
        monkeypatch.setattr("dpkernel.solvers.objective_perturbation._newton", lambda *a, **k: None)
    risk = Risk(Squared(), 40, 4, 1.0, ridge)
    exact = np.linalg.solve(z.T @ (weights[:, None] * z) + ridge * np.eye(4), z.T @ (weights * y))
    assert np.abs(y - z @ exact).max() > 10 * risk.problem.loss.lipschitz
    found = minimise_risk(records_of(z, y, weights), risk)
    assert np.linalg.norm(found - exact) <= 1.01 * risk.problem.tolerance / ridge


@pytest.mark.parametrize("weighted", [False, True])
def test_slopes_of_least_squares_are_bounded_where_the_solver_goes(rng, weighted):
    risk = Risk(Squared(), 50, 3, 0.7, 0.2, target_bound=2.0)
    radius, most = risk.problem.radius, 0.0
    for _ in range(200):
        h = rng.normal(size=3) * 10 ** rng.uniform(-2, 3)
        norm = np.linalg.norm(h)
        if not weighted:
            h *= 0.7 / max(norm, 0.7)
        omega = min(1.0, (0.7 / np.linalg.norm(h)) ** 2)
        beta = -h / np.linalg.norm(h) * radius
        slope = float(risk.smooth_loss.derivative(np.array([2.0]), h @ beta)[0])
        most = max(most, omega * abs(slope) * np.linalg.norm(h))
    bound = 0.7 * risk.problem.loss.lipschitz
    assert 0.99 * bound < most <= bound


def test_the_tolerance_is_a_thousandth_of_a_record(rng):
    risk = Risk(Hinge(), 100_000, 500, 1.0, 30.0)
    least = 2 / 30
    assert least < risk.sensitivity(Neighbours.REPLACE_ONE).value < least * 1.002


@pytest.mark.parametrize(
    ("wrong", "what"), [({"ridge": 0.0}, "ridge"), ({"target_bound": np.inf}, "target_bound")]
)
def test_senseless_problems_are_refused(wrong, what):
    numbers = {"ridge": 1.0, **wrong}
    with pytest.raises(ParameterError, match=f"The '{what}' parameter of Risk"):
        Risk(Hinge(), 10, 2, 1.0, **numbers)


@pytest.mark.parametrize(
    ("kind", "ridge"), [(PrivateKernelRidge, 1e-6), (PrivateHuberRegressor, 2.1e-3)]
)
def test_a_weak_ridge_on_single_precision_features_is_solved_whatever_the_labels(
    kind, ridge, monkeypatch, rng
):
    """In single precision a ridge of 1e-6 is lost beside 20,000 rows, and Newton steps would stall.

    On some tables only: and descent, which would then be needed, takes 10^12 steps.
    """

    def descend(*_):
        raise AssertionError("Newton steps did not get there")

    monkeypatch.setattr(objective_perturbation, "_descend", descend)
    X = rng.uniform(-1, 1, (20_000, 2))
    model = kind(
        solver="output", regularisation=ridge, n_features=200, bounds=(-1, 1), y_bounds=(-2, 2)
    )
    for y in (np.zeros(len(X)), 2.0 * (np.arange(len(X)) == 0), np.sin(3 * X[:, 0])):
        assert np.isfinite(model.fit(X, y).coef_).all()


# --- a fit ends on both neighbours or is refused on both --------------------------------------------


class EndlessError(Exception):
    """Newton steps gave up, and a descent of years would begin."""


@pytest.fixture
def no_descent(monkeypatch):
    def descend(records, problem, *rest):
        raise EndlessError

    monkeypatch.setattr(objective_perturbation, "_descend", descend)


def test_neighbours_of_which_one_would_not_end_are_refused_before_the_spend(no_descent):
    rng = np.random.default_rng(3)
    X, y = rng.uniform(-1, 1, (12, 2)) * [1, 1e-3], rng.choice([0, 1], 12)
    neighbour = np.vstack([X[:-1], [1.0, 1.0]])
    options = {"classes": [0, 1], "bounds": (-1, 1), "kernel": "linear", "noise": SeededNoise(0)}
    for table in (X, neighbour):
        ledger = Ledger(budget=Budget(10.0, 1e-5))
        model = PrivateKernelSVC(10.0, width=1e-6, regularisation=1e-8, ledger=ledger, **options)
        with pytest.raises(ParameterError, match="'auto', or at least 1.2 for 12 rows.*width"):
            model.fit(table, y)
        assert ledger.spends == []
        PrivateKernelSVC(10.0, width=1e-6, regularisation=1.3, **options).fit(table, y)
        PrivateKernelSVC(10.0, width=1e-6, **options).fit(table, y)  # "auto" is never refused


@pytest.mark.parametrize(
    "model",
    [
        PrivateKernelClassifier(
            1e9, classes=[0, 1], loss="smoothed_hinge", width=1e-6, regularisation=0.1
        ),
        PrivateKernelSVR(1.0, y_bounds=(0, 1), regularisation=1e-8),
        PrivateHuberRegressor(1e9, y_bounds=(0, 1), regularisation=1e-8),
        PrivateQuantileRegressor(1e9, y_bounds=(0, 1), width=1e-6, regularisation=0.1),
        PrivateKernelRidge(1.0, y_bounds=(0, 1), solver="output", regularisation=1e-12),
        PrivateCurator(
            1.0,
            y_bounds=(0, 1),
            loss="huber",
            regularisation=1e-8,
            accept=("idealised-arithmetic",),
        ),
    ],
    ids=lambda model: type(model).__name__,
)
def test_every_estimator_that_takes_steps_refuses_a_ridge_below_which_they_may_not_end(model, rng):
    X, ledger = rng.uniform(-1, 1, (60, 2)), Ledger(budget=Budget(2e9, 1e-5))
    model.set_params(bounds=(-1, 1), ledger=ledger)
    with pytest.raises(ParameterError, match="'regularisation'.*at least .* for 60 rows.*Raise"):
        model.fit(X, rng.choice([0, 1], 60))
    assert ledger.spends == []


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, 1e4])
@pytest.mark.parametrize("n_rows", [1, 100, 10**4, 10**7])
def test_default_settings_are_accepted_at_every_size(n_rows, epsilon):
    """By formula: the planner raises for what it refuses."""
    losses = [Logistic(), SmoothedHinge(1.0), SmoothedPinball(0.9, 0.1), Huber(0.3)]
    for size in (8, 1024):
        sizes = Neighbours.REPLACE_ONE, n_rows, np.full(size, 1 / size), 0.5
        setting = ConvexSetting("an estimator", Budget(epsilon, 1e-6), *sizes)
        for loss in losses:
            ((plan,), _) = plan_objectives(setting, [loss])
            assert plan.problem.condition <= objective_perturbation.LARGEST_CONDITION
        for loss in (Hinge(), SmoothedHinge(1e-6), Squared(), Pinball(0.5), *losses):
            plan, _ = plan_outputs(setting, [loss], None, ())
            assert not any(risk.endless for risk in plan.risks)


HOSTILE = {
    "random": lambda rng, n, size: rng.normal(size=(n, size)),
    "nearly one direction": lambda rng, n, size: 1 + 1e-3 * rng.normal(size=(n, size)),
    "geometric": lambda rng, n, size: rng.normal(size=(n, size)) * 10.0 ** -np.arange(size),
    "rows of all lengths": lambda rng, n, size: (
        rng.normal(size=(n, size)) * 10.0 ** rng.uniform(-6, 0, (n, 1))
    ),
    "powers": lambda rng, n, size: np.linspace(-1, 1, n)[:, None] ** np.arange(size),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("loss", [*KINKED[:4], Huber(1e-3), Logistic(), Squared()], ids=repr)
def test_newton_steps_end_on_hostile_tables_at_the_largest_condition(loss, kind, no_descent):
    rng = np.random.default_rng(0)
    for n, size, width in ((10, 2, 1e-6), (100, 6, 1e-4), (60, 30, 1e-3)):
        z = HOSTILE[kind](rng, n, size)
        z /= 1.01 * np.maximum(1, np.linalg.norm(z, axis=1, keepdims=True))
        targets = [np.ones(n), rng.choice([-1.0, 1.0], n)]
        if not loss.labels:
            targets += [np.clip(1e-3 * rng.standard_t(1, size=n), -1, 1)]
        draft = Risk(loss, n, size, 1.0, 1e-6, width=width)
        risk = replace(draft, ridge=1.01 * draft.problem.smoothness / draft.largest_condition)
        assert not risk.endless and replace(risk, ridge=risk.ridge / 1.1).endless
        for y in targets:
            assert np.isfinite(minimise_risk(records_of(z, y), risk)).all()


def test_descent_tries_newton_steps_again(rng, monkeypatch):
    """They gave up at 0; from where the descent is after 4 steps they may reach the end."""
    z, y = table(rng)
    risk, tried = Risk(Hinge(), 200, 4, 1.0, 1.0), []
    real = objective_perturbation._newton

    def newton(records, problem, b, threads, origin=None):
        tried.append(origin)
        return real(records, problem, b, threads, origin) if len(tried) == 5 else None

    monkeypatch.setattr(objective_perturbation, "_newton", newton)
    found = minimise_risk(records_of(z, y), risk)
    assert len(tried) == 5 and np.any(tried[-1] != 0)
    gradient, _ = records_of(z, y)(risk.smooth_loss).sums(found)
    assert risk.problem.accepts(gradient + risk.ridge * found, found)
