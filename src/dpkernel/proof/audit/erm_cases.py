"""Worst cases of output perturbation, and the twins that must be rejected.

The first case is a support vector machine on a few records in two dimensions. Its ridge is so
strong that every margin stays below 1, and then the minimisers of the two data sets are as far
apart as the stability bound allows. The second case is least squares for one record, with a ridge
so strong that its bound is almost attained. The twins are mistakes that can be made with the same
bound: half the scale, the easier neighbouring relation, and one random number for a whole function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.models import kernels
from dpkernel.models.losses import Hinge, Squared
from dpkernel.privacy.mechanisms import (
    IDEALISED,
    FunctionalGaussian,
    Gaussian,
    L2Gamma,
    Laplace,
    NoisyFunction,
)
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.sensitivity import erm_prediction
from dpkernel.proof.audit.core import Case
from dpkernel.solvers.objective_perturbation import BlockRecords
from dpkernel.solvers.output_perturbation import Risk, minimise_risk

_M, _RIDGE = 4, 16.0
_ROWS = np.tile([0.6, 0.8], (_M, 1))  # of norm 1
_POINTS = np.array([[0.6, 0.8], [0.8, -0.6]])  # the points of two predictions
_RISK = Risk(Hinge(), _M, 2, 1.0, _RIDGE)
_SQUARES = Risk(Squared(), 1, 2, 1.0, 64.0)


def minimisers(risk: Risk = _RISK) -> tuple[Array, Array]:
    """Return the computed minimisers of two data sets that differ in one label."""

    def solved(last: float) -> Array:
        block = _ROWS[: risk.n_rows], np.array([1.0] * (risk.n_rows - 1) + [last]), None
        return minimise_risk(lambda loss: BlockRecords(lambda: [block], loss), risk)

    return solved(1.0), solved(-1.0)


def _vector(
    name: str, mechanism: Any, claim: Any, broken: str | None = None, risk: Risk = _RISK
) -> Case:
    values = minimisers(risk)
    shift = values[1] - values[0]
    direction = shift / np.linalg.norm(shift)
    radial = mechanism.kind == L2Gamma.kind

    def run(neighbour: bool, noise: Noise) -> float:
        released = mechanism.release(values[int(neighbour)], noise)
        if radial:  # the log-likelihood ratio of exp(-norm)
            near, far = (float(np.linalg.norm(released - value)) for value in values)
            return near - far
        return float(released @ direction)

    return Case(name, claim.profile(), mechanism, run, broken)


def _prediction(
    name: str,
    mechanism: Any,
    claim: Any,
    score: Callable[[Array], float],
    broken: str | None = None,
) -> Case:
    """Return the case of predictions at two points with one random number for both."""
    values = [_POINTS @ beta for beta in minimisers()]

    def run(neighbour: bool, noise: Noise) -> float:
        added = mechanism.release(np.zeros(1), noise)
        return score(values[int(neighbour)] + added)

    return Case(name, claim.profile(), mechanism, run, broken)


def _answers(
    name: str, mechanism: Any, claim: Any, times: int = 1, broken: str | None = None
) -> Case:
    """Return the case of a function that is evaluated at its worst point, perhaps with fresh noise.

    The function of the neighbour is zero, so every value of it is noise.
    """
    kernel, at = kernels.GaussianKernel(), np.zeros(1)
    reach = mechanism.sensitivity.value

    def run(neighbour: bool, noise: Noise) -> float:
        factor = 0.0 if neighbour else reach

        def value(points: Array) -> Array:
            return np.asarray(factor * kernel(points, at[None, :])[:, 0])

        key, found = mechanism.key(noise), []
        for k in range(times):
            fresh = key + bytes([k])  # a curator that forgets its answers would draw again
            function = NoisyFunction(value, kernel, mechanism, fresh)
            if times == 1:
                function.answer(at + 0.5)  # an earlier question
            found.append(function.answer(at)[0])
        return float(np.mean(found))

    return Case(name, claim.profile(), mechanism, run, broken)


def erm_cases(budget: Budget, pure: Budget) -> list[Case]:
    """Return the sound cases of output perturbation, and its twins."""
    replaced = _RISK.sensitivity(Neighbours.REPLACE_ONE)
    blanked = _RISK.sensitivity(Neighbours.ZERO_OUT)
    found = Gaussian.calibrate(replaced, budget, dimension=2)
    easier = Gaussian.calibrate(blanked, budget, dimension=2)
    gamma = L2Gamma.calibrate(replaced, pure, dimension=2, accept=(IDEALISED,))
    function = FunctionalGaussian.calibrate(replaced, budget, dimension=4, accept=(IDEALISED,))
    squares = Gaussian.calibrate(_SQUARES.sensitivity(Neighbours.REPLACE_ONE), budget, dimension=2)
    one = Laplace.calibrate(erm_prediction(replaced, reach=1.0), pure)

    def first(values: Array) -> float:
        return float(values[0])

    def difference(values: Array) -> float:
        return float(values[0] - values[1])

    name = "output perturbation"
    return [
        _vector(name, found, found),
        _vector(f"{name}, pure", gamma, gamma),
        _vector(f"{name}, least squares", squares, squares, risk=_SQUARES),
        _prediction(f"{name}, one prediction", one, one, first),
        _answers("curator", function, function),
        _answers(
            "curator, half the noise",
            replace(function, sigma=function.sigma / 2),
            function,
            broken="half the noise",
        ),
        _answers(
            "curator, noise drawn again", function, function, times=4, broken="noise drawn again"
        ),
        _vector(
            f"{name}, half the scale",
            replace(found, sigma=found.sigma / 2),
            found,
            "half the noise",
        ),
        _vector(
            f"{name}, pure, half the scale",
            replace(gamma, scale=gamma.scale / 2),
            gamma,
            "half the noise",
        ),
        _vector(
            f"{name}, least squares, half the scale",
            replace(squares, sigma=squares.sigma / 2),
            squares,
            "half the noise",
            _SQUARES,
        ),
        _vector(f"{name}, zero-out for replaced", easier, found, "wrong neighbours"),
        _prediction(
            f"{name}, one prediction, half the scale",
            replace(one, scale=one.scale / 2),
            one,
            first,
            "half the noise",
        ),
        _prediction(
            f"{name}, one number for a function", one, one, difference, "scalar noise on a function"
        ),
    ]
