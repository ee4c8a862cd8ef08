r"""Algorithm 1: SGD for Hölder-smooth losses with noise on the mean of the iterates, as printed.

    w_1 = 0,   w_(t+1) = Proj(w_t - eta g_t),   w_priv = mean(w_1 .. w_T) + N(0, sigma^2 I)

Here g_t is a subgradient of the loss at record i_t, which is uniform on the n records, and Proj is the
projection on a ball, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dpkernel.data.domain import Level
from dpkernel.foundations.types import Array
from dpkernel.models.features import FeatureMap
from dpkernel.models.losses import Loss
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource
from dpkernel.proof.papers.sgd import NOT_SUPPORTED, output_run
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.common import HolderSGD
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.constants import algorithm_1_noise


class PublishedOutputSGD(HolderSGD):
    r"""Algorithm 1 as printed: SGD for a Hölder-smooth loss, noise on the mean of the iterates.

    This is a baseline for comparisons. It protects, with many times the noise that is needed.

    Parameters
    ----------
    epsilon, delta : float
        The claim of the paper (Theorem 8). Half of delta is for the sensitivity.
    n_steps : int, optional
        T; by default the number of rows.
    step : float
        eta, below min(1, 1/L) (Theorem 7).
    radius : float, optional
        The radius of the ball on which iterates are projected (Theorem 7b). By default there is no
        projection (7a).
    loss : str or Loss
        Any loss of ``dpkernel.models.losses``. Its Hölder constants are the paper's alpha and L.
    classes : pair of labels
        The declared negative and positive class. Losses that regress do not use it.
    target_bound : float, optional
        A publicly known bound on \|y\|, required by losses that regress. Targets are clipped to it.
    features : "linear" or FeatureMap
        "linear" has rows in the box [-1, 1]^d divided by sqrt d. Or pass a map of
        ``dpkernel.models.features``.
    ledger : Ledger, optional
        A ledger, which is charged what is proved for the printed noise.
    noise : NoiseSource, optional
        The source of the noise and of the order of the rows, which must be fresh.

    Attributes
    ----------
    coef_ : array
        w_priv, the released coefficients.
    classes_ : tuple
        The declared classes, if the loss classifies.
    printed_ : PrintedOutputNoise
        The numbers of the printed algorithm.
    feature_map_ : FeatureMap
        The feature map.
    certificate_ : Certificate
        It is valid if this library's own bound supports the claim. Its epsilon is then the one that is
        proved, and ``public["errata"]`` says how loose the printed one is.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP as claimed, for replace-one, if the profile supports it. The printed
        constants hold and are loose: at T = n = 10^4, sigma is 41 times what is needed for
        alpha >= 1/2, and 2.7 times for alpha = 0 (erratum 002-2). C_alpha of Lemma 20 grows without
        bound for alpha -> 1 and L > 1 (002-1), and so does the noise if there is no radius. The
        Gaussian lemma is proved for epsilon <= 1 (002-0); the proof here does not use it.
    Sensitivity
        If the replaced record was sampled k times, it is sqrt(a^2 + (T - k) c^2) + (k - 1) a with
        a = 2 eta G and c^2 of Lemma 21. k is binomial, and the profile is a mixture over it
        (``solvers.sgd_output``). G is the largest slope of the loss times kappa, or M + L R^alpha with
        the radius or the bound of ``corrected_c_alpha``.
    Numerics
        The same as for ``PublishedRandomFeatureSGD``.

    References
    ----------
    Wang, Lei, Ying & Zhang (2022), Algorithm 1, Theorems 7 and 8, Lemmas 20 and 21.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.proof.papers import PublishedOutputSGD
    >>> X = np.random.default_rng(0).uniform(-1, 1, (300, 2)); y = np.sign(X[:, 0])
    >>> model = PublishedOutputSGD(1.0, 1e-5, step=0.1, loss="logistic").fit(X, y)
    >>> model.certificate_.valid, model.certificate_.epsilon < 0.1
    (True, True)
    """

    _place: ClassVar[str] = "Algorithm 1"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        n_steps: int | None = None,
        step: float = 0.01,
        radius: float | None = None,
        loss: str | Loss = "logistic",
        classes: Sequence[Level] = (-1, 1),
        target_bound: float | None = None,
        features: str | FeatureMap = "linear",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.n_steps = n_steps
        self.step = step
        self.radius = radius
        self.loss = loss
        self.classes = classes
        self.target_bound = target_bound
        self.features = features
        self.ledger = ledger
        self.noise = noise

    def _run(self, Z: Array, y: Array, features: FeatureMap) -> Any:
        n_rows, kappa, loss = len(Z), features.row_norm_bound, self._loss()
        steps, eta = self._steps(n_rows), float(self.step)
        constants = self._constants(kappa)
        self._check_theorem_7(constants)
        radius = None if self.radius is None else float(self.radius)
        printed = algorithm_1_noise(n_rows, steps, eta, self.epsilon, self.delta, constants, radius)
        self._check_scale(printed.noise_scale)
        run = output_run(
            loss,
            n_rows,
            Z.shape[1],
            steps,
            eta,
            kappa=kappa,
            target_bound=self._bound,
            radius=radius,
            average=True,
        )
        scale = printed.noise_scale
        releases, noise, supported = self._perturb_output(run, scale, "mean iterate", Z, y)
        self.printed_ = printed
        self.certificate_ = self._certify(
            releases,
            noise,
            public=self._public(n_rows, steps, features, printed),
            errata=_OUTPUT_ERRATA,
            unproved=[] if supported else [NOT_SUPPORTED],
        )
        return self


_OUTPUT_ERRATA = (
    "erratum 002-0: the Gaussian lemma is proved for epsilon <= 1 only",
    "erratum 002-1: without a radius, C_alpha of Lemma 20 lacks the step size and grows without"
    " bound as alpha tends to 1, if L > 1",
    "erratum 002-2: the sensitivity of Theorem 7 holds and is loose; the noise is 41 times what is"
    " needed for alpha >= 1/2, 2.7 times for alpha = 0, at T = n = 10^4",
)
