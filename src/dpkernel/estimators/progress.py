"""How a fit shows which of its parts is running."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console


@contextlib.contextmanager
def announced(text: str, *, verbose: bool) -> Iterator[None]:
    """Show a text while a part runs and after it, if verbose. The text must be public."""
    if not verbose:
        yield
        return
    console = Console()
    with console.status(text):
        yield
    console.print(text)
