"""The types of sensitivities, and the registries of formulas and random laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from dpkernel.foundations.errors import CertificateError, ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Neighbours

Parameters = Mapping[str, float]
Formula = Callable[[Neighbours, Parameters], float]
LawRule = Callable[[Neighbours, Parameters], tuple[list[float], list[float], float]]

UP = 1 + 1e-12  # covers the rounding of a few dozen operations
_FORMULAS: dict[str, Formula] = {}
_NORMS: dict[str, tuple[str, ...]] = {}
_LAWS: dict[str, LawRule] = {}


def formula(name: str, *norms: str) -> Callable[[Formula], Formula]:
    """Register a rule (neighbours, parameters) -> number that rounds up; the default norm is l2."""

    def register(rule: Formula) -> Formula:
        _FORMULAS[name], _NORMS[name] = rule, norms or ("l2",)
        return rule

    return register


def law(name: str) -> Callable[[LawRule], LawRule]:
    """Register a rule (neighbours, parameters) -> (values, probabilities, tail) for a random l2 one."""

    def register(rule: LawRule) -> LawRule:
        _LAWS[name] = rule
        return rule

    return register


@dataclass(frozen=True)
class Sensitivity:
    """How far a query can move between neighbouring data sets, and by which formula.

    Parameters
    ----------
    formula : str
        A name in the registry of this module.
    neighbours : Neighbours
        The neighbouring relation.
    parameters : tuple of (name, value)
        The arguments of the formula, all public.
    norm : {"l2", "l1", "score"}
        The norm in which the query moves.
    """

    formula: str
    neighbours: Neighbours
    parameters: tuple[tuple[str, float], ...]
    norm: str = "l2"

    @classmethod
    def of(
        cls, formula: str, neighbours: Neighbours, norm: str = "l2", /, **parameters: float
    ) -> Self:
        """Return the sensitivity by a formula with these parameters."""
        values = tuple((name, float(value)) for name, value in parameters.items())
        return cls(formula, neighbours, values, norm)

    def __post_init__(self) -> None:
        value = self.value  # raises if the formula is unknown or its parameters are bad
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
        """Return the formula, relation, norm and parameters, and the resulting value."""
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

    For a change of any one record, the sensitivity is stochastically at most ``values[i]`` with
    probability ``probabilities[i]``. ``tail`` is the probability that was cut off. Use
    ``RandomSensitivity.of`` for a registered law, which a certificate can compute again.

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation. Under add-remove, a table has a public number of places for its
        records, and the law is that of places (``data/places.py``).
    values, probabilities : tuple of float
        The possible sensitivities and their probabilities.
    tail : float
        The probability that was cut off.
    norm : str
        The norm in which the query moves.
    formula, parameters
        The name and the public parameters of a registered law, if it is one.

    Notes
    -----
    The value is void if the randomness is not drawn afresh for the release, or if its distribution
    depends on a private number of rows.
    """

    neighbours: Neighbours
    values: tuple[float, ...]
    probabilities: tuple[float, ...]
    tail: float = 0.0
    norm: str = "l2"
    formula: str = "declared-law"
    parameters: tuple[tuple[str, float], ...] = ()

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

    @classmethod
    def of(
        cls, name: str, neighbours: Neighbours, parameters: tuple[tuple[str, float], ...]
    ) -> RandomSensitivity:
        """Return the registered law with these parameters, all public."""
        values, probabilities, tail = _LAWS[name](neighbours, dict(parameters))
        return cls(
            neighbours, tuple(values), tuple(probabilities), tail, "l2", name, tuple(parameters)
        )

    @property
    def value(self) -> float:
        """The largest sensitivity that can occur."""
        return max(self.values)

    def to_dict(self) -> JSON:
        """Return the relation and the law, or the parameters that define it, as JSON values."""
        declared = {
            "values": list(self.values),
            "probabilities": list(self.probabilities),
            "tail": self.tail,
        }
        return {
            "formula": self.formula,
            "neighbours": self.neighbours.value,
            "norm": self.norm,
            "parameters": dict(self.parameters) if self.parameters else declared,
            "value": self.value,
        }


def sensitivity_from_dict(data: JSON) -> Sensitivity | RandomSensitivity:
    """Return the described sensitivity, recomputed from its parameters.

    Parameters
    ----------
    data : dict
        JSON values, as ``to_dict`` returns them.

    Raises
    ------
    CertificateError
        If it can't be read, or if the parameters give more than the stated value.
    """
    try:
        relation, claimed = Neighbours.resolve(data["neighbours"]), float(data["value"])
        found: Sensitivity | RandomSensitivity
        if data["formula"] in _LAWS:
            law_parameters = tuple(data["parameters"].items())
            found = RandomSensitivity.of(data["formula"], relation, law_parameters)
        elif data["formula"] == RandomSensitivity.formula:
            given = data["parameters"]
            found = RandomSensitivity(
                relation,
                tuple(given["values"]),
                tuple(given["probabilities"]),
                given["tail"],
                data["norm"],
            )
        else:
            parameters = tuple(data["parameters"].items())
            found = Sensitivity(data["formula"], relation, parameters, data["norm"])
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError) as error:
        raise CertificateError(
            f"The sensitivity of this certificate can't be read ({error})."
        ) from error
    if not claimed >= found.value:
        raise CertificateError(
            f"The sensitivity formula '{found.formula}' gives {found.value:.17g} for the stated"
            f" parameters, but the certificate claims {claimed:.17g}."
        )
    return found


def round_up(value: Fraction) -> float:
    """Return the smallest float that is not below an exact number.

    Parameters
    ----------
    value : Fraction
        The exact number.
    """
    try:
        near = float(value)
    except OverflowError:
        return math.inf
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)
