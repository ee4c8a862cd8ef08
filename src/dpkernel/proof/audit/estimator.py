"""Audit an estimator: fit it many times to two neighbouring tables and try to tell them apart."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.utils.parallel import Parallel, delayed

from dpkernel.estimators.progress import Shown, watched
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, Neighbours, is_real, is_whole
from dpkernel.privacy.profiles import PrivacyProfile, PureProfile
from dpkernel.proof.audit.claims import (
    claim_for_replaced,
    claimed_delta,
    claimed_profile,
    declared_relation,
    replaced_in_words,
)
from dpkernel.proof.audit.copies import fixes_its_noise, fresh
from dpkernel.proof.audit.core import judge_scores
from dpkernel.proof.audit.observe import Filters, Layout, Observation, Runner
from dpkernel.proof.audit.releases import RELEASED
from dpkernel.proof.audit.report import AuditReport
from dpkernel.proof.audit.statistics import STATISTICS, Score, projection, separation
from dpkernel.proof.audit.worst_cases import WorstCase, worst_cases

_CHUNK = 25  # fits per task


def audit(
    estimator: Any,
    worst_case: str | tuple[Any, Any] = "auto",
    *,
    trials: int = 1000,
    confidence: float = 0.999,
    claim: PrivacyProfile | Budget | tuple[float, float] | None = None,
    delta: float | None = None,
    neighbours: str | Neighbours | None = None,
    statistic: str | Callable[[Any], Any] = "auto",
    n_rows: int = 8,
    n_columns: int | None = None,
    n_targets: int | None = None,
    records: int = 1,
    people: str = "",
    n_jobs: int | None = None,
    random_state: int | None = None,
    progress: bool = True,
) -> AuditReport:
    r"""Measure how much an estimator leaks, as a lower bound on epsilon.

    Parameters
    ----------
    estimator : object with ``fit``
        An estimator of dpkernel or of anybody else. It is copied; neither it nor its ledger is changed,
        and only its public interface is used. A fit that fails is an observation like any other, unless
        all fits to both data sets fail.
    worst_case : "auto", str or (D, D')
        Two neighbouring data sets, each a pair (X, y), where y is None for transformers. If all rows of
        a person are protected, each is (X, y, groups) with the ids of the people. "auto" makes
        several pairs from the declared bounds and classes and takes the one that shows most in a pilot.
        A name takes the built-in pair of that name. The built-in pairs differ in one replaced record, or
        in ``records`` of them.
    trials : int
        The number of judged fits to each of the two data sets. As many fits come before them to choose
        the attack, or half as many if the pair is given. They can prove at most an epsilon of about
        log(trials / 10).
    confidence : float
        The probability that a true claim is not contradicted, at least.
    claim : PrivacyProfile, Budget or (epsilon, delta), optional
        What is claimed; by default the profile of the estimator's ``certificate_``.
    delta : float, optional
        The delta at which epsilon is bounded; by default that of the claim.
    neighbours : {"replace-one", "zero-out", "add-remove"}, optional
        The neighbouring relation of the claim. By default it is that of the certificate, or what the
        estimator or its parts declare, or "replace-one". It is needed only if parts disagree.
    statistic : "auto", "projection", "logistic", "boosting" or callable
        How the released numbers become one score: by projection on the direction in which the two sides
        differ, by a learned classifier, or by your own function of the fitted estimator, for example a
        likelihood ratio. "auto" takes the one that did best on held-out pilot fits.
    n_rows, n_columns, n_targets : int
        The sizes of the built-in tables. The number of columns follows from the bounds, and is 1 if they
        do not say it. Without ``n_targets`` the targets are a vector.
    records : int
        How many records of a built-in pair are replaced at once. The tested claim is what the
        estimator's claim implies for that many steps. If epsilon is small, few fits tell more about a
        group of records than about one: the claim for the group allows more, but noise that is too small
        shows more clearly, in proportion to the size of the group.
    people : str
        How the rows of a person become one record: the ``record`` of ``People``.
        If it is given, the records of the built-in tables are people, and those who differ have one row
        in one table and 20 rows in the other.
    n_jobs : int, optional
        The number of processes, as in scikit-learn.
    random_state : int, optional
        Makes the audit repeatable, because noise and attack follow from it. By default the fits draw
        from the operating system, as they would in use. Two kinds of parts inside an estimator of
        another library always do: estimators of dpkernel, and parts with ``random_state=None``.
    progress : bool
        Whether to show how far the audit is, on a terminal or in a notebook.

    Returns
    -------
    AuditReport

    Notes
    -----
    Guarantee
        A true claim is called contradicted with probability at most 1 - confidence, and
        ``epsilon_lower`` exceeds the true epsilon at delta with at most that probability. This needs no
        assumption on the outputs. Pair, statistic and thresholds are chosen on fits that are not judged.
        The judged fits give exact Clopper-Pearson bounds, shared evenly among the thresholds.
    Not covered
        A claim that is not contradicted may still be wrong. Another pair, another statistic or more
        trials may show it.

    References
    ----------
    Jagielski, Ullman & Oprea (2020); Nasr et al. (2021) for the Gaussian view.

    Examples
    --------
    >>> from dpkernel import PrivateKernelRidge
    >>> from dpkernel.proof.audit import audit
    >>> model = PrivateKernelRidge(1.0, kernel="linear", bounds=(-1, 1), y_bounds=(-1, 1))
    >>> audit(model, "across the box", trials=20, random_state=0, progress=False).verdict
    'not contradicted'
    """
    _check(trials, confidence, statistic, n_rows, random_state)
    if not is_whole(records) or not 1 <= records < n_rows:
        allowed = f"an int from 1 to {n_rows - 1}, below the number of rows"
        raise ParameterError(parameter_message("audit", "records", allowed, records))
    bare = fresh(estimator)
    own = statistic if callable(statistic) else None
    runs = Runs(Runner(bare, own), n_jobs, random_state, progress)
    sizes = {"n_columns": n_columns, "n_targets": n_targets, "records": records, "people": people}
    cases = _cases(worst_case, bare, n_rows, sizes)
    fitted = _first_fit(runs.runner, cases[0])
    profile = claimed_profile(claim, fitted)
    how = "neighbours as given"
    if isinstance(worst_case, str):
        relation = declared_relation(bare, neighbours, fitted)
        profile = claim_for_replaced(profile, relation, records)
        how = replaced_in_words(relation, records)
    at = claimed_delta(delta, claim, bare)
    with runs:
        case, sides = _pilot(cases, trials, runs)
        pilot = runs.made // 2
        _refuse_failures(sides)
        layout = Layout.of([*sides[0], *sides[1]])
        _warn_if_fixed(bare, layout, sides)
        look = layout.scores if own is not None and layout.single else layout.rows
        known = layout.matched() if look == layout.rows else []
        name, score = _best_statistic(look(sides[0]), look(sides[1]), statistic, known)
        held_out = [look(side[1::2]) for side in sides]
        judged = [look(runs(case, side, trials)) for side in (False, True)]
    scores = score(judged[0]), score(judged[1])
    found = judge_scores(
        (score(held_out[0]), score(held_out[1])),
        scores,
        profile,
        delta=at,
        false_alarm=1 - confidence,
    )
    return AuditReport(
        type(estimator).__name__,
        "contradicted" if found.violated else "not contradicted",
        found.epsilon_lower,
        at,
        profile.epsilon(at),
        confidence,
        profile,
        how,
        f"{case.name}, {name}",
        trials,
        pilot,
        found.mu_lower,
        found.points,
        scores,
        n_rows=_n_rows(case),
        releases=_released_names(layout),
        pair=case.words,
    )


def _n_rows(case: WorstCase) -> int | None:
    X = case.table[0]
    return int(X.shape[0]) if hasattr(X, "shape") else None


def _released_names(layout: Layout) -> tuple[str, ...]:
    """Return the labels of the releases whose values the attack saw, in alphabetical order."""
    names = [name for name, _ in layout.sizes if name.startswith(RELEASED)]
    return tuple(name.removeprefix(RELEASED) for name in names)


def _check(trials: Any, confidence: Any, statistic: Any, n_rows: Any, seed: Any) -> None:
    if seed is not None and (not is_whole(seed) or seed < 0):
        raise ParameterError(
            parameter_message("audit", "random_state", "None or an int >= 0", seed)
        )
    if not is_whole(trials) or trials < 20:
        raise ParameterError(parameter_message("audit", "trials", "an int >= 20", trials))
    if not is_whole(n_rows) or n_rows < 2:
        raise ParameterError(parameter_message("audit", "n_rows", "an int >= 2", n_rows))
    if not is_real(confidence) or not 0 < confidence < 1:
        allowed = "a float in the range (0, 1)"
        raise ParameterError(parameter_message("audit", "confidence", allowed, confidence))
    if not callable(statistic) and statistic not in ("auto", *STATISTICS):
        names = ", ".join(repr(name) for name in ("auto", *STATISTICS))
        allowed = f"one of {names}, or a function of a fitted estimator"
        raise ParameterError(parameter_message("audit", "statistic", allowed, statistic))


def _first_fit(runner: Runner, case: WorstCase) -> Any:
    """Return a fitted copy. Raises the estimator's own error if neither table can be fitted."""
    try:
        return runner.fitted(case.table, None)
    except Exception:
        try:
            return runner.fitted(case.neighbour, None)
        except Exception:
            pass
        raise


def _refuse_failures(sides: Sequence[Sequence[Observation]]) -> None:
    """Raise if every fit to both tables failed."""
    if all("failed" in seen for side in sides for seen in side):
        kind, text = sides[0][0]["failed"]
        allowed = "an estimator that can be fitted to one of the two tables"
        raise ParameterError(parameter_message("audit", "estimator", allowed, f"{kind}: {text}"))


def _warn_if_fixed(bare: Any, layout: Layout, sides: Sequence[Sequence[Observation]]) -> None:
    """Warn if all fits look the same and a parameter may be the reason."""
    rows = [layout.rows(side) for side in sides]
    seed = fixes_its_noise(bare)
    if seed is None or not all(len(np.unique(each, axis=0)) == 1 for each in rows):
        return
    if layout.sizes and not np.array_equal(rows[0][0], rows[1][0]):
        warnings.warn(
            f"All fits of {type(bare).__name__} to one table look the same. If its parameter {seed!r}"
            " fixes the noise, the audit is about that seed and not about the mechanism. Leave it"
            " unset.",
            UserWarning,
            stacklevel=3,
        )


@dataclass
class Runs:
    """Makes many independent fits in processes, with seeds that never repeat and a progress bar."""

    runner: Runner
    n_jobs: int | None
    random_state: int | None
    progress: bool
    made: int = 0
    _shown: Shown | None = field(default=None, repr=False)
    _expected: int = 1
    _filters: dict[str, Filters] = field(default_factory=dict, repr=False)

    def __enter__(self) -> Runs:
        if self.progress and watched():
            self._shown = Shown()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.close()

    def expect(self, fits: int) -> None:
        """Set the number of fits, to tell how far the audit is."""
        self._expected = max(fits, 1)

    def __call__(self, case: WorstCase, neighbour: bool, count: int) -> list[Observation]:
        """Return what is seen in ``count`` fits to one of the two tables."""
        table = case.neighbour if neighbour else case.table
        if case.name not in self._filters:
            self._filters[case.name] = self.runner.filters(case.table, case.neighbour)
        filters = self._filters[case.name]
        tasks = [self._seeds(min(_CHUNK, count - start)) for start in range(0, count, _CHUNK)]
        found: list[Observation] = []
        before = self.made - count
        for seen in self._results(table, case.probes, tasks, filters):
            found += seen
            done = before + len(found)
            if self._shown is not None:
                text = f"auditing {done}/{self._expected}"
                self._shown.tell(min(done / self._expected, 1.0), text, ended=False)
        return found

    def _results(
        self, table: Any, probes: Any, tasks: Sequence[Sequence[int | None]], filters: Filters
    ) -> Iterator[list[Observation]]:
        if self.n_jobs in (None, 1):
            return (self.runner(table, probes, seeds, filters) for seeds in tasks)
        pool = Parallel(n_jobs=self.n_jobs, return_as="generator")
        results: Iterator[list[Observation]] = pool(
            delayed(self.runner)(table, probes, seeds, filters) for seeds in tasks
        )
        return results

    def _seeds(self, count: int) -> list[int | None]:
        before, self.made = self.made, self.made + count
        if self.random_state is None:
            return [None] * count
        start = int(self.random_state) * 10_000_019 + before
        return [start + i for i in range(count)]


def _cases(
    worst_case: Any, estimator: Any, n_rows: int, sizes: dict[str, Any]
) -> Sequence[WorstCase]:
    """Return the given pair, or the built-in pairs."""
    if not isinstance(worst_case, str):
        try:
            one, other = (tuple(table) for table in worst_case)
            if {len(one), len(other)} not in ({2}, {3}):
                raise ValueError("not two pairs, nor two triples")
        except (TypeError, ValueError):
            allowed = "'auto' or a pair of data sets ((X, y), (X', y'))"
            got = type(worst_case).__name__
            raise ParameterError(parameter_message("audit", "worst_case", allowed, got)) from None
        return [WorstCase("the given pair", one, other)]
    cases = worst_cases(estimator, n_rows, **sizes)
    found = [case for case in cases if worst_case in ("auto", case.name)]
    if not found:
        names = ", ".join(repr(case.name) for case in cases)
        allowed = f"'auto', one of {names}, or a pair of data sets ((X, y), (X', y'))"
        raise ParameterError(parameter_message("audit", "worst_case", allowed, worst_case))
    return found


def _pilot(
    cases: Sequence[WorstCase], trials: int, runs: Runs
) -> tuple[WorstCase, list[list[Observation]]]:
    """Return the case whose sides are farthest apart, and what was seen on both of its sides.

    Every case gets a few fits, the best two get more, and the best one gets as many again.
    """
    few, more = max(min(20, max(8, trials // 8)), trials // 20), max(10, trials // 4)
    alone = len(cases) == 1
    runs.expect(2 * (trials + (2 * more if alone else len(cases) * few + 3 * more)))
    if alone:
        return cases[0], [runs(cases[0], side, 2 * more) for side in (False, True)]
    seen = {i: [runs(case, side, few) for side in (False, True)] for i, case in enumerate(cases)}

    def apart(index: int) -> float:
        layout = Layout.of([*seen[index][0], *seen[index][1]])
        p, q = (layout.rows(side) for side in seen[index])
        known = layout.matched()
        single = separation(p[:, known], q[:, known]) if known else -math.inf
        return max(separation(p, q), single)

    def look_again(index: int) -> None:
        for side in (False, True):
            seen[index][side] += runs(cases[index], side, more)

    best = sorted(seen, key=apart)[-2:]
    for index in best:
        look_again(index)
    winner = max(best, key=apart)
    look_again(winner)
    return cases[winner], seen[winner]


def _best_statistic(
    p: Array, q: Array, statistic: str | Callable[[Any], Any], known: list[int]
) -> tuple[str, Score]:
    """Fit each statistic to every second row, and return the one that does best on the others.

    ``known`` are the positions of the released values along the directions in which they move.
    """
    if callable(statistic):
        name = "own statistic"
        if p.ndim == 1:  # a single number is itself the score, even if it is not finite
            return name, lambda scores: scores
        names = ["projection"]
    else:
        names = list(STATISTICS) if statistic == "auto" else [statistic]
        name = ""
    fitted = {kind: STATISTICS[kind](p[::2], q[::2]) for kind in names}
    if known and not callable(statistic):
        along = projection(p[::2, known], q[::2, known])
        fitted["released values along their moves"] = lambda rows: along(rows[:, known])

    def promise(kind: str) -> float:
        score = fitted[kind]
        plain = judge_scores(
            (score(p[1::2]), score(q[1::2])),
            (score(p[1::2]), score(q[1::2])),
            PureProfile(0.0),
            delta=0.0,
            false_alarm=0.05,
        )
        return plain.mu_lower

    best = max(fitted, key=promise)
    return name or best, fitted[best]
