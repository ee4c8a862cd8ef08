"""``fit(X, y, groups=ids)``: the unit is a person with any number of rows."""

from __future__ import annotations

import datetime
import json
import logging
import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold

from dpkernel import (
    BlockStream,
    Budget,
    Domain,
    Interval,
    Ledger,
    People,
    PrivateKernelRidge,
    SeededNoise,
    load,
    save,
)
from dpkernel.data.people import open_units, unit_shares
from dpkernel.estimators.gram_pass import sum_units, unit_layout
from dpkernel.foundations.errors import CertificateError, DataError, ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.models.features import FourierFeatures, PublicNystroem
from dpkernel.outputs.report import write_report
from dpkernel.privacy.certificate import Certificate

HUGE = 1e12


def build(**options):
    return PrivateKernelRidge(**{"bounds": (-1, 1), "y_bounds": (-2, 2), **options})


def table(units, rng):
    """Return X, y and ids of units with these numbers of rows, in mixed order."""
    ids = np.repeat(np.arange(len(units)), units)
    rng.shuffle(ids)
    X = rng.uniform(-1, 1, (len(ids), 3))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1], ids


@pytest.fixture
def data(rng):
    return table(rng.integers(1, 8, 200), rng)


# --- the model ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fourier", "eigen", "projection", "polynomial"])
def test_large_epsilon_equals_ridge_with_weights(data, kind):
    X, y, ids = data
    kernel = "polynomial" if kind == "polynomial" else "gaussian"
    model = build(
        epsilon=HUGE, features=kind, kernel=kernel, n_features=40, regularisation=0.1
    ).fit(X, y, groups=ids)
    rows = model.feature_map_.transform(X)
    scale = np.ones(rows.shape[1])
    if kind == "eigen":
        scale = (model.feature_map_.spectrum / model.feature_map_.spectrum[0]) ** 0.25
    rows = np.hstack([rows * scale, np.full((len(X), 1), 0.5 * model.feature_map_.row_norm_bound)])
    weights = 1 / np.bincount(ids)[ids]
    plain = Ridge(alpha=0.1, fit_intercept=False).fit(rows, y / 2, sample_weight=weights)
    np.testing.assert_allclose(model.predict(X), 2 * plain.predict(rows), atol=1e-3)
    free = model.certificate_.free_statistics
    error = np.average((model.predict(X) - y) ** 2, weights=weights)
    assert free["training_mse"][0] == pytest.approx(error, rel=0.01, abs=1e-4)


def test_one_row_a_unit_is_a_fit_without_groups(rng):
    X, y, ids = table(np.ones(500, int), rng)
    options = {"epsilon": HUGE, "n_features": 30, "regularisation": 0.1}
    units, rows = build(**options).fit(X, y, groups=ids), build(**options).fit(X, y)
    np.testing.assert_allclose(units.predict(X), rows.predict(X), atol=1e-4)
    private = [build().fit(X, y, groups=ids), build().fit(X, y)]
    scales = [
        np.sqrt(m.certificate_.releases[0].mechanism.sensitivity.value)
        / m.certificate_.releases[0].mechanism.sensitivity.parameters[0][1]
        for m in private
    ]
    assert scales[0] == pytest.approx(scales[1], rel=1e-5)  # one sensitivity, in units of the rows
    assert private[0].feature_map_.n_outputs == private[1].feature_map_.n_outputs


def test_repeated_rows_and_their_order_do_not_matter(data, rng):
    X, y, ids = data
    order = np.tile(rng.permutation(len(X)), 3)
    models = [
        build(noise=SeededNoise(1)).fit(X[i], y[i], groups=ids[i])
        for i in (slice(None), order, np.arange(len(X))[::-1])
    ]
    for model in models[1:]:
        np.testing.assert_allclose(model.coef_, models[0].coef_, atol=1e-6)


def test_several_targets_and_data_frames(data):
    X, y, ids = data
    both = np.stack([y, -y], axis=1)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = build(epsilon=HUGE).fit(frame, both, groups=pd.Series(ids, index=ids))
    assert model.predict(frame).shape == both.shape
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert np.mean((model.predict(frame) - both) ** 2) < 0.05


@pytest.mark.parametrize("form", [sparse.csr_array, sparse.coo_matrix, "frame"])
def test_sparse_tables(data, form):
    X, y, ids = data
    X = np.where(X > 0, X, 0.0)
    kind = pd.SparseDtype(float, 0.0)
    table = pd.DataFrame(X).astype(kind) if form == "frame" else form(X)
    models = [build(noise=SeededNoise(2)).fit(t, y, groups=ids) for t in (X, table)]
    np.testing.assert_allclose(models[1].coef_, models[0].coef_, atol=1e-6)


def test_features_are_in_double_precision_whatever_the_table(data, monkeypatch):
    seen = set()
    plain = FourierFeatures.transform_block

    def spy(self, X):
        seen.add(X.dtype)
        return plain(self, X)

    monkeypatch.setattr(FourierFeatures, "transform_block", spy)
    monkeypatch.setattr("dpkernel.estimators.ridge._FLOAT32_FROM", 1)
    X, y, ids = data
    build(features="fourier").fit(X.astype(np.float32), y, groups=ids)
    assert seen == {np.dtype(np.float64)}


# --- privacy --------------------------------------------------------------------------------


def unit_sum(X, y, ids, kind="eigen", neighbours=Neighbours.REPLACE_ONE):
    """Return the un-noised sum as a fit computes it, and its layout."""
    model = build(features=kind, n_features=12, kernel="linear" if kind == "linear" else "gaussian")
    source = open_units(model, X, y, ids)
    domain = model._resolve_domain(source, Interval(-2, 2))
    features = model._choose_features(domain, source, 12)
    layout = unit_layout("fit", features, domain, 1, neighbours, source.n_rows)
    statistics = sum_units(source, domain, features, layout)
    return statistics._total(), layout


@pytest.mark.parametrize("kind", ["eigen", "fourier", "linear"])
def test_replacing_a_unit_stays_within_sensitivity_and_rounding(kind, rng):
    """All its rows, their number and their places; also rows far outside and at the corners."""
    X, y, ids = table([3, 1, 4, 1, 5, 9, 2, 6], rng)
    total, layout = unit_sum(X, y, ids, kind)
    most = layout.sensitivity.value + 2 * layout.rounding
    largest = 0.0
    for _ in range(40):
        unit, n = int(rng.integers(8)), int(rng.choice([1, 2, 30]))
        rows = rng.uniform(-1, 1, (n, 3)) * rng.choice([0.0, 1.0, 1e3, 1e300], (n, 1))
        new = [np.sign(rows) if rng.random() < 0.5 else rows, rng.choice([-1e9, 0, 2.0], n)]
        kept = ids != unit
        X2, y2 = np.vstack([X[kept], new[0]]), np.append(y[kept], new[1])
        ids2 = np.append(ids[kept], np.full(n, rng.choice([unit, 99])))
        order = rng.permutation(len(ids2))
        other, same = unit_sum(X2[order], y2[order], ids2[order], kind)
        assert same == layout  # sizes, scale and rounding depend on the number of units alone
        largest = max(largest, np.linalg.norm(total - other))
        assert largest <= most
    assert largest > 0.2 * most


def test_only_the_number_of_units_is_public(rng, caplog, capsys):
    """Two tables with the same number of units and other numbers of rows look the same."""
    seen = []
    for rows in (1, 7, 150):  # 30 000 rows in the end: from 20 000 rows on fits use float32
        caplog.clear()
        X, y, ids = table(np.full(200, rows), rng)
        with caplog.at_level(logging.DEBUG, logger="dpkernel"), warnings.catch_warnings():
            warnings.simplefilter("error")
            model = build(verbose=True).fit(X, y, groups=ids)
        public = model.certificate_.to_dict()
        for name in (
            "free_statistics",
            "digest",
        ):  # released with noise, and a hash of it among others
            public.pop(name)
        shapes = {name: np.shape(value) for name, value in vars(model).items()}
        seen.append((json.dumps(public), caplog.text, capsys.readouterr(), repr(shapes)))
    assert seen[0] == seen[1] == seen[2]
    assert "200 units" in seen[0][1] and seen[0][2] == ("", "")
    public = json.loads(seen[0][0])["public"]
    assert public["unit"] == "group" and public["n_units"] == 200 and "n_rows" not in public


def test_sizes_follow_the_units(rng):
    X, y, ids = table(np.full(100, 50), rng)
    units, rows = build().fit(X, y, groups=ids), build().fit(X, y)
    assert units.feature_map_.n_outputs < rows.feature_map_.n_outputs
    few = build().fit(X[:100], y[:100])
    assert units.feature_map_.n_outputs == few.feature_map_.n_outputs


def test_zero_out_needs_less_noise(data):
    X, y, ids = data
    scales = [
        build(neighbours=relation)
        .fit(X, y, groups=ids)
        .certificate_.releases[0]
        .mechanism.noise_scale
        for relation in ("replace-one", "zero-out")
    ]
    assert scales[0] / scales[1] == pytest.approx(np.sqrt(2), rel=1e-5)
    with pytest.raises(ParameterError, match="must be AddRemove"):
        build(neighbours="add-remove").fit(X, y, groups=ids)


# --- ids ------------------------------------------------------------------------------------

SAME = [2, 0, 1, 2, 0, 2]
IDS = {
    "ints": np.array([7, -1, 3, 7, -1, 7]),
    "floats": np.array([0.5, 2.0**52, -0.0, 0.5, 2.0**52, 0.5]),
    "texts": np.array(["c", "a", "b", "c", "a", "c"]),
    "bytes": np.array([b"c", b"a", b"b", b"c", b"a", b"c"]),
    "list": ["c", "a", "b", "c", "a", "c"],
    "zeros in front": ["1", "01", "001", "1", "01", "1"],  # no number is written so
    "mixed": [1, "a", b"\xff", 1.0, "a", "1"],
    "objects": np.array([(1, 2), "x", None, (1, 2), "x", (1, 2)], dtype=object),
    "dates": pd.to_datetime([f"2026-01-0{i + 1}" for i in SAME]),
    "days": [datetime.date(2026, 1, i + 1) for i in SAME],
    "series": pd.Series(["c", "a", "b", "c", "a", "c"], index=[5] * 6),
    "category": pd.Series(["c", "a", "b", "c", "a", "c"]).astype("category"),
    "nullable": pd.Series([3, 1, 2, 3, 1, 3], dtype="Int64"),
    "polars": pl.Series(["c", "a", "b", "c", "a", "c"]),
}
IDS["objects"][2] = ("y", 3)


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_any_kind(kind):
    shares, n_units = unit_shares(IDS[kind])
    np.testing.assert_array_equal(shares, np.array([3, 2, 1, 3, 2, 3]) ** -1.0)
    assert n_units == 3


MISSING = {
    "nan": np.array([1.0, np.nan, 2.0]),
    "none": [1, None, 2],
    "nan among texts": ["secret", float("nan"), "secret"],
    "nat": np.array(["2026-01-01", "NaT", "2026-01-02"], dtype="datetime64[D]"),
    "pandas": pd.Series([1, None, 2], dtype="Int64"),
    "pandas texts": pd.Series(["secret", None, "b"]),
    "empty texts": np.array(["secret", "", "b"]),
    "spaces": ["secret", b"  ", "b"],
    "polars": pl.Series(["secret", None, "b"]),
    "inside of tuples": [("secret", float("nan")), ("secret", float("nan"))],
    "inside of sets": [frozenset([1.0, float("nan")])] * 2,
    "inside of tuples of tuples": [(1, ("secret", None)), (1, ("secret", None))],
}


def test_a_float_that_may_be_several_whole_numbers_is_no_id():
    for ids in ([2.0**53, 2.0**53 + 2], np.array([1e300, 1.0]), [(1, 2.0**60), (1, 3)]):
        with pytest.raises(DataError, match="groups"):
            unit_shares(ids)


@pytest.mark.parametrize("kind", MISSING)
def test_missing_ids_are_refused(kind):
    with pytest.raises(DataError, match="An id in groups is missing") as caught:
        unit_shares(MISSING[kind])
    assert "secret" not in str(caught.value)


# --- refusals -------------------------------------------------------------------------------


def stream(X, y, ids):
    return BlockStream.from_arrays(X, y), None, People(ids, record="all")


def dask_table(X, y, ids):
    dask = pytest.importorskip("dask.array")
    return dask.from_array(X), dask.from_array(y), People(ids, record="all")


def tensors(X, y, ids):
    torch = pytest.importorskip("torch")
    return torch.tensor(X), torch.tensor(y), People(ids, record="all")


REFUSED = {
    "stream": (stream, "one table in memory"),
    "dask": (dask_table, "one table in memory"),
    "torch": (tensors, "one table in memory"),
    "short": (lambda X, y, ids: (X, y, ids[:-1]), "the same number of rows"),
    "short y": (lambda X, y, ids: (X, y[:-1], ids), "the same number of rows"),
    "column": (lambda X, y, ids: (X, y, ids[:, None]), "and groups one"),
    "one dimension": (lambda X, y, ids: (X[:, 0], y, ids), "X must have two dimensions"),
    "three targets' dimensions": (lambda X, y, ids: (X, y[:, None, None], ids), "y one or two"),
    "no target": (lambda X, y, ids: (X, None, ids), "y one or two"),
    "one id": (lambda X, y, ids: (X, y, "secret"), "and groups one"),
    "lists": (lambda X, y, ids: (X, y, [[i] * (1 + i % 2) for i in ids]), "and groups one"),
    "dicts": (lambda X, y, ids: (X, y, [{"secret": i} for i in ids]), "can't be compared"),
    "missing": (lambda X, y, ids: (X, y, [None, *ids[1:]]), "is missing"),
    "nan": (lambda X, y, ids: (np.where(X > 0.99, np.nan, X), y, ids), "NaN or infinity"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_come_before_a_spend_and_tell_no_number_of_rows(case, data):
    change, message = REFUSED[case]
    X, y, ids = change(*data)
    ledger = Ledger(budget=Budget(10.0, 1e-5))
    with pytest.raises((DataError, ParameterError), match=message) as caught:
        build(ledger=ledger).fit(X, y, groups=ids)
    assert not re.search(r"\d|secret", str(caught.value))
    assert ledger.spends == []


def test_maps_without_a_rounding_bound_are_refused(data):
    X, y, ids = data
    for options, message in (
        ({"bounds": None}, "with groups needs 'bounds'"),
        (
            {"features": "nystroem"},
            "PublicNystroem with this kernel are not.*'fourier', or 'eigen'",
        ),
        ({"features": PublicNystroem(10)}, "rounding error is bounded"),
        ({"features": "eigen", "kernel": "matern32"}, "PublicEigenfeatures with this kernel"),
        ({"features": "fourier", "length_scale": 1e-25}, "below 0.05 of the sensitivity"),
    ):
        with pytest.raises(ParameterError, match=message):
            build(**options).fit(X, y, groups=ids)


def test_auto_takes_a_map_with_a_bound(data):
    X, y, ids = data
    kinds = {
        kernel: build(kernel=kernel).fit(X, y, groups=ids).feature_map_.kind
        for kernel in ("gaussian", "laplace", "matern32", "additive", "linear", "polynomial")
    }
    assert list(kinds.values()) == ["eigen", "eigen", "fourier", "fourier", "linear", "polynomial"]
    assert build(kernel="matern32").fit(X, y).feature_map_.kind == "eigen"


def test_the_domain_limits_units(data):
    X, y, ids = data
    domain = Domain(tuple(Interval(-1, 1) for _ in range(3)), Interval(-2, 2), n_max=200)
    model = PrivateKernelRidge(bounds=domain)
    model.fit(X, y, groups=ids)
    with pytest.raises(DataError, match="more units than the n_max=200"):
        model.fit(X, y, groups=np.arange(len(X)))
    with pytest.raises(DataError, match="more rows than the n_max=200"):
        model.fit(X, y)


# --- certificate, ledger, scikit-learn ------------------------------------------------------


def test_the_certificate_names_the_unit(data, tmp_path):
    X, y, ids = data
    model = build().fit(X, y, groups=ids)
    certificate = model.certificate_
    assert certificate.private and certificate.valid and certificate.unit == "group"
    assert certificate.verify().epsilon <= 1.0
    assert "protects     all rows of any one person, against replacing them" in str(certificate)
    assert "the number of people is public, that of rows is not" in str(certificate)
    again = load(save(model, tmp_path / "m.npz"))
    assert again.certificate_ == certificate
    page = write_report(certificate, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "every person except one" in page and "all rows of any one person" in page
    rows = build().fit(X, y).certificate_
    assert rows.unit == "row" and "any one record" in str(rows)


def test_a_claim_for_units_needs_a_sensitivity_of_units(data):
    X, y, _ = data
    rows = build().fit(X, y).certificate_.to_dict()
    for unit, message in (("group", "calibrated for single rows"), ("house", "one of 'row'")):
        forged = Certificate.from_dict({**rows, "public": {**rows["public"], "unit": unit}})
        with pytest.raises(CertificateError, match=message):
            forged.verify()
        assert "NO GUARANTEE" in str(forged)


def test_the_ledger_says_which_spend_was_of_units(data):
    X, y, ids = data
    ledger = Ledger(budget=Budget(5.0, 1e-5))
    model = build(ledger=ledger)
    model.fit(X, y, groups=ids)
    model.fit(X, y)
    labels = [line["releases"] for line in ledger.history()]
    assert labels == [["gram matrix of units"], ["gram matrix"]]


def test_grid_search_hands_groups_over_when_asked(data):
    X, y, ids = data
    ledger = Ledger(budget=Budget(1000.0, 1e-3))
    search = GridSearchCV(build(ledger=ledger), {"epsilon": [0.5, 1.0]}, cv=GroupKFold(3))
    best = search.fit(X, y, groups=ids).best_estimator_
    assert best.certificate_.unit == "row"  # only the splitter has seen them, and it says so
    with config_context(enable_metadata_routing=True):
        asking = build(ledger=ledger).set_fit_request(groups=True)
        search = GridSearchCV(asking, {"epsilon": [0.5, 1.0]}, cv=GroupKFold(3))
        best = search.fit(X, y, groups=ids).best_estimator_
    assert best.certificate_.unit == "group"
