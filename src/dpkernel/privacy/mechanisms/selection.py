"""Mechanisms that choose one of several private fits; each is a whole procedure.

Their parameters are the mechanisms of every fit and score that they may run, so a certificate can
prove the guarantee of the whole again from its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, is_whole
from dpkernel.privacy.mechanisms.base import Mechanism, mechanism_from_dict, register_procedure
from dpkernel.privacy.mechanisms.gaussian import Gaussian
from dpkernel.privacy.mechanisms.pure import Exponential
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.privacy.profiles import PrivacyProfile, StoppingLaw, StoppingProfile, compose, maximum
from dpkernel.privacy.sensitivity import Sensitivity

Run = Callable[[int, NoiseSource], tuple[float, Any]]  # (candidate, source) -> (score, output)


@dataclass(frozen=True)
class Line:
    """One release of a fit: a mechanism, used ``draws`` times on each of ``folds`` disjoint folds."""

    label: str
    mechanism: Mechanism
    draws: int = 1
    folds: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.label, str) or not isinstance(self.mechanism, Mechanism):
            raise ParameterError("A line of a fit needs a label and a mechanism.")
        for name in ("draws", "folds"):
            if not is_whole(getattr(self, name)) or getattr(self, name) < 1:
                got = getattr(self, name)
                raise ParameterError(parameter_message("Line", name, "an int >= 1", got))

    @property
    def profile(self) -> PrivacyProfile:
        """The profile of everything that touches one record."""
        return self.mechanism.profile().repeat(self.draws)

    def to_dict(self) -> JSON:
        """Return the line as JSON values."""
        counts = {"label": self.label, "draws": int(self.draws), "folds": int(self.folds)}
        return {**counts, "mechanism": self.mechanism.to_dict()}


Fit = tuple[Line, ...]  # all releases of one fit


def fit_profile(fit: Fit) -> PrivacyProfile:
    """Return the composed profile of one fit."""
    return compose([line.profile for line in fit])


@dataclass(frozen=True)
class _Selection(Mechanism):
    """The shared part of both procedures: the fits to try, and the fit of the chosen one on all rows."""

    sensitivity: Sensitivity
    candidates: int
    training: tuple[Fit, ...]
    refit: tuple[Fit, ...]

    def __post_init__(self) -> None:
        owner = type(self).__name__
        if not is_whole(self.candidates) or self.candidates < 1:
            allowed = "an int >= 1"
            raise ParameterError(parameter_message(owner, "candidates", allowed, self.candidates))
        object.__setattr__(self, "candidates", int(self.candidates))
        for name in ("training", "refit"):
            object.__setattr__(self, name, tuple(_as_fit(fit) for fit in getattr(self, name)))
        if not self.training or not all(self.training):
            raise ParameterError(
                parameter_message(owner, "training", "one or more fits", len(self.training))
            )
        relation = self.sensitivity.neighbours
        if any(line.mechanism.sensitivity.neighbours is not relation for line in self._lines()):
            raise ParameterError(f"All mechanisms of a {owner} must protect the same relation.")
        if any(line.folds > 1 for line in self._lines()) and not relation.n_is_public:
            raise ParameterError("Folds of row positions are not disjoint under this relation.")

    def _lines(self) -> list[Line]:
        return [line for fit in (*self.training, *self.refit) for line in fit]

    @property
    def assumptions(self) -> tuple[str, ...]:  # type: ignore[override]
        """The assumptions of all fits together."""
        found = (name for line in self._lines() for name in line.mechanism.assumptions)
        return tuple(dict.fromkeys(found))

    def _refit_profiles(self) -> list[PrivacyProfile]:
        """Return the cost of the fit on all rows: nothing, or that of the most expensive candidate."""
        return [maximum([fit_profile(fit) for fit in self.refit])] if self.refit else []

    def to_dict(self) -> JSON:
        """Return the parameters as JSON values, with every nested mechanism."""
        found: JSON = {"kind": self.kind}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("training", "refit"):
                value = [[line.to_dict() for line in fit] for fit in value]
            found[field.name] = value.to_dict() if hasattr(value, "to_dict") else value
        return {
            **found,
            "noise_scale": self.noise_scale,
            "assumptions": list(self.assumptions),
            "reference": self.reference,
        }


@register_procedure
@dataclass(frozen=True)
class RandomStopping(_Selection):
    r"""Run random candidates a random number of times and release the run with the best score.

    A run draws a candidate uniformly, trains it on the training rows and releases its score on the
    validation rows with noise. A record is either a training or a validation row, so a run costs
    the larger of the two. The best run is released completely, with its score. The number of runs
    and all other runs stay secret.

    Parameters
    ----------
    sensitivity : Sensitivity
        The sensitivity of the score.
    candidates : int
        The number of candidates.
    training : tuple of fits
        Everything that the fits of the candidates release.
    refit : tuple of fits
        Everything that the fit on all rows releases; empty if there is none.
    score : Mechanism
        The mechanism that releases the score of a run.
    law : StoppingLaw
        The distribution of the number of runs.

    Notes
    -----
    Guarantee
        ``StoppingProfile`` of a run, composed with the fit on all rows if there is one.
    Sensitivity
        That of the score.
    Numerics
        Those of the nested mechanisms. The number of runs is drawn exactly.

    References
    ----------
    Papernot & Steinke (2022), Theorems 2 and 6; Liu & Talwar (2019).
    """

    score: Gaussian
    law: StoppingLaw

    kind: ClassVar[str] = "random-stopping"
    reference: ClassVar[str] = "Papernot & Steinke (2022), Theorems 2 and 6"

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", _as_mechanism(self.score, Gaussian))
        law = StoppingLaw(**self.law) if isinstance(self.law, Mapping) else self.law
        object.__setattr__(self, "law", law)
        _check_same(self, self.score)
        super().__post_init__()

    @property
    def noise_scale(self) -> float:
        """The noise scale of the score."""
        return self.score.noise_scale

    def profile(self) -> PrivacyProfile:
        """Return the profile of the whole search."""
        run = maximum([self.score.profile(), *(fit_profile(fit) for fit in self.training)])
        return compose([StoppingProfile(run, self.law), *self._refit_profiles()])

    def release(
        self,
        value: Run,
        noise: Noise,
        finish: Callable[[Any, NoiseSource], Any] = lambda output, source: output,
    ) -> Any:
        """Return ``finish`` of the output of the best run.

        Parameters
        ----------
        value : callable
            ``value(candidate, source)`` is a run. It returns a score, larger is better, and an
            output. Among equal scores the earliest run wins.
        noise : Noise
            The noise of a recorded spend.
        finish : callable
            Receives the output of the best run, or None if the number of runs happens to be 0. It
            may fit the chosen candidate on all rows.
        """
        source = self._claim(noise)
        best: tuple[float, Any] | None = None
        for _ in range(self.law.draw(source.words)):
            candidate = int(source.uniform_indices(self.candidates, 1)[0])
            found = value(candidate, source)
            if best is None or found[0] > best[0]:
                best = found
        return finish(None if best is None else best[1], source)


@register_procedure
@dataclass(frozen=True)
class HeldOutChoice(_Selection):
    r"""Train every candidate on the training rows; choose one by its error on the validation rows.

    Parameters
    ----------
    sensitivity : Sensitivity
        The sensitivity of the sum of clipped losses.
    candidates : int
        The number of candidates.
    training : tuple of fits
        Everything that the fit of each candidate releases.
    refit : tuple of fits
        Everything that the fit on all rows releases; empty if there is none.
    choice : Exponential
        The mechanism that chooses among the candidates.

    Notes
    -----
    Guarantee
        The larger of two compositions. A training row is touched by all fits and by the fit on all
        rows; a validation row is touched by the choice and by the fit on all rows.
    Sensitivity
        That of the sum of clipped losses.
    Numerics
        Those of the nested mechanisms.

    References
    ----------
    McSherry & Talwar (2007) for the choice.
    """

    choice: Exponential

    kind: ClassVar[str] = "held-out-choice"
    reference: ClassVar[str] = "McSherry & Talwar (2007); parallel composition over disjoint rows"

    def __post_init__(self) -> None:
        object.__setattr__(self, "choice", _as_mechanism(self.choice, Exponential))
        _check_same(self, self.choice)
        super().__post_init__()
        counts = len(self.training), self.choice.candidates
        if counts != (self.candidates, self.candidates):
            allowed = f"{self.candidates} fits and a choice among as many"
            raise ParameterError(
                parameter_message("HeldOutChoice", "training, choice", allowed, counts)
            )

    @property
    def noise_scale(self) -> float:
        """The noise scale of the choice."""
        return self.choice.noise_scale

    def profile(self) -> PrivacyProfile:
        """Return the profile of the whole search."""
        again = self._refit_profiles()
        fits = [fit_profile(fit) for fit in self.training]
        return maximum([compose([*fits, *again]), compose([self.choice.profile(), *again])])

    def release(self, value: Callable[[NoiseSource], Any], noise: Noise) -> Any:
        """Return ``value(source)``, which makes all fits and the choice with noise from ``source``."""
        return value(self._claim(noise))


def _as_fit(fit: Iterable[Any]) -> Fit:
    return tuple(
        line
        if isinstance(line, Line)
        else Line(line["label"], _as_mechanism(line["mechanism"]), line["draws"], line["folds"])
        for line in fit
    )


def _as_mechanism(value: Any, kind: type[Mechanism] = Mechanism) -> Any:
    found = mechanism_from_dict(value) if isinstance(value, dict) else value
    if not isinstance(found, kind):
        allowed = f"a {kind.__name__} mechanism"
        raise ParameterError(
            parameter_message("Selection", "mechanism", allowed, type(found).__name__)
        )
    return found


def _check_same(selection: Any, score: Mechanism) -> None:
    if selection.sensitivity != score.sensitivity:
        raise ParameterError(
            f"The sensitivity of a {type(selection).__name__} must be that of its score."
        )
