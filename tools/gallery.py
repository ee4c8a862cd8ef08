"""Run the examples in ``docs/gallery``, draw their pictures, and write the page that shows them.

``python tools/gallery.py`` runs all examples, and ``python tools/gallery.py NAME ...`` some of
them. An example is a Python file whose docstring is its title and its explanation. It draws one
figure.
"""

from __future__ import annotations

import ast
import io
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from PIL import Image

FOLDER = Path(__file__).parents[1] / "docs/gallery"
# in this order they stand on the page
EXAMPLES = {
    "Models": (
        *("four_budgets", "decision_boundaries", "fan_chart", "categories"),
        *("partial_dependence", "learned_relevance"),
    ),
    "How good they are": (
        *("residuals", "error_against_rows", "four_estimators", "prediction_intervals"),
        *("calibration", "kernel_choice"),
    ),
    "Privacy": (
        *("trade_off", "audit_curve", "people_or_rows", "ledger_over_time", "budget_shares"),
        "unknown_bounds",
    ),
}
NAMES = [name for group in EXAMPLES.values() for name in group]
HEAD = """\
<!-- written by tools/gallery.py -->

# Gallery

Each picture was drawn by the code below it, and `make gallery` draws all of them again. The noise is
new each time, so your picture differs a little. The tables are made up in each example.
"""
CARDS = """
::::{{grid}} 2 2 3 3
:gutter: 2
:class-container: overview

{cards}::::
"""
CARD = """\
:::{{grid-item-card}} {title}
:img-top: pictures/{name}.png
:img-alt: {title}
:link: gallery-{name}
:link-type: ref
:::
"""
ENTRY = """
(gallery-{name})=

### {title}

```{{image}} pictures/{name}.png
:alt: {title}
```

{text}

{{download}}`Download {name}.py <{name}.py>`

:::{{dropdown}} Code
```{{literalinclude}} {name}.py
:start-at: import
```
:::
"""
# colours that people with any kind of colour vision can tell apart (Okabe and Ito)
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"]
STYLE = {
    "axes.prop_cycle": mpl.cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "legend.frameon": False,
    "savefig.dpi": 130,
}


def docstring(name: str) -> tuple[str, str]:
    """Return the title and the explanation of an example."""
    found = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))) or ""
    title, _, text = found.partition("\n\n")
    return title.removesuffix("."), text


def page() -> str:
    """Return the page of the gallery."""
    parts = [HEAD]
    for group, names in EXAMPLES.items():
        cards = [CARD.format(name=name, title=docstring(name)[0]) for name in names]
        parts.append(f"\n## {group}\n{CARDS.format(cards=''.join(cards))}")
        for name in names:
            title, text = docstring(name)
            parts.append(ENTRY.format(name=name, title=title, text=text))
    return "".join(parts)


def drawn(name: str) -> bytes:
    """Run an example and return its figure as a PNG file of few colours."""
    path = FOLDER / f"{name}.py"
    plt.close("all")
    with mpl.rc_context(STYLE):
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), {"__name__": "__main__"})
        (number,) = plt.get_fignums()
        raw, small = io.BytesIO(), io.BytesIO()
        plt.figure(number).savefig(raw)
    Image.open(raw).convert("RGB").quantize(128).save(small, "png", optimize=True)
    return small.getvalue()


def main() -> None:
    """Draw the pictures and write the page."""
    mpl.use("Agg")
    (FOLDER / "pictures").mkdir(exist_ok=True)
    for name in sys.argv[1:] or NAMES:
        picture = drawn(name)
        (FOLDER / f"pictures/{name}.png").write_bytes(picture)
        print(f"{name}: {len(picture) / 1000:.0f} kB", flush=True)
    (FOLDER / "index.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
