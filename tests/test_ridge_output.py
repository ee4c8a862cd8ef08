"""PrivateKernelRidge(solver="output"): its minimiser, its sensitivity, what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest

import dpkernel.estimators.objective_model as objective_model
from dpkernel import (
    BlockStream,
    Budget,
    Certificate,
    GramStatistics,
    Ledger,
    People,
    PrivateKernelRidge,
    SeededNoise,
    load,
    save,
)
from dpkernel.estimators.records import ROW_BOUND, RecordRecipe
from dpkernel.foundations.errors import DataError, LedgerError, ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.privacy.profiles import gaussian_mu
from dpkernel.privacy.sensitivity import erm_ridge
from dpkernel.selection.candidates import free_choices

HUGE = 1e9


def ridge(**options):
    given = {"solver": "output", "bounds": (-1, 1), "y_bounds": (-3, 3), "n_features": 8}
    return PrivateKernelRidge(**{**given, **options})


@pytest.fixture
def table(rng):
    X = rng.uniform(-1, 1, (300, 2))
    return X, np.sin(2 * X[:, 0]) - X[:, 1] ** 2 + 0.1 * rng.normal(size=300)


def minimiser(model, X, y, strength):
    """Return the weighted normal equations' solution, y scaled to [-1, 1], with z and the weights."""
    recipe, _ = RecordRecipe.choose(model._domain, model.feature_map_, len(X), ROW_BOUND)
    z, omega = recipe.rows(X)
    left = z.T @ (omega[:, None] * z) + strength * np.eye(z.shape[1])
    return z @ np.linalg.solve(left, z.T @ (omega * y.T).T), omega


@pytest.mark.parametrize("targets", [None, 1, 3])
def test_large_epsilon_is_weighted_ridge_regression(table, targets):
    X, y = table
    if targets is not None:
        y = np.column_stack([y, -y, np.cos(y)][:targets])
    model = ridge(epsilon=HUGE, regularisation=5.0).fit(X, y)
    wanted, omega = minimiser(model, X, y / 3, 5.0)
    assert omega.min() < 0.9  # some rows are longer than the bound
    np.testing.assert_allclose(model.predict(X), 3 * wanted, rtol=0, atol=2e-3)
    assert model.predict(X).shape == y.shape
    assert model.coef_.shape == (8,) if targets is None else (8, targets)


@pytest.mark.parametrize("targets", [None, 3])
@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
def test_the_noise_is_what_the_sensitivity_asks_for(table, targets, relation):
    X, y = table
    y = y if targets is None else np.column_stack([y] * targets)
    model = ridge(regularisation=20.0, neighbours=relation).fit(X, y)
    (release,) = model.certificate_.releases
    bound = erm_ridge(
        Neighbours.resolve(relation), row=1.0, target=1.0, strength=20.0, n_rows=300
    ).value
    sigma = bound * math.sqrt(targets or 1) / gaussian_mu(1.0, 1e-6)
    assert sigma < release.mechanism.noise_scale < 1.003 * sigma
    assert release.mechanism.dimension == 9 * (targets or 1)
    assert model.certificate_.verify().epsilon <= 1


@pytest.mark.parametrize("n", [1, 2, 3, 12])
@pytest.mark.parametrize("strength", [0.05, 1.0, 30.0])
def test_search_through_the_estimator_never_exceeds_its_sensitivity(rng, n, strength, monkeypatch):
    """What gets the noise, for tables in which one record pulls the other way."""
    seen, solve = [], objective_model.minimise_risk
    keep = lambda *given: seen.append(solve(*given)) or seen[-1]  # noqa: E731
    monkeypatch.setattr(objective_model, "minimise_risk", keep)
    options = {"kernel": "linear", "regularisation": strength, "y_bounds": (-1, 1)}
    model, best = ridge(**options, n_features="auto"), 0.0
    for trial in range(16):
        X = 0.577 * np.tile(rng.choice([-1.0, 1.0], (1, 2)), (n, 1))  # records of norm 1
        X[: n - 1] *= rng.choice([1.0, rng.uniform(0, 1)])
        y = rng.choice([-1.0, 1.0], n) if trial % 4 == 3 else np.ones(n)
        other, target = X.copy(), y.copy()
        if trial % 2:
            other[-1] *= -1
        else:
            target[-1] *= -1
        seen.clear()
        bounds = {
            model.fit(*data).certificate_.releases[0].mechanism.sensitivity.value
            for data in ((X, y), (other, target))
        }
        assert len(bounds) == 1
        best = max(best, float(np.linalg.norm(seen[0] - seen[1])) / bounds.pop())
    least = {30.0: 0.75, 1.0: 0.15, 0.05: 0.02}  # few records do not attain what many would
    assert least[strength] < best <= 1


def test_tables_of_every_kind_give_one_model(table):
    X, y = table
    wanted = ridge(noise=SeededNoise(1)).fit(X, y).predict(X)
    pieces = [(X[:100], y[:100]), (X[100:], y[100:])]
    stream = BlockStream(lambda: iter(pieces), n_rows=300)
    found = ridge(noise=SeededNoise(1)).fit(stream).predict(X)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-2)
    dask = pytest.importorskip("dask.array")
    both = np.column_stack([y, -y])
    several = ridge(noise=SeededNoise(1)).fit(X, both).predict(X)
    chunks = dask.from_array(X, chunks=(100, 2)), dask.from_array(both, chunks=(100, 2))
    found = ridge(noise=SeededNoise(1)).fit(*chunks).predict(X)
    np.testing.assert_allclose(found, several, rtol=0, atol=1e-2)


def test_one_spend_a_certificate_and_a_file(table, tmp_path):
    X, y = table
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    model = ridge(ledger=ledger).fit(X, np.column_stack([y, -y]))
    assert len(ledger.spends) == 1
    certificate = model.certificate_
    assert certificate.public["solver"] == "output"
    assert certificate.releases[0].mechanism.sensitivity.formula == "erm-ridge"
    assert Certificate.from_json(certificate.to_json()) == certificate
    with pytest.raises(LedgerError):
        ridge(ledger=ledger).fit(X, y)
    again = load(save(model, tmp_path / "model"))
    assert again.solver == "output"
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    gram = ridge(solver="gram").fit(X, y)
    assert load(save(gram, tmp_path / "gram")).solver == "gram"


@pytest.mark.parametrize("targets", [None, 2])
@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
@pytest.mark.parametrize("accept", [(), ("idealised-arithmetic",)])
def test_pure_epsilon(table, targets, relation, accept, tmp_path):
    X, y = table
    y = y if targets is None else np.column_stack([y] * targets)
    ledger = Ledger(budget=Budget(2.0), neighbours=relation)
    options = {"epsilon": 2.0, "delta": 0.0, "neighbours": relation, "accept": accept}
    model = ridge(regularisation=20.0, **options, ledger=ledger).fit(X, y)
    certificate = model.certificate_
    assert certificate.delta == 0 and 1.999 < certificate.epsilon <= 2 and certificate.valid
    assert certificate.verify() and certificate.assumptions == accept
    (mechanism,) = (release.mechanism for release in certificate.releases)
    numbers = 9 * (targets or 1)
    relation = Neighbours.resolve(relation)
    moved = erm_ridge(relation, row=1.0, target=1.0, strength=20.0, n_rows=300).value
    moved *= math.sqrt(targets or 1) * (1 if accept else math.sqrt(numbers))  # l2, or l1
    assert moved / 2 < mechanism.noise_scale < 1.003 * moved / 2
    again = load(save(model, tmp_path / "model"))
    assert (again.delta, again.accept, again.solver) == (0.0, accept, "output")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_pure_noise_is_chosen_for_with_its_own_ridge(table):
    """Laplace noise is larger, so it gets a ridge that is at least as large."""
    options = {"epsilon": 1.0, "delta": 0.0}
    chosen = [
        ridge(**options, accept=accept).fit(*table).certificate_.public["regularisation"][0]
        for accept in (("idealised-arithmetic",), ())
    ]
    assert chosen[0] <= chosen[1]


def test_the_ridge_that_is_chosen_falls_with_epsilon(table):
    chosen = [
        ridge(epsilon=e).fit(*table).certificate_.public["regularisation"][0]
        for e in (0.1, 1.0, 10.0)
    ]
    assert chosen[0] > chosen[1] > chosen[2] > 0


REFUSED = {
    "solver": ({"solver": "input"}, {}, "'solver' parameter of PrivateKernelRidge must be one of"),
    "folds": ({"folds": 2}, {}, "'folds' parameter .* must be 1 with solver='output'"),
    "groups": ({}, {"groups": People(np.zeros(300), record="all")}, "needs solver='gram'"),
    "small ridge": ({"regularisation": 1e-200}, {}, "'regularisation' parameter.*1e-100"),
    "large ridge": ({"regularisation": 1e200}, {}, "'regularisation' parameter.*1e-100"),
    "pure": (
        {"delta": 0.0, "solver": "gram"},
        {},
        "'delta' parameter .* above 0 with solver='gram'.*Use solver='output'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_can_not_do_is_refused_before_anything_is_spent(table, case):
    options, extra, message = REFUSED[case]
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    with pytest.raises(ParameterError, match=message):
        ridge(ledger=ledger, **options).fit(*table, **extra)
    assert ledger.spends == []


def test_a_stream_that_is_read_once_is_refused(table):
    stream = BlockStream(iter([table]), n_rows=300)
    with pytest.raises(ParameterError, match="reads the table several times"):
        ridge().fit(stream)
    with pytest.raises(DataError, match="public constants"):
        ridge().fit(table[0], np.where(table[1] > 0, np.nan, 1.0))


def test_nothing_of_the_gram_matrix_is_offered(table):
    with pytest.raises(ParameterError, match="with folds=1 and solver='gram'"):
        GramStatistics(ridge(), n_rows=300, n_columns=2)
    candidates = [{"regularisation": 1.0}, {"regularisation": 9.0}]
    assert free_choices(ridge(), candidates) is None
    assert free_choices(ridge(solver="gram"), candidates) is not None


def test_neighbours_never_move_a_pure_release_further_in_the_l1_norm(rng, monkeypatch):
    """The log ratio of two Laplace densities is at most the l1 move of the centre over the scale."""
    seen, solve = [], objective_model.minimise_risk
    keep = lambda *given: seen.append(solve(*given)) or seen[-1]  # noqa: E731
    monkeypatch.setattr(objective_model, "minimise_risk", keep)
    options = {"kernel": "linear", "regularisation": 5.0, "y_bounds": (-1, 1), "delta": 0.0}
    model, worst = ridge(**options, n_features="auto", epsilon=1.0), 0.0
    for _ in range(16):
        X = 0.577 * rng.choice([-1.0, 1.0], (12, 2))
        y = rng.choice([-1.0, 1.0], 12)
        other, target = X.copy(), y.copy()
        other[-1] = 0.577 * rng.choice([-1.0, 1.0], 2)
        target[-1] = -y[-1]
        seen.clear()
        for table in ((X, y), (other, target)):
            (release,) = model.fit(*table).certificate_.releases
        moved = np.abs(seen[0] - seen[1]).sum()
        assert moved <= release.mechanism.sensitivity.value
        worst = max(worst, moved / release.mechanism.noise_scale)
    assert 0.2 < worst <= 1.0
