"""Every documented form of every parameter, for the contract tests: each gets a fit.

A form is a dict of parameters: the one it is about and others that it needs. A parameter that is new, or
that an estimator documents in another form than others do, adds its line here; without one a test fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dpkernel import Budget, Domain, Interval, Ledger, Neighbours, SeededNoise, SystemNoise
from dpkernel.estimators.regressor import BudgetPlan
from dpkernel.models.features import FourierFeatures
from dpkernel.models.kernels import REGISTRY as KERNELS
from dpkernel.models.kernels import GaussianKernel
from dpkernel.models.losses import Huber, HuberisedHinge, Logistic
from dpkernel.solvers.sgd_presets import PRESETS, Preset

IDEALISED = ("idealised-arithmetic",)


def forms(name: str, *values: Any, **others: Any) -> list[dict[str, Any]]:
    return [{name: value, **others} for value in values]


NUMBERS = (2.0, np.float64(2.0), np.float32(2.0), np.int64(2), 2)
BOX = ([-1, -1, -1], [1, 1, 1])

OWN_SCHEDULE = Preset(
    "mine", 20, 0.05, None, radius=None, average=False, order="replacement", perturbs="output"
)

# of every estimator that has the parameter
FORMS: dict[str, list[dict[str, Any]]] = {
    "epsilon": forms("epsilon", *NUMBERS),
    "delta": forms("delta", 1e-6, np.float64(1e-6)),
    "kernel": [
        *(
            {"kernel": name, **({"length_scale": 1.0} if name == "additive" else {})}
            for name in KERNELS
        ),
        {"kernel": GaussianKernel(0.7)},
    ],
    "length_scale": [
        *forms("length_scale", "auto", *NUMBERS),
        *forms("length_scale", [1.0, 2.0, 0.5], (1.0, 2.0, 0.5), np.array([1.0, 2.0, 0.5])),
        *forms("length_scale", np.array([1, 2, 1]), np.array([1.0, 2.0, 0.5], np.float32)),
    ],
    "features": [
        *forms("features", "auto", "eigen", "fourier", "projection", "nystroem", "linear"),
        {"features": "polynomial", "kernel": "polynomial"},
        {"features": FourierFeatures(8)},
    ],
    "n_features": forms("n_features", "auto", 8, np.int64(8)),
    "regularisation": [
        *forms("regularisation", "auto", 20.0, 20, np.float64(20.0), np.int64(20)),
        *forms("regularisation", "nie-wang-4", "lee-18(gamma=0.25)"),
    ],
    "bounds": [
        *forms("bounds", (-1, 1), [-1.0, 1.0], np.array([-1.0, 1.0]), BOX),
        *forms("bounds", (np.full(3, -1.0), np.full(3, 1.0)), (-1, [1, 2, 3])),
        *forms("bounds", np.array(BOX), Domain.box(-1, 1, n_columns=3)),
        *forms("bounds", (pd.Series([-1.0] * 3), pd.Series([1.0] * 3))),
    ],
    "y_bounds": forms("y_bounds", (-1, 1), [-1.0, 1.0], np.array([-1.0, 1.0]), Interval(-1, 1)),
    "neighbours": forms(
        "neighbours", "replace-one", "zero-out", Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT
    ),
    "ledger": [{"ledger": None}, {"ledger": Ledger(budget=Budget(1e6, 1e-2))}],
    "noise": forms("noise", None, SeededNoise(0), SystemNoise()),
    "random_state": forms("random_state", None, 3, np.int64(3)),
    "verbose": forms("verbose", False, True),
    "accept": forms("accept", IDEALISED, list(IDEALISED), set(IDEALISED), frozenset(IDEALISED)),
    "width": forms("width", 0.5, np.float64(0.5), 1),
    "classes": [
        *forms("classes", [0, 1], (0, 1), np.array([0, 1]), range(2), [0.0, 1.0], [0, 1, 2]),
        *forms("classes", pd.Series([0, 1]), pd.Index([0, 1])),
    ],
    "class_weight": forms("class_weight", None, {0: 1.0, 1: 2.0}, {1: 3}, {0: np.float64(0.5)}),
    "solver": forms("solver", "objective", "output"),
    "threshold": forms("threshold", "auto", 0.1, np.float64(0.1), 1),
    "loss": forms("loss", "squared", "huber"),
    "perturbation": forms("perturbation", "gradient", "output"),
    "max_iter": forms("max_iter", "auto", 2, np.int64(2)),
    "batch_size": forms("batch_size", "auto", 5, np.int64(5)),
    "sampling": [
        *forms("sampling", "auto", "shuffle", "fixed", "replacement", perturbation="output"),
        *forms("sampling", "auto", "uniform", batch_size=5),
        {"sampling": "poisson", "batch_size": 5, "neighbours": "zero-out"},
    ],
    "eta0": forms("eta0", "auto", 0.1, np.float64(0.1)),
    "alpha": forms("alpha", "auto", 0.1, np.float64(0.1)),
    "radius": forms("radius", None, 2.0, 2),
    "clip": forms("clip", "auto", 0.5, 1),
    "momentum": forms("momentum", "auto", 0.0, 0.5),
    "average": forms("average", False, True),
    "preset": [
        {"preset": None},
        *({"preset": name, "perturbation": "output"} for name in PRESETS if name != "holder-12"),
        {"preset": "holder-12", "perturbation": "gradient"},
        {"preset": OWN_SCHEDULE, "perturbation": "output"},
    ],
    "r": forms("r", 1.0, 0.9, 1, preset="wang-guo-1", perturbation="output", capacity=0.6),
    "capacity": forms("capacity", 0.5, np.float64(0.7), preset="wang-guo-1", perturbation="output"),
    "quantile": forms("quantile", 0.5, [0.1, 0.9], (0.1, 0.5), np.array([0.1, 0.9])),
    "l1": forms("l1", 0.0, 2, np.float64(0.5)),
    "norm": forms("norm", 2, 2.0, 1.5, np.float64(1.5)),
    "tube": forms("tube", "auto", 0.0, 0.1, np.float64(0.1)),
    "n_sketch": forms("n_sketch", "auto", 60, np.int64(60)),
    "side": forms("side", "auto", 3, np.int64(3)),
    "most_answers": forms("most_answers", 10, np.int64(10)),
    "path": [{"path": None}],
    "budget_plan": forms("budget_plan", "auto", BudgetPlan(0.1, 0.1, (1.0, 1.2), 0.02, 0.05)),
    "folds": forms("folds", 1, 2, np.int64(2)),
}

# where a class documents other forms than most do
OWN_FORMS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("PrivateSketchedRidge", "accept"): forms("accept", IDEALISED, list(IDEALISED)),
    ("PrivateKernelRidge", "solver"): forms("solver", "gram", "output"),
    ("PrivateQuantileRegressor", "width"): forms("width", "auto", 0.1, np.float64(0.1)),
    ("PrivateKernelSVR", "width"): forms("width", "auto", 0.1, np.float64(0.1)),
    ("PrivateKernelClassifier", "loss"): [
        *forms("loss", "smoothed_hinge", "logistic", "hinge", "squared_hinge", "huberised_hinge"),
        *forms("loss", Logistic(), HuberisedHinge(0.25)),
    ],
    ("PrivateHuberRegressor", "loss"): forms(
        "loss",
        "huber",
        "absolute",
        "quantile",
        "smoothed_pinball",
        "smoothed_insensitive",
        Huber(0.3),
    ),
    ("PrivateCurator", "loss"): forms("loss", "squared", "huber", "logistic", Huber(0.3)),
    ("PrivateGridRegressor", "loss"): forms("loss", "squared", "huber", "absolute", Huber(0.3)),
    ("PrivateSGDClassifier", "loss"): [
        *forms("loss", "smoothed_hinge", "log_loss", "squared_hinge", Logistic()),
        {"loss": "hinge", "perturbation": "output"},
    ],
    ("PrivateSGDRegressor", "loss"): [
        *forms("loss", "huber", "squared_error", Huber(0.3)),
        *forms("loss", "absolute", "quantile", perturbation="output"),
    ],
}
PURE = {"delta": 0.0, "accept": IDEALISED}
for _name in ("PrivateQuantileRegressor", "PrivateHuberRegressor", "PrivateKernelSVR"):
    OWN_FORMS[_name, "delta"] = [*FORMS["delta"], PURE]
OWN_FORMS["PrivateKernelRidge", "delta"] = [
    *FORMS["delta"],
    *({**pure, "solver": "output"} for pure in (PURE, {"delta": 0.0})),
]
for _name in ("PrivateKernelClassifier", "PrivateKernelSVC"):
    OWN_FORMS[_name, "delta"] = [*FORMS["delta"], PURE]
for _name in ("PrivateSGDRegressor", "PrivateSGDClassifier"):
    OWN_FORMS[_name, "delta"] = [*FORMS["delta"], {**PURE, "perturbation": "output"}]
