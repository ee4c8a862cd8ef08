r"""Convex penalties beside a ridge: an elastic net, and squared p-norms in place of the ridge.

A bound on how far a minimiser moves uses the strong convexity of the regulariser and nothing else of
it. So any convex function of beta that does not depend on the data can be added at no cost in noise.

**Elastic net.** l1 sum_l loss(0, beta_l), for a loss of residuals. For the absolute loss this is
l1 ||beta||_1, with rounded corners. It is the loss of public records: k = ceil(l1) copies of each unit
vector with the target 0 and the weight l1 / k. So the constants and the sensitivity are those of n + k M
records, of which one private one changes.

**Squared p-norms**, 1 < p < 2. The regulariser is Lambda N(beta)^2 / (2 (p - 1)) with ::

    N(beta) = (sum_l n_l^p)^(1/p),    n_l = sqrt(beta_l^2 + s^2),

the p-norm with rounded corners. Its Hessian applied to v is Lambda / (p - 1) times ::

    N^(2-p) sum_l n_l^(p-4) (s^2 + (p-1) beta_l^2) v_l^2 + (2-p) N^(2-2p) (sum_l n_l^(p-2) beta_l v_l)^2.

Below, each term is at least (p - 1) n_l^(p-2) v_l^2, and n_l <= N. So the regulariser is
Lambda-strongly convex, as Lambda ||beta||^2 / 2 is, and the difference of both, which is what
``SquaredNorm`` adds, is convex with its minimum at 0. Therefore the bounds on the norm of the
minimiser and of every point of the solver are those without it. Above, n_l >= s, and N is at most
N_R = M^(1/p - 1/2) sqrt(R^2 + M s^2) where ||beta|| <= R. So within R the curvature is at most
Lambda / (p - 1) ((N_R / s)^(2-p) + (2-p) M^((2-p)/p)), because sum_l n_l^(2p-2) <=
M^((2-p)/p) N^(2p-2) by Hölder's inequality. The gradient is a multiple of each beta_l, and a computed
multiple has a relative error of at most gamma_{M+40}, as ``Problem`` asks: M for the sum in N, and the
rest for roots and powers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpkernel.foundations.types import Array
from dpkernel.models.losses import Loss
from dpkernel.solvers.objective_perturbation import Records


class Penalty(Protocol):
    """A convex function of beta that is public."""

    def gradient(self, beta: Array) -> Array:
        """Return its gradient."""

    def hessian(self, beta: Array) -> Array:
        """Return its Hessian."""


@dataclass(frozen=True)
class ElasticNet:
    """l1 sum_l loss(0, beta_l)."""

    l1: float
    loss: Loss

    def gradient(self, beta: Array) -> Array:
        """Return the gradient."""
        return np.asarray(self.l1 * self.loss.derivative(np.zeros(len(beta)), beta))

    def hessian(self, beta: Array) -> Array:
        """Return the Hessian."""
        return np.diag(self.l1 * self.loss.curvature(np.zeros(len(beta)), beta))


@dataclass(frozen=True)
class SquaredNorm:
    """strength (N(beta)^2 / (p - 1) - ||beta||^2) / 2, with corners of the size s."""

    p: float
    strength: float
    corner: float

    def gradient(self, beta: Array) -> Array:
        """Return the gradient."""
        _, _, factors = self._parts(beta)
        return (factors - self.strength) * beta

    def hessian(self, beta: Array) -> Array:
        """Return the Hessian."""
        sizes, norm, factors = self._parts(beta)
        shares = sizes ** (self.p - 2) * beta
        outer = self.strength / (self.p - 1) * (2 - self.p) * norm ** (2 - 2 * self.p)
        own = factors * (1 - (2 - self.p) * (beta / sizes) ** 2) - self.strength
        return np.asarray(outer * np.outer(shares, shares) + np.diag(own))

    def largest_curvature(self, dimension: int, radius: float) -> float:
        """Return a bound on the curvature within ``radius``."""
        p, radius = self.p, radius * 1.01
        norm = dimension ** (1 / p - 0.5) * math.hypot(radius, math.sqrt(dimension) * self.corner)
        bound = (norm / self.corner) ** (2 - p) + (2 - p) * dimension ** ((2 - p) / p)
        return float(self.strength / (p - 1) * bound * (1 + 1e-9))

    def _parts(self, beta: Array) -> tuple[Array, float, Array]:
        """Return n, N and the factors Lambda / (p - 1) N^(2-p) n^(p-2)."""
        sizes = np.hypot(beta, self.corner)
        norm = float(np.sum(sizes**self.p) ** (1 / self.p))
        factors = self.strength / (self.p - 1) * norm ** (2 - self.p) * sizes ** (self.p - 2)
        return sizes, norm, factors


@dataclass(frozen=True)
class Penalised:
    """Sums over records, plus penalties."""

    records: Records
    penalties: tuple[Penalty, ...]

    def sums(
        self, beta: Array, hessian_stride: int = 0, threads: int = 1
    ) -> tuple[Array, Array | None]:
        """Return the gradient of the sum of losses and, with a stride, the Hessian."""
        gradient, hessian = self.records.sums(beta, hessian_stride, threads)
        for penalty in self.penalties:
            gradient = gradient + penalty.gradient(beta)
            if hessian is not None:
                hessian = hessian + penalty.hessian(beta)
        return gradient, hessian
