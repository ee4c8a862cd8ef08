"""Files of results, and who made them: the command, the commit and the version, as their first lines."""

from __future__ import annotations

import csv
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from dpkernel.version import __version__

RESULTS = Path(__file__).parent / "results"


def made_by() -> str:
    """Return the three lines that ``tools/doc_tables.py`` asks of every file of results.

    Where the code was copied without its history, the variable COMMIT names the commit.
    """
    commit = (
        os.environ.get("COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short=9", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    command = shlex.join(["python", *sys.argv])
    return f"# command: {command}\n# commit: {commit}\n# dpkernel: {__version__}\n"


def write(name: str, rows: Iterable[Sequence[object]]) -> None:
    """Write a table, its header first, to the folder of results."""
    with (RESULTS / name).open("w", newline="", encoding="utf-8") as file:
        file.write(made_by())
        csv.writer(file, lineterminator="\n").writerows(rows)
