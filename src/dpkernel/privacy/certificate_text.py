"""A certificate in words: the claim, six lines that everybody can read, and the technical lines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpkernel.foundations.types import Neighbours
from dpkernel.privacy.mechanisms import Mechanism

if TYPE_CHECKING:
    from dpkernel.privacy.certificate import Certificate

# what is released, for each formula of the sensitivity
QUANTITIES: dict[str, str] = {
    "augmented-gram": "sums over all records of products of features and target",
    "unit-gram": "sums over all people of mean products of features and target",
    "unit-shares": "counts of people in cells, for every column",
    "record-norm": "random combinations of the records",
    "loss-gradient": "the model's coefficients, or a part of them",
    "histogram": "counts of records in cells",
    "column-histograms": "counts of records in cells, for every column",
    "column-moments": "sums of values and squares, for every column",
    "bounded-sum": "sums over all records of numbers within a public bound",
    "erm-lipschitz": "the model's coefficients",
    "erm-bounded": "the model's coefficients",
    "erm-ridge": "the model's coefficients",
    "erm-prediction": "values of the fitted function",
    "sgd-epochs": "the model's coefficients",
    "sgd-sampled": "the model's coefficients",
    "sgd-shuffled": "the model's coefficients",
}

# mechanisms whose noise scale and sensitivity are in the same units; for the last, of the gradient
RELATIVE = frozenset(
    {"gaussian", "symmetric-gaussian", "mixture-gaussian", "sampled-gaussian", "laplace"}
    | {"objective-perturbation"}
)

PROTECTS = {
    "row": {
        Neighbours.REPLACE_ONE: "any one record, against replacing it (the number of rows is public)",
        Neighbours.ZERO_OUT: "any one record, against blanking it (the number of rows is public)",
        Neighbours.ADD_REMOVE: "any one record, against adding or removing it",
    },
    "group": {
        Neighbours.REPLACE_ONE: "all rows of any one person, against replacing them by any number of"
        " others (the number of people is public, that of rows is not)",
        Neighbours.ZERO_OUT: "all rows of any one person, against blanking them (the number of people"
        " is public, that of rows is not)",
        Neighbours.ADD_REMOVE: "all rows of any one person, against adding or removing them",
    },
}


def lines_of(certificate: Certificate) -> list[tuple[str, str]]:
    """Return the claim, six lines in words, and the technical lines."""
    verdict = certificate.verdict
    holds = verdict == "the guarantee holds"
    if holds and certificate.last_step_only:
        verdict = "the guarantee holds for the last step of a pipeline only: see 'not covered'"
    claim = f"epsilon = {certificate.epsilon:.6g}, delta = {certificate.delta:.3g}"
    folds = any(r.folds > 1 for r in certificate.releases)
    placed = "; its position is public" if folds and certificate.unit == "row" else ""
    if "n_places" in certificate.public:
        placed = f" (in tables of at most {certificate.public['n_places']} of them)"
    protects = PROTECTS.get(certificate.unit, PROTECTS["row"])[certificate.neighbours] + placed
    others = "people" if certificate.unit == "group" else "records"
    moves = [r.mechanism.sensitivity for r in certificate.releases]
    found = dict.fromkeys(
        QUANTITIES.get(move.formula, f"{release.label} ({move.formula})")
        for move, release in zip(moves, certificate.releases, strict=True)
    )
    formulas = dict.fromkeys(move.formula for move in moves)
    return [
        (f"{certificate.subject}:", f"{claim} ({verdict})"),
        ("protects", protects),
        (
            "how strongly",
            f"whoever knows all other {others} and two candidates for this one guesses right in at"
            f" most {best_guess(certificate)} of cases; blind guesses are right in 50 %"
            if holds
            else "nothing is promised",
        ),
        ("released", f"{_counted(len(moves), 'result')} with noise: {'; '.join(found)}"),
        (
            "not released",
            "any row, and any number that was computed from rows without noise"
            if holds
            else "nothing is promised",
        ),
        ("cost", f"{claim}, which add to those of every other release from these {others}"),
        ("not covered", "; ".join(certificate.not_covered) or "nothing is stated"),
        ("verify", "certificate.verify() or `dpkernel verify FILE` recomputes the claim"),
        (
            "noise",
            "relative to what one record can change: "
            + ", ".join(f"{r.title}: {_relative(r.mechanism)}" for r in certificate.releases),
        ),
        ("sensitivity", f"from the formulas {', '.join(formulas)}; the JSON has their values"),
        (
            "arithmetic",
            f"{certificate.sampler}, {certificate.generator};"
            f" assumptions: {', '.join(certificate.assumptions) or 'none'}",
        ),
        ("why", certificate.reference),
    ]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def best_guess(certificate: Certificate) -> str:
    """Return how often the best attack guesses right, rounded up, with a sign of percent."""
    return f"{math.ceil(1000 * certificate.best_guess - 1e-9) / 10:g} %"


def _relative(mechanism: Mechanism) -> str:
    """Return the noise of a release as a multiple of what one record can change, if that is known."""
    moved = mechanism.sensitivity.value
    if mechanism.kind not in RELATIVE or not 0 < moved < math.inf:
        return f"in units of its own, {mechanism.noise_scale:.4g}"
    return f"{mechanism.noise_scale / moved:.3g}"


def shown(text: str) -> str:
    """Return a foreign text safe for a terminal: invisible characters are written as escapes."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
