"""Classifiers whose features are made for the released law of the inputs."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dpkernel import (
    BlockStream,
    Budget,
    Ledger,
    Neighbours,
    PrivateKernelClassifier,
    SeededNoise,
    load,
    save,
)
from dpkernel.estimators.regressor.inputs import score_layout
from dpkernel.estimators.regressor.releases import PublicSizes, calibrated, stage_problem
from dpkernel.estimators.regressor.stage import largest_ridge
from dpkernel.foundations.errors import ParameterError
from dpkernel.models.features import LearnedFeatures
from dpkernel.models.losses import Huber, Logistic, SmoothedHinge
from dpkernel.privacy.mechanisms import ObjectivePerturbation
from dpkernel.privacy.profiles import gaussian_mu
from dpkernel.solvers.objective_perturbation import LARGEST_CONDITION

N = 500


@pytest.fixture
def table(rng):
    X = rng.uniform(-1, 1, (N, 3))
    return X, np.digitize(X[:, 0] + 0.2 * X[:, 1] ** 2, [-0.3, 0.4])


def build(**options):
    given = {"epsilon": 10.0, "classes": [0, 1, 2], "bounds": (-1, 1), "n_features": 20}
    return PrivateKernelClassifier(**{**given, "noise": SeededNoise(0), **options})


def learns(model):
    return isinstance(model.feature_map_, LearnedFeatures)


# --- which plan -----------------------------------------------------------------------------------

FIXED = {
    "a kernel": {"kernel": "gaussian"},
    "a length scale": {"length_scale": 0.5},
    "features": {"features": "fourier"},
    "a ridge": {"regularisation": 5.0},
    "noise on the solution": {"solver": "output"},
    "a pure budget": {"delta": 0.0, "accept": ("idealised-arithmetic",)},
    "too many features": {"n_features": 2001},
}


@pytest.mark.parametrize("given", FIXED.values(), ids=FIXED)
def test_parameters_that_need_a_fixed_kernel_get_one(given, table):
    assert learns(build().fit(*table))
    model = build(**given).fit(*table)
    assert not learns(model) and model.relevance_ is None


@pytest.mark.parametrize(("width", "least"), [(2, 300), (10, 400)])
def test_the_gate_is_n_mu_as_the_docstring_says(width, least, rng):
    mu = gaussian_mu(10.0, 1e-6)
    enough = math.ceil(least / mu)
    for n, wanted in ((enough, True), (enough - 1, False)):
        X = rng.uniform(-1, 1, (n, width))
        model = build(classes=[0, 1]).fit(X, (X[:, 0] > 0).astype(int))
        assert learns(model) is wanted


# --- what is released -----------------------------------------------------------------------------


def test_the_certificate_lists_every_release_and_all_problems_share_one_line(table, monkeypatch):
    drawn = []
    real = ObjectivePerturbation.release
    monkeypatch.setattr(
        ObjectivePerturbation,
        "release",
        lambda self, *given: drawn.append(self) or real(self, *given),
    )
    model = build().fit(*table)
    releases = {r.label: r for r in model.certificate_.releases}
    assert list(releases) == ["columns 1", "dependence", "decision function"]
    line = releases["decision function"]
    assert drawn == [line.mechanism] * line.draws and line.draws == 3
    assert model.certificate_.epsilon <= 10.0


def test_a_seed_that_no_map_takes_is_refused_before_the_spend(table):
    ledger = Ledger(unlimited=True)
    with pytest.raises(ParameterError, match="'random_state' parameter"):
        build(random_state=2**64, ledger=ledger).fit(*table)
    assert ledger.spends == []


# --- what the solver is asked for -----------------------------------------------------------------

LOSSES = [Huber(1.0), Logistic(), SmoothedHinge(1.0), SmoothedHinge(0.01), SmoothedHinge(1e-6)]


def stages(loss, n_rows, epsilon, size=41):
    """Return the mechanism of the only problem of a fit."""
    relation = Neighbours.REPLACE_ONE
    weights = {"columns 1": 0.03, "dependence": 0.03, "problem": 0.94}
    sizes = PublicSizes(n_rows, 2, size, score_layout(2, n_rows, relation))
    budget = Budget(epsilon, 1e-6)
    return calibrated("here", weights, {"problem": loss}, sizes, budget, relation, 0.1)["problem"]


@pytest.mark.parametrize("epsilon", [1.0, 1e4])
@pytest.mark.parametrize("n_rows", [1, 1000, 10_000_000])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_every_choice_of_coordinates_and_ridges_can_be_solved_as_planned(
    loss, n_rows, epsilon, rng
):
    """The tolerance is the planned one, and no table makes the solver run for years."""
    mechanism = stages(loss, n_rows, epsilon)
    least = mechanism.ridge
    most = largest_ridge(n_rows, least, mechanism.curvature)
    choices = [np.full(41, least), np.full(41, most), np.array([least]), np.array([most])]
    choices += [np.exp(rng.uniform(math.log(least), math.log(most), k)) for k in (2, 17, 41)]
    choices.append(np.r_[np.full(40, least), most])
    for ridges in choices:
        ridges = np.clip(ridges, least, most)
        largest_b = mechanism.reach * mechanism.sigma * (1 + 1e-12)
        problem = stage_problem(n_rows, ridges, largest_b, mechanism.error, loss=loss)
        assert problem.tolerance <= mechanism.error
        assert problem.condition <= LARGEST_CONDITION


# --- containers, files and tables that are odd ----------------------------------------------------

CONTAINERS = {
    "lists": lambda X, y: (X.tolist(), y.tolist()),
    "pandas": lambda X, y: (pd.DataFrame(X), pd.Series(y)),
    "sparse": lambda X, y: (sparse.csr_matrix(X), y),
    "stream": lambda X, y: (
        BlockStream(lambda: iter([(X[:200], y[:200]), (X[200:], y[200:])]), n_rows=len(X)),
        None,
    ),
}


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_every_container_gives_the_same_model(container, table):
    X, _ = table
    expected = build().fit(*table).decision_function(X)
    found = build().fit(*container(*table))
    assert learns(found)
    np.testing.assert_allclose(found.decision_function(X), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("loss", ["smoothed_hinge", "logistic"])
def test_a_file_has_the_model_and_its_relevance(loss, table, tmp_path):
    X, _ = table
    model = build(loss=loss, class_weight={0: 1.0, 1: 0.5, 2: 0.5}).fit(*table)
    again = load(save(model, tmp_path / "model.dpk"))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.relevance_, model.relevance_)


def test_relevance_is_a_share_and_finds_the_column_that_decides(rng):
    X = rng.uniform(-1, 1, (2000, 4))
    model = build(classes=[0, 1], n_features="auto").fit(X, (X[:, 2] > 0).astype(int))
    assert model.relevance_.shape == (4,) and abs(model.relevance_.sum() - 1) < 1e-9
    assert model.relevance_.min() >= 0 and model.relevance_[2] > 0.8


ODD = {
    "constant columns": (lambda X: np.full_like(X, 0.3), None),
    "a corner": (np.ones_like, None),
    "equal columns": (lambda X: np.repeat(X[:, :1], 3, axis=1), None),
    "two values": (np.sign, None),
    "far outside": (lambda X: 1e308 * X, None),
    "one column": (lambda X: X[:, :1], None),
    "one class": (lambda X: X, 1),
    "one-hot columns": (lambda X: np.eye(4)[(2 * X[:, 0] + 1.99).astype(int)], None),
}


@pytest.mark.parametrize(("change", "label"), ODD.values(), ids=ODD)
@pytest.mark.parametrize("n_rows", [1, N])
def test_odd_tables_give_a_finite_model_and_no_warning(change, label, n_rows, table):
    X, y = change(table[0][:n_rows]), table[1][:n_rows]
    y = y if label is None else np.full_like(y, label)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build(epsilon=1e6).fit(X, y)
    assert learns(model)
    assert np.isfinite(model.decision_function(X)).all()
    json.dumps(model.certificate_.free_statistics, allow_nan=False)


@pytest.mark.parametrize(("n_rows", "n_columns"), [(10, 3), (40, 100)])
@pytest.mark.parametrize("epsilon", [1e-3, 1e6])
def test_hardly_any_rows_and_many_columns_take_any_epsilon(rng, n_rows, n_columns, epsilon):
    X = rng.uniform(-1, 1, (n_rows, n_columns))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build(epsilon=epsilon).fit(X, rng.integers(0, 3, n_rows))
    assert model.certificate_.verify().epsilon <= epsilon
    assert np.isfinite(model.predict_proba(X)).all()
