r"""The schedules of the convergence theorems: steps, step size and features from public numbers.

The presets are::

    name               theorem                                              perturbs
    "wang-guo-1"       Wang & Guo (2024), Theorem 1                         the last iterate
    "holder-9"         Wang, Lei, Ying & Zhang (2022), Theorem 9            the mean, no radius
    "holder-10"        Wang, Lei, Ying & Zhang (2022), Theorem 10           the mean, in a ball
    "holder-12"        Wang, Lei, Ying & Zhang (2022), Theorem 12           every gradient, in a ball

The theorems fix rates. Constants that they hide in O() or asymp are parameters here, 1 by default.
A schedule is a recipe for utility; privacy comes from the mechanism that uses it. A step that the
proof does not allow is cut to the largest one that it allows, and the preset says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import is_real, is_whole
from dpkernel.foundations.validation import named


@dataclass(frozen=True)
class Preset:
    """A schedule; all of it is public.

    Attributes
    ----------
    name : str
        The name in ``PRESETS``.
    n_steps : int
        The number of steps.
    step : float
        The step size.
    n_features : int or None
        The number of random features; None if the theorem does not choose it.
    radius : float or None
        The radius of the ball to which iterates are projected; None for no projection.
    average : bool
        Whether the mean of the iterates is released instead of the last one.
    order : str
        How rows are sampled; "replacement" in all of these.
    perturbs : str
        What gets the noise: "output" or "gradient".
    step_cut_from : float or None
        The step size of the theorem, if it was cut.
    notes : tuple of str
        What else was changed, and why.
    """

    name: str
    n_steps: int
    step: float
    n_features: int | None
    radius: float | None
    average: bool
    order: str
    perturbs: str
    step_cut_from: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.order not in ("shuffle", "fixed", "replacement"):
            allowed = "one of 'shuffle', 'fixed', 'replacement'"
            raise ParameterError(parameter_message("Preset", "order", allowed, self.order))


def preset(name: str, **numbers: Any) -> Preset:
    """Return the schedule of this name.

    Parameters
    ----------
    name : str
        A name in ``PRESETS``.
    **numbers
        The arguments of the schedule's function.

    Examples
    --------
    >>> preset("holder-9", n_rows=10_000, alpha=1.0, L=1.0).n_steps
    10000
    """
    return named("preset", PRESETS, name)(**numbers)


def wang_guo_theorem_1(
    *,
    n_rows: int,
    r: float,
    capacity: float,
    kappa: float = 1.0,
    confidence: float = 0.05,
    small_steps: bool = True,
    step_constant: float = 1.0,
    feature_constant: float = 1.0,
) -> Preset:
    r"""Return the schedule of Wang & Guo (2024), Theorem 1.

    eta = c_1 n^-1 and T = n^((2r+a+1)/(2r+a)) (``small_steps``), or eta = c_1 n^(-2r/(2r+a)) and
    T = n^((2r+1)/(2r+a)); M = c_2 n^((1+a(2r-1))/(2r+a)) log(n/confidence) random features. r in
    (1/2, 1] is the regularity of the regression function and a is the capacity, with
    (4-4r)/(3-2r) < a < 1. The last iterate is released.

    Parameters
    ----------
    n_rows : int
        The number n of rows.
    r, capacity : float
        The regularity r and the capacity a.
    kappa : float
        A bound on the norm of a row.
    confidence : float
        The number in log(n/confidence), in (0, 1).
    small_steps : bool
        Which of the two schedules to use.
    step_constant, feature_constant : float
        The constants c_1 and c_2.

    Notes
    -----
    The theorem leaves open the constants c_1 and c_2, and also r and a, which no public number
    determines. It requires eta < 1/(kappa^2 (log T + 1)), which is stricter than the 1/kappa^2 of
    the privacy proof. A larger step is cut to this limit.
    """
    owner = "wang_guo_theorem_1"
    n = _rows(owner, n_rows)
    _within(owner, "r", r, 0.5, 1.0, closed_high=True)
    _within(owner, "capacity", capacity, (4 - 4 * r) / (3 - 2 * r), 1.0)
    _within(owner, "kappa", kappa, 0.0, math.inf)
    _within(owner, "confidence", confidence, 0.0, 1.0)
    total = 2 * r + capacity
    exponents = (1.0, (total + 1) / total) if small_steps else (2 * r / total, (2 * r + 1) / total)
    n_steps = _whole(n ** exponents[1])
    features = n ** ((1 + capacity * (2 * r - 1)) / total) * math.log(n / confidence)
    limit = math.nextafter(1 / (kappa**2 * (math.log(n_steps) + 1)), 0.0)
    step = _positive(owner, "step_constant", step_constant) * n ** -exponents[0]
    return _cut(
        Preset(
            "wang-guo-1",
            n_steps,
            step,
            _whole(_positive(owner, "feature_constant", feature_constant) * features),
            radius=None,
            average=False,
            order="replacement",
            perturbs="output",
        ),
        limit,
        "1/(kappa^2 (log T + 1)), which Theorem 1 asks for; the privacy proof asks for 1/kappa^2",
    )


def holder_theorem_9(
    *,
    n_rows: int,
    alpha: float,
    L: float,
    gamma: float = 0.05,
    steps_constant: float = 1.0,
    as_printed: bool = False,
) -> Preset:
    r"""Return the schedule of Wang, Lei, Ying & Zhang (2022), Theorem 9: without a projection.

    T = c n^((6 - 3 alpha - alpha^2)/((1+alpha)(3+alpha))) for alpha < (sqrt(73) - 7)/4 and c n
    otherwise; eta = n^(1/(3+alpha)) / (T log(1/gamma)^(1/(3+alpha))). gamma is the probability with
    which the risk bound may fail; the theorem assumes gamma > 4 max(e^(-d/8), delta).

    Parameters
    ----------
    n_rows : int
        The number n of rows.
    alpha, L : float
        The exponent and the constant of the Hölder continuity of the gradient.
    gamma : float
        The probability with which the risk bound may fail.
    steps_constant : float
        The constant c of the number of steps.
    as_printed : bool
        Whether to require the step of Theorem 7.

    Notes
    -----
    The theorem leaves c open. The schedule depends neither on epsilon nor on d nor on delta. The
    bound on iterates without a projection needs eta <= 1/L if alpha = 1. ``as_printed`` requires
    eta < min(1, 1/L) as in Theorem 7 for every alpha.
    """
    owner = "holder_theorem_9"
    n = _rows(owner, n_rows)
    _loss(owner, alpha, L)
    _within(owner, "gamma", gamma, 0.0, 1.0)
    rate = 1.0
    if alpha < (math.sqrt(73) - 7) / 4:
        rate = (6 - 3 * alpha - alpha**2) / ((1 + alpha) * (3 + alpha))
    n_steps = _whole(_positive(owner, "steps_constant", steps_constant) * n**rate)
    step = (n / math.log(1 / gamma)) ** (1 / (3 + alpha)) / n_steps
    found = _averaged("holder-9", n_steps, step, None, "output")
    return _allowed(found, alpha, L, projected=False, as_printed=as_printed)


def holder_theorem_10(
    *,
    n_rows: int,
    dimension: int,
    epsilon: float,
    delta: float,
    alpha: float,
    L: float,
    radius: float,
    gamma: float = 0.05,
    steps_constant: float = 1.0,
    as_printed: bool = False,
) -> Preset:
    r"""Return the schedule of Wang, Lei, Ying & Zhang (2022), Theorem 10: output, in a ball.

    T = c n^((2-alpha)/(1+alpha)) for alpha < 1/2 and c n otherwise; eta = 1/(T max(a, b)) with
    a = sqrt(log(n/delta) log(n) log(1/gamma)) / sqrt(n) and
    b = (d log(1/delta))^(1/4) sqrt(log(n/delta)) log(1/gamma)^(1/8) / sqrt(n epsilon).

    Parameters
    ----------
    n_rows, dimension : int
        The numbers n of rows and d of coefficients.
    epsilon, delta : float
        The privacy parameters.
    alpha, L : float
        The exponent and the constant of the Hölder continuity of the gradient.
    radius : float
        The radius of the ball.
    gamma, steps_constant, as_printed
        See ``holder_theorem_9``.

    Notes
    -----
    The theorem leaves c and the radius open. With a projection, eta <= 2/L suffices if alpha = 1.
    ``as_printed`` requires eta < min(1, 1/L) as in Theorem 7.
    """
    owner = "holder_theorem_10"
    n = _private(owner, n_rows, dimension, epsilon, delta, gamma)
    _loss(owner, alpha, L)
    n_steps = _ball_steps(owner, n, alpha, steps_constant)
    spread = math.log(n / delta)
    first = math.sqrt(spread * math.log(n) * math.log(1 / gamma) / n)
    second = (dimension * math.log(1 / delta)) ** 0.25 * math.sqrt(spread / (n * epsilon))
    second *= math.log(1 / gamma) ** 0.125
    step = 1 / (n_steps * max(first, second))
    found = _averaged("holder-10", n_steps, step, _positive(owner, "radius", radius), "output")
    return _allowed(found, alpha, L, projected=True, as_printed=as_printed)


def holder_theorem_12(
    *,
    n_rows: int,
    dimension: int,
    epsilon: float,
    delta: float,
    alpha: float,
    radius: float,
    gamma: float = 0.05,
    steps_constant: float = 1.0,
    reading: str = "proof",
) -> Preset:
    r"""Return the schedule of Wang, Lei, Ying & Zhang (2022), Theorem 12: gradients, in a ball.

    T is that of Theorem 10. Let m = max(sqrt(log(n) log(n/gamma) log(1/gamma)) / sqrt(n), sqrt(d
    log(1/delta)) log(1/gamma)^(1/4) / (n epsilon)). With ``reading="proof"``, eta = 1/(T m), at
    which the derivative in the proof vanishes. The theorem prints eta = m/T ("printed"). Then the
    term ||w*||^2 / (T eta) of its own bound (38) is ||w*||^2 / m, which does not go to 0.

    Parameters
    ----------
    n_rows, dimension, epsilon, delta
        See ``holder_theorem_10``.
    alpha : float
        The exponent of the Hölder continuity of the gradient.
    radius : float
        The radius of the ball.
    gamma, steps_constant
        See ``holder_theorem_9``.
    reading : {"proof", "printed"}
        Which step to use.

    Notes
    -----
    The theorem leaves c and the radius open. Privacy allows any step, because gradients are bounded
    and perturbed.
    """
    owner = "holder_theorem_12"
    n = _private(owner, n_rows, dimension, epsilon, delta, gamma)
    _within(owner, "alpha", alpha, 0.0, 1.0, closed_low=True, closed_high=True)
    if reading not in ("proof", "printed"):
        allowed = "one of 'proof', 'printed'"
        raise ParameterError(parameter_message(owner, "reading", allowed, reading))
    n_steps = _ball_steps(owner, n, alpha, steps_constant)
    confidence = math.log(1 / gamma)
    first = math.sqrt(math.log(n) * math.log(n / gamma) * confidence / n)
    second = math.sqrt(dimension * math.log(1 / delta)) * confidence**0.25 / (n * epsilon)
    largest = max(first, second)
    step = 1 / (n_steps * largest) if reading == "proof" else largest / n_steps
    return _averaged("holder-12", n_steps, step, _positive(owner, "radius", radius), "gradient")


PRESETS: dict[str, Callable[..., Preset]] = {
    "wang-guo-1": wang_guo_theorem_1,
    "holder-9": holder_theorem_9,
    "holder-10": holder_theorem_10,
    "holder-12": holder_theorem_12,
}


def _averaged(name: str, n_steps: int, step: float, radius: float | None, perturbs: str) -> Preset:
    return Preset(name, n_steps, step, None, radius, True, "replacement", perturbs)


def _allowed(found: Preset, alpha: float, L: float, *, projected: bool, as_printed: bool) -> Preset:
    """Return the preset with a step that its privacy proof allows."""
    if as_printed:
        limit = math.nextafter(min(1.0, 1 / L), 0.0)
        return _cut(found, limit, "min(1, 1/L), which Theorem 7 asks for")
    if alpha < 1:
        return found  # steps on common records expand by a bounded amount, whatever the step
    bound = (
        "2/L, beyond which a step expands" if projected else "1/L, up to which iterates are bounded"
    )
    return _cut(found, (2 if projected else 1) / L, bound)


def _cut(found: Preset, limit: float, why: str) -> Preset:
    if found.step <= limit:
        return found
    values = {**found.__dict__, "step": limit, "step_cut_from": found.step}
    note = f"the step {found.step:.6g} was cut to {limit:.6g}: {why}"
    return Preset(**{**values, "notes": (*found.notes, note)})


def _ball_steps(owner: str, n: int, alpha: float, constant: float) -> int:
    rate = (2 - alpha) / (1 + alpha) if alpha < 0.5 else 1.0
    return _whole(_positive(owner, "steps_constant", constant) * n**rate)


def _private(
    owner: str, n_rows: int, dimension: int, epsilon: float, delta: float, gamma: float
) -> int:
    if not is_whole(dimension) or not dimension >= 1:
        raise ParameterError(parameter_message(owner, "dimension", "an int >= 1", dimension))
    _positive(owner, "epsilon", epsilon)
    _within(owner, "delta", delta, 0.0, 1.0)
    _within(owner, "gamma", gamma, 0.0, 1.0)
    return _rows(owner, n_rows)


def _loss(owner: str, alpha: float, L: float) -> None:
    _within(owner, "alpha", alpha, 0.0, 1.0, closed_low=True, closed_high=True)
    _positive(owner, "L", L)


def _rows(owner: str, n_rows: int) -> int:
    if not is_whole(n_rows) or not n_rows >= 2:
        raise ParameterError(parameter_message(owner, "n_rows", "an int >= 2", n_rows))
    return int(n_rows)


def _positive(owner: str, name: str, value: float) -> float:
    _within(owner, name, value, 0.0, math.inf)
    return float(value)


def _within(
    owner: str,
    name: str,
    value: float,
    low: float,
    high: float,
    *,
    closed_low: bool = False,
    closed_high: bool = False,
) -> None:
    inside = is_real(value) and low <= value <= high
    if not inside or (value == low and not closed_low) or (value == high and not closed_high):
        ends = "[" if closed_low else "(", "]" if closed_high else ")"
        allowed = f"a float in the range {ends[0]}{low:g}, {high:g}{ends[1]}"
        raise ParameterError(parameter_message(owner, name, allowed, value))


def _whole(value: float) -> int:
    """Return the nearest whole number, at least 1; treat 1e12 or more as a mistake."""
    if not value < 1e12:
        allowed = "such that a schedule has fewer than 1e12 steps and features"
        raise ParameterError(parameter_message("preset", "n_rows", allowed, value))
    return max(1, round(value))
