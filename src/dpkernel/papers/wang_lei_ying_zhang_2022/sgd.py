r"""Algorithms 1 and 2: SGD for Hölder-smooth losses, by output or gradient perturbation, as printed.

    Algorithm 1   w_(t+1) = Proj(w_t - eta g_t),           w_priv = mean(w_1 .. w_T) + N(0, sigma^2 I)
    Algorithm 2   w_(t+1) = Proj(w_t - eta (g_t + b_t)),   w_priv = mean(w_1 .. w_T),
                  b_t ~ N(0, sigma^2 I)

with g_t a subgradient of the loss at record i_t, uniform on the n records, and Proj the projection
on a ball of a radius R (Algorithm 1 also without).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags

from dpkernel import pld
from dpkernel.certificate import Release
from dpkernel.domain import Level, Levels, clip_rows
from dpkernel.estimators.labels import label_codes
from dpkernel.features import FeatureMap
from dpkernel.ledger import Ledger
from dpkernel.losses import REGISTRY, Loss
from dpkernel.mechanisms import Gaussian
from dpkernel.noise import NoiseSource
from dpkernel.papers.sgd import NOT_SUPPORTED, Amplified, Descent, PublishedSGD, sgd
from dpkernel.papers.wang_lei_ying_zhang_2022.constants import (
    HolderConstants,
    PrintedGradientNoise,
    algorithm_1_noise,
    algorithm_2_noise,
    best_beta,
    corrected_c_alpha,
    step_expansion,
)
from dpkernel.profiles import ApproximateProfile, gaussian_delta
from dpkernel.sensitivity import bounded_sum
from dpkernel.types import Array, Budget, Neighbours
from dpkernel.validation import Choice, Kind, Real


class _HolderSGD(PublishedSGD):
    """What both algorithms share: a loss by its constants, classes, a radius."""

    _constraints: ClassVar = {
        **PublishedSGD._constraints,
        "features": (Choice("linear"), Kind(FeatureMap)),
        "radius": (Choice(None), Real(1e-100, 1e100)),
    }
    _paper: ClassVar[str] = "Wang, Lei, Ying & Zhang (2022)"

    loss: str | Loss
    classes: Sequence[Level]
    radius: float | None

    def fit(self, X: Any, y: Any) -> Any:
        """Run the algorithm on (X, y); return the estimator."""
        super().fit(X, y)
        if self._loss().labels:
            self.classes_ = np.array(self._labels)
        return self

    def _loss(self) -> Loss:
        loss = self.loss
        if isinstance(loss, str) and loss in REGISTRY:
            return REGISTRY[loss]()
        if not isinstance(loss, Loss):
            names = ", ".join(repr(name) for name in REGISTRY)
            got = loss if isinstance(loss, str) else type(loss).__name__
            raise self._refused("loss", f"one of {names}, or a Loss", got)
        return loss

    @property
    def _labels(self) -> tuple[Level, ...]:
        """The declared classes as plain values."""
        return tuple(v.item() if isinstance(v, np.generic) else v for v in self.classes)

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        loss = self._loss()
        if loss.labels:
            listed = isinstance(self.classes, (tuple, list, np.ndarray))
            found = self._labels if listed else ()
            texts = all(isinstance(v, str) for v in found)
            numbers = all(isinstance(v, bool) or Real().holds(v) for v in found)
            if not (texts or numbers) or len(found) != 2 or found[0] == found[1]:
                allowed = "a pair (negative, positive) of two different texts or two numbers"
                advice = "Declare both: labels are not read from the data."
                raise self._refused("classes", allowed, type(self.classes).__name__, advice)
        return super()._check_parameters()

    def _check_training_data(self, X: Any, y: Any, **options: Any) -> tuple[Any, Array]:
        if self._loss().labels:
            options["encode"] = lambda found: 2 * label_codes(found, Levels(self._labels)) - 1
        return super()._check_training_data(X, y, **options)

    def _constants(self, kappa: float) -> HolderConstants:
        return HolderConstants.of(self._loss(), kappa=kappa, target_bound=self._bound)

    def _check_theorem_7(self, constants: HolderConstants) -> None:
        self._check_step(min(1.0, 1 / constants.L), "min(1, 1/L) for the loss and features in use")

    def _public(self, n_rows: int, n_steps: int, features: FeatureMap, printed: Any) -> Any:
        loss = self._loss()
        return {
            "n_rows": n_rows,
            "n_steps": n_steps,
            "radius": None if self.radius is None else float(self.radius),
            "loss": loss.to_dict(),
            "classes": list(self._labels) if loss.labels else None,
            "features": features,
            "printed": asdict(printed),
        }

    def predict(self, X: Any) -> Array:
        """Return the declared class by the sign of <w, phi(x)>, or <w, phi(x)> of a regression."""
        scores = self.decision_function(X)
        if not self._loss().labels:
            return scores
        return np.asarray(self.classes_[(scores >= 0).astype(np.int64)])

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy of a loss that classifies, R^2 of one that regresses."""
        measure = accuracy_score if self._loss().labels else r2_score
        return float(measure(y, self.predict(X)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        if self._loss().labels:
            tags.estimator_type = "classifier"
            tags.classifier_tags = ClassifierTags(multi_class=False)
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        return tags


class PublishedOutputSGD(_HolderSGD):
    r"""Algorithm 1 as printed: SGD for a Hölder-smooth loss, noise on the mean of the iterates.

    A baseline for comparisons: it protects, with many times the noise that is needed.

    Parameters
    ----------
    epsilon, delta : float
        What the paper claims (Theorem 8); half of delta is for the sensitivity.
    n_steps : int, optional
        T; the number of rows by default.
    step : float
        eta, below min(1, 1/L) (Theorem 7).
    radius : float, optional
        Of the ball that is projected on (Theorem 7b); no projection by default (7a).
    loss : str or Loss
        Any loss of ``dpkernel.losses``; its Hölder constants are the paper's alpha and L.
    classes : pair of labels
        The negative and the positive class, declared. Not used by losses that regress.
    target_bound : float, optional
        A publicly known bound on \|y\|, required by losses that regress; targets are cut to it.
    features : "linear" or FeatureMap
        "linear": rows in the box [-1, 1]^d over sqrt d. Or a map of ``dpkernel.features``.
    ledger : Ledger, optional
        Charged what is proved of the printed noise.
    noise : NoiseSource, optional
        Of the noise and of the order of the rows, which has to be fresh.

    Attributes
    ----------
    coef_ : w_priv
    classes_ : the declared classes, where the loss classifies
    printed_ : PrintedOutputNoise
    feature_map_ : FeatureMap
    certificate_ : Certificate
        Valid where this library's own bound supports the claim; its epsilon is then the one that is
        proved, and ``public["errata"]`` says how loose the printed one is.

    Guarantee    (epsilon, delta)-DP as claimed, replace-one, where the profile supports it. The
                 printed constants hold and are loose: sigma is 41 times what is needed for
                 alpha >= 1/2 and T = n = 10^4, 2.7 times for alpha = 0 (erratum 002-2). C_alpha of
                 Lemma 20 grows without bound for alpha -> 1 and L > 1 (002-1), and with it the
                 noise without a radius. The Gaussian lemma is proved for epsilon <= 1 (002-0);
                 what is proved here does not use it.
    Sensitivity  sqrt(a^2 + (T - k) c^2) + (k - 1) a when the replaced record was drawn k times,
                 a = 2 eta G, c^2 of Lemma 21; k is binomial and the profile a mixture over it
                 (``dpkernel.papers.sgd.Descent``). G is M + L R^alpha with the radius or the bound
                 of ``corrected_c_alpha``, or the loss's largest slope times kappa.
    Numerics     as ``PublishedRandomFeatureSGD``.
    Reference    Wang, Lei, Ying & Zhang (2022), Algorithm 1, Theorems 7 and 8, Lemmas 20 and 21.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.papers import PublishedOutputSGD
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
        descent = _descent(n_rows, steps, eta, Z.shape[1], kappa, constants, loss, radius)
        mechanism = descent.mechanism(printed.noise_scale)
        releases, budget = [Release("mean iterate", mechanism)], Budget(self.epsilon, self.delta)
        noise = self._spend(releases, budget)
        order = self._order(noise, n_rows, steps)
        mean = sgd(Z, y, order, eta, loss.derivative, radius=radius, average=True)
        self.coef_ = mechanism.release(mean, noise)
        self.printed_ = printed
        self.certificate_ = self._certify(
            releases,
            noise,
            public=self._public(n_rows, steps, features, printed),
            errata=_OUTPUT_ERRATA,
            unproved=[] if mechanism.profile().supports(budget) else [NOT_SUPPORTED],
        )
        return self


class PublishedGradientSGD(_HolderSGD):
    r"""Algorithm 2 as printed: projected SGD for a Hölder-smooth loss, noise on every gradient.

    A baseline for comparisons, not for protecting data.

    Parameters
    ----------
    epsilon, delta, n_steps, step, loss, classes, target_bound, features, noise
        As in ``PublishedOutputSGD``.
    radius : float
        R of the ball that every iterate is projected on. Required.
    beta : float, optional
        The constant of Theorem 11. By default the one with the least noise among those that meet
        (32) and (33); refused where none does.
    ledger : Ledger, optional
        Charged what is proved of the printed noise at the claimed epsilon.

    Attributes
    ----------
    coef_ : w_priv
    classes_ : the declared classes, where the loss classifies
    printed_ : PrintedGradientNoise
    feature_map_ : FeatureMap
    certificate_ : Certificate
        Never valid: the claim rests on Lemma 3, which is quoted and not proved here, and on (32)
        and (33). Its reasons say whether they hold, and what this library proves of the same noise:
        ``profile`` is that point.

    Guarantee    the claim (Theorem 11) needs a beta that meets (32) and (33). These force beta to
                 about 1e-2 .. 1e-4, never near 1/2, and the noise is 2 to 5 times what is needed
                 (erratum 002-3). Lemma 13's condition for a beta to exist fails for n from 18 to 40
                 (002-4). Whatever beta is, delta at the claimed epsilon follows from composing the
                 exact profile of one subsampled step T times.
    Sensitivity  2 C of one gradient, C = M + L R^alpha. Gradients are cut to norm C in code, which
                 changes last bits only.
    Numerics     every step's noise is discrete, on a grid of 2^-30 of its deviation; steps after it
                 are post-processing.
    Reference    Wang, Lei, Ying & Zhang (2022), Algorithm 2, Theorem 11, Lemmas 3 and 13; for what
                 is proved, Balle, Barthe & Gaboardi (2018).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.papers import PublishedGradientSGD
    >>> X = np.random.default_rng(0).uniform(-1, 1, (300, 2)); y = np.sign(X[:, 0])
    >>> model = PublishedGradientSGD(4.0, 1e-4, radius=3.0, loss="hinge").fit(X, y)
    >>> model.printed_.feasible, model.certificate_.valid
    (True, False)
    >>> model.certificate_.profile.delta(4.0) < 1e-4
    True
    """

    _constraints: ClassVar = {
        **_HolderSGD._constraints,
        "radius": Real(1e-100, 1e100),
        "beta": (Choice(None), Real(0, 1)),
    }
    _place: ClassVar[str] = "Algorithm 2"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        n_steps: int | None = None,
        step: float = 0.01,
        radius: float = 1.0,
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
        radius = float(self.radius or 0.0)  # checked: above 0
        largest = self._constants(features.row_norm_bound).gradient_bound(radius)
        beta = self._beta(n_rows, steps)
        printed = algorithm_2_noise(n_rows, steps, self.epsilon, self.delta, largest, beta)
        self._check_scale(printed.noise_scale)
        mechanism = _on_gradients(printed.noise_scale, largest, Z.shape[1])
        delta = subsampled_delta(self.epsilon, mechanism.profile().mu, 1 / n_rows, steps)
        # the sampler of the noise is within 3e-18 of its law, a draw
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
                "given where no beta meets (32) and (33) for these rows, steps, epsilon and delta",
                None,
                "Theorem 11 proves nothing here: raise epsilon, or state a beta to run it anyway.",
            )
        return found


def _gradient_objections(
    printed: PrintedGradientNoise, proved: ApproximateProfile
) -> tuple[str, ...]:
    """Return why Theorem 11 proves nothing here, and what is proved of the same noise."""
    conditions = "hold" if printed.feasible else "do not hold, so that Theorem 11 says nothing,"
    return (
        "Theorem 11 rests on Lemma 3, which is quoted and not proved here, and on (32) and (33),"
        f" which {conditions} at beta = {printed.beta:.6g} (erratum 002-3)",
        "this library's own bound, which the claim does not use, gives the printed noise"
        f" delta <= {proved.delta_value:.3g} at the claimed epsilon",
    )


@lru_cache(maxsize=64)
def subsampled_delta(epsilon: float, mu: float, share: float, n_steps: int) -> float:
    r"""Return delta at epsilon of T Gaussian steps, each on one record drawn with probability p.

    One step has delta_1(e) = p G(log(1 + (e^e - 1)/p); mu) for e >= 0 and
    delta_1(-e) = 1 - e^-e + e^-e delta_1(e), replace-one, mu = 2 C / sigma; the steps compose as
    privacy loss distributions.

    Reference    Balle, Barthe & Gaboardi (2018), advanced joint convexity; Zhu, Dong & Wang (2022).
    """

    def one(epsilons: Array) -> Array:
        size = np.minimum(np.abs(epsilons), 600.0)
        inner = np.log1p(np.expm1(size) / share)
        above = share * np.asarray(gaussian_delta(inner, mu))
        return np.where(epsilons >= 0, above, -np.expm1(-size) + np.exp(-size) * above)

    reach = 1e-3
    while reach < 60 and one(np.array([reach]))[0] > 1e-18 / n_steps:
        reach *= 1.5
    composed = pld.from_profile(one, reach, min(pld.STEP, reach / 100)).repeat(n_steps)
    return float(composed.delta(epsilon))


def _descent(
    n_rows: int,
    n_steps: int,
    step: float,
    n_columns: int,
    kappa: float,
    constants: HolderConstants,
    loss: Loss,
    radius: float | None,
) -> Descent:
    """Return what the direct bound needs of Algorithm 1, with the corrected constants."""
    farthest = radius or math.sqrt(corrected_c_alpha(constants, step) * n_steps * step)
    smooth = constants.alpha == 1
    return Descent(
        n_rows,
        n_steps,
        step,
        n_columns,
        kappa,
        gradient=min(constants.gradient_bound(farthest * 1.001), constants.slope),
        farthest=farthest,
        smoothness=loss.smoothness if smooth else 0.0,
        expansion=step_expansion(constants.alpha, constants.L, step),
        smooth=smooth,
        projected=radius is not None,
        average=True,
    )


def _on_gradients(noise_scale: float, largest: float, n_columns: int) -> Gaussian:
    """Return the release of one gradient of norm at most ``largest`` with exactly this noise."""
    grid = 2.0 ** (math.floor(math.log2(noise_scale)) - 30)
    moves = bounded_sum(Neighbours.REPLACE_ONE, bound=largest)
    return Gaussian(moves, n_columns, noise_scale / grid, grid)


_OUTPUT_ERRATA = (
    "erratum 002-0: the Gaussian lemma is proved for epsilon <= 1 only",
    "erratum 002-1: without a radius, C_alpha of Lemma 20 lost its step size and grows without"
    " bound as alpha tends to 1, if L > 1",
    "erratum 002-2: the sensitivity of Theorem 7 holds and is loose; the noise is 41 times what is"
    " needed for alpha >= 1/2, 2.7 times for alpha = 0, at T = n = 10^4",
)
_GRADIENT_ERRATA = (
    "erratum 002-3: (32) and (33) keep beta far from 1/2, and the noise is 2 to 5 times what is"
    " needed",
    "erratum 002-4: Lemma 13's condition for a beta to exist fails for n from 18 to 40",
)
