"""Who made a file of results: the command, the commit and the version, as its first lines."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from dpkernel.version import __version__


def made_by() -> str:
    """Return the three lines that ``tools/doc_tables.py`` asks of every file of results.

    Where the code was copied without its history, the variable COMMIT names the commit.
    """
    commit = (
        os.environ.get("COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    command = shlex.join(["python", *sys.argv])
    return f"# command: {command}\n# commit: {commit}\n# dpkernel: {__version__}\n"
