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
    paper: Annotated[str, typer.Argument(help="lee-park-ahn, wang-lei or errata.")],
    item: Annotated[str, typer.Argument(help="fig1, table1, ...; none for errata.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for pictures and tables.")] = Path(
        "reproduction"
    ),
    quick: Annotated[bool, typer.Option(help="A tenth of the repetitions.")] = False,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Another number of them.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="A file with the paper's data, where it needs one.")
    ] = None,
) -> None:
    """Compute a figure or table of a paper again; write a picture and a CSV."""
    from dpkernel.proof.reproduce import reproduce as compute
    from dpkernel.proof.reproduce.errata import shown

    written = compute(
        paper,
        item,
        out=out,
        quick=quick,
        data=data,
        repetitions=repetitions,
        progress=output.live,
    )
    if paper == "errata":
        output.show(shown(written[1]))
    for path in written:
        output.say(str(path))
    output.result({"written": [str(path) for path in written]})
