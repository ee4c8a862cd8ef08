"""One line an estimator: how the contract tests build it. A new estimator adds its line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dpkernel.estimators
from dpkernel import PrivateKernelRegressor, PrivateKernelRidge

BUILDERS: dict[str, Callable[..., Any]] = {
    "PrivateKernelRidge": lambda **kw: PrivateKernelRidge(
        **{"epsilon": 10.0, "y_bounds": (-1000, 1000), **kw}
    ),
    "PrivateKernelRegressor": lambda **kw: PrivateKernelRegressor(
        **{"epsilon": 10.0, "bounds": (-100, 100), "y_bounds": (-1000, 1000), **kw}
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

# What a fitted estimator may carry besides its parameters: released, public, or scikit-learn's own.
PUBLIC_ATTRIBUTES = {
    "PrivateKernelRidge": {
        "_family",
        "_family_counted",
        "certificate_",
        "coef_",
        "intercept_",
        "feature_map_",
        "_domain",
    },
    "PrivateKernelRegressor": {
        "_family",
        "_family_counted",
        "certificate_",
        "budget_plan_",
        "coef_",
        "intercept_",
        "feature_map_",
        "_domain",
        "_variances",
        "_scales",
    },
}

assert set(BUILDERS) <= set(dpkernel.estimators.__all__)
