"""Write the results of a reproduction: a CSV file that says how it was made, and a plot."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpkernel.version import __version__


def write_csv(path: Path, command: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows in long form under a comment that names the command and the version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# command: {command}\n# dpkernel: {__version__}\n")
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: _text(v) for k, v in row.items()} for row in rows)
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file that ``write_csv`` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def new_figure(columns: int, *, rows: int = 1, width: float = 4.2, height: float = 3.9) -> Any:
    """Return a figure and its panels in one row, without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False).ravel()


def save_figure(figure: Any, path: Path) -> Path:
    """Write a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _text(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
