"""Problem (7) with m < h, on tables that meet every assumption: what Theorem 12 misses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, is_whole
from dpkernel.foundations.validation import Constraint, Real
from dpkernel.proof.papers.arguments import check
from dpkernel.proof.papers.ma_2024.theorem import PrintedClaim, theorem_12

_H, _M = 3, 2  # the dimensions of the feature space and of the sketch


@dataclass(frozen=True)
class AffineDivergence:
    """The claim of Theorem 12 for a pair of tables, and the least delta that its epsilon can have."""

    claim: PrintedClaim
    least_delta: float
    radius: float  # of the ball around the first minimiser that tells the tables apart

    @property
    def refuted(self) -> bool:
        """Whether no delta as small as the printed one is possible."""
        return self.least_delta > 10**self.claim.log10_delta


def axis_table(n: int) -> tuple[Array, Array]:
    """Return the first table: n/3 rows on each of three axes, half of each labelled 1, half -1.

    The second table has the first of the labels -1 changed to 1.
    """
    _check_rows("axis_table", n)
    return np.repeat(np.eye(3), n // 3, axis=0), np.tile(np.repeat([1.0, -1.0], n // 6), 3)


def affine_divergence(n: int, *, regularisation: float = 0.01) -> AffineDivergence:
    r"""Return a lower bound on delta for the function that problem (7) releases, with h = 3 and m = 2.

    The kernel is linear, the loss is (f - y)^2/2, and the rows are those of ``axis_table``. All
    assumptions of Theorem 12 hold with c_L = kappa = 1, C_h = 1/3 and C = 2 sqrt(2) A, where A = 1/3 +
    2 lambda.

    J(w) = A ||w - w_0||^2/2 + const, so the output is the foot of the perpendicular from the minimiser
    w_0 to the random plane of the sketch. The plane is the same for both tables. Its unit normal u is
    uniform, and the offset p of the plane is N(0, sigma^2) with sigma^2 = 1/9, independent of u. So w =
    w_0 + (p - u.w_0) u. The first table has w_0 = 0, and the second one has ||w_0|| = Delta = 2/(n A).
    Let B be the ball of radius s < Delta around 0::

        P(B)  = erf(s/(sigma sqrt 2))
        P'(B) <= (2/3) s^3 / (sigma sqrt(2 pi) (Delta - s)^2)

    because the second output has a density of at most 2/(4 pi r^2 sigma sqrt(2 pi)) at the distance r
    from its own w_0. Hence delta >= P(B) - e^epsilon P'(B), which is of the order 1/n, while the
    printed delta is of the order n^(-3/2). The proof of Lemma 17 takes the density of w for bounded,
    but it grows like r^-m near the minimiser. One value f(x) alone has a density that grows like
    log(1/r) only, and this bound is not about it.
    """
    _check_rows("affine_divergence", n)
    check("affine_divergence", _REGULARISATION, regularisation=regularisation)
    curvature = 1 / 3 + 2 * regularisation
    claim = theorem_12(n, _H, _M, _H, 1e-9, convexity=2 * math.sqrt(2) * curvature, decay=1 / 3)
    moved, sigma = 2 / (n * curvature), 1 / 3
    shares = np.geomspace(1e-6, 0.9, 400)
    radii = shares * moved
    near = np.array([math.erf(s / (sigma * math.sqrt(2))) for s in radii])
    far = 2 / 3 * radii * (shares / (1 - shares)) ** 2 / (sigma * math.sqrt(2 * math.pi))
    found = near - math.exp(min(claim.epsilon, 700.0)) * far
    best = int(np.argmax(found))
    return AffineDivergence(claim, max(float(found[best]), 0.0), float(radii[best]))


def _check_rows(owner: str, n: int) -> None:
    if not (is_whole(n) and n >= 6 and n % 6 == 0):
        raise ParameterError(parameter_message(owner, "n", "a multiple of 6", n))


_REGULARISATION: dict[str, Constraint] = {"regularisation": Real(0, 1)}
