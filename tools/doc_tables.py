"""Write the measured tables of the documentation from the files in ``benchmarks/results``.

A page marks a table by a comment on the line before it, ``<!-- benchmarks/results/NAME.csv -->``.
The file's first lines say which command at which commit of which version made the numbers; a line
above the comment repeats it for the reader. ``--check`` writes nothing and exits with 1 if a page is
not what the files say.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from pathlib import Path

from dpkernel.version import __version__

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"^<!-- (benchmarks/results/[\w-]+\.csv) -->$")
NOTE = re.compile(r"^# (command|commit|dpkernel): (\S.*)$")
LABEL = "*Measured with version "


def pages() -> list[Path]:
    """Return every page that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def read(path: Path) -> tuple[dict[str, list[str]], list[list[str]]]:
    """Return who made a file (commands, commits and versions) and its rows, the header first."""
    lines = path.read_text(encoding="utf-8").splitlines()
    made: dict[str, list[str]] = {}
    for match in filter(None, map(NOTE.match, lines)):
        made.setdefault(match[1], []).append(match[2])
    return made, list(csv.reader(line for line in lines if not line.startswith("#")))


def label(made: dict[str, list[str]]) -> str:
    """Return a line that says how old the numbers of a table are, and what made them."""
    *earlier, last = versions = sorted({*made["dpkernel"]})
    measured = f"{', '.join(earlier)} and {last}" if earlier else last
    commands = {command.partition(" --")[0] for command in made["command"]}
    now = "" if versions == [__version__] else f"; the present version is {__version__}"
    by = " and ".join(f"`{command}`" for command in sorted(commands))
    return f"{LABEL}{measured} by {by}{now}.*"


def as_markdown(rows: list[list[str]]) -> list[str]:
    """Return the rows, the first of which is the header, as the lines of a Markdown table."""
    # a number and its error stay on one line
    head, *body = (
        f"| {' | '.join(row)} |".replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
        for row in rows
    )
    return [head, "|" + "---|" * len(rows[0]), *body]


def rendered(text: str) -> str:
    """Return a page with each marked table replaced by what its file says."""
    lines, out = iter(text.split("\n")), []
    waiting = ""
    for line in lines:
        if waiting and line.startswith("|"):
            continue
        waiting = ""
        match = MARK.match(line)
        if match:
            waiting = match[1]
            made, rows = read(ROOT / waiting)
            if out[-2].startswith(LABEL):
                del out[-2:]
            out += [label(made), "", line, *as_markdown(rows)]
        else:
            out.append(line)
    return "\n".join(out)


def main() -> int:
    """Write or check all pages."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true", help="write nothing")
    check = options.parse_args().check
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = rendered(text)
        if new != text:
            stale.append(page.name)
            if not check:
                page.write_text(new, encoding="utf-8")
    print(("stale: " if check else "written: ") + (", ".join(stale) or "none"))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
