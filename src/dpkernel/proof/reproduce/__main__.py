"""``python -m dpkernel.proof.reproduce PAPER ITEM``, or ``all`` for every figure and table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dpkernel.foundations.errors import DataError, DPKernelError
from dpkernel.proof.reproduce import FIGURES, claimed, needs_songs, reproduce
from dpkernel.proof.reproduce.errata import shown


def main(
    paper: Annotated[
        str, typer.Argument(help="The paper: lee-park-ahn, wang-lei, errata, or all.")
    ],
    item: Annotated[
        str, typer.Argument(help="The item: fig1 .. fig12, table1; none for errata.")
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("reproduction"),
    quick: Annotated[bool, typer.Option(help="Make 10 repetitions instead of 100.")] = False,
    data: Annotated[Path | None, typer.Option(help="A file with the Million Song table.")] = None,
    repetitions: Annotated[int | None, typer.Option(help="Number of repetitions.")] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Take songs from the whole table, not from 7,000.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Number of processes, with one thread each.")] = 2,
) -> None:
    """Reproduce a published figure or table, as one PNG and one CSV file."""
    console, failed = Console(highlight=False, soft_wrap=True), None
    for key in FIGURES if paper == "all" else [(paper, item)]:
        if failed is not None and needs_songs(*key):
            continue
        try:
            found = reproduce(
                *key,
                out=out,
                quick=quick,
                data=data,
                repetitions=repetitions,
                n_jobs=jobs,
                whole=whole,
            )
        except DPKernelError as error:
            if paper != "all" or not (isinstance(error, DataError) and needs_songs(*key)):
                console.print(f"error: {error}", markup=False)
                raise typer.Exit(1) from error
            failed = error
            console.print(f"The Million Song figures are left out: {error}", markup=False)
            continue
        except OSError as error:
            reason = error.strerror or type(error).__name__
            console.print(f"error: the results can't be read or written: {reason}.", markup=False)
            raise typer.Exit(1) from error
        if key[0] == "errata":
            console.print(shown(found[1]))
        for line in claimed(found[-1]):
            console.print(line, markup=False)
        for path in found:
            console.print(f"written: {path}", markup=False)


if __name__ == "__main__":
    typer.run(main)
