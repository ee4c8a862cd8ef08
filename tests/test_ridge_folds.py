"""Ridge with folds: one rule for every kind of table, one price, and a choice by held-out error."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.utils.estimator_checks import check_estimator

from dpkernel import (
    BlockStream,
    Budget,
    Certificate,
    Ledger,
    People,
    PrivateKernelRidge,
    SeededNoise,
    load,
    save,
)
from dpkernel.estimators import gram_pass
from dpkernel.foundations.errors import CertificateError, ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.models.features import PublicEigenfeatures
from dpkernel.privacy.folds import GramFolds
from dpkernel.privacy.statistics import GramLayout
from dpkernel.solvers import ridge
from estimator_table import LARGE_WEIGHTS

HUGE = 1e12  # an epsilon at which the noise is far below the data


@pytest.fixture
def data(rng):
    X = rng.uniform(-1, 1, (4999, 3))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=len(X))
    order = np.argsort(y)  # runs of like rows, so that contiguous folds would give another model
    return X[order], y[order]


def build(*args, **options):
    given = {"bounds": (-1, 1), "y_bounds": (-2, 2), "noise": SeededNoise(4), "folds": 3}
    return PrivateKernelRidge(*args, **{**given, **options})


def free(model):
    return model.certificate_.free_statistics


def factor(model):
    """Return the regularisation over the default rule for the noise of all folds, eigenfeatures."""
    (release,) = model.certificate_.releases
    unit = model.feature_map_.row_norm_bound / model.certificate_.public["integer_grid"]["row"]
    rule = 2.5 * release.mechanism.sigma * unit**2 * math.sqrt(release.folds)
    return free(model)["regularisation"] / rule


# --- one rule -------------------------------------------------------------------------------------


def same(model, reference):
    # BLAS rounds a row of features differently in blocks of other sizes, in the last bit
    np.testing.assert_allclose(model.coef_, reference.coef_, atol=1e-5)
    found, other = free(model), free(reference)
    assert found["leading_features"] == other["leading_features"]
    # the sum over folds hides which row was where; each fold's error does not
    assert found["held_out_mse"] == pytest.approx(other["held_out_mse"], rel=1e-5)


def test_arrays_are_split_by_position(data, monkeypatch):
    """The matrices that leave are those of X[k::3], whatever the blocks; the noise is below a step."""
    seen = []
    release = GramFolds.release

    def spy(self, mechanism, noise):
        seen.append(release(self, mechanism, noise))
        return seen[-1]

    monkeypatch.setattr(GramFolds, "release", spy)
    X, y = data
    model = build(HUGE, n_features=16).fit(X, y)
    Z = model.feature_map_.transform(X)
    for k, gram in enumerate(seen[0]):
        np.testing.assert_allclose(gram.features, Z[k::3].T @ Z[k::3], atol=0.05)
        np.testing.assert_allclose(gram.target_sum, np.sum(y[k::3] / 2), atol=0.05)
        assert gram.count == pytest.approx(len(y[k::3]), abs=0.01)


@pytest.mark.parametrize("rows", [7, 1000, 2500])
def test_streams_with_odd_blocks(data, rows):
    X, y = data
    blocks = [(X[i : i + rows], y[i : i + rows]) for i in range(0, len(X), rows)]
    model = build(n_features=24).fit(BlockStream(blocks, n_rows=len(X)))
    same(model, build(n_features=24).fit(X, y))


@pytest.mark.parametrize("kind", ["array", "frame of unknown length"])
def test_dask_chunks_of_odd_sizes(data, kind):
    import dask.array as da
    import dask.dataframe as dd

    X, y = data
    chunks = (1000, 1, 2048, *[50] * 19, 500, 500)  # merged by a tree of two levels
    if kind == "array":
        lazy = da.from_array(X, chunks=(chunks, 3)), da.from_array(y, chunks=(chunks,))
    else:
        frame = dd.from_pandas(pd.DataFrame(X, columns=list("abc")).assign(y=y), npartitions=11)
        frame = frame[frame.y > -100]  # Dask no longer knows how long its parts are
        lazy = frame[["a", "b", "c"]], frame["y"]
    model = build(n_features=24).fit(*lazy)
    same(model, build(n_features=24).fit(X, y))


def test_the_order_in_which_threads_finish_does_not_matter(data, monkeypatch):
    X, y = data
    blocks = [(X[i : i + 500], y[i : i + 500]) for i in range(0, len(X), 500)]
    reference = build(n_features=24).fit(BlockStream(blocks, n_rows=len(X)))

    def backwards(work, tasks, threads):
        return [work(*task) for task in reversed(list(tasks))][::-1]

    monkeypatch.setattr(gram_pass, "in_threads", backwards)
    model = build(n_features=24).fit(BlockStream(blocks, n_rows=len(X)))
    np.testing.assert_array_equal(model.coef_, reference.coef_)
    assert free(model) == free(reference)


def test_sparse_tables(data):
    X, y = np.where(data[0] > 0, data[0], 0.0), data[1]
    same(build(n_features=24).fit(csr_array(X), y), build(n_features=24).fit(X, y))


def test_one_fold_is_the_plain_model(data):
    """Everything but the certificate's line about folds is what it is without them."""
    X, y = data
    plain = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-2, 2), noise=SeededNoise(4)).fit(X, y)
    one = build(folds=1).fit(X, y)
    np.testing.assert_array_equal(one.coef_, plain.coef_)
    assert set(free(one)) == {
        "training_mse",
        "training_mse_noise_std",
        "training_mse_interval",
        "training_r2",
        "training_r2_interval",
    }
    assert one.certificate_.public["regularisation"] > 0


# --- one price ------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
def test_folds_cost_what_one_matrix_costs(data, relation):
    ledger = Ledger(budget=Budget(1.0, 1e-6), neighbours=relation)
    options = {"neighbours": relation, "n_features": 16, "noise": None}
    one = build(folds=1, **options).fit(*data).certificate_
    many = build(folds=4, ledger=ledger, **options).fit(*data).certificate_
    assert many.private and many.verify() == one.verify() and many.profile == one.profile
    assert many.releases[0].mechanism == one.releases[0].mechanism
    assert many.releases[0].folds == 4 and "4 disjoint folds" in str(many)
    assert many.public["folds"] == {"count": 4, "rule": "row position modulo count"}
    assert many.public["regularisation"] == "chosen on held-out folds"
    assert len(ledger.spends) == 1 and ledger.spent.epsilon <= 1.0
    assert ledger.spends[0].plan["parts"][0]["folds"] == 4


def test_the_free_training_error_knows_the_noise_of_all_folds(rng, seed):
    """Standardised deviations from the noise-free quadratic form have unit spread (5 sigma)."""
    X = rng.uniform(-1, 1, (500, 4))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
    deviations = []
    for i in range(60):
        noise = SeededNoise(seed + i)
        model = build(5.0, n_features=8, regularisation=1e4, folds=4, noise=noise).fit(X, y)
        residual = (y / 2 - model.feature_map_.transform(X) @ model.coef_ - model.intercept_) * 2
        gap = free(model)["training_mse"][0] - np.mean(residual**2)
        deviations.append(gap / free(model)["training_mse_noise_std"][0])
    assert 0.55 < np.std(deviations) < 1.45


# --- the choice -----------------------------------------------------------------------------------


def test_held_out_error_is_that_of_cross_validation_on_rows(data, monkeypatch):
    """Without noise: fit on the rows of all folds but one, predict the one, by least squares."""
    monkeypatch.setattr(ridge, "MOST_SIZES", 1)
    X, y = data[0][:600], data[1][:600]
    model = build(HUGE, n_features=20, regularisation=0.3).fit(X, y)
    Z = model.feature_map_.transform(X)
    constant = 0.5 * model.feature_map_.row_norm_bound
    weights = np.append(np.sqrt(model.feature_map_.spectrum[0] / model.feature_map_.spectrum), 1)
    rows = np.hstack([Z, np.full((600, 1), constant)])
    errors = []
    for k in range(3):
        out = np.arange(600) % 3 == k
        gram = rows[~out].T @ rows[~out] + 0.3 * 2 / 3 * np.diag(weights)
        beta = np.linalg.solve(gram, rows[~out].T @ (y[~out] / 2))
        errors.append(4 * (y[out] / 2 - rows[out] @ beta) ** 2)
    assert free(model)["held_out_mse"][0] == pytest.approx(np.mean(errors), rel=1e-3)
    assert free(model)["regularisation"] == 0.3
    assert free(model)["leading_features"] == 20


def test_the_noise_of_a_held_out_error_has_the_stated_spread(rng):
    """Against 4000 draws of symmetric noise on a zero matrix: within 6 % (5 sigma)."""
    layout = GramLayout.choose(5, 1, 1.0, Neighbours.REPLACE_ONE, 1000, Budget(1.0, 1e-6))
    sigma, constant = 1e12, layout.constant / layout.row
    beta = rng.normal(size=(1, 6, 1))
    beta[0, 5] = 4.0  # the constant's, whose own entry of the matrix is known
    draws = rng.normal(size=(4000, layout.side, layout.side))
    noise = sigma * (draws + draws.transpose(0, 2, 1)) / 2
    noise *= np.outer(layout.units, layout.units)
    w = np.concatenate([-beta[0, :5, 0], [1.0], -constant * beta[0, 5:, 0]])
    errors = np.einsum("a,nab,b->n", w, noise, w) - noise[:, 5, 5] - w[-1] ** 2 * noise[:, -1, -1]
    stated = math.sqrt(ridge._variance(beta, layout, sigma, constant).item())
    assert np.std(errors) == pytest.approx(stated, rel=0.06)


@pytest.mark.parametrize("i", range(4))
def test_few_rows_are_regularised_strongly(rng, seed, i):
    X = rng.uniform(-1, 1, (40, 3))
    y = np.sin(2 * X[:, 0])
    few = build(1.0, n_features=16, noise=SeededNoise(seed + i)).fit(X, y)
    assert factor(few) == pytest.approx(max(ridge.FACTORS))


def test_many_rows_and_a_rough_target_are_regularised_weakly(rng):
    X = rng.uniform(-1, 1, (3000, 2))
    model = build(1e6, n_features=64, length_scale=0.5).fit(X, np.sign(np.sin(5 * X[:, 0])))
    assert factor(model) < 1
    assert free(model)["leading_features"] == 64


@pytest.mark.parametrize(("columns", "sizes"), [([0, 1, 2], (3, 6)), ([40, 44], (48,))])
def test_as_many_leading_features_as_the_target_needs(rng, columns, sizes):
    X = rng.uniform(-1, 1, (3000, 2))
    features = PublicEigenfeatures(48, length_scale=0.3)
    target = features.build(2).transform(X)[:, columns].sum(axis=1)
    y = target / np.abs(target).max() + 0.2 * rng.normal(size=3000)
    model = build(1e5, features=features, regularisation=1e-4).fit(X, y)
    assert free(model)["leading_features"] in sizes
    assert model.coef_.shape == (model.feature_map_.n_outputs,)
    assert not model.coef_[free(model)["leading_features"] :].any()
    assert model.coef_[: free(model)["leading_features"]].all()
    assert model.certificate_.public["regularisation"] == 1e-4


@pytest.mark.parametrize("kind", ["eigen", "fourier"])
def test_without_noise_folds_are_as_good_as_one_matrix(data, kind):
    X, y = data
    options = {"features": kind, "n_features": 32}
    one = build(HUGE, folds=1, **options).fit(X, y)
    many = build(HUGE, folds=4, **options).fit(X, y)
    np.testing.assert_allclose(many.predict(X), one.predict(X), atol=0.02)
    assert free(many)["leading_features"] == (
        32 if kind == "fourier" else pytest.approx(32, abs=24)
    )
    assert free(many)["held_out_mse_noise_std"][0] < 1e-3
    assert free(many)["held_out_mse"][0] == pytest.approx(0.01, rel=0.2)  # the variance of y


def test_a_target_that_the_rule_does_not_fit_gains(seed):
    """sin(2 x) at epsilon 10, 10,000 rows: two folds halve the error of the default rule."""
    errors = {1: [], 2: []}
    for i in range(3):
        rng = np.random.default_rng(seed + i)
        X = rng.uniform(-1, 1, (10_000, 3))
        f = np.sin(2 * X[:, 0])
        for folds, found in errors.items():
            noise = SeededNoise(seed + i)
            model = build(10.0, folds=folds, noise=noise, y_bounds=(-1, 1))
            found.append(
                np.mean((model.fit(X, f + 0.1 * rng.normal(size=10_000)).predict(X) - f) ** 2)
            )
    assert np.mean(errors[2]) < 0.75 * np.mean(errors[1])


def test_several_targets_share_the_choice(data):
    X, y = data
    model = build(100.0, n_features=24).fit(X, np.stack([y, -y, 0 * y], axis=1))
    assert model.coef_.shape == (24, 3) and model.intercept_.shape == (3,)
    found = free(model)
    assert len(found["held_out_mse"]) == len(found["held_out_mse_noise_std"]) == 3
    assert isinstance(found["leading_features"], int)
    assert np.mean((model.predict(X)[:, 1] + y) ** 2) < 0.1


def test_more_folds_than_rows(rng):
    X, y = rng.uniform(-1, 1, (4, 2)), np.zeros(4)
    assert np.all(np.isfinite(build(folds=10).fit(X, y).predict(X)))


# --- refused, saved, checked ----------------------------------------------------------------------


@pytest.mark.parametrize("folds", [0, 11, -1, True, 2.0, "2", None])
def test_bad_numbers_of_folds_spend_nothing(data, folds):
    ledger = Ledger(budget=Budget(5.0, 1e-6))
    with pytest.raises(
        ParameterError, match="'folds' parameter of PrivateKernelRidge must be an int"
    ):
        build(folds=folds, ledger=ledger).fit(*data)
    assert ledger.spends == []


def test_folds_with_nothing_to_choose_spend_nothing(data):
    ledger = Ledger(budget=Budget(5.0, 1e-6))
    with pytest.raises(ParameterError, match="1 where nothing is left to choose.*only add noise"):
        build(kernel="linear", regularisation=1.0, ledger=ledger).fit(*data)
    assert ledger.spends == []
    assert factor(build(regularisation=1.0).fit(*data)) > 0


def test_folds_of_rows_do_not_split_units(data):
    """A person's rows lie in several folds, each of which would feel a change of the person."""
    ledger = Ledger(budget=Budget(5.0, 1e-6))
    people = np.arange(len(data[1])) // 4
    with pytest.raises(ParameterError, match="record='all'.* needs solver='gram' and folds=1"):
        build(ledger=ledger).fit(*data, groups=People(people, record="all"))
    assert ledger.spends == []
    of_people = build(noise=None).fit(*data, groups=people).certificate_
    assert of_people.releases[0].folds == 3 and of_people.verify().epsilon <= 1.0
    assert "its position is public" not in str(of_people)
    honest = build(folds=1, noise=None).fit(*data, groups=people).certificate_
    forged = honest.to_dict()
    forged["releases"][0]["folds"] = 2
    with pytest.raises(CertificateError, match="names folds of rows"):
        Certificate.from_dict(forged).verify()
    honest.verify()


def test_a_folded_model_survives_its_file(data, tmp_path):
    model = build().fit(*data)
    again = load(save(model, tmp_path / "m.npz"))
    np.testing.assert_array_equal(again.predict(data[0]), model.predict(data[0]))
    assert again.certificate_ == model.certificate_ and again.certificate_.releases[0].folds == 3


def test_check_estimator_with_folds():
    options = {"y_bounds": (-1000, 1000), "noise": SeededNoise(0)}
    model = PrivateKernelRidge(10.0, folds=2, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            model, expected_failed_checks=LARGE_WEIGHTS, on_fail=None, on_skip=None
        )
    assert len(results) > 30
    assert [r["check_name"] for r in results if r["status"] == "failed"] == []
