r"""Algorithm 1: least-squares SGD on random features with output perturbation, as printed.

w_1 = 0,   w_(t+1) = w_t - eta (<w_t, phi(x_i)> - y_i) phi(x_i),   i uniform on the n records
w_priv = w_(T+1) + N(0, sigma^2 I),   sigma^2 = 2 log(2.5/delta) Delta^2 / epsilon^2
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from sklearn.base import RegressorMixin

from dpkernel.foundations.types import Array
from dpkernel.foundations.validation import Choice, Kind, Whole
from dpkernel.models.features import FeatureMap
from dpkernel.models.losses import Loss, Squared
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource
from dpkernel.proof.papers.sgd import NOT_SUPPORTED, PublishedSGD, output_run
from dpkernel.proof.papers.wang_guo_2024.constants import algorithm_1_noise
from dpkernel.proof.papers.wang_guo_2024.features import CosineFeatures


class PublishedRandomFeatureSGD(RegressorMixin, PublishedSGD):
    r"""Algorithm 1 as printed: SGD on random features, noise on the last iterate.

    This is a baseline for comparisons, not for protecting data.

    Parameters
    ----------
    epsilon, delta : float
        The claim of the paper (Theorem 3). Half of delta is for the sensitivity.
    n_steps : int, optional
        T; by default the number of rows.
    step : float
        eta. It must be below 1/kappa^2, as in the proof of Theorem 2.
    target_bound : float
        c, a publicly known bound on \|y\|. It is required; targets are clipped to it.
    features : "cosine", "linear" or FeatureMap
        "cosine" is the paper's Example 2.1 with ``n_features``, ``length_scale`` and ``random_state``,
        where kappa = sqrt 2. "linear" has rows in the box [-1, 1]^d divided by sqrt d. Or pass any map
        of ``dpkernel.models.features``, with its own parameters.
    sensitivity : {"stated", "proof"}
        Delta as Theorem 2 states it, or as its proof has it, which takes the root.
    ledger : Ledger, optional
        A ledger, which is charged what is proved for the printed noise, whatever the paper claims.
    noise : NoiseSource, optional
        The source of the noise and of the order of the rows, which must be fresh.
    n_features, length_scale, random_state
        Parameters of the cosine features. The seed is public.

    Attributes
    ----------
    coef_ : array
        w_priv, the released coefficients.
    printed_ : PrintedOutputNoise
        The numbers of the printed algorithm.
    feature_map_ : FeatureMap
        The feature map.
    certificate_ : Certificate
        epsilon and delta are the claim, and ``profile`` is what is proved for the printed noise. With
        ``sensitivity="stated"`` the certificate is never valid. With "proof" it is valid if the profile
        supports the claim, which it does by a wide margin.

    Notes
    -----
    Guarantee
        Not the claimed one. Theorem 2 states Delta^2 instead of Delta (erratum 000-1). Compared with
        its proof, the noise is too small for small steps (2.3 times at n = T = 1000, eta = 1/n and
        delta = 1e-6, and 21 times at n = 10^4), and up to 300 times too large for large steps. At
        n = 10^6 it is not sufficient at all: delta is at least 0.126 for a claim of (1, 1e-6). The
        factor c of the second term is missing, too (000-2). The noise of the proof is enough, and 45 to
        52 times what is needed (000-3). The Gaussian lemma is proved for epsilon <= 1 only (000-4).
    Sensitivity
        2 eta G k if the replaced record was sampled k times, with
        G = c kappa (1 + kappa sqrt(eta T / (2 - eta kappa^2))). k is binomial, and the profile is a
        mixture over it (``solvers.sgd_output``).
    Numerics
        The order is exactly uniform. The noise is discrete on a grid of 2^-30 of its deviation. The
        rounding errors of the loop are bounded and included.

    References
    ----------
    Wang & Guo (2024), Algorithm 1, Theorems 2 and 3, Example 2.1. Equation (5) starts at w_0 = 1;
    the printed algorithm starts at w_1 = 0, as here.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.proof.papers import PublishedRandomFeatureSGD
    >>> X = np.random.default_rng(0).uniform(0, 1, (200, 2)); y = np.sin(3 * X[:, 0])
    >>> model = PublishedRandomFeatureSGD(1.0, 1e-5, step=1e-5, target_bound=1.0).fit(X, y)
    >>> model.certificate_.valid, model.certificate_.profile.epsilon(1e-5) > 1
    (False, True)
    """

    _constraints: ClassVar = {
        **PublishedSGD._constraints,
        "features": (Choice("cosine", "linear"), Kind(FeatureMap)),
        "sensitivity": Choice("stated", "proof"),
        "n_features": Whole(1, 1_000_000),
        "random_state": Whole(0),
    }
    _paper: ClassVar[str] = "Wang & Guo (2024)"
    _place: ClassVar[str] = "Algorithm 1"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        n_steps: int | None = None,
        step: float = 0.01,
        target_bound: float | None = None,
        features: str | FeatureMap = "cosine",
        sensitivity: str = "stated",
        n_features: int = 100,
        length_scale: float = 1.0,
        random_state: int = 0,
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.n_steps = n_steps
        self.step = step
        self.target_bound = target_bound
        self.features = features
        self.sensitivity = sensitivity
        self.n_features = n_features
        self.length_scale = length_scale
        self.random_state = random_state
        self.ledger = ledger
        self.noise = noise

    def _loss(self) -> Loss:
        return Squared()

    def _feature_map(self, n_inputs: int) -> FeatureMap:
        if isinstance(self.features, str) and self.features == "cosine":
            size, scale, seed = self.n_features, self.length_scale, self.random_state
            own: FeatureMap = CosineFeatures(size, length_scale=scale, random_state=seed)
            own.build(n_inputs)
            return own
        return super()._feature_map(n_inputs)

    def _run(self, Z: Array, y: Array, features: FeatureMap) -> Any:
        n_rows, kappa, c = len(Z), features.row_norm_bound, self._bound
        steps, eta = self._steps(n_rows), float(self.step)
        self._check_step(kappa**-2, "1/kappa^2 for the features in use")
        printed = algorithm_1_noise(
            n_rows,
            steps,
            eta,
            self.epsilon,
            self.delta,
            kappa=kappa,
            target_bound=c,
            sensitivity=self.sensitivity,
        )
        self._check_scale(printed.noise_scale)
        run = output_run(self._loss(), n_rows, Z.shape[1], steps, eta, kappa=kappa, target_bound=c)
        scale = printed.noise_scale
        releases, noise, supported = self._perturb_output(run, scale, "last iterate", Z, y)
        self.printed_ = printed
        errata, unproved = self._objections(supported)
        self.certificate_ = self._certify(
            releases,
            noise,
            public={
                "n_rows": n_rows,
                "n_steps": steps,
                "features": features,
                "sensitivity": self.sensitivity,
                "printed": asdict(printed),
            },
            errata=errata,
            unproved=unproved,
        )
        return self

    def _objections(self, supported: bool) -> tuple[list[str], list[str]]:
        """Return what is wrong with the print, and why the claim is not proved."""
        root = (
            "erratum 000-1: Theorem 2 states the square of the sensitivity that its proof has; the"
            " noise is too small for small steps and no proof of Theorem 3 covers it"
        )
        errata = [
            "erratum 000-3: the sensitivity that the proof gives is 45 to 52 times what is needed",
            "erratum 000-4: the Gaussian lemma is proved for epsilon <= 1 only",
        ]
        if self.sensitivity == "stated":
            factor = "erratum 000-2: the factor c of the gradient's second term is missing"
            return [root, factor, *errata], [root]
        return errata, [] if supported else [NOT_SUPPORTED]
