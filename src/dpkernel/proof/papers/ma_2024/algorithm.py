"""Algorithm 1: sketched empirical risk minimisation by Newton-Raphson, as printed."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin

from dpkernel.data.blocks import dense_rows
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Neighbours
from dpkernel.foundations.validation import Choice, Kind, Real, Whole, check_parameters
from dpkernel.models.kernels import Gaussian
from dpkernel.models.losses import Loss, Squared
from dpkernel.privacy.certificate import NOT_COVERED, Certificate
from dpkernel.privacy.profiles import ApproximateProfile
from dpkernel.proof.papers.ma_2024.theorem import theorem_12
from dpkernel.solvers.sketching import SKETCHES, sketched_erm

_NU = 0.1  # the printed claim needs a value of nu, and the paper gives none


class PublishedSketchedERM(RegressorMixin, PrivateEstimator):
    r"""Algorithm 1 as printed: the kernel problem on the columns of a random sketch. NOT PRIVATE.

    It returns f(x) = sum_i k(x, x_i) (S alpha)_i / sqrt(n), where alpha minimises (1/n) sum_i
    loss(y_i, f(x_i)) + lambda ||f||^2 by T Newton steps from alpha_0 ~ N(0, I). The kernel is the
    Gaussian one, exp(-||x - x'||^2 / (2 length_scale^2)). Evaluating f needs the training inputs.

    Parameters
    ----------
    n_sketch : int
        m, the number of columns of S; at most the number of rows.
    regularisation : float
        lambda, on the scale of the mean over rows.
    length_scale : float
        The length scale of the kernel.
    loss : Loss
        A smooth loss; by default the squared loss.
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
        "n_sketch": Whole(1, 100_000),
        "regularisation": Real(0, math.inf),
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
        n_sketch: int = 20,
        regularisation: float = 0.01,
        length_scale: float = 1.0,
        loss: Loss | None = None,
        sketch: str = "gaussian",
        steps: int = 30,
        random_state: int = 0,
    ) -> None:
        self.n_sketch = n_sketch
        self.regularisation = regularisation
        self.length_scale = length_scale
        self.loss = loss
        self.sketch = sketch
        self.steps = steps
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> PublishedSketchedERM:
        """Run the algorithm on (X, y). Nothing is protected, and no ledger is used."""
        owner = type(self).__name__
        check_parameters(owner, self.get_params(deep=False), self._constraints)
        X, y = self._check_training_data(X, y)
        X = dense_rows(X, slice(None))
        n = len(y)
        if self.n_sketch > n:
            allowed = f"at most the number of rows, {n}"
            raise ParameterError(parameter_message(owner, "n_sketch", allowed, self.n_sketch))
        draws = np.random.Generator(np.random.PCG64(self.random_state))
        start = draws.standard_normal(self.n_sketch)
        sketch = SKETCHES[self.sketch](n, self.n_sketch, int(draws.integers(2**63)))
        kernel = Gaussian(length_scale=self.length_scale)
        fit = sketched_erm(
            kernel(X),
            y,
            self.loss or Squared(),
            self.regularisation,
            sketch,
            start=start,
            steps=self.steps,
        )
        self.coef_, self._inputs = fit.coefficients, X
        self.certificate_ = self._certificate(n, X.shape[1])
        self._set_columns()
        return self

    def predict(self, X: Any) -> Array:
        """Return f at every row."""
        X = self._check_new_data(X)
        X = dense_rows(X, slice(None))
        return np.asarray(Gaussian(length_scale=self.length_scale)(X, self._inputs) @ self.coef_)

    def _certificate(self, n: int, d: int) -> Certificate:
        """Return the claim of the paper, marked as false."""
        claim = theorem_12(n, n, int(self.n_sketch), d, _NU)
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
                "n_sketch": int(self.n_sketch),
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
