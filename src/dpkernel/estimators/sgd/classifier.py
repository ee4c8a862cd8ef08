"""Private classification by stochastic gradient descent."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, log_expit, softmax
from sklearn.utils.metaestimators import available_if

from dpkernel.data.domain import Levels
from dpkernel.data.labels import classes_of
from dpkernel.data.sources import Source, open_source
from dpkernel.estimators.classifier import OneAgainstRest
from dpkernel.estimators.kernel_model import LabelModel
from dpkernel.estimators.records import CLASS_SIGNAL
from dpkernel.estimators.sgd.base import SGDModel, SGDProblem
from dpkernel.foundations.types import AddRemove, Array, Neighbours
from dpkernel.foundations.validation import Kind
from dpkernel.models.losses import Logistic, Loss, SmoothedHinge
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource


def _has_probabilities(model: Any) -> bool:
    """Whether the loss is the logistic one."""
    if model.loss in ("log_loss", "logistic") or isinstance(model.loss, Logistic):
        return True
    raise AttributeError(
        f"Probabilities of {type(model).__name__} need loss='log_loss'; PrivateKernelClassifier has"
        " them for the hinge as well."
    )


class PrivateSGDClassifier(LabelModel, SGDModel):
    r"""Classification by private SGD on a public feature map, modelled on ``SGDClassifier``.

    Two classes are one problem. With more classes, each class has a problem of its own against all
    others; all of them use the same batches and are part of one release.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. ``delta=0`` uses noise that gives
        pure epsilon, under the assumption of idealised arithmetic; it needs
        ``perturbation="output"``.
    classes
        See ``PrivateKernelClassifier``.
    loss : str or Loss
        "smoothed_hinge" (of width 1), "log_loss", "hinge", "squared_hinge", the kind of any other
        margin loss in ``dpkernel.models.losses``, or such a loss with parameters of your own.
    perturbation, preset, r, capacity, max_iter, batch_size, sampling, eta0, alpha
        See ``PrivateSGDRegressor``.
    radius, clip, momentum, average
        See ``PrivateSGDRegressor``.
    kernel, length_scale, features, n_features, bounds, neighbours, ledger, noise, random_state
        See ``PrivateKernelRidge``.
    accept : tuple of str
        The assumptions that you sign. ``delta=0`` needs ``("idealised-arithmetic",)``.
    verbose : bool
        See ``PrivateKernelRidge``.

    Attributes
    ----------
    certificate_
        See ``PrivateSGDRegressor``.
    classes_, coef_, intercept_
        See ``PrivateKernelClassifier``.
    feature_map_ : FeatureMap
        The public map from a row to its features.
    n_iter_ : int
        The number of passes over the data. It follows from the parameters and n.
    n_features_in_, feature_names_in_
        The number and the names of the columns.

    See Also
    --------
    PrivateKernelClassifier : More accurate on most tables, with nothing to tune.
    PrivateSGDRegressor : The same for numbers.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the bounds, the classes,
        the seed and the parameters are public.
    Sensitivity
        Output perturbation: ``sensitivity.sgd``, which is sqrt(classes) times that of one problem.
        Gradient perturbation: exactly the clip, in integers.
    Not covered
        ``score`` on the training rows, because it reads them without noise.

    References
    ----------
    Wang, Lei, Ying & Zhang (2022), Algorithms 1 and 2, with smaller sensitivities.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.methods import PrivateSGDClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (2000, 2)); y = np.where(X[:, 0] > X[:, 1], "yes", "no")
    >>> model = PrivateSGDClassifier(epsilon=1.0, classes=["no", "yes"], bounds=(-1, 1)).fit(X, y)
    >>> bool(model.score(X, y) > 0.8)
    True
    """

    _constraints: ClassVar = {**SGDModel._constraints, "loss": Kind(str, Loss)}

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        classes: Any = None,
        loss: Any = "smoothed_hinge",
        perturbation: str = "gradient",
        preset: Any = None,
        r: float = 1.0,
        capacity: float = 0.5,
        max_iter: int | str = "auto",
        batch_size: int | str = "auto",
        sampling: str = "auto",
        eta0: float | str = "auto",
        alpha: float | str = "auto",
        radius: float | None = None,
        clip: float | str = "auto",
        momentum: float | str = "auto",
        average: bool = False,
        kernel: Any = "gaussian",
        length_scale: Any = "auto",
        features: Any = "auto",
        n_features: int | str = "auto",
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
        self.perturbation = perturbation
        self.preset = preset
        self.r = r
        self.capacity = capacity
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.sampling = sampling
        self.eta0 = eta0
        self.alpha = alpha
        self.radius = radius
        self.clip = clip
        self.momentum = momentum
        self.average = average
        self.kernel = kernel
        self.length_scale = length_scale
        self.features = features
        self.n_features = n_features
        self.bounds = bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.accept = accept
        self.verbose = verbose

    def _open_table(self, X: Any, y: Any) -> Source:
        levels = self._problem().target  # refuses bad parameters before data
        assert isinstance(levels, Levels)
        return open_source(self, X, y, again=True, several=False, classes=levels)

    def _problem(self, target_shape: tuple[int, ...] = ()) -> SGDProblem:
        levels = classes_of(self.classes, self.bounds, type(self).__name__)
        loss = self._loss_named(labels=True)
        places = (1,) if len(levels.values) == 2 else range(len(levels.values))
        tasks = tuple(OneAgainstRest(place) for place in places)
        return SGDProblem(levels, loss, tasks, CLASS_SIGNAL, single=len(tasks) == 1)

    def _default(self, cls: type[Loss]) -> Loss:
        return SmoothedHinge(1.0) if cls is SmoothedHinge else cls()

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Return estimated probabilities of the classes. This needs the logistic loss."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        return np.asarray(softmax(log_expit(scores), axis=1))
