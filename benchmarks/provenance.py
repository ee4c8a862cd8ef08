"""Who made a file of results: the command and the commit, as its first lines."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys


def made_by() -> str:
    """Return the two lines that ``tools/doc_tables.py`` asks of every file of results.

    Where the code was copied without its history, the variable COMMIT names the commit.
    """
    commit = (
        os.environ.get("COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    return f"# command: {shlex.join(['python', *sys.argv])}\n# commit: {commit}\n"
