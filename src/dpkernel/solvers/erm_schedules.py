r"""Schedules of theorems about regularised risk minimisation: ridge and features from n and epsilon.

A schedule is written as a text, which the parameter ``regularisation`` of an estimator accepts::

    text                            theorem
    "nie-wang-4(beta=1)"            Nie & Wang (2017), Theorem 4: Lipschitz losses
    "nie-wang-5.1(beta=1)"          Nie & Wang (2017), Section 5.1: least squares
    "lee-11(r=0.5, gamma=0.5)"      Lee, Park & Ahn (2025), Theorem 11: squared loss, projections
    "lee-17(r=..., gamma=..., alpha=1)"   Theorem 17: squared loss, random features
    "lee-18(gamma=0.5)"             Theorem 18: Lipschitz and smooth losses; alpha=1 for features
    "lee-19", "lee-58"              Theorems 19 and 58: as 11, for losses with curvature
    "lee-21"                        Theorem 21: as 17, for losses with curvature
    "lee-22"                        Theorem 22: noise on the whole function; chooses no features
    "lee-63", "lee-64", "lee-65"    Theorems 63 to 65: linear models; rank=d by default

r in [1/2, 1], gamma in [0, 1], alpha in [gamma, 1] and beta in (0, 1] describe the unknown law of
the data. No public number determines them, so they are the user's guess, and every one of them may
be left out. Constants that a theorem hides are 1. A schedule is a recipe for utility; privacy comes
from the mechanism that uses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON
from dpkernel.foundations.validation import Constraint, Real, Spelled, Whole, check_parameters

MOST_FEATURES = 10_000  # that an estimator takes
Numbers = Mapping[str, float]
Chosen = tuple[float, float | None]


@dataclass(frozen=True)
class Schedule:
    """What a theorem chooses; all of it is public.

    Attributes
    ----------
    text : str
        The schedule as the user wrote it.
    numbers : dict
        r, gamma, alpha, beta and rank, as far as the theorem has them.
    lam : float
        lambda, on the scale of the mean over rows.
    strength : float
        Lambda, for an objective with the sum over rows and the penalty Lambda ||f||^2 / 2, or with
        the sum of squares and the penalty Lambda ||f||^2.
    wanted : int or None
        The theorem's number M of features, without its logarithm.
    """

    text: str
    numbers: JSON
    lam: float
    strength: float
    wanted: int | None

    @property
    def n_features(self) -> int | None:
        """M, even because Fourier features come in pairs, and at most what an estimator takes."""
        if self.wanted is None:
            return None
        return min(max(self.wanted + self.wanted % 2, 2), MOST_FEATURES)

    def public(self, taken: int | None = None) -> JSON:
        """Return what a certificate states, given the number of features that were taken."""
        differs = []
        if self.wanted is not None and taken is not None and taken != self.wanted:
            differs.append(f"there are {taken} features; the theorem asks for M = {self.wanted}")
        return {"text": self.text, **self.numbers, "lambda": self.lam, "differs": differs}


# --- the choices, on the scale of the mean over rows -------------------------------------------


def curved(n_rows: int, epsilon: float, r: float, gamma: float, fit: float) -> Chosen:
    """Return lambda and M for the squared loss and for losses with curvature."""
    lam = max(n_rows ** (-1 / (2 * r + gamma)), (n_rows * epsilon) ** (-2 / (4 * r + fit)))
    return lam, lam ** -(2 * r + fit - 1)


def lipschitz(n_rows: int, epsilon: float, power: float) -> Chosen:
    """Return lambda and M for Lipschitz and smooth losses."""
    lam = max(n_rows**-0.5, (n_rows * epsilon) ** (-2 / (2 + power)))
    return lam, lam**-power


def whole_function(n_rows: int, epsilon: float, r: float, gamma: float) -> Chosen:
    """Return lambda for noise on the whole function, which needs no features."""
    return max(n_rows ** (-1 / (2 * r + gamma)), (n_rows * epsilon) ** (-1 / (r + 1))), None


def linear(n_rows: int, epsilon: float, rank: float, known: float) -> Chosen:
    """Return lambda and M for linear models, where ``known`` is the rate without privacy."""
    total = n_rows * epsilon
    lam = max(min(sqrt(rank) / total, total ** (-2 / 3)), known)
    return lam, total * lam * sqrt(min(1 / lam, rank))


def mixed(r: float, gamma: float, alpha: float) -> float:
    """Return gamma_alpha = (2r - 1) gamma + (2 - 2r) alpha."""
    return (2 * r - 1) * gamma + (2 - 2 * r) * alpha


def _projected(n: int, epsilon: float, p: Numbers) -> Chosen:
    return curved(n, epsilon, p["r"], p["gamma"], p["gamma"])


def _random_features(n: int, epsilon: float, p: Numbers) -> Chosen:
    return curved(n, epsilon, p["r"], p["gamma"], mixed(p["r"], p["gamma"], p["alpha"]))


def _without_features(n: int, epsilon: float, p: Numbers) -> Chosen:
    return linear(n, epsilon, p["rank"], n**-0.5)[0], None


def _low_rank(n: int, epsilon: float, p: Numbers) -> Chosen:
    return linear(n, epsilon, p["rank"], min(p["rank"] / n, n**-0.5))


@dataclass(frozen=True)
class _Rule:
    """A rule, the names of its numbers, and Lambda / (n lambda)."""

    choose: Callable[[int, float, Numbers], Chosen]
    names: tuple[str, ...]
    factor: float = 1.0


_SOURCE = ("r", "gamma")
THEOREMS: dict[str, _Rule] = {
    "nie-wang-4": _Rule(lambda n, _, p: (n ** (-1 / (2 * p["beta"] + 1)), None), ("beta",), 2.0),
    "nie-wang-5.1": _Rule(
        lambda n, _, p: (n ** (-2 / (3 * (p["beta"] + 1))), None), ("beta",), 1.0
    ),
    "lee-11": _Rule(_projected, _SOURCE),
    "lee-17": _Rule(_random_features, (*_SOURCE, "alpha")),
    "lee-18": _Rule(lambda n, e, p: lipschitz(n, e, p.get("alpha", p["gamma"])), ("gamma",)),
    "lee-19": _Rule(_projected, _SOURCE),
    "lee-21": _Rule(_random_features, (*_SOURCE, "alpha")),
    "lee-22": _Rule(lambda n, e, p: whole_function(n, e, p["r"], p["gamma"]), _SOURCE),
    "lee-58": _Rule(_projected, _SOURCE),
    "lee-63": _Rule(_low_rank, ("rank",)),
    "lee-64": _Rule(_without_features, ("rank",)),
    "lee-65": _Rule(lambda n, e, p: (_low_rank(n, e, p)[0], None), ("rank",)),
}
_DEFAULTS = {"r": 0.5, "gamma": 0.5, "alpha": 1.0, "beta": 1.0}
_OPTIONAL = {"lee-18": ("alpha",)}
_ALLOWED: dict[str, Constraint] = {
    "r": Real(0.5, 1, closed_low=True, closed_high=True),
    "gamma": Real(0, 1, closed_low=True, closed_high=True),
    "alpha": Real(0, 1, closed_low=True, closed_high=True),
    "beta": Real(0, 1, closed_high=True),
    "rank": Whole(1),
}


def _parts(text: str) -> tuple[str, dict[str, float]] | None:
    """Return the name and the numbers of a text, or None if it is not a schedule."""
    found = re.fullmatch(r"([a-z]+(?:-[a-z0-9.]+)+) *(?:\((.*)\))?", text.strip())
    if found is None or found[1] not in THEOREMS:
        return None
    name, numbers = found[1], {}
    allowed = THEOREMS[name].names + _OPTIONAL.get(name, ())
    for part in filter(None, (found[2] or "").replace(" ", "").split(",")):
        key, _, value = part.partition("=")
        try:
            numbers[key] = int(value) if key == "rank" else float(value)
        except ValueError:
            return None
        if key not in allowed:
            return None
    return name, numbers


def is_schedule(value: object) -> bool:
    """Whether a value is the text of a schedule."""
    return isinstance(value, str) and _parts(value) is not None


SCHEDULE = Spelled("the schedule of a theorem, such as 'lee-11(r=0.75, gamma=0.5)'", is_schedule)


def schedule(
    text: str, n_rows: int, epsilon: float, n_inputs: int = 1, *, squared: bool = False
) -> Schedule:
    """Return what the schedule chooses for this number of rows and this epsilon.

    Parameters
    ----------
    text : str
        A name with numbers, such as "lee-11(r=0.75, gamma=0.5)"; see the module.
    n_rows : int
        The number of rows.
    epsilon : float
        The privacy budget.
    n_inputs : int
        The rank of linear models, if the text states none.
    squared : bool
        Whether the loss is the squared one, of which our objectives have one half.

    Examples
    --------
    >>> found = schedule("lee-11(r=0.5, gamma=0.5)", 10_000, epsilon=1.0)
    >>> round(found.lam, 5), found.n_features
    (0.00215, 22)
    """
    parts = _parts(text) if isinstance(text, str) else None
    if parts is None:
        known = f"one of {', '.join(THEOREMS)}, with numbers such as 'lee-11(r=0.75, gamma=0.5)'"
        raise ParameterError(parameter_message("schedule", "text", known, text))
    name, given = parts
    defaults = {key: {**_DEFAULTS, "rank": n_inputs}[key] for key in THEOREMS[name].names}
    numbers = {**defaults, **given}
    check_parameters(name, numbers, {key: _ALLOWED[key] for key in numbers})
    lam, wanted = THEOREMS[name].choose(n_rows, epsilon, numbers)
    strength = n_rows * lam * (1.0 if squared else THEOREMS[name].factor)
    return Schedule(text, numbers, lam, strength, None if wanted is None else max(1, round(wanted)))
