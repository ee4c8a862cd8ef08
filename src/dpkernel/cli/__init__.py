"""The command line: ``dpkernel``, also ``python -m dpkernel``. One module a command or group."""

from __future__ import annotations

import typer

from dpkernel.cli import audit, bounds, certificates, fit, ledger, plan, predict, reproduce
from dpkernel.cli import demo as demo_command

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Private kernel models with a certificate anyone can verify.",
    epilog="Exit codes: 0 done; 1 refused, or verification failed; 2 wrong usage; 130 interrupted.",
)
for module in (bounds, plan, fit, predict, certificates, audit, ledger, reproduce, demo_command):
    module.add_to(app)

__all__ = ["app"]
