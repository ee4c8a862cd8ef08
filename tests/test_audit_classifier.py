"""The classifier as a whole under attack, with twins of it that leak.

Two neighbouring tables differ in one record; every run is a whole fit. The attacker computes the noise
that each of the two tables would have needed for what was released, and compares their lengths. At 200
runs a side an output that only one table produces shows as epsilon > 1.3 with a false-alarm rate of
1e-8, so the claim is epsilon = 1. The slow test runs 5,000 fits a side.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest

import dpkernel.data.passes
import dpkernel.solvers.objective_perturbation
from dpkernel import PrivateKernelClassifier, SeededNoise
from dpkernel.estimators import objective_model
from dpkernel.estimators.records import RecordRecipe
from dpkernel.foundations.types import Budget
from dpkernel.models.features import LinearFeatures
from dpkernel.proof.audit import audit_scores

X = np.array([[0.9, 0.2], *([[0.1, -0.5], [-0.3, 0.4], [0.2, 0.1]] * 7)])  # enough for a centre
OTHERS = [0, 1, 0] * 7
TABLES = (X, np.array([1, *OTHERS])), (X, np.array([0, *OTHERS]))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """A look at the threads of BLAS takes longer than such a fit."""
    for module in (dpkernel.data.passes, dpkernel.solvers.objective_perturbation):
        monkeypatch.setattr(module, "block_threads", lambda *_: contextlib.nullcontext(1))


class Long(LinearFeatures):
    """Rows that are a hundred times too long."""

    def transform_block(self, X):
        return 100 * super().transform_block(X)


class ClassesOfY(PrivateKernelClassifier):
    """Reads the list of classes from the data."""

    def fit(self, X, y=None):
        self.classes = [*np.unique(y).tolist(), "another"]
        return super().fit(X, y)


def build(cls=PrivateKernelClassifier, **options):
    common = {"classes": [0, 1], "kernel": "linear", "bounds": (-1, 1), "regularisation": 8.0}
    return cls(1.0, 1e-5, **{**common, **options})


@pytest.fixture(autouse=True)
def released(monkeypatch):
    """The public recipe and the released solution of the last fit."""
    found, honest = [], RecordRecipe.coefficients

    def spy(self, beta):
        found[:] = self, beta
        return honest(self, beta)

    monkeypatch.setattr(RecordRecipe, "coefficients", spy)
    return found


def likelihood(model, released):
    """Return how much longer the noise is that the second table needs than that of the first."""
    recipe, beta = released
    lengths = []
    for rows, labels in TABLES:
        z, weights = recipe.rows(rows)
        slopes = weights * model._loss().derivative(2.0 * labels - 1, z @ beta)
        lengths.append(np.linalg.norm(slopes @ z + model.regularisation * beta))
    return float(lengths[1] - lengths[0])


def audit(model, trials, score, *, tables=TABLES, seed=None):
    scores = []
    for side, table in enumerate(tables):
        runs = range(trials)
        if seed is not None:
            runs = (SeededNoise((seed * 2 + side) * trials + i) for i in runs)
        scores.append([])
        for noise in runs:
            model.set_params(noise=noise if seed is not None else None).fit(*table)
            scores[-1].append(score(model))
    return audit_scores(*scores, model.certificate_.profile)


@pytest.fixture
def attack(released):
    return lambda model: likelihood(model, released)


def test_a_sound_fit_is_not_contradicted_on_real_entropy(attack):
    model = build()
    assert not audit(model, 200, attack).violated
    assert [r.label for r in model.certificate_.releases] == ["centre", "decision function"]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["smoothed_hinge", "logistic"])
def test_many_sound_fits_are_not_contradicted(loss, attack):
    result = audit(build(loss=loss), 5000, attack)
    assert not result.violated and result.epsilon_lower <= 1.0


def test_too_little_noise_is_found(monkeypatch, seed, attack):
    """Noise for epsilon = 1000 under a certificate for 1."""
    honest = objective_model.plan_objectives

    def weak(setting, losses, ridge):
        plans, centre = honest(setting, losses, ridge)
        strong, _ = honest(replace(setting, budget=Budget(1000.0, 1e-5)), losses, ridge)
        return [_Liar.of(a, b) for a, b in zip(plans, strong, strict=True)], centre

    monkeypatch.setattr(objective_model, "plan_objectives", weak)
    assert audit(build(), 200, attack, seed=seed).violated


class _Liar:
    """A mechanism that claims one profile and draws for another."""

    @classmethod
    def of(cls, claimed, drawn):
        mechanism = claimed.mechanism
        small = drawn.mechanism

        def release(value, noise):
            source = mechanism._claim(noise)
            steps = source.discrete_gaussian(small.sigma / small.grid, small.dimension)
            return value(steps.astype(float) * small.grid)

        object.__setattr__(mechanism, "release", release)
        return claimed


def test_rows_that_are_not_weighted_are_found(monkeypatch, seed, attack):
    assert not audit(build(features=Long()), 200, attack, seed=seed).violated
    honest = RecordRecipe.rows
    monkeypatch.setattr(RecordRecipe, "rows", lambda self, X: (honest(self, X)[0], np.ones(len(X))))
    monkeypatch.setattr(RecordRecipe, "around", lambda self, shift: self)  # nor scaled to norm 1
    monkeypatch.setattr(RecordRecipe, "choose", classmethod(_as_they_are))
    assert audit(build(features=Long()), 200, attack, seed=seed).violated


def _as_they_are(cls, domain, features, n_rows, row_bound, constant):
    recipe = cls(domain, features, 0.3, 1.0, np.zeros(features.n_outputs), row_bound)
    return recipe, np.full(features.n_outputs + 1, 1 / (features.n_outputs + 1))


def test_classes_that_were_read_from_the_data_are_found(seed):
    tables = TABLES[0], (X, np.array([2, *OTHERS]))
    count = lambda model: len(model.classes_)  # noqa: E731
    assert audit(build(ClassesOfY), 200, count, tables=tables, seed=seed).violated
