"""Missing values that a fit replaces by a private median or mean, in one spend with the model."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from cli_tables import inside
from dpkernel import Budget, Ledger, PrivateKernelRidge, SeededNoise, fit_table, load, read_table
from dpkernel.data.table_files import read_schema
from dpkernel.estimators.cell_counts import LABEL
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.preprocessing import PrivateImputer
from replay import Replay, differences, ratios

N = 3000
BOUNDS = """
ignore = ["p"]
[columns.a]
low = 0
high = 100
missing = "private median"
[columns.b]
low = -10
high = 10
missing = "private mean"
indicator = true
[columns.c]
low = 0
high = 1
[columns.day]
low = 2020-01-01
high = 2030-01-01
missing = "private median"
[target]
name = "y"
"""
NUMBERS = "low = 0\nhigh = 100\n"
LABELS = 'levels = ["no", "yes"]\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table in which a is near 20, b near 3 and the day in 2026, and some of each is missing."""
    path, draw = tmp_path_factory.mktemp("study"), np.random.default_rng(0)
    a, b, c = draw.normal(20, 2, N), draw.normal(3, 0.5, N), draw.random(N)
    lines = ["p,a,b,c,day,y,label"]
    for i in range(N):
        y = 50 + 3 * (a[i] - 20) + 10 * c[i] + draw.normal()
        cells = [i // 2, f"{a[i]:.3f}", f"{b[i]:.3f}", f"{c[i]:.3f}", f"2026-0{1 + i % 9}-10"]
        for place in (1, 2, 4):
            if draw.random() < 0.2:
                cells[place] = ["", "?", "nan"][i % 3]
        lines.append(",".join(map(str, [*cells, f"{y:.2f}", "yes" if y > 55 else "no"])))
    (path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    ignored = BOUNDS.replace('"p"', '"p", "label"')
    (path / "y.toml").write_text(ignored + NUMBERS, encoding="utf-8")
    label = BOUNDS.replace('"p"', '"p", "y"').replace('"y"\n', '"label"\n')
    (path / "label.toml").write_text(label + LABELS, encoding="utf-8")
    return path


FITS = {
    "regression": ("y.toml", "--task", "regression", "--estimator", "PrivateKernelRidge"),
    "people": ("y.toml", "--group", "p", "--estimator", "PrivateKernelRegressor"),
    "classes": ("label.toml", "--task", "classification", "--neighbours", "zero-out"),
    "quantiles": ("y.toml", "--task", "quantile", "--quantile", "0.1", "--quantile", "0.9"),
}


@pytest.mark.parametrize("name", FITS)
def test_one_spend_one_certificate_and_a_model_that_fills_by_itself(folder, tmp_path, name):
    bounds, *more = FITS[name]
    ledger, model = tmp_path / "l.db", tmp_path / "m.dpk"
    relation = ("--neighbours", "zero-out") if name == "classes" else ()
    made = ("--dataset", "d", "--epsilon", 3, "--delta", 1e-6)
    assert inside("ledger", "create", ledger, *made, *relation).returncode == 0
    line = ("fit", folder / "t.csv", "--bounds", folder / bounds, *more, "--ledger", ledger)
    done = inside(*line, "--epsilon", 3, "--out", model, "--report", tmp_path / "r.html", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["epsilon"] <= 3.0 and len(Ledger(ledger).spends) == 1
    assert set(told["imputed"]) == {"a", "b", "day"}
    assert 15 < told["imputed"]["a"] < 25 and 2 < told["imputed"]["b"] < 4
    fitted = load(model)
    certificate = fitted.certificate_
    assert certificate.verify().epsilon <= 3.0
    labels = [release.label for release in certificate.releases]
    assert labels[0] == "missing values: coarse histograms" and labels[-1] == f"model: {LABEL}"
    assert abs(told["cells"]["shares"]["a"]["missing"] - 0.2 * 2 / 3) < 0.1
    assert inside("verify", model).returncode == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "a missing cell is replaced by the private median" in text
    rows = "a,b,c,day\n,3,0.5,2026-05-10\n{},3,0.5,2026-05-10\n"
    (tmp_path / "n.csv").write_text(rows.format(repr(told["imputed"]["a"])), encoding="utf-8")
    found = inside("predict", model, tmp_path / "n.csv").stdout.splitlines()[1:]
    assert found[0] == found[1]


def test_nothing_exact_stays_in_the_fitted_model(folder, tmp_path, monkeypatch):
    from dpkernel.cli import fit

    kept = []
    monkeypatch.setattr(fit, "save_model", lambda model, *rest, **more: kept.append(model))
    line = ("fit", folder / "t.csv", "--bounds", folder / "y.toml", "--out", tmp_path / "m.dpk")
    assert inside(*line, "--estimator", "PrivateKernelRidge").returncode == 0
    (model,) = kept
    for one in (model, *(step for _, step in model.steps_)):
        assert "_beside" not in vars(one)


def test_the_ledger_refuses_the_whole(folder, tmp_path):
    ledger = tmp_path / "l.db"
    made = ("--dataset", "d", "--epsilon", 0.5, "--delta", 1e-6)
    inside("ledger", "create", ledger, *made)
    line = ("fit", folder / "t.csv", "--bounds", folder / "y.toml", "--ledger", ledger)
    done = inside(*line, "--out", tmp_path / "m.dpk", "--epsilon", 1)
    assert done.returncode == 1 and Ledger(ledger).spends == []


def test_a_resume_file_is_refused_before_a_spend(folder, tmp_path):
    line = ("fit", folder / "t.csv", "--bounds", folder / "y.toml", "--resume", tmp_path / "r")
    done = inside(*line, "--out", tmp_path / "m.dpk")
    assert done.returncode == 1 and "--resume can't be used" in done.stderr
    assert not (tmp_path / "r").exists()


WRONG = {
    "[columns.a]\nlow=0\nhigh=1\nmissing='private mode'": "'private median', 'private mean'",
    "[columns.a]\nlevels=['x']\nmissing='private mean'": "must be one of its levels",
    "[columns.a]\nlow=0\nhigh=1\n[target]\nname='y'\nlow=0\nhigh=1\nmissing='private mean'": (
        "target 'y' .* State a number"
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_where_the_fit_can_find_nothing_the_declaration_is_refused(tmp_path, text):
    (tmp_path / "b.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ParameterError, match=WRONG[text]):
        read_schema(tmp_path / "b.toml")


def test_each_column_has_its_own_strategy():
    X = np.random.default_rng(0).normal([20.0, 5.0, 1.0], 1.0, (5000, 3))
    X[:, 0] = np.exp(X[:, 0] - 18)  # its mean is far from its median
    X[::3, 0], X[::4, 2] = np.nan, np.nan
    imputer = PrivateImputer(5.0, strategy=["median", None, "mean"], bounds=(0, 100)).fit(X)
    assert abs(imputer.statistics_[0] - np.nanmedian(X[:, 0])) < 1
    assert np.isnan(imputer.statistics_[1]) and abs(imputer.statistics_[2] - 1) < 0.3
    assert imputer.missing_[1] == 0 and imputer.certificate_.verify().epsilon <= 5.0
    filled = imputer.transform(X)
    np.testing.assert_array_equal(filled[:, 1], X[:, 1])
    alone = PrivateImputer(5.0, strategy="median", bounds=(0, 100)).fit(X)
    first, whole = (one.certificate_.releases[0].mechanism for one in (imputer, alone))
    assert first.sensitivity.value < whole.sensitivity.value  # a column without one costs nothing
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    X[7, 1] = np.nan
    with pytest.raises(DataError, match="strategy is None"):
        PrivateImputer(strategy=["median", None, "mean"], bounds=(0, 100), ledger=ledger).fit(X)
    assert ledger.spends == []


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ([None, None], "a list of 'median', 'mean' and None"),
        (["mode", None], "a list of 'median', 'mean' and None"),
        (["mean"], "must have an entry per column"),
    ],
)
def test_wrong_strategies_are_refused(strategy, message):
    with pytest.raises(ParameterError, match=message):
        PrivateImputer(strategy=strategy, bounds=(0, 1)).fit(np.zeros((9, 2)))


# --- neighbours of a whole file ---------------------------------------------------------------------


def file_fit(path, lines, group):
    """Fit what ``dpkernel fit`` does to a file of these lines, with a seed for the order of people."""
    path.write_text("p,a,b,c,day,y\n" + "\n".join(lines) + "\n", encoding="utf-8")
    declared = path.with_suffix(".toml")
    declared.write_text(BOUNDS + NUMBERS, encoding="utf-8")
    table = read_table(path, declared, group=group, strict=False)
    given = {"epsilon": 1000.0, "delta": 1e-5, "bounds": table.bounds, "y_bounds": (0, 100)}
    return fit_table(PrivateKernelRidge(**given, n_features=8, noise=SeededNoise(0)), table)


@pytest.mark.parametrize("group", [None, "p"])
def test_no_line_of_a_file_moves_more_than_certified_and_nothing_else_differs(
    group, tmp_path, monkeypatch
):
    """From the file to the model, missing values and shares of cells; people have several lines."""
    draw, replay = np.random.default_rng(0), Replay(monkeypatch)
    others = [
        f"{i // 2},{draw.normal(20, 2):.3f},{'' if i % 3 else '4'},{draw.random():.3f},"
        f"{'?' if i % 4 else '2026-05-01'},{draw.uniform(0, 100):.2f}"
        for i in range(40)
    ]
    found, start = {}, None
    cells = [["21", "", "1e300"], ["", "-10"], ["nan", "1"], ["", "2029-12-31"], ["0", "1e308", ""]]
    for number, line in enumerate([*itertools.product(*cells)][::5]):
        repeated = 1 if group is None else (1, 3, 40)[number % 3]
        lines = [*others, *[",".join(["99", *line])] * repeated]
        one, seen = replay.run(lambda: file_fit(tmp_path / "t.csv", lines, group))  # noqa: B023
        start = start or (one, seen)
        left_over = differences(start[0], one)
        assert [path for path in left_over if not path.endswith("._family")] == []  # a random name
        for place, (before, after) in enumerate(zip(start[1], seen, strict=True)):
            (ratio,) = ratios([before], [after]).values()
            found[place] = max(found.get(place, 0.0), ratio)
        released = {step.mechanism.sensitivity.formula for step in seen}
    assert ("column-histograms" if group is None else "unit-shares") in released
    assert max(found.values()) <= 1 + 1e-9 and min(found.values()) > 0
    assert sorted(found.values())[-1] > 0.7
