"""The command line: ``dpkernel``, also ``python -m dpkernel``. One module a command or group."""

from __future__ import annotations

from typing import Annotated

import typer

from dpkernel.cli import audit, bounds, certificates, fit, ledger, plan, predict, reproduce
from dpkernel.cli import demo as demo_command
from dpkernel.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Private kernel models with a certificate anyone can verify.",
    epilog="Exit codes: 0 done; 1 refused, or verification failed; 2 wrong usage; 130 interrupted.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dpkernel {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="The version.")
    ] = False,
) -> None:
    pass


for module in (bounds, plan, fit, predict, certificates, audit, ledger, reproduce, demo_command):
    module.add_to(app)

__all__ = ["app"]
