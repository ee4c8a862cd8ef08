"""Algorithm (2) as printed: a function in the kernel's space plus one random number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from dpkernel.data.blocks import dense_rows
from dpkernel.data.sources import training_data
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.foundations.errors import DataError, LedgerError, ParameterError, parameter_message
from dpkernel.foundations.types import Array, Neighbours
from dpkernel.foundations.validation import Choice, Kind, Real
from dpkernel.models.kernels import REGISTRY as KERNELS
from dpkernel.models.kernels import Kernel, resolve_kernel
from dpkernel.models.losses import Hinge, Loss, Pinball
from dpkernel.privacy.certificate import Certificate, Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import Laplace
from dpkernel.privacy.noise import NoiseSource, Plan
from dpkernel.privacy.profiles import ApproximateProfile
from dpkernel.privacy.sensitivity import erm_lipschitz, erm_prediction
from dpkernel.proof.papers.nie_wang_2016.constants import (
    corrected_scale,
    general_lipschitz,
    printed_lipschitz,
    printed_scale,
)
from dpkernel.solvers.objective_perturbation import BlockRecords
from dpkernel.solvers.output_perturbation import Risk, minimise_risk

PAPER = "Nie & Wang (2017)"
_NOTHING_PROVED = ApproximateProfile(0.0, 1.0)
_MOST_ROWS = 5000
_WIDTH = 1e-3  # width of the parabola that replaces the kink of the hinge


class PublishedPerturbedRisk(PrivateEstimator):
    r"""Algorithm (2) as printed: argmin (1/m) sum_i L(f(x_i), y_i) + lambda ||f||^2, plus one number b.

    This is a baseline. It protects nothing, because all values have the same b.

    Parameters
    ----------
    epsilon : float
        The pure epsilon that the paper claims.
    lam : float
        lambda, the regularisation.
    loss : {"squared", "hinge", "pinball"}
        The loss of section 5.1 or 5.2, or the pinball loss that the introduction names. The hinge
        takes labels of -1 and 1.
    quantile : float
        The quantile of the pinball loss.
    scale : {"printed", "corrected"}
        The scale of b: that of Proposition 1, or twice it, which protects one value.
    target_bound : float
        M; targets are clipped to it.
    kernel : str or Kernel
        A shift-invariant kernel, with k(x, x) = 1.
    length_scale : float
        The length scale of the kernel.
    ledger : Ledger, optional
        A ledger without a ceiling, because nothing is proved that a ceiling could count.
    noise : NoiseSource, optional
        The source of noise; by default the entropy of the operating system.

    Attributes
    ----------
    noise_scale_ : float
        The Laplace scale of b.
    certificate_ : Certificate
        It is never valid and never private.

    Notes
    -----
    Guarantee
        There is none (erratum 004-1). With ``scale="corrected"`` one value f(x) + b alone would be
        epsilon-DP for replaced records: ``PrivateCurator.predict_once``.

    References
    ----------
    Nie & Wang (2017), Lemma 1, Proposition 1, sections 5.1 and 5.2.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.proof.papers import PublishedPerturbedRisk
    >>> X = np.random.default_rng(0).uniform(-1, 1, (100, 2)); y = np.sign(X[:, 0])
    >>> model = PublishedPerturbedRisk(1.0, loss="hinge").fit(X, y)
    >>> model.certificate_.valid, model.certificate_.private
    (False, False)
    """

    _constraints: ClassVar[Any] = {
        "epsilon": Real(0, 1e10),
        "lam": Real(0, 1e100),
        "loss": Choice("squared", "hinge", "pinball"),
        "quantile": Real(0, 1),
        "scale": Choice("printed", "corrected"),
        "target_bound": Real(0, 1e100),
        "kernel": (Choice(*KERNELS), Kind(Kernel)),
        "length_scale": Real(0, math.inf),
        "ledger": (Choice(None), Kind(Ledger)),
        "noise": (Choice(None), Kind(NoiseSource)),
    }
    neighbours = Neighbours.REPLACE_ONE
    delta = 0.0

    def __init__(
        self,
        epsilon: float = 0.5,
        *,
        lam: float = 0.1,
        loss: str = "squared",
        quantile: float = 0.5,
        scale: str = "printed",
        target_bound: float = 1.0,
        kernel: Any = "gaussian",
        length_scale: float = 1.0,
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.lam = lam
        self.loss = loss
        self.quantile = quantile
        self.scale = scale
        self.target_bound = target_bound
        self.kernel = kernel
        self.length_scale = length_scale
        self.ledger = ledger
        self.noise = noise

    def fit(self, X: Any, y: Any) -> PublishedPerturbedRisk:
        """Run the algorithm on (X, y)."""
        budget, relation = self._check_parameters()
        if self.ledger is not None and self.ledger.budget is not None:
            raise LedgerError(
                "PublishedPerturbedRisk has no guarantee that a ceiling could count, because it adds"
                " one number to a function. Pass a ledger without a budget, or none. Nothing was spent."
            )
        X, y, columns = training_data(self, X, y)
        X = dense_rows(X, slice(None))
        y = self._targets(y)
        if not len(y) <= _MOST_ROWS:
            raise DataError(f"PublishedPerturbedRisk takes at most {_MOST_ROWS} rows.")
        kernel = resolve_kernel(self.kernel, self.length_scale)
        kappa = math.sqrt(kernel.diagonal_bound(X.shape[1]))
        slope = self._slope(kappa)
        reading = printed_scale if self.scale == "printed" else corrected_scale
        self.noise_scale_ = reading(slope, kappa, float(self.lam), len(y), budget.epsilon)
        strength = 2 * float(self.lam) * len(y)
        moved = erm_lipschitz(relation, slope=slope, row=kappa, strength=strength)
        draft = Laplace.calibrate(erm_prediction(moved, reach=kappa), budget)
        mechanism = replace(draft, scale=self.noise_scale_ / draft.grid)
        alpha = self._coefficients(kernel, kappa, X, y, strength)
        releases = [Release("b", mechanism)]
        noise = self._spend(releases, budget)
        columns.set_on(self)
        self._function = kernel, X, alpha
        self._b = float(mechanism.release(np.zeros(1), noise)[0])
        issued = Certificate.issue(
            type(self).__name__,
            budget,
            releases,
            noise,
            public={
                "n_rows": len(y),
                "lam": float(self.lam),
                "kernel": kernel.to_dict(),
                "loss": self.loss,
                "scale": self.scale,
                "errata": list(_ERRATA),
            },
            reference=f"{PAPER}, algorithm (2), as printed",
            invalid_because=["erratum 004-1: one number for a whole function protects nothing"],
            not_private_because=["differences of the function's values are released without noise"],
        )
        self.certificate_ = replace(issued, epsilon=budget.epsilon, profile=_NOTHING_PROVED)
        return self

    def _spending(self, releases: Sequence[Release]) -> tuple[Ledger, Plan, Neighbours]:
        ledger, plan, relation = super()._spending(releases)
        return ledger, Plan(plan.parts, nothing_proved=True), relation

    def _targets(self, y: Array) -> Array:
        if self.loss != "hinge":
            return np.clip(y, -self.target_bound, self.target_bound)
        if not set(np.unique(y)) <= {-1.0, 1.0}:
            allowed = "'squared' if targets are not labels of -1 and 1"
            raise ParameterError(parameter_message(type(self).__name__, "loss", allowed, self.loss))
        return y

    def _slope(self, kappa: float) -> float:
        if self.loss != "squared":
            return self._kinked.lipschitz
        reading = printed_lipschitz if self.scale == "printed" else general_lipschitz
        return reading(float(self.target_bound), kappa, float(self.lam))

    def _coefficients(
        self, kernel: Kernel, kappa: float, X: Array, y: Array, strength: float
    ) -> Array:
        """Return the coefficients alpha of f_z = sum_i alpha_i k(x_i, .)."""
        matrix = kernel(X)
        if self.loss == "squared":
            return np.asarray(np.linalg.solve(matrix + strength / 2 * np.eye(len(y)), y))
        values, vectors = np.linalg.eigh(matrix)
        rows = vectors * np.sqrt(np.maximum(values, 0.0))
        bound = float(self.target_bound)
        risk = Risk(self._kinked, len(y), len(y), kappa, strength, bound, width=_WIDTH)
        beta = minimise_risk(lambda loss: BlockRecords(lambda: [(rows, y, None)], loss), risk)
        return np.asarray(-risk.smooth_loss.derivative(y, rows @ beta) / strength)

    @property
    def _kinked(self) -> Loss:
        """The hinge or the pinball loss."""
        return Hinge() if self.loss == "hinge" else Pinball(float(self.quantile))

    def decision_function(self, X: Any) -> Array:
        """Return f_z(x) + b."""
        X = self._check_new_data(X)
        kernel, rows, alpha = self._function
        dense = dense_rows(X, slice(None))
        return np.asarray(kernel(dense, rows) @ alpha + self._b)

    def predict(self, X: Any) -> Array:
        """Return f_z(x) + b, or its sign for the hinge."""
        scores = self.decision_function(X)
        return scores if self.loss != "hinge" else np.where(scores >= 0, 1.0, -1.0)


_ERRATA = (
    "erratum 004-1: one random number is added to the whole function",
    "erratum 004-2: the printed scale is half of what one value needs",
    "erratum 004-3: Proposition 1 uses Theorem 2, not Theorem 1",
    "erratum 004-6: the slope of the squared loss is stated for lambda <= 1 only",
)
