"""Private regression by stochastic gradient descent."""

from __future__ import annotations

from typing import Any, ClassVar

from dpkernel.data.declared import interval_of
from dpkernel.data.people import RECORDS
from dpkernel.data.sources import Source, open_source
from dpkernel.estimators.kernel_model import NumberModel
from dpkernel.estimators.records import NUMBER_SIGNAL, unit_targets
from dpkernel.estimators.sgd.base import SGDModel, SGDProblem
from dpkernel.foundations.types import AddRemove, Neighbours
from dpkernel.foundations.validation import Kind
from dpkernel.models.losses import Huber, Loss
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource

_THRESHOLD = 0.2  # of the Huber loss, with y in [-1, 1]


class PrivateSGDRegressor(NumberModel, SGDModel):
    r"""Regression by private SGD on a public feature map, modelled on ``SGDRegressor``.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. ``delta=0`` uses noise that gives
        pure epsilon, under the assumption of idealised arithmetic; it needs
        ``perturbation="output"``.
    loss : str or Loss
        "huber" (with a threshold of a tenth of the declared range), "squared_error", "absolute",
        "quantile", the kind of any other regression loss in ``dpkernel.models.losses``, or such a
        loss with parameters of your own. y is scaled to [-1, 1].
    perturbation : {"gradient", "output"}
        "gradient" adds noise to the sum of clipped gradients in every step. "output" adds noise
        once, to the result.
    preset : str or Preset, optional
        The schedule of a theorem: "wang-guo-1", "holder-9", "holder-10" or "holder-12". It
        determines the steps, the step size, the radius, the average and the sampling; "wang-guo-1"
        also determines the features (Fourier features) and their number. Everything in which the
        fit differs from the theorem is in ``certificate_.public["preset_differs"]``. See
        ``dpkernel.solvers.sgd_presets``.
    r, capacity : float
        The regularity in (1/2, 1] and the capacity in (0, 1) of the preset "wang-guo-1". No public
        number determines them.
    max_iter : "auto" or int
        The number of passes over the data.
    batch_size : "auto" or int
        The number of rows per step. "auto" is 1 for output perturbation and all rows for gradient
        perturbation, where large batches are more accurate.
    sampling : str
        How batches are chosen. For output perturbation: "shuffle" (a new order in every pass),
        "fixed" (the order of the rows) or "replacement" (a fresh random batch in each step); "auto"
        is "shuffle" where rows can be reached by number. For gradient perturbation: "uniform"
        (batches of a fixed size without replacement) or "poisson" (each row is included
        independently; not for replace-one neighbours); "auto" is "uniform" for replace-one and
        "poisson" otherwise.
    eta0 : "auto" or float
        The step size.
    alpha : "auto" or float
        The ridge. With output perturbation and ``eta0="auto"``, steps decrease as 1/(alpha t); the
        result then moves no more than the exact minimiser would.
    radius : float, optional
        The radius of the ball in which the coefficients are kept.
    clip : "auto" or float
        The norm to which gradients are clipped (gradient perturbation only).
    momentum : "auto" or float
        Nesterov's momentum, in [0, 1) (gradient perturbation only).
    average : bool
        Whether to release the mean of all iterates instead of the last one.
    kernel, length_scale, features, n_features
        See ``PrivateKernelRidge``.
    bounds, y_bounds, neighbours, ledger, noise, random_state
        See ``PrivateKernelRidge``.
    accept : tuple of str
        The assumptions that you sign. ``delta=0`` needs ``("idealised-arithmetic",)``.
    verbose : bool
        See ``PrivateKernelRidge``.

    Attributes
    ----------
    certificate_ : Certificate
        The guarantee of the fit. Its ``public["scheme"]`` states the sampling, the number of hits,
        the sensitivity and sigma.
    coef_, intercept_, feature_map_
        See ``PrivateKernelRidge``.
    n_iter_ : int
        The number of passes over the data. It follows from the parameters and n.
    n_features_in_, feature_names_in_
        The number and the names of the columns.

    See Also
    --------
    PrivateKernelRegressor : More accurate on most tables, with nothing to tune.
    PrivateSGDClassifier : The same for classes.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the bounds, the seed and
        the parameters are public.
    Sensitivity
        Output perturbation: ``sensitivity.sgd``. Gradient perturbation: exactly the clip, in
        integers.
    Not covered
        ``score`` on the training rows, because it reads them without noise.

    References
    ----------
    Wang & Guo (2024), Algorithm 1; Wang, Lei, Ying & Zhang (2022), Algorithms 1 and 2, with smaller
    sensitivities.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.methods import PrivateSGDRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (4000, 1)); y = np.sin(3 * X[:, 0])
    >>> model = PrivateSGDRegressor(epsilon=1.0, bounds=(-1, 1), y_bounds=(-2, 2)).fit(X, y)
    >>> bool(model.predict([[0.5]])[0] > 0.5)
    True
    """

    _constraints: ClassVar = {**SGDModel._constraints, "loss": Kind(str, Loss)}

    @property
    def _person_records(self) -> tuple[str, ...]:  # type: ignore[override]
        """The kinds of records, the default first; a mean has other quantiles than rows."""
        of_quantile = "pinball" in self._loss_named(labels=False).kind
        return ("one", "near", "mean") if of_quantile else RECORDS

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        loss: Any = "huber",
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
        self.y_bounds = y_bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.accept = accept
        self.verbose = verbose

    def _open_table(self, X: Any, y: Any) -> Source:
        self._problem()  # refuses bad parameters before it looks at the data
        return open_source(self, X, y, again=True)

    def _problem(self, target_shape: tuple[int, ...] = ()) -> SGDProblem:
        target = interval_of(self.y_bounds, self.bounds, type(self).__name__)
        views, loss = unit_targets(target, target_shape), self._loss_named(labels=False)
        return SGDProblem(target, loss, views, NUMBER_SIGNAL, single=not target_shape)

    def _default(self, cls: type[Loss]) -> Loss:
        return Huber(_THRESHOLD) if cls is Huber else cls()
