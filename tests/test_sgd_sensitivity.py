"""Attacks on the sensitivities of SGD: neighbours found by search never move it farther than stated.

The runs are those of a naive loop in NumPy (``sgd_twin``). Where a bound is attained, data sets that
attain it are written down, and the same ones exceed bounds that are known to be wrong.
"""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm
from sgd_twin import batches_of, descend, descend_one, farthest, options

from dpkernel import Budget, Neighbours
from dpkernel.errors import CertificateError, ParameterError
from dpkernel.losses import (
    REGISTRY,
    Absolute,
    Hinge,
    Huber,
    Logistic,
    Pinball,
    PowerAbsolute,
    PowerHinge,
    SmoothedHinge,
    SmoothedInsensitive,
    SmoothedPinball,
    Squared,
    SquaredHinge,
)
from dpkernel.mechanisms import Gaussian, MixtureGaussian
from dpkernel.sensitivity import Path, RandomSensitivity, Sensitivity, sensitivity_from_dict
from dpkernel.solvers.sgd_output import OutputSGD

R, Z = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT
POWERS = (1.0, 1.25, 1.5, 1.75, 2.0)
LOSSES = {
    "logistic": Logistic(),
    "smoothed_hinge": SmoothedHinge(0.5),
    "squared_hinge": SquaredHinge(1.0),
    "hinge": Hinge(),
    "squared": Squared(),
    "huber": Huber(0.4),
    "pinball": Pinball(0.7),
    "smoothed_pinball": SmoothedPinball(0.3, 0.4),
    "absolute": Absolute(),
    "tube": Absolute(0.3),
    "smoothed_insensitive": SmoothedInsensitive(0.2, 0.5),
    **{f"power_hinge_{q}": PowerHinge(q) for q in POWERS},
    **{f"power_absolute_{q}": PowerAbsolute(q) for q in POWERS},
}
SMOOTH = {name: loss for name, loss in LOSSES.items() if loss.smoothness < math.inf}

# n_rows, batch, n_steps, and what differs from a plain run
PATHS = {
    "one-epoch": (5, 1, 5, {}),
    "epochs": (4, 1, 12, {"order": "shuffle"}),
    "fixed": (3, 1, 9, {"order": "fixed"}),
    "few-steps": (12, 1, 4, {}),
    "part-of-an-epoch": (4, 1, 10, {}),
    "batches": (6, 2, 9, {}),
    "short-batch": (5, 2, 9, {}),
    "short-batch-part": (7, 3, 7, {}),
    "drop-last": (5, 2, 6, {"drop_last": True}),
    "one-row": (1, 1, 5, {}),
    "all-rows": (3, 3, 5, {}),
    "averaged": (4, 1, 10, {"averaged": True}),
    "averaged-batches": (5, 2, 8, {"averaged": True}),
    "averaged-drop": (5, 2, 6, {"averaged": True, "drop_last": True}),
    "projected": (4, 1, 8, {"radius": 0.3}),
    "projected-batches": (5, 2, 7, {"radius": 0.3, "averaged": True}),
}
RIDGED = {
    "decreasing": (4, 1, 12, {}),
    "decreasing-short": (5, 2, 9, {}),
    "decreasing-part": (4, 1, 7, {}),
    "decreasing-drop": (5, 2, 6, {"drop_last": True}),
    "decreasing-few": (9, 1, 3, {}),
    "constant": (4, 1, 8, {"step": 1.0}),
    "constant-batches": (6, 3, 6, {"step": 1.0}),
    "constant-part": (4, 1, 6, {"step": 0.5}),
    "constant-short": (5, 2, 9, {"step": 1.0}),
}


def plan_of(loss, sizes, *, d=2, kappa=1.0, c=1.0, share=1.0, **given):
    """Return a run at a share of the largest step that is allowed."""
    n, batch, steps, more = sizes
    numbers = {
        "loss": loss, "n_rows": n, "n_coordinates": d, "row_bound": kappa, "target_bound": c,
        "batch": batch, "n_steps": steps, "order": "shuffle", **more, **given,
    }  # fmt: skip
    share = numbers.pop("step", share)
    if numbers.get("ridge"):
        if loss.lipschitz == math.inf:
            numbers.setdefault("radius", 0.7)
        if "step" not in more and "step" not in given:
            return OutputSGD(**numbers)
    largest = OutputSGD(step=1e-9, **numbers).largest_step
    return OutputSGD(step=share * (largest if loss.smoothness < math.inf else 0.4), **numbers)


def generator(*names):
    return np.random.default_rng(zlib.crc32("/".join(map(str, names)).encode()))


def check_trace(plan, trace):
    """No gradient was longer than stated, and no iterate after any number of steps."""
    assert trace.gradient <= plan.gradient * (1 + 1e-9)
    for steps, reached in enumerate(trace.norms, start=1):
        assert reached <= replace(plan, n_steps=steps).norm_bound * (1 + 1e-9)


# --- no neighbours are farther apart --------------------------------------------------------


def test_every_loss_is_attacked():
    assert {loss.kind for loss in LOSSES.values()} == set(REGISTRY)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", LOSSES)
def test_neighbours_never_move_further(name, path):
    draws = generator(name, path)
    share, d = draws.choice([1.0, 0.3]), int(draws.integers(1, 4))
    plan = plan_of(LOSSES[name], PATHS[path], share=share, d=d, kappa=draws.choice([1.0, 0.7]))
    for relation in (R, Z):
        ratio, trace = farthest(plan, relation, draws)
        assert 0.01 < ratio <= 1 + 1e-9
        check_trace(plan, trace)


@pytest.mark.parametrize("path", RIDGED)
@pytest.mark.parametrize("name", SMOOTH)
def test_neighbours_never_move_further_with_a_ridge(name, path):
    draws = generator(name, path, "ridge")
    ridge = draws.choice([0.1, 1.0])
    plan = plan_of(SMOOTH[name], RIDGED[path], ridge=ridge, d=int(draws.integers(1, 3)))
    for relation in (R, Z):
        ratio, trace = farthest(plan, relation, draws)
        assert 0.01 < ratio <= 1 + 1e-9
        check_trace(plan, trace)
