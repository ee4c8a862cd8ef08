"""Schedules of theorems: the numbers of the papers, and estimators that take them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpkernel import (
    PrivateKernelClassifier,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
    load,
    save,
)
from dpkernel.foundations.errors import ParameterError
from dpkernel.methods import (
    PrivateCurator,
    PrivateGridRegressor,
    PrivateHuberRegressor,
    PrivateKernelSVC,
    PrivateKernelSVR,
    PrivateSketchedRidge,
)
from dpkernel.proof.papers import lee_park_ahn_2025 as lee
from dpkernel.proof.papers import nie_wang_2016 as nie
from dpkernel.selection.candidates import free_choices
from dpkernel.solvers.erm_schedules import THEOREMS, is_schedule, schedule

N, EPSILON = 400, 2.0
IDEALISED = ("idealised-arithmetic",)
BOX = {"bounds": (-1, 1), "epsilon": EPSILON}
REAL = {**BOX, "y_bounds": (-1, 1)}

# the calculator of every schedule, at the numbers that stand when none are written
RATES = {
    "nie-wang-4": lambda: nie.theorem_4(N, 1.0),
    "nie-wang-5.1": lambda: nie.section_5_1(N, 1.0),
    "lee-11": lambda: lee.theorem_11(N, EPSILON, r=0.5, gamma=0.5),
    "lee-17": lambda: lee.theorem_17(N, EPSILON, r=0.5, gamma=0.5, alpha=1.0),
    "lee-18": lambda: lee.theorem_18(N, EPSILON, gamma=0.5),
    "lee-19": lambda: lee.theorem_19(N, EPSILON, r=0.5, gamma=0.5),
    "lee-21": lambda: lee.theorem_21(N, EPSILON, r=0.5, gamma=0.5, alpha=1.0),
    "lee-22": lambda: lee.theorem_22(N, EPSILON, r=0.5, gamma=0.5),
    "lee-58": lambda: lee.theorem_58(N, EPSILON, r=0.5, gamma=0.5),
    "lee-63": lambda: lee.theorem_63(N, EPSILON, 2),
    "lee-64": lambda: lee.theorem_64(N, EPSILON, 2),
    "lee-65": lambda: lee.theorem_65(N, EPSILON, 2),
}


@pytest.fixture
def table(rng):
    X = rng.uniform(-1, 1, (N, 2))
    return X, np.clip(np.sin(2 * X[:, 0]) / 2 + 0.1 * rng.normal(size=N), -1, 1)


@pytest.mark.parametrize("name", THEOREMS)
def test_a_schedule_is_what_the_calculator_of_its_theorem_says(name):
    rate, found = RATES[name](), schedule(name, N, EPSILON, n_inputs=2)
    assert found.lam == pytest.approx(rate.lam, rel=1e-12)
    wanted = getattr(rate, "n_features", None)
    assert found.wanted == (None if wanted is None else max(1, round(wanted)))
    assert found.strength == pytest.approx(N * rate.lam * (2 if name == "nie-wang-4" else 1))
    assert schedule(name, N, EPSILON, 2, squared=True).strength == pytest.approx(N * rate.lam)


def test_numbers_are_those_of_the_text():
    assert schedule("lee-11(r=0.75, gamma=0.25)", N, EPSILON).lam == pytest.approx(
        lee.theorem_11(N, EPSILON, r=0.75, gamma=0.25).lam
    )
    assert schedule("lee-18(gamma=0.5, alpha=1)", N, EPSILON).lam == pytest.approx(
        lee.theorem_18(N, EPSILON, gamma=0.5, alpha=1.0).lam
    )
    assert schedule("lee-63(rank=7)", N, EPSILON).numbers == {"rank": 7}
    odd = schedule("lee-17(r=1)", 300, 1.0)
    assert odd.n_features == odd.wanted + odd.wanted % 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lee-12", "one of nie-wang-4"),
        ("lee-11(beta=1)", "one of nie-wang-4"),
        ("lee-11(r=x)", "one of nie-wang-4"),
        ("lee-11(r=0.3)", "'r' parameter of lee-11"),
        ("nie-wang-4(beta=0)", "'beta' parameter of nie-wang-4"),
        ("lee-63(rank=0)", "'rank' parameter of lee-63"),
        (7, "one of nie-wang-4"),
    ],
)
def test_senseless_schedules_are_refused(text, message):
    with pytest.raises(ParameterError, match=message):
        schedule(text, N, EPSILON)
    assert is_schedule(text) == ("parameter of" in message)


LABELS = {**BOX, "classes": [0, 1]}
ESTIMATORS = {
    "ridge": (lambda text: PrivateKernelRidge(**REAL, regularisation=text), "lee-11"),
    "ridge, Fourier": (
        lambda text: PrivateKernelRidge(**REAL, regularisation=text, features="fourier"),
        "lee-17(alpha=0.75)",
    ),
    "ridge, output": (
        lambda text: PrivateKernelRidge(**REAL, regularisation=text, solver="output"),
        "nie-wang-5.1",
    ),
    "linear": (
        lambda text: PrivateKernelRidge(**REAL, regularisation=text, kernel="linear"),
        "lee-63",
    ),
    "hinge": (lambda text: PrivateKernelSVC(**LABELS, regularisation=text), "nie-wang-4"),
    "insensitive": (lambda text: PrivateKernelSVR(**REAL, regularisation=text), "nie-wang-4"),
    "Huber": (lambda text: PrivateHuberRegressor(**REAL, regularisation=text), "lee-18"),
    "quantile": (lambda text: PrivateQuantileRegressor(**REAL, regularisation=text), "lee-58"),
    "classes": (
        lambda text: PrivateKernelClassifier(**LABELS, regularisation=text, loss="logistic"),
        "lee-19(r=0.75, gamma=0.5)",
    ),
    "sketch": (
        lambda text: PrivateSketchedRidge(**REAL, regularisation=text, accept=IDEALISED),
        "lee-11",
    ),
    "curator": (
        lambda text: PrivateCurator(**REAL, regularisation=text, accept=IDEALISED, loss="huber"),
        "lee-22",
    ),
    "grid": (
        lambda text: PrivateGridRegressor(**REAL, regularisation=text, accept=IDEALISED),
        "lee-22(r=1)",
    ),
}


@pytest.mark.parametrize("case", ESTIMATORS)
def test_estimators_take_the_ridge_and_the_features_of_a_theorem(table, case, tmp_path):
    X, y = table
    build, text = ESTIMATORS[case]
    model = build(text)
    y = (y > 0).astype(int) if hasattr(model, "classes") else y
    public = model.fit(X, y).certificate_.public
    squared = case in ("ridge", "ridge, Fourier", "ridge, output", "linear", "sketch", "grid")
    found = schedule(text, N, EPSILON, 2, squared=squared)
    assert np.ravel(public["regularisation"])[0] == pytest.approx(found.strength)
    assert public["schedule"]["text"] == text
    if found.n_features is not None and case != "linear":
        own = getattr(model.feature_map_, "base", model.feature_map_)  # without a constant
        assert own.n_outputs == found.n_features
        assert len(public["schedule"]["differs"]) == found.wanted % 2  # features come in pairs
    if case == "linear":
        assert public["schedule"]["differs"] == [
            f"there are 2 features; the theorem asks for M = {found.wanted}"
        ]
    if case != "curator":
        again = load(save(model, tmp_path / "model"))
        assert again.regularisation in (text, public["regularisation"])


def test_a_number_of_features_of_the_user_is_kept_and_said_to_differ(table):
    model = PrivateKernelRidge(**REAL, regularisation="lee-11", n_features=8).fit(*table)
    assert model.feature_map_.n_outputs == 8
    (differs,) = model.certificate_.public["schedule"]["differs"]
    assert "there are 8 features; the theorem asks for M = " in differs


def test_a_theorem_is_not_a_free_choice():
    model = PrivateKernelRidge(**REAL)
    assert free_choices(model, [{"regularisation": "lee-11"}, {"regularisation": 2.0}]) is None
    with pytest.raises(ParameterError, match="the schedule of a theorem, such as 'lee-11"):
        free_choices(model, [{"regularisation": "lee-12"}])


def test_more_features_than_an_estimator_takes_are_cut_and_said_to_be():
    found = schedule("lee-17(r=1, gamma=1)", 10**10, 1.0)
    assert found.wanted > 10_000 == found.n_features and math.isfinite(found.lam)
    assert "asks for M" in found.public(10_000)["differs"][0]
