"""One line an estimator: how the contract tests build it. A new estimator adds its line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import estimator_checks
from sklearn.utils.multiclass import type_of_target

import dpkernel.estimators
from dpkernel import (
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
)
from dpkernel.methods import (
    PrivateCurator,
    PrivateGridRegressor,
    PrivateHuberRegressor,
    PrivateKernelSVC,
    PrivateKernelSVR,
    PrivateSGDClassifier,
    PrivateSGDRegressor,
    PrivateSketchedRidge,
)

IDEALISED = ("idealised-arithmetic",)


@dataclass(frozen=True)
class Line:
    """How to build one, with options; its target, made from a continuous one; what it carries."""

    build: Callable[..., Any]
    target: Callable[[Any], Any] = lambda y: y
    under_check: Callable[..., Any] | None = None  # for check_estimator, which brings its own y
    attributes: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()  # that other estimators may not have
    keeps_rows: bool = False  # by design, and so neither pickled nor written to a model file

    def __call__(self, **options: Any) -> Any:
        return self.build(**options)


def found_classes(y: Any) -> Any:
    """Return the classes of y, which no user may: scikit-learn's checks bring labels of their own."""
    labels = y is not None and type_of_target(np.asarray(y)) in ("binary", "multiclass")
    return np.unique(np.asarray(y)) if labels else [0, 1]


class OfY:
    """Declares the classes of y while it is fitted."""

    def fit(self, X: Any, y: Any = None) -> Any:
        self.classes = found_classes(y)
        try:
            return super().fit(X, y)
        finally:
            self.classes = None


class ClassesOfY(OfY, PrivateKernelClassifier):
    pass


class SGDClassesOfY(OfY, PrivateSGDClassifier):
    pass


class MachineOfY(OfY, PrivateKernelSVC):
    pass


class FewPoints(PrivateGridRegressor):
    """A grid in three columns at most: scikit-learn's checks bring ten, and thousands of points."""

    def _grid(self, n_inputs: int) -> Any:
        few = super()._grid(min(n_inputs, 3))
        return np.pad(few, ((0, 0), (0, n_inputs - few.shape[1])))


def classifier(cls: type, under_check: type) -> Line:
    return Line(
        lambda **kw: cls(**{"epsilon": 10.0, "classes": [0, 1], **kw}),
        target=lambda y: np.where(y > 0, 1.0, 0.0),
        under_check=lambda **kw: under_check(**{"epsilon": 10.0, **kw}),
        attributes=frozenset({"classes_"}),
    )


def regressor(cls: type, **defaults: Any) -> Callable[..., Any]:
    return lambda **kw: cls(**{"epsilon": 10.0, "y_bounds": (-1000, 1000), **defaults, **kw})


BUILDERS: dict[str, Line] = {
    "PrivateKernelRidge": Line(regressor(PrivateKernelRidge)),
    "PrivateKernelRidge (output)": Line(regressor(PrivateKernelRidge, solver="output")),
    "PrivateQuantileRegressor": Line(
        regressor(PrivateQuantileRegressor), attributes=frozenset({"_several"})
    ),
    "PrivateHuberRegressor": Line(regressor(PrivateHuberRegressor)),
    "PrivateKernelSVR": Line(regressor(PrivateKernelSVR)),
    "PrivateSketchedRidge": Line(
        regressor(PrivateSketchedRidge, accept=IDEALISED),
        attributes=frozenset({"sketch_", "sketch_noise_", "_several"}),
    ),
    "PrivateGridRegressor": Line(
        regressor(PrivateGridRegressor, bounds=(-100, 100), side=3, accept=IDEALISED),
        under_check=regressor(FewPoints, bounds=(-100, 100), side=3, accept=IDEALISED),
        attributes=frozenset({"grid_points_", "grid_values_"}),
    ),
    "PrivateCurator": Line(
        regressor(PrivateCurator, bounds=(-100, 100), accept=IDEALISED),
        attributes=frozenset({"_restart", "_noisy", "_count", "_file", "_process", "_lock"}),
        keeps_rows=True,
    ),
    "PrivateKernelClassifier": classifier(PrivateKernelClassifier, ClassesOfY),
    "PrivateKernelSVC": classifier(PrivateKernelSVC, MachineOfY),
    "PrivateSGDRegressor": Line(regressor(PrivateSGDRegressor), parameters=frozenset({"max_iter"})),
    "PrivateSGDClassifier": Line(
        lambda **kw: PrivateSGDClassifier(**{"epsilon": 10.0, "classes": [0, 1], **kw}),
        target=lambda y: np.where(y > 0, 1.0, 0.0),
        under_check=lambda **kw: SGDClassesOfY(**{"epsilon": 10.0, **kw}),
        attributes=frozenset({"classes_"}),
        parameters=frozenset({"max_iter"}),
    ),
    "PrivateKernelRegressor": Line(
        regressor(PrivateKernelRegressor, bounds=(-100, 100)),
        attributes=frozenset({"budget_plan_", "_variances", "_scales"}),
    ),
}

# Checks of scikit-learn that refit and compare: with real noise two fits differ.
REFIT_AND_COMPARE = dict.fromkeys(
    (
        "check_fit_idempotent",
        "check_supervised_y_2d",
        "check_regressors_int",
        "check_regressor_data_not_an_array",
        "check_classifier_data_not_an_array",
    ),
    "two fits draw different noise",
)

# Checks of scikit-learn that ask one fitted model twice, or a copy of it: the answers must agree.
ASK_TWICE = (
    estimator_checks.check_dict_unchanged,
    estimator_checks.check_estimators_pickle,
    estimator_checks.check_methods_sample_order_invariance,
    estimator_checks.check_methods_subset_invariance,
)

# A curator without a file can't be pickled: the copy would answer differently.
NOT_PICKLED = {"check_estimators_pickle": "the copy would answer differently"}

# Checks of scikit-learn that pass weights above 1: those are refused.
LARGE_WEIGHTS = dict.fromkeys(
    (
        "check_sample_weights_list",
        "check_sample_weights_not_overwritten",
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
    ),
    "a weight above 1 would let a row count for more than the noise hides",
)

# What a fitted estimator may carry besides its parameters: released, public, or scikit-learn's own.
PUBLIC_ATTRIBUTES = frozenset(
    {
        "_family",
        "_family_counted",
        "certificate_",
        "coef_",
        "intercept_",
        "feature_map_",
        "_domain",
        "relevance_",
        "relevant_directions_",
        "learned_kernel_",
    }
)

assert {name.split()[0] for name in BUILDERS} == set(dpkernel.estimators.__all__)
