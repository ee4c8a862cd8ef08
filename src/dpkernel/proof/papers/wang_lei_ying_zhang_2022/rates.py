"""Table 1, the risk bounds of Theorems 9, 10 and 12, and Figure 1 with the correct edge.

The theorems and the table hide constants in O(). The functions return the expression inside, with all
constants set to 1. It says how a bound grows, not how large it is. Lemma 13 and Figure 1 state their
constants, which are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log, sqrt

from dpkernel.proof.papers.arguments import check
from dpkernel.proof.papers.arguments import reading as one_of
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.constants import (
    HolderConstants,
    beta_exists,
    lemma_13_threshold,
)
from dpkernel.solvers.sgd_presets import (
    Preset,
    holder_theorem_9,
    holder_theorem_10,
    holder_theorem_12,
)

# --- gradient complexity and Table 1 --------------------------------------------------------


def gradient_complexity(n_rows: int, alpha: float, *, bounded: bool = True) -> float:
    r"""Return the number of gradients in Table 1, without its constant.

    In a ball (Theorems 10 and 12) it is n^((2-alpha)/(1+alpha)) + n, which is linear in n from
    alpha = 1/2 on. Without a ball (Theorem 9) it is n^((6-3alpha-alpha^2)/((1+alpha)(3+alpha))) + n,
    which is linear from alpha = (sqrt(73) - 7)/4 = 0.386 on.
    """
    check("gradient_complexity", n_rows=n_rows, alpha=alpha)
    rate = (2 - alpha) / (1 + alpha)
    if not bounded:
        rate = (6 - 3 * alpha - alpha**2) / ((1 + alpha) * (3 + alpha))
    return float(n_rows**rate + n_rows)


@dataclass(frozen=True)
class TableRow:
    """A line of Table 1, with its O() evaluated for the constant 1."""

    reference: str
    loss: str  # "Lipschitz", "Lipschitz and smooth" or "Hölder"
    method: str  # what is perturbed
    domain: str  # "bounded" or "unbounded"
    utility: float  # the excess population risk
    gradients: float  # the number of gradients


def table_1(
    n_rows: int, n_columns: int, epsilon: float, delta: float, alpha: float = 1.0
) -> tuple[TableRow, ...]:
    r"""Return Table 1 at these numbers: excess risk and number of gradients of nine methods.

    ``alpha`` affects the last three lines, which are the paper's own. Logarithms are those of the table.
    It leaves out those of n in the last line. In the last line but one it has
    sqrt(d log(1/delta) log(n/delta)), where Theorem 9 has sqrt(d log(1/delta)) log(n/delta)
    (``theorem_9_excess``).
    """
    check("table_1", n_rows=n_rows, n_columns=n_columns, epsilon=epsilon, delta=delta, alpha=alpha)
    n, spread = float(n_rows), n_columns * log(1 / delta)  # d log(1/delta)
    best = sqrt(spread) / (n * epsilon) + 1 / sqrt(n)
    root = spread**0.25 / sqrt(n * epsilon)
    far = log(n / delta)
    power = 1 / (3 + alpha)
    unbounded = sqrt(spread * far) / (n ** (2 * power) * epsilon) + far / n**power
    smooth, holder = "Lipschitz and smooth", "Hölder"
    of_envelope = n**4.5 * sqrt(epsilon) + n**6.5 * epsilon**4.5 / spread**2
    in_ball = gradient_complexity(n_rows, alpha)
    free = gradient_complexity(n_rows, alpha, bounded=False)
    wu, bassily_2019 = "Wu et al. (2017)", "Bassily et al. (2019)"
    feldman, bassily_2020 = "Feldman et al. (2020)", "Bassily et al. (2020)"
    own, ball = "Wang et al. (2022)", "bounded"
    moderate = n**1.5 * sqrt(epsilon) + (n * epsilon) ** 2.5 / spread
    return (
        TableRow(wu, smooth, "output", ball, root, n),
        TableRow(bassily_2019, smooth, "gradient", ball, best, moderate),
        TableRow(bassily_2019, "Lipschitz", "gradient", ball, best, of_envelope),
        TableRow(feldman, smooth, "phased output", ball, best, n),
        TableRow(feldman, "Lipschitz", "phased ERM", ball, best, n**2 * log(1 / delta)),
        TableRow(bassily_2020, "Lipschitz", "gradient", ball, best, n**2),
        TableRow(own, holder, "output", ball, root * sqrt(far), in_ball),
        TableRow(own, holder, "output", "unbounded", unbounded, free),
        TableRow(own, holder, "gradient", ball, best, in_ball),
    )


# --- Lemma 1 --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Generalisation:
    """Lemma 1: how far the risk on new data can be from the risk on the sample."""

    slope: float  # M + L G^alpha, a bound on the gradient
    height: float  # M_0 + (M + L G^alpha) G, a bound on the loss
    stability: float  # the term with Delta
    sampling: float  # the term with 1/sqrt(n)

    @property
    def total(self) -> float:
        """The bound."""
        return self.stability + self.sampling


def lemma_1(
    n_rows: int,
    stability: float,
    constants: HolderConstants,
    size: float,
    *,
    confidence: float = 0.05,
    c: float = 1.0,
) -> Generalisation:
    r"""Return Lemma 1 for an algorithm whose output moves by at most ``stability`` = Delta::

        c ((M + L G^alpha) Delta log(n) log(1/gamma) + (M_0 + (M + L G^alpha) G) sqrt(log(1/gamma)/n))

    G = ``size`` bounds the norm of the output and gamma is ``confidence``, to which the probability with
    which Delta may fail is added. The lemma leaves c open, because Corollary 8 of Bousquet, Klochkov &
    Zhivotovskiy (2020), from which it comes, does; M, M_0, alpha and L are those of the loss
    (``HolderConstants.of``).
    """
    given = {"stability": stability, "size": size, "c": c}
    check("lemma_1", None, n_rows=n_rows, confidence=confidence, **given)
    slope, doubt = constants.gradient_bound(size), log(1 / confidence)
    height = constants.loss_bound(size)
    return Generalisation(
        slope,
        height,
        c * slope * stability * log(n_rows) * doubt,
        c * height * sqrt(doubt / n_rows),
    )


# --- the risk bounds ------------------------------------------------------------------------


@dataclass(frozen=True)
class ExcessRate:
    """The two terms of a bound on the excess risk without its constant, and the schedule."""

    privacy: float  # the term with epsilon
    statistics: float  # the term without epsilon
    schedule: Preset  # the theorem's steps; a step size is reduced to what the proof allows

    @property
    def total(self) -> float:
        """Their sum."""
        return self.privacy + self.statistics


def theorem_9_excess(
    n_rows: int,
    n_columns: int,
    epsilon: float,
    delta: float,
    alpha: float,
    *,
    confidence: float = 0.05,
    L: float = 1.0,
    size: float = 1.0,
) -> ExcessRate:
    r"""Return the rate of Theorem 9: output perturbation, no projection.

    ||w*||^2 (sqrt(d log(1/delta)) log(n/delta) / (log(1/gamma)^((1+alpha)/(4(3+alpha))) n^(2/(3+alpha))
    epsilon) + log(n) log(1/gamma)^(2/(3+alpha)) log(n/delta) / n^(1/(3+alpha))), with probability
    1 - gamma (``confidence``) over rows and run. ``size`` is ||w*||, at least 1 in the theorem, and
    gamma > 4 max(e^(-d/8), delta) there; the number is returned for other gamma too.
    """
    _check_excess("theorem_9_excess", n_rows, n_columns, epsilon, delta, alpha, confidence, size)
    n, doubt, far = n_rows, log(1 / confidence), log(n_rows / delta)
    power = 1 / (3 + alpha)
    noise = sqrt(n_columns * log(1 / delta)) * far / (n ** (2 * power) * epsilon)
    private = noise / doubt ** ((1 + alpha) * power / 4)
    rest = log(n) * doubt ** (2 * power) * far / n**power
    schedule = holder_theorem_9(n_rows=n, alpha=alpha, L=L, gamma=confidence, as_printed=True)
    return ExcessRate(size**2 * private, size**2 * rest, schedule)


def theorem_10_excess(
    n_rows: int,
    n_columns: int,
    epsilon: float,
    delta: float,
    alpha: float,
    *,
    confidence: float = 0.05,
    L: float = 1.0,
    size: float = 1.0,
    radius: float = 1.0,
) -> ExcessRate:
    r"""Return the rate of Theorem 10: output perturbation in a ball.

    ||w*||^2 ((d log(1/delta))^(1/4) log(1/gamma)^(1/8) sqrt(log(n/delta)) / sqrt(n epsilon)
    + sqrt(log(n) log(1/gamma) log(n/delta)) / sqrt(n)), with probability 1 - gamma. It does not depend
    on alpha, but the schedule does.
    """
    _check_excess("theorem_10_excess", n_rows, n_columns, epsilon, delta, alpha, confidence, size)
    n, doubt, far = n_rows, log(1 / confidence), log(n_rows / delta)
    private = (n_columns * log(1 / delta)) ** 0.25 * doubt**0.125 * sqrt(far / (n * epsilon))
    rest = sqrt(log(n) * doubt * far / n)
    schedule = holder_theorem_10(
        n_rows=n,
        dimension=n_columns,
        epsilon=epsilon,
        delta=delta,
        alpha=alpha,
        L=L,
        radius=radius,
        gamma=confidence,
        as_printed=True,
    )
    return ExcessRate(size**2 * private, size**2 * rest, schedule)


def theorem_12_excess(
    n_rows: int,
    n_columns: int,
    epsilon: float,
    delta: float,
    alpha: float,
    *,
    confidence: float = 0.05,
    size: float = 1.0,
    radius: float = 1.0,
    reading: str = "proof",
) -> ExcessRate:
    r"""Return the rate of Theorem 12: gradient perturbation in a ball.

    ||w*||^2 (sqrt(d log(1/delta) log(1/gamma)) / (n epsilon)
    + sqrt(log(n) log(n/gamma) log(1/gamma)) / sqrt(n)), with probability 1 - gamma, at the step
    1/(T m) at which the proof's derivative vanishes (``reading="proof"``).

    The theorem prints the step m/T. Then the term ||w*||^2/(T eta) of its own bound (38) is
    ||w*||^2/m, which grows with n. ``reading="printed"`` returns that schedule, and 1/m instead of the
    statistical term if it is larger.
    """
    owner = "theorem_12_excess"
    _check_excess(owner, n_rows, n_columns, epsilon, delta, alpha, confidence, size)
    check(owner, one_of("proof", "printed"), reading=reading)
    n, doubt = n_rows, log(1 / confidence)
    private = sqrt(n_columns * log(1 / delta) * doubt) / (n * epsilon)
    rest = sqrt(log(n) * log(n / confidence) * doubt / n)
    schedule = holder_theorem_12(
        n_rows=n,
        dimension=n_columns,
        epsilon=epsilon,
        delta=delta,
        alpha=alpha,
        radius=radius,
        gamma=confidence,
        reading=reading,
    )
    if reading == "printed":
        rest = max(rest, 1 / (schedule.n_steps * schedule.step))
    return ExcessRate(size**2 * private, size**2 * rest, schedule)


def _check_excess(
    owner: str,
    n_rows: int,
    n_columns: int,
    epsilon: float,
    delta: float,
    alpha: float,
    confidence: float,
    size: float,
) -> None:
    check(
        owner,
        n_rows=n_rows,
        n_columns=n_columns,
        epsilon=epsilon,
        delta=delta,
        alpha=alpha,
        confidence=confidence,
        size=size,
    )


# --- Lemma 13 and Figure 1 ------------------------------------------------------------------


def smallest_epsilon(
    n_rows: int,
    *,
    n_steps: int | None = None,
    delta: float | None = None,
    reading: str = "corrected",
) -> float:
    r"""Return the smallest epsilon of Theorem 11, for which some beta in (0, 1) meets (32) and (33).

    ``reading="printed"`` is the sufficient condition of Lemma 13, the edge of the shaded area of Figure
    1. It is for T = n and delta = 1/n^2 only (the defaults). "corrected" is the edge itself, found by
    bisection to a relative 1e-12 and returned from the side on which a beta exists.

    Theorem 11 then holds at every larger epsilon, too. To see this, keep sigma^2/C^2 and lower beta with
    beta epsilon/lambda fixed. Then lambda falls, the left side of (33) falls with it, and its right side
    rises.

    Erratum 002-4: the lemma is stated for n >= 18, but for n from 18 to 43 its number is below the
    edge (by a factor 1.16 at n = 18) and no beta exists there. From n = 44 on it is enough, and more
    than needed: 1.65 times at n = 10^3, 5 times at 10^6.
    """
    check("smallest_epsilon", one_of("printed", "corrected"), n_rows=n_rows, reading=reading)
    steps = n_rows if n_steps is None else n_steps
    small = n_rows**-2.0 if delta is None else delta
    check("smallest_epsilon", n_steps=steps, delta=small)
    if reading == "printed":
        if steps != n_rows or small != n_rows**-2.0:
            check("smallest_epsilon", one_of("corrected"), reading=reading)
        return lemma_13_threshold(n_rows)
    low, high = 0.0, 1.0
    while not beta_exists(n_rows, steps, high, small):
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if beta_exists(n_rows, steps, middle, small):
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True)
class FigurePoint:
    """One n of Figure 1, with the smallest feasible epsilon as printed and as corrected."""

    n_rows: int
    printed: float
    corrected: float

    @property
    def lemma_holds(self) -> bool:
        """Whether Lemma 13 is right at this n, that is, whether a beta exists at the printed epsilon."""
        return self.printed >= self.corrected


def figure_1(n_rows: Iterable[int]) -> tuple[FigurePoint, ...]:
    """Return Figure 1 at these n: T = n and delta = 1/n^2."""
    return tuple(
        FigurePoint(n, smallest_epsilon(n, reading="printed"), smallest_epsilon(n)) for n in n_rows
    )
