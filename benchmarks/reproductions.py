"""Short tables for the documentation, from the CSV files of ``dpkernel reproduce``.

``python benchmarks/reproductions.py FOLDER`` reads the CSV files of Figures 1 and 7 in the folder, if
they are there, and writes a row per method and a column per epsilon to results/reproduce_synthetic.csv
and reproduce_songs.csv. Command, commit and version are those of the figure.
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

from dpkernel.proof.reproduce.lee_park_ahn import ONE_CHOICE
from dpkernel.proof.reproduce.output import read_csv
from dpkernel.proof.reproduce.repetitions import (
    CONSTANT,
    CORRECTED_1,
    CORRECTED_3,
    KERNEL_RIDGE,
    PRINTED_1,
    PRINTED_3,
    PRIVATE_3,
    REGRESSOR,
    RIDGE,
)

RESULTS = Path(__file__).parent / "results"
PAIRS = {
    "Algorithm 1 (bound of Lemma 7) / 3, as printed": (PRINTED_1, PRINTED_3),
    "Algorithm 1 / 3, corrected": (CORRECTED_1, CORRECTED_3),
    "Algorithm 3, all choices private": (PRIVATE_3,),
    "`PrivateKernelRidge` / `Regressor`": (RIDGE, REGRESSOR),
}
FILES = {"lee-park-ahn-fig1.csv": ("d", "synthetic"), "lee-park-ahn-fig7.csv": ("width", "songs")}


def short(value: float) -> str:
    """Return a number with two or three digits, without a leading zero."""
    text = f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2g}"
    return text.removeprefix("0") if value < 1 else text


def table(rows: list[dict[str, str]], by: str) -> list[list[str]]:
    """Return the short table, with a header."""
    kept = [row for row in rows if row["reading"] == ONE_CHOICE and row.get("panel") != "b"]
    epsilons = sorted({float(row["epsilon"]) for row in kept if row["epsilon"]})
    names = [f"eps {epsilons[0]:g}", *(f"{epsilon:.3g}" for epsilon in epsilons[1:])]
    out = [[by, "method", *names]]
    for group in dict.fromkeys(row[by] for row in kept):
        mine = [row for row in kept if row[by] == group]

        def error(method: str, epsilon: float | None, mine: list[dict[str, str]] = mine) -> str:
            wanted = "" if epsilon is None else epsilon
            found = [
                row["test_error"]
                for row in mine
                if row["method"] == method
                and (row["epsilon"] == wanted if epsilon is None else row["epsilon"] != "")
                and (epsilon is None or math.isclose(float(row["epsilon"]), epsilon, rel_tol=1e-3))
            ]
            return short(float(found[0]))

        label = group if by == "d" else f"2^{math.log2(float(group)):g}"
        for k, (name, methods) in enumerate(PAIRS.items()):
            cells = [" / ".join(error(m, epsilon) for m in methods) for epsilon in epsilons]
            out.append([label if k == 0 else "", name, *cells])
        means = ", ".join(error(m, None) for m in (CONSTANT, KERNEL_RIDGE))
        middle = ["" if k != 2 else means for k in range(len(epsilons))]
        out.append(["", "not private: training mean, kernel ridge", *middle])
    return out


def main() -> None:
    """Write the short tables."""
    folder = Path(sys.argv[1])
    for name, (by, kind) in FILES.items():
        path = folder / name
        if not path.is_file():
            continue
        lines = path.read_text(encoding="utf-8").splitlines()[:3]
        with (RESULTS / f"reproduce_{kind}.csv").open("w", newline="", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            csv.writer(file, lineterminator="\n").writerows(table(read_csv(path), by))


if __name__ == "__main__":
    main()
