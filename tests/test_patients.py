"""The made-up hospital of the demonstration."""

from __future__ import annotations

import csv
from collections import Counter

import numpy as np

from dpkernel.data.table_files import encode_table, inspect_table, open_table, read_schema
from dpkernel.outputs.patients import BOUNDS, HEADER, visits


def test_the_table_is_as_its_description_says(tmp_path):
    rows = list(visits(3000))
    assert rows == list(visits(3000)) and rows != list(visits(3000, seed=1))
    counts = Counter(row["patient"] for row in rows)
    assert len(counts) == 3000 and 1.4 < len(rows) / 3000 < 1.8 and max(counts.values()) > 3
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, HEADER)
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "b.toml").write_text(BOUNDS, encoding="utf-8")
    schema = read_schema(tmp_path / "b.toml")
    found = inspect_table(open_table(tmp_path / "t.csv"), schema)
    shares = {c.rule.name: c.missing / c.n_rows for c in found.columns}
    assert 0.08 < shares["crp"] < 0.16 and shares["age"] == 0 and not found.refusals
    assert all(c.unreadable == 0 and c.clipped < 0.02 * c.n_rows for c in found.columns)
    X, y = encode_table(open_table(tmp_path / "t.csv"), schema, strict=True).arrays()
    design = np.column_stack([X, np.ones(len(X))])
    left = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    assert 0.5 < np.var(left) / np.var(y) < 0.8  # there is something to learn, and much noise
    assert 0 < sum(row["ward"] == "palliative" for row in rows) < 0.03 * len(rows)
    assert any(row["crp"] == "<0.5" for row in rows)
