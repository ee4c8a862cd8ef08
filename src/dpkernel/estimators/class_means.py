r"""Many classes from one release: the noisy mean of the rows of every class.

One problem per class would share the budget, and the noise of each would grow with the root of the
number of classes K. Here one release holds the sums of the rows of all classes: a row is in one
class only, so the K sums together move by no more than one row is long, whatever K is.

1. A noisy mean of all rows, which the rows are then measured from. Rows are clipped to a ball around
   it.
2. The sums of (z, constant) over the rows of every class, as one vector. The constant counts rows.

What follows is post-processing. The means are shrunk towards the common mean as far as they could be
noise. The decision value of a class is that of normal laws with one common spread (linear
discriminant analysis): (<m_k, z> - ||m_k||^2 / 2) / s^2 + log(share of the class).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpkernel.data.domain import Domain, unit_inputs
from dpkernel.data.sources import Source
from dpkernel.estimators.base import FitPlan, Fitted, logger
from dpkernel.estimators.kernel_model import linear_model, public_sizes
from dpkernel.estimators.progress import Parts
from dpkernel.estimators.records import STEPS, RecordPasses
from dpkernel.estimators.regressor.inputs import towards_zero
from dpkernel.foundations.types import Array, Budget, IntArray, Neighbours
from dpkernel.models.features.linear import LinearFeatures
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.mechanisms import Gaussian, Mechanism
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles import compose, gaussian_mu
from dpkernel.privacy.sensitivity import bounded_sum

METHOD = "class means"  # what the certificate calls this plan
_FEWEST_CLASSES = 5  # with fewer classes, sharing the budget among them costs little
_LARGEST_SIGNAL = 5.0  # n mu / (sqrt(K) d) from which problems of their own are better
_CENTRE = 0.1  # the share of mu^2 for the mean of all rows
_RADIUS = 0.5  # of the ball, in units of the longest row; few rows are as long as that
_CONSTANT = 0.25
_LEAST_SHARE = 0.1  # of a class, relative to an equal share
_SPREAD = 3.0  # the spread within a class, relative to one that is the same in all directions


def suits(source: Source, domain: Domain, budget: Budget, n_classes: int) -> bool:
    """Whether class means are expected to be better than one problem per class.

    They need a public number of rows without weights.
    """
    if budget.pure or domain.columns is None or n_classes < _FEWEST_CLASSES or source.weighted:
        return False
    signal = source.n_rows * gaussian_mu(budget.epsilon, budget.delta) / math.sqrt(n_classes)
    return signal < _LARGEST_SIGNAL * domain.n_unit_columns


class MeansPlan(FitPlan):
    """Release the mean of all rows, then the sums of all classes."""

    def __init__(
        self,
        source: Source,
        domain: Domain,
        n_classes: int,
        budget: Budget,
        relation: Neighbours,
        *,
        verbose: bool = False,
    ) -> None:
        self._source, self._domain, self._n_classes = source, domain, n_classes
        self._parts, d = Parts(2.0, verbose=verbose), domain.n_unit_columns
        self._features = LinearFeatures().build(d)
        self._passes = RecordPasses(source).then(
            _to_features, domain, self._features, bytes_a_row=8 * (d + 1)
        )
        self._centre, self._sums = _mechanisms(d, n_classes, budget, relation)
        self.releases = [Release("centre", self._centre), Release("class sums", self._sums)]

    def prepare(self) -> None:
        """Read the table and add up its rows."""
        logger.info("%d classes on %d rows", self._n_classes, self._source.n_rows)
        self._passes.prepare()
        (self._total,) = self._passes.sum(_sum_rows)

    def run(self, noise: Noise) -> Fitted:
        """Release both sums and build the model."""
        self._passes.spent = True
        n, size = self._source.n_rows, self._n_classes
        with self._parts.part("centre"):
            noisy = self._centre.release(self._total, noise) / (STEPS * n)
            centre = towards_zero(noisy, self._centre.noise_scale / (STEPS * n))
        with self._parts.part("class sums"):
            (sums,) = self._passes.sum(_sum_classes, centre, size)
            found = self._sums.release(sums.ravel(), noise).reshape(size, -1) / STEPS
        coefficients, intercept = _discriminants(found, self._sums.noise_scale / STEPS, n)
        coefficients = coefficients / _RADIUS
        coef, constants = coefficients.T.copy(), intercept - coefficients @ centre
        return Fitted(
            linear_model(self._domain, self._features, coef, constants, several=True),
            {**public_sizes(self._source, self._domain, self._features), "method": METHOD},
        )


def _mechanisms(
    n_inputs: int, n_classes: int, budget: Budget, relation: Neighbours
) -> tuple[Mechanism, Mechanism]:
    """Return the mechanisms of both releases, which together fit the budget."""
    mu = gaussian_mu(budget.epsilon, budget.delta)
    sensitivity = bounded_sum(relation, bound=float(STEPS))
    while True:
        centre, sums = (
            Gaussian.with_mu(sensitivity, mu * math.sqrt(share), dimension=size, integer=True)
            for share, size in ((_CENTRE, n_inputs), (1 - _CENTRE, n_classes * (n_inputs + 1)))
        )
        whole = compose([centre.profile(), sums.profile()])
        if whole.supports(budget) and whole.epsilon(budget.delta) <= budget.epsilon:
            return centre, sums
        mu *= 1 - 1e-9


def _discriminants(found: Array, noise: float, n_rows: int) -> tuple[Array, Array]:
    """Return the slopes and the constants of the decision values, in units of z."""
    size, length = len(found), found.shape[1] - 1
    equal, unit = n_rows / size, math.sqrt(1 - _CONSTANT**2)
    counts = equal + towards_zero(found[:, -1] / _CONSTANT - equal, noise / _CONSTANT)
    counts = np.maximum(counts, _LEAST_SHARE * equal)
    means = found[:, :-1] / (unit * counts[:, None])
    errors = (noise / (unit * counts)) ** 2  # the variance of a coordinate of each mean
    signal = max(float(np.mean(np.sum(means**2, axis=1) / length - errors)), 1e-12)
    means *= (signal / (signal + errors))[:, None]
    squares = np.sum(means**2, axis=1)
    spread = _SPREAD * max(1 - float(np.mean(squares)), 0.1) / length
    constants = np.log(counts / counts.sum()) - squares / (2 * spread)
    return means / spread, constants


# the steps for every block of rows; they are at module level so that Dask workers find them


def _to_features(X: Array, y: Array, domain: Domain, features: LinearFeatures) -> Any:
    return features.transform_block(unit_inputs(X, domain, "float64")), y


def _clipped(rows: Array, bound: float) -> IntArray:
    """Return rows as integers whose norm is at most ``bound`` times STEPS."""
    norms = np.sqrt(np.add.reduce(rows * rows, axis=1))
    factors = STEPS * (1 - 2.0**-30) * (bound / np.maximum(norms, bound))
    return np.asarray(np.trunc(rows * factors[:, None]), dtype=np.int64)


def _sum_rows(rows: Array, y: Array) -> Any:
    return (_clipped(rows, 1.0).sum(axis=0),)


def _sum_classes(rows: Array, y: Array, centre: Array, n_classes: int) -> Any:
    """Return the sums of (z, constant) over the rows of every class, in integers.

    A row is in one class, and ||(z, constant)|| <= 1. If y has shares of classes, a row has a
    part in several sums. These parts together are not longer than the row, because the squares of
    shares that add up to 1 add up to at most 1.
    """
    unit = math.sqrt(1 - _CONSTANT**2)
    z = _clipped((rows - centre) * (unit / _RADIUS), unit)
    sums = np.zeros((n_classes, rows.shape[1] + 1), dtype=np.int64)
    for place in range(n_classes):
        if y.ndim == 1:
            mine = y == place
            sums[place, :-1] = z[mine].sum(axis=0)
            sums[place, -1] = int(_CONSTANT * STEPS) * int(np.count_nonzero(mine))
        else:
            part = y[:, place]
            sums[place, :-1] = np.trunc(z * part[:, None]).astype(np.int64).sum(axis=0)
            sums[place, -1] = np.trunc(_CONSTANT * STEPS * part).astype(np.int64).sum()
    return (sums,)
