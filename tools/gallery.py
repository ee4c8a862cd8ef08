"""Run the code of ``docs/gallery.md``, which draws its own pictures into ``docs/pictures``."""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    """Run all blocks in order, in the folder of the page."""
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    os.chdir(DOCS)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(compile(block, "gallery.md", "exec"), names)
    print("written:", *sorted(str(path) for path in Path("pictures").glob("*.png")))


if __name__ == "__main__":
    main()
