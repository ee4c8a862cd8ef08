"""The conventions of CONTRIBUTING.md, held against every estimator."""

from __future__ import annotations

import inspect
import logging
import pickle
import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from dpkernel import Budget, Certificate, Ledger, SeededNoise, load, save
from dpkernel.foundations.archive import read_archive
from dpkernel.foundations.errors import BudgetExceededError, DataError, ParameterError
from estimator_table import (
    ASK_TWICE,
    BUILDERS,
    LARGE_WEIGHTS,
    NOT_PICKLED,
    PUBLIC_ATTRIBUTES,
    REFIT_AND_COMPARE,
)
from parameter_forms import FORMS, OWN_FORMS
from replay import make_quick


@pytest.fixture(params=BUILDERS.values(), ids=list(BUILDERS))
def build(request):
    return request.param


@pytest.fixture
def data(rng, build):
    X = rng.uniform(-1, 1, (60, 3))
    return X, build.target(100 * X[:, 0] + rng.normal(size=60))


def scores(model, X):
    """Return what the noise shows in: numbers, not labels."""
    return getattr(model, "decision_function", model.predict)(X)


def failures(estimator, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            estimator, expected_failed_checks=expected, on_fail=None, on_skip=None
        )
    assert len(results) > 30
    return {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}


def test_check_estimator_with_seeded_noise(build, monkeypatch):
    make_quick(monkeypatch)
    expected = LARGE_WEIGHTS | (NOT_PICKLED if build.keeps_rows else {})
    assert failures((build.under_check or build)(noise=SeededNoise(0)), expected) == {}


def test_checks_that_ask_a_model_twice_pass_with_real_entropy(build):
    """A prediction that draws noise shows here; the other checks do not see where noise is from."""
    model = (build.under_check or build)()
    for check in ASK_TWICE:
        if not (build.keeps_rows and check.__name__ in NOT_PICKLED):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(type(model).__name__, clone(model))


@pytest.mark.slow
def test_check_estimator_with_real_entropy(build):
    expected = REFIT_AND_COMPARE | LARGE_WEIGHTS | (NOT_PICKLED if build.keeps_rows else {})
    assert failures((build.under_check or build)(), expected) == {}


def test_the_floating_point_mode_of_numpy_ends_no_fit(build, data):
    plain = build(noise=SeededNoise(3)).fit(*data)
    with np.errstate(all="raise"):
        trapped = build(noise=SeededNoise(3)).fit(*data)
    np.testing.assert_array_equal(scores(trapped, data[0]), scores(plain, data[0]))


def test_numpy_pandas_and_polars_give_the_same_model(build, data):
    X, y = data
    names = ["age", "weight", "dose"]
    models = [
        build(noise=SeededNoise(3)).fit(table, y)
        for table in (X, pd.DataFrame(X, columns=names), pl.DataFrame(X, schema=names))
    ]
    for model in models[1:]:
        assert list(model.feature_names_in_) == names
        np.testing.assert_array_equal(scores(model, X), scores(models[0], X))
    assert not hasattr(models[0], "feature_names_in_")
    with pytest.raises(ValueError, match="feature names"):
        models[1].predict(pd.DataFrame(X, columns=names[::-1]))


def test_sparse_tables_give_the_model_of_dense_ones(build, data):
    X, y = np.where(data[0] > 0, data[0], 0.0), data[1]
    dense = build(noise=SeededNoise(3)).fit(X, y)
    for table in (sparse.csr_matrix(X), sparse.csc_array(X), sparse.coo_array(X)):
        model = build(noise=SeededNoise(3)).fit(table, y)
        np.testing.assert_array_equal(scores(model, table), scores(dense, X))
    assert model.__sklearn_tags__().input_tags.sparse


@pytest.mark.parametrize("where", ["X", "y"])
def test_missing_and_infinite_values_are_refused_with_advice(build, data, where):
    for bad in (np.nan, np.inf, -np.inf):
        X, y = data[0].copy(), data[1].copy()
        (X if where == "X" else y)[5] = bad
        ledger = Ledger(budget=Budget(100.0, 1e-5))
        with pytest.raises(DataError, match="public constants"):
            build(ledger=ledger).fit(X, y)
        assert ledger.spends == []


BAD_FITS = {
    "epsilon zero": (
        {"epsilon": 0},
        None,
        "'epsilon' parameter of .* must be a float in the range",
    ),
    "epsilon nan": ({"epsilon": float("nan")}, None, "'epsilon' parameter"),
    "epsilon text": ({"epsilon": "1"}, None, "'epsilon' parameter"),
    "delta one": ({"delta": 1.0}, None, "'delta' parameter"),
    "delta negative": ({"delta": -1e-9}, None, "'delta' parameter"),
    "bounds reversed": ({"y_bounds": (5, -5)}, None, "low < high"),
    "bounds missing": ({"y_bounds": None}, None, "needs 'y_bounds'.*y_bounds=\\(0, 120\\)"),
    "bounds not a pair": ({"y_bounds": 3.0}, None, "must be a pair"),
    "bounds nan": ({"y_bounds": (0, float("nan"))}, None, "low < high"),
    "column bounds": ({"bounds": ([0, 1], [1, 2])}, None, "3 numbers, one per column"),
    "neighbours": ({"neighbours": "friends"}, None, "one of 'replace-one'"),
    "ledger": ({"ledger": "file.db"}, None, "'ledger' parameter"),
    "noise": ({"noise": 7}, None, "'noise' parameter"),
    "lengths": ({}, lambda X, y: (X, y[:-1]), "inconsistent numbers of samples"),
    "no rows": ({}, lambda X, y: (X[:0], y[:0]), "0 sample"),
    "one dimension": ({}, lambda X, y: (X[:, 0], y), "Reshape your data"),
    "text": (
        {},
        lambda X, y: (np.array([["secret", 1, 2]] * len(y), dtype=object), y),
        "not a number",
    ),
}


def test_bad_input_is_refused_before_anything_is_spent(build, data):
    known, tried = set(build().get_params()), 0
    for case, (options, change, message) in BAD_FITS.items():
        if set(options) <= known:
            X, y = change(*data) if change else data
            ledger = Ledger(budget=Budget(100.0, 1e-5))
            with pytest.raises(ValueError, match=message) as caught:
                build(**{"ledger": ledger, **options}).fit(X, y)
            assert isinstance(caught.value, (DataError, ParameterError)), case
            assert "secret" not in str(caught.value), case
            assert ledger.spends == [], case
            tried += 1
    assert tried >= len(BAD_FITS) - 4  # classifiers have no bounds of y


QUOTING = {
    "one dimension": lambda X, y: (X[:, 0], y),
    "three dimensions": lambda X, y: (X[:, :, None], y),
    "complex X": lambda X, y: (X + 1j, y),
    "complex y": lambda X, y: (X, y + 1j),
    "text in y": lambda X, y: (X, np.array(["0.123456789"] * 59 + ["0.987654321x"])),
    "object X": lambda X, y: (np.array([[{"k": 0.123456789}] * 3] * 60, dtype=object), y),
    "pandas NA": lambda X, y: (pd.DataFrame(X).astype(object).where(X > 0, pd.NA), y),
    "huge integers": lambda X, y: (np.array([[10**400] * 3] * 60, dtype=object), y),
    "dates": lambda X, y: (pd.DataFrame({"a": pd.date_range("2020-01-01", periods=60)}), y),
    "two targets too many": lambda X, y: (X, np.zeros((60, 2, 2))),
    "text that looks like scikit-learn's": lambda X, y: (
        np.where(X > 0, "0.123456789 has 3 sample(s) and feature names; Sparse data was passed", X),
        y,
    ),
    "such a text in y": lambda X, y: (X, np.array(["X has 0.12345 features, but"] * 60)),
}


@pytest.mark.parametrize("method", ["fit", "predict"])
def test_no_message_quotes_an_entry(build, data, method):
    model = build() if method == "fit" else build().fit(*data)
    for case, change in QUOTING.items():
        X, y = change(*data)
        try:
            model.fit(X, y) if method == "fit" else model.predict(X)
        except (ValueError, TypeError) as error:
            assert isinstance(error, (DataError, ParameterError)), case
            assert not re.search(r"\d\.\d{4}|2020|k'|array\(", str(error)), (case, str(error))
            assert error.__cause__ is None, case
            assert error.__context__ is None, case
        else:  # X was fine, or nanoseconds are numbers
            assert method == "predict" or case == "dates", case


def test_an_epsilon_too_small_for_floats_is_refused(build, data):
    ledger = Ledger()
    with pytest.raises(ParameterError, match=r"'epsilon' parameter of .* in the range \(1e-100, "):
        build(epsilon=1e-300, ledger=ledger).fit(*data)
    assert ledger.spends == []


def test_an_exhausted_ledger_refuses_the_fit(build, data):
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    model = build(epsilon=1.0, ledger=ledger).fit(*data)
    with pytest.raises(BudgetExceededError, match="Nothing was spent"):
        clone(model).fit(*data)
    assert len(ledger.spends) == 1
    assert ledger.spends[0].state == "drawn"


def test_the_certificate_is_at_most_the_request(build, data):
    for epsilon, delta in ((0.1, 1e-8), (1.0, 1e-6), (20.0, 1e-3)):
        certificate = build(epsilon=epsilon, delta=delta).fit(*data).certificate_
        assert certificate.epsilon <= epsilon and certificate.delta <= delta
        assert certificate.private and certificate.valid
        assert certificate.verify().epsilon <= epsilon


def test_seeded_noise_is_never_private(build, data):
    certificate = build(noise=SeededNoise(0)).fit(*data).certificate_
    assert not certificate.private and "seeded" in str(certificate)
    assert '"private": false' in certificate.to_json()


def test_noise_does_not_come_from_random_state(build, data):
    """Two fits with one random_state differ; two with one SeededNoise and any state's noise agree."""
    state = {"random_state": 7} if "random_state" in build().get_params() else {}
    first, second = (build(**state).fit(*data) for _ in range(2))
    assert not np.array_equal(scores(first, data[0]), scores(second, data[0]))
    np.random.seed(0)
    third = build(**state).fit(*data)
    np.random.seed(0)
    fourth = build(**state).fit(*data)
    assert not np.array_equal(scores(third, data[0]), scores(fourth, data[0]))


def test_nothing_but_released_and_public_attributes(build, data):
    model = build().fit(*data)
    standard = {"n_features_in_", *model.get_params()}
    assert set(vars(model)) - standard - PUBLIC_ATTRIBUTES - build.attributes == set()


def test_no_iteration_counts_and_weights_of_rows(build, data):
    model = build()
    passes = build.parameters  # a public number of passes, not a limit that a run may stay below
    assert not ({"max_iter", "tol", "n_iter"} & set(model.get_params())) - passes
    assert hasattr(model.fit(*data), "n_iter_") == ("max_iter" in passes)
    found = build().fit(*data, sample_weight=np.full(60, 0.5))
    assert found.certificate_.verify().epsilon <= 10.0


def test_messages_do_not_depend_on_the_data(build, data, caplog, capsys):
    X, y = data
    texts = []
    with caplog.at_level(logging.DEBUG, logger="dpkernel"):
        for target in (y, np.zeros_like(y), build.target(1e9 * (y - 0.5))):
            caplog.clear()
            build().fit(X, target)
            texts.append(caplog.text)
    assert texts[0] and texts[0] == texts[1] == texts[2]
    assert capsys.readouterr() == ("", "")


def test_extreme_values_neither_fail_nor_warn(build):
    """A record at the end of the float range is clipped like any other: no error, no warning."""
    X = np.zeros((20, 3))
    X[0], X[1], X[2] = 1e308, -1e308, 5e-324
    y = np.zeros(20)
    y[0] = 1e308
    y = build.target(y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build(bounds=(-1, 1)).fit(X, y)
        assert np.all(np.isfinite(model.predict(X)))
        model = build().fit(X, y)
        assert np.all(np.isfinite(model.predict(X)))


def test_lives_in_pipelines_and_grid_searches(build, data):
    X, y = data
    ledger = Ledger(budget=Budget(1000.0, 1e-3))
    pipeline = make_pipeline(FunctionTransformer(), build(epsilon=1.0, ledger=ledger))
    name = pipeline.steps[-1][0]
    GridSearchCV(pipeline, {f"{name}__epsilon": [0.5, 1.0]}, cv=3).fit(X, y)
    assert len(ledger.spends) == 2 * 3 + 1


def test_a_fitted_model_pickles_and_an_unfitted_one_says_so(build, data, tmp_path):
    X, y = data
    model = build(**({"path": tmp_path / "answers.db"} if build.keeps_rows else {})).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(scores(again, X), scores(model, X))
    with pytest.raises(NotFittedError):
        build().predict(X)


def test_a_model_file_predicts_bit_for_bit(build, data, tmp_path):
    X, y = data
    model = build(bounds=(-1, 1)).fit(pd.DataFrame(X, columns=["a", "b", "c"]), y)
    if build.keeps_rows:
        with pytest.raises(ParameterError, match="holds the training rows.*path="):
            save(model, tmp_path / "m.npz")
        assert list(tmp_path.iterdir()) == []
        return
    again = load(save(model, tmp_path / "m.npz"))
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    np.testing.assert_array_equal(scores(again, frame), scores(model, frame))
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    assert again.certificate_ == model.certificate_ and again.certificate_.verify()
    assert type(again) is type(model) and list(again.feature_names_in_) == ["a", "b", "c"]
    again.fit(frame, y)  # with the parameters that the file remembers
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame[["c", "b", "a"]])
    # all of them released, or public
    arrays = {"coef", "intercept", "variances", "scales", "sketch", "sketch_noise"}
    assert {"coef", "intercept"} <= set(read_archive(tmp_path / "m.npz", 2**24).arrays) <= arrays


def test_a_clone_spends_from_the_same_ledger(build, data):
    ledger = Ledger(budget=Budget(100.0, 1e-4))
    model = clone(build(epsilon=1.0, ledger=ledger))
    assert model.ledger is ledger
    model.fit(*data)
    assert [spend.label for spend in ledger.spends] == [type(model).__name__]


def test_the_certificate_survives_json(build, data):
    for relation in ("replace-one", "zero-out"):
        certificate = build(neighbours=relation).fit(*data).certificate_
        again = Certificate.from_json(certificate.to_json())
        assert again == certificate and again.verify().epsilon <= 10.0
        assert again.neighbours.value == relation
    with pytest.raises(
        ParameterError, match="Use 'zero-out'|a number that the table is known not to"
    ):
        build(neighbours="add-remove").fit(*data)


def test_the_docstring_has_the_promised_parts(build):
    text = inspect.getdoc(type(build()))
    for section in ("Parameters", "Attributes", "Notes", "References", "Examples"):
        assert f"{section}\n{'-' * len(section)}\n" in text
    for term in ("Guarantee", "Sensitivity", "Not covered"):
        assert f"\n{term}\n    " in text
    assert "score" in text


ONCE = {name.split()[0]: line for name, line in reversed(BUILDERS.items())}
PARAMETERS = sorted({parameter for line in ONCE.values() for parameter in line().get_params()})


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_every_documented_form_of_every_parameter_is_fitted(parameter, rng, tmp_path, monkeypatch):
    """Every estimator that has the parameter is fitted with each form of it."""
    make_quick(monkeypatch)
    jobs = []
    for name, line in ONCE.items():
        if parameter not in line().get_params():
            continue
        forms = OWN_FORMS.get((name, parameter), FORMS.get(parameter))
        assert forms is not None, f"add the forms of {parameter!r} to parameter_forms.py"
        if parameter == "path":
            forms = [*forms, {"path": tmp_path / "a.db"}, {"path": str(tmp_path / "b.db")}]
        jobs += [(place, name, form) for place, form in enumerate(forms)]
    X = rng.uniform(-1, 1, (30, 3))
    # form by form: the estimators have the public features of a form in common
    for _, name, form in sorted(jobs, key=lambda job: job[0]):
        build = BUILDERS[name]
        small = {"n_features": 8, "bounds": (-1, 1), "y_bounds": (-1, 1), "max_iter": 2, "side": 3}
        if name == "PrivateSketchedRidge":
            small["n_sketch"] = 60
        known = build().get_params()
        given = {key: value for key, value in small.items() if key in known}
        try:
            model = build(**{**given, **form}).fit(X, build.target(X[:, 0]))
            assert model.certificate_.verify().epsilon <= model.epsilon
            assert np.all(np.isfinite(model.predict(X[:2])))
        except Exception as error:
            error.add_note(f"{name} with {form}")
            raise
