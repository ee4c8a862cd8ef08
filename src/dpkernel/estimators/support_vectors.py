"""Private support vector machines by output perturbation: classification and regression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dpkernel.data.domain import Domain, Interval
from dpkernel.estimators.classifier import MarginClassifier
from dpkernel.estimators.objective_model import ObjectiveModel, Task
from dpkernel.estimators.robust import RobustModel, UnitTarget
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Neighbours
from dpkernel.foundations.validation import Choice, Real
from dpkernel.models.losses import Loss, SmoothedHinge, SmoothedInsensitive
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource

_AUTO_TUBE = 0.01  # of the declared range of y
_AUTO_WIDTH = 0.01


class PrivateKernelSVC(MarginClassifier):
    r"""A support vector machine whose coefficients are released with noise.

    Minimises sum_i max(0, 1 - y_i f(x_i)) + Lambda ||beta||^2 / 2 for f linear in a data-independent
    feature map, and adds noise to the minimiser: output perturbation. Two classes are one problem; more
    are one against the rest each, and one noisy vector holds the solutions of all of them.

    Parameters
    ----------
    epsilon, delta : float
        What is asked for; the certificate states at most this. ``delta=0`` takes noise that is pure
        epsilon, under the assumption of idealised arithmetic.
    classes : sequence
        Every label that can occur: public, never read from the data. Required.
    width : float
        Of the parabola that replaces the hinge's kink, in [1e-6, 1]. It costs no noise: the guarantee
        holds for the problem with the parabola. A narrow one is slower.
    kernel, length_scale, features, n_features, bounds, neighbours, ledger, noise, random_state,
    verbose
        As in ``PrivateKernelRidge``.
    regularisation : "auto" or float
        Lambda; the noise is proportional to 1 / Lambda. "auto" minimises the error that is expected
        from public numbers. Below n / (1e7 width) it is refused: the solver might not end.
    class_weight : dict, optional
        A public weight for each class; relative to the largest.
    accept : tuple of str
        Assumptions that you sign: ``("idealised-arithmetic",)``, needed for ``delta=0``.

    Attributes
    ----------
    certificate_ : Certificate
    classes_ : ndarray
        The declared classes, sorted where they can be.
    coef_, intercept_ : on the features
    feature_map_ : FeatureMap
    n_features_in_, feature_names_in_

    Guarantee    (epsilon, delta)-DP for the stated neighbours. Public: n, bounds, classes, seed,
                 parameters.
    Sensitivity  of the solutions of K problems: 2 sqrt(K) B / Lambda or half of it, B = 1, and what the
                 solver may be off: ``sensitivity.erm_lipschitz``, or ``erm_bounded`` where it is
                 smaller. Every solve reaches one public tolerance.
    Not covered  ``score`` on the training rows: it reads them without noise.
    Reference    Nie & Wang, Theorem 2, with noise on all coefficients in place of one number for the
                 whole function; Chaudhuri, Monteleoni & Sarwate (2011).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.methods import PrivateKernelSVC
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (2000, 2)); y = np.where(X[:, 0] > X[:, 1], "yes", "no")
    >>> model = PrivateKernelSVC(epsilon=1.0, classes=["no", "yes"], bounds=(-1, 1)).fit(X, y)
    >>> model.certificate_.private, bool(model.score(X, y) > 0.8)
    (True, True)
    """

    _constraints: ClassVar = {
        **ObjectiveModel._constraints,
        "width": Real(1e-6, 1, closed_low=True, closed_high=True),
    }
    solver = "output"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        classes: Any = None,
        width: float = 0.1,
        kernel: Any = "gaussian",
        length_scale: Any = "auto",
        features: Any = "auto",
        n_features: int | str = "auto",
        regularisation: float | str = "auto",
        class_weight: Mapping[Any, float] | None = None,
        bounds: Any = None,
        neighbours: str | Neighbours = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        random_state: int | None = None,
        accept: Any = (),
        verbose: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.width = width
        self.kernel = kernel
        self.length_scale = length_scale
        self.features = features
        self.n_features = n_features
        self.regularisation = regularisation
        self.class_weight = class_weight
        self.bounds = bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.accept = accept
        self.verbose = verbose

    def _loss(self) -> Loss:
        return SmoothedHinge(float(self.width))

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        width = header["certificate"]["public"]["losses"][0]["width"]
        return {**super()._saved_parameters(header, domain), "width": width}


class PrivateKernelSVR(RobustModel):
    r"""Support vector regression whose coefficients are released with noise.

    Minimises sum_i max(0, |y_i - f(x_i)| - tube) + Lambda ||beta||^2 / 2 for f linear in a
    data-independent feature map, and adds noise to the minimiser: output perturbation. With a tube of 0
    it is the regression to the median.

    Parameters
    ----------
    epsilon, delta : float
        What is asked for. ``delta=0`` takes noise that is pure epsilon, under the assumption of
        idealised arithmetic.
    tube : "auto" or float
        Residuals up to it cost nothing, in units of y; "auto" is a hundredth of the declared range.
    width : "auto" or float
        Of the parabolas that replace the kinks, in units of y. It costs no noise: the guarantee
        holds for the problem with parabolas. "auto" is a hundredth of the declared range.
    kernel, length_scale, features, n_features, bounds, y_bounds, neighbours, ledger, noise,
    random_state, verbose
        As in ``PrivateKernelRidge``.
    regularisation : "auto" or float
        Lambda, with y scaled to [-1, 1]; the noise is proportional to 1 / Lambda. "auto" minimises the
        error that is expected from public numbers. Below n / 1e7, divided by the width on that scale,
        it is refused: the solver might not end.
    accept : tuple of str
        Assumptions that you sign: ``("idealised-arithmetic",)``, needed for ``delta=0``.

    Attributes
    ----------
    certificate_ : Certificate
    coef_, intercept_ : on the features, in units of the scaled target
    feature_map_ : FeatureMap
    n_features_in_, feature_names_in_

    Guarantee    (epsilon, delta)-DP for the stated neighbours. Public: n, bounds, seed, parameters.
    Sensitivity  of the solution: 2 B / Lambda or half of it, B = 1, and what the solver may be off:
                 ``sensitivity.erm_lipschitz``, or ``erm_bounded`` where it is smaller.
    Not covered  ``score`` on the training rows: it reads them without noise.
    Reference    Nie & Wang, Theorem 2, with noise on all coefficients in place of one number for the
                 whole function.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.methods import PrivateKernelSVR
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (4000, 1)); y = np.sin(3 * X[:, 0]) + rng.standard_t(2, 4000) / 10
    >>> model = PrivateKernelSVR(epsilon=1.0, bounds=(-1, 1), y_bounds=(-2, 2)).fit(X, y)
    >>> bool(abs(model.predict([[0.5]])[0] - 1) < 0.5)
    True
    """

    _constraints: ClassVar = {
        **ObjectiveModel._constraints,
        "tube": (Choice("auto"), Real(0, closed_low=True)),
        "width": (Choice("auto"), Real(0)),
    }
    solver = "output"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        tube: float | str = "auto",
        width: float | str = "auto",
        kernel: Any = "gaussian",
        length_scale: Any = "auto",
        features: Any = "auto",
        n_features: int | str = "auto",
        regularisation: float | str = "auto",
        bounds: Any = None,
        y_bounds: Any = None,
        neighbours: str | Neighbours = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        random_state: int | None = None,
        accept: Any = (),
        verbose: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.tube = tube
        self.width = width
        self.kernel = kernel
        self.length_scale = length_scale
        self.features = features
        self.n_features = n_features
        self.regularisation = regularisation
        self.bounds = bounds
        self.y_bounds = y_bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.accept = accept
        self.verbose = verbose

    def _tasks(self, target: Interval) -> list[Task]:
        given = self.tube
        tube = 2 * _AUTO_TUBE if given == "auto" else float(given) / target.half_width
        if not tube <= 1e6:
            allowed = "'auto', or at most 1e6 times half the declared range of y"
            raise ParameterError(parameter_message(type(self).__name__, "tube", allowed, given))
        loss = SmoothedInsensitive(tube, self._in_units_of("width", _AUTO_WIDTH, target))
        return [("coefficients", loss, UnitTarget(target))]

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        assert isinstance(domain.target, Interval)
        loss, half = header["certificate"]["public"]["losses"][0], domain.target.half_width
        return {
            **super()._saved_parameters(header, domain),
            "y_bounds": domain.target,
            "tube": loss["tube"] * half,
            "width": loss["width"] * half,
        }
