"""Private kernel classification: a support vector machine or logistic regression."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import log_expit, softmax
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.domain import Domain, Levels
from dpkernel.data.labels import classes_of
from dpkernel.data.sources import Source, open_source
from dpkernel.estimators import class_means
from dpkernel.estimators.base import FitPlan
from dpkernel.estimators.kernel_model import LabelModel
from dpkernel.estimators.law_plan import LawPlan, affordable
from dpkernel.estimators.loss_choice import smooth_loss
from dpkernel.estimators.objective_model import ObjectiveModel, Problems
from dpkernel.estimators.records import CLASS_SIGNAL, Targets
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, AddRemove, Array, Budget, Neighbours, is_real
from dpkernel.foundations.validation import Choice, Kind, Real, is_auto
from dpkernel.models.kernels import REGISTRY as KERNELS
from dpkernel.models.kernels import Kernel
from dpkernel.models.losses import Logistic, Loss, SmoothedHinge, loss_from_dict
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource


@dataclass(frozen=True)
class OneAgainstRest(Targets):
    """+1 for one class and -1 for the others, with a public weight for each class.

    If y has a column of shares for each class, a label is the share of this class less that of the
    others. The class weight of such a record is the mean of the weights of its classes.
    """

    place: int
    weights: tuple[float, ...] | None = None

    def of(self, y: Array) -> tuple[Array, Array | None]:
        """Return labels of +-1, or between them, and the class weight of each row."""
        if y.ndim == 2:
            return self._of_shares(y)
        labels = np.where(y == self.place, 1.0, -1.0)
        if self.weights is None:
            return labels, None
        return labels, np.asarray(self.weights)[y.astype(np.int64)]

    def _of_shares(self, y: Array) -> tuple[Array, Array | None]:
        if self.weights is None:
            return 2 * y[:, self.place] - 1, None
        parts = y * np.asarray(self.weights)
        total = np.add.reduce(parts, axis=1)
        mine = np.divide(parts[:, self.place], total, out=np.zeros(len(y)), where=total > 0)
        return 2 * mine - 1, np.minimum(total, 1.0)


class MarginClassifier(LabelModel, ObjectiveModel):
    """Base class of classifiers that minimise a loss of margins, one class against the rest."""

    _label_shares = True
    classes: Any
    class_weight: Mapping[Any, float] | None

    def _open_table(self, X: Any, y: Any) -> Source:
        levels = self._declared()
        self._weights(levels), self._loss()  # refuse bad parameters before data
        return open_source(self, X, y, again=True, several=False, classes=levels)

    def _problems(self, target_shape: tuple[int, ...] = ()) -> Problems:
        levels = self._declared()
        weights, loss = self._weights(levels), self._loss()
        places = (1,) if len(levels.values) == 2 else range(len(levels.values))
        return Problems(
            levels,
            tuple(("decision function", loss, OneAgainstRest(p, weights)) for p in places),
            signal=CLASS_SIGNAL,
            solver=self.solver,
            ridge=self._ridge,
            accept=tuple(self.accept),
            centred=True,
            single=len(places) == 1,
        )

    def _declared(self) -> Levels:
        """Return the declared classes."""
        return classes_of(self.classes, self.bounds, type(self).__name__)

    def _loss(self) -> Loss:
        raise NotImplementedError

    def _weights(self, levels: Levels) -> tuple[float, ...] | None:
        """Return the class weights in (0, 1], or None if there are none."""
        if self.class_weight is None:
            return None
        given = self.class_weight
        known = isinstance(given, Mapping) and set(given) <= set(levels.values)
        if not known or not all(is_real(w) and 0 < w < math.inf for w in given.values()):
            allowed = "a dict from declared classes to positive numbers"
            advice = "'balanced' would read the class counts from the data."
            got: Any = given if str(given) == "balanced" else type(given).__name__
            raise ParameterError(
                parameter_message(type(self).__name__, "class_weight", allowed, got, advice)
            )
        weights = [float(given.get(value, 1.0)) for value in levels.values]
        return tuple(weight / max(weights) for weight in weights)

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        assert isinstance(domain.target, Levels)
        found = super()._saved_parameters(header, domain)
        weights = header.get("class_weight")
        if weights is not None:
            found["class_weight"] = dict(zip(domain.target.values, weights, strict=True))
        return found

    def _to_state(self) -> tuple[JSON, dict[str, Array]]:
        header, arrays = super()._to_state()
        assert isinstance(self._domain.target, Levels)
        given, classes = self.class_weight, self._domain.target.values
        weights = None if given is None else [float(given.get(value, 1.0)) for value in classes]
        return {**header, "class_weight": weights}, arrays


class PrivateKernelClassifier(MarginClassifier):
    r"""Kernel classification with a privacy certificate.

    The decision function f is linear in features. With ``solver="objective"`` the fit minimises
    sum_i loss(y_i f(x_i)) + Lambda ||beta||^2 / 2 plus a random linear term; this is called
    objective perturbation. With ``solver="output"`` it minimises without the random term and adds
    noise to the solution; this is called output perturbation. Two classes are one problem. With
    more classes, each class has a problem of its own against all others, and the budget covers all
    problems together.

    With enough data and budget, the features are made for the inputs: noisy histograms and moments
    find where the inputs lie, and the features are those of a mixture of linear, Gaussian and
    Laplace kernels of several scales there. "Enough" means that n mu is at least 300 and at least
    40 for each input, where mu is that of a Gaussian mechanism with this epsilon and delta, divided
    by the root of the number of problems. Otherwise the features are those of a Gaussian kernel on
    the declared box, and do not depend on the data.

    With at least 5 classes and little signal (n mu below 5 for each input, divided by the same
    root), the fit instead releases the noisy means of all classes at once, whose noise does not
    grow with the number of classes, and decides by linear discriminants.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. ``delta=0`` uses noise that gives
        pure epsilon, under the assumption of idealised arithmetic.
    classes : sequence
        Every label that can occur. It is required, it is public, and it is never read from the
        data.
    loss : str or Loss
        "smoothed_hinge" gives a support vector machine, which is the most accurate when n epsilon
        is small. "logistic" gives logistic regression, whose probabilities are better when n
        epsilon is large. Every other loss of margins with a largest slope can be given by its kind
        ("hinge", "squared_hinge", "huberised_hinge" or your own, registered one), or as a ``Loss``
        with parameters of your own.
    width : float
        The width of the parabola that replaces the kink of the hinge, in [1e-6, 1].
    kernel : "auto", str or Kernel
        "auto" makes features for the inputs where that is worth its cost, and takes the Gaussian
        kernel elsewhere: with little data or budget, with ``delta=0``, with more than 500 inputs,
        with ``solver="output"``, or if one of the next four parameters is not "auto".
    length_scale, features, n_features
        See ``PrivateKernelRidge``. Up to 2000 ``n_features`` may be asked for with kernel="auto".
    regularisation : "auto", float or str
        Lambda. "auto" minimises the error that public numbers let us expect.
        A text is the schedule of a theorem, such as "nie-wang-4(beta=1)"; see
        ``dpkernel.solvers.erm_schedules``.
    solver : {"objective", "output"}
        Whether noise is added to the problem or to its solution. "objective" is more accurate on
        most tables.
    class_weight : dict, optional
        A public weight for each class, relative to the largest weight.
    bounds, neighbours, ledger, noise, random_state
        See ``PrivateKernelRidge``.
    accept : tuple of str
        The assumptions that you sign. ``delta=0`` needs ``("idealised-arithmetic",)`` with
        ``solver="objective"``. With ``solver="output"`` it only makes the noise smaller.
    verbose : bool
        See ``PrivateKernelRidge``.

    Attributes
    ----------
    certificate_ : Certificate
        The guarantee of the fit.
    classes_ : ndarray
        The declared classes, sorted if they can be sorted.
    coef_, intercept_ : ndarray or float
        The coefficients of the features and the constant.
    feature_map_ : FeatureMap
        The map from a row to its features, from public and released numbers.
    relevance_ : ndarray of shape (n_columns,) or None
        How much the decision depends on each column: its mean squared change if the column takes
        the value of another row, less the part that is due to noise, as shares. It is computed
        from released numbers alone. None if the features are those of a fixed kernel.
    n_features_in_, feature_names_in_
        The number and the names of the columns.

    See Also
    --------
    PrivateKernelSVC : A hinge loss, with noise on the coefficients.
    PrivateSGDClassifier : Any loss, by stochastic gradient descent.
    PrivateKernelRegressor : The same for numbers.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the bounds, the classes,
        the seed and the parameters are public. All releases are one spend, which is reserved before
        any noise is drawn.
    Sensitivity
        The gradient has 2 B (replace-one) or B (zero-out), with B = 1, or B = 0.9 where the
        features are made for the inputs: ``sensitivity.loss_gradient``. The counts of the d columns
        have sqrt(2 d) or sqrt(d) (``column_histograms``), and the moments have that of a Gram
        matrix (``augmented_gram``). Rows with long features get a smaller weight, and every solve
        reaches the same public tolerance. With ``solver="output"`` the solution has 2 B / Lambda or
        B / Lambda: ``sensitivity.erm_lipschitz``.
    Not covered
        ``score`` on the training rows, because it reads them without noise.

    References
    ----------
    Lee, Park & Ahn, Algorithms 2 and 4, with the noise that their proof needs.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel import PrivateKernelClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (2000, 2)); y = np.where(X[:, 0] > X[:, 1], "yes", "no")
    >>> model = PrivateKernelClassifier(epsilon=1.0, classes=["no", "yes"], bounds=(-1, 1))
    >>> model.fit(X, y).certificate_.private
    True
    """

    _constraints: ClassVar = {
        **ObjectiveModel._constraints,
        "kernel": (Choice("auto", *KERNELS), Kind(Kernel)),
        "loss": Kind(str, Loss),
        "width": Real(1e-6, 1, closed_low=True, closed_high=True),
        "solver": Choice("objective", "output"),
    }

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        classes: Any = None,
        loss: Any = "smoothed_hinge",
        width: float = 1.0,
        kernel: Any = "auto",
        length_scale: Any = "auto",
        features: Any = "auto",
        n_features: int | str = "auto",
        regularisation: float | str = "auto",
        solver: str = "objective",
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
        self.loss = loss
        self.width = width
        self.kernel = kernel
        self.length_scale = length_scale
        self.features = features
        self.n_features = n_features
        self.regularisation = regularisation
        self.solver = solver
        self.class_weight = class_weight
        self.bounds = bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.accept = accept
        self.verbose = verbose

    def _make_plan(self, table: Source, budget: Budget, relation: Neighbours) -> FitPlan:
        problems = self._problems(table.target_shape)
        domain = self._resolve_domain(table, problems.target)
        given = self.kernel, self.length_scale, self.features, self.regularisation
        measured = isinstance(self._loss(), SmoothedHinge | Logistic)  # with such features
        free = all(map(is_auto, given)) and self.solver == "objective" and measured
        tasks, size = len(problems.tasks), self.n_features
        plain = free and (size, self.loss, self.class_weight) == ("auto", "smoothed_hinge", None)
        if plain and class_means.suits(table, domain, budget, tasks):
            return class_means.MeansPlan(
                table, domain, tasks, budget, relation, verbose=self.verbose
            )
        if not free or not affordable(table.n_rows, domain, budget, tasks, size):
            return super()._make_plan(table, budget, relation)
        return LawPlan(
            type(self).__name__,
            table,
            domain,
            problems,
            budget,
            relation,
            n_features=size,
            seed=int(self.random_state or 0),
            verbose=self.verbose,
        )

    @property
    def relevance_(self) -> Array | None:
        """How much the decision depends on each column, or None; see the class."""
        check_is_fitted(self)
        found = self.certificate_.free_statistics.get("kernel")
        return None if found is None else np.array(found["relevance"])

    def predict_proba(self, X: Any) -> Array:
        """Return estimated probabilities of the classes, from released numbers alone.

        The probabilities invert the loss: at the best f, p l'(f) = (1 - p) l'(-f). So the logistic
        loss has p = 1 / (1 + e^-f), and the smoothed hinge of width 1 has p = 1 / (2 - f) for
        0 <= f <= 1. For all losses but the logistic one, one percent of a
        function that increases everywhere is mixed into the latter, so that a larger f always gives
        a larger probability. For more than two classes the probabilities are scaled to add up to 1.
        Noise and ridge pull f towards 0 and the probabilities towards 1/2. With ``class_weight``,
        the probabilities are those of the weighted classes.
        """
        scores = self.decision_function(X)
        if self.certificate_.public.get("method") == class_means.METHOD:
            logs = scores
        elif scores.ndim == 1:
            logs = np.stack([self._log_probability(-scores), self._log_probability(scores)], axis=1)
        else:
            logs = self._log_probability(scores)
        return np.asarray(softmax(logs, axis=1))

    def _log_probability(self, scores: Array) -> Array:
        loss = self._loss()
        if isinstance(loss, Logistic):
            return np.asarray(log_expit(scores))
        ones = np.ones_like(scores)
        against, towards = loss.derivative(ones, scores), loss.derivative(ones, -scores)
        likely = towards / (against + towards)
        everywhere = (1 + scores / (1 + np.abs(scores))) / 2
        return np.asarray(np.log(0.99 * likely + 0.01 * everywhere))

    def _loss(self) -> Loss:
        width = float(self.width)
        return smooth_loss(
            type(self).__name__,
            self.loss,
            labels=True,
            width=width,
            make=lambda cls: SmoothedHinge(width) if cls is SmoothedHinge else cls(),
        )

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        found = super()._saved_parameters(header, domain)
        losses = header["certificate"]["public"].get("losses")
        if losses is None:  # class means have no loss
            return found
        stated = losses[0]
        known = stated["kind"] in ("smoothed_hinge", "logistic")
        return {
            **found,
            "loss": stated["kind"] if known else loss_from_dict(stated),
            "width": stated.get("width", 1.0),
        }
