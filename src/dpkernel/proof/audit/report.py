"""The report of an audit: a verdict, a table, a plot, and the view of membership inference."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from dpkernel.foundations.types import JSON, Array
from dpkernel.privacy.profiles import GaussianProfile, PrivacyProfile
from dpkernel.proof.audit.core import Point, could_contradict, most_provable, ordered
from dpkernel.proof.audit.statistics import auc

NOTE = "An audit protects nobody: it can show that a claim is wrong, never that it is right."


@dataclass(frozen=True)
class Roc:
    """The attack as a membership test, which asks whether the first data set was used.

    Attributes
    ----------
    false_positive_rate, true_positive_rate : arrays
        The measured curve.
    true_positive_bound : array
        The largest true positive rate that the claim allows at each false positive rate.
    auc, auc_bound : float
        The measured area under the curve, and the largest one that the claim allows.
    advantage, advantage_bound : float
        The largest measured difference of the two rates, and the largest one that the claim allows,
        which is delta(0).
    auc_lower, advantage_lower : float
        Lower bounds on the two, with the confidence of the audit. They follow from its judged events:
        the curve of the best attack lies above the lines from (0, 0) and from (1, 1) to such an event.
    """

    false_positive_rate: Array
    true_positive_rate: Array
    true_positive_bound: Array
    auc: float
    auc_bound: float
    advantage: float
    advantage_bound: float
    auc_lower: float = 0.5
    advantage_lower: float = 0.0


@dataclass(frozen=True)
class AuditReport:
    """The result of an attack on an estimator.

    Attributes
    ----------
    estimator : str
        The name of its class.
    verdict : {"contradicted", "not contradicted"}
        Whether the runs contradict the claim.
    epsilon_lower : float
        A lower bound on the true epsilon at ``delta``, with this ``confidence``, whatever the
        distributions are.
    delta : float
        The delta of the claim.
    claimed_epsilon : float
        The epsilon that the claim states at ``delta``.
    confidence : float
        The probability that a true claim is not contradicted and that the bounds hold, at least.
    claim : PrivacyProfile
        The claim that was tested. The built-in pairs replace a record. If the estimator protects blanked
        or removed records, this is what its claim implies for two such steps.
    relation : str
        How the two data sets differ.
    attack : str
        The pair of data sets and the statistic that were used.
    trials, pilot_trials : int
        The number of judged fits on each side, and of those before them that chose the attack.
    mu_lower : float
        The estimator is not mu-Gaussian-DP for any smaller mu, with the same confidence.
    epsilon_gaussian : float
        The epsilon at ``delta`` of a Gaussian pair with mu = ``mu_lower``. It is a lower bound if
        the two outputs are as hard to tell apart as some Gaussian pair, which is assumed and not
        tested.
    points : tuple of Point
        The judged events, which form the empirical trade-off curve.
    scores : pair of arrays
        The statistic in the judged fits on the two data sets.
    n_rows : int or None
        The number of rows of the tables, or None if a given table does not say it.
    releases : tuple of str
        The labels of the certificate's releases whose values the attack saw as they were released. It
        is empty for estimators of other libraries.
    pair : str
        A text that says which records differ, and where the other records are.
    setting : tuple of str
        Sentences on how the audited estimator follows from a model file.
    """

    estimator: str
    verdict: str
    epsilon_lower: float
    delta: float
    claimed_epsilon: float
    confidence: float
    claim: PrivacyProfile
    relation: str
    attack: str
    trials: int
    pilot_trials: int
    mu_lower: float
    points: tuple[Point, ...]
    scores: tuple[Array, Array] = field(repr=False, compare=False)
    n_rows: int | None = None
    releases: tuple[str, ...] = ()
    pair: str = ""
    setting: tuple[str, ...] = ()

    @property
    def contradicted(self) -> bool:
        """Whether the runs contradict the claim."""
        return self.verdict == "contradicted"

    @property
    def epsilon_gaussian(self) -> float:
        """The lower bound on epsilon that relies on a Gaussian assumption."""
        if not self.mu_lower > 0:
            return 0.0
        return GaussianProfile(self.mu_lower).epsilon(self.delta) if self.delta > 0 else np.inf

    @property
    def has_power(self) -> bool:
        """Whether this number of fits could contradict the claim if the attack were always right."""
        return could_contradict(self.claim, self.trials, 1 - self.confidence)

    def __str__(self) -> str:
        return "\n  ".join(
            (
                f"{self.estimator}: {self.verdict}.",
                *self.setting,
                *self._words_on_fits(),
                f"significant: epsilon >= {self.epsilon_lower:.3f} at delta = {self.delta:g}, with"
                f" confidence {self.confidence:g}; claimed: {self.claimed_epsilon:.3f}"
                + (": a violation" if self.epsilon_lower > self.claimed_epsilon else ""),
                f"mu >= {self.mu_lower:.3f}{self._gaussian_reading()}",
                *self._words_on_membership(),
                f"power: {self._words_on_power()}",
                NOTE,
            )
        )

    def _words_on_fits(self) -> list[str]:
        many = "" if self.n_rows is None else f"{self.n_rows} made-up rows in each fit; "
        where = f" ({self.pair})" if self.pair else ""
        seen = "public attributes and answers at a few rows"
        if self.releases:
            seen = f"every value released with noise ({', '.join(self.releases)}), {seen}"
        return [f"tables: {many}{self.relation}{where}", f"attack: {self.attack}; it sees {seen}"]

    def _gaussian_reading(self) -> str:
        if not self.delta > 0:
            return ""
        found = f"; as a Gaussian (assumed, not tested): epsilon >= {self.epsilon_gaussian:.3f}"
        if self.epsilon_gaussian > self.claimed_epsilon:
            found += ", above the claim under that assumption only"
        return found

    def _words_on_membership(self) -> list[str]:
        """Return the point estimates, their lower bounds, and what the claim allows."""
        seen = self.roc()
        return [
            f"point estimate: {name} {found:.3f}, with confidence at least {low:.3f}; the claim allows"
            f" {most:.3f}{_compared(found, low, most)}"
            for name, found, low, most in (
                ("AUC", seen.auc, seen.auc_lower, seen.auc_bound),
                ("advantage", seen.advantage, seen.advantage_lower, seen.advantage_bound),
            )
        ]

    def _words_on_power(self) -> str:
        made = f"{self.trials} judged fits on each side, after {self.pilot_trials} to choose the attack,"
        if not self.has_power:
            return f"{made} are too few to contradict this claim, whatever leaks; run more trials"
        most = most_provable(self.trials, 1 - self.confidence)
        return f"{made} can prove at most epsilon = {most:.2f}; a leak that shows less is not seen"

    def to_dict(self) -> JSON:
        """Return everything except the single scores, as JSON values."""
        seen = self.roc()
        return {
            "estimator": self.estimator,
            "verdict": self.verdict,
            "epsilon_lower": self.epsilon_lower,
            "delta": self.delta,
            "claimed_epsilon": _finite(self.claimed_epsilon),
            "confidence": self.confidence,
            "claim": self.claim.to_dict(),
            "relation": self.relation,
            "attack": self.attack,
            "trials": self.trials,
            "pilot_trials": self.pilot_trials,
            "mu_lower": self.mu_lower,
            "epsilon_if_gaussian": _finite(self.epsilon_gaussian),
            "auc": seen.auc,
            "auc_bound": seen.auc_bound,
            "auc_lower": seen.auc_lower,
            "advantage": seen.advantage,
            "advantage_bound": seen.advantage_bound,
            "advantage_lower": seen.advantage_lower,
            "n_rows": self.n_rows,
            "releases": list(self.releases),
            "pair": self.pair,
            "setting": list(self.setting),
            "has_power": self.has_power,
            "points": [asdict(point) for point in self.points],
            "note": NOTE,
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the report as JSON text, and also write it to a file if ``path`` is given."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def roc(self) -> Roc:
        """Return the ROC curve of the attack, and the largest one that the claim allows.

        The measured curve has no stated confidence; ``points`` has one.
        """
        p, q = (ordered(scores) for scores in self.scores)
        if auc(p, q) < 0.5:  # a statistic with the opposite sign is as good
            p, q = -p, -q
        cuts = np.unique(np.quantile(np.concatenate((p, q)), np.linspace(0, 1, 201)))[::-1]
        false = np.array([0.0, *(np.mean(q > t) for t in cuts), 1.0])
        true = np.array([0.0, *(np.mean(p > t) for t in cuts), 1.0])
        alpha = np.linspace(0, 1, 2001)
        allowed = 1 - self.claim.trade_off(alpha)
        # the bound increases, so upper sums bound the area
        area = float(min(1.0, np.sum(allowed[1:] * np.diff(alpha))))
        gap = max((0.0, *(point.hit_low - point.false_high for point in self.points)))
        return Roc(
            false,
            true,
            1 - self.claim.trade_off(false),
            auc(p, q),
            area,
            float(np.max(true - false)),
            self.claim.delta(0.0),
            (1 + gap) / 2,
            gap,
        )

    def plot(self, path: str | Path) -> Path:
        """Plot the empirical trade-off points with their confidence against the certified curve."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 5))
        axes = figure.subplots()
        alpha = np.linspace(0, 1, 401)
        certified = self.claim.trade_off(alpha)
        axes.fill_between(alpha, 0, certified, color="#d95f02", alpha=0.12, lw=0)
        axes.plot(alpha, certified, color="#d95f02", label="claim: no attack below this curve")
        axes.plot([0, 1], [1, 0], color="#999999", lw=0.8, ls=":", label="blind guess")
        false = np.array([point.false_rate for point in self.points])
        miss = np.array([1 - point.hit_rate for point in self.points])
        bars = [
            [np.zeros_like(miss), np.array([1 - p.hit_low for p in self.points]) - miss],
            [np.zeros_like(false), np.array([p.false_high for p in self.points]) - false],
        ]
        axes.errorbar(
            false, miss, yerr=bars[0], xerr=bars[1], fmt="o", ms=4, lw=0.8, color="#1b6ca8",
            label=f"attack, with one-sided bounds ({self.confidence:g} together)",
        )  # fmt: skip
        axes.set(
            xlabel="false positive rate",
            ylabel="false negative rate",
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
            title=f"{self.estimator}: {self.verdict}\nepsilon >= {self.epsilon_lower:.2f} at delta ="
            f" {self.delta:g}, claimed {self.claimed_epsilon:.2f}",
        )
        axes.legend(loc="upper right", fontsize=8)
        figure.tight_layout()
        figure.savefig(path, dpi=130)
        return Path(path)


def _compared(found: float, low: float, most: float) -> str:
    """Return what it means if a point estimate is above what the claim allows."""
    if not found > most:
        return ""
    if low > most:
        return ": a violation, the lower bound is above it"
    return ": the estimate is above it, which is within chance because the lower bound is not"


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
