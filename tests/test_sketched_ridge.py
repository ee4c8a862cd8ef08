"""Ridge regression from a private sketch: limits, tables of every kind, and use without cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpkernel import BlockStream, Budget, Ledger, PrivateKernelRidge, SeededNoise, load, save
from dpkernel.foundations.archive import read_archive, write_archive
from dpkernel.foundations.errors import AssumptionError, CertificateError, ParameterError
from dpkernel.methods import PrivateSketchedRidge
from dpkernel.solvers.ridge import penalty
from dpkernel.solvers.sketched_ridge import SketchScale, solve_sketch

SIGNED = {"accept": ("idealised-arithmetic",), "bounds": (-1, 1), "y_bounds": (-2, 2)}


@pytest.fixture
def data(rng):
    X = rng.uniform(-1, 1, (600, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] / 2


def fitted(data, **options):
    given = {"epsilon": 2.0, "n_features": 10, "noise": SeededNoise(1), **SIGNED, **options}
    return PrivateSketchedRidge(**given).fit(*data)


# --- the solver -------------------------------------------------------------------------------------


def test_a_long_sketch_with_little_noise_is_the_ridge_of_the_records(rng):
    n, k = 300, 400_000
    Z, y = rng.normal(size=(n, 4)) / 2, rng.uniform(-1, 1, (n, 1))
    records = np.column_stack([Z, y, np.ones(n)])
    units = np.array([0.01, 0.01, 0.01, 0.01, 0.02, 0.05])
    scale = SketchScale(4, 1, units, 0.1)
    root = np.linalg.cholesky(records.T @ records + np.diag((0.1 * units) ** 2))
    sketch = rng.normal(size=(k, 6)) @ root.T
    found = solve_sketch(sketch, n, scale, regularisation=5.0)
    h = np.column_stack([Z, np.full(n, scale.constant)])
    exact = np.linalg.solve(h.T @ h + 5 * np.eye(5), h.T @ y)
    np.testing.assert_allclose(found.coefficients, exact[:4], atol=0.02)
    np.testing.assert_allclose(found.intercepts, scale.constant * exact[4], atol=0.02)
    chosen = solve_sketch(sketch, n, scale)
    residual = y - Z @ chosen.coefficients - chosen.intercepts
    assert chosen.held_out[0] == pytest.approx(np.mean(residual**2), rel=0.05)
    assert 0 < chosen.held_out_std[0] < 0.05 * chosen.held_out[0]
    assert found.held_out is None and found.regularisation == 5.0


def test_the_noise_is_taken_off_the_diagonal(rng):
    """With tau^2 as large as the records' own sum, c = 1 undoes the shrinkage; c = 0 would halve it."""
    n, k, beta = 200, 400_000, 0.8
    z = rng.normal(size=n)
    records = np.column_stack([z, beta * z, np.zeros(n)])
    gram = records.T @ records
    tau = math.sqrt(gram[0, 0])
    scale = SketchScale(1, 1, np.ones(3), tau)
    sketch = rng.normal(size=(k, 3)) @ np.linalg.cholesky(gram + tau**2 * np.eye(3)).T
    found = solve_sketch(sketch, n, scale, regularisation=0.02 * tau**2)
    assert found.coefficients[0, 0] == pytest.approx(beta, rel=0.05)


def test_more_noise_gives_more_regularisation(rng):
    """The choice on held-out rows follows what the rows can tell."""
    n, m = 500, 12
    Z = rng.normal(size=(n, m)) / math.sqrt(m)
    y = Z[:, :1] - Z[:, 1:2]
    records = np.column_stack([Z, y, np.ones(n)])
    medians = []
    for sigma in (1e-3, 200.0):
        root = np.linalg.cholesky(records.T @ records + sigma**2 * np.eye(m + 2))
        scale, norms = SketchScale(m, 1, np.ones(m + 2), sigma), []
        for _ in range(9):
            found = solve_sketch(rng.normal(size=(280, m + 2)) @ root.T, n, scale)
            norms.append(float(np.linalg.norm(found.coefficients)))
        medians.append(np.median(norms))
    assert medians[0] == pytest.approx(math.sqrt(2), rel=0.01)
    assert medians[1] < 0.3 * medians[0]


def test_eigenfeatures_of_small_eigenvalue_are_held_back_more():
    weights = penalty(3, np.array([1.0, 0.25, 0.01]))
    np.testing.assert_allclose(weights, [1, 2, 10, 1])


# --- the estimator ----------------------------------------------------------------------------------


def test_a_large_epsilon_tends_to_the_ridge(data):
    options = {"kernel": "gaussian", "n_features": 8, "bounds": (-1, 1), "y_bounds": (-2, 2)}
    options |= {"epsilon": 1e5, "delta": 1e-3, "regularisation": 1.0, "noise": SeededNoise(0)}
    plain = PrivateKernelRidge(**options).fit(*data)
    sketched = PrivateSketchedRidge(**options, n_sketch=200_000, accept=SIGNED["accept"]).fit(*data)
    np.testing.assert_allclose(sketched.predict(data[0]), plain.predict(data[0]), atol=0.05)


def test_the_sketch_estimates_the_sums(data):
    model = fitted(data, n_sketch=50_000)
    X, _ = data
    Z = model.feature_map_.transform(X)
    gram = model.sketch_.T @ model.sketch_ - np.diag(model.sketch_noise_**2)
    assert gram[-1, -1] == pytest.approx(600, rel=0.2)
    # an entry has the deviation sqrt(S_ii S_jj + S_ij^2) / sqrt(k), at most that of the diagonal
    full = np.diag(Z.T @ Z) + model.sketch_noise_[:10] ** 2
    spread = np.sqrt(2 * np.outer(full, full) / 50_000)
    assert np.all(np.abs(gram[:10, :10] - Z.T @ Z) < 5 * spread)


def test_it_learns(data):
    big = np.random.default_rng(3).uniform(-1, 1, (20_000, 2))
    y = np.sin(2 * big[:, 0]) + big[:, 1] / 2
    model = PrivateSketchedRidge(1.0, **SIGNED, noise=SeededNoise(0)).fit(big, y)
    assert model.score(big, y) > 0.9
    mse = model.certificate_.free_statistics["held_out_mse"][0]
    spread = model.certificate_.free_statistics["held_out_mse_noise_std"][0]
    assert abs(mse - np.mean((model.predict(big) - y) ** 2)) < 5 * spread


def test_refitting_costs_nothing_and_reads_nothing(data):
    ledger = Ledger(budget=Budget(2.0, 1e-6))
    model = fitted(data, ledger=ledger)
    first, sketch = model.coef_.copy(), model.sketch_.copy()
    strong = model.refit(regularisation=1e6).coef_.copy()
    assert np.linalg.norm(strong) < 0.1 * np.linalg.norm(first)
    np.testing.assert_allclose(model.refit().coef_, first, rtol=1e-9)
    same = fitted(data, regularisation=7.0)
    np.testing.assert_allclose(model.refit(7.0).coef_, same.coef_, rtol=1e-9)
    assert len(ledger.spends) == 1 and np.array_equal(model.sketch_, sketch)
    with pytest.raises(ParameterError, match="'regularisation' parameter"):
        model.refit(-1.0)


def test_a_loaded_model_can_be_refitted(data, tmp_path):
    model = fitted(data)
    again = load(save(model, tmp_path / "m.npz"))
    np.testing.assert_array_equal(again.sketch_, model.sketch_)
    np.testing.assert_array_equal(
        again.refit(3.0).predict(data[0]), model.refit(3.0).predict(data[0])
    )
    assert again.accept == SIGNED["accept"]
    whole = read_archive(tmp_path / "m.npz", 2**24)
    arrays = {**whole.arrays, "sketch": whole.arrays["sketch"][:, 1:]}
    write_archive(tmp_path / "bad.npz", whole.header, arrays)
    with pytest.raises(CertificateError, match="does not fit"):
        load(tmp_path / "bad.npz")


def test_streams_and_dask_give_the_sketch_of_arrays(data):
    X, y = data
    whole = fitted(data)
    stream = BlockStream(lambda: iter([(X[:250], y[:250]), (X[250:], y[250:])]), n_rows=600)
    streamed = PrivateSketchedRidge(epsilon=2.0, n_features=10, noise=SeededNoise(1), **SIGNED).fit(
        stream
    )
    np.testing.assert_array_equal(streamed.sketch_, whole.sketch_)
    da = pytest.importorskip("dask.array")
    dask = fitted((da.from_array(X, chunks=(200, 2)), da.from_array(y, chunks=200)))
    np.testing.assert_allclose(dask.sketch_, whole.sketch_, rtol=1e-6, atol=1e-3)


def test_several_targets(data):
    X, y = data
    both = fitted((X, np.column_stack([y, -y])))
    assert both.predict(X).shape == (600, 2) and both.sketch_.shape[1] == 10 + 2 + 1
    assert np.corrcoef(both.predict(X).T)[0, 1] < -0.9
    assert both.refit(5.0).predict(X).shape == (600, 2)


def test_nothing_is_spent_without_the_signature(data):
    ledger = Ledger(budget=Budget(2.0, 1e-6))
    model = PrivateSketchedRidge(y_bounds=(-2, 2), ledger=ledger)
    with pytest.raises(AssumptionError, match="idealised-arithmetic"):
        model.fit(*data)
    assert ledger.spends == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_sketch": 4}, "'n_sketch' parameter"),
        ({"accept": "idealised-arithmetic"}, "'accept' parameter"),
        ({"y_bounds": (-1e200, 1e200)}, "less than 2e150 wide"),
    ],
)
def test_bad_parameters(data, change, message):
    with pytest.raises(ParameterError, match=message):
        fitted(data, **change)


def test_sizes_are_public(data):
    """20 rows a column, whatever the targets are; one spend with one line in the certificate."""
    X, y = data
    shapes = {fitted((X, t)).sketch_.shape for t in (y, 0 * y, 1e9 * y)}
    assert shapes == {(20 * 12, 12)}
    certificate = fitted(data).certificate_
    assert certificate.assumptions == ("idealised-arithmetic",)
    assert [r.label for r in certificate.releases] == ["sketch"]
    assert "sketch" in str(certificate)
