r"""Algorithm 2: projected SGD for Hölder-smooth losses with noise on every gradient, as printed.

    w_1 = 0,   w_(t+1) = Proj(w_t - eta (g_t + b_t)),   b_t ~ N(0, sigma^2 I)
    w_priv = mean(w_1 .. w_T)

Here g_t is a subgradient of the loss at record i_t, which is uniform on the n records, and Proj is the
projection on a ball.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from dpkernel.data.domain import Level, clip_rows
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Real
from dpkernel.models.features import FeatureMap
from dpkernel.models.losses import Loss
from dpkernel.privacy import pld
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.noise import NoiseSource
from dpkernel.privacy.profiles import ApproximateProfile, gaussian_delta
from dpkernel.privacy.sensitivity import bounded_sum
from dpkernel.proof.papers.sgd import Amplified, sgd
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.common import HolderSGD
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.constants import (
    PrintedGradientNoise,
    algorithm_2_noise,
    best_beta,
)


class PublishedGradientSGD(HolderSGD):
    r"""Algorithm 2 as printed: projected SGD for a Hölder-smooth loss, noise on every gradient.

    This is a baseline for comparisons, not for protecting data.

    Parameters
    ----------
    epsilon, delta, n_steps, step, loss, classes, target_bound, features, noise
        The same as in ``PublishedOutputSGD``.
    radius : float or None
        R, the radius of the ball on which every iterate is projected. None is allowed for losses with
        alpha = 0 (hinge, absolute, pinball), whose gradients are bounded by M + L everywhere (Remark 5).
    beta : float, optional
        The constant of Theorem 11. By default it is the one with the least noise among those that meet
        (32) and (33). The fit is refused if there is none.
    ledger : Ledger, optional
        A ledger, which is charged what is proved for the printed noise at the claimed epsilon.

    Attributes
    ----------
    coef_ : array
        w_priv, the released coefficients.
    classes_ : tuple
        The declared classes, if the loss classifies.
    printed_ : PrintedGradientNoise
        The numbers of the printed algorithm.
    feature_map_ : FeatureMap
        The feature map.
    certificate_ : Certificate
        It is never valid, because the claim relies on Lemma 3, which is quoted and not proved here, and
        on (32) and (33). Its reasons say whether these hold, and what this library proves for the same
        noise. ``profile`` is that point.

    Notes
    -----
    Guarantee
        The claim (Theorem 11) needs a beta that meets (32) and (33). These force beta to about
        1e-2 .. 1e-4, never near 1/2, and the noise is 2 to 5 times what is needed (erratum
        002-3). The condition of Lemma 13 for a beta to exist fails for n from 18 to 43 (002-4).
        Whatever beta is, delta at the claimed epsilon follows from composing the exact profile of
        one subsampled step T times.
    Sensitivity
        2 C for one gradient, with C = M + L R^alpha. Gradients are clipped to norm C in code, which
        changes only the last bits.
    Numerics
        The noise of every step is discrete, on a grid of 2^-30 of its deviation. What follows is
        post-processing.

    References
    ----------
    Wang, Lei, Ying & Zhang (2022), Algorithm 2, Theorem 11, Lemmas 3 and 13; for what is proved,
    Balle, Barthe & Gaboardi (2018).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.proof.papers import PublishedGradientSGD
    >>> X = np.random.default_rng(0).uniform(-1, 1, (300, 2)); y = np.sign(X[:, 0])
    >>> model = PublishedGradientSGD(4.0, 1e-4, radius=3.0, loss="hinge").fit(X, y)
    >>> model.printed_.feasible, model.certificate_.valid
    (True, False)
    >>> model.certificate_.profile.delta(4.0) < 1e-4
    True
    """

    _constraints: ClassVar = {**HolderSGD._constraints, "beta": (Choice(None), Real(0, 1))}
    _place: ClassVar[str] = "Algorithm 2"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        n_steps: int | None = None,
        step: float = 0.01,
        radius: float | None = 1.0,
        beta: float | None = None,
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
        self.beta = beta
        self.loss = loss
        self.classes = classes
        self.target_bound = target_bound
        self.features = features
        self.ledger = ledger
        self.noise = noise

    def _run(self, Z: Array, y: Array, features: FeatureMap) -> Any:
        n_rows, loss, steps = len(Z), self._loss(), self._steps(len(Z))
        radius = None if self.radius is None else float(self.radius)
        constants = self._constants(features.row_norm_bound)
        if radius is None and constants.alpha > 0:
            advice = "Without a ball, only losses with alpha = 0 have bounded gradients (Remark 5)."
            raise self._refused("radius", "a positive float for this loss", None, advice)
        largest = constants.gradient_bound(radius or 0.0)  # M + L for alpha = 0, whatever R is
        beta = self._beta(n_rows, steps)
        printed = algorithm_2_noise(n_rows, steps, self.epsilon, self.delta, largest, beta)
        self._check_scale(printed.noise_scale)
        mechanism = _on_gradients(printed.noise_scale, largest, Z.shape[1])
        delta = subsampled_delta(self.epsilon, mechanism.profile().mu, 1 / n_rows, steps)
        # the sampler of the noise is within 3e-18 of its law, per draw
        draws = steps * Z.shape[1] * 1e-17 * (1 + math.exp(min(self.epsilon, 700.0)))
        proved = ApproximateProfile(self.epsilon, min(delta + draws, 1.0))
        paid = Amplified("gradient", mechanism, steps, proved=proved)
        noise = self._spend([paid], Budget(self.epsilon, self.delta))
        order = self._order(noise, n_rows, steps)

        def noisy(gradient: Array) -> Array:
            return mechanism.release(clip_rows(gradient[None, :], largest)[0], noise)

        self.coef_ = sgd(
            Z,
            y,
            order,
            float(self.step),
            loss.derivative,
            radius=radius,
            average=True,
            on_gradient=noisy,
        )
        self.printed_ = printed
        self.certificate_ = self._certify(
            [Release("gradient", mechanism, steps)],
            noise,
            public=self._public(n_rows, steps, features, printed),
            errata=_GRADIENT_ERRATA,
            unproved=_gradient_objections(printed, proved),
            proved=proved,
        )
        return self

    def _beta(self, n_rows: int, n_steps: int) -> float:
        if self.beta is not None:
            return float(self.beta)
        found = best_beta(n_rows, n_steps, self.epsilon, self.delta)
        if found is None:
            raise self._refused(
                "beta",
                "given if no beta meets (32) and (33) for these rows, steps, epsilon and delta",
                None,
                "Theorem 11 proves nothing here. Raise epsilon, or state a beta to run it anyway.",
            )
        return found


def _gradient_objections(
    printed: PrintedGradientNoise, proved: ApproximateProfile
) -> tuple[str, ...]:
    """Return why Theorem 11 proves nothing here, and what is proved for the same noise."""
    conditions = "hold" if printed.feasible else "do not hold, so that Theorem 11 says nothing,"
    return (
        "Theorem 11 rests on Lemma 3, which is quoted and not proved here, and on (32) and (33),"
        f" which {conditions} at beta = {printed.beta:.6g} (erratum 002-3)",
        "this library's own bound, which the claim does not use, gives the printed noise"
        f" delta <= {proved.delta_value:.3g} at the claimed epsilon",
    )


@lru_cache(maxsize=64)
def subsampled_delta(epsilon: float, mu: float, share: float, n_steps: int) -> float:
    r"""Return delta at epsilon of T Gaussian steps, each on one record sampled with probability p.

    Under replace-one and with mu = 2 C / sigma, one step has
    delta_1(e) = p G(log(1 + (e^e - 1)/p); mu) for e >= 0 and
    delta_1(-e) = 1 - e^-e + e^-e delta_1(e). The steps compose as privacy loss distributions.

    References
    ----------
    Balle, Barthe & Gaboardi (2018), advanced joint convexity; Zhu, Dong & Wang (2022).
    """

    def one(epsilons: Array) -> Array:
        size = np.minimum(np.abs(epsilons), 600.0)
        inner = np.log1p(np.expm1(size) / share)
        above = share * np.asarray(gaussian_delta(inner, mu))
        return np.where(epsilons >= 0, above, -np.expm1(-size) + np.exp(-size) * above)

    reach = 1e-3
    while reach < 60 and one(np.array([reach]))[0] > 1e-18 / n_steps:
        reach *= 1.5
    if one(np.array([reach]))[0] * n_steps > 1:
        return 1.0  # the loss is far beyond the grid and would count as infinite
    composed = pld.from_profile(one, reach, min(pld.STEP, reach / 100)).repeat(n_steps)
    return float(composed.delta(epsilon))


def _on_gradients(noise_scale: float, largest: float, n_columns: int) -> Gaussian:
    """Return the mechanism that releases one gradient of norm at most ``largest`` with this noise."""
    grid = 2.0 ** (math.floor(math.log2(noise_scale)) - 30)
    moves = bounded_sum(Neighbours.REPLACE_ONE, bound=largest)
    return Gaussian(moves, n_columns, noise_scale / grid, grid)


_GRADIENT_ERRATA = (
    "erratum 002-3: (32) and (33) keep beta far from 1/2, and the noise is 2 to 5 times what is"
    " needed",
    "erratum 002-4: Lemma 13's condition for a beta to exist fails for n from 18 to 43",
)
