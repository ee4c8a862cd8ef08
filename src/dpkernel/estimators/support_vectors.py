"""Private support vector machines by output perturbation: classification and regression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dpkernel.data.domain import Domain
from dpkernel.estimators.classifier import PrivateKernelClassifier
from dpkernel.estimators.objective_model import ObjectiveModel, RobustModel, Task
from dpkernel.estimators.records import UnitTarget
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, AddRemove, Neighbours
from dpkernel.foundations.validation import Choice, Real
from dpkernel.models.losses import SmoothedInsensitive
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource

_AUTO_TUBE = 0.01  # of the declared range of y
_AUTO_WIDTH = 0.01


class PrivateKernelSVC(PrivateKernelClassifier):
    r"""A support vector machine whose coefficients are released with noise.

    This is ``PrivateKernelClassifier(solver="output", width=0.1)`` under the name that users look for.
    The fit minimises sum_i max(0, 1 - y_i f(x_i)) + Lambda ||beta||^2 / 2, where f is linear in a
    feature map that does not depend on the data, and adds noise to the minimiser; this is called
    output perturbation. Two classes are one problem. With more classes, each class has a problem of
    its own against all others, and one noisy vector holds the solutions of all of them.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. ``delta=0`` uses noise that gives
        pure epsilon.
    classes
        See ``PrivateKernelClassifier``.
    width : float
        The width of the parabola that replaces the kink of the hinge, in [1e-6, 1]. The width does
        not change the noise, because the guarantee holds for the problem with the parabola. A
        narrow parabola makes the fit slower.
    kernel, length_scale, features, n_features
        See ``PrivateKernelRidge``.
    regularisation : "auto", float or str
        Lambda. The noise is proportional to 1 / Lambda. "auto" minimises the error that public
        numbers let us expect. A value below n / (1e7 width) is refused, because the solver might
        not end.
        A text is the schedule of a theorem, such as "nie-wang-4(beta=1)"; see
        ``dpkernel.solvers.erm_schedules``.
    class_weight : dict, optional
        A public weight for each class, relative to the largest weight.
    bounds, neighbours, ledger, noise, random_state, accept, verbose
        See ``PrivateKernelRidge``.

    Attributes
    ----------
    certificate_ : Certificate
        The guarantee of the fit.
    classes_, coef_, intercept_
        See ``PrivateKernelClassifier``.
    feature_map_, n_features_in_, feature_names_in_
        See ``PrivateKernelRidge``.

    See Also
    --------
    PrivateKernelClassifier : The first classifier to try.
    PrivateKernelSVR : The same for numbers.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the bounds, the classes,
        the seed and the parameters are public.
    Sensitivity
        The solutions of K problems have 2 sqrt(K) B / Lambda (replace-one) or half of it
        (zero-out), with B = 1, plus the error that the solver may leave:
        ``sensitivity.erm_lipschitz``, or ``sensitivity.erm_bounded`` where that is smaller. Every
        solve reaches the same public tolerance.
    Not covered
        ``score`` on the training rows, because it reads them without noise.

    References
    ----------
    Nie & Wang, Theorem 2, with noise on all coefficients in place of one number for the whole
    function; Chaudhuri, Monteleoni & Sarwate (2011).

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
    loss = "smoothed_hinge"
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
        neighbours: str | Neighbours | AddRemove = "replace-one",
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

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        found = super()._saved_parameters(header, domain)
        found.pop("loss")
        return found


class PrivateKernelSVR(RobustModel):
    r"""Support vector regression whose coefficients are released with noise.

    The fit minimises sum_i max(0, abs(y_i - f(x_i)) - tube) + Lambda ||beta||^2 / 2, where f is
    linear in a feature map that does not depend on the data, and adds noise to the minimiser; this
    is called output perturbation. With a tube of 0 the model predicts the median.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. ``delta=0`` uses noise that gives
        pure epsilon.
    tube : "auto" or float
        The largest residual that costs nothing, in units of y. "auto" is a hundredth of the
        declared range.
    width : "auto" or float
        The width of the parabolas that replace the kinks of the loss, in units of y. The width does
        not change the noise, because the guarantee holds for the problem with the parabolas. "auto"
        is a hundredth of the declared range.
    kernel, length_scale, features, n_features
        See ``PrivateKernelRidge``.
    regularisation : "auto", float or str
        Lambda, with y scaled to [-1, 1]. The noise is proportional to 1 / Lambda. "auto" minimises
        the error that public numbers let us expect. A value below n / 1e7, divided by the width on
        the same scale, is refused, because the solver might not end.
        A text is the schedule of a theorem, such as "nie-wang-4(beta=1)"; see
        ``dpkernel.solvers.erm_schedules``.
    l1 : float
        The weight of an elastic net: l1 sum_l max(0, abs(beta_l) - tube) is added to the objective, with
        the corners of the loss rounded. beta_l are all coefficients that Lambda penalises, the constant
        among them. With ``tube=0`` the sum is that of their absolute values. The noise at the same
        Lambda stays the same, because the problem is as strongly convex as before.
    norm : float
        p in (1, 2]. For p < 2 the penalty is Lambda ||beta||_p^2 / (2 (p - 1)), the square of the
        p-norm, with corners rounded by ``width``. It is as strongly convex as Lambda ||beta||^2 / 2, so
        the noise at the same Lambda stays the same. A p near 1 makes small coefficients smaller. It
        needs a larger Lambda or ``width``; otherwise it is refused, because the solver might not end.
    bounds, y_bounds, neighbours, ledger, noise, random_state, accept, verbose
        See ``PrivateKernelRidge``.

    Attributes
    ----------
    certificate_, coef_, intercept_, feature_map_, n_features_in_, feature_names_in_
        See ``PrivateKernelRidge``.

    See Also
    --------
    PrivateKernelRegressor : The first regressor to try.
    PrivateKernelSVC : The same for classes.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the bounds, the seed and
        the parameters are public.
    Sensitivity
        The solution has 2 B / Lambda (replace-one) or half of it (zero-out), with B = 1, plus the
        error that the solver may leave: ``sensitivity.erm_lipschitz``, or
        ``sensitivity.erm_bounded`` where that is smaller.
    Not covered
        ``score`` on the training rows, because it reads them without noise.

    References
    ----------
    Nie & Wang, Theorem 2, with noise on all coefficients in place of one number for the whole
    function. The theorem needs the regulariser to be strongly convex, and the elastic net and squared
    p-norms are.

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
        "l1": Real(0, 1e6, closed_low=True),
        "norm": Real(1, 2, closed_high=True),
    }
    _in_units = ("tube", "width")
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
        l1: float = 0.0,
        norm: float = 2.0,
        bounds: Any = None,
        y_bounds: Any = None,
        neighbours: str | Neighbours | AddRemove = "replace-one",
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
        self.l1 = l1
        self.norm = norm
        self.bounds = bounds
        self.y_bounds = y_bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.accept = accept
        self.verbose = verbose

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        public = header["certificate"]["public"]
        penalties = {"l1": float(public.get("l1", 0.0)), "norm": float(public.get("norm", 2.0))}
        return {**super()._saved_parameters(header, domain), **penalties}

    def _tasks(self, view: UnitTarget) -> list[Task]:
        given, target = self.tube, view.interval
        tube = 2 * _AUTO_TUBE if given == "auto" else float(given) / target.half_width
        if not tube <= 1e6:
            allowed = "'auto', or at most 1e6 times half the declared range of y"
            raise ParameterError(parameter_message(type(self).__name__, "tube", allowed, given))
        loss = SmoothedInsensitive(tube, self._in_units_of("width", _AUTO_WIDTH, target))
        return [("coefficients", loss, view)]
