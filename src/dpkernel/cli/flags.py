"""Commands and groups whose help shows flags without a type. This module loads quickly."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _BareFlags:
    """Makes the help of a command show flags without a type, because they take no value."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters of the command."""
        found = super().get_params(ctx)  # type: ignore[misc]
        for parameter in found:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        return found


class Command(_BareFlags, TyperCommand):
    """A command."""


class Group(_BareFlags, TyperGroup):
    """A group of commands."""
