"""A private estimator behind steps of scikit-learn that learned without noise says so."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from dpkernel import Certificate, Ledger, PrivateKernelRidge, PrivateSearchCV, check_pipeline
from dpkernel.foundations.errors import PrivacyWarning
from dpkernel.outputs.report import write_report
from dpkernel.preprocessing import PrivateBounds, PrivatePipeline, PrivateStandardScaler

X = np.random.default_rng(0).uniform(0, 1, (60, 2))
Y = X[:, 0]


def ridge(**options):
    return PrivateKernelRidge(bounds=(-9, 9), y_bounds=(-9, 9), kernel="linear", **options)


class Stateless(TransformerMixin, BaseEstimator):
    def __init__(self, factor=2.0):
        self.factor = factor

    def fit(self, X, y=None):
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return X * self.factor


class Centred(Stateless):
    def fit(self, X, y=None):
        self.middle = X.mean(axis=0)
        return self

    def transform(self, X):
        return X - self.middle


def columns(step):
    return ColumnTransformer([("a", step, [0]), ("b", "passthrough", [1])])


LEARNED = {
    "scaler": (make_pipeline(SimpleImputer(), StandardScaler(), ridge()), 2),
    "columns": (make_pipeline(columns(MinMaxScaler()), ridge()), 1),
    "union": (make_pipeline(FeatureUnion([("a", MinMaxScaler())]), ridge()), 1),
    "nested": (make_pipeline(make_pipeline(StandardScaler(), Normalizer()), ridge()), 1),
    "outer": (make_pipeline(StandardScaler(), make_pipeline(Normalizer(), ridge())), 1),
    "function": (make_pipeline(FunctionTransformer(lambda X: X - X.mean(0)), ridge()), 1),
    "levels": (make_pipeline(columns(OneHotEncoder()), ridge()), 1),
    "own class": (make_pipeline(Centred(), ridge()), 1),
    "target": (TransformedTargetRegressor(ridge(), transformer=StandardScaler()), 1),
    "target function": (
        TransformedTargetRegressor(
            ridge(), func=np.sort, inverse_func=np.sort, check_inverse=False
        ),
        1,
    ),
    "pipeline": (
        make_pipeline(
            StandardScaler(),
            PrivatePipeline([("b", PrivateBounds(bounds=(-9, 9))), ("m", ridge())], 9.0),
        ),
        1,
    ),
    "search": (
        make_pipeline(
            StandardScaler(), PrivateSearchCV(ridge(), {"length_scale": [1.0, 2.0]}, 9.0)
        ),
        1,
    ),
    "transformer": (
        make_pipeline(StandardScaler(), PrivateStandardScaler(bounds=(-9, 9)), ridge()),
        1,
    ),
}
FREE = {
    "alone": ridge(),
    "free": make_pipeline(
        FunctionTransformer(np.log1p), Normalizer(), PolynomialFeatures(), "passthrough", ridge()
    ),
    "private": make_pipeline(PrivateStandardScaler(bounds=(0, 1)), ridge()),
    "declared": make_pipeline(
        columns(OneHotEncoder(categories=[[0, 1]], handle_unknown="ignore")), ridge()
    ),
    "own class": make_pipeline(Stateless(), ridge()),
    "target": TransformedTargetRegressor(ridge(), func=np.log1p, inverse_func=np.expm1),
}


def fitted(model):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, Y)
    return model, [w for w in caught if "covers the last step only" in str(w.message)]


def last(model):
    while not hasattr(model, "certificate_"):
        model = model.regressor_ if hasattr(model, "regressor_") else model[-1]
    return model


@pytest.mark.parametrize("name", LEARNED)
def test_a_pipeline_that_learned_without_noise_is_named(name):
    model, count = LEARNED[name]
    model, caught = fitted(model)
    assert caught and all(issubclass(w.category, PrivacyWarning) for w in caught)
    certificate = last(model).certificate_
    assert "covers the last step only" in certificate.not_covered[0]
    assert certificate.not_covered[0].count("(") == count
    assert Certificate.from_json(certificate.to_json()).verify().epsilon <= 9.0
    assert len(check_pipeline(model)) == count


@pytest.mark.parametrize("name", FREE)
def test_steps_that_learn_nothing_are_no_reason_to_warn(name):
    model, caught = fitted(FREE[name])
    assert not caught
    assert "last step" not in last(model).certificate_.not_covered[0]
    assert (
        check_pipeline(model) == () or name == "own class"
    )  # which may learn, before it is fitted


def test_the_warning_comes_before_the_spend():
    ledger = Ledger()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PrivacyWarning, match=r"standardscaler \(StandardScaler\)"):
            make_pipeline(StandardScaler(), ridge(ledger=ledger)).fit(X, Y)
    assert ledger.spends == []


def test_every_fit_of_a_grid_search_looks_around():
    search = GridSearchCV(make_pipeline(StandardScaler(), ridge()), {}, cv=2)
    model, caught = fitted(search)
    assert len(caught) == 3
    assert "last step only" in last(model.best_estimator_).certificate_.not_covered[0]


def test_a_second_fit_without_the_pipeline_is_covered_again():
    model = LEARNED["scaler"][0][-1]
    fitted(LEARNED["scaler"][0])
    assert "last step only" in model.certificate_.not_covered[0]
    model.fit(X, Y)
    assert "last step only" not in model.certificate_.not_covered[0]


def test_the_report_says_what_is_not_covered(tmp_path):
    model, _ = fitted(LEARNED["scaler"][0])
    write_report(model[-1], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "covers the last step only" in page
    assert "The guarantee holds for the last step of a pipeline only" in page
    assert "holds for the last step" in str(model[-1].certificate_).splitlines()[0]
