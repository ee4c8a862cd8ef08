"""Attack every estimator with every solver and neighbouring relation, and a broken twin of each.

Each estimator is attacked among benign records, which do not affect the result, and among hostile ones,
which are copies of the neighbour or lie at the opposite corner. Some are attacked again on tables that
are so large that the fit computes in float32. The twin draws only a small part of the noise that its
certificate states (``WeakNoise``), or is calibrated for a far larger epsilon. To add an estimator, add a
line to ``_estimators``. There are no lines for removed records ("add-remove"): a table of places is
fitted like one of rows under zero-out (``data/places.py``), and the tests remove records from it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from sklearn.base import clone

from dpkernel.estimators import (
    PrivateCurator,
    PrivateHuberRegressor,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateKernelSVC,
    PrivateKernelSVR,
    PrivateQuantileRegressor,
    PrivateSGDClassifier,
    PrivateSGDRegressor,
    PrivateSketchedRidge,
)
from dpkernel.methods import PrivateGridRegressor
from dpkernel.preprocessing import (
    PrivateBounds,
    PrivateImputer,
    PrivateMinMaxScaler,
    PrivatePCA,
    PrivatePipeline,
    PrivateStandardScaler,
)
from dpkernel.privacy import mechanisms
from dpkernel.privacy.profiles import PrivacyProfile
from dpkernel.proof.audit.cases import all_cases
from dpkernel.proof.audit.copies import fresh
from dpkernel.proof.audit.core import Case
from dpkernel.proof.audit.estimator import audit
from dpkernel.proof.audit.observe import Runner
from dpkernel.proof.audit.twins import WeakNoise
from dpkernel.proof.audit.worst_cases import worst_cases
from dpkernel.selection import PrivateSearchCV

_DELTA = 1e-5
# the share of epsilon for one step; a replaced record is one step of replace-one and two of zero-out
RELATIONS = {"replace-one": 1.0, "zero-out": 0.5}
_LEAST = {"replace-one": 4.0, "zero-out": 3.0}  # least epsilon of a transformer, for few rows
_LOOSE = 1e4  # the epsilon of a twin whose noise is not added number by number


@dataclass(frozen=True)
class AttackLine:
    """One estimator under attack."""

    name: str
    estimator: Any
    case: str  # the name of a built-in pair
    relation: str
    background: str  # the other records: "benign", "hostile", or "large" for many hostile ones
    n_rows: int = 8
    broken: str | None = None
    claimed_by: Any = None  # the estimator whose certificate a twin claims, if not its own
    most_fits: int = 1_000_000  # fits on each side
    least_fits: int = 0

    @property
    def has_picture(self) -> bool:
        """Whether the line has a plot. There is one per estimator and relation, and one for its twin."""
        return self.background == "benign" or self.name in _SLOW

    def claim(self) -> PrivacyProfile | None:
        """Return the claim, if it is not that of the certificate."""
        if self.claimed_by is None:
            return None
        case = worst_cases(self.claimed_by, self.n_rows)[0]
        profile: PrivacyProfile = (
            Runner(fresh(self.claimed_by)).fitted(case.table, None).certificate_.profile
        )
        return profile


@dataclass(frozen=True)
class Row:
    """One line of the resulting table."""

    kind: str
    case: str
    relation: str
    broken: str
    verdict: str
    as_it_should_be: bool
    epsilon_lower: float
    claimed_epsilon: float
    delta: float
    mu_lower: float
    trials: int
    false_alarm: float
    attack: str
    seconds: float
    n_rows: int = 0  # rows of an estimator's tables


def _estimators() -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the estimator and the benign pair that shows most, for replace-one."""
    signed: dict[str, Any] = {"accept": (mechanisms.IDEALISED,)}
    stated: dict[str, Any] = {"delta": _DELTA, "bounds": (-1, 1)}
    linear = {**stated, "kernel": "linear"}
    real, labels = {**linear, "y_bounds": (-1, 1)}, {**linear, "classes": [0, 1]}
    pure = {**labels, **signed, "delta": 0.0}
    pure_real = {**real, **signed, "delta": 0.0}
    curved = {**stated, "y_bounds": (-1, 1), "n_features": 3}
    far, near, across = "opposite targets", "all at one corner", "across the box"
    yield "ridge", PrivateKernelRidge(**real), across
    yield "ridge, two folds", PrivateKernelRidge(**real, folds=2), across
    yield "ridge, Gaussian kernel", PrivateKernelRidge(**curved), far
    yield "ridge, output", PrivateKernelRidge(**real, solver="output"), far
    yield "regressor", PrivateKernelRegressor(**real), far
    yield "quantiles, objective", PrivateQuantileRegressor(**real), near
    yield "quantiles, output", PrivateQuantileRegressor(**real, solver="output"), far
    yield "Huber, objective", PrivateHuberRegressor(**real), near
    yield "Huber, output", PrivateHuberRegressor(**real, solver="output"), far
    yield "classifier, objective", PrivateKernelClassifier(**labels), across
    yield "classifier, objective, pure", PrivateKernelClassifier(**pure), across
    yield "classifier, output", PrivateKernelClassifier(**labels, solver="output"), across
    yield "classifier, output, pure", PrivateKernelClassifier(**pure, solver="output"), across
    yield "support vectors, real", PrivateKernelSVR(**real), far
    yield "support vectors, real, pure", PrivateKernelSVR(**pure_real), far
    yield "support vectors, classes", PrivateKernelSVC(**labels), across
    yield "support vectors, classes, pure", PrivateKernelSVC(**pure), across
    yield "sketched ridge", PrivateSketchedRidge(**real, **signed), far
    yield "SGD, gradients", PrivateSGDRegressor(**real, max_iter=2), far
    yield "SGD, output", PrivateSGDRegressor(**real, perturbation="output"), far
    yield "SGD, classes, gradients", PrivateSGDClassifier(**labels, max_iter=2), across
    yield (
        "SGD, classes, output",
        PrivateSGDClassifier(**labels, perturbation="output", max_iter=2),
        across,
    )
    yield "curator", PrivateCurator(**stated, **signed, y_bounds=(-1, 1)), far
    yield "grid", PrivateGridRegressor(**stated, **signed, y_bounds=(-1, 1), side=3), far
    out = "outside the bounds"
    yield "bounds", PrivateBounds(**stated), out
    yield "min-max scaler", PrivateMinMaxScaler(**stated), out
    yield "standard scaler", PrivateStandardScaler(**stated), out
    yield "imputer", PrivateImputer(**stated, strategy="mean"), out
    yield "components", PrivatePCA(**{**stated, "bounds": ([-1, -1], [1, 1])}), out
    steps = [
        ("scale", PrivateMinMaxScaler(bounds=(-1, 1))),
        ("model", PrivateKernelRidge(kernel="linear", bounds=(0, 1), y_bounds=(-1, 1))),
    ]
    yield "pipeline", PrivatePipeline(steps, delta=_DELTA), far
    searched = PrivateKernelRidge(kernel="linear", bounds=(-1, 1), y_bounds=(-1, 1))
    for strategy in ("free", "exponential"):
        search = PrivateSearchCV(
            searched, {"regularisation": [0.1, 10.0]}, delta=_DELTA, strategy=strategy
        )
        yield f"search, {strategy}", search, far


# estimators whose noise follows from a key that is drawn once, or multiplies the data
_NOT_ADDED = ("curator", "grid", "sketched ridge")
_ROWS = {
    "imputer": 40,
    "search, free": 40,
    "search, exponential": 150,
}  # with fewer rows nothing is learned
_SLOW = ("search, exponential", "search, free", "regressor")  # benign or hostile records, not both
# with 40 or 60 fits, their twins among hostile records were not always found
_LEAST_FITS = {"search, exponential": 160, "support vectors, classes, pure": 160}
_LARGE = 20_000  # from this many rows on, fits compute in float32
_LARGE_FITS = 50
_AT_LARGE = (
    "ridge, Gaussian kernel",
    "regressor",
    "quantiles, objective",
    "classifier, objective",
    "SGD, gradients",
)


@cache
def estimator_lines(epsilon: float, factor: float) -> tuple[AttackLine, ...]:
    """Return every estimator under every relation and background, and its twins.

    A twin follows the line that it belongs to. There are twins among benign records for replace-one, and
    among hostile and among many records for zero-out.
    """
    lines: list[AttackLine] = []
    for name, estimator, benign in _estimators():
        transforms = hasattr(estimator, "transform")
        hostile = "the other end of all" if transforms else "copies of the neighbour"
        relates = "neighbours" if hasattr(estimator, "neighbours") else "estimator__neighbours"
        for relation, share in RELATIONS.items():
            wanted = max(share * epsilon, _LEAST[relation] if transforms else 0.0)
            sound = clone(estimator).set_params(**{relates: relation}, epsilon=wanted)
            rows, least = _ROWS.get(name, 8), _LEAST_FITS.get(name, 0)
            quiet = AttackLine(name, sound, benign, relation, "benign", rows, least_fits=least)
            loud = replace(quiet, case=hostile, background="hostile")
            replaced = relation == "replace-one"
            if replaced or name not in _SLOW:
                lines += _pair(quiet, factor) if replaced else [quiet]
            if not replaced or name not in _SLOW:
                lines += [loud] if replaced else _pair(loud, factor)
            if name in _AT_LARGE:
                large = replace(loud, background="large", n_rows=_LARGE, most_fits=_LARGE_FITS)
                lines += [large] if replaced else _pair(large, factor)
    return tuple(lines)


def _pair(line: AttackLine, factor: float) -> list[AttackLine]:
    """Return a line and its twin."""
    if line.name in _NOT_ADDED:
        twin = clone(line.estimator).set_params(epsilon=_LOOSE)
        what, by = f"noise of epsilon {_LOOSE:g}", line.estimator
    else:
        twin = clone(line.estimator).set_params(noise=WeakNoise(factor))
        what, by = f"{factor:g} of the noise", None
    return [line, replace(line, estimator=twin, broken=what, claimed_by=by)]


@cache
def _mechanism_cases() -> tuple[Case, ...]:
    return tuple(all_cases())


def mechanism_row(index: int, trials: int, false_alarm: float) -> Row:
    """Attack one mechanism, or a twin of it."""
    case = _mechanism_cases()[index]
    start = time.perf_counter()
    found = case.audit(trials, false_alarm=false_alarm)
    return Row(
        "mechanism",
        case.name,
        case.mechanism.sensitivity.neighbours.value,
        case.broken or "",
        _verdict(found.violated),
        found.violated == (case.broken is not None),
        found.epsilon_lower,
        case.claim.epsilon(found.delta),
        found.delta,
        found.mu_lower,
        trials,
        false_alarm,
        "worst input, best score",
        time.perf_counter() - start,
    )


def estimator_row(
    index: int,
    trials: int,
    false_alarm: float,
    out: Path | None = None,
    *,
    epsilon: float,
    factor: float,
) -> Row:
    """Attack one estimator or its twin, and save its plot in a folder."""
    line = estimator_lines(epsilon, factor)[index]
    trials = max(min(trials, line.most_fits), line.least_fits)
    start = time.perf_counter()
    report = audit(
        line.estimator,
        line.case,
        trials=trials,
        confidence=1 - false_alarm,
        claim=line.claim(),
        statistic=_moments if line.name == "sketched ridge" else "projection",
        delta=_DELTA if line.estimator.delta else 0.0,
        n_rows=line.n_rows,
        progress=False,
    )
    if out is not None and line.has_picture:
        report.plot(out / f"{picture_name(line)}.png")
    return Row(
        "estimator",
        line.name,
        line.relation,
        line.broken or "",
        _verdict(report.contradicted),
        report.contradicted == (line.broken is not None),
        report.epsilon_lower,
        report.claimed_epsilon,
        report.delta,
        report.mu_lower,
        trials,
        false_alarm,
        f"{report.attack} ({line.background})",
        time.perf_counter() - start,
        line.n_rows,
    )


def _moments(model: Any) -> Any:
    """Return the second moments of a sketch. Its rows are normal, so these contain all information."""
    return model.sketch_.T @ model.sketch_


def _verdict(violated: bool) -> str:
    return "contradicted" if violated else "not contradicted"


def picture_name(line: AttackLine) -> str:
    """Return the file name of a line's plot, without its ending."""
    twin = "" if line.broken is None else "-twin"
    name = "-".join(line.name.replace(",", "").split()).lower()
    return f"{name}-{line.relation}-{line.background}{twin}"
