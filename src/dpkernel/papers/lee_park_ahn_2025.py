r"""Lee, Park & Ahn (2025), "Optimal differentially private kernel learning with random projection".

Algorithms 1 and 3, kernel ridge regression from noisy sufficient statistics, as printed:

    C = (1/n) sum z_i z_i^T,   u = (1/n) sum [y_i]_T z_i,   [y]_T = y cut to [-T, T]
    C~ = C + s_1 (E + E^T)/2,  u~ = u + s_2 e,              E, e standard normal
    beta~ = (C~ + lambda I)^-1 u~,   f~(x) = beta~^T z(x)

with z a path of a Gaussian process at the data (Algorithm 1) or random Fourier features
(Algorithm 3), the Gaussian kernel exp(-||x - x'||^2 / (2 length_scale^2)) and kappa = 1.

They are baselines. No certificate from this module is valid; each says why, by erratum:

    003-1   Delta_1 of Algorithm 1 is 2 B^2; sqrt(2) B^2 is enough (harmless)
    003-2   basic composition and a loose Gaussian bound: several times the noise that is needed
    003-3   the printed norm bound has one root over two terms; Lemma 7 has the root over one
    003-5   Delta_1 = 2 and Delta_2 = sqrt 2 of Algorithm 3 are too small, and no proof is printed
    003-12  f~ of Algorithm 1 can't be evaluated at a new point without the training inputs

What a ledger is charged is what is proved of the release, not what the paper claims: for
Algorithm 3 the Gaussian profile of the printed noise with the right sensitivities, for
Algorithm 1 everything, so that a ledger with a ceiling refuses it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import cholesky, eigh
from scipy.spatial.distance import cdist
from sklearn.base import RegressorMixin

from dpkernel.certificate import Certificate, Release
from dpkernel.errors import LedgerError, ParameterError, parameter_message
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.ledger import Ledger
from dpkernel.mechanisms import Gaussian, SymmetricGaussian
from dpkernel.noise import NoiseSource, Plan
from dpkernel.profiles import ApproximateProfile, GaussianProfile, PrivacyProfile
from dpkernel.sensitivity import declared
from dpkernel.tables import checked_table
from dpkernel.types import Array, Budget, Neighbours
from dpkernel.validation import Choice, Kind, Real, Whole

PAPER = "Lee, Park & Ahn (2025)"
NOTHING_PROVED = ApproximateProfile(0.0, 1.0)  # delta = 1 at every epsilon


@dataclass(frozen=True)
class PrintedNoise:
    """What an algorithm's box prints: sensitivities of n C and n u, and the noise on C and u."""

    gram_sensitivity: float  # Delta_1
    cross_sensitivity: float  # Delta_2, with the factor T
    gram_scale: float  # s_1: standard deviation on the diagonal of C, s_1/sqrt(2) off it
    cross_scale: float  # s_2: standard deviation of each entry of u


def algorithm_1_noise(
    n_rows: int,
    epsilon: float,
    delta: float,
    n_features: int,
    target_bound: float,
    norm_bound: str = "lemma",
) -> PrintedNoise:
    r"""Return the constants of Algorithm 1, steps 1 and 4, with kappa = 1.

    Delta_1 = 2 B^2,  Delta_2 = 2 T B,  s_j = 2 Delta_j (1 + sqrt(2 log(4/delta))) / (n epsilon):
    half of epsilon and of delta for each of C and u, half of each half delta for the norm bound,
    Nikolov, Talwar & Zhang's Gaussian mechanism for the rest. With l = log(8/delta),

        "lemma"   B^2 = 1 + 2 sqrt(l/M) + 2 l/M        Lemma 7 and the proof of Theorem 8
        "nested"  B^2 = 1 + 2 sqrt(l/M + 2 l/M)        the box, as printed (erratum 003-3)
    """
    ratio = math.log(8 / delta) / n_features
    if norm_bound == "nested":
        squared = 1 + 2 * math.sqrt(ratio + 2 * ratio)
    else:
        squared = 1 + 2 * math.sqrt(ratio) + 2 * ratio
    gram, cross = 2 * squared, 2 * target_bound * math.sqrt(squared)
    factor = 2 * (1 + math.sqrt(2 * math.log(4 / delta))) / (n_rows * epsilon)
    return PrintedNoise(gram, cross, factor * gram, factor * cross)


def algorithm_3_noise(
    n_rows: int, epsilon: float, delta: float, target_bound: float
) -> PrintedNoise:
    r"""Return the constants of Algorithm 3, steps 1 and 4.

    Delta_1 = 2,  Delta_2 = sqrt(2) T,  s_j = 2 Delta_j (1 + sqrt(2 log(2/delta))) / (n epsilon).
    """
    gram, cross = 2.0, math.sqrt(2) * target_bound
    factor = 2 * (1 + math.sqrt(2 * math.log(2 / delta))) / (n_rows * epsilon)
    return PrintedNoise(gram, cross, factor * gram, factor * cross)


def gaussian_process_projection(
    points: Array, n_features: int, *, length_scale: float = 1.0, random_state: int = 0
) -> Array:
    r"""Return h_M at every point: M independent paths of the Gaussian process, over sqrt(M).

    Definition 5, exactly: L G / sqrt(M) with L L^T = K the Cholesky factor of the kernel matrix of
    all points and G standard normal; O(points^3). Row i depends on the points up to i only, so
    that training rows do not change with the test points that follow them.

    Numerics    If K is singular to working precision (repeated points) the least of 1e-13, 1e-12,
                ... that helps is added to its diagonal.
    """
    kernel = np.exp(-cdist(points, points, "sqeuclidean") / (2 * length_scale**2))
    factor = _cholesky(kernel)
    draws = np.random.Generator(np.random.PCG64(random_state))  # public: part of the algorithm
    return np.asarray(
        factor @ draws.standard_normal((len(points), n_features)) / math.sqrt(n_features)
    )


def ridge_path(gram: Array, cross: Array, regularisations: Sequence[float]) -> Array:
    """Return (C~ + lambda I)^-1 u~ for every lambda, one a column, by one eigendecomposition.

    C~ may be indefinite; the paper does not repair it.
    """
    values, vectors = eigh(gram)
    shifted = values[:, None] + np.asarray(regularisations, dtype=np.float64)[None, :]
    return np.asarray(vectors @ ((vectors.T @ cross)[:, None] / shifted))


class _Published(PrivateEstimator):
    """What both algorithms do once the features are there: steps 3 to 5."""

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
    neighbours = Neighbours.REPLACE_ONE

    n_features: int
    regularisation: float
    length_scale: float
    target_bound: float | None
    random_state: int

    @abstractmethod
    def _printed(self, n_rows: int) -> PrintedNoise:
        """Return the constants that the box prints."""

    @abstractmethod
    def _mechanisms(self, n_rows: int) -> tuple[SymmetricGaussian, Gaussian]:
        """Return the printed noise on C and u, with the sensitivities that a ledger is told."""

    @abstractmethod
    def _proved(self, releases: Sequence[Release]) -> PrivacyProfile:
        """Return the profile that the two releases really have together."""

    @abstractmethod
    def _objections(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return why the claim is not proved, and what leaves without noise."""

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

    def fit_features(self, Z: Any, y: Any) -> Any:
        """Run steps 3 to 5 on rows z_i that were computed before; return the estimator.

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
        return self._release(Z, y)

    def _release(self, Z: Array, y: Array) -> Any:
        budget, bound, n_rows = Budget(self.epsilon, self.delta), self._bound, len(Z)
        on_gram, on_cross = self._mechanisms(n_rows)
        releases = [Release("gram matrix", on_gram), Release("cross moments", on_cross)]
        noise = self._spend(releases, budget)
        self.gram_ = on_gram.release(Z.T @ Z / n_rows, noise)
        self.cross_ = on_cross.release(Z.T @ np.clip(y, -bound, bound) / n_rows, noise)
        shifted = self.gram_ + self.regularisation * np.eye(self.n_features)
        self.coef_ = np.linalg.solve(shifted, self.cross_)
        self.printed_ = self._printed(n_rows)

        unproved, without_noise = self._objections()
        issued = Certificate.issue(
            type(self).__name__,
            budget,
            releases,
            noise,
            public={
                "n_rows": n_rows,
                "n_features": int(self.n_features),
                "length_scale": float(self.length_scale),
                "regularisation": float(self.regularisation),
                "target_bound": bound,
                "random_state": int(self.random_state),
                "printed": asdict(self.printed_),
            },
            reference=f"{PAPER}, {self._place}, as printed",
            invalid_because=unproved,
            not_private_because=without_noise,
        )
        # epsilon and delta are the paper's claim; the profile is what is proved of the release
        proved = self._proved(releases)
        self.certificate_ = replace(issued, epsilon=budget.epsilon, profile=proved)
        return self

    @property
    def _bound(self) -> float:
        """T, checked by ``_check_parameters``."""
        return float(self.target_bound)  # type: ignore[arg-type]

    def _check_training_data(self, X: Any, y: Any, **options: Any) -> tuple[Array, Array]:
        X, y = super()._check_training_data(X, y, **options)
        self._set_columns()
        return np.asarray(X, dtype=np.float64), y

    def _plan(self, releases: Sequence[Release]) -> tuple[Ledger, Plan, Neighbours]:
        ledger, plan, relation = super()._plan(releases)
        nothing_proved = self._proved(releases).delta(100.0) == 1
        return ledger, Plan(plan.parts, nothing_proved), relation


class PublishedAlgorithm1(_Published):
    r"""Algorithm 1 as printed: ridge regression on a random projection of the kernel's space.

    z_i = h_M(x_i) is drawn exactly, at training and test points jointly, by a Cholesky factor of
    their kernel matrix: O((n + n_test)^3). A baseline for comparisons, not for protecting data.

    Parameters
    ----------
    epsilon, delta : float
        What the paper claims; half of each for C and for u.
    n_features : int
        M, the projection dimension.
    regularisation : float
        lambda, on the scale of the mean over rows.
    length_scale : float
        Of the Gaussian kernel.
    target_bound : float
        T, the truncation level. Required.
    norm_bound : {"lemma", "nested"}
        The bound on ||h_M(x)||^2: that of Lemma 7 and of the proof of Theorem 8, or the one in
        the algorithm's box, whose root covers two terms (erratum 003-3). For M below
        1.87 log(8/delta) the second is the smaller and not a bound at that probability.
    ledger : Ledger, optional
        One without a ceiling: nothing that a ceiling could count is proved.
    noise : NoiseSource, optional
    random_state : int
        The public seed of h_M. The noise does not come from it.

    Attributes
    ----------
    gram_, cross_ : the noisy C~ and u~
    coef_ : beta~
    printed_ : PrintedNoise
    certificate_ : Certificate
        Never valid.

    Guarantee    none. The claim, (epsilon, delta)-DP of beta~^T h_M (Theorem 8), speaks of a path
                 that is drawn without looking at the data. No such path can be written down: its
                 value at a new point is drawn conditionally on its values at the training inputs,
                 so that the released function contains them (erratum 003-12). For the same
                 reason there is ``fit_predict`` and no ``predict``. Besides, Lemma 7 bounds
                 ||h_M(x)|| in probability over a fresh projection; rows are not clipped to it.
    Sensitivity  Delta_1 = 2 B^2 (sqrt(2) B^2 is enough, 003-1) and Delta_2 = 2 T B, as printed.
    Noise        (E + E^T)/2 has variance 1 on the diagonal and 1/2 off it: ``SymmetricGaussian``.
    Reference    Lee, Park & Ahn (2025), Definition 5, Lemma 7, Algorithm 1, Theorem 8.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.papers import PublishedAlgorithm1
    >>> X = np.random.default_rng(0).uniform(0, 1, (60, 2)); y = np.sin(3 * X[:, 0])
    >>> model = PublishedAlgorithm1(1.0, 1e-3, n_features=10, target_bound=1.0)
    >>> model.fit_predict(X[:50], y[:50], X[50:]).shape
    (10,)
    >>> model.certificate_.valid
    False
    """

    _constraints: ClassVar = {
        **_Published._constraints,
        "norm_bound": Choice("lemma", "nested"),
    }
    _place: ClassVar[str] = "Algorithm 1"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        n_features: int = 50,
        regularisation: float = 0.1,
        length_scale: float = 1.0,
        target_bound: float | None = None,
        norm_bound: str = "lemma",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        random_state: int = 0,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.n_features = n_features
        self.regularisation = regularisation
        self.length_scale = length_scale
        self.target_bound = target_bound
        self.norm_bound = norm_bound
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state

    def fit_predict(self, X: Any, y: Any, X_test: Any) -> Array:
        """Release the noisy statistics of (X, y) and return f~ at the rows of ``X_test``.

        One call, because the projection of a test point is drawn together with the training
        inputs. Nothing is spent if an argument or the data are refused.
        """
        self._check_parameters()
        X, y = self._check_training_data(X, y)
        X_test = self._check_test_points(X_test)
        self._refuse_a_ceiling()
        projected = gaussian_process_projection(
            np.vstack([X, X_test]),
            self.n_features,
            length_scale=self.length_scale,
            random_state=self.random_state,
        )
        self._release(projected[: len(X)], y)
        return np.asarray(projected[len(X) :] @ self.coef_)

    def _check_test_points(self, X: Any) -> Array:
        return np.asarray(checked_table(self, X, dtype=np.float64, reset=False))

    def _release(self, Z: Array, y: Array) -> Any:
        self._refuse_a_ceiling()
        return super()._release(Z, y)

    def _refuse_a_ceiling(self) -> None:
        if self.ledger is not None and self.ledger.budget is not None:
            raise LedgerError(
                "PublishedAlgorithm1 proves nothing that a ceiling could count: what it releases"
                " contains the training inputs. Pass a ledger without a budget, or none. Nothing"
                " was spent."
            )

    def _printed(self, n_rows: int) -> PrintedNoise:
        return algorithm_1_noise(
            n_rows,
            self.epsilon,
            self.delta,
            self.n_features,
            self._bound,
            self.norm_bound,
        )

    def _mechanisms(self, n_rows: int) -> tuple[SymmetricGaussian, Gaussian]:
        p = self._printed(n_rows)
        bounds = p.gram_sensitivity, p.cross_sensitivity
        return _on_grid(p, bounds, n_rows, self.n_features)

    def _proved(self, releases: Sequence[Release]) -> PrivacyProfile:
        return NOTHING_PROVED

    def _objections(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        unproved = [
            "erratum 003-12: the released function is a Gaussian-process path, which can be"
            " evaluated at a new point only by conditioning on the training inputs: the release"
            " contains them",
            "the norm bound of Lemma 7 holds in probability over a projection drawn afresh; here"
            " the projection follows from the public seed and rows are not clipped to the bound",
        ]
        if self.norm_bound == "nested":
            unproved.append(
                "erratum 003-3: the printed bound takes one root over both terms and is below that"
                " of Lemma 7 for n_features < 1.87 log(8/delta)"
            )
        return tuple(unproved), (
            "the projection of the test points is computed from the training inputs without noise",
        )


class PublishedAlgorithm3(RegressorMixin, _Published):
    r"""Algorithm 3 as printed: ridge regression on random Fourier features.

    A baseline for comparisons, not for protecting data: ``PrivateKernelRidge`` is the same idea
    with proved constants and less noise.

    Parameters
    ----------
    epsilon, delta, n_features, regularisation, length_scale, target_bound, noise, random_state
        As in ``PublishedAlgorithm1``; ``random_state`` is the public seed of the features.
    features : {"cosine", "paired"}
        The paper asks for a map into [-sqrt 2, sqrt 2] and does not write it down: "cosine" is
        sqrt(2/M) cos(w_j^T x + b_j), which has that range; "paired" is
        sqrt(2/M) (cos w_j^T x, sin w_j^T x), j <= M/2, the other form in use.
    ledger : Ledger, optional
        Charged the profile that the printed noise has with the right sensitivities.

    Attributes
    ----------
    gram_, cross_ : the noisy C~ and u~
    coef_ : beta~
    printed_ : PrintedNoise
    certificate_ : Certificate
        Never valid: epsilon and delta are the claim; ``profile`` is what the printed noise gives
        with the right sensitivities. Compare ``certificate_.profile.epsilon(delta)``.

    Guarantee    not the claimed one: no proof of Theorem 16 is printed, and with the printed
                 sensitivities none can work (erratum 003-5). The claim survives for epsilon <= 10
                 by the slack of its composition; with cosine features it fails at epsilon = 20,
                 where delta is 2 to 4 times what is claimed.
    Sensitivity  printed Delta_1 = 2, Delta_2 = sqrt(2) T. Right, for rows of norm B:
                 sqrt(2) B^2 and 2 B T, that is 2 sqrt(2) and 2 sqrt(2) T for cosine features
                 (B^2 = 2), sqrt(2) and 2 T for paired ones (B = 1). Rows are cut to norm B, which
                 changes nothing but last bits. The pair has the profile of one Gaussian release,
                 which is less than the two together.
    Noise        (E + E^T)/2 has variance 1 on the diagonal and 1/2 off it: ``SymmetricGaussian``.
    Reference    Lee, Park & Ahn (2025), Definition 15, Algorithm 3, Theorem 16.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.papers import PublishedAlgorithm3
    >>> X = np.random.default_rng(0).uniform(0, 1, (50, 2)); y = np.sin(3 * X[:, 0])
    >>> model = PublishedAlgorithm3(20.0, 1e-6, n_features=10, target_bound=1.0).fit(X, y)
    >>> model.certificate_.valid, model.certificate_.profile.epsilon(1e-6) > 20
    (False, True)
    """

    _constraints: ClassVar = {
        **_Published._constraints,
        "features": Choice("cosine", "paired"),
    }
    _place: ClassVar[str] = "Algorithm 3"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        n_features: int = 50,
        regularisation: float = 0.1,
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
        self.length_scale = length_scale
        self.target_bound = target_bound
        self.features = features
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> PublishedAlgorithm3:
        """Release the noisy statistics of (X, y) and solve for beta~."""
        self._check_parameters()
        X, y = self._check_training_data(X, y)
        self._release(self.transform(X), y)
        return self

    def predict(self, X: Any) -> Array:
        """Return beta~^T phi_M(x), not cut to [-T, T]: the paper does not."""
        return np.asarray(self.transform(X) @ self.coef_)

    def transform(self, X: Any) -> Array:
        """Return the features phi_M of every row; they follow from the public seed alone."""
        X = self._check_new_data(X)
        draws = np.random.Generator(np.random.PCG64(self.random_state))  # public: part of the model
        columns = self.n_features // 2 if self.features == "paired" else self.n_features
        frequencies = draws.standard_normal((X.shape[1], columns)) / self.length_scale
        phase = np.clip(X, -1e30, 1e30) @ frequencies
        if self.features == "paired":
            out = np.concatenate((np.cos(phase), np.sin(phase)), axis=1)
        else:
            out = np.cos(phase + draws.uniform(0, 2 * math.pi, columns))
        return np.asarray(out * math.sqrt(2 / self.n_features))

    @property
    def _row_norm(self) -> float:
        """B: the largest norm of a row."""
        return 1.0 if self.features == "paired" else math.sqrt(2)

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        found = super()._check_parameters()
        if self.features == "paired" and self.n_features % 2:
            raise ParameterError(
                parameter_message(
                    type(self).__name__, "n_features", "even for paired features", self.n_features
                )
            )
        return found

    def _release(self, Z: Array, y: Array) -> Any:
        norms = np.linalg.norm(Z, axis=1, keepdims=True)
        return super()._release(Z * (self._row_norm / np.maximum(norms, self._row_norm)), y)

    def _printed(self, n_rows: int) -> PrintedNoise:
        return algorithm_3_noise(n_rows, self.epsilon, self.delta, self._bound)

    def _mechanisms(self, n_rows: int) -> tuple[SymmetricGaussian, Gaussian]:
        row = self._row_norm * (1 + 1e-15)
        right = math.sqrt(2) * row**2 * (1 + 1e-15), 2 * row * self._bound * (1 + 1e-15)
        return _on_grid(self._printed(n_rows), right, n_rows, self.n_features)

    def _proved(self, releases: Sequence[Release]) -> PrivacyProfile:
        """Return the Gaussian profile of the pair, whose two parts can't both move farthest.

        Rows of norm B at an angle with cosine k and targets T, -T move (C/s_1, u/s_2), where
        s_2 = s_1 T/sqrt(2), by sqrt(2 B^4 (1 - k^2) + 4 B^2 (1 + k)) / (n s_1), at most
        sqrt(2) (B^2 + 1) / (n s_1), at k = 1/B^2; shorter rows or other targets move it less.
        What the grid and floating point add to each part is added here.
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
    floating-point means: n + 8 roundings of entries whose sum of magnitudes is at most a bound.
    """
    built = []
    kinds: tuple[type[SymmetricGaussian] | type[Gaussian], ...] = (SymmetricGaussian, Gaussian)
    scales = printed.gram_scale, printed.cross_scale
    for kind, scale, bound in zip(kinds, scales, bounds, strict=True):
        finest = math.ceil(math.log2(bound)) - 50  # entries keep 2^12 times the bound in 62 bits
        grid = 2.0 ** max(math.floor(math.log2(scale)) - 30, finest)
        rounding = (n_rows + 8) * 2.0**-52 * bound
        sensitivity = declared(bound / n_rows * (1 + 1e-15))
        built.append(kind(sensitivity, n_features, scale / grid, grid, rounding))
    on_gram, on_cross = built
    assert isinstance(on_gram, SymmetricGaussian) and isinstance(on_cross, Gaussian)
    return on_gram, on_cross


def _cholesky(kernel: Array) -> Array:
    """Return a lower Cholesky factor, of K + jitter I where K is singular to working precision."""
    jitter = 0.0
    while True:
        try:
            shifted = kernel + jitter * np.eye(len(kernel)) if jitter else kernel
            return np.asarray(cholesky(shifted, lower=True))
        except np.linalg.LinAlgError:
            if jitter > 1e-3:
                raise
            jitter = max(10 * jitter, 1e-13)
