"""The errata of the five papers: what is printed, what is right, the factor, and what an attack shows.

A factor is computed from the constants of ``dpkernel.proof.papers`` if both versions have numbers. False
claims have an attack. The others are true or have no proof, and have no attack. One entry (004-5) says
that a statement is right, so that the numbers have no gap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.table import Table
from rich.text import Text

from dpkernel.proof.reproduce import factors
from dpkernel.proof.reproduce.attacks import ATTACKS, FULL, QUICK, Finding, Trials
from dpkernel.proof.reproduce.claims import Claim
from dpkernel.proof.reproduce.output import new_figure, read_csv, save_figure, write_csv
from dpkernel.proof.reproduce.request import Request

NO_ATTACK = "no attack"
_WIDTH = 150  # width of the table on a terminal
PAPERS = {
    "000": "Wang & Guo (2024)",
    "001": "Ma (2024)",
    "002": "Wang, Lei, Ying & Zhang (2022)",
    "003": "Lee, Park & Ahn (2025)",
    "004": "Nie & Wang (2017)",
}


@dataclass(frozen=True)
class Erratum:
    """One place of a paper. ``factor`` returns the size of the difference in words."""

    id: str
    place: str
    printed: str
    right: str
    factor: Callable[[], str] = lambda: ""

    @property
    def paper(self) -> str:
        """Authors and year of every paper with this erratum."""
        return "; ".join(PAPERS[one[:3]] for one in self.id.split(", "))


ERRATA = (
    Erratum(
        "004-1",
        "Lemma 1, (2)",
        "f + b with one random number b is epsilon-DP as a function",
        "differences of values leave without noise; one value alone is protected",
        lambda: "not private",
    ),
    Erratum(
        "004-2",
        "Proposition 1",
        "scale kappa^2 C_L / (lambda gamma m epsilon)",
        "scale 2 kappa^2 C_L / (lambda gamma m epsilon)",
        factors.scale_of_one_value,
    ),
    Erratum(
        "004-3", "Proposition 1", "conditions of Theorem 1", "those of Theorem 2: a Lipschitz loss"
    ),
    Erratum(
        "004-4",
        "Theorem 1",
        "sqrt(16 B / (lambda gamma m))",
        "sqrt(2 B / (lambda gamma m)) holds",
        factors.bounded_loss,
    ),
    Erratum(
        "004-5",
        "Theorem 2",
        "2 kappa C_L / (lambda gamma m)",
        "correct, and attained where the loss is linear",
        factors.lipschitz_loss,
    ),
    Erratum(
        "004-6",
        "Section 5.1",
        "C_L = 2 M (kappa + 1) / sqrt(lambda)",
        "2 M (1 + kappa / sqrt(lambda)); the print holds for lambda <= 1",
        factors.slope_of_squares,
    ),
    Erratum(
        "000-1",
        "Theorem 2",
        "Delta = 4 e eta^2 (.)^2 k (1 + k)",
        "that is Delta^2: a root is missing",
        factors.missing_root,
    ),
    Erratum(
        "000-2", "Theorem 2", "c kappa + kappa^2 sqrt(eta T)", "c kappa + c kappa^2 sqrt(eta T)"
    ),
    Erratum(
        "000-3",
        "proof of Theorem 2",
        "2 eta G sqrt(e k (k + 1)) with a union bound",
        "2 eta G k, and a mixture over k",
        factors.hits,
    ),
    Erratum(
        "000-4, 002-0",
        "Gaussian lemma",
        "for every epsilon",
        "proved for epsilon <= 1",
        factors.classical_gaussian,
    ),
    Erratum(
        "002-1",
        "Lemma 20",
        "C_alpha with L^(2/(1 - alpha))",
        "(L eta)^(2/(1 - alpha))",
        factors.c_alpha,
    ),
    Erratum(
        "002-2",
        "Theorem 7, Algorithm 1",
        "sqrt(e (c^2 T + 4 G^2 eta^2 (1 + k) k))",
        "valid; a direct bound and a mixture need less",
        factors.output_noise,
    ),
    Erratum(
        "002-3",
        "Theorem 11, Algorithm 2",
        "sigma^2 = 14 C^2 T (.) / (beta n^2 epsilon)",
        "valid where (32)-(33) hold; exact accounting needs less",
        factors.gradient_noise,
    ),
    Erratum(
        "002-4",
        "Lemma 13",
        "a feasible beta exists at the threshold for n >= 18",
        "none does for small n",
        factors.infeasible,
    ),
    Erratum("003-1", "Algorithm 1", "Delta_1 = 2 B^2", "sqrt(2) B^2", lambda: "too large x 1.41"),
    Erratum(
        "003-2",
        "Algorithm 1",
        "basic composition, loose Gaussian bound, norms in probability",
        "joint release, clipped rows, exact profile",
        factors.noise_on_gram,
    ),
    Erratum(
        "003-3",
        "Algorithms 1 and 2",
        "1 + 2 sqrt(l/M + 2 l/M)",
        "1 + 2 sqrt(l/M) + 2 l/M (Lemma 7)",
        factors.nested_root,
    ),
    Erratum(
        "003-4",
        "Section 4.2",
        "u clipped to norm T, plus 2 T (1 + sqrt(2 log(4/delta))) / (n epsilon): no noise vector",
        "a clipped mean can move by 2 T, not 2 T / n: clip each product, and add a vector",
        factors.clipped_mean,
    ),
    Erratum(
        "003-5",
        "Algorithm 3",
        "Delta_1 = 2, Delta_2 = sqrt(2) T",
        "2 sqrt(2) and 2 sqrt(2) T for cosine features",
        lambda: "too small x 1.41 and x 2",
    ),
    Erratum(
        "003-6",
        "A.13",
        "a difference that depends on b is taken for independent of it",
        "bound the inner product",
    ),
    Erratum(
        "003-7",
        "Algorithms 2 and 4",
        "noise for a gradient that moves by c_1 Delta",
        "replacing a record moves it by 2 c_1 Delta",
        factors.objective_noise,
    ),
    Erratum("003-8", "A.13", "determinant factor (1 + x)^2", "1 + x", factors.determinant),
    Erratum(
        "003-9",
        "Assumption 1",
        "convex losses into [0, 1]",
        "such losses are constant; boundedness is not needed",
    ),
    Erratum("003-10", "Theorem 9", "P(E_3) <= delta/2", "P(not E_3) <= delta/2"),
    Erratum(
        "003-11",
        "Algorithm 5",
        "noise c_1 kappa (.) / (n lambda epsilon)",
        "twice that, for replaced records",
        factors.functional_noise,
    ),
    Erratum(
        "003-12",
        "Section 3",
        "release of a function of Gaussian-process paths",
        "its value at a new point needs the training inputs",
    ),
    Erratum(
        "003-13",
        "Proposition 2",
        "the Gaussian mechanism with (1 + sqrt(2 log(1/delta))) / epsilon, for every epsilon",
        "proved for epsilon <= 1",
        factors.nikolov_gaussian,
    ),
    Erratum(
        "003-14",
        "Lemma 77",
        "c_lsc for margins in [a', b']",
        "the margins of the class -1 are in [-b', -a']",
        factors.local_convexity,
    ),
    Erratum(
        "001-1",
        "Theorem 12",
        "Algorithm 1 is (epsilon, delta)-DP",
        "labels of 0 give 0 whatever the sketch is; one label 1 does not",
        lambda: "not private",
    ),
    Erratum(
        "001-2",
        "Theorem 12",
        "n^(nu (m - h) m / 2) in delta",
        "its proof has n^(nu (h - m)(m + 2) / 2)",
        factors.sketch_delta,
    ),
    Erratum(
        "001-3",
        "Lemma 27",
        "2 c_L sqrt(kappa) / n, where c_L bounds how fast slopes change",
        "2 sqrt(kappa) / n times the largest slope",
        factors.slope_for_curvature,
    ),
    Erratum(
        "001-4",
        "Theorem 12",
        "(32 c_L + 2) sqrt(kappa) n^(2 nu - 1/2) / C_h^2 in epsilon",
        "its proof has 4 times that in (17), and terms of (17) and (18) besides",
        factors.sketch_epsilon,
    ),
)


def table(trials: Trials, *, progress: bool = True, n_jobs: int = 1) -> list[dict[str, Any]]:
    """Return one row per erratum, with the result of its attack."""
    with ProcessPoolExecutor(n_jobs) as pool:
        waiting = {name: pool.submit(attack, trials) for name, attack in ATTACKS.items()}
        shown = track(waiting.items(), "attacks", disable=not progress)
        findings = {name: future.result() for name, future in shown}
    return [_row(erratum, findings.get(erratum.id)) for erratum in ERRATA]


def _row(erratum: Erratum, found: Finding | None) -> dict[str, Any]:
    head = {
        "id": erratum.id,
        "paper": erratum.paper,
        "place": erratum.place,
        "printed": erratum.printed,
        "right": erratum.right,
        "factor": erratum.factor(),
    }
    names = {
        "claimed": "claimed_epsilon",
        "delta": "delta",
        "printed": "epsilon_lower_printed",
        "ours": "epsilon_lower_dpkernel",
        "how": "method",
        "trials": "trials",
        "confidence": "confidence",
        "attack": "attacked",
        "instead": "dpkernel",
    }
    values: Mapping[str, Any] = {} if found is None else asdict(found)
    row = {**head, **{name: values.get(key, "") for key, name in names.items()}}
    if found is None:
        row["method"] = NO_ATTACK
    return row


def errata_table(request: Request) -> list[Path]:
    """Write the table, and a plot of the measured against the claimed epsilon."""
    rows = table(QUICK if request.quick else FULL, progress=request.progress, n_jobs=request.n_jobs)
    measured = [row for row in rows if row["method"] != NO_ATTACK]
    return [
        _plot(measured, request.out / "errata.png", request.claim),
        write_csv(request.out / "errata.csv", request.command, rows, request.claim),
    ]


def verdict(row: Mapping[str, Any]) -> str:
    """Return the verdict of a row in words."""
    if row["method"] == NO_ATTACK:
        return NO_ATTACK
    claimed = float(row["claimed_epsilon"])
    broken = float(row["epsilon_lower_printed"]) > claimed
    held = float(row["epsilon_lower_dpkernel"]) <= claimed
    return ("refuted" if broken else "not refuted") + ("" if held else "; dpkernel refuted, too")


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables for the documentation: attacked claims first, then the others."""
    attacked = [row for row in rows if row["method"] != NO_ATTACK]
    lines = [
        "| erratum | printed | right | factor | claim | epsilon is at least | dpkernel: at least |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in attacked:
        claim = f"({float(row['claimed_epsilon']):g}, {float(row['delta']):g})"
        trials = f", {int(row['trials'])} trials" if int(row["trials"]) else ""
        measured = f"{float(row['epsilon_lower_printed']):.2f} ({row['method']}{trials})"
        ours = f"{float(row['epsilon_lower_dpkernel']):.2f}: {row['dpkernel']}"
        lines.append(_line(_head(row), claim, measured, ours))
    lines += ["", "| erratum | printed | right | factor |", "|---|---|---|---|"]
    lines += [_line(_head(row)) for row in rows if row["method"] == NO_ATTACK]
    return "\n".join(lines) + "\n"


def _head(row: Mapping[str, Any]) -> str:
    place = f"{row['id']}: {row['paper']}, {row['place']}"
    return " | ".join((place, *(row[key] for key in ("printed", "right", "factor"))))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def shown(path: Path) -> Table:
    """Return a written table for a terminal."""
    found = Table("id", "place", "printed", "right", "factor", "claim", "eps >=", "dpkernel eps >=")
    found.width = _WIDTH
    for row in read_csv(path):
        numbers = ["", row["method"], ""]
        if row["method"] != NO_ATTACK:
            numbers = [
                f"({float(row['claimed_epsilon']):g}, {float(row['delta']):g})",
                f"{float(row['epsilon_lower_printed']):.3g} ({row['method']})",
                f"{float(row['epsilon_lower_dpkernel']):.3g}",
            ]
        head = [row[key] for key in ("id", "place", "printed", "right", "factor")]
        found.add_row(*(Text(cell) for cell in (*head, *numbers)))
    return found


def _plot(rows: Sequence[Mapping[str, Any]], path: Path, claim: Claim | None) -> Path:
    """Plot measured over claimed epsilon, with one bar each for the printed algorithm and dpkernel."""
    figure, (axes,) = new_figure(1, width=7.5)
    for offset, key, label, colour in (
        (-0.2, "epsilon_lower_printed", "as printed", "tab:orange"),
        (0.2, "epsilon_lower_dpkernel", "dpkernel", "tab:green"),
    ):
        heights = [max(row[key] / row["claimed_epsilon"], 1e-2) for row in rows]
        places = [k + offset for k in range(len(rows))]
        axes.bar(places, heights, 0.4, label=label, color=colour)
    axes.axhline(1.0, color="black", lw=1, label="the claim")
    axes.set(yscale="log", ylabel="measured / claimed epsilon (0 plotted as 0.01)", title="errata")
    axes.set_xticks(range(len(rows)), [row["id"] for row in rows])
    axes.legend(fontsize="small")
    return save_figure(figure, path, claim)
