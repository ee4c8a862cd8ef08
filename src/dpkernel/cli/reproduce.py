"""``dpkernel reproduce``: figures and tables of published papers, computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpkernel.cli.output import Output, command


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "reproduce")(reproduce)


def reproduce(
    output: Output,
    paper: Annotated[str, typer.Argument(help="lee-park-ahn, wang-lei, errata, ...")],
    item: Annotated[str, typer.Argument(help="fig1, table1, ...")],
    out: Annotated[Path, typer.Option(help="Folder for pictures and tables.")] = Path("reproduction"),
    quick: Annotated[bool, typer.Option(help="Few repetitions.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="A file with the paper's data, where it needs one.")
    ] = None,
) -> None:
    """Compute a figure or table of a paper again; write a picture and a CSV."""
    from dpkernel.reproduce import reproduce as compute

    written = compute(paper, item, out=out, quick=quick, data=data, progress=output.live)
    for path in written:
        output.say(str(path))
    output.result({"written": [str(path) for path in written]})
