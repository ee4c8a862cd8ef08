"""Who made a file of results: the command and the commit, as its first lines."""

from __future__ import annotations

import shlex
import subprocess
import sys


def made_by() -> str:
    """Return the two lines that ``tools/doc_tables.py`` asks of every file of results."""
    found = subprocess.run(
        ["git", "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=True
    )
    return f"# command: {shlex.join(['python', *sys.argv])}\n# commit: {found.stdout.strip()}\n"
