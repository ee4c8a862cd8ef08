"""A curator keeps a regression in the reproducing kernel space and answers questions about it."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.blocks import dense_rows
from dpkernel.data.domain import Domain
from dpkernel.data.sources import Source
from dpkernel.data.tables import Columns, as_floats, without_traps
from dpkernel.estimators.base import FitPlan, Fitted
from dpkernel.estimators.curator_file import Answer, CuratorFile
from dpkernel.estimators.kernel_model import relation_of
from dpkernel.estimators.rkhs import (
    FunctionModel,
    FunctionProblem,
    FunctionTable,
    joint_sensitivity,
    loss_stated,
)
from dpkernel.foundations.entropy import this_process
from dpkernel.foundations.errors import (
    CertificateError,
    CuratorError,
    NoiseError,
    ParameterError,
    parameter_message,
)
from dpkernel.foundations.types import JSON, AddRemove, Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Kind, Whole
from dpkernel.models.kernels import Kernel, kernel_from_dict
from dpkernel.privacy.certificate import Certificate, Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import (
    FunctionalGaussian,
    L2Gamma,
    NoisyFunction,
    mechanism_from_dict,
    require_accepted,
)
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.privacy.sensitivity import erm_prediction


@dataclass(frozen=True)
class Prediction:
    """One released prediction and its certificate.

    Attributes
    ----------
    value : float or array
        The released prediction: a number, or one number per target if y has several columns.
    certificate : Certificate
        What is guaranteed for it.
    """

    value: Any
    certificate: Certificate


KEEPS_QUESTIONS = (
    "A PrivateCurator can't be scored on private rows: every point that it is asked about stays in its"
    " history of answers, which would show that a row was among them. Score a PrivateGridRegressor"
    " instead, which is fitted by the same mechanism."
)
ASKED_ABOUT_ROWS: ContextVar[bool] = ContextVar("asked_about_rows", default=False)


class PrivateCurator(FunctionModel):
    r"""A kernel machine that is never released; it answers questions instead.

    The function f minimises sum_i loss(y_i, f(x_i)) + Lambda ||f||^2 / 2 in the space of the
    kernel itself, without a feature map. ``predict`` answers f(x) + sigma g(x), where g is a
    Gaussian process whose covariance is the kernel. The same g serves all questions ever asked:
    every answer is drawn conditionally on all earlier answers. All answers together cost one
    (epsilon, delta), until ``most_answers`` points have told something new.

    Parameters
    ----------
    epsilon, delta : float
        The budget of all answers together. delta must be above 0.
    loss : str or Loss
        "squared", "huber", the kind of any other loss with a largest slope, or such a loss with
        parameters of your own, for y scaled to [-1, 1]. For a loss of margins, such as "logistic",
        y in the upper half of ``y_bounds`` is the positive class, and a prediction above the middle
        stands for it.
    threshold : "auto" or float
        The threshold of the Huber loss and the width of the parabolas that replace kinks, in units
        of y. "auto" is a tenth of the declared range.
    kernel, length_scale
        See ``PrivateKernelRidge``.
    regularisation
        See ``PrivateQuantileRegressor``.
    bounds, y_bounds
        See ``PrivateKernelRidge``. Both are required. With several targets, one noise of the stated
        budget covers the functions of all of them.
    path : str or Path, optional
        A new file for the function, its key and the answers. The file is as secret as the data.
        With a file, the curator outlives its process (``PrivateCurator.open``) and several
        processes can answer. Without one, the answers are lost when the process ends.
    most_answers : int
        How many points can tell something new.
    neighbours, ledger, noise
        See ``PrivateKernelRidge``.
    accept : tuple of str
        ``("idealised-arithmetic",)`` is always needed, because no theorem covers this noise in
        finite precision.

    Attributes
    ----------
    certificate_ : Certificate
        The guarantee of the fit.
    n_answers_ : int
        How many points have told something new so far.
    n_features_in_, feature_names_in_
        The number and the names of the columns.

    See Also
    --------
    PrivateGridRegressor : All values on a grid, in one release.
    PrivateKernelRegressor : A model that is released, and predicts at no further cost.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP of all answers together, for the stated neighbours, in real arithmetic.
        The number of rows, the bounds, the parameters and the questions are public. The object and
        its file hold the training rows, so neither of them may be handed out.
    Sensitivity
        In the norm of the kernel: ``sensitivity.erm_ridge`` or ``sensitivity.erm_lipschitz``.
    Not covered
        Questions that were chosen by looking at the training rows, and ``score`` on the training
        rows.

    References
    ----------
    Hall, Rinaldo & Wasserman (2013). Nie & Wang, Theorem 2, add one random number to the whole
    function, which protects a single answer only: see ``predict_once``.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.methods import PrivateCurator
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (500, 1)); y = np.sin(3 * X[:, 0])
    >>> curator = PrivateCurator(
    ...     epsilon=3.0, bounds=(-1, 1), y_bounds=(-2, 2), accept=("idealised-arithmetic",)
    ... ).fit(X, y)
    >>> bool(curator.predict([[0.5]]) == curator.predict([[0.5]]))
    True
    """

    keeps_questions: ClassVar[bool] = True
    _constraints: ClassVar[Any] = {
        **FunctionModel._constraints,
        "path": (Choice(None), Kind(str, Path)),
        "most_answers": Whole(1, 10_000),
    }

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        loss: Any = "squared",
        threshold: float | str = "auto",
        kernel: Any = "gaussian",
        length_scale: Any = "auto",
        regularisation: float | str = "auto",
        bounds: Any = None,
        y_bounds: Any = None,
        path: str | Path | None = None,
        most_answers: int = 2000,
        neighbours: str | Neighbours | AddRemove = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        accept: Any = (),
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.loss = loss
        self.threshold = threshold
        self.kernel = kernel
        self.length_scale = length_scale
        self.regularisation = regularisation
        self.bounds = bounds
        self.y_bounds = y_bounds
        self.path = path
        self.most_answers = most_answers
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.accept = accept

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> PrivateCurator:
        """Fit the function and pay for all answers. Nothing is spent if the data are refused.

        ``groups`` are the ids of the people whose rows these are, or ``People``: a person with all
        their rows is then protected instead of a single row.
        """
        return self._fit(X, y, groups, sample_weight)

    def _open_table(self, X: Any, y: Any) -> Source:
        require_accepted(FunctionalGaussian, self.accept)
        return super()._open_table(X, y)

    def _make_plan(self, source: Source, budget: Budget, relation: Neighbours) -> FitPlan:
        table = self._table(source)
        problems = self._problems_for(table, budget)
        mechanism = FunctionalGaussian.calibrate(
            joint_sensitivity(problems, relation),
            budget,
            dimension=int(self.most_answers),
            accept=tuple(self.accept),
        )
        if self.path is not None:
            CuratorFile(Path(self.path)).refuse_if_there()
        public = self._public(table, problems, kernel=problems[0].kernel.to_dict())
        return AnswersPlan(table, problems, mechanism, public)

    def _adopt(self, found: Fitted, certificate: Certificate) -> None:
        """Keep what is needed to answer questions, in a file if there is one."""
        rows, alpha, key = (found.attributes[name] for name in ("rows", "alpha", "key"))
        file = None if self.path is None else CuratorFile(Path(self.path))
        if file is not None:
            columns = Columns.on(self).to_dict()["columns"]
            header = {"certificate": certificate.to_dict(), "columns": columns}
            file.create(header, {"rows": rows, "alpha": alpha, "key": np.frombuffer(key)})
        domain, kernel, mechanism = (
            found.attributes[name] for name in ("domain", "kernel", "mechanism")
        )
        self._begin(domain, kernel, mechanism, certificate, rows, alpha, key, file)

    def _begin(
        self,
        domain: Domain,
        kernel: Kernel,
        mechanism: FunctionalGaussian,
        certificate: Certificate,
        rows: Array,
        alpha: Array,
        key: bytes,
        file: CuratorFile | None,
    ) -> None:
        self.certificate_, self._domain, self._file = certificate, domain, file

        def function(points: Array) -> Array:
            return np.asarray(kernel(points, rows) @ alpha)

        targets = alpha.shape[1] if alpha.ndim > 1 else None
        self._restart = partial(NoisyFunction, function, kernel, mechanism, key, targets)
        self._noisy, self._count = self._restart(), 0
        self._process, self._lock = this_process(), threading.Lock()

    @classmethod
    def open(cls, path: str | Path, ledger: Ledger | None = None) -> PrivateCurator:
        """Return the curator in a file. It continues where it stopped. Nothing is spent."""
        file = CuratorFile(Path(path))
        header, arrays = file.read()
        try:
            certificate = Certificate.from_dict(header["certificate"])
            public, claimed = certificate.public, header["certificate"]["releases"][0]
            mechanism = mechanism_from_dict(claimed | {"accepted": claimed["assumptions"]})
            assert isinstance(mechanism, FunctionalGaussian)
            domain, kernel = Domain.from_dict(public["domain"]), kernel_from_dict(public["kernel"])
            model = cls(
                certificate.epsilon,
                certificate.delta,
                **loss_stated(public, domain.target),
                kernel=kernel,
                length_scale=1.0,
                regularisation=public["regularisation"],
                bounds=domain,
                path=path,
                most_answers=mechanism.dimension,
                neighbours=relation_of(certificate),
                ledger=ledger,
                accept=certificate.assumptions,
            )
            Columns.of(public["n_columns"], header["columns"]).set_on(model)
            secret = arrays["rows"], arrays["alpha"], arrays["key"].tobytes()
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
            if isinstance(error, CertificateError):
                raise
            raise CuratorError(
                f"{Path(path).name} is damaged: a part is missing or malformed"
                f" ({type(error).__name__})."
            ) from error
        if certificate.valid:
            certificate.verify()
        model._begin(domain, kernel, mechanism, certificate, *secret, file)
        return model

    def predict(self, X: Any) -> Array:
        """Answer at every row of X, inside ``y_bounds``. Questions and answers stay on record."""
        inside = np.clip(self.margins(X), -1.0, 1.0)
        return np.asarray(self._domain.target.from_unit(inside))  # type: ignore[union-attr]

    def margins(self, X: Any) -> Array:
        """Return the answers of ``predict`` without clipping, for y scaled to [-1, 1].

        For a loss of margins, a positive answer stands for the positive class.
        """
        if ASKED_ABOUT_ROWS.get():
            raise ParameterError(KEEPS_QUESTIONS)
        check_is_fitted(self, "certificate_")
        X = self._check_new_data(X)
        points = self._domain.of_positions.to_unit(dense_rows(X, slice(None)))
        with self._lock:
            return self._answer_all(points)

    def _answer_all(self, points: Array) -> Array:
        if self._file is None:
            if this_process() != self._process:
                raise NoiseError(
                    "This curator has no file and was fitted in another process (the program forked"
                    " since): two of them would answer differently. Give it a path."
                )
            return np.array([self._noisy.answer(point)[0] for point in points])
        try:
            with self._file.session() as session:
                for answer in session.answers(self._count):
                    self._noisy.replay(*answer)
                    self._count += 1
                found = []
                for point in points:
                    value = self._noisy.known(point)
                    if value is None:
                        value, new = self._noisy.answer(point)
                        self._count += 1
                        given: Answer = point, value, new
                        session.add(self._count, given)
                    found.append(value)
        except BaseException:
            # the next call reads again what was committed
            self._noisy, self._count = self._restart(), 0
            raise
        return np.array(found)

    @property
    def n_answers_(self) -> int:
        """How many points have told something new, as far as this object has seen."""
        return len(self._noisy)

    @without_traps
    def predict_once(
        self, X: Any, y: Any, point: Any, groups: Any = None, sample_weight: Any = None
    ) -> Prediction:
        """Fit on (X, y), release f at one point with one random number, and forget the fit.

        The guarantee is pure epsilon; delta is not used. One random number protects one answer
        only. A second call is therefore a second spend, and adding one number to a whole function
        would protect nothing. ``groups`` and ``sample_weight`` are those of ``fit``.
        """
        request = Budget(self.epsilon)
        _, relation = self._check_parameters()
        require_accepted(L2Gamma, self.accept)
        opened = self._opened(X, y, groups, sample_weight, relation, self.noise)
        table = self._table(opened.table)
        problems = self._problems_for(table, request)
        asked = np.atleast_2d(as_floats(point, "point"))
        if asked.shape != (1, table.source.n_columns) or not np.isfinite(asked).all():
            allowed = "one finite number per column"
            got = f"shape {np.shape(point)}"
            raise ParameterError(
                parameter_message("predict_once", "point", allowed, got, "Ask one question.")
            )
        joint, first = joint_sensitivity(problems, relation), problems[0]
        moved = erm_prediction(joint, reach=first.kappa, norm="l2")
        mechanism = L2Gamma.calibrate(
            moved, request, dimension=len(problems), accept=tuple(self.accept)
        )
        public = self._public(
            table, problems, kernel=first.kernel.to_dict(), point=asked[0].tolist()
        )
        plan = OneAnswerPlan(table, problems, mechanism, public, asked)
        found, certificate = self._carry_out(opened, plan, request, subject="one prediction")
        return Prediction(found.attributes["value"], certificate)

    def _to_state(self) -> Any:
        raise ParameterError(
            "A curator is not written to a model file: it holds the training rows and has a file of"
            " its own. Fit it with path=..., and open that with PrivateCurator.open."
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not hasattr(self, "certificate_"):
            return super().__reduce_ex__(protocol)
        if self._file is None:
            raise NoiseError(
                "A curator without a file can't be pickled or copied: the copy would answer"
                " differently. Give it a path."
            )
        return PrivateCurator.open, (self._file.path,)


@dataclass
class AnswersPlan(FitPlan):
    """A function that is fitted once, and a key that determines the noise of every answer."""

    table: FunctionTable
    problems: tuple[FunctionProblem, ...]
    mechanism: FunctionalGaussian
    public: JSON
    solved: Any = None

    @property
    def releases(self) -> list[Release]:  # type: ignore[override]
        """The line of the certificate."""
        return [Release("answers", self.mechanism)]

    def prepare(self) -> None:
        """Fit the function."""
        self.solved = self.table.solved(self.problems)

    def run(self, noise: Noise) -> Fitted:
        """Draw the key."""
        rows, alpha = self.solved
        secret = {"rows": rows, "alpha": alpha, "key": self.mechanism.key(noise)}
        known = {
            "domain": self.table.domain,
            "kernel": self.problems[0].kernel,
            "mechanism": self.mechanism,
        }
        return Fitted({**secret, **known}, self.public)


@dataclass
class OneAnswerPlan(FitPlan):
    """The value of the function at one point."""

    table: FunctionTable
    problems: tuple[FunctionProblem, ...]
    mechanism: L2Gamma
    public: JSON
    point: Array
    value: Any = None

    @property
    def releases(self) -> list[Release]:  # type: ignore[override]
        """The line of the certificate."""
        return [Release("one prediction", self.mechanism)]

    def prepare(self) -> None:
        """Fit the function and take its value."""
        rows, alpha = self.table.solved(self.problems)
        point = self.table.domain.of_positions.to_unit(self.point)
        self.value = (self.problems[0].kernel(point, rows) @ alpha).ravel()

    def run(self, noise: Noise) -> Fitted:
        """Add noise to the value."""
        noisy = np.clip(self.mechanism.release(self.value, noise), -1.0, 1.0)
        value = self.table.target.from_unit(noisy)
        several = bool(self.table.source.target_shape)
        return Fitted({"value": value if several else float(value[0])}, self.public)
