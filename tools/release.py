"""Check an installed wheel before a release: where it is loaded from, and that all versions agree.

Run by ``make release-check`` with the interpreter of a fresh environment::

    python tools/release.py dist
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def faults(dist: Path) -> list[str]:
    """Return what stands in the way of a release."""
    import dpkernel

    version, found = metadata.version("dpkernel"), []
    if Path(dpkernel.__file__).is_relative_to(ROOT / "src"):
        found.append("dpkernel is loaded from the source tree and not from the wheel.")
    built = {path.name for path in dist.iterdir()}
    wanted = {f"dpkernel-{version}.tar.gz", f"dpkernel-{version}-py3-none-any.whl"}
    if built != wanted:
        found.append(f"{dist.name} holds {sorted(built)} and not {sorted(wanted)}.")
    if dpkernel.__version__ != version:
        found.append(f"dpkernel.__version__ is {dpkernel.__version__}, the package is {version}.")
    for name, pattern in (("CHANGELOG.md", r"^## (\S+)"), ("CITATION.cff", r"^version: (.+)$")):
        stated = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.M)
        if stated is None or stated[1] != version:
            found.append(f"{name} does not begin with version {version}.")
    return found


if __name__ == "__main__":
    problems = faults(Path(sys.argv[1]))
    print(
        "\n".join(problems)
        or "The installed wheel is the one that was built, and all versions agree."
    )
    sys.exit(bool(problems))
