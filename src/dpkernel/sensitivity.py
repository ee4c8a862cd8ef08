"""Sensitivities as values: a formula's name, its parameters, and the number they give.

A certificate carries the name and the parameters, and ``verify`` computes the number again.
Every formula rounds up. To add one, write a function of (neighbours, parameters) and register it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from dpkernel.errors import CertificateError, ParameterError, parameter_message
from dpkernel.types import JSON, Neighbours, is_real


@dataclass(frozen=True)
class Sensitivity:
    """How far a query can move between neighbouring data sets, and why.

    Parameters
    ----------
    formula : str
        A name in the registry of this module.
    neighbours : Neighbours
    parameters : tuple of (name, value)
        The arguments of the formula; all public.
    norm : {"l2", "l1", "score"}
        The norm in which the query moves.
    """

    formula: str
    neighbours: Neighbours
    parameters: tuple[tuple[str, float], ...]
    norm: str = "l2"

    def __post_init__(self) -> None:
        value = self.value  # raises for an unknown formula or bad parameters
        if self.norm not in _NORMS[self.formula]:
            raise ParameterError(
                parameter_message(
                    "Sensitivity",
                    "norm",
                    f"one of {_NORMS[self.formula]} for this formula",
                    self.norm,
                )
            )
        if not 0 < value < math.inf:
            raise ParameterError(
                parameter_message("Sensitivity", "value", "a float in the range (0, inf)", value)
            )

    @property
    def value(self) -> float:
        """The sensitivity, rounded up."""
        try:
            rule = _FORMULAS[self.formula]
            return rule(self.neighbours, dict(self.parameters))
        except (KeyError, TypeError) as error:
            known = ", ".join(sorted(_FORMULAS))
            raise CertificateError(
                f"The sensitivity formula '{self.formula}' can't be evaluated ({error}). It must be"
                f" one of {known}, with that formula's parameters."
            ) from error

    def to_dict(self) -> JSON:
        """Return formula, relation, norm, parameters and the value they give."""
        return {
            "formula": self.formula,
            "neighbours": self.neighbours.value,
            "norm": self.norm,
            "parameters": dict(self.parameters),
            "value": self.value,
        }


@dataclass(frozen=True)
class RandomSensitivity:
    """A sensitivity that depends on fresh, data-independent randomness of the algorithm.

    For a change of any one record the sensitivity is stochastically at most ``values[i]`` with
    probability ``probabilities[i]``; ``tail`` is probability that was cut off. Void if the
    randomness is not drawn afresh for the release, or if its law depends on a private n.
    """

    neighbours: Neighbours
    values: tuple[float, ...]
    probabilities: tuple[float, ...]
    tail: float = 0.0
    norm: str = "l2"
    formula: str = "declared-law"

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(float(v) for v in self.values))
        object.__setattr__(self, "probabilities", tuple(float(p) for p in self.probabilities))
        object.__setattr__(self, "tail", float(self.tail))
        fine = len(self.values) == len(self.probabilities) and len(self.values) > 0
        fine = fine and all(0 <= v < math.inf for v in self.values) and max(self.values) > 0
        fine = fine and all(p >= 0 for p in self.probabilities) and 0 <= self.tail < 1
        if not fine or not abs(math.fsum(self.probabilities) + self.tail - 1) < 1e-12:
            raise ParameterError(
                parameter_message(
                    "RandomSensitivity",
                    "probabilities",
                    "one for each value >= 0, adding up to 1 with the tail",
                    f"{len(self.probabilities)} for {len(self.values)} values",
                )
            )
        if not self.neighbours.n_is_public:
            raise ParameterError(
                parameter_message(
                    "RandomSensitivity",
                    "neighbours",
                    "a relation under which n is public (the law must be that of both data sets)",
                    self.neighbours.value,
                )
            )

    @property
    def value(self) -> float:
        """The largest sensitivity of the law."""
        return max(self.values)

    def to_dict(self) -> JSON:
        """Return the relation and the law as JSON values."""
        return {
            "formula": self.formula,
            "neighbours": self.neighbours.value,
            "norm": self.norm,
            "parameters": {
                "values": list(self.values),
                "probabilities": list(self.probabilities),
                "tail": self.tail,
            },
            "value": self.value,
        }


def declared(
    value: float, neighbours: Neighbours = Neighbours.REPLACE_ONE, norm: str = "l2"
) -> Sensitivity:
    """Return a sensitivity that the caller vouches for, with no formula behind it."""
    if not is_real(value) or not 0 < value < math.inf:
        raise ParameterError(
            parameter_message("declared", "value", "a float in the range (0, inf)", value)
        )
    return Sensitivity("declared", neighbours, (("value", float(value)),), norm)


def augmented_gram(
    neighbours: Neighbours,
    *,
    row: float,
    target: float = 0.0,
    targets: int = 1,
    constant: float = 0.0,
) -> Sensitivity:
    r"""Return the Frobenius sensitivity of sum_i v_i v_i^T, v = (features, targets, constant).

    With ||features|| <= row, each |target| <= target and the constant coordinate,
    N^2 = row^2 + targets target^2 + constant^2, and
    ||v v^T - v' v'^T||_F^2 = ||v||^4 + ||v'||^4 - 2 <v, v'>^2 <= 2 N^4
    gives sqrt(2) N^2 (replace-one); one term alone gives N^2 (zero-out, add-remove).
    Attained when v and v' can be orthogonal.
    """
    values = {"row": row, "target": target, "targets": targets, "constant": constant}
    parameters = tuple((name, float(value)) for name, value in values.items())
    return Sensitivity("augmented-gram", neighbours, parameters)


def loss_gradient(neighbours: Neighbours, *, slope: float, row: float) -> Sensitivity:
    """Return how far the gradient of sum_i loss(y_i, <h_i, beta>) moves at any one beta.

    Each record adds a vector of norm at most slope * row: twice that when one record is replaced,
    once when it is blanked, added or removed.
    """
    parameters = (("slope", float(slope)), ("row", float(row)))
    return Sensitivity("loss-gradient", neighbours, parameters)


def record_norm(
    neighbours: Neighbours,
    *,
    row: float,
    target: float = 0.0,
    targets: int = 1,
    constant: float = 0.0,
) -> Sensitivity:
    r"""Return the largest norm of a record v = (features, targets, constant), for Gaussian mixing.

    N = sqrt(row^2 + targets target^2 + constant^2), under every relation: what a replaced record costs
    more is in the profile of the mechanism.
    """
    values = {"row": row, "target": target, "targets": targets, "constant": constant}
    parameters = tuple((name, float(value)) for name, value in values.items())
    return Sensitivity("record-norm", neighbours, parameters)


def histogram(neighbours: Neighbours) -> Sensitivity:
    """Return the l2 sensitivity of counts of records in disjoint cells.

    A record that is replaced leaves one cell and enters another: sqrt(2). One that is blanked, added
    or removed changes one count.
    """
    return Sensitivity("histogram", neighbours, ())


def bounded_sum(neighbours: Neighbours, *, bound: float) -> Sensitivity:
    """Return the l2 sensitivity of a sum of vectors of norm <= bound: twice the bound, or once."""
    return Sensitivity("bounded-sum", neighbours, (("bound", float(bound)),))


def unit_gram(
    neighbours: Neighbours,
    *,
    row: float,
    target: float = 0.0,
    targets: int = 1,
    constant: float = 0.0,
) -> Sensitivity:
    r"""Return the Frobenius sensitivity of sum_u mean_{i in u} v_i v_i^T, one term a unit.

    A unit's mean lies in the convex hull of the matrices v v^T of single records, however many rows
    it has. ||A - A'||_F is convex in (A, A'), so over two hulls it is largest at single records:
    the value is that of ``augmented_gram``, and it protects all rows of a unit.
    """
    single = augmented_gram(neighbours, row=row, target=target, targets=targets, constant=constant)
    return Sensitivity("unit-gram", neighbours, single.parameters)


def sensitivity_from_dict(data: JSON) -> Sensitivity | RandomSensitivity:
    """Return the sensitivity described, recomputed from its parameters.

    Raises CertificateError when the parameters give more than the stated value.
    """
    try:
        relation, claimed = Neighbours.resolve(data["neighbours"]), float(data["value"])
        found: Sensitivity | RandomSensitivity
        if data["formula"] == RandomSensitivity.formula:
            law = data["parameters"]
            found = RandomSensitivity(
                relation,
                tuple(law["values"]),
                tuple(law["probabilities"]),
                law["tail"],
                data["norm"],
            )
        else:
            parameters = tuple(data["parameters"].items())
            found = Sensitivity(data["formula"], relation, parameters, data["norm"])
    except (KeyError, TypeError, AttributeError, ParameterError) as error:
        raise CertificateError(
            f"The sensitivity of this certificate can't be read ({error})."
        ) from error
    if not claimed >= found.value:
        raise CertificateError(
            f"The sensitivity formula '{found.formula}' gives {found.value:.17g} for the stated"
            f" parameters, but the certificate claims {claimed:.17g}."
        )
    return found


def _declared(neighbours: Neighbours, p: Mapping[str, float]) -> float:
    return float(p["value"])


def _augmented_gram(neighbours: Neighbours, p: Mapping[str, float]) -> float:
    row, target, targets, constant = (
        float(p[name]) for name in ("row", "target", "targets", "constant")
    )
    if not all(0 <= part < math.inf for part in (row, target, targets, constant)):
        return math.nan
    exact = Fraction(row) ** 2 + Fraction(targets) * Fraction(target) ** 2 + Fraction(constant) ** 2
    if neighbours is Neighbours.REPLACE_ONE:
        exact *= _ROOT_TWO
    return round_up(exact)


def _record_norm(neighbours: Neighbours, p: Mapping[str, float]) -> float:
    square = _augmented_gram(Neighbours.ZERO_OUT, p)  # one record: the sum of the squares
    if not square < math.inf:
        return math.nan
    root = math.sqrt(square)
    return root if Fraction(root) ** 2 >= Fraction(square) else math.nextafter(root, math.inf)


def _loss_gradient(neighbours: Neighbours, p: Mapping[str, float]) -> float:
    slope, row = float(p["slope"]), float(p["row"])
    if not all(0 <= part < math.inf for part in (slope, row)):
        return math.nan
    records = 2 if neighbours is Neighbours.REPLACE_ONE else 1
    return round_up(records * Fraction(slope) * Fraction(row))


def _histogram(neighbours: Neighbours, p: Mapping[str, float]) -> float:
    return float(_ROOT_TWO) if neighbours is Neighbours.REPLACE_ONE else 1.0


def _bounded_sum(neighbours: Neighbours, p: Mapping[str, float]) -> float:
    return _loss_gradient(neighbours, {"slope": 1.0, "row": p["bound"]})


def round_up(value: Fraction) -> float:
    """Return the least float that is not below an exact number."""
    try:
        near = float(value)
    except OverflowError:
        return math.inf
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


_ROOT_TWO = Fraction(math.nextafter(math.sqrt(2), math.inf))  # above the square root of 2

UNIT_FORMULAS = ("unit-gram",)  # of queries in which a unit with any number of rows is one record

_NORMS = {
    "declared": ("l2", "l1", "score"),
    "augmented-gram": ("l2",),
    "unit-gram": ("l2",),
    "loss-gradient": ("l2",),
    "record-norm": ("l2",),
    "histogram": ("l2",),
    "bounded-sum": ("l2",),
}

_FORMULAS: dict[str, Callable[[Neighbours, Mapping[str, float]], float]] = {
    "declared": _declared,
    "augmented-gram": _augmented_gram,
    "unit-gram": _augmented_gram,
    "loss-gradient": _loss_gradient,
    "record-norm": _record_norm,
    "histogram": _histogram,
    "bounded-sum": _bounded_sum,
}
