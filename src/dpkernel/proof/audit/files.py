"""Audit the model in a file, by repeating its fit on made-up rows.

What a fit releases follows from public numbers: the number of rows and columns, epsilon, delta, the
neighbours and the parameters. A model file holds all of them. The audited estimator is built from the
file and fitted to made-up rows. Before anything is attacked, the releases of such a fit are compared
with the certificate. If they differ, the audit is refused, because it would be about another fit. If the
model protects people with all their rows, the made-up rows are those of people.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from dpkernel.estimators.cell_counts import LABEL
from dpkernel.foundations.errors import DPKernelError, ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Neighbours, is_real, is_whole
from dpkernel.outputs.model_file import load, read_header
from dpkernel.privacy.certificate import Certificate, Release
from dpkernel.privacy.profiles import PrivacyProfile
from dpkernel.proof.audit.claims import claim_for_replaced
from dpkernel.proof.audit.copies import fresh
from dpkernel.proof.audit.estimator import audit
from dpkernel.proof.audit.observe import Runner
from dpkernel.proof.audit.report import AuditReport
from dpkernel.proof.audit.worst_cases import worst_cases

_SMALL = (
    20_000  # from this many rows on, estimators compute in float32; smaller tables stay above it
)
_SLOW = 3.0  # if a fit takes more seconds than this, a smaller table is tried
_SECONDS = 120.0  # that the fits of an audit may take together, on each process
_FEWEST, _MOST = 60, 1000  # limits on the number of trials
_FITS = 5.2  # fits of an audit per trial: both sides and the choice of the attack
_ADVANTAGE = (
    0.6  # largest advantage under the claim for a group of records; few trials can exceed it
)
# numbers in recipes that may have been computed from the data, by noisy releases
_RELEASED = (
    "centre", "mean", "covariance", "low", "high", "shares", "correlation", "components", "metric",
)  # fmt: skip
_EQUAL, _CLOSE = 1e-6, 1e-2  # relative difference allowed at the same size, and at another size


@dataclass(frozen=True)
class Subject:
    """An estimator that may repeat the fit of a model file, and the sizes of that fit."""

    estimator: Any
    certificate: Certificate
    n_rows: int
    n_columns: int
    n_targets: int | None = None
    people: str = ""  # how the rows of a person become one record; "" if records are rows

    def differences(self, n_rows: int) -> tuple[list[str], float]:
        """Return in words how a fit to this many rows differs from the plan, and its seconds."""
        columns, targets = self.n_columns, self.n_targets
        try:
            cases = worst_cases(
                self.estimator, n_rows, columns, n_targets=targets, people=self.people
            )
            start = time.perf_counter()
            found = Runner(fresh(self.estimator)).fitted(cases[0].table, None).certificate_
        except (DPKernelError, ValueError) as error:
            return [f"it can't be fitted to made-up rows ({error})"], math.inf
        seconds = time.perf_counter() - start
        same_size = n_rows == self.n_rows
        return plan_differences(self.certificate, found, same_size=same_size), seconds


def audit_file(
    path: str | Path,
    *,
    trials: int | None = None,
    confidence: float = 0.999,
    n_rows: int | None = None,
    records: int | None = None,
    n_jobs: int | None = None,
    random_state: int | None = None,
    progress: bool = True,
) -> AuditReport:
    """Audit the fit of the model in a file, with ``audit`` and the settings of the file.

    Parameters
    ----------
    path : str or Path
        A model file. Its coefficients are not used, because the fits are to made-up rows.
    trials : int, optional
        The number of judged fits on each side. By default it is as many as take about two minutes, from
        60 to 1,000.
    n_rows : int, optional
        The number of made-up rows. By default it is the number of rows that the model was fitted to. If
        such a fit takes long, it is the smallest of its halves, quarters and so on that makes the same
        releases, and the report says so. A size that makes other releases is refused.
    records : int, optional
        How many records differ between the two tables. By default it is as many as leave an attacker an
        advantage of at most 0.6 under the claim. If epsilon is small, few fits show more about a group
        than about one record.
    confidence, n_jobs, random_state, progress
        The same as in ``audit``.

    Returns
    -------
    AuditReport

    Raises
    ------
    ParameterError
        If no fit to made-up rows makes the releases that the certificate of the file lists.
    """
    subject, rows, seconds, words = subject_of(path, n_rows)
    profile, relation = subject.certificate.profile, subject.certificate.neighbours
    group = group_size(profile, relation, rows) if records is None else records
    jobs = (os.cpu_count() or 1) if n_jobs == -1 else max(n_jobs or 1, 1)
    affordable = int(_SECONDS * jobs / (_FITS * seconds))
    found = audit(
        subject.estimator,
        trials=min(max(affordable, _FEWEST), _MOST) if trials is None else trials,
        confidence=confidence,
        n_rows=rows,
        n_columns=subject.n_columns,
        n_targets=subject.n_targets,
        records=group,
        people=subject.people,
        n_jobs=n_jobs,
        random_state=random_state,
        progress=progress,
    )
    labels = [release.label for release in subject.certificate.releases]
    unseen = sorted(set(labels) - set(found.releases))
    if unseen:
        words.append(f"The attack can't see the release {', '.join(unseen)} on its own.")
    ordered = tuple(label for label in labels if label in found.releases)
    return replace(found, setting=tuple(words), releases=ordered)


def subject_of(
    path: str | Path, n_rows: int | None = None
) -> tuple[Subject, int, float, list[str]]:
    """Return the estimator that repeats the fit of a file, its number of rows, its seconds, and words.

    Every size is fitted once, and the releases of that fit are compared with the certificate.
    """
    choices = _choices(path)
    whole, certificate = choices[0].n_rows, choices[0].certificate
    if n_rows is not None:
        if not is_whole(n_rows) or not 2 <= n_rows <= whole:
            allowed = f"an int from 2 to the {whole} rows of the model"
            raise ParameterError(parameter_message("audit_file", "n_rows", allowed, n_rows))
        sizes = [int(n_rows)]
    else:
        sizes = [whole]
        while sizes[0] >= 2 * _SMALL:
            sizes.insert(0, sizes[0] // 2)
    why: list[str] = []
    for rows in sizes:
        found = _match(choices, rows)
        if isinstance(found, list):
            why = found
            continue
        subject, seconds = found
        expected, reason = seconds * whole / rows, "as asked"
        if n_rows is None and rows < whole:
            reason = f"because a fit of {whole} rows would take about {expected:.0f} seconds"
            same = _match(choices, whole) if expected <= _SLOW else []
            if not isinstance(same, list):
                (subject, seconds), rows = same, whole
        return subject, rows, seconds, _words(subject, rows, reason)
    size = f"{sizes[-1]} made-up rows"
    counted = any(r.label.endswith(f": {LABEL}") for r in certificate.releases)
    advice = " A pipeline can be audited if it was fitted with --no-counts." if counted else ""
    raise ParameterError(
        f"{Path(path).name} can't be audited, because a fit to {size} does not make the releases of its"
        f" certificate ({', '.join(r.label for r in certificate.releases)}). {'; '.join(why)}.{advice}"
    )


def _match(choices: Sequence[Subject], rows: int) -> tuple[Subject, float] | list[str]:
    """Return the first choice whose fit to this many rows follows the plan, or else the differences."""
    reasons: list[str] = []
    for subject in choices:
        found, seconds = subject.differences(rows)
        if not found:
            return subject, seconds
        reasons = reasons or found
    return reasons


def _choices(path: str | Path) -> list[Subject]:
    """Return the possible readings of the parameters in a file, the most likely first."""
    header, model, name = read_header(path), load(path), Path(path).name
    certificate: Certificate | None = getattr(model, "certificate_", None)
    if certificate is None:
        raise ParameterError(f"{name} can't be audited, because nothing was released for it.")
    public = certificate.public
    rows: Any = public.get("n_places", public.get("n_units", public.get("n_rows")))
    if not is_whole(rows) or rows < 2:
        raise ParameterError(f"{name} can't be audited, because it states no number of rows.")
    people = public.get("unit_record", "all") if certificate.unit == "group" else ""
    people = "all" if people == "mean gradient" else people
    # several columns of coefficients belong to several targets, or to quantiles or classes of one target
    targets = [None, *np.shape(getattr(model, "coef_", 0.0))[1:]]
    beside = public.get(LABEL)
    if isinstance(beside, dict) and is_real(beside.get("epsilon_of_the_rest")):
        # made-up rows have no missing cells: the audit repeats the fit without the counts beside it
        header = {**header, "request": {**header.get("request", {})}}
        header["request"]["epsilon"] = beside["epsilon_of_the_rest"]
        rest = tuple(release for release in certificate.releases if release.label != LABEL)
        certificate = replace(certificate, releases=rest)
    return [
        Subject(estimator, certificate, int(rows), int(model.n_features_in_), count, people)
        for estimator in _rebuilt(model, header)
        for count in targets
    ]


def _rebuilt(model: Any, header: JSON) -> Iterator[Any]:
    """Yield unfitted estimators: with the parameters that were given, and with those of the feature map.

    Files hold the parameters that are numbers and texts. A kernel or length scales of another kind are
    read from the feature map in the file. Files of earlier versions do not hold the requested budget.
    """
    stated = header.get("parameters", {})
    request = {**stated, **header.get("request", {})}
    budget = {name: request[name] for name in ("epsilon", "delta") if is_real(request.get(name))}
    loaded = clone(model).set_params(ledger=None, **budget)
    names = set(loaded.get_params(deep=False)) - {"ledger", "noise", "verbose", *budget}
    given = {name: value for name, value in stated.items() if name in names}
    if not {"kernel", "length_scale"} <= set(given):
        given.pop("features", None)
    if given:
        yield clone(loaded).set_params(**given)
    yield loaded
    inner = getattr(getattr(loaded, "features", None), "base", None)
    if inner is not None:  # the map of a classifier wraps the one that was given
        yield clone(loaded).set_params(features=inner)


def plan_differences(stated: Certificate, found: Certificate, *, same_size: bool) -> list[str]:
    """Return in words how the releases of two certificates differ; an empty list if they agree.

    At the same number of rows, every number of every mechanism must agree. At another number of rows,
    the labels, kinds, draws, dimensions and the privacy of each release must agree.
    """
    if stated.neighbours is not found.neighbours:
        return [f"the neighbours are {found.neighbours.value}, not {stated.neighbours.value}"]
    labels = [[r.label for r in c.releases] for c in (stated, found)]
    if labels[0] != labels[1]:
        return [f"it releases {', '.join(labels[1])}"]
    maps = [_public_part(c.public.get("feature_map")) for c in (stated, found)]
    changed = [] if _agree(*maps) else ["its feature map is another one"]
    for one, other in zip(stated.releases, found.releases, strict=True):
        values = one.to_dict(), other.to_dict()
        names = set(values[0]) if same_size else {"kind", "draws", "folds", "dimension"}
        if any(not _agree(values[0].get(name), values[1].get(name)) for name in names):
            changed.append(f"the release {one.label!r} has another mechanism")
        elif not _as_private(one, other):
            changed.append(f"the release {one.label!r} has another privacy")
    return changed


def _public_part(feature_map: Any) -> Any:
    """Return the recipe of a feature map without the released numbers in it."""
    if not isinstance(feature_map, dict):
        return feature_map
    return {k: _public_part(v) for k, v in feature_map.items() if k not in _RELEASED}


def _as_private(one: Release, other: Release) -> bool:
    """Whether two releases have nearly the same profile."""
    found = [r.mechanism.profile().repeat(r.draws).delta(0.0) for r in (one, other)]
    return abs(found[0] - found[1]) <= _CLOSE * max(found)


def _agree(one: Any, other: Any) -> bool:
    """Whether two JSON values agree. Numbers must agree to the digits of a certificate's epsilon."""
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(_agree(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_agree, one, other))
    if is_real(one) and is_real(other):
        return bool(abs(one - other) <= _EQUAL * max(abs(one), abs(other)))
    return bool(one == other)


def _words(subject: Subject, rows: int, reason: str) -> list[str]:
    stated, units = subject.certificate, "people" if subject.people else "rows"
    what = "people with rows" if subject.people else "rows"
    of_file = (
        f"model file: fitted to {subject.n_rows} {what} of {subject.n_columns} column(s),"
        f" {stated.neighbours.value} neighbours, epsilon = {stated.epsilon:.6g} at delta ="
        f" {stated.delta:g}; its data and coefficients are not used"
    )
    if rows == subject.n_rows:
        return [of_file, f"audited plan: the same number of {units}, the same releases and noise"]
    return [
        of_file,
        f"audited plan: {rows} {units} instead of {subject.n_rows}, {reason}; the same releases with"
        " the same privacy of each",
    ]


def group_size(profile: PrivacyProfile, relation: Neighbours, n_rows: int) -> int:
    """Return the largest number of records for which the claim allows an advantage of at most 0.6."""
    size, step = 1, 1
    while size + step <= n_rows // 4:
        if claim_for_replaced(profile, relation, size + step).delta(0.0) > _ADVANTAGE:
            break
        size, step = size + step, max(1, (size + step) // 3)
    return size
