"""What the published stochastic gradient methods share: rows, order, loop, proof and certificate.

A run draws its order of rows afresh, with replacement, from the same noise that it pays for; the
order itself is not released. What is proved of an output perturbation is a mixture over how often a
record was drawn (``hit_law``), not the papers' sensitivities in probability.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from scipy.stats import binom
from sklearn.base import clone

from dpkernel.certificate import Certificate, Release
from dpkernel.domain import clip_rows
from dpkernel.errors import ParameterError, parameter_message
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.features import FeatureMap, LinearFeatures
from dpkernel.ledger import Ledger
from dpkernel.losses import Loss
from dpkernel.mechanisms import MixtureGaussian
from dpkernel.noise import FREE, MOST_DRAWS, Noise, NoiseSource, Part, Plan
from dpkernel.profiles import PrivacyProfile
from dpkernel.rounding import HALF_ULP, gamma
from dpkernel.sensitivity import RandomSensitivity
from dpkernel.types import Array, Budget, IntArray, Neighbours
from dpkernel.validation import Choice, Kind, Real, Whole

ORDER = "sampling order"
_MOST_CELLS = 500  # of a law of hits
NOT_SUPPORTED = "what is proved of the printed noise does not support the claimed epsilon and delta"


# --- order and loop -------------------------------------------------------------------------


def uniform_indices(source: NoiseSource, n_rows: int, count: int) -> IntArray:
    """Return ``count`` independent indices, each exactly uniform on 0 .. n_rows - 1."""
    whole = 2**64 // n_rows * n_rows  # words from here on would favour small indices
    kept: list[Any] = []
    while sum(map(len, kept)) < count:
        words = source.words(count)
        kept.append(words if whole == 2**64 else words[words < np.uint64(whole)])
    return np.asarray((np.concatenate(kept)[:count] % np.uint64(n_rows)).astype(np.int64))


def sgd(
    rows: Array,
    targets: Array,
    order: IntArray,
    step: float,
    slope: Callable[[Array, Array], Array],
    *,
    radius: float | None = None,
    average: bool = False,
    on_gradient: Callable[[Array], Array] | None = None,
) -> Array:
    r"""Return w_(T+1), or the mean of w_1 .. w_T, of stochastic gradient descent from w_1 = 0.

    w_(t+1) = w_t - eta slope(y_i, <w_t, z_i>) z_i for the rows i of the order, then projected on
    the ball of the radius. ``slope`` is the derivative of the loss in the prediction;
    ``on_gradient`` replaces a gradient by what may be used of it.
    """
    w, total = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    with np.errstate(all="ignore"):  # a floating-point warning would tell of the data
        for i in order:
            total += w
            row = rows[i]
            gradient = slope(targets[i : i + 1], np.atleast_1d(row @ w))[0] * row
            w = w - step * (gradient if on_gradient is None else on_gradient(gradient))
            if radius is not None:
                w = w * (radius / max(math.sqrt(w @ w), radius))
    return total / len(order) if average else w


# --- what is proved of an output perturbation ----------------------------------------------


@dataclass(frozen=True)
class Descent:
    """A run of ``sgd`` by the numbers that a proof needs; all public."""

    n_rows: int
    n_steps: int
    step: float
    n_columns: int
    kappa: float  # ||z|| <= kappa
    gradient: float  # a bound on every gradient
    farthest: float  # a bound on every ||w_t||
    smoothness: float  # l'' at most; only for alpha = 1
    expansion: float = 0.0  # by which a common step can enlarge a squared distance
    smooth: bool = True  # alpha = 1
    projected: bool = False
    average: bool = False

    @property
    def rounding(self) -> float:
        r"""How far the computed output can be from that of exact steps (``smooth``).

        Exact steps do not expand, and each computed step is an exact one and an error of at most
        eta kappa (c_2 gamma_M kappa R + 13u G/kappa) + 4u R. Without smoothness a margin's error
        can flip a slope: that part is in ``move`` instead. A projection adds gamma_(M+4) R, the
        mean of T vectors gamma_(T+2) R.
        """
        u, reach = HALF_ULP, self._reach
        error = 4 * u * reach + (12 * u + gamma(1)) * self.step * self.gradient
        if self.smooth:
            margin = self.smoothness * gamma(self.n_columns) * self.kappa * reach
            error += self.step * self.kappa * margin
        if self.projected:
            error += gamma(self.n_columns + 4) * reach
        of_mean = gamma(self.n_steps + 2) * reach if self.average else 0.0
        return 1.01 * self.n_steps * error + of_mean

    @property
    def _reach(self) -> float:
        # computed iterates leave the bound by at most the errors of all steps, far below 1/1000
        return self.farthest * 1.001

    def move(self, hits: Array) -> Array:
        r"""Return how far the output moves when one record is replaced that was drawn ``hits`` times.

        sqrt(a^2 + (T - k) c^2) + (k - 1) a with a = 2 eta G: a common step sends a distance D to at
        most sqrt(D^2 + c^2), one on the replaced record to D + a, and the worst order is one hit,
        all common steps, the other hits.
        """
        own = 2 * self.step * self.gradient
        expansion = self.expansion
        if not self.smooth:
            lost = gamma(self.n_columns) * self._reach
            expansion += 8 * self.step * self.gradient * lost
        others = np.maximum(self.n_steps - hits, 0)
        moved = np.sqrt(own**2 + others * expansion) + (hits - 1) * own
        return np.asarray(np.where(hits > 0, moved * (1 + 1e-13), 0.0))

    def hit_law(self) -> RandomSensitivity:
        """Return the law of the sensitivity: ``move`` of a binomial number of hits.

        The order is drawn afresh and its law does not depend on the data, so a release with
        Gaussian noise has the mixture of the profiles that the hits give, for each record alone.
        """
        share = 1 / self.n_rows
        mean = self.n_steps * share
        first = max(1, math.floor(mean - 12 * math.sqrt(mean)))
        last = math.ceil(mean) + 1
        while last < self.n_steps and binom.sf(last, self.n_steps, share) > 1e-22:
            last += 1
        hits = np.arange(float(first), min(last, self.n_steps) + 1)
        # rounded towards more hits: few ones count as the first, and a cell as its last
        weights = np.minimum(binom.pmf(hits, self.n_steps, share) * (1 + 1e-9), 1.0)
        if first > 1:
            weights[0] = binom.cdf(first, self.n_steps, share) * (1 + 1e-9)
        ends = np.unique(np.linspace(0, len(hits) - 1, _MOST_CELLS).astype(np.int64))
        weights = np.add.reduceat(weights, np.concatenate(([0], ends[:-1] + 1)))
        tail = float(binom.sf(hits[-1], self.n_steps, share)) * (1 + 1e-9)
        if weights.sum() + tail > 1:  # all but never without a hit
            weights *= (1 - tail) / weights.sum()
        none = max(1 - tail - float(weights.sum()), 0.0)
        values, law = (0.0, *self.move(hits[ends]).tolist()), (none, *weights.tolist())
        return RandomSensitivity(Neighbours.REPLACE_ONE, values, law, tail)

    def mechanism(self, noise_scale: float) -> MixtureGaussian:
        """Return the release of the output with exactly this noise, on a grid far below it."""
        noise = math.floor(math.log2(noise_scale))
        finest = math.ceil(math.log2(self.farthest)) - 58  # an iterate fits in 62 bits
        grid = 2.0 ** min(max(noise - 30, finest), noise - 3)
        return MixtureGaussian(
            self.hit_law(), self.n_columns, noise_scale / grid, grid, self.rounding
        )


# --- estimators -----------------------------------------------------------------------------


@dataclass(frozen=True)
class AmplifiedPlan(Plan):
    """A plan whose secret order is worth something: charged what is proved of the whole."""

    proved: PrivacyProfile = FREE

    @property
    def profile(self) -> PrivacyProfile:
        """What is proved of the whole."""
        return self.proved


@dataclass(frozen=True)
class Amplified(Release):
    """A release that is paid for as part of an ``AmplifiedPlan``."""

    proved: PrivacyProfile = FREE


class PublishedSGD(PrivateEstimator):
    """A published stochastic gradient method on the rows of a feature map."""

    _constraints: ClassVar = {
        "epsilon": Real(0, math.inf),
        "delta": Real(0, 1),
        "n_steps": (Choice(None), Whole(1, MOST_DRAWS)),
        "step": Real(0, math.inf),
        "target_bound": (Choice(None), Real(1e-100, 1e100)),
        "ledger": (Choice(None), Kind(Ledger)),
        "noise": (Choice(None), Kind(NoiseSource)),
    }
    _paper: ClassVar[str]
    _place: ClassVar[str]
    neighbours = Neighbours.REPLACE_ONE

    n_steps: int | None
    step: float
    target_bound: float | None
    features: Any
    coef_: Array
    feature_map_: FeatureMap

    @abstractmethod
    def _run(self, Z: Array, y: Array, features: FeatureMap) -> Any:
        """Run the algorithm on rows of norm at most the map's bound; return the estimator."""

    @abstractmethod
    def _loss(self) -> Loss:
        """Return the loss."""

    def fit(self, X: Any, y: Any) -> Any:
        """Run the algorithm on (X, y); return the estimator."""
        self._check_parameters()
        X, y = self._check_training_data(X, y)
        features = self._feature_map(X.shape[1])
        Z = clip_rows(features.transform_block(_dense(X)), features.row_norm_bound)
        loss = self._loss()
        if not loss.labels:
            y = np.clip(y, -self._bound, self._bound)
        self._run(Z, y, features)
        self._set_columns()
        self.feature_map_ = features
        return self

    def decision_function(self, X: Any) -> Array:
        """Return <w, phi(x)> at every row."""
        rows = _dense(self._check_new_data(X))
        Z = clip_rows(self.feature_map_.transform_block(rows), self.feature_map_.row_norm_bound)
        return np.asarray(Z @ self.coef_)

    def predict(self, X: Any) -> Array:
        """Return the prediction at every row, not cut to any bound, or the class."""
        return self.decision_function(X)

    @property
    def _bound(self) -> float:
        """c, checked by ``_check_parameters``; margins have none."""
        return 1.0 if self.target_bound is None else float(self.target_bound)

    def _steps(self, n_rows: int) -> int:
        return n_rows if self.n_steps is None else int(self.n_steps)

    def _feature_map(self, n_inputs: int) -> FeatureMap:
        """Return the map, built; a name stands for one with its own parameters."""
        found: FeatureMap = LinearFeatures() if self.features == "linear" else clone(self.features)
        found.build(n_inputs)
        return found

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        found = super()._check_parameters()
        if not self._loss().labels and self.target_bound is None:
            raise self._refused(
                "target_bound",
                "a float in the range (0, inf)",
                None,
                "Pass a publicly known bound on |y|; targets are cut to it.",
            )
        return found

    def _check_step(self, limit: float, why: str) -> None:
        if not self.step < limit:
            raise self._refused(
                "step", f"below {limit:.6g}, {why}", float(self.step), "Take a smaller step."
            )

    def _check_scale(self, noise_scale: float) -> None:
        if not 1e-200 < noise_scale < 1e200:
            raise self._refused(
                "step",
                "such that the printed noise is a number in (1e-200, 1e200)",
                float(self.step),
                "Take fewer or smaller steps, or a radius.",
            )

    def _refused(self, name: str, must_be: str, got: object, advice: str = "") -> ParameterError:
        return ParameterError(parameter_message(type(self).__name__, name, must_be, got, advice))

    def _plan(self, releases: Sequence[Release]) -> tuple[Ledger, Plan, Neighbours]:
        ledger, plan, relation = super()._plan(releases)
        parts = (Part(ORDER, FREE), *plan.parts)
        first = releases[0]
        if isinstance(first, Amplified):
            return ledger, AmplifiedPlan(parts, proved=first.proved), relation
        return ledger, Plan(parts), relation

    def _order(self, noise: Noise, n_rows: int, n_steps: int) -> IntArray:
        """Return the order of this run, fresh from the noise that was paid for."""
        return uniform_indices(noise.claim(FREE, ORDER), n_rows, n_steps)

    def _certify(
        self,
        releases: Sequence[Release],
        noise: Noise,
        *,
        public: Mapping[str, Any],
        errata: Sequence[str],
        unproved: Sequence[str],
        proved: PrivacyProfile | None = None,
    ) -> Certificate:
        """Return a certificate of the paper's claim; valid only where nothing is ``unproved``.

        ``proved`` is the profile of the releases where it is not their composition.
        """
        budget = Budget(self.epsilon, self.delta)
        features = public["features"].to_dict()
        issued = Certificate.issue(
            type(self).__name__,
            budget,
            releases,
            noise,
            public={
                "step": float(self.step),
                "target_bound": None if self.target_bound is None else float(self.target_bound),
                **public,
                "features": features,
                "errata": list(errata),
            },
            reference=f"{self._paper}, {self._place}, as printed",
            invalid_because=unproved,
        )
        if not unproved:
            return issued
        # epsilon and delta are the paper's claim; the profile is what is proved of the release
        return replace(issued, epsilon=budget.epsilon, profile=proved or issued.profile)


def _dense(X: Any) -> Array:
    """Return a table as an array; the papers know no sparse ones."""
    return np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)
