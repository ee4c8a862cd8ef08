"""What an audit found, for people: a verdict, a table, a picture, the view of membership inference."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from dpkernel.audit.core import Point, ordered
from dpkernel.audit.statistics import auc
from dpkernel.profiles import GaussianProfile, PrivacyProfile
from dpkernel.types import JSON, Array

NOTE = "An audit protects nobody: it can show that a claim is wrong, never that it is right."


@dataclass(frozen=True)
class Roc:
    """The attack as a membership test: was it the first data set?

    Attributes
    ----------
    false_positive_rate, true_positive_rate : arrays
        The measured curve.
    true_positive_bound : array
        What the claim allows at most at each false positive rate.
    auc, auc_bound : float
        The measured area under the curve, and the largest that the claim allows.
    advantage, advantage_bound : float
        The largest measured difference of the two rates, and what the claim allows: delta(0).
    """

    false_positive_rate: Array
    true_positive_rate: Array
    true_positive_bound: Array
    auc: float
    auc_bound: float
    advantage: float
    advantage_bound: float


@dataclass(frozen=True)
class AuditReport:
    """What an attack on an estimator found.

    Attributes
    ----------
    estimator : str
        The name of its class.
    verdict : {"contradicted", "not contradicted"}
        Whether the runs contradict the claim.
    epsilon_lower : float
        A lower bound on the true epsilon at ``delta``, with this ``confidence``; whatever the
        distributions are.
    delta : float
    claimed_epsilon : float
        The epsilon that the claim states at ``delta``.
    confidence : float
        The probability that a true claim is not contradicted and that the bounds hold, at least.
    claim : PrivacyProfile
        What was put to the test. For neighbours that are blanked or removed, and a built-in pair
        that replaces a record, it is what the estimator's claim says about two such steps.
    relation : str
        How the two data sets differ.
    attack : str
        The pair of data sets and the statistic that were used.
    trials, pilot_trials : int
        Judged fits on each side, and those before them that chose the attack.
    mu_lower : float
        The estimator is not mu-Gaussian-DP for a smaller mu, with the same confidence.
    epsilon_gaussian : float
        The epsilon at ``delta`` of a Gaussian pair with mu = ``mu_lower``. A lower bound if the two
        outputs are as hard to tell apart as some Gaussian pair, which is assumed and not tested.
    points : tuple of Point
        The judged events: the empirical trade-off.
    scores : pair of arrays
        The statistic in the judged fits on the two data sets.
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

    @property
    def contradicted(self) -> bool:
        """Whether the runs contradict the claim."""
        return self.verdict == "contradicted"

    @property
    def epsilon_gaussian(self) -> float:
        """The lower bound that rests on a Gaussian assumption."""
        if not self.mu_lower > 0:
            return 0.0
        return GaussianProfile(self.mu_lower).epsilon(self.delta) if self.delta > 0 else np.inf

    def __str__(self) -> str:
        seen = self.roc()
        reading = ""
        if self.delta > 0:
            reading = (
                f"; as a Gaussian (assumed, not tested): epsilon >= {self.epsilon_gaussian:.3f}"
            )
        return "\n".join(
            (
                f"{self.estimator}: {self.verdict}.",
                f"  epsilon >= {self.epsilon_lower:.3f} at delta = {self.delta:g}, with confidence"
                f" {self.confidence:g}; claimed: {self.claimed_epsilon:.3f}",
                f"  mu >= {self.mu_lower:.3f}{reading}",
                f"  membership: AUC {seen.auc:.3f} (claim allows {seen.auc_bound:.3f}), advantage"
                f" {seen.advantage:.3f} (claim allows {seen.advantage_bound:.3f})",
                f"  attack: {self.attack}; {self.relation}",
                f"  {self.trials} judged fits on each side, after {self.pilot_trials} to choose the"
                " attack",
                f"  {NOTE}",
            )
        )

    def to_dict(self) -> JSON:
        """Return all but the single scores as JSON values."""
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
            "advantage": seen.advantage,
            "advantage_bound": seen.advantage_bound,
            "points": [asdict(point) for point in self.points],
            "note": NOTE,
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the report as JSON text; write it to a file as well if one is named."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def roc(self) -> Roc:
        """Return the attack's ROC curve and what the claim allows at most.

        The measured curve has no confidence of its own: ``points`` has.
        """
        p, q = (ordered(scores) for scores in self.scores)
        if auc(p, q) < 0.5:  # a statistic that points the other way is as good
            p, q = -p, -q
        cuts = np.unique(np.quantile(np.concatenate((p, q)), np.linspace(0, 1, 201)))[::-1]
        false = np.array([0.0, *(np.mean(q > t) for t in cuts), 1.0])
        true = np.array([0.0, *(np.mean(p > t) for t in cuts), 1.0])
        alpha = np.linspace(0, 1, 2001)
        allowed = 1 - self.claim.trade_off(alpha)
        # the bound rises: upper sums bound the area
        area = float(min(1.0, np.sum(allowed[1:] * np.diff(alpha))))
        return Roc(
            false,
            true,
            1 - self.claim.trade_off(false),
            auc(p, q),
            area,
            float(np.max(true - false)),
            self.claim.delta(0.0),
        )

    def plot(self, path: str | Path) -> Path:
        """Draw the empirical trade-off points with their confidence against the certified curve."""
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


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
