"""The command line: ``dpkernel``, also ``python -m dpkernel``. One module a command or group."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dpkernel.cli import audit, bounds, certificates, fit, ledger, plan, predict, reproduce
from dpkernel.cli import demo as demo_command
from dpkernel.version import __version__


class _Commands(TyperGroup):
    """The commands; with --json wrong usage, too, is a JSON object on standard output."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        wanted = ctx.meta["dpkernel.json"] = "--json" in args
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            _tell_usage(error, wanted)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            _tell_usage(error, ctx.meta["dpkernel.json"])
            raise


def _tell_usage(error: Exception, as_json: bool) -> None:
    if as_json and getattr(error, "exit_code", None) == 2 and hasattr(error, "format_message"):
        typer.echo(json.dumps({"ok": False, "error": error.format_message()}, indent=2))


app = typer.Typer(
    cls=_Commands,
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
