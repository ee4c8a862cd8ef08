r"""Algorithm 5: a minimiser in the kernel's own space plus one path of a Gaussian process.

    f^ = argmin (1/n) sum l(y_i, f(x_i)) + (lambda/2) ||f||^2
    f~ = f^ + c_1 kappa (1 + sqrt(2 log(1/delta))) / (n lambda epsilon) h,   h ~ GP(0, k)

This is as printed in A.11, which presents it as the method of Hall, Rinaldo & Wasserman (2013).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dpkernel.data.domain import Level
from dpkernel.foundations.errors import DataError
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.foundations.validation import Whole
from dpkernel.models.losses import Loss
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import IDEALISED, FunctionalGaussian, NoisyFunction
from dpkernel.privacy.noise import NoiseSource
from dpkernel.privacy.profiles import PrivacyProfile
from dpkernel.privacy.sensitivity import erm_lipschitz
from dpkernel.proof.papers.classes import ClassPredictor
from dpkernel.proof.papers.lee_park_ahn_2025.common import NOTHING_PROVED, Objections, WithLoss
from dpkernel.proof.papers.lee_park_ahn_2025.constants import algorithm_5_noise
from dpkernel.proof.papers.lee_park_ahn_2025.objective_perturbation import minimise_perturbed

_MOST_ROWS = 5000


class PublishedAlgorithm5(ClassPredictor, WithLoss):
    r"""Algorithm 5 as printed: functional perturbation in the kernel's space.

    f~ is evaluated at points. Every value is drawn given all earlier ones, so that all of them are
    values of one path. This is a baseline for comparisons, not for protecting data. The object
    holds the training rows.

    Parameters
    ----------
    epsilon, delta : float
        The claim of the paper, for all values of f~ together.
    regularisation : float
        lambda, on the scale of the mean over rows.
    kernel, length_scale, loss, classes, ledger, noise
        The same as in ``PublishedAlgorithm4``.
    most_answers : int
        The largest number of points with new noise.

    Attributes
    ----------
    noise_scale_ : float
        The factor of h.
    classes_ : tuple
        The declared classes, if the loss classifies.
    certificate_ : Certificate
        It is never valid.

    Notes
    -----
    Guarantee
        There is none. The printed noise is for a function that moves by c_1 kappa/(n lambda), but
        replacing a record moves it by twice that (erratum 003-11). In real arithmetic, delta is
        12, 30 and 97 times the claim at epsilon = 0.5, 1 and 2 for delta = 1e-5
        (``algorithm_5_delta``). ``PrivateCurator`` has the right noise.
    Sensitivity
        2 c_1 kappa/(n lambda) in the norm of the kernel's space, attained if the loss is
        linear: ``sensitivity.erm_lipschitz``. kappa = 1.
    Numerics
        The noise is real-valued, on a grid (``FunctionalGaussian``). f^ is computed until the gradient
        is a rounding error.

    References
    ----------
    Lee, Park & Ahn (2025), A.11, Algorithm 5; Hall, Rinaldo & Wasserman (2013).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.proof.papers import PublishedAlgorithm5
    >>> X = np.random.default_rng(0).uniform(0, 1, (50, 2)); y = np.sin(3 * X[:, 0])
    >>> model = PublishedAlgorithm5(1.0, 1e-5, loss="huber").fit(X, y)
    >>> bool(model.predict(X[:1]) == model.predict(X[:1])), model.certificate_.valid
    (True, False)
    """

    _constraints: ClassVar = {**WithLoss._constraints, "most_answers": Whole(1, 10_000)}
    _place: ClassVar[str] = "Algorithm 5"
    _no_ceiling = "its noise is half of what it must be"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        regularisation: float = 0.1,
        kernel: Any = "gaussian",
        length_scale: float = 1.0,
        loss: str | Loss = "logistic",
        classes: Sequence[Level] = (-1, 1),
        most_answers: int = 2000,
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.regularisation = regularisation
        self.kernel = kernel
        self.length_scale = length_scale
        self.loss = loss
        self.classes = classes
        self.most_answers = most_answers
        self.ledger = ledger
        self.noise = noise

    def fit(self, X: Any, y: Any) -> PublishedAlgorithm5:
        """Run the algorithm on (X, y), and return the estimator."""
        self._check_parameters()
        X, y = self._rows_to_train(X, y)
        if not len(X) <= _MOST_ROWS:
            raise DataError(f"PublishedAlgorithm5 takes at most {_MOST_ROWS} rows.")
        self._refuse_a_ceiling()
        n_rows, loss = len(X), self._loss()
        kernel = self._kernel(X.shape[1])
        mechanism = self._mechanism(n_rows, loss)
        releases = [Release("answers", mechanism)]
        noise = self._spend(releases, Budget(self.epsilon, self.delta))
        alpha = _coefficients(kernel(X), y, loss, n_rows * float(self.regularisation))
        self._function = partial(_values, kernel, X, alpha)  # f^
        covariance: Any = kernel
        self._noisy = NoisyFunction(self._function, covariance, mechanism, mechanism.key(noise))
        self.noise_scale_ = mechanism.noise_scale
        public = {"n_rows": n_rows, "loss": loss.to_dict(), "printed": self.noise_scale_}
        self.certificate_ = self._certify(releases, noise, public)
        return self

    def decision_function(self, X: Any) -> Array:
        """Return f~ itself at every row."""
        points = self._check_new_data(X)
        return np.array([self._noisy.answer(point)[0] for point in points])

    def predict(self, X: Any) -> Array:
        """Return f~ at every row, or its class."""
        return self._predictions(self.decision_function(X))

    def _mechanism(self, n_rows: int, loss: Loss) -> FunctionalGaussian:
        """Return a mechanism with the printed noise and the right sensitivity."""
        strength = n_rows * float(self.regularisation)
        moved = erm_lipschitz(
            Neighbours.REPLACE_ONE, slope=loss.lipschitz, row=1.0, strength=strength
        )
        scale = algorithm_5_noise(
            n_rows, self.epsilon, self.delta, self.regularisation, slope=loss.lipschitz
        )
        return FunctionalGaussian(moved, int(self.most_answers), scale, (IDEALISED,))

    def _proved(self, releases: Sequence[Release]) -> PrivacyProfile:
        return NOTHING_PROVED

    def _objections(self) -> Objections:
        return (
            "erratum 003-11: the printed noise is made for a function that moves by"
            " c_1 kappa/(n lambda), and replacing a record moves it by 2 c_1 kappa/(n lambda)",
            "the noise is made of real numbers, and no theorem covers it in finite precision",
        ), ()


def _values(kernel: Callable[..., Array], rows: Array, alpha: Array, points: Array) -> Array:
    return np.asarray(kernel(points, rows) @ alpha)


def _coefficients(matrix: Array, y: Array, loss: Loss, strength: float) -> Array:
    """Return alpha of f^ = sum_i alpha_i k(x_i, .), using a root of the kernel matrix as features."""
    values, vectors = np.linalg.eigh(matrix)
    rows = vectors * np.sqrt(np.maximum(values, 0.0))
    beta = minimise_perturbed(rows, y, np.zeros(len(y)), loss, strength)
    return np.asarray(-loss.derivative(y, rows @ beta) / strength)
