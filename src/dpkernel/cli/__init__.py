"""The command line: ``dpkernel``, also ``python -m dpkernel``. One module a command or group."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main
from typer.core import TyperGroup

from dpkernel.version import __version__

# every command: the module that has it, and the first line of its help
COMMANDS = {
    "bounds": (
        "bounds",
        "Write a bounds.toml for a file: a template (--schema), or filled privately (--private).",
    ),
    "plan": (
        "plan",
        "Tell what error to expect at n and epsilon, by fits to made-up rows. Reads and spends nothing.",
    ),
    "fit": ("fit", "Train a private model on a file of rows. The file may be larger than memory."),
    "predict": (
        "predict",
        "Predict every row of a file; columns that the model does not know are ignored.",
    ),
    "show": ("certificates", "Print a certificate in words, and the columns of a model."),
    "verify": (
        "certificates",
        "Recompute epsilon and delta from the parameters; exit with 1 unless they support the claim.",
    ),
    "report": (
        "certificates",
        "Write one HTML page that explains a model and its guarantee to people without Python.",
    ),
    "audit": (
        "audit",
        "Fit again and again to two tables that differ in a few records, and try to tell them apart.",
    ),
    "reproduce": (
        "reproduce",
        "Compute a figure or table of a paper again; write a picture and a CSV.",
    ),
    "demo": ("demo", "Go from a CSV of patients to a private model, its report and an audit."),
    "ledger": ("ledger", "Make, list, export and draw a ledger."),
}


class _Commands(TyperGroup):
    """The commands, each loaded when it is called, so that --help is quick.

    With --json wrong usage, too, is a JSON object on standard output.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in ctx.meta.get("dpkernel.called", ()):
            return load_command(cmd_name)
        return typer.core.TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        ctx.meta["dpkernel.called"] = args[:1]
        return super().resolve_command(ctx, args)

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
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="The version."),
    ] = False,
) -> None:
    pass


def load_command(name: str) -> Any:
    """Return a command with everything that it imports."""
    module = import_module(f"dpkernel.cli.{COMMANDS[name][0]}")
    group = typer.Typer()
    module.add_to(group)
    return typer.main.get_group(group).commands[name]


__all__ = ["app"]
