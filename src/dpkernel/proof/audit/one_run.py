"""Audit with one training run. A coin decides for each of many canaries whether it is in the data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom
from sklearn.base import is_classifier

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, Budget, Neighbours, is_real, is_whole
from dpkernel.privacy.profiles import PrivacyProfile
from dpkernel.privacy.profiles.base import bisect
from dpkernel.proof.audit.claims import (
    claim_for_replaced,
    claimed_delta,
    claimed_profile,
    declared_relation,
    replaced_in_words,
)
from dpkernel.proof.audit.copies import fresh
from dpkernel.proof.audit.observe import Runner, Table
from dpkernel.proof.audit.report import NOTE
from dpkernel.proof.audit.worst_cases import PublicRanges


def one_run_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    r"""Return a bound on the probability of this many correct guesses under (epsilon, delta)-DP.

    For m canaries with fair coins, r guesses and W ~ Binomial(r, q), q = e^eps / (1 + e^eps):

        P(at least v correct) <= P(W >= v) + 2 m delta max_{1 <= i <= v} P(v - i <= W < v) / i.

    Parameters
    ----------
    canaries, guesses, correct : int
        m, r and v: the number of canaries, of guesses, and of right guesses.
    epsilon, delta : float
        The claim that is tested.

    Returns
    -------
    float
        The bound, at most 1.

    Notes
    -----
    Guarantee
        The bound holds for every attacker that fixes r beforehand, sees the released model and knows
        everything except the coins. Two data sets whose coins differ in one place are neighbours. The
        sum is a bound for v above the mean r q; for smaller v the returned bound is 1.
    Numerics
        Binomial probabilities are summed in float64, with a relative error of about 1e-12.

    References
    ----------
    Steinke, Nasr & Jagielski (2023), Theorem 5.2 and Appendix D.
    """
    _check_counts("one_run_p_value", canaries, guesses, correct)
    if not is_real(epsilon) or not 0 <= epsilon < math.inf:
        allowed = "a float in the range [0, inf)"
        raise ParameterError(parameter_message("one_run_p_value", "epsilon", allowed, epsilon))
    _check_delta("one_run_p_value", delta)
    accuracy = 1 / (1 + math.exp(-epsilon))
    if not correct > guesses * accuracy:
        return 1.0
    tail = float(binom.sf(correct - 1, guesses, accuracy))
    if delta == 0:
        return min(1.0, tail)
    below = np.cumsum(binom.pmf(correct - np.arange(1, correct + 1), guesses, accuracy))
    worst = float(np.max(below / np.arange(1, correct + 1)))
    return min(1.0, tail + 2 * canaries * delta * worst)


def one_run_epsilon(
    canaries: int, guesses: int, correct: int, *, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Return the largest epsilon that this many correct guesses exclude, rounded down.

    Parameters
    ----------
    canaries, guesses, correct : int
        The number of canaries, of guesses, and of right guesses.
    delta : float
        The delta of the claim.
    confidence : float
        The confidence of the bound.

    Returns
    -------
    float

    Examples
    --------
    >>> round(one_run_epsilon(1000, 100, 75, delta=1e-4), 3)
    0.673
    """
    _check_counts("one_run_epsilon", canaries, guesses, correct)
    _check_delta("one_run_epsilon", delta)
    _check_confidence("one_run_epsilon", confidence)
    level = 1 - confidence

    def excluded(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, correct, epsilon, delta) < level

    if not excluded(0.0):
        return 0.0
    high = 1.0
    while excluded(high):
        high *= 2
    return bisect(excluded, 0.0, high, 1e-9)[0]


@dataclass(frozen=True)
class OneRunReport:
    """The result of an audit with one run.

    Attributes
    ----------
    verdict : {"contradicted", "not contradicted"}
        Whether the guesses contradict the claim.
    epsilon_lower : float
        A lower bound on epsilon at ``delta``, with this ``confidence``.
    claimed_epsilon : float
        The epsilon that is claimed at ``delta``.
    canaries, guesses, correct : int
        The number of canaries, of guesses, and of right guesses.
    relation : str
        A text that says how two data sets differ if their coins differ in one place.
    """

    estimator: str
    verdict: str
    epsilon_lower: float
    delta: float
    claimed_epsilon: float
    confidence: float
    canaries: int
    guesses: int
    correct: int
    relation: str

    @property
    def contradicted(self) -> bool:
        """Whether the guesses contradict the claim."""
        return self.verdict == "contradicted"

    def __str__(self) -> str:
        return "\n".join(
            (
                f"{self.estimator}: {self.verdict}.",
                f"  epsilon >= {self.epsilon_lower:.3f} at delta = {self.delta:g}, with confidence"
                f" {self.confidence:g}; claimed: {self.claimed_epsilon:.3f}"
                + (": a violation" if self.contradicted else ""),
                f"  one run: {self.correct} of {self.guesses} guesses right, about"
                f" {self.canaries} canaries; {self.relation}",
                f"  {NOTE}",
            )
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the report as JSON text, and also write it to a file if ``path`` is given."""
        values: JSON = {**asdict(self), "note": NOTE}
        text = json.dumps(values, indent=1, allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text


def audit_one_run(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    canaries: Table,
    otherwise: Table | None = None,
    guesses: int | None = None,
    score: Callable[[Any, Any, Any], Any] | None = None,
    confidence: float = 0.95,
    claim: PrivacyProfile | Budget | tuple[float, float] | None = None,
    delta: float | None = None,
    neighbours: str | Neighbours | None = None,
    random_state: int | None = None,
) -> OneRunReport:
    r"""Bound epsilon from below with a single fit, for models that take too long to be fitted often.

    For each canary, a fair coin decides whether it is put among the rows or left out. A score says how
    well the fitted model knows each canary. The attack guesses "in" or "out" where the score is
    clearest, and makes no guess about the rest.

    Parameters
    ----------
    estimator : object with ``fit`` and ``predict``
        The estimator to audit. It is copied; neither it nor its ledger is changed.
    X, y : arrays
        The other rows. Use made-up or public ones, because an audit protects nobody. Without targets, as
        for transformers, ``score`` must be given.
    canaries : (X, y)
        Records that are easy to recognise: unusual rows with unlikely targets. y is None if there are no
        targets.
    otherwise : (X, y), optional
        What takes the place of a canary that is left out: one row per canary, or one row for all. By
        default it is the centre of the declared bounds. The opposite target makes the strongest attack.
        If the estimator protects removed records ("add-remove"), nothing takes the place of a canary.
    guesses : int, optional
        The number of canaries about which a guess is made, fixed beforehand; by default half of them.
    score : callable, optional
        score(model, X, y) returns one number per canary, larger if it looks like a member. If both signs
        occur, 0 separates "in" and "out"; otherwise the middle of the scores does. By default it is the
        margin of a canary's class, or the negative error of its prediction, minus the same number for
        the target that would take its place.
    confidence, claim, delta, neighbours
        The same as in ``audit``.
    random_state : int, optional
        Makes coins and noise repeatable. Both follow from it, in separate streams.

    Returns
    -------
    OneRunReport

    Notes
    -----
    Guarantee
        A true claim is contradicted with probability at most 1 - confidence. Data sets that differ in
        one coin are neighbours: a record is replaced by a fixed one (replace-one), or it is removed
        (add-remove). For zero-out, replacing a record takes two steps, and the claim is that for two
        steps.

    References
    ----------
    Steinke, Nasr & Jagielski (2023), Theorem 5.2 (``one_run_p_value``).
    """
    _check_confidence("audit_one_run", confidence)
    bare = fresh(estimator)
    relation = declared_relation(bare, neighbours)
    removed = relation is Neighbours.ADD_REMOVE and otherwise is None
    inside = _canaries(canaries, y, score)
    count = len(inside[0])
    wanted = count // 2 if guesses is None else guesses
    if not is_whole(wanted) or not 1 <= wanted <= count:
        allowed = f"an int from 1 to the number of canaries, {count}"
        raise ParameterError(parameter_message("audit_one_run", "guesses", allowed, guesses))
    outside = _outside(bare, inside, otherwise)
    of_coins, of_noise = np.random.SeedSequence(random_state).spawn(2)
    coins = np.random.RandomState(of_coins.generate_state(8)).randint(2, size=count).astype(bool)
    table = _table(X, y, inside, None if removed else outside, coins)
    seed = None if random_state is None else int(of_noise.generate_state(1)[0])
    model = Runner(bare).fitted(table, seed)
    known = np.asarray((score or _Familiarity(outside))(model, *inside), dtype=np.float64)
    correct = _right_guesses(known, coins, wanted)
    profile, at = claimed_profile(claim, model), claimed_delta(delta, claim, bare)
    if not removed:
        relation = declared_relation(bare, neighbours, model)
        profile = claim_for_replaced(profile, relation)
    found = one_run_epsilon(count, wanted, correct, delta=at, confidence=confidence)
    how = "one record removed" if removed else replaced_in_words(relation)
    return OneRunReport(
        type(estimator).__name__,
        "contradicted" if found > profile.epsilon(at) else "not contradicted",
        found,
        at,
        profile.epsilon(at),
        confidence,
        count,
        int(wanted),
        correct,
        how,
    )


def _canaries(canaries: Any, y: Any, score: Any) -> Table:
    """Return the canaries as arrays. Their targets are None if the other rows have none."""
    try:
        rows, targets = canaries
    except (TypeError, ValueError):
        allowed = "a pair (X, y), in which y is None if there are no targets"
        got = type(canaries).__name__
        raise ParameterError(parameter_message("audit_one_run", "canaries", allowed, got)) from None
    if (y is None) != (targets is None):
        allowed = "None if and only if the canaries have no targets"
        got = "None" if y is None else "targets"
        raise ParameterError(parameter_message("audit_one_run", "y", allowed, got))
    if y is None and score is None:
        allowed = "a function score(model, X, y) if there are no targets"
        raise ParameterError(parameter_message("audit_one_run", "score", allowed, None))
    return np.asarray(rows), None if targets is None else np.asarray(targets)


def _outside(estimator: Any, inside: Table, otherwise: Table | None) -> Table:
    """Return the rows that take the places of canaries that are left out, one per canary."""
    count, width = inside[0].shape
    if otherwise is None:
        public = PublicRanges.of(estimator, width)
        middle = public.targets[1] if public.targets is not None else 0.0
        otherwise = ((public.low + public.high) / 2)[None, :], np.array([middle])
    rows = np.broadcast_to(np.asarray(otherwise[0]), (count, width))
    if inside[1] is None:
        return rows, None
    return rows, np.broadcast_to(np.asarray(otherwise[1]), count)


def _table(X: Any, y: Any, inside: Table, outside: Table | None, coins: Any) -> Table:
    def chosen(one: Any, other: Any) -> Any:
        if outside is None:
            return one[coins]
        return np.where(coins.reshape(-1, *[1] * (one.ndim - 1)), one, other)

    other = (None, None) if outside is None else outside
    rows = np.vstack((np.asarray(X), chosen(inside[0], other[0])))
    if inside[1] is None:
        return rows, None
    return rows, np.concatenate((np.asarray(y), chosen(inside[1], other[1])))


@dataclass(frozen=True)
class _Familiarity:
    """How much better the model knows the canaries than what would take their places."""

    outside: Table

    def __call__(self, model: Any, X: Any, y: Any) -> Array:
        if is_classifier(model):
            return self._classes(model, X, y)
        predicted = np.asarray(model.predict(X), dtype=np.float64)
        found = -np.abs(predicted - y)
        if np.array_equal(X, self.outside[0]):
            found = found + np.abs(predicted - self.outside[1])
        return np.asarray(found)

    def _classes(self, model: Any, X: Any, y: Any) -> Array:
        places = np.searchsorted(model.classes_, y)
        if hasattr(model, "decision_function"):
            margins = np.asarray(model.decision_function(X), dtype=np.float64)
            if margins.ndim == 1:
                return np.where(places > 0, margins, -margins)
            return np.asarray(margins[np.arange(len(X)), places])
        return np.asarray(model.predict(X) == y, dtype=np.float64)


def _right_guesses(known: Array, coins: Any, guesses: int) -> int:
    """Guess where the score is farthest from its middle, and return the number of right guesses."""
    known = np.nan_to_num(known, nan=0.0)
    low, high = np.quantile(known, [0.1, 0.9])
    middle = 0.0 if low < 0 < high else (low + high) / 2
    surest = np.argsort(-np.abs(known - middle), kind="stable")[:guesses]
    return int(np.sum((known[surest] > middle) == coins[surest]))


def _check_delta(owner: str, delta: Any) -> None:
    if not is_real(delta) or not 0 <= delta < 1:
        allowed = "a float in the range [0, 1)"
        raise ParameterError(parameter_message(owner, "delta", allowed, delta))


def _check_counts(owner: str, canaries: Any, guesses: Any, correct: Any) -> None:
    counts = canaries, guesses, correct
    if not all(is_whole(count) for count in counts) or not 0 <= correct <= guesses <= canaries:
        allowed = "ints with 0 <= correct <= guesses <= canaries"
        raise ParameterError(
            parameter_message(owner, "canaries, guesses, correct", allowed, counts)
        )


def _check_confidence(owner: str, confidence: Any) -> None:
    if not is_real(confidence) or not 0 < confidence < 1:
        allowed = "a float in the range (0, 1)"
        raise ParameterError(parameter_message(owner, "confidence", allowed, confidence))
