"""The command line, ``dpkernel`` or ``python -m dpkernel``, with one module per command or group."""

from __future__ import annotations

import json
import os
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from dpkernel.cli.flags import Group
from dpkernel.foundations.environment import KEY_VARIABLE
from dpkernel.version import __version__

# for every command: the module that defines it, and the first line of its help
COMMANDS = {
    "bounds": (
        "bounds",
        "Write a bounds.toml: a template (--schema), or bounds that are found privately (--private).",
    ),
    "check": (
        "check",
        "Show the data's owner what a fit would do with the cells of a file. Not private.",
    ),
    "plan": (
        "plan",
        "Say which error to expect, by fits to made-up rows. Reads no data and spends nothing.",
    ),
    "fit": ("fit", "Train a private model on a file of rows. The file may be larger than memory."),
    "predict": (
        "predict",
        "Predict every row of a file. Columns that the model does not know are ignored.",
    ),
    "score": (
        "score",
        "Release how good a model is on the rows of a file, with noise and an interval.",
    ),
    "show": ("certificates", "Print a certificate in words, and the columns of a model."),
    "verify": (
        "certificates",
        "Recompute epsilon and delta; exit with 1 if the parameters do not support the claim.",
    ),
    "report": (
        "certificates",
        "Write one HTML page that explains a model and its guarantee to people without Python.",
    ),
    "audit": (
        "audit",
        "Fit many times to two tables that differ in a few records, and try to tell them apart.",
    ),
    "reproduce": (
        "reproduce",
        "Reproduce a figure or table of a paper, as a picture and a CSV file.",
    ),
    "demo": ("demo", "Go from a CSV of patients to a private model, its report and an audit."),
    "ledger": ("ledger", "Create, list, export and plot a ledger."),
}


class _Commands(Group):
    """Load each command only when it is called, so that --help is quick.

    With --json, an error in the usage is also reported as a JSON object on standard output.
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
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    key_file: Annotated[
        str | None,
        typer.Option(
            "--key-file",
            envvar=KEY_VARIABLE,
            help="The file with the owner's secret key, for ledgers that one protects.",
        ),
    ] = None,
) -> None:
    if key_file is not None:
        os.environ[KEY_VARIABLE] = key_file  # every command that opens a ledger finds it there


def load_command(name: str) -> Any:
    """Import the module of a command and return the command: its function, or a group of commands."""
    from dpkernel.cli.output import command  # takes long, and --help does not need it

    module = import_module(f"dpkernel.cli.{COMMANDS[name][0]}")
    own = typer.Typer()
    if hasattr(module, "group"):
        own.add_typer(module.group, name=name)
    else:
        command(own, name)(getattr(module, name))
    return typer.main.get_group(own).commands[name]


__all__ = ["app"]
