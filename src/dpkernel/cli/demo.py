"""``dpkernel demo``: go from a CSV to a private model, a report and an audit with the other commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpkernel.cli.output import Output
from dpkernel.outputs.demo import run_demo


def demo(
    output: Output,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("demo"),
) -> None:
    """Go from a CSV of patients to a private model, its report and an audit."""
    results = run_demo(out, output.say)
    output.result({name: str(path) for name, path in results.items()})
