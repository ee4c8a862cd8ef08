"""Reproduce the published figures and tables, with corrected algorithms and dpkernel's on the same axes.

    python -m dpkernel.proof.reproduce lee-park-ahn fig1 --quick
    python -m dpkernel.proof.reproduce all --quick

Each item writes a PNG and a CSV file. Repetitions are kept under ``cells/`` in the output folder. A
second call continues where the first stopped, and figures of the same experiment share its
repetitions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import is_whole
from dpkernel.proof.reproduce import errata, lee_park_ahn, wang_lei
from dpkernel.proof.reproduce.claims import CLAIMS
from dpkernel.proof.reproduce.design import DIMENSIONS
from dpkernel.proof.reproduce.output import claimed
from dpkernel.proof.reproduce.request import Request

__all__ = ["CLAIMS", "FIGURES", "claimed", "needs_songs", "reproduce"]

REPETITIONS, QUICK = 100, 10

FIGURES: dict[tuple[str, str], Callable[[Request], list[Path]]] = {
    ("lee-park-ahn", "fig1"): lee_park_ahn.figure_1,
    ("lee-park-ahn", "fig2"): lee_park_ahn.figure_2,
    ("lee-park-ahn", "fig3"): lee_park_ahn.figure_3,
    **{
        ("lee-park-ahn", item): partial(lee_park_ahn.dimension_figure, item, d)
        for item, d in zip(("fig4", "fig5", "fig6"), DIMENSIONS, strict=True)
    },
    ("lee-park-ahn", "fig7"): lee_park_ahn.figure_7,
    **{
        ("lee-park-ahn", f"fig{8 + k}"): partial(lee_park_ahn.width_figure, f"fig{8 + k}", width)
        for k, width in enumerate(lee_park_ahn.WIDTHS)
    },
    ("wang-lei", "fig1"): wang_lei.figure_1,
    ("wang-lei", "table1"): wang_lei.table_one,
    ("errata", "table"): errata.errata_table,
}


def needs_songs(paper: str, item: str) -> bool:
    """Whether an item needs the Million Song table.

    Parameters
    ----------
    paper, item : str
        What ``reproduce`` takes.
    """
    return paper == "lee-park-ahn" and item in ("fig3", *(f"fig{k}" for k in range(7, 13)))


def reproduce(
    paper: str,
    item: str = "",
    *,
    out: Path,
    quick: bool = False,
    data: Path | None = None,
    repetitions: int | None = None,
    progress: bool = True,
    n_jobs: int = 2,
    whole: bool = False,
) -> list[Path]:
    """Reproduce one figure or table.

    Parameters
    ----------
    paper, item : str
        A key of ``FIGURES``. A paper with only one item needs no item.
    out : Path
        The folder for the PNG, the CSV and the repetitions that are kept.
    quick : bool
        Whether to make 10 repetitions instead of 100, and fewer trials of attacks.
    data : Path, optional
        The Million Song table as UCI text or zip, CSV (year first, then 90 columns) or NPZ (X, y).
        Without it, UCI's file is downloaded to ``out/data``.
    repetitions : int, optional
        The number of repetitions, instead of 100 or 10.
    progress : bool
        Whether to show a progress bar.
    n_jobs : int
        The number of processes, with one thread each.
    whole : bool
        Whether repetitions take their songs from the whole Million Song table. By default they take
        them from a uniform excerpt of 7,000 songs.

    Returns
    -------
    list of Path
        The files that were written.
    """
    items = [name for key, name in FIGURES if key == paper]
    if not items:
        allowed = "one of " + ", ".join(dict.fromkeys(repr(key) for key, _ in FIGURES))
        raise ParameterError(parameter_message("reproduce", "paper", allowed, paper))
    item = items[0] if len(items) == 1 and item in ("", paper) else item
    if item not in items:
        allowed = "one of " + ", ".join(map(repr, items))
        raise ParameterError(parameter_message("reproduce", "item", allowed, item))
    if repetitions is None:
        repetitions = QUICK if quick else REPETITIONS
    for name, value in (("repetitions", repetitions), ("n_jobs", n_jobs)):
        if not (is_whole(value) and value >= 1):
            raise ParameterError(parameter_message("reproduce", name, "an int >= 1", value))
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = "a folder that exists or can be created"
        raise ParameterError(parameter_message("reproduce", "out", allowed, str(out))) from error
    command = f"python -m dpkernel.proof.reproduce {paper} {item}{' --quick' if quick else ''}"
    if needs_songs(paper, item):
        command += " --data PATH" if data is not None else ""
        command += " --whole" if whole else ""
    if repetitions != (QUICK if quick else REPETITIONS):
        command += f" --repetitions {repetitions}"
    claim = CLAIMS[paper, item]
    if paper == "lee-park-ahn" and repetitions < REPETITIONS:
        claim = claim.beside(repetitions)
    request = Request(
        Path(out),
        command,
        repetitions,
        quick=quick,
        data=None if data is None else Path(data),
        progress=progress,
        n_jobs=n_jobs,
        claim=claim,
        whole=whole,
    )
    return FIGURES[paper, item](request)
