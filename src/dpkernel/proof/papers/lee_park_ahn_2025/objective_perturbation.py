r"""Algorithms 2 and 4: kernel models for Lipschitz and smooth losses by objective perturbation.

    beta~ = argmin (1/n) sum l(y_i, beta^T z_i) + (lambda_0/2) ||beta||^2 + b^T beta / n
    b ~ N(0, 4 c_1^2 Delta^2 (2 log(k/delta) + epsilon) / epsilon^2 I)
    lambda_0 = max(lambda, c_2 Delta^2 / (n (e^(epsilon/4) - 1))),   f~(x) = beta~^T z(x)

This is as printed. In Algorithm 2, z is a path of a Gaussian process at the data, Delta is the
bound of Lemma 7, and k = 4. In Algorithm 4, z are random Fourier features, Delta = sqrt 2, and k =
2. The loss is convex with |l'| <= c_1, and l'' <= c_2 wherever l'' exists. Compared with Kifer,
Smith & Thakurta (2012), Theorem 9 adds losses that are only piecewise twice differentiable
(Assumption 6).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from dpkernel.data.blocks import BLOCK_ROWS
from dpkernel.data.domain import Level
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.models.losses import Loss
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.noise import NoiseSource
from dpkernel.privacy.profiles import PrivacyProfile
from dpkernel.privacy.sensitivity import loss_gradient
from dpkernel.proof.papers.classes import ClassPredictor
from dpkernel.proof.papers.lee_park_ahn_2025.common import (
    NOTHING_PROVED,
    Objections,
    Published,
    WithLoss,
)
from dpkernel.proof.papers.lee_park_ahn_2025.constants import (
    PrintedPerturbation,
    algorithm_2_noise,
    algorithm_4_noise,
)
from dpkernel.proof.papers.lee_park_ahn_2025.features import OnFourierFeatures, OnProjection
from dpkernel.solvers.objective_perturbation import BlockRecords, Problem, Record, minimise


class _Perturbation(WithLoss, Published):
    """Steps 1, 3 and 4 of both algorithms, for any loss of Theorem 9."""

    @abstractmethod
    def _printed(self, n_rows: int, loss: Loss) -> PrintedPerturbation:
        """Return the constants of the printed algorithm."""

    def _release(self, Z: Array, y: Array) -> Any:
        n_rows, loss = len(Z), self._loss()
        printed = self._printed(n_rows, loss)
        mechanism = _perturbation(printed, loss, self.n_features)
        releases = [Release("perturbation", mechanism)]
        noise = self._spend(releases, Budget(self.epsilon, self.delta))
        # b is added to nothing; it can be seen as minus the gradient of all other terms at beta~
        b = mechanism.release(np.zeros(self.n_features), noise)
        self.coef_ = minimise_perturbed(Z, y, b, loss, n_rows * printed.regularisation)
        self.printed_ = printed
        public: dict[str, Any] = {
            "n_rows": n_rows,
            "loss": loss.to_dict(),
            "printed": asdict(printed),
        }
        self.certificate_ = self._certify(releases, noise, public)
        return self

    def _proved(self, releases: Sequence[Release]) -> PrivacyProfile:
        return NOTHING_PROVED

    def _objections(self) -> Objections:
        return (
            "errata 003-6 and 003-7: the printed noise is made for a gradient that moves by"
            " c_1 Delta, but replacing a record moves it by 2 c_1 Delta; the written argument gives"
            " (3/2 epsilon, delta), and takes a product for Gaussian that is not",
            "the minimiser is computed to a tolerance and released without noise of its own, so the"
            " outputs that one data set can have differ from those of its neighbour",
        ), ()


class PublishedAlgorithm2(OnProjection, _Perturbation):
    r"""Algorithm 2 as printed: objective perturbation on a random projection of the kernel's space.

    z_i = h_M(x_i) is drawn exactly and jointly at training and test points, by a Cholesky factor of
    their kernel matrix, in time O((n + n_test)^3). This is a baseline for comparisons, not for
    protecting data.

    Parameters
    ----------
    epsilon, delta : float
        The claim of the paper. Half of delta is for the norm bound.
    n_features : int
        M, the projection dimension.
    regularisation : float
        lambda, on the scale of the mean over rows. The algorithm raises it if epsilon requires more.
    kernel : str or Kernel
        The kernel; the paper's experiments have the Gaussian one. A kernel that is bounded on a box
        only ("linear" for Appendix B, "polynomial") sees rows clipped to [-1, 1], and is divided by
        its largest value there, so that kappa = 1.
    length_scale : float
        The length scale of the kernel.
    loss : str or Loss
        "logistic", "smoothed_hinge" and "squared_hinge" classify; "huber", "smoothed_pinball" and
        "smoothed_insensitive" regress. Or pass any ``Loss`` of ``dpkernel.models.losses`` with a largest
        slope c_1 and a largest curvature c_2. The paper's examples are the logistic and the Huber loss.
    classes : pair of labels
        The declared negative and positive class. Losses that regress do not use it.
    norm_bound : {"lemma", "nested"}
        The bound on ||h_M(x)||^2: that of Lemma 7 and of the proof of Theorem 9, or the one in
        the printed algorithm, whose root covers two terms (erratum 003-3). For M below
        1.87 log(4/delta) the second is smaller and does not hold with that probability.
    ledger : Ledger, optional
        A ledger without a ceiling, because nothing is proved that a ceiling could count.
    noise : NoiseSource, optional
        The source of noise; by default the entropy of the operating system.
    random_state : int
        The public seed of h_M. The noise does not come from it.

    Attributes
    ----------
    coef_ : array
        beta~, the released coefficients.
    classes_ : tuple
        The declared classes, if the loss classifies.
    printed_ : PrintedPerturbation
        The constants of the printed algorithm.
    certificate_ : Certificate
        It is never valid.

    Notes
    -----
    Guarantee
        There is none. The released function contains the training inputs, as that of
        ``PublishedAlgorithm1`` (erratum 003-12), so there is ``fit_predict`` and no ``predict``.
        Moreover, the noise is for half of the possible change of the gradient (003-7), and the
        minimiser is released without noise of its own; see ``PublishedAlgorithm4``.
    Sensitivity
        The gradient of the sum of losses has 2 c_1 Delta_3 on the event of Lemma 7. Rows are not
        clipped to it and targets are not truncated, because the paper does neither.
    Numerics
        b is an exact discrete Gaussian on a grid of 2^-30 of its deviation. beta~ is computed until the
        gradient is a rounding error (``dpkernel.solvers.objective_perturbation``).

    References
    ----------
    Lee, Park & Ahn (2025), Assumptions 1 and 6, Definition 5, Lemma 7, Algorithm 2, Theorem 9 and
    Appendix A.13.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.proof.papers import PublishedAlgorithm2
    >>> X = np.random.default_rng(0).uniform(0, 1, (60, 2)); y = np.where(X[:, 0] > 0.5, 1, -1)
    >>> model = PublishedAlgorithm2(1.0, 1e-3, n_features=10)
    >>> model.fit_predict(X[:50], y[:50], X[50:]).shape
    (10,)
    >>> model.certificate_.valid
    False
    """

    _place: ClassVar[str] = "Algorithm 2"
    _log_odds: ClassVar[str] = "log(4/delta)"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        n_features: int = 50,
        regularisation: float = 0.1,
        kernel: Any = "gaussian",
        length_scale: float = 1.0,
        loss: str | Loss = "logistic",
        classes: Sequence[Level] = (-1, 1),
        norm_bound: str = "lemma",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        random_state: int = 0,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.n_features = n_features
        self.regularisation = regularisation
        self.kernel = kernel
        self.length_scale = length_scale
        self.loss = loss
        self.classes = classes
        self.norm_bound = norm_bound
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state

    def fit_decision_function(self, X: Any, y: Any, X_test: Any) -> Array:
        """Run the algorithm on (X, y) and return f~ itself at the rows of ``X_test``."""
        return self._fit_scores(X, y, X_test)

    def _printed(self, n_rows: int, loss: Loss) -> PrintedPerturbation:
        return algorithm_2_noise(
            n_rows,
            self.epsilon,
            self.delta,
            self.n_features,
            self.regularisation,
            loss,
            self.norm_bound,
        )

    def _objections(self) -> Objections:
        of_projection, without_noise = OnProjection._objections(self)
        return of_projection + _Perturbation._objections(self)[0], without_noise


class PublishedAlgorithm4(OnFourierFeatures, ClassPredictor, _Perturbation):
    r"""Algorithm 4 as printed: objective perturbation on random Fourier features.

    This is a baseline for comparisons, not for protecting data.

    Parameters
    ----------
    epsilon, delta, n_features, regularisation, kernel, length_scale, loss, classes, noise, random_state
        The same as in ``PublishedAlgorithm2``, but ``random_state`` is the public seed of the features,
        and all of delta is for the noise.
    features : {"cosine", "paired"}
        The paper requires a map into [-sqrt 2, sqrt 2] and does not write it down. "cosine" is
        sqrt(2/M) cos(w_j^T x + b_j), which has that range. "paired" is
        sqrt(2/M) (cos w_j^T x, sin w_j^T x), j <= M/2, the other common form.
    ledger : Ledger, optional
        A ledger without a ceiling, because nothing is proved that a ceiling could count.

    Attributes
    ----------
    coef_ : array
        beta~, the released coefficients.
    classes_ : tuple
        The declared classes, if the loss classifies.
    printed_ : PrintedPerturbation
        The constants of the printed algorithm.
    certificate_ : Certificate
        It is never valid.

    Notes
    -----
    Guarantee
        There is none. On a computer, b lies on a grid, and only the right data set puts the gradient at
        the minimiser on that grid. Where a solver stops reveals something about the data as well. The
        paper adds no noise that hides this. Theorem 20 is false also in real arithmetic: with the Huber
        loss and cosine features, delta is at least 1.49 times the claim at (4, 1e-8). Whether it holds
        for the logistic loss is open. With paired features, whose norm is 1, the noise would be enough
        for the exact minimiser (``exact_minimiser_profile``).
    Sensitivity
        The gradient of the sum of losses has 2 sqrt(2) c_1 for cosine features and 2 c_1 for paired
        ones. The printed noise is for sqrt(2) c_1 (erratum 003-7). Rows are clipped to their norm, which
        changes only the last bits. Targets are not truncated.
    Numerics
        The same as for ``PublishedAlgorithm2``.

    References
    ----------
    Lee, Park & Ahn (2025), Assumptions 1 and 6, Definition 15, Algorithm 4, Theorem 20. Step 4
    prints l(y, .) instead of l(y_i, .).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.proof.papers import PublishedAlgorithm4
    >>> X = np.random.default_rng(0).uniform(0, 1, (50, 2)); y = np.sin(3 * X[:, 0])
    >>> model = PublishedAlgorithm4(4.0, 1e-8, n_features=10, loss="huber").fit(X, y)
    >>> model.predict(X).shape, model.certificate_.valid
    ((50,), False)
    """

    _place: ClassVar[str] = "Algorithm 4"
    _no_ceiling = "its minimiser is released without noise of its own"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        n_features: int = 50,
        regularisation: float = 0.1,
        kernel: Any = "gaussian",
        length_scale: float = 1.0,
        loss: str | Loss = "logistic",
        classes: Sequence[Level] = (-1, 1),
        features: str = "cosine",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        random_state: int = 0,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.n_features = n_features
        self.regularisation = regularisation
        self.kernel = kernel
        self.length_scale = length_scale
        self.loss = loss
        self.classes = classes
        self.features = features
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state

    def decision_function(self, X: Any) -> Array:
        """Return f~ itself at every row."""
        return np.asarray(self.transform(X) @ self.coef_)

    def _release(self, Z: Array, y: Array) -> Any:
        return super()._release(self._cut(Z), y)

    def _printed(self, n_rows: int, loss: Loss) -> PrintedPerturbation:
        return algorithm_4_noise(n_rows, self.epsilon, self.delta, self.regularisation, loss)


def _perturbation(printed: PrintedPerturbation, loss: Loss, n_features: int) -> Gaussian:
    """Return a mechanism with exactly the printed noise, on a grid far below it."""
    moves = loss_gradient(Neighbours.REPLACE_ONE, slope=loss.lipschitz, row=printed.row_bound)
    grid = 2.0 ** (math.floor(math.log2(printed.noise_scale)) - 30)
    return Gaussian(moves, n_features, printed.noise_scale / grid, grid)


def minimise_perturbed(Z: Array, y: Array, b: Array, loss: Loss, ridge: float) -> Array:
    """Return argmin sum_i l(y_i, beta^T z_i) + ridge ||beta||^2 / 2 + b^T beta, to rounding.

    The solver's constants use the norms of these rows and of this b. Public bounds are not needed,
    because nothing is proved for the release anyway.
    """
    longest = float(np.sqrt(np.max(np.sum(Z * Z, axis=1))))
    problem = Problem(
        loss,
        len(Z),
        row_bound=max(longest, 1e-100) * (1 + 1e-12),
        ridge=np.full(len(b), ridge),
        target_bound=math.inf,
        largest_b=float(np.linalg.norm(b)) * (1 + 1e-12),
        block_rows=BLOCK_ROWS,
    )
    blocks: list[Record] = [
        (Z[i : i + BLOCK_ROWS], y[i : i + BLOCK_ROWS], None) for i in range(0, len(Z), BLOCK_ROWS)
    ]
    with np.errstate(all="ignore"):  # a floating-point warning would depend on the data
        return minimise(BlockRecords(lambda: blocks, loss), problem, b)
