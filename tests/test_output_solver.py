"""The solver of output perturbation: within its slack of the minimiser for every data set and loss."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import dpkernel.solvers.output_perturbation as solver
from dpkernel.errors import ParameterError
from dpkernel.losses import (
    REGISTRY,
    Absolute,
    Hinge,
    Huber,
    Logistic,
    Pinball,
    PowerAbsolute,
    PowerHinge,
    SmoothedHinge,
    Squared,
)
from dpkernel.solvers.objective_perturbation import BlockRecords
from dpkernel.solvers.output_perturbation import Risk, folded, minimise_risk, smoothed
from dpkernel.types import Neighbours

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
    """Also where residuals are as large as they can be: the threshold is beyond all of them."""
    z, y = table(rng, labels=False)
    z[:100], y[:100] = z[0], 1.0
    z[100:], y[100:] = z[0], np.where(np.arange(100) % 9, 1.0, -1.0)
    risk = Risk(Squared(), 200, 4, 1.0, ridge)
    exact = np.linalg.solve(z.T @ z + ridge * np.eye(4), z.T @ y)
    found = minimise_risk(records_of(z, y), risk)
    assert np.linalg.norm(found - exact) <= 1.01 * risk.problem.tolerance / ridge
    assert np.abs(y - z @ exact).max() < risk.smooth_loss.threshold


def test_folded_records_are_within_the_bounds_whatever_comes(rng):
    z = np.vstack(
        [rng.normal(size=(6, 3)) * 10.0 ** np.arange(-3, 3)[:, None], np.full((1, 3), 1e200)]
    )
    z = np.vstack([z, [[np.nan, 1.0, 1.0]]])
    y = np.array([0.1, 5.0, -7.0, 0.2, 1.0, 1.0, 1.0, np.nan])
    weights = np.minimum(1, 1 / np.maximum(np.add.reduce(z[:6] ** 2, axis=1), 1e-9))
    weights = np.append(weights, [1.0, 1.0])
    ((rows, targets, none),) = folded([(z, y, weights)], 1.0, 1.0)
    assert none is None and np.isfinite(rows).all() and np.isfinite(targets).all()
    assert np.linalg.norm(rows, axis=1).max() <= 1 and np.abs(targets).max() <= 1
    assert np.all(rows[6:] == 0)
    np.testing.assert_allclose(rows[:6], z[:6] * np.sqrt(weights[:6])[:, None], rtol=1e-11)
    # the weighted problem, where no bound cuts anything off
    targets = 0.5 * np.ones(6)
    ((rows, scaled, _),) = folded([(z[:6], targets, weights[:6])], 1.0, 1.0)
    weighted = z[:6].T @ (weights[:6, None] * z[:6]), z[:6].T @ (weights[:6] * targets)
    np.testing.assert_allclose(rows.T @ rows, weighted[0], rtol=1e-10)
    np.testing.assert_allclose(rows.T @ scaled, weighted[1], rtol=1e-10)


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
