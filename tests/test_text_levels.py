"""Columns of texts with declared levels, in ``fit`` and ``predict`` directly."""

from __future__ import annotations

import numpy as np
import pytest

from dpkernel import (
    Domain,
    Interval,
    Levels,
    People,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
    SeededNoise,
    load,
    save,
)
from dpkernel.data.cells import column_names
from dpkernel.data.declared import has_words
from dpkernel.data.domain import with_positions
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.outputs.report import write_report

pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
arrow = pytest.importorskip("pyarrow")
WARDS = ["north", "south", "west"]
DOMAIN = Domain((Interval(0, 100), Levels(tuple(WARDS))), names=("age", "ward"))
FORMS = {
    "domain": DOMAIN,
    "levels in a dict": {"age": (0, 100), "ward": Levels(tuple(WARDS))},
    "texts in a dict": {"age": (0, 100), "ward": WARDS},
    "list": [(0, 100), Levels(tuple(WARDS))],
}
KINDS = [PrivateKernelRegressor, PrivateKernelRidge, PrivateQuantileRegressor]


def table(n=400, seed=0):
    rng = np.random.default_rng(seed)
    frame = pandas.DataFrame({"age": rng.uniform(0, 100, n), "ward": rng.choice(WARDS, n)})
    return frame, np.where(frame.ward == "north", 8.0, 2.0)


def ridge(bounds=DOMAIN, **options):
    return PrivateKernelRidge(5.0, bounds=bounds, y_bounds=(0, 10), noise=SeededNoise(0), **options)


CONTAINERS = {
    "frame": lambda frame: frame,
    "objects": lambda frame: frame.to_numpy(dtype=object),
    "lists": lambda frame: frame.to_numpy(dtype=object).tolist(),
    "categories": lambda frame: frame.astype({"ward": "category"}),
    "strings": lambda frame: frame.astype({"ward": "string"}),
    "polars": lambda frame: polars.DataFrame(frame.to_dict("list")),
    "arrow": lambda frame: arrow.table(frame.to_dict("list")),
    "batch of arrow": lambda frame: arrow.record_batch(frame.to_dict("list")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_estimator_takes_texts(kind):
    X, y = table()
    model = kind(9.0, bounds=DOMAIN, y_bounds=(0, 10)).fit(X, y)
    north, south = model.predict(pandas.DataFrame({"age": [50.0] * 2, "ward": ["north", "south"]}))
    assert north > south + 2 and model.certificate_.private


def test_so_does_a_classifier():
    X, y = table()
    labels = np.where(y > 5, "ill", "well")
    model = PrivateKernelClassifier(9.0, bounds=DOMAIN, classes=["ill", "well"]).fit(X, labels)
    assert model.score(X, labels) > 0.9


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("form", FORMS)
def test_all_forms_and_containers_give_the_same_bits(form, container):
    X, y = table()
    coded = np.column_stack([X.age, *((X.ward == ward) * 1.0 for ward in WARDS)])
    box = ([0, -1, -1, -1], [100, 1, 1, 1])
    expected = ridge(box).fit(coded, y).predict(coded)
    given = CONTAINERS[container](X)
    found = ridge(FORMS[form]).fit(given, y)
    np.testing.assert_array_equal(found.predict(given), expected)


@pytest.mark.parametrize("cell", ["moon", None, np.nan, 1, 0.0, True, ("north",), "North"])
@pytest.mark.parametrize("container", ["frame", "objects", "lists"])
def test_a_neighbour_changes_its_own_row_only(cell, container):
    """One record is replaced by an odd one; all other rows of both tables have the same numbers."""
    X, _ = table(50)
    other = X.astype({"ward": object})
    other.at[7, "ward"] = cell
    one, two = (with_positions(CONTAINERS[container](t), DOMAIN) for t in (X, other))
    np.testing.assert_array_equal(np.delete(one, 7, 0), np.delete(two, 7, 0))
    assert two[7, 1] == -1  # none of the levels
    assert (DOMAIN.of_positions.to_unit(two)[7, 1:] == 0).all()


def test_the_whole_fit_moves_by_no_more_than_one_row(monkeypatch):
    """With the noise of one seed, a neighbour with an odd cell is a neighbour with no level."""
    X, y = table(60)
    odd, blank = X.astype({"ward": object}), X.astype({"ward": object})
    odd.at[3, "ward"], blank.at[3, "ward"] = 7.5, None
    np.testing.assert_array_equal(ridge().fit(odd, y).coef_, ridge().fit(blank, y).coef_)


def test_people_files_and_reports(tmp_path):
    X, y = table()
    model = PrivateKernelRegressor(9.0, bounds=FORMS["texts in a dict"], y_bounds=(0, 10))
    model.fit(X, y, groups=np.arange(len(y)) // 2)
    again = load(save(model, tmp_path / "m.dpk"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    page = write_report(model, tmp_path / "r.html").read_text("utf-8")
    assert "is largest for north" in page


def test_the_levels_of_the_fit_count_in_predict():
    X, y = table()
    model = ridge().fit(X, y)
    before = model.predict(X)
    model.set_params(bounds={"age": (0, 100), "ward": WARDS[::-1]})
    np.testing.assert_array_equal(model.predict(X), before)


def test_numbers_among_the_levels_stay_numbers():
    assert not has_words(Domain((Levels((0, 1)), Levels((True, False)))))
    assert not has_words((0, 1)) and not has_words(None) and not has_words([(0, 1), (2, 3)])
    assert has_words({"a": (0, 1), "b": ("x", "y")}) and has_words([Levels((1, "x"))])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": ["veteran"] * 400}, "Column 'age' of X is declared as numbers"),
        ({"age": [np.nan] * 400}, "NaN"),
        ({"extra": [1.0] * 400}, "column"),
    ],
)
def test_bad_tables_cost_nothing(change, message):
    X, y = table()
    with pytest.raises(DataError, match=message) as caught:
        ridge().fit(X.assign(**change), y)
    assert "veteran" not in str(caught.value)


@pytest.mark.parametrize("container", ["frame", "polars", "arrow", "batch of arrow"])
@pytest.mark.parametrize("groups", [None, "one", "near"])
def test_no_message_quotes_a_column(container, groups):
    """The attribute ``columns`` of an Arrow table is not its names but all its cells."""
    X, y = table(60)
    people = None if groups is None else People(np.arange(60) // 2, groups)
    texts = X.assign(age=[f"{age:.3f}" for age in X.age]).replace(
        {"age": {f"{X.age[9]:.3f}": "veteran"}}
    )
    cells = {f"{age:.3f}"[:5] for age in X.age} | {"veteran", "west"}
    strange = Domain(DOMAIN.columns, names=("years", "place"))
    with pytest.raises(DataError, match=r"^The columns of X are \['age', 'ward'\]") as caught:
        ridge(strange).fit(CONTAINERS[container](X), y, groups=people)
    assert not any(cell in str(caught.value) for cell in cells)
    for bounds in FORMS.values():
        with pytest.raises(DataError, match="^Column 'age' of X is declared as numbers") as caught:
            ridge(bounds).fit(CONTAINERS[container](texts), y, groups=people)
        assert not any(cell in str(caught.value) for cell in cells)
    assert column_names(CONTAINERS[container](X)) == ["age", "ward"]


def test_columns_that_are_no_names_are_not_taken_for_names():
    class Odd:
        columns = (np.arange(3), np.arange(3))

    assert column_names(Odd()) is None and column_names(np.zeros((2, 2))) is None
    X = pandas.DataFrame({"column_names": [0.125, 0.5], "columns": [0.25, 0.75]})
    assert column_names(X) == ["column_names", "columns"]
    with pytest.raises(DataError, match=r"^The columns of X are \['column_names', 'columns'\]"):
        ridge(Domain((Interval(0, 1),) * 2, names=("a", "b"))).fit(X, [0.0, 1.0])


def test_other_tables_than_those_in_memory_are_refused():
    frames = pytest.importorskip("dask.dataframe")
    X, y = table()
    with pytest.raises(ParameterError, match="needs a table in memory"):
        ridge().fit(frames.from_pandas(X, npartitions=2), y)
