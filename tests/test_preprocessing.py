"""Private transformers: sensitivities, audits with broken twins, conventions, sane results."""

from __future__ import annotations

import inspect
import itertools
import logging
import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.utils.estimator_checks import check_estimator

from dpkernel import (
    Budget,
    Certificate,
    Interval,
    Ledger,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
    PrivateSearchCV,
    SeededNoise,
)
from dpkernel.foundations.errors import (
    BudgetExceededError,
    DataError,
    LedgerError,
    NoiseError,
    ParameterError,
)
from dpkernel.foundations.types import Neighbours
from dpkernel.methods import PrivateHuberRegressor, PrivateSGDRegressor
from dpkernel.preprocessing import (
    DeclaredCategories,
    PrivateBounds,
    PrivateImputer,
    PrivateMinMaxScaler,
    PrivatePCA,
    PrivatePipeline,
    PrivateStandardScaler,
    public_length_scale,
    released_length_scale,
)
from dpkernel.preprocessing.free import FUNCTIONS, through_free_step
from dpkernel.preprocessing.grids import Cells, coarse_edges, fine_edges
from dpkernel.preprocessing.locate import quantile, shortest_interval, with_far_cells
from dpkernel.preprocessing.search import GRID, ColumnSearch, pair_sums
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.noise import Part, Plan
from dpkernel.privacy.sensitivity import column_histograms, column_moments, sensitivity_from_dict
from dpkernel.proof.audit.cases import ALGORITHMS
from estimator_table import LARGE_WEIGHTS, REFIT_AND_COMPARE

WIDE = (-1000.0, 1000.0)
BUILDERS = {
    "PrivateBounds": lambda **kw: PrivateBounds(**{"epsilon": 10.0, "bounds": WIDE, **kw}),
    "PrivateMinMaxScaler": lambda **kw: PrivateMinMaxScaler(
        **{"epsilon": 10.0, "bounds": WIDE, **kw}
    ),
    "PrivateStandardScaler": lambda **kw: PrivateStandardScaler(
        **{"epsilon": 10.0, "bounds": WIDE, **kw}
    ),
    "PrivateImputer": lambda **kw: PrivateImputer(**{"epsilon": 10.0, "bounds": WIDE, **kw}),
    "PrivatePCA": lambda **kw: PrivatePCA(**{"epsilon": 10.0, "bounds": WIDE, **kw}),
    "PrivatePipeline": lambda **kw: PrivatePipeline(
        **{
            "steps": [("bounds", PrivateBounds(bounds=WIDE)), ("scale", PrivateMinMaxScaler())],
            "epsilon": 10.0,
            **kw,
        }
    ),
}
RELATIONS = (Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT)


@pytest.fixture(params=BUILDERS.values(), ids=list(BUILDERS))
def build(request):
    return request.param


def released(model):
    """Return every number that a transformer learned."""
    if isinstance(model, PrivatePipeline):
        return np.concatenate([released(step) for _, step in model.steps_])
    names = ("bounds_", "mean_", "scale_", "statistics_", "missing_", "components_")
    return np.concatenate([np.ravel(getattr(model, n)) for n in names if hasattr(model, n)])


# --- sensitivities --------------------------------------------------------------------------------


def neighbours_of(records, values, relation):
    """Yield the lists that differ in the last record, replaced or blanked."""
    if relation is Neighbours.REPLACE_ONE:
        yield from ([*records[:-1], value] for value in values)
    else:
        yield records[:-1]


@pytest.mark.parametrize("relation", RELATIONS)
def test_histograms_move_by_at_most_their_sensitivity(relation):
    """Every pair of small tables of two columns, with values outside, on edges and missing."""
    values = list(itertools.product((-3.0, 0.0, 0.4, 1.0, np.nan), repeat=2))
    cells = Cells((np.array([-1.0, 0.0, 1.0]), np.array([0.0, 0.5, 1.0])))

    def counts(records):
        table = np.array(records, dtype=float).reshape(-1, 2)
        return cells.count(table, clip=False)._values

    worst = 0.0
    for records in itertools.product(values, repeat=2):
        for other in neighbours_of(list(records), values, relation):
            worst = max(worst, float(np.linalg.norm(counts(records) - counts(other))))
    bound = column_histograms(relation, columns=2).value
    assert worst <= bound
    assert worst == pytest.approx(bound)
    assert np.all(counts(values).reshape(2, -1).sum(axis=1) == len(values))  # one cell a column


@pytest.mark.parametrize("relation", RELATIONS)
def test_sums_of_values_and_squares_move_by_at_most_their_sensitivity(relation, rng):
    clip = Interval(-2.0, 6.0)
    values = np.concatenate([np.linspace(-3, 7, 301), rng.uniform(-2, 6, 200), [np.nan]])
    points = np.array([pair_sums(np.array([v]), clip) for v in values], dtype=float)
    if relation is Neighbours.REPLACE_ONE:
        worst = max(float(np.linalg.norm(points - point, axis=1).max()) for point in points)
    else:
        worst = float(np.linalg.norm(points, axis=1).max())
    bound = column_moments(relation, columns=1, bound=GRID).value
    assert worst <= bound <= worst + 3
    assert column_moments(relation, columns=9, bound=GRID).value == pytest.approx(3 * bound)


@pytest.mark.parametrize("relation", [Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT])
def test_on_coarse_grids_sums_move_by_at_most_their_sensitivity(relation, monkeypatch):
    """All values of small grids, on which rounding is a large part of the move."""
    excess = []
    for bound in range(1, 40):
        monkeypatch.setattr("dpkernel.preprocessing.search.GRID", bound)
        values = np.linspace(-1, 1, 2 * bound + 1)
        points = np.array([pair_sums(np.array([v]), Interval(-1, 1)) for v in values], dtype=float)
        others = points if relation is Neighbours.REPLACE_ONE else np.zeros((1, 2))
        worst = max(float(np.linalg.norm(points - other, axis=1).max()) for other in others)
        assert worst <= column_moments(relation, columns=1, bound=bound).value
        excess.append(worst / bound - (2 if relation is Neighbours.REPLACE_ONE else 1.25))
    assert max(excess) > 0  # more than without rounding


@pytest.mark.parametrize(
    "build_one", [column_histograms, lambda r, columns: column_moments(r, columns=columns, bound=7)]
)
def test_a_certificate_computes_them_again(build_one):
    found = build_one(Neighbours.REPLACE_ONE, columns=5)
    assert sensitivity_from_dict(found.to_dict()) == found
    with pytest.raises(ValueError, match="but the certificate claims"):
        sensitivity_from_dict({**found.to_dict(), "value": found.value * 0.99})
    with pytest.raises(ValueError, match="whole numbers"):
        build_one(Neighbours.REPLACE_ONE, columns=0)
    with pytest.raises(ValueError, match="whole numbers"):
        build_one(Neighbours.REPLACE_ONE, columns=1.5)


def test_audits_have_twins_that_are_un_noised_or_count_one_column():
    """``tests/test_audit.py`` runs them."""
    broken = {case.broken for case in ALGORITHMS["preprocessing"]()}
    assert broken == {None, "other columns not counted", "exact numbers"}


def test_counts_leave_through_the_mechanism_of_their_columns_only():
    cells = Cells((np.array([0.0, 1.0]),) * 2)
    counts = cells.count(np.zeros((3, 2)), clip=True)
    fewer = column_histograms(Neighbours.REPLACE_ONE, columns=1)
    mechanism = Gaussian.calibrate(fewer, Budget(1, 1e-6), dimension=sum(cells.sizes), integer=True)
    noise = Ledger().spend(mechanism.profile(), "counts")
    with pytest.raises(LedgerError, match="not calibrated for histograms of these columns"):
        counts.release(mechanism, noise)
    with pytest.raises(LedgerError, match="can't be pickled"):
        pickle.dumps(counts)
    assert "secret" in repr(counts)


# --- grids and readings ---------------------------------------------------------------------------


def test_grids_are_public_and_symmetric():
    edges = coarse_edges(Interval(-8.0, 8.0))
    np.testing.assert_array_equal(edges, -edges[::-1])
    assert {-8.0, -4.0, 1.0, 8.0} <= set(edges) and np.all(np.diff(edges) > 0)
    assert len(coarse_edges(Interval(1900.0, 2100.0))) == 9  # cells of equal width
    assert np.all(np.diff(fine_edges(1e16, 1e16 + 4, 64)) >= 0)


def test_the_shortest_interval_holds_the_share():
    counts = np.array([0.0, 5.0, 400.0, 500.0, 90.0, 5.0, 0.0])
    assert shortest_interval(counts, 1000, 0.0, 0.02) == slice(2, 5)
    assert shortest_interval(counts, 1000, 0.0, 0.2) == slice(2, 4)
    assert shortest_interval(counts, 1000, 0.0, 0.0) == slice(1, 6)
    assert shortest_interval(0 * counts, 1000, 0.0, 0.0) == slice(0, 7)


def test_far_cells_are_added_only_if_they_are_no_noise():
    counts = np.zeros(40)
    counts[5], counts[20] = 900.0, 30.0
    assert with_far_cells(counts, 10.0, slice(5, 6)) == slice(5, 6)
    counts[20] = 60.0
    assert with_far_cells(counts, 10.0, slice(5, 6)) == slice(5, 21)
    counts[20], counts[30:34] = 0.0, 25.0  # four that are seen together
    assert with_far_cells(counts, 10.0, slice(5, 6)).stop in range(34, 42)


def test_a_quantile_of_counts_with_noise_below_zero():
    edges = np.array([0.0, 1.0, 2.0, 3.0])
    assert quantile(edges, np.array([0.0, 10.0, 0.0]), 0.5) == pytest.approx(1.5)
    assert 1 <= quantile(edges, np.array([-4.0, 20.0, -3.0]), 0.5) <= 2
    assert quantile(edges, np.array([-1.0, -1.0, -1.0]), 0.5) == 1.5


# --- conventions ----------------------------------------------------------------------------------


def failures(estimator, expected=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            estimator, expected_failed_checks=expected or {}, on_fail=None, on_skip=None
        )
    assert len(results) > 30
    return {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}


OF_WEIGHTS = {
    **LARGE_WEIGHTS,
    **dict.fromkeys(
        (
            "check_all_zero_sample_weights_error",
            "check_sample_weights_not_an_array",
            "check_sample_weights_pandas_series",
            "check_sample_weights_shape",
        ),
        "the weights are for a model at the end",
    ),
}


@pytest.mark.parametrize("name", [*BUILDERS, "DeclaredCategories"])
def test_check_estimator(name):
    if name == "DeclaredCategories":
        assert failures(DeclaredCategories()) == {}
        return
    expected = OF_WEIGHTS if name == "PrivatePipeline" else {}  # of transformers only
    assert failures(BUILDERS[name](noise=SeededNoise(0)), expected) == {}
    if name == "PrivateStandardScaler":  # the others go the same way to real entropy
        assert failures(BUILDERS[name](), REFIT_AND_COMPARE) == {}


def test_check_estimator_of_a_pipeline_with_a_model():
    steps = [("bounds", PrivateBounds(bounds=WIDE)), ("model", PrivateKernelRidge(y_bounds=WIDE))]
    assert failures(PrivatePipeline(steps, 10.0, noise=SeededNoise(0)), LARGE_WEIGHTS) == {}


def test_pandas_in_and_out(build, rng):
    frame = pd.DataFrame(rng.normal(size=(50, 3)), columns=["a", "b", "c"])
    model = build(noise=SeededNoise(1)).fit(frame)
    plain = build(noise=SeededNoise(1)).fit(frame.to_numpy())
    np.testing.assert_array_equal(released(model), released(plain))
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    names = list(model.get_feature_names_out())
    assert len(names) == 3
    if not isinstance(model, PrivatePipeline):
        out = model.set_output(transform="pandas").transform(frame)
        assert list(out.columns) == names
        np.testing.assert_array_equal(out.to_numpy(), plain.transform(frame.to_numpy()))
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame[["c", "b", "a"]])


def test_certificates(build, rng):
    X = rng.normal(size=(200, 3))
    for relation, epsilon in itertools.product(("replace-one", "zero-out"), (0.1, 1.0, 20.0)):
        model = build(epsilon=epsilon, delta=1e-6, neighbours=relation).fit(X)
        certificate = model.certificate_
        again = Certificate.from_json(certificate.to_json())
        assert again == certificate and again.verify().epsilon <= epsilon
        assert certificate.private and certificate.valid
        assert 0.99 * epsilon <= certificate.epsilon <= epsilon
        assert certificate.neighbours.value == relation
    with pytest.raises(ParameterError, match="'replace-one' or 'zero-out'"):
        build(neighbours="add-remove").fit(X)


def test_noise_and_ledger(build, rng):
    X = rng.normal(size=(100, 2))
    first, second = build().fit(X), build().fit(X)
    assert not np.array_equal(released(first), released(second))
    seeded = [build(noise=SeededNoise(2)).fit(X) for _ in range(2)]
    np.testing.assert_array_equal(released(seeded[0]), released(seeded[1]))
    assert not seeded[0].certificate_.private
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    model = clone(build(epsilon=1.0, ledger=ledger)).fit(X)
    assert [(s.label, s.state) for s in ledger.spends] == [(type(model).__name__, "drawn")]
    with pytest.raises(BudgetExceededError, match="Nothing was spent"):
        clone(model).fit(X)
    assert len(ledger.spends) == 1


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({"epsilon": 0}, None, "'epsilon' parameter"),
        ({"delta": 0.0}, None, "'delta' parameter"),
        ({"bounds": None}, None, "needs 'bounds'.*never read from the data"),
        ({"bounds": (3, -3)}, None, "low < high"),
        ({"bounds": ([0, 1], [1, 2])}, None, "3 numbers, one per column"),
        ({"bounds": (0, 1e200)}, None, "at most 1e100"),
        ({}, lambda X: np.where(X > 1, np.inf, X), "public constants"),
        ({}, lambda X: X[:0], "0 sample"),
        ({}, lambda X: X[:, 0], "Reshape your data"),
        (
            {},
            lambda X: X.astype(object) + "secret" if False else [["secret"] * 3] * 5,
            "not a number",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_spent(build, rng, options, change, message):
    X = 3 * rng.normal(size=(60, 3))
    ledger = Ledger(budget=Budget(100.0, 1e-5))
    model = build(ledger=ledger)
    if isinstance(model, PrivatePipeline) and "bounds" in options:
        options = {"steps": [("bounds", PrivateBounds(**options))]}
    with pytest.raises(ValueError, match=message) as caught:
        model.set_params(**options).fit(X if change is None else change(X))
    assert isinstance(caught.value, (DataError, ParameterError))
    assert "secret" not in str(caught.value)
    assert ledger.spends == []


def test_only_the_imputer_takes_missing_values(build, rng):
    X = rng.normal(size=(60, 2))
    X[3, 1] = np.nan
    if isinstance(build(), PrivateImputer):
        assert np.isfinite(build().fit_transform(X)).all()
        return
    ledger = Ledger(budget=Budget(100.0, 1e-5))
    with pytest.raises(DataError, match="public constants"):
        build(ledger=ledger).fit(X)
    assert ledger.spends == []


HARD = {
    "constant": np.full((300, 2), 7.0),
    "zero": np.zeros((300, 2)),
    "one row": np.array([[3.0, -2.0]]),
    "outliers": np.vstack([np.full((299, 2), 7.0), [[1e308, -1e308]]]),
    "denormal": np.full((300, 2), 5e-324),
    "at the ends": np.array([[1000.0, -1000.0]] * 300),
}


@pytest.mark.parametrize("case", HARD)
def test_hard_tables_neither_fail_nor_warn(build, case, caplog):
    X, texts = HARD[case], []
    with warnings.catch_warnings(), caplog.at_level(logging.DEBUG, logger="dpkernel"):
        warnings.simplefilter("error")
        for table in (X, 0 * np.clip(X, -1, 1)):
            caplog.clear()
            model = build().fit(table)
            texts.append(caplog.text)
    assert texts[0] == texts[1]
    numbers = released(model.fit(X))
    assert np.isfinite(numbers).all() and np.isfinite(model.transform(X)).all()
    assert model.transform(X).shape[1] == 2  # no column is dropped
    if not isinstance(model, PrivatePCA):
        assert np.abs(numbers).max() <= 1000.0


def test_fitted_ones_pickle_and_hold_no_data(build, rng):
    X = rng.normal(size=(50, 2))
    model = build().fit(X)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    known = {"bounds_", "y_bounds_", "mean_", "scale_", "statistics_", "missing_", "components_"}
    known |= {"explained_variance_", "certificate_", "n_features_in_", "_domain", "steps_"}
    assert set(vars(model)) - set(model.get_params(deep=False)) <= known
    with pytest.raises(NotFittedError):
        build().transform(X)


def test_docstrings_have_the_promised_parts(build):
    text = inspect.getdoc(type(build()))
    for section in ("Parameters", "Attributes", "Notes", "References", "Examples"):
        assert f"{section}\n{'-' * len(section)}\n" in text
    for term in ("Guarantee", "Sensitivity"):
        assert f"\n{term}\n    " in text


# --- what they find -------------------------------------------------------------------------------


@pytest.fixture
def raw(rng):
    """Columns on wild scales: far from zero, tiny, skewed, binary."""
    n = 8000
    return np.column_stack(
        [
            rng.normal(1000, 8, n),
            rng.normal(0, 0.002, n),
            np.exp(rng.normal(5, 1, n)),
            rng.uniform(size=n) < 0.3,
        ]
    )


RANGE = (-1e6, 1e6)


def test_bounds_hold_most_of_a_column_and_little_more(raw, seed):
    found = PrivateBounds(1.0, bounds=RANGE, noise=SeededNoise(seed)).fit(raw)
    low, high = found.bounds_
    inside = np.mean((raw >= low) & (raw <= high), axis=0)
    assert inside.min() > 0.85 and inside[3] == 1.0
    width = (high - low) / raw.std(axis=0)
    assert width.max() < 20
    np.testing.assert_array_equal(found.transform(raw), np.clip(raw, low, high))
    # they are what an estimator takes
    PrivateKernelRidge(bounds=found.bounds_, y_bounds=(-1, 1)).fit(raw, raw[:, 3])


def test_a_target_is_one_more_column_of_the_same_releases(raw, seed):
    X, y = raw[:, 1:], raw[:, 0]
    found = PrivateBounds(1.0, bounds=RANGE, y_range=RANGE, noise=SeededNoise(seed)).fit(X, y)
    low, high = found.y_bounds_
    assert low < np.quantile(y, 0.02) and np.quantile(y, 0.98) < high and high - low < 300
    assert dict(found.certificate_.releases[0].mechanism.sensitivity.parameters)["columns"] == 4
    assert len(found.bounds_[0]) == 3
    with pytest.raises(DataError, match="needs y"):
        PrivateBounds(bounds=RANGE, y_range=RANGE).fit(X)
    with pytest.raises(ParameterError, match="'y_range'.*must be one pair.*as 'y_bounds' of the"):
        PrivateBounds(bounds=RANGE, y_range=[RANGE, (0, 1)]).fit(X, np.column_stack([y, y]))
    with pytest.raises(DataError, match="one finite number per row"):
        PrivateBounds(bounds=RANGE, y_range=RANGE).fit(X, np.where(y > 1000, np.nan, y))


def test_min_max_scaling_stays_in_its_range(raw, seed):
    scaler = PrivateMinMaxScaler(
        1.0, bounds=RANGE, feature_range=(-1.0, 3.0), noise=SeededNoise(seed)
    ).fit(raw)
    out = scaler.transform(np.vstack([raw, 1e9 * np.ones((1, 4))]))
    assert out.min() >= -1 and out.max() <= 3
    assert out[:-1].std(axis=0).min() > 0.1
    np.testing.assert_allclose(
        scaler.inverse_transform(out[:-1]), np.clip(raw, *scaler.bounds_), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
def test_scales_with_many_rows_are_those_of_clipped_values(raw, seed, relation):
    scaler = PrivateStandardScaler(
        3.0, bounds=RANGE, neighbours=relation, noise=SeededNoise(seed)
    ).fit(raw)
    labels = [release.label for release in scaler.certificate_.releases]
    assert labels == ["coarse histograms", "fine histograms", "sums of values and squares"]
    ratio = scaler.scale_ / raw.std(axis=0)
    assert np.all((ratio > 0.6) & (ratio < 1.5)), ratio
    assert np.all(np.abs(scaler.mean_ - raw.mean(axis=0)) < raw.std(axis=0))
    np.testing.assert_allclose(scaler.inverse_transform(scaler.transform(raw)), raw, atol=1e-9)


def test_scales_with_few_rows_are_within_a_factor_of_two(rng, seed):
    X = rng.normal(20.0, [1.0, 3.0, 9.0, 27.0], (800, 4))
    found = [
        PrivateStandardScaler(1.0, bounds=(-1e5, 1e5), noise=SeededNoise(seed + i)).fit(X)
        for i in range(5)
    ]
    assert len(found[0].certificate_.releases) == 2  # too few rows for sums to be worth it
    ratio = np.array([scaler.scale_ for scaler in found]) / X.std(axis=0)
    assert np.mean((ratio > 0.5) & (ratio < 2)) >= 0.9


def test_outliers_do_not_move_a_scale(rng, seed):
    X = rng.normal(50.0, 5.0, (10_000, 1))
    X[:20] = 1e6
    scaler = PrivateStandardScaler(1.0, bounds=RANGE, noise=SeededNoise(seed)).fit(X)
    assert 4 < scaler.scale_[0] < 8 and abs(scaler.mean_[0] - 50) < 2


@pytest.mark.parametrize("strategy", ["median", "mean"])
def test_missing_values_get_the_centre_of_their_column(raw, seed, strategy):
    X = raw[:, :3].copy()
    X[::4, 0], X[:, 2] = np.nan, np.nan
    imputer = PrivateImputer(2.0, strategy=strategy, bounds=RANGE, noise=SeededNoise(seed)).fit(X)
    np.testing.assert_allclose(imputer.missing_, [0.25, 0.0, 1.0], atol=0.05)
    assert abs(imputer.statistics_[0] - 1000) < 10
    assert imputer.statistics_[2] == 0.0  # nothing is there: the public value nearest to 0
    out = imputer.transform(X)
    assert np.all(out[::4, 0] == imputer.statistics_[0])
    np.testing.assert_array_equal(out[1::4, 0], X[1::4, 0])


def test_components_are_those_of_the_scaled_columns(rng, seed):
    X = (
        rng.uniform(-1, 1, (20_000, 2))
        @ np.array([[1.0, 0.9, 0.0, 0.1], [0.0, 0.1, 0.5, -0.4]])
        / 2
    )
    pca = PrivatePCA(2, 5.0, bounds=(-1, 1), noise=SeededNoise(seed)).fit(X)
    plain = PCA(2).fit(X)
    overlap = np.abs(np.sum(pca.components_ * plain.components_, axis=1))
    assert overlap.min() > 0.98
    np.testing.assert_allclose(pca.explained_variance_, plain.explained_variance_, rtol=0.1)
    assert np.abs(pca.inverse_transform(pca.transform(X)) - X).mean() < 0.05
    assert list(pca.get_feature_names_out()) == ["privatepca0", "privatepca1"]
    with pytest.raises(ParameterError, match="an int from 1 to 4"):
        PrivatePCA(5, bounds=(-1, 1)).fit(X)


def test_length_scales(rng, seed):
    assert public_length_scale(4) == pytest.approx(1.4)
    X = rng.uniform(-1, 1, (20_000, 4))
    scaler = PrivateStandardScaler(10.0, bounds=(-1, 1), noise=SeededNoise(seed)).fit(X)
    assert released_length_scale(scaler, (-1, 1)) == pytest.approx(1.4, rel=0.1)
    wider = released_length_scale(scaler, (-2, 2), per_column=True)
    np.testing.assert_allclose(wider, 0.7, rtol=0.15)
    pca = PrivatePCA(None, 10.0, bounds=(-1, 1), noise=SeededNoise(seed)).fit(X)
    assert released_length_scale(pca, (-1, 1)) == pytest.approx(1.4, rel=0.1)
    with pytest.raises(ParameterError, match="an int >= 1"):
        public_length_scale(0)


# --- declared categories --------------------------------------------------------------------------


def test_levels_are_declared_and_the_rest_is_other():
    frame = pd.DataFrame({"town": ["A", "B", None, "Z"], "age": [1.0, 2.0, 3.0, 4.0]})
    encoder = DeclaredCategories({"town": ["A", "B"]}).fit(frame)
    expected = [[1, 0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 3], [0, 0, 1, 4]]
    np.testing.assert_array_equal(encoder.transform(frame), expected)
    assert list(encoder.get_feature_names_out()) == ["town_A", "town_B", "town_other", "age"]
    fewer = DeclaredCategories([["A", "B"], None], other=False).fit(frame)
    np.testing.assert_array_equal(fewer.transform(frame)[:, :2].sum(axis=1), [1, 1, 0, 0])
    codes = DeclaredCategories([[1, 2]]).fit_transform(np.array([[2], [3]]))
    np.testing.assert_array_equal(codes, [[0, 1, 0], [0, 0, 1]])


def test_bad_levels_are_refused():
    frame = pd.DataFrame({"town": ["A", "secret"]})
    with pytest.raises(DataError, match="no column named 'city'"):
        DeclaredCategories({"city": ["A"]}).fit(frame)
    with pytest.raises(ParameterError, match="a list of 1 lists"):
        DeclaredCategories([["A"], ["B"]]).fit(frame)
    with pytest.raises(ParameterError, match="one list of levels per column"):
        DeclaredCategories(["A"]).fit(frame)
    with pytest.raises(ParameterError, match="different values"):
        DeclaredCategories([["A", "A"]]).fit(frame)
    with pytest.raises(DataError, match="Column 0 of X") as caught:
        DeclaredCategories().fit(frame).transform(frame)
    assert "secret" not in str(caught.value) and caught.value.__context__ is None


# --- pipelines ------------------------------------------------------------------------------------


@pytest.fixture
def study(rng):
    X = rng.normal([100.0, 0.01], [15.0, 0.004], (3000, 2))
    return X, (X[:, 0] - 100) / 15 + (X[:, 1] > 0.01)


def steps_to(model, **options):
    first = PrivateBounds(bounds=RANGE, **options)
    return [("bounds", first), ("model", model)]


MODELS = {
    "ridge": (lambda: PrivateKernelRidge(), True),
    "regressor": (lambda: PrivateKernelRegressor(), True),
    "quantile": (lambda: PrivateQuantileRegressor(), True),
    "huber": (lambda: PrivateHuberRegressor(), True),
    "sgd": (lambda: PrivateSGDRegressor(max_iter=1), True),
    "classifier": (lambda: PrivateKernelClassifier(classes=[0, 1]), False),
}


@pytest.mark.parametrize("name", MODELS)
def test_one_spend_and_one_certificate_for_all_steps(study, name, seed):
    X, y = study
    make, real = MODELS[name]
    y = y if real else (y > 0.5).astype(int)
    options = {"y_range": RANGE} if real else {}
    ledger = Ledger(budget=Budget(3.0, 1e-6))
    pipeline = PrivatePipeline(steps_to(make(), **options), 3.0, ledger=ledger).fit(X, y)
    certificate = Certificate.from_json(pipeline.certificate_.to_json())
    assert certificate == pipeline.certificate_
    assert certificate.private and certificate.valid
    assert 2.4 < certificate.verify().epsilon <= certificate.epsilon <= 3.0
    listed = sum(len(step.certificate_.releases) for _, step in pipeline.steps_)
    assert len(certificate.releases) == listed
    assert {r.label.split(": ")[0] for r in certificate.releases} == {"bounds", "model"}
    assert len(ledger.spends) == 1 and ledger.spends[0].state == "drawn"
    seeded = clone(pipeline).set_params(ledger=None, noise=SeededNoise(seed)).fit(X, y)
    assert not seeded.certificate_.private
    assert seeded.score(X, y) > (-1.0 if name == "sgd" else 0.3)  # one pass is few
    again = pickle.loads(pickle.dumps(seeded))
    np.testing.assert_array_equal(again.predict(X), seeded.predict(X))


def test_a_full_ledger_refuses_the_whole_pipeline(study):
    X, y = study
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    pipeline = PrivatePipeline(steps_to(PrivateKernelRidge(), y_range=RANGE), 1.5, ledger=ledger)
    with pytest.raises(BudgetExceededError, match="Nothing was spent"):
        pipeline.fit(X, y)
    assert ledger.spends == []


def test_what_the_last_step_refuses_is_refused_before_the_first_spends(study):
    X, y = study
    ledger = Ledger(budget=Budget(10.0, 1e-5))
    for model, message in (
        (PrivateKernelRidge(kernel="no such"), "'kernel' parameter"),
        (PrivateKernelRidge(), "needs 'y_bounds'"),
    ):
        with pytest.raises(ParameterError, match=message):
            PrivatePipeline(steps_to(model), 1.0, ledger=ledger).fit(X, y)
    assert ledger.spends == []


def test_a_step_that_fails_after_the_spend_says_so(study):
    X, _ = study

    def burst(table):
        if np.ptp(table) > 0:
            raise ValueError(f"{table[0, 0]} is a value")
        return table

    class Late(PrivateBounds):
        def transform(self, X):
            return burst(super().transform(X))

    ledger = Ledger(budget=Budget(10.0, 1e-5))
    steps = [("late", Late(bounds=RANGE)), ("scale", PrivateMinMaxScaler())]
    with pytest.raises(DataError, match="'late' failed after the budget.*stays spent") as caught:
        PrivatePipeline(steps, 1.0, ledger=ledger).fit(X)
    assert "is a value" not in str(caught.value) and caught.value.__context__ is None
    assert len(ledger.spends) == 1


def test_weights_move_the_budget_and_steps_stay_as_they_are(study):
    X, y = study
    first, last = PrivateBounds(bounds=RANGE, y_range=RANGE), PrivateKernelRidge()
    pipeline = PrivatePipeline([("bounds", first), ("model", last)], 2.0)
    even = clone(pipeline).set_params(weights={"bounds": 1.0}).fit(X, y)
    usual = pipeline.fit(X, y)
    spent = [[step.certificate_.epsilon for _, step in model.steps_] for model in (usual, even)]
    assert spent[0][0] < spent[1][0] == pytest.approx(spent[1][1])
    mus = [release.mechanism.profile().mu for release in even.certificate_.releases]
    assert math.hypot(*mus) == pytest.approx(even.certificate_.profile.mu)
    assert not hasattr(first, "bounds_") and last.bounds is None and last.epsilon == 1.0
    assert usual.named_steps_["model"].y_bounds == usual.named_steps_["bounds"].y_bounds_
    with pytest.raises(ParameterError, match="'weights' parameter"):
        clone(pipeline).set_params(weights={"nobody": 1.0}).fit(X, y)
    with pytest.raises(ParameterError, match="'weights' parameter"):
        clone(pipeline).set_params(weights={"bounds": -1.0}).fit(X, y)


BAD_STEPS = {
    "learns": (
        [("s", StandardScaler()), ("b", PrivateBounds(bounds=RANGE))],
        "may learn from the data",
    ),
    "last": ([("b", PrivateBounds(bounds=RANGE)), ("s", FunctionTransformer())], "last step, 's'"),
    "names": ([("b", PrivateBounds()), ("b", PrivateBounds())], "different names"),
    "none": ([], "pairs"),
    "text": ("bounds", "pairs"),
    "own name": ([("epsilon", PrivateBounds())], "not names of parameters"),
    "no transformer": (
        [("m", PrivateKernelRidge()), ("b", PrivateBounds(bounds=RANGE))],
        "must be a transformer",
    ),
    "ledger": ([("b", PrivateBounds(bounds=RANGE, ledger=Ledger()))], "a ledger of its own"),
    "noise": ([("b", PrivateBounds(bounds=RANGE, noise=SeededNoise(0)))], "a noise of its own"),
}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_steps_that_would_leak_or_make_no_sense_are_refused(study, case):
    steps, message = BAD_STEPS[case]
    with pytest.raises(ParameterError, match=message):
        PrivatePipeline(steps, 1.0).fit(*study)


def test_steps_that_learn_nothing_are_free(study, seed):
    X, y = study
    frame = pd.DataFrame({"group": np.where(X[:, 1] > 0.01, "a", "b"), "size": X[:, 0]})
    steps = [
        ("levels", DeclaredCategories({"group": ["a", "b"]})),
        ("same", "passthrough"),
        ("copy", FunctionTransformer()),
        ("fill", PrivateImputer(bounds=RANGE)),
        ("bounds", PrivateBounds(y_range=RANGE)),  # the range is that of the step before
        ("model", PrivateKernelRidge()),
    ]
    pipeline = PrivatePipeline(steps, 5.0, noise=SeededNoise(seed)).fit(frame, y)
    assert pipeline.score(frame, y) > 0.5 and pipeline.n_features_in_ == 2
    labels = {r.label.split(": ")[0] for r in pipeline.certificate_.releases}
    assert labels == {"fill", "bounds", "model"}
    assert list(pipeline.feature_names_in_) == ["group", "size"]


class Own(Normalizer):
    pass


class Lying(TransformerMixin, BaseEstimator):
    """Says that it learns nothing, and learns."""

    def fit(self, X, y=None):
        self.mean_ = np.mean(X, axis=0)
        return self

    def transform(self, X):
        return X - self.mean_

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


def sqrt(table):
    """Has the name of a function that is listed."""
    return table - np.mean(table, axis=0)


NOT_FREE = {
    "own": (Own(), r"'free' \(Own\) may learn from the data"),
    "tagged": (Lying(), r"\(Lying\) may learn"),
    "dummies": (FunctionTransformer(pd.get_dummies), "'free' is not one of NumPy's functions"),
    "mean": (
        FunctionTransformer(lambda X: X - X.mean(axis=0)),
        "apply it to the table, row by row",
    ),
    "name alone": (FunctionTransformer(sqrt), "not one of NumPy's functions"),
    "of columns": (FunctionTransformer(np.cumsum), "not one of NumPy's functions"),
    "inverse": (FunctionTransformer(np.exp, inverse_func=sqrt), "not one of NumPy's functions"),
    "where": (FunctionTransformer(np.exp, kw_args={"where": [1, 0]}), "has arguments for its"),
    "names": (FunctionTransformer(np.exp, feature_names_out=sqrt), "a function for names"),
    "inner": (make_pipeline(FunctionTransformer()), r"\(Pipeline\) may learn"),
    "text": ("drop", r"\(str\) may learn"),
}


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("case", NOT_FREE)
def test_only_listed_steps_are_free(study, case, place):
    """Trying can't find out what learns or mixes rows, so all that is not listed is refused."""
    step, message = NOT_FREE[case]
    steps, ledger = steps_to(PrivateMinMaxScaler()), Ledger()
    steps.insert(place, ("free", step))
    with pytest.raises(ParameterError, match=message):
        PrivatePipeline(steps, 1.0, ledger=ledger).fit(study[0])
    assert ledger.spends == []


LISTED = {
    **{name: FunctionTransformer(getattr(np, name)) for name in FUNCTIONS},
    "norm": Normalizer("l1"),
    "binary": Binarizer(threshold=0.1),
    "products": PolynomialFeatures((2, 3), include_bias=False),
}
ODD = (1e308, -1e308, 5e-324, 0.0, -0.5, 1e6, 800.0)


@pytest.mark.parametrize("name", LISTED)
def test_listed_steps_make_each_row_of_that_row_alone(name, rng):
    """Not a bit of the others changes with a row, and nothing that comes out is not finite."""
    X = rng.normal(0, 3, (37, 2))
    ready, base = through_free_step("free", LISTED[name], X, spent=True)
    assert np.isfinite(base).all()
    for value in ODD:
        other = X.copy()
        other[17] = value
        again, found = through_free_step("free", LISTED[name], other, spent=True)
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(np.delete(found, 17, 0), np.delete(base, 17, 0))
        learned = {k: v for k, v in vars(again).items() if k not in again.get_params()}
        assert learned == {k: v for k, v in vars(ready).items() if k not in ready.get_params()}


def test_free_steps_are_not_fitted_to_rows(rng):
    seen = []

    def fit(self, X, y=None):
        seen.append(np.array(X))
        return original(self, X, y)

    original = FunctionTransformer.fit
    X = rng.uniform(1, 9, (50, 2))
    steps = [("log", FunctionTransformer(np.log)), ("bounds", PrivateBounds(bounds=WIDE))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FunctionTransformer, "fit", fit)
        PrivatePipeline(steps, 10.0).fit(X)
    assert seen and all(np.ptp(table) == 0 and len(table) == 2 for table in seen)


@pytest.mark.parametrize("value", [-0.5, 0.0, 1e308])
def test_one_row_does_not_make_a_pipeline_fail_after_the_spend(rng, value):
    """What a free step makes of it that is not finite counts as 0."""
    X = rng.uniform(0.5, 20, (600, 1))
    X[5] = value
    steps = [
        ("bounds", PrivateBounds(bounds=WIDE)),
        ("log", FunctionTransformer(np.log)),
        ("more", PolynomialFeatures(2)),
        ("root", FunctionTransformer(np.sqrt)),
        ("model", PrivateKernelRidge(bounds=(0, 10), y_bounds=(0, 30), n_features=8)),
    ]
    model = PrivatePipeline(steps, 1.0).fit(X, X[:, 0])
    assert np.isfinite(model.predict(X)).all()
    front = PrivatePipeline(steps[1:], 1.0).fit(X, X[:, 0])
    assert np.isfinite(front.predict([[value]])).all()


def test_missing_values_go_through_a_function_to_the_imputer(rng):
    X = rng.uniform(1, 9, (400, 2))
    X[::3, 0], X[1, 1] = np.nan, -1.0
    log = FunctionTransformer(np.log)
    found = through_free_step("log", log, X, spent=False)[1]
    assert np.array_equal(np.isnan(found), np.isnan(X)) and found[1, 1] == 0
    steps = [("log", log), ("fill", PrivateImputer(bounds=(-10, 10)))]
    assert np.isfinite(PrivatePipeline(steps, 10.0).fit(X).transform(X)).all()
    with pytest.raises(DataError, match="'norm' failed .*NaN or infinity.*Nothing was spent"):
        PrivatePipeline([("norm", Normalizer()), steps[1]], 10.0).fit(X)


def test_sparse_tables_through_free_steps(rng):
    """By the numbers that they hold: NumPy would multiply sparse matrices for ``np.square``."""
    X = np.where(rng.random((30, 30)) < 0.2, rng.normal(size=(30, 30)), 0.0)
    table = sparse.csr_matrix(X)
    for name in ("square", "sqrt", "norm", "products"):
        dense = through_free_step("free", LISTED[name], X, spent=False)[1]
        found = through_free_step("free", LISTED[name], table, spent=False)[1]
        np.testing.assert_allclose(found.toarray(), dense, rtol=1e-12)
    with pytest.raises(DataError, match="does not map 0 to 0"):
        through_free_step("free", LISTED["exp"], table, spent=False)


def test_free_steps_refuse_in_own_words():
    text = pd.DataFrame({"a": ["secret", "b"], "b": [1.0, 2.0]})
    steps = [("log", FunctionTransformer(np.log)), ("bounds", PrivateBounds(bounds=WIDE))]
    with pytest.raises(DataError, match="'log' failed.*not a number.*Nothing was spent") as caught:
        PrivatePipeline(steps, 10.0).fit(text)
    assert "secret" not in str(caught.value) and caught.value.__context__ is None
    steps[0] = ("more", PolynomialFeatures((3, 2)))
    with pytest.raises(DataError, match="'more' can't be fitted: degree"):
        PrivatePipeline(steps, 10.0).fit(np.ones((9, 2)))
    named = pd.DataFrame(np.ones((9, 2)), columns=["a", "b"])
    same = [("same", FunctionTransformer()), ("levels", DeclaredCategories({"a": [1.0]})), steps[1]]
    fitted = PrivatePipeline(same, 10.0).fit(named)
    assert list(fitted.feature_names_in_) == ["a", "b"]
    with pytest.raises(DataError, match="feature names should match"):
        fitted.transform(named[["b", "a"]])


def burst(kind, X):
    raise ValueError(f"{X[0, 0]} is a value")


@pytest.mark.parametrize(("place", "cost"), [(0, "Nothing was spent"), (1, "was spent before")])
def test_words_of_free_steps_stay_inside(rng, place, cost):
    """Whatever fails inside of them, before the spend and after it."""
    X, ledger = rng.uniform(0, 100, (400, 2)), Ledger()
    steps = steps_to(PrivateMinMaxScaler(bounds=WIDE))
    steps.insert(place, ("norm", Normalizer()))
    original = Normalizer.transform

    def transform(self, X, copy=None):
        warnings.warn(f"the first entry is {X[0, 0]}", stacklevel=1)
        return burst(self, X) if len(X) == 400 else original(self, X)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(Normalizer, "transform", transform)
        with pytest.raises(DataError, match=rf"'norm' failed .*ValueError.*{cost}") as caught:
            PrivatePipeline(steps, 1.0, ledger=ledger).fit(X)
    assert "is a value" not in str(caught.value) and caught.value.__context__ is None
    assert len(ledger.spends) == place


def test_rows_that_a_fit_of_the_users_own_refuses_cost_nothing():
    class Mine(PrivateKernelRidge):
        def fit(self, X, y=None, groups=None):
            if X[0, 0] > 0.9:
                raise ValueError("a row")
            return super().fit(X, y)

    X = np.linspace(-0.8, 0.8, 400).reshape(200, 2)
    y = X[:, 0].copy()
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    steps = [("model", Mine(bounds=(-1, 1), y_bounds=(-1, 1)))]
    pipeline = PrivatePipeline(steps, 1.0, ledger=ledger)
    assert pipeline.fit(X, y).certificate_.private and len(ledger.spends) == 1
    X[0, 0] = 1.0
    with pytest.raises(ValueError, match="a row"):
        pipeline.fit(X, y)
    assert len(ledger.spends) == 1


@pytest.mark.parametrize(
    ("strategy", "accounting"),
    [
        ("exponential", "auto"),
        ("exponential", "gaussian"),
        ("random-stopping", "auto"),
        ("random-stopping", "gaussian"),
        ("free", "auto"),
    ],
)
def test_a_search_is_the_last_step_of_a_pipeline(study, strategy, accounting):
    """From raw columns to a chosen model under one budget."""
    X, y = study
    grid = {"regularisation": [1.0, 100.0]} if strategy == "free" else {"length_scale": [0.3, 1.0]}
    search = PrivateSearchCV(PrivateKernelRidge(n_features=16), grid, strategy=strategy)
    steps = [("bounds", PrivateBounds(bounds=RANGE, y_range=RANGE)), ("search", search)]
    ledger = Ledger(budget=Budget(5.0, 1e-6), accounting=accounting)
    pipeline = PrivatePipeline(steps, 5.0, ledger=ledger, neighbours="replace-one")
    if strategy == "random-stopping" and accounting == "gaussian":
        with pytest.raises(LedgerError):  # its law has no mu
            pipeline.fit(X, y)
        assert ledger.spends == []
        return
    pipeline.fit(X, y)
    certificate = pipeline.certificate_
    assert certificate.private and 3.5 < certificate.verify().epsilon <= 5.0
    assert len(ledger.spends) == 1 and ledger.spends[0].state == "drawn"
    if strategy != "random-stopping":  # which stops on the worst candidate now and then
        assert pipeline.score(X, y) > 0.3
    chosen = pipeline.named_steps_["search"]
    assert chosen.best_params_ in [{name: v} for name, values in grid.items() for v in values]
    assert chosen.best_estimator_.ledger is None and search.estimator.bounds is None
    again = pickle.loads(pickle.dumps(pipeline.set_params(ledger=None)))
    np.testing.assert_array_equal(again.predict(X[:5]), pipeline.predict(X[:5]))
    own = PrivateSearchCV(PrivateKernelRidge(ledger=Ledger()), grid)
    with pytest.raises(ParameterError, match="'search' has a ledger of its own"):
        PrivatePipeline([steps[0], ("search", own)]).fit(X, y)


def test_a_refused_candidate_in_a_pipeline_is_told_of_once(study):
    search = PrivateSearchCV(PrivateKernelRidge(n_features=8), {"length_scale": [0.3, 1.0, -1.0]})
    steps = steps_to(search, y_range=RANGE)
    steps.insert(1, ("pca", PrivatePCA(1)))
    with pytest.warns(UserWarning, match="1 of 3 candidates are refused") as caught:
        PrivatePipeline(steps, 5.0).fit(*study)
    assert len(caught) == 1


def test_dimension_reduction_in_a_pipeline(study, seed):
    X, y = study
    steps = [
        ("scale", PrivateMinMaxScaler(bounds=RANGE, feature_range=(-1.0, 1.0))),
        ("pca", PrivatePCA(1)),
        ("model", PrivateKernelRidge(y_bounds=(-5, 5))),
    ]
    pipeline = PrivatePipeline(steps, 5.0, noise=SeededNoise(seed)).fit(X, y)
    assert pipeline.named_steps_["model"].n_features_in_ == 1
    assert pipeline.predict(X).shape == (3000,)
    inner = make_pipeline(FunctionTransformer(), PrivateStandardScaler(bounds=RANGE))
    assert inner.fit_transform(X).shape == X.shape  # they live in scikit-learn's pipelines, too


def test_a_reserved_step_draws_its_own_noise_once():
    moved = column_histograms(Neighbours.REPLACE_ONE, columns=1)
    one, two = (Gaussian.calibrate(moved, Budget(e, 1e-6), dimension=1) for e in (1.0, 2.0))
    plans = {name: Plan((Part("x", m.profile()),)) for name, m in (("a", one), ("b", two))}
    ledger = Ledger(budget=Budget(3.0, 1e-5))
    steps, whole = ledger.reserve(plans, "both", claim=Budget(3.0, 1e-5))
    assert len(ledger.spends) == 1 and [p.label for p in whole.plan.parts] == ["a: x", "b: x"]
    with pytest.raises(NoiseError, match="drawn already"):
        one.release(np.zeros(1), whole)
    with pytest.raises(LedgerError, match="other releases than those reserved"):
        steps["a"].spend(two.profile(), "x")
    noise = steps["a"].spend(one.profile(), "x")
    one.release(np.zeros(1), noise)
    with pytest.raises(NoiseError, match="drawn already"):
        one.release(np.zeros(1), noise)
    with pytest.raises(LedgerError, match="or asks a second time"):
        steps["a"].spend(one.profile(), "x")
    with pytest.raises(LedgerError, match="can't be pickled"):
        pickle.dumps(steps["b"])
    assert len(ledger.spends) == 1
    unproved = Plan(plans["a"].parts, nothing_proved=True)
    assert Plan.joined({"a": unproved, "b": plans["b"]}).nothing_proved


def test_a_search_asks_for_no_more_than_its_budget():
    for n, relation in itertools.product((1, 10**5), RELATIONS):
        search = ColumnSearch([Interval(-1, 1)] * 3, n, Budget(1, 1e-6), relation, moments=True)
        mus = [release.mechanism.profile().mu for release in search.releases]
        assert len(mus) == (2 if n == 1 else 3)
        plan = Plan(tuple(Part(r.label, r.mechanism.profile()) for r in search.releases))
        assert plan.profile.supports(Budget(1, 1e-6))
