"""Write the results of a reproduction: a CSV file that says how it was made, and a plot."""

from __future__ import annotations

import csv
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpkernel.proof.reproduce.claims import Claim
from dpkernel.version import __version__


def write_csv(
    path: Path, command: str, rows: Sequence[Mapping[str, Any]], claim: Claim | None = None
) -> Path:
    """Write rows in long form under comments: command, commit, version, and the paper's claim."""
    path.parent.mkdir(parents=True, exist_ok=True)
    said = [] if claim is None else claim.lines()
    head = [f"command: {command}", f"commit: {commit()}", f"dpkernel: {__version__}", *said]
    with path.open("w", newline="", encoding="utf-8") as file:
        file.writelines(f"# {line}\n" for line in head)
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: _text(v) for k, v in row.items()} for row in rows)
    return path


@lru_cache(maxsize=1)
def commit() -> str:
    """Return the commit of the source tree, or "none" for an installed package."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=9", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return found.stdout.strip()


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file that ``write_csv`` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def claimed(path: Path) -> list[str]:
    """Return what a file that ``write_csv`` wrote says of the claim, what came out, and why.

    Parameters
    ----------
    path : path
        The CSV file.
    """
    with path.open(encoding="utf-8") as file:
        lines = [line[2:].rstrip() for line in file if line.startswith("# ")]
    return [line for line in lines if line.startswith(("Paper: ", "Found: ", "Why: "))]


def new_figure(columns: int, *, rows: int = 1, width: float = 4.2, height: float = 3.9) -> Any:
    """Return a figure and its panels in one row, without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False).ravel()


def save_figure(figure: Any, path: Path, claim: Claim | None = None) -> Path:
    """Write a PNG, with the paper's claim, what came out and why above the panels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if claim is not None:
        letters = max(int(figure.get_size_inches()[0] * 16), 60)  # that fit the width of the figure
        lines = [part for line in claim.lines() for part in textwrap.wrap(line, letters)]
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.17 * len(lines))
        figure.suptitle("\n".join(lines), fontsize="small", x=0.01, ha="left")
    figure.savefig(path, dpi=130)
    return path


def _text(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
