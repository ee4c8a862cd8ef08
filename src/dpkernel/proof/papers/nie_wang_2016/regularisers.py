"""Regularisers other than the squared norm for which Theorem 2 holds, and their strong convexity."""

from __future__ import annotations

from collections.abc import Sequence

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import is_real
from dpkernel.foundations.validation import Choice, Constraint, Real
from dpkernel.proof.papers.arguments import check

_NOT = (
    "The norm itself and the l1 norm are not strongly convex. A penalty on the coefficients of the"
    " kernels at the sample compares functions in two different spaces."
)


def strong_convexity(
    regulariser: str, *, weights: Sequence[float] = (1.0,), p: float = 2.0
) -> float:
    r"""Return gamma of a regulariser Omega on coefficients beta, in the Euclidean norm.

        "norm"      ||beta||^2                          gamma = 2
        "weighted"  sum_l w_l beta_l^2, w_l > 0         gamma = 2 min w
        "elastic"   ||beta||^2 + c ||beta||_1, c >= 0   gamma = 2
        "p-norm"    ||beta||_p^2, 1 < p <= 2            gamma = 2 (p - 1)

    Theorem 2 uses nothing else of Omega: the minimiser moves by 2 kappa C_L/(lambda gamma m), also if
    Omega has kinks. Adding a convex function never lowers gamma. ||beta||_p^2 is 2 (p - 1)-strongly
    convex in its own norm, which is at least the Euclidean one.

    Raises
    ------
    ParameterError
        For any other regulariser.
    """
    known = Choice("norm", "weighted", "elastic", "p-norm")
    if not known.holds(regulariser):
        message = parameter_message(
            "strong_convexity", "regulariser", str(known), regulariser, _NOT
        )
        raise ParameterError(message)
    allowed: dict[str, Constraint] = {"p": Real(1, 2, closed_high=True)}
    check("strong_convexity", allowed, p=p)
    if not len(weights) or not all(is_real(w) and 0 < w < float("inf") for w in weights):
        words, got = "one or more positive numbers", type(weights).__name__
        raise ParameterError(parameter_message("strong_convexity", "weights", words, got))
    if regulariser == "weighted":
        return 2 * float(min(weights))
    return 2 * (float(p) - 1) if regulariser == "p-norm" else 2.0
