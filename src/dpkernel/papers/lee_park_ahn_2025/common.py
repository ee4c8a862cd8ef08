"""What all four algorithms share: parameters, checks, the ledger's plan and the certificate."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from dpkernel.certificate import Certificate, Release
from dpkernel.errors import LedgerError, ParameterError, parameter_message
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.ledger import Ledger
from dpkernel.noise import Noise, NoiseSource, Plan
from dpkernel.profiles import ApproximateProfile, PrivacyProfile
from dpkernel.types import Array, Budget, Neighbours
from dpkernel.validation import Choice, Kind, Real, Whole

PAPER = "Lee, Park & Ahn (2025)"
NOTHING_PROVED = ApproximateProfile(0.0, 1.0)  # delta = 1 at every epsilon


class Published(PrivateEstimator):
    """An algorithm of the paper: features, then a release of their rows and the targets."""

    _constraints: ClassVar = {
        "epsilon": Real(0, math.inf),
        "delta": Real(0, 1),
        "n_features": Whole(1, 10_000),
        "regularisation": Real(0, math.inf),
        "length_scale": Real(0, math.inf),
        "ledger": (Choice(None), Kind(Ledger)),
        "noise": (Choice(None), Kind(NoiseSource)),
        "random_state": Whole(0),
    }
    _place: ClassVar[str]
    _no_ceiling: ClassVar[str | None] = None  # why nothing is proved that a ceiling could count
    neighbours = Neighbours.REPLACE_ONE

    n_features: int
    regularisation: float
    length_scale: float
    random_state: int
    coef_: Array

    @abstractmethod
    def _release(self, Z: Array, y: Array) -> Any:
        """Run what follows the features on rows z_i; set ``coef_`` and ``certificate_``."""

    @abstractmethod
    def _proved(self, releases: Sequence[Release]) -> PrivacyProfile:
        """Return the profile that the releases really have together."""

    @abstractmethod
    def _objections(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return why the claim is not proved, and what leaves without noise."""

    def fit_features(self, Z: Any, y: Any) -> Any:
        """Run the algorithm on rows z_i that were computed before; return the estimator.

        For callers that compute features once and compare many settings. Z has ``n_features``
        columns; ``coef_`` then speaks of such rows, and ``predict`` is not of use.
        """
        self._check_parameters()
        Z, y = self._check_training_data(Z, y)
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

    def _predictions(self, scores: Array) -> Array:
        """Return what the model says where f~ has these values."""
        return scores

    def _check_training_data(self, X: Any, y: Any, **options: Any) -> tuple[Array, Array]:
        X, y = super()._check_training_data(X, y, **options)
        self._set_columns()
        return dense(X), y

    def _check_new_data(self, X: Any) -> Array:
        return dense(super()._check_new_data(X))

    def _plan(self, releases: Sequence[Release]) -> tuple[Ledger, Plan, Neighbours]:
        ledger, plan, relation = super()._plan(releases)
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
                "n_features": int(self.n_features),
                "length_scale": float(self.length_scale),
                "regularisation": float(self.regularisation),
                "random_state": int(self.random_state),
                **public,
            },
            reference=f"{PAPER}, {self._place}, as printed",
            invalid_because=unproved,
            not_private_because=without_noise,
        )
        # epsilon and delta are the paper's claim; the profile is what is proved of the release
        return replace(issued, epsilon=budget.epsilon, profile=self._proved(releases))


def dense(X: Any) -> Array:
    """Return a table as an array; the paper knows no sparse ones."""
    return np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)
