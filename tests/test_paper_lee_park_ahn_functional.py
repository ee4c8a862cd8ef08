"""Algorithm 5 of Lee, Park & Ahn (2025): its minimiser, its noise, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from dpkernel import Budget, Ledger, SeededNoise
from dpkernel.foundations.errors import DataError, LedgerError, NoiseError, ParameterError
from dpkernel.models import kernels
from dpkernel.models.losses import Huber, Logistic
from dpkernel.proof.papers import PublishedAlgorithm5
from dpkernel.proof.papers.lee_park_ahn_2025 import algorithm_5_noise, functional_perturbation

HUGE = 1e9  # an epsilon at which the noise can't be seen


@pytest.fixture
def table(rng):
    X = rng.uniform(-1, 1, (20, 2))
    return X, np.where(X[:, 0] > 0, 1.0, -1.0), rng.uniform(-1, 1, (5, 2))


@pytest.mark.parametrize("loss", [Huber(0.3), Logistic()])
def test_it_minimises_the_regularised_risk(table, loss):
    """The minimiser is f = K alpha with alpha = -l'(y, f)/(n lambda), and k(., x_i) elsewhere."""
    X, y, X_test = table
    model = PublishedAlgorithm5(HUGE, 1e-5, regularisation=0.05, length_scale=0.7, loss=loss)
    model.set_params(noise=SeededNoise(0)).fit(X, y)
    kernel = kernels.GaussianKernel(length_scale=0.7)
    f = model.decision_function(X)
    alpha = -loss.derivative(y, f) / (20 * 0.05)
    assert f == pytest.approx(kernel(X) @ alpha, abs=1e-6)
    assert model.decision_function(X_test) == pytest.approx(kernel(X_test, X) @ alpha, abs=1e-6)


def test_the_noise_is_the_printed_multiple_of_one_path():
    """300 pairs of points far from each other, f^ = 0: a deviation is known to 4 %."""
    model = PublishedAlgorithm5(1.0, 1e-3, regularisation=0.5, loss=Huber(2.0))
    model.set_params(noise=SeededNoise(0)).fit([[0.0]], [0.0])
    scale = algorithm_5_noise(1, 1.0, 1e-3, 0.5, slope=2.0)
    assert model.noise_scale_ == scale == pytest.approx(4 * (1 + np.sqrt(2 * np.log(1e3))))
    first, second = (model.decision_function(100.0 * np.arange(300)[:, None] + s) for s in (0, 0.5))
    expected = kernels.GaussianKernel(length_scale=1.0)(np.array([[0.0], [0.5]]))
    assert np.cov(first / scale, second / scale) == pytest.approx(expected, abs=0.25)


def test_answers_do_not_depend_on_being_asked_again(table):
    X, y, X_test = table
    model = PublishedAlgorithm5(noise=SeededNoise(1)).fit(X, y)
    first = model.decision_function(X_test)
    assert np.array_equal(model.decision_function(X_test[::-1])[::-1], first)
    assert np.array_equal(model.predict(X_test), np.where(first >= 0, 1, -1))
    assert set(model.predict(X_test)) <= set(model.classes_)


def test_labels_are_the_declared_ones(table):
    X, y, _ = table
    labels = np.where(y > 0, "yes", "no")
    model = PublishedAlgorithm5(HUGE, classes=("no", "yes"), regularisation=1e-3)
    model.set_params(noise=SeededNoise(2)).fit(X, labels)
    assert model.score(X, labels) == 1.0
    assert model.certificate_.public["classes"] == ["no", "yes"]


def test_nothing_is_proved_and_a_ceiling_is_refused(table):
    X, y, _ = table
    free = Ledger()
    model = PublishedAlgorithm5(ledger=free, noise=SeededNoise(0)).fit(X, y)
    assert model.certificate_.profile.delta(100.0) == 1 and len(free.spends) == 1
    capped = Ledger(budget=Budget(100.0, 0.1))
    with pytest.raises(LedgerError, match="its noise is half of what it must be. Pass a ledger"):
        PublishedAlgorithm5(ledger=capped).fit(X, y)
    assert len(capped.spends) == 0


def test_what_is_refused(table, monkeypatch):
    X, y, X_test = table
    model = PublishedAlgorithm5(most_answers=2, noise=SeededNoise(0)).fit(X, y)
    with pytest.raises(NoiseError, match="paid for 2 answers"):
        model.predict(X_test)
    with pytest.raises(ParameterError, match="'loss' parameter of PublishedAlgorithm5"):
        PublishedAlgorithm5(loss="squared").fit(X, y)
    monkeypatch.setattr(functional_perturbation, "_MOST_ROWS", 19)
    with pytest.raises(DataError, match="takes at most 19 rows"):
        PublishedAlgorithm5().fit(X, y)
