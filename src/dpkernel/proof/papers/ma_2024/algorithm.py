"""Algorithm 1: sketched empirical risk minimisation by Newton-Raphson, as printed."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin

from dpkernel.data.blocks import dense_rows
from dpkernel.data.sources import training_data
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Neighbours
from dpkernel.foundations.validation import Choice, Kind, Real, Whole, check_parameters
from dpkernel.models.kernels import REGISTRY as KERNELS
from dpkernel.models.kernels import Kernel, ShiftInvariant, resolve_kernel
from dpkernel.models.losses import Loss, Squared
from dpkernel.privacy.certificate import NOT_COVERED, Certificate
from dpkernel.privacy.profiles import ApproximateProfile
from dpkernel.proof.papers.ma_2024.theorem import theorem_5, theorem_12
from dpkernel.solvers.sketching import SKETCHES, sketched_erm

_NU = 0.1  # the printed claim needs a value of nu, and the paper gives none


class PublishedSketchedERM(RegressorMixin, PrivateEstimator):
    r"""Algorithm 1 as printed: the kernel problem on the columns of a random sketch. NOT PRIVATE.

    It returns f(x) = sum_i k(x, x_i) (S alpha)_i / sqrt(n), where alpha minimises (1/n) sum_i
    loss(y_i, f(x_i)) + lambda ||f||^2 by T Newton steps from alpha_0 ~ N(0, I). Evaluating f needs the
    training inputs.

    Parameters
    ----------
    n_sketch : int or "theorem-5"
        m, the number of columns of S, at most the number of rows; or the least m of Theorem 5.
    regularisation : float or "theorem-5"
        lambda, on the scale of the mean over rows; or that of Theorem 5, from the eigenvalues of K / n.
    kernel : str or Kernel
        The kernel. One that is bounded on a box only sees rows clipped to [-1, 1].
    length_scale : float
        The length scale of the kernel.
    loss : Loss
        A smooth loss, such as ``Logistic()``; by default the squared loss.
    affine : bool
        Whether to solve problem (7), in which one more column of the sketch has the coefficient 1.
    sketch : {"gaussian", "hadamard", "count"}
        The kind of sketch. The paper uses the first; the others are the fast ones that it mentions.
    steps : int
        T, the number of Newton steps.
    random_state : int
        The seed of S and alpha_0. They protect nothing, whether they are fresh or not.

    Attributes
    ----------
    coef_ : array (n,)
        The coefficients of the training inputs, which the model contains.
    n_sketch_, regularisation_ : int, float
        m and lambda.
    certificate_ : Certificate
        It is never valid. Its epsilon and delta are those of Theorem 12 with h = n, nu = 0.1 and all
        constants set to 1. delta is then far above 1 and is written as the largest number below 1.

    Notes
    -----
    Guarantee
        There is none (errata 001-1, 001-2); see ``counterexample``.

    References
    ----------
    Ma (2024), Algorithm 1, Theorem 12.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.proof.papers import PublishedSketchedERM
    >>> X = np.random.default_rng(0).uniform(-1, 1, (60, 2)); y = np.sin(3 * X[:, 0])
    >>> model = PublishedSketchedERM(n_sketch=20).fit(X, y)
    >>> model.certificate_.valid
    False
    """

    _constraints: ClassVar = {
        "n_sketch": (Choice("theorem-5"), Whole(1, 100_000)),
        "regularisation": (Choice("theorem-5"), Real(0, math.inf)),
        "kernel": (Choice(*KERNELS), Kind(Kernel)),
        "affine": Choice(False, True),
        "length_scale": Real(0, math.inf),
        "loss": (Choice(None), Kind(Loss)),
        "sketch": Choice(*SKETCHES),
        "steps": Whole(1, 10_000),
        "random_state": Whole(0),
    }
    # parameters that every estimator of this library has and this algorithm does not use
    neighbours = Neighbours.REPLACE_ONE
    ledger = None
    noise = None

    def __init__(
        self,
        *,
        n_sketch: int | str = 20,
        regularisation: float | str = 0.01,
        kernel: Any = "gaussian",
        length_scale: float = 1.0,
        loss: Loss | None = None,
        sketch: str = "gaussian",
        affine: bool = False,
        steps: int = 30,
        random_state: int = 0,
    ) -> None:
        self.n_sketch = n_sketch
        self.regularisation = regularisation
        self.kernel = kernel
        self.length_scale = length_scale
        self.loss = loss
        self.sketch = sketch
        self.affine = affine
        self.steps = steps
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> PublishedSketchedERM:
        """Run the algorithm on (X, y). Nothing is protected, and no ledger is used."""
        owner = type(self).__name__
        check_parameters(owner, self.get_params(deep=False), self._constraints)
        X, y, found = training_data(self, X, y)
        X = dense_rows(X, slice(None))
        n, X = len(y), self._inside(X)
        matrix = self._kernel(X)
        self.n_sketch_, self.regularisation_ = self._choices(matrix)
        columns = self.n_sketch_ + bool(self.affine)
        if columns > n:
            allowed = f"at most the number of rows, {n}{', less one' if self.affine else ''}"
            raise ParameterError(parameter_message(owner, "n_sketch", allowed, self.n_sketch))
        draws = np.random.Generator(np.random.PCG64(self.random_state))
        start = draws.standard_normal(columns)
        sketch = SKETCHES[self.sketch](n, columns, int(draws.integers(2**63)))
        fit = sketched_erm(
            matrix,
            y,
            self.loss or Squared(),
            self.regularisation_,
            sketch,
            start=start,
            steps=self.steps,
            affine=bool(self.affine),
        )
        self.coef_, self._inputs = fit.coefficients, X
        self.certificate_ = self._certificate(n, X.shape[1])
        found.set_on(self)
        return self

    def predict(self, X: Any) -> Array:
        """Return f at every row."""
        X = self._inside(dense_rows(self._check_new_data(X), slice(None)))
        return np.asarray(self._kernel(X, self._inputs) @ self.coef_)

    @property
    def _kernel(self) -> Kernel:
        return resolve_kernel(self.kernel, float(self.length_scale))

    def _inside(self, X: Array) -> Array:
        """Return rows on which the kernel is bounded."""
        return X if isinstance(self._kernel, ShiftInvariant) else np.clip(X, -1, 1)

    def _choices(self, matrix: Array) -> tuple[int, float]:
        """Return m and lambda: those of the user, or those of Theorem 5."""
        m, lam = self.n_sketch, self.regularisation
        if "theorem-5" in (m, lam):
            found = theorem_5(np.linalg.eigvalsh(matrix)[::-1] / len(matrix), len(matrix))
            m = found.n_sketch if m == "theorem-5" else m
            lam = found.lam if lam == "theorem-5" else lam
        return int(m), float(lam)

    def _certificate(self, n: int, d: int) -> Certificate:
        """Return the claim of the paper, marked as false."""
        claim = theorem_12(n, n, self.n_sketch_, d, _NU)
        delta = 10.0 ** min(claim.log10_delta, 0.0)
        return Certificate(
            subject=type(self).__name__,
            epsilon=claim.epsilon,
            delta=min(delta, math.nextafter(1.0, 0.0)),
            neighbours=self.neighbours,
            releases=(),
            profile=ApproximateProfile(0.0, 1.0),
            private=False,
            valid=False,
            generator="numpy PCG64, seeded",
            sampler="none",
            public={
                "n_rows": n,
                "n_columns": d,
                "n_sketch": self.n_sketch_,
                "affine": bool(self.affine),
                "printed_log10_delta": claim.log10_delta,
            },
            reasons=(
                "erratum 001-1: the output is 0 for y = 0 whatever the sketch is, and not 0 when one"
                " label changes: a sketch without noise is not private",
                "erratum 001-2: the printed delta has the wrong sign in an exponent and is above 1 for"
                " all practical sizes",
                "the function contains the training inputs",
            ),
            not_covered=NOT_COVERED,
            reference="Ma (2024), Algorithm 1 and Theorem 12, as printed",
        )
