r"""The canonical estimator behind Theorem 10, which reaches the minimax rate and knows the inputs' law.

    theta_l = (1/n) sum_i y_i phi_l(x_i) + noise,   l <= d,      f(x) = sum_l theta_l phi_l(x)

phi_l are the eigenfunctions of the kernel under the law of the inputs. Here that law is uniform on a
declared box, and phi_l are products of sqrt(2) cos(pi k x), whose smallest frequencies come first.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin

from dpkernel.data.domain import clip_rows
from dpkernel.data.sources import training_data
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Kind, Real, Whole
from dpkernel.models.features.base import FeatureMap
from dpkernel.privacy.certificate import Certificate, Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.privacy.sensitivity import bounded_sum
from dpkernel.proof.papers.lee_park_ahn_2025.common import PAPER, dense
from dpkernel.proof.papers.lee_park_ahn_2025.rates import CanonicalEstimator, canonical_estimator

STEPS = 2**20  # a record of the largest norm in whole numbers, whose sums are exact


@lru_cache(maxsize=64)
def frequencies(n_inputs: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Return the first ``count`` vectors of whole numbers >= 0, ordered by their length.

    Taking 1 from the last positive entry of a vector makes it shorter. So a heap that starts with 0 and
    takes, for each vector, those that lead to it in this way, gives all vectors in this order.
    """
    heap: list[tuple[int, tuple[int, ...]]] = [(0, (0,) * n_inputs)]
    found: list[tuple[int, ...]] = []
    while len(found) < count:
        square, k = heapq.heappop(heap)
        found.append(k)
        last = max((j for j, v in enumerate(k) if v), default=0)
        for j in range(last, n_inputs):
            heapq.heappush(heap, (square + 2 * k[j] + 1, (*k[:j], k[j] + 1, *k[j + 1 :])))
        if len(heap) > 2 * count:  # more are never needed
            heap = heapq.nsmallest(count, heap)
    return tuple(found)


class CosineSystem(FeatureMap):
    r"""phi_k(x) = prod_j c_(k_j) cos(pi k_j (x_j + 1) / 2) on [-1, 1]^p, with c_0 = 1 and c_k = sqrt 2.

    They are orthonormal for the uniform law, and eigenfunctions of every kernel sum_l mu_l phi_l(x)
    phi_l(y).

    Parameters
    ----------
    n_components : int
        The number d of functions.

    Notes
    -----
    The squared norm of a row is at most sum_k 2^(number of k_j > 0), which is attained in a corner.
    """

    kind: ClassVar[str] = "lee-cosine-system"

    def __init__(self, n_components: int = 16) -> None:
        self.n_components = n_components

    def _build(self, n_inputs: int) -> None:
        self.n_outputs = self._require_components()
        self._k = np.array(frequencies(n_inputs, self.n_outputs), dtype=np.float64)
        self._height = np.where(self._k > 0, math.sqrt(2), 1.0)

    @property
    def row_norm_bound(self) -> float:
        """The norm in a corner of the box, rounded up."""
        return float(np.sqrt(np.sum(np.prod(self._height**2, axis=1)))) * (1 + 1e-12)

    def transform_block(self, X: Array) -> Array:
        """Return the functions of every row, which is clipped to the box."""
        inside = (np.clip(X, -1, 1) + 1) * (math.pi / 2)
        out = np.ones((len(X), self.n_outputs), dtype=X.dtype)
        for j in range(X.shape[1]):
            out *= np.cos(inside[:, j : j + 1] * self._k[None, :, j]) * self._height[None, :, j]
        return np.asarray(out, dtype=X.dtype)


class PublishedCanonicalEstimator(RegressorMixin, PrivateEstimator):
    r"""The estimator in the proof of Theorem 10, as printed or with the right noise.

    It is minimax optimal if the inputs are uniform on the declared box, and useless if their law is
    another one; nobody knows that law in practice.

    Parameters
    ----------
    epsilon, delta : float
        The budget. As printed, it is the claim of the paper.
    r, gamma, beta : float
        The exponents of the source, of the eigenvalues mu_l = l^(-1/gamma), and of the embedding. They
        determine d and the printed noise.
    c_beta : float
        The constant of the printed noise.
    n_coefficients : "theorem" or int
        d; by default that of the theorem.
    target_bound : float
        T. Targets are clipped to [-T, T]; the paper has T = 1.
    bounds : (low, high)
        The box on which the inputs are uniform, for all columns; values outside are clipped.
    reading : {"printed", "corrected"}
        The noise of the print, or that of a Gaussian mechanism with the right sensitivity.
    ledger : Ledger, optional
        A ledger, which is charged what is proved for the release, whatever the paper claims.
    noise : NoiseSource, optional
        The source of noise; by default the entropy of the operating system.

    Attributes
    ----------
    coef_ : array
        The released theta_1 .. theta_d.
    printed_ : CanonicalEstimator
        d, and the noise of the paper for this reading.
    feature_map_ : CosineSystem
        The eigenfunctions.
    certificate_ : Certificate
        Valid for ``reading="corrected"``, and never for "printed".

    Notes
    -----
    Guarantee
        "corrected": (epsilon, delta)-DP for replaced records. "printed": not the claimed one in
        general, because the printed noise has d^(beta/2) instead of d^(beta/(2 gamma)); ``profile`` is
        what it gives with the right sensitivity.
    Sensitivity
        2 T S / n with S^2 = sum_(l<=d) sup phi_l^2, by clipping: ``sensitivity.bounded_sum``.
    Numerics
        Records are truncated to 2^-20 of the largest norm and added as whole
        numbers; the noise is discrete.

    References
    ----------
    Lee, Park & Ahn (2025), Section 4.1, proof of Theorem 10.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.proof.papers import PublishedCanonicalEstimator
    >>> X = np.random.default_rng(0).uniform(0, 1, (4000, 1)); y = np.sin(3 * X[:, 0])
    >>> model = PublishedCanonicalEstimator(1.0, 1e-6, reading="corrected").fit(X, y)
    >>> model.certificate_.valid, bool(model.score(X, y) > 0.9)
    (True, True)
    """

    _constraints: ClassVar = {
        "epsilon": Real(0, math.inf),
        "delta": Real(0, 1),
        "r": Real(0.5, 1, closed_low=True, closed_high=True),
        "gamma": Real(0, 1, closed_high=True),
        "beta": Real(0, 1, closed_high=True),
        "c_beta": Real(0, math.inf),
        "n_coefficients": (Choice("theorem"), Whole(1, 10_000)),
        "target_bound": Real(1e-100, 1e100),
        "reading": Choice("printed", "corrected"),
        "ledger": (Choice(None), Kind(Ledger)),
        "noise": (Choice(None), Kind(NoiseSource)),
    }
    neighbours = Neighbours.REPLACE_ONE

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        r: float = 0.5,
        gamma: float = 0.5,
        beta: float = 0.5,
        c_beta: float = 1.0,
        n_coefficients: int | str = "theorem",
        target_bound: float = 1.0,
        bounds: tuple[float, float] = (0.0, 1.0),
        reading: str = "printed",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.r = r
        self.gamma = gamma
        self.beta = beta
        self.c_beta = c_beta
        self.n_coefficients = n_coefficients
        self.target_bound = target_bound
        self.bounds = bounds
        self.reading = reading
        self.ledger = ledger
        self.noise = noise

    def fit(self, X: Any, y: Any) -> PublishedCanonicalEstimator:
        """Release the noisy coefficients of (X, y). Nothing is spent if the data are refused."""
        budget, _ = self._check_parameters()
        low, high = self._box()
        X, y, columns = training_data(self, X, y)
        unit = np.clip((dense(X) - low) / (high - low) * 2 - 1, -1, 1)
        printed = self._printed(len(y))
        features = CosineSystem(printed.n_coefficients).build(unit.shape[1])
        mechanism = self._mechanism(features, printed, len(y), budget)
        releases = [Release("coefficients", mechanism)]
        noise = self._spend(releases, budget)
        total = self._sum(features, unit, y)
        self.coef_ = mechanism.release(total, noise) * (self._unit(features) / len(y))
        self.feature_map_, self.printed_ = features, printed
        public = {
            "n_rows": len(y),
            "bounds": [low, high],
            "target_bound": float(self.target_bound),
            "feature_map": features.to_dict(),
            "reading": self.reading,
            "printed": asdict(printed),
        }
        self.certificate_ = self._certificate(releases, noise, budget, public)
        columns.set_on(self)
        return self

    def predict(self, X: Any) -> Array:
        """Return f at every row."""
        low, high = self._box()
        rows = dense(self._check_new_data(X))
        unit = np.clip((rows - low) / (high - low) * 2 - 1, -1, 1)
        return np.asarray(self.feature_map_.transform_block(unit) @ self.coef_)

    def _box(self) -> tuple[float, float]:
        fine = isinstance(self.bounds, (tuple, list)) and len(self.bounds) == 2
        fine = fine and all(Real(-1e100, 1e100).holds(v) for v in self.bounds)
        if not fine or not self.bounds[0] < self.bounds[1]:
            raise ParameterError(
                parameter_message(
                    type(self).__name__,
                    "bounds",
                    "a pair of numbers low < high",
                    type(self.bounds).__name__,
                    "The inputs must be uniform on this box.",
                )
            )
        return float(self.bounds[0]), float(self.bounds[1])

    def _printed(self, n_rows: int) -> CanonicalEstimator:
        """Return d and the noise of the paper for targets in [-1, 1]."""
        given = self.n_coefficients
        return canonical_estimator(
            n_rows,
            max(float(self.epsilon), 1 / n_rows),
            self.delta,
            r=self.r,
            gamma=self.gamma,
            beta=max(float(self.beta), float(self.gamma)),
            c_beta=self.c_beta,
            n_coefficients=None if given == "theorem" else int(given),
            reading=self.reading,
        )

    def _unit(self, features: CosineSystem) -> float:
        """The value of one step of a sum."""
        return features.row_norm_bound * float(self.target_bound) / STEPS

    def _sum(self, features: CosineSystem, unit: Array, y: Array) -> Any:
        """Return the sum of the records y_i phi(x_i) in whole steps; each has norm at most STEPS."""
        bound = features.row_norm_bound
        rows = clip_rows(features.transform_block(unit), bound)
        share = np.clip(y, -self.target_bound, self.target_bound) / self.target_bound
        steps = rows / bound * (share * (STEPS * (1 - 2.0**-30)))[:, None]
        return np.asarray(np.trunc(steps).astype(np.int64).sum(axis=0))

    def _mechanism(
        self, features: CosineSystem, printed: CanonicalEstimator, n_rows: int, budget: Budget
    ) -> Gaussian:
        moved = bounded_sum(self.neighbours, bound=float(STEPS))
        size = features.n_outputs
        if self.reading == "corrected":
            found: Gaussian = Gaussian.calibrate(moved, budget, dimension=size, integer=True)
            return found
        scale = printed.noise_scale * float(self.target_bound) * n_rows / self._unit(features)
        return Gaussian(moved, size, max(scale, 4.0), 1.0, 0.0, True)

    def _certificate(
        self, releases: list[Release], noise: Noise, budget: Budget, public: dict[str, Any]
    ) -> Certificate:
        printed = self.reading == "printed"
        issued = Certificate.issue(
            type(self).__name__,
            budget,
            releases,
            noise,
            public=public,
            reference=f"{PAPER}, proof of Theorem 10, {'as printed' if printed else 'corrected'}",
            invalid_because=[_ERRATUM] if printed else (),
        )
        # as printed, epsilon and delta are the claim; the profile is what is proved
        return replace(issued, epsilon=budget.epsilon) if printed else issued


_ERRATUM = (
    "the printed noise has d^(beta/2) where the proof needs d^(beta/(2 gamma)), and c_beta where it"
    " needs its root; the profile is what the printed noise gives with the right sensitivity"
)
