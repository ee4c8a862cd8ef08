r"""Algorithms 1 and 3: kernel ridge regression from noisy sufficient statistics, as printed.

    C = (1/n) sum z_i z_i^T,   u = (1/n) sum [y_i]_T z_i,   [y]_T = y clipped to [-T, T]
    C~ = C + s_1 (E + E^T)/2,  u~ = u + s_2 e,              E, e standard normal
    beta~ = (C~ + lambda I)^-1 u~,   f~(x) = beta~^T z(x)

Here z is a path of a Gaussian process at the data (Algorithm 1) or random Fourier features
(Algorithm 3).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import lapack, solve_banded
from sklearn.base import RegressorMixin

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Real
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import Gaussian, SymmetricGaussian
from dpkernel.privacy.noise import NoiseSource
from dpkernel.privacy.profiles import GaussianProfile, PrivacyProfile
from dpkernel.privacy.sensitivity import declared
from dpkernel.proof.papers.lee_park_ahn_2025.common import NOTHING_PROVED, Objections, Published
from dpkernel.proof.papers.lee_park_ahn_2025.constants import (
    PrintedNoise,
    algorithm_1_noise,
    algorithm_3_noise,
    clipped_mean_noise,
)
from dpkernel.proof.papers.lee_park_ahn_2025.features import OnFourierFeatures, OnProjection


def ridge_path(gram: Array, cross: Array, regularisations: Sequence[float]) -> Array:
    """Return (C~ + lambda I)^-1 u~, one column per lambda, by one reduction to a tridiagonal matrix.

    C~ may be indefinite; the paper does not repair it.
    """
    if len(gram) == 1:
        return np.asarray(cross[:, None] / (gram[0, 0] + np.asarray(regularisations)))
    # C~ = Q T Q^T, where Q leaves the first coordinate alone; its reflectors stand below T
    packed, diagonal, beside, tau, _ = lapack.dsytrd(gram, lower=1)
    reflectors, n = packed[1:, :-1], len(gram)

    def rotate(columns: Array, transpose: str) -> Array:
        inner = lapack.dormqr("L", transpose, reflectors, tau, columns[1:], 64 * n)[0]
        return np.vstack([columns[:1], inner])

    turned = rotate(np.array(cross)[:, None], "T")
    bands = np.zeros((3, n))
    bands[0, 1:] = bands[2, :-1] = beside
    paths = []
    for regularisation in regularisations:
        bands[1] = diagonal + regularisation
        paths.append(solve_banded((1, 1), bands, turned))
    return rotate(np.hstack(paths), "N")


class _Statistics(Published):
    """Steps 3 to 5 of both algorithms."""

    target_bound: float | None

    @abstractmethod
    def _printed(self, n_rows: int) -> PrintedNoise:
        """Return the constants of the printed algorithm."""

    @abstractmethod
    def _mechanisms(self, n_rows: int) -> tuple[SymmetricGaussian, Gaussian]:
        """Return mechanisms with the printed noise on C and u, and the sensitivities for a ledger."""

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        found = super()._check_parameters()
        if not Real(0, math.inf).holds(self.target_bound):
            raise ParameterError(
                parameter_message(
                    type(self).__name__,
                    "target_bound",
                    str(Real(0, math.inf)),
                    self.target_bound,
                    "Pass the truncation level T, a publicly known bound on |y|.",
                )
            )
        return found

    def _release(self, Z: Array, y: Array) -> Any:
        bound, n_rows = self._bound, len(Z)
        on_gram, on_cross = self._mechanisms(n_rows)
        releases = [Release("gram matrix", on_gram), Release("cross moments", on_cross)]
        noise = self._spend(releases, Budget(self.epsilon, self.delta))
        self.gram_ = on_gram.release(Z.T @ Z / n_rows, noise)
        self.cross_ = on_cross.release(self._cross(Z, y), noise)
        shifted = self.gram_ + self.regularisation * np.eye(self.n_features)
        self.coef_ = np.linalg.solve(shifted, self.cross_)
        self.printed_ = self._printed(n_rows)
        public = {"n_rows": n_rows, "target_bound": bound, "printed": asdict(self.printed_)}
        self.certificate_ = self._certify(releases, noise, public)
        return self

    def _cross(self, Z: Array, y: Array) -> Array:
        """Return u, the mean of [y_i]_T z_i."""
        return np.asarray(Z.T @ np.clip(y, -self._bound, self._bound) / len(Z))

    @property
    def _bound(self) -> float:
        """T, which ``_check_parameters`` has checked."""
        return float(self.target_bound)  # type: ignore[arg-type]


class PublishedAlgorithm1(OnProjection, _Statistics):
    r"""Algorithm 1 as printed: ridge regression on a random projection of the kernel's space.

    z_i = h_M(x_i) is drawn exactly and jointly at training and test points, by a Cholesky factor of
    their kernel matrix, in time O((n + n_test)^3). This is a baseline for comparisons, not for
    protecting data.

    Parameters
    ----------
    epsilon, delta : float
        The claim of the paper. C and u get half of each.
    n_features : int
        M, the projection dimension.
    regularisation : float
        lambda, on the scale of the mean over rows.
    kernel : str or Kernel
        The kernel; the paper's experiments have the Gaussian one. A kernel that is bounded on a box
        only ("linear" for Appendix B, "polynomial") sees rows clipped to [-1, 1], and is divided by
        its largest value there, so that kappa = 1.
    length_scale : float
        The length scale of the kernel.
    target_bound : float
        T, the truncation level. It is required.
    truncation : {"targets", "mean"}
        What T truncates: every target, as in the algorithm, or the norm of u as a whole, which is the
        alternative of Section 4.2. The print of the latter has a number in place of a noise vector;
        it is taken for the standard deviation of one (erratum 003-4).
    norm_bound : {"lemma", "nested"}
        The bound on ||h_M(x)||^2: that of Lemma 7 and of the proof of Theorem 8, or the one in
        the printed algorithm, whose root covers two terms (erratum 003-3). For M below
        1.87 log(8/delta) the second is smaller and does not hold with that probability.
    ledger : Ledger, optional
        A ledger without a ceiling, because nothing is proved that a ceiling could count.
    noise : NoiseSource, optional
        The source of noise; by default the entropy of the operating system.
    random_state : int
        The public seed of h_M. The noise does not come from it.

    Attributes
    ----------
    gram_, cross_ : arrays
        The noisy C~ and u~.
    coef_ : array
        beta~, the released coefficients.
    printed_ : PrintedNoise
        The constants of the printed algorithm.
    certificate_ : Certificate
        It is never valid.

    Notes
    -----
    Guarantee
        There is none. The claim, (epsilon, delta)-DP of beta~^T h_M (Theorem 8), is about a path that
        is drawn without looking at the data. No such path can be written down: its value at a new
        point is drawn conditionally on its values at the training inputs, so the released
        function contains them (erratum 003-12). For the same reason there is ``fit_predict`` and
        no ``predict``. Moreover, Lemma 7 bounds ||h_M(x)|| in probability over a fresh projection,
        and rows are not clipped to this bound.
    Sensitivity
        Delta_1 = 2 B^2 (sqrt(2) B^2 is enough, 003-1) and Delta_2 = 2 T B, as printed.
    Noise
        (E + E^T)/2 has variance 1 on the diagonal and 1/2 off it, as in ``SymmetricGaussian``.

    References
    ----------
    Lee, Park & Ahn (2025), Definition 5, Lemma 7, Algorithm 1, Theorem 8.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.proof.papers import PublishedAlgorithm1
    >>> X = np.random.default_rng(0).uniform(0, 1, (60, 2)); y = np.sin(3 * X[:, 0])
    >>> model = PublishedAlgorithm1(1.0, 1e-3, n_features=10, target_bound=1.0)
    >>> model.fit_predict(X[:50], y[:50], X[50:]).shape
    (10,)
    >>> model.certificate_.valid
    False
    """

    _constraints: ClassVar = {**OnProjection._constraints, "truncation": Choice("targets", "mean")}
    _place: ClassVar[str] = "Algorithm 1"
    _log_odds: ClassVar[str] = "log(8/delta)"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        n_features: int = 50,
        regularisation: float = 0.1,
        kernel: Any = "gaussian",
        length_scale: float = 1.0,
        target_bound: float | None = None,
        truncation: str = "targets",
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
        self.target_bound = target_bound
        self.truncation = truncation
        self.norm_bound = norm_bound
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state

    def _printed(self, n_rows: int) -> PrintedNoise:
        numbers = n_rows, self.epsilon, self.delta
        found = algorithm_1_noise(*numbers, self.n_features, self._bound, self.norm_bound)
        if self.truncation == "targets":
            return found
        scale = clipped_mean_noise(*numbers, self._bound)
        return replace(found, cross_sensitivity=2 * self._bound, cross_scale=scale)

    def _cross(self, Z: Array, y: Array) -> Array:
        if self.truncation == "targets":
            return super()._cross(Z, y)
        mean = np.asarray(Z.T @ y / len(Z))
        return mean * min(1.0, self._bound / max(float(np.linalg.norm(mean)), 1e-300))

    def _mechanisms(self, n_rows: int) -> tuple[SymmetricGaussian, Gaussian]:
        p = self._printed(n_rows)
        whole = n_rows if self.truncation == "mean" else 1  # a clipped mean can move by 2 T
        bounds = p.gram_sensitivity, p.cross_sensitivity * whole
        return _on_grid(p, bounds, n_rows, self.n_features)

    def _objections(self) -> Objections:
        unproved, without_noise = super()._objections()
        if self.truncation == "mean":
            unproved += (
                "erratum 003-4: the noise is made for a mean that moves by 2 T / n, but a mean that is"
                " clipped as a whole can move by 2 T",
            )
        return unproved, without_noise

    def _proved(self, releases: Sequence[Release]) -> PrivacyProfile:
        return NOTHING_PROVED


class PublishedAlgorithm3(RegressorMixin, OnFourierFeatures, _Statistics):
    r"""Algorithm 3 as printed: ridge regression on random Fourier features.

    This is a baseline for comparisons, not for protecting data. ``PrivateKernelRidge`` is the same idea
    with proved constants and less noise.

    Parameters
    ----------
    epsilon, delta, n_features, regularisation, kernel, length_scale, target_bound, noise, random_state
        The same as in ``PublishedAlgorithm1``, but ``random_state`` is the public seed of the features.
    features : {"cosine", "paired"}
        The paper requires a map into [-sqrt 2, sqrt 2] and does not write it down. "cosine" is
        sqrt(2/M) cos(w_j^T x + b_j), which has that range. "paired" is
        sqrt(2/M) (cos w_j^T x, sin w_j^T x), j <= M/2, the other common form.
    ledger : Ledger, optional
        A ledger, which is charged the profile of the printed noise with the right sensitivities.

    Attributes
    ----------
    gram_, cross_ : arrays
        The noisy C~ and u~.
    coef_ : array
        beta~, the released coefficients.
    printed_ : PrintedNoise
        The constants of the printed algorithm.
    certificate_ : Certificate
        It is never valid. epsilon and delta are the claim, and ``profile`` is what the printed noise
        gives with the right sensitivities. Compare ``certificate_.profile.epsilon(delta)``.

    Notes
    -----
    Guarantee
        Not the claimed one. No proof of Theorem 16 is printed, and with the printed sensitivities
        none can work (erratum 003-5). The claim is true for epsilon <= 10 because of the slack of its
        composition. With cosine features it fails at epsilon = 20, where delta is 2 to 4 times
        the claim.
    Sensitivity
        The printed values are Delta_1 = 2 and Delta_2 = sqrt(2) T. The right values for rows of norm B
        are sqrt(2) B^2 and 2 B T. These are 2 sqrt(2) and 2 sqrt(2) T for cosine features (B^2 = 2), and
        sqrt(2) and 2 T for paired ones (B = 1). Rows are clipped to norm B, which changes only the last
        bits. The pair has the profile of one Gaussian release, which costs less than the two separately.
    Noise
        (E + E^T)/2 has variance 1 on the diagonal and 1/2 off it, as in ``SymmetricGaussian``.

    References
    ----------
    Lee, Park & Ahn (2025), Definition 15, Algorithm 3, Theorem 16.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.proof.papers import PublishedAlgorithm3
    >>> X = np.random.default_rng(0).uniform(0, 1, (50, 2)); y = np.sin(3 * X[:, 0])
    >>> model = PublishedAlgorithm3(20.0, 1e-6, n_features=10, target_bound=1.0).fit(X, y)
    >>> model.certificate_.valid, model.certificate_.profile.epsilon(1e-6) > 20
    (False, True)
    """

    _place: ClassVar[str] = "Algorithm 3"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        n_features: int = 50,
        regularisation: float = 0.1,
        kernel: Any = "gaussian",
        length_scale: float = 1.0,
        target_bound: float | None = None,
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
        self.target_bound = target_bound
        self.features = features
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state

    def _release(self, Z: Array, y: Array) -> Any:
        return super()._release(self._cut(Z), y)

    def _printed(self, n_rows: int) -> PrintedNoise:
        return algorithm_3_noise(n_rows, self.epsilon, self.delta, self._bound)

    def _mechanisms(self, n_rows: int) -> tuple[SymmetricGaussian, Gaussian]:
        row = self._row_norm * (1 + 1e-15)
        right = math.sqrt(2) * row**2 * (1 + 1e-15), 2 * row * self._bound * (1 + 1e-15)
        return _on_grid(self._printed(n_rows), right, n_rows, self.n_features)

    def _proved(self, releases: Sequence[Release]) -> PrivacyProfile:
        """Return the Gaussian profile of the pair, whose two parts can't both move as far as possible.

        Rows of norm B at an angle with cosine k and targets T, -T move (C/s_1, u/s_2), where
        s_2 = s_1 T/sqrt(2), by sqrt(2 B^4 (1 - k^2) + 4 B^2 (1 + k)) / (n s_1). This is at most
        sqrt(2) (B^2 + 1) / (n s_1), at k = 1/B^2. Shorter rows or other targets move it less. The
        effects of the grid and of floating point on each part are added here.
        """
        on_gram, on_cross = (release.mechanism for release in releases)
        # sqrt(2) B^2 / n is the sensitivity of C alone
        farthest = on_gram.sensitivity.value * (1 + self._row_norm**-2) / on_gram.noise_scale
        slack = sum(
            m.profile().mu - m.sensitivity.value / m.noise_scale for m in (on_gram, on_cross)
        )
        return GaussianProfile((farthest + slack) * (1 + 1e-12))

    def _objections(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        right = "sqrt(2) and 2 T" if self.features == "paired" else "2 sqrt(2) and 2 sqrt(2) T"
        return (
            f"erratum 003-5: the printed sensitivities are 2 and sqrt(2) T, and those of"
            f" {self.features} features are {right}; no proof of Theorem 16 is printed, and with"
            " these sensitivities none can work",
        ), ()


def _on_grid(
    printed: PrintedNoise, bounds: tuple[float, float], n_rows: int, n_features: int
) -> tuple[SymmetricGaussian, Gaussian]:
    """Return mechanisms with exactly the printed noise, for these sensitivities of n C and n u.

    The grid is a power of two far below the noise, so that the parameter sqrt(sigma^2 + 4) of the
    discrete Gaussian is the printed one to 18 digits. ``rounding`` bounds the error of the
    floating-point means, which have n + 8 roundings of entries with a bounded sum of magnitudes.
    """
    built = []
    kinds: tuple[type[SymmetricGaussian] | type[Gaussian], ...] = (SymmetricGaussian, Gaussian)
    scales = printed.gram_scale, printed.cross_scale
    for kind, scale, bound in zip(kinds, scales, bounds, strict=True):
        finest = math.ceil(math.log2(bound)) - 50  # so that 2^12 times the bound fits into 62 bits
        grid = 2.0 ** max(math.floor(math.log2(scale)) - 30, finest)
        rounding = (n_rows + 8) * 2.0**-52 * bound
        sensitivity = declared(bound / n_rows * (1 + 1e-15))
        built.append(kind(sensitivity, n_features, scale / grid, grid, rounding))
    on_gram, on_cross = built
    assert isinstance(on_gram, SymmetricGaussian) and isinstance(on_cross, Gaussian)
    return on_gram, on_cross
