"""Base classes of the five algorithms: parameters, checks, losses, the plan, the certificate."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dpkernel.data.blocks import dense_rows
from dpkernel.data.sources import training_data
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.foundations.errors import LedgerError, ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Kind, Real, Whole
from dpkernel.models.kernels import REGISTRY as KERNELS
from dpkernel.models.kernels import Kernel, ShiftInvariant, resolve_kernel
from dpkernel.models.losses import REGISTRY, Loss
from dpkernel.privacy.certificate import Certificate, Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import Noise, NoiseSource, Plan
from dpkernel.privacy.profiles import ApproximateProfile, PrivacyProfile
from dpkernel.proof.papers.classes import WithClasses

PAPER = "Lee, Park & Ahn (2025)"
NOTHING_PROVED = ApproximateProfile(0.0, 1.0)  # delta = 1 at every epsilon


Objections = tuple[tuple[str, ...], tuple[str, ...]]


class PublishedModel(PrivateEstimator):
    """An algorithm of the paper, with a certificate of its claim that is never valid."""

    _constraints: ClassVar = {
        "epsilon": Real(0, math.inf),
        "delta": Real(0, 1),
        "regularisation": Real(0, math.inf),
        "kernel": (Choice(*KERNELS), Kind(Kernel)),
        "length_scale": Real(0, math.inf),
        "ledger": (Choice(None), Kind(Ledger)),
        "noise": (Choice(None), Kind(NoiseSource)),
    }
    _place: ClassVar[str]
    _no_ceiling: ClassVar[str | None] = None  # why there is no guarantee that a ceiling could count
    neighbours = Neighbours.REPLACE_ONE

    regularisation: float
    kernel: Any
    length_scale: float

    def _kernel(self, n_inputs: int) -> Callable[..., Array]:
        """Return the kernel divided by its largest value, so that kappa = 1.

        Kernels that are bounded on a box only see rows clipped to [-1, 1].
        """
        kernel = resolve_kernel(self.kernel, float(self.length_scale))
        if isinstance(kernel, ShiftInvariant):
            return kernel
        return partial(_on_box, kernel, kernel.diagonal_bound(n_inputs))

    @abstractmethod
    def _proved(self, releases: Sequence[Release]) -> PrivacyProfile:
        """Return the profile that the releases really have together."""

    @abstractmethod
    def _objections(self) -> Objections:
        """Return why the claim is not proved, and what is released without noise."""

    def _predictions(self, scores: Array) -> Array:
        """Return the predictions for these values of f~."""
        return scores

    def _rows_to_train(self, X: Any, y: Any, **options: Any) -> tuple[Array, Array]:
        X, y, columns = training_data(self, X, y, **options)
        columns.set_on(self)
        return dense(X), y

    def _check_new_data(self, X: Any) -> Array:
        return dense(super()._check_new_data(X))

    def _spending(self, releases: Sequence[Release]) -> tuple[Ledger, Plan, Neighbours]:
        ledger, plan, relation = super()._spending(releases)
        nothing_proved = self._proved(releases).delta(100.0) == 1
        return ledger, Plan(plan.parts, nothing_proved), relation

    def _refuse_a_ceiling(self) -> None:
        capped = self.ledger is not None and self.ledger.budget is not None
        if self._no_ceiling is not None and capped:
            raise LedgerError(
                f"{type(self).__name__} proves nothing that a ceiling could count:"
                f" {self._no_ceiling}. Pass a ledger without a budget, or none. Nothing was spent."
            )

    def _certify(
        self, releases: Sequence[Release], noise: Noise, public: Mapping[str, Any]
    ) -> Certificate:
        """Return a certificate of the paper's claim, marked as not proved."""
        unproved, without_noise = self._objections()
        budget = Budget(self.epsilon, self.delta)
        issued = Certificate.issue(
            type(self).__name__,
            budget,
            releases,
            noise,
            public={
                "kernel": resolve_kernel(self.kernel, float(self.length_scale)).to_dict(),
                "length_scale": float(self.length_scale),
                "regularisation": float(self.regularisation),
                **public,
            },
            reference=f"{PAPER}, {self._place}, as printed",
            invalid_because=unproved,
            not_private_because=without_noise,
        )
        # epsilon and delta are the claim of the paper; the profile is what is proved for the release
        return replace(issued, epsilon=budget.epsilon, profile=self._proved(releases))


class Published(PublishedModel):
    """Algorithms 1 to 4: features, then a release computed from their rows and the targets."""

    _constraints: ClassVar = {
        **PublishedModel._constraints,
        "n_features": Whole(1, 10_000),
        "random_state": Whole(0),
    }

    n_features: int
    random_state: int
    coef_: Array

    @abstractmethod
    def _release(self, Z: Array, y: Array) -> Any:
        """Run the algorithm after its features on rows z_i, and set ``coef_`` and ``certificate_``."""

    def fit_features(self, Z: Any, y: Any) -> Any:
        """Run the algorithm on rows z_i that were computed before, and return the estimator.

        This is for callers that compute features once and compare many settings. Z has ``n_features``
        columns. ``coef_`` then belongs to such rows, and ``predict`` can't be used.
        """
        self._check_parameters()
        Z, y = self._rows_to_train(Z, y)
        if Z.shape[1] != self.n_features:
            raise ParameterError(
                parameter_message(
                    type(self).__name__,
                    "n_features",
                    f"the number of columns of Z, {Z.shape[1]}",
                    self.n_features,
                )
            )
        self._refuse_a_ceiling()
        return self._release(Z, y)

    def _certify(
        self, releases: Sequence[Release], noise: Noise, public: Mapping[str, Any]
    ) -> Certificate:
        chosen = {"n_features": int(self.n_features), "random_state": int(self.random_state)}
        return super()._certify(releases, noise, chosen | dict(public))


class WithLoss(WithClasses, PublishedModel):
    """Algorithms 2, 4 and 5: any convex loss with bounded slope and curvature."""

    def _loss(self) -> Loss:
        """Return the loss, which must have a bounded slope and a bounded curvature."""
        loss = self.loss
        if isinstance(loss, str) and loss in _NAMED:
            loss = _NAMED[loss]
        if not isinstance(loss, Loss) or not max(loss.lipschitz, loss.smoothness) < math.inf:
            names = ", ".join(repr(name) for name in _NAMED)
            raise ParameterError(
                parameter_message(
                    type(self).__name__,
                    "loss",
                    f"one of {names}, or a Loss with a largest slope and a largest curvature",
                    loss if isinstance(loss, (str, Loss)) else type(loss).__name__,
                )
            )
        return loss

    def _rows_to_train(self, X: Any, y: Any, **options: Any) -> tuple[Array, Array]:
        return super()._rows_to_train(X, y, encode=self._encoding(), **options)

    def _certify(
        self, releases: Sequence[Release], noise: Noise, public: Mapping[str, Any]
    ) -> Certificate:
        self._set_classes()
        declared = {"classes": self._labels} if self._loss().labels else {}
        return super()._certify(releases, noise, {**public, **declared})


def _on_box(kernel: Kernel, largest: float, X: Array, Y: Array | None = None) -> Array:
    """Return k(x, y) / largest for rows clipped to [-1, 1]."""
    left = np.clip(X, -1, 1)
    right = left if Y is None else np.clip(Y, -1, 1)
    return np.asarray(kernel(left, right) / largest)


def dense(X: Any) -> Array:
    """Return a table as a dense array, because the paper does not mention sparse ones."""
    return dense_rows(X, slice(None))


_NAMED: dict[str, Loss] = {
    name: loss
    for name, loss in ((name, cls()) for name, cls in REGISTRY.items())
    if max(loss.lipschitz, loss.smoothness) < math.inf
}
