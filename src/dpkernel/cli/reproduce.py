"""``dpkernel reproduce``: compute figures and tables of published papers again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpkernel.cli.output import Output


def reproduce(
    output: Output,
    paper: Annotated[str, typer.Argument(help="The paper: lee-park-ahn, wang-lei or errata.")],
    item: Annotated[str, typer.Argument(help="The item: fig1, table1, ...; none for errata.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for pictures and tables.")] = Path(
        "reproduction"
    ),
    quick: Annotated[bool, typer.Option(help="Make a tenth of the repetitions.")] = False,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Number of repetitions.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="A file with the paper's data, if it needs one.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Take songs from the whole table, not from 7,000.")
    ] = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="Number of processes, with one thread each.")
    ] = 2,
) -> None:
    """Reproduce a figure or table of a paper, as a picture and a CSV file."""
    from dpkernel.proof.reproduce import claimed
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
        n_jobs=jobs,
        whole=whole,
    )
    if paper == "errata":
        output.show(shown(written[1]))
    said = claimed(written[-1])
    for line in said:
        output.say(line)
    for path in written:
        output.say(str(path))
    output.result({"written": [str(path) for path in written], "claim": said})
