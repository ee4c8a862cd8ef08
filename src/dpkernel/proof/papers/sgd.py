"""Common parts of the published stochastic gradient methods: rows, order, loop, proof and certificate.

A run draws its order of rows afresh, with replacement, from the same noise that it pays for. The
order itself is not released. The profile that is proved for output perturbation is a mixture over
how often a record was sampled. It does not use the papers' sensitivities that hold in probability.
The run, its bounds and its law are those of ``solvers.sgd_output``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone

from dpkernel.data.blocks import dense_rows
from dpkernel.data.domain import clip_rows
from dpkernel.data.sources import training_data
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, IntArray, Neighbours
from dpkernel.foundations.validation import Choice, Kind, Real, Whole
from dpkernel.models.features import FeatureMap, LinearFeatures
from dpkernel.models.losses import Loss
from dpkernel.privacy.certificate import Certificate, Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import MixtureGaussian
from dpkernel.privacy.noise import FREE, MOST_DRAWS, Noise, NoiseSource, Part, Plan
from dpkernel.privacy.profiles import PrivacyProfile
from dpkernel.privacy.sensitivity import RandomSensitivity
from dpkernel.solvers.sgd_output import OutputSGD

ORDER = "sampling order"
NOT_SUPPORTED = (
    "the profile proved for the printed noise does not support the claimed epsilon and delta"
)


# --- order and loop -------------------------------------------------------------------------


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
    the ball of the radius. ``slope`` is the derivative of the loss with respect to the prediction.
    ``on_gradient`` is applied to every gradient, for example to clip it.
    """
    w, total = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    with np.errstate(all="ignore"):  # a floating-point warning would depend on the data
        for i in order:
            total += w
            row = rows[i]
            gradient = slope(targets[i : i + 1], np.atleast_1d(row @ w))[0] * row
            w = w - step * (gradient if on_gradient is None else on_gradient(gradient))
            if radius is not None:
                w = w * (radius / max(math.sqrt(w @ w), radius))
    return total / len(order) if average else w


# --- output perturbation: the library's own run with the printed noise -----------------------


def output_run(
    loss: Loss,
    n_rows: int,
    n_columns: int,
    n_steps: int,
    step: float,
    *,
    kappa: float,
    target_bound: float,
    radius: float | None = None,
    average: bool = False,
) -> OutputSGD:
    """Return the run: single rows sampled with replacement, in an order that nobody sees."""
    return OutputSGD(
        loss,
        n_rows,
        n_columns,
        kappa,
        target_bound,
        batch=1,
        n_steps=n_steps,
        order="replacement",
        step=step,
        radius=math.inf if radius is None else radius,
        averaged=average,
        fresh=True,
    )


def output_mechanism(run: OutputSGD, noise_scale: float) -> MixtureGaussian:
    """Return the mechanism that releases the output with exactly this noise, on a grid far below it.

    Its profile is a mixture over how often a record was sampled, for replaced records. The bound of the
    run is for a mean of w_2 .. w_(T+1); a mean of w_1 .. w_T moves less.
    """
    law = run.sensitivity(Neighbours.REPLACE_ONE)
    assert isinstance(law, RandomSensitivity)
    noise = math.floor(math.log2(noise_scale))
    finest = math.ceil(math.log2(run.norm_bound)) - 58  # so that an iterate fits into 62 bits
    grid = 2.0 ** min(max(noise - 30, finest), noise - 3)
    return MixtureGaussian(law, run.n_coordinates, noise_scale / grid, grid, run.rounding)


def output_of(run: OutputSGD, rows: Array, targets: Array, order: IntArray) -> Array:
    """Return w_(T+1) of this order, or the printed mean of w_1 .. w_T.

    Because w_1 = 0, that mean is (T-1)/T times the mean after T-1 steps. Its rounding error is within
    the bound of the run.
    """
    steps = run.n_steps
    if not run.averaged:
        return run.run([[(rows, order, targets, np.ones(len(rows)))]])
    if steps == 1:
        return np.zeros(run.n_coordinates)
    shorter = replace(run, n_steps=steps - 1)
    mean = shorter.run([[(rows, order[:-1], targets, np.ones(len(rows)))]])
    return np.asarray(mean * ((steps - 1) / steps))


# --- estimators -----------------------------------------------------------------------------


@dataclass(frozen=True)
class AmplifiedPlan(Plan):
    """A plan that is charged for the whole, whose secret order makes it cheaper than its parts."""

    proved: PrivacyProfile = FREE

    @property
    def profile(self) -> PrivacyProfile:
        """The profile that is proved for the whole."""
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
        """Run the algorithm on rows with norm at most the bound of the map, and return the estimator."""

    @abstractmethod
    def _loss(self) -> Loss:
        """Return the loss."""

    def _encoding(self) -> Callable[[Any], Array] | None:
        """Return what turns labels into -1 and 1, or None if targets are numbers."""
        return None

    def fit(self, X: Any, y: Any) -> Any:
        """Run the algorithm on (X, y), and return the estimator."""
        self._check_parameters()
        X, y, columns = training_data(self, X, y, encode=self._encoding())
        features = self._feature_map(X.shape[1])
        Z = clip_rows(features.transform_block(_dense(X)), features.row_norm_bound)
        loss = self._loss()
        if not loss.labels:
            y = np.clip(y, -self._bound, self._bound)
        self._run(Z, y, features)
        columns.set_on(self)
        self.feature_map_ = features
        return self

    def decision_function(self, X: Any) -> Array:
        """Return <w, phi(x)> at every row."""
        rows = _dense(self._check_new_data(X))
        Z = clip_rows(self.feature_map_.transform_block(rows), self.feature_map_.row_norm_bound)
        return np.asarray(Z @ self.coef_)

    def predict(self, X: Any) -> Array:
        """Return the prediction at every row, without clipping, or the class."""
        return self.decision_function(X)

    @property
    def _bound(self) -> float:
        """c, which ``_check_parameters`` has checked. Margin losses have none."""
        return 1.0 if self.target_bound is None else float(self.target_bound)

    def _steps(self, n_rows: int) -> int:
        return n_rows if self.n_steps is None else int(self.n_steps)

    def _feature_map(self, n_inputs: int) -> FeatureMap:
        """Return the feature map, built. A name stands for a map with the estimator's parameters."""
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
                "Pass a publicly known bound on |y|; targets are clipped to it.",
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

    def _spending(self, releases: Sequence[Release]) -> tuple[Ledger, Plan, Neighbours]:
        ledger, plan, relation = super()._spending(releases)
        parts = (Part(ORDER, FREE), *plan.parts)
        first = releases[0]
        if isinstance(first, Amplified):
            return ledger, AmplifiedPlan(parts, proved=first.proved), relation
        return ledger, Plan(parts), relation

    def _order(self, noise: Noise, n_rows: int, n_steps: int) -> IntArray:
        """Return the order of this run, drawn afresh from the noise that was paid for."""
        return noise.claim(FREE, ORDER).uniform_indices(n_rows, n_steps)

    def _perturb_output(
        self, run: OutputSGD, noise_scale: float, label: str, Z: Array, y: Array
    ) -> tuple[list[Release], Noise, bool]:
        """Set ``coef_`` to the output of the run with this noise, on an order drawn afresh.

        The last value that is returned says whether the profile supports the claim.
        """
        mechanism = output_mechanism(run, noise_scale)
        releases, budget = [Release(label, mechanism)], Budget(self.epsilon, self.delta)
        noise = self._spend(releases, budget)
        order = self._order(noise, run.n_rows, run.n_steps)
        self.coef_ = mechanism.release(output_of(run, Z, y, order), noise)
        return releases, noise, mechanism.profile().supports(budget)

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
        """Return a certificate of the paper's claim, which is valid only if nothing is ``unproved``.

        ``proved`` is the profile of the releases if it is not their composition.
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
        # epsilon and delta are the claim of the paper; the profile is what is proved for the release
        return replace(issued, epsilon=budget.epsilon, profile=proved or issued.profile)


def _dense(X: Any) -> Array:
    """Return a table as a dense array, because the papers do not mention sparse ones."""
    return dense_rows(X, slice(None))
