"""The declared domain: its errors, the unit box, and norm clipping to the last bit.

Norms are computed in rational arithmetic here, so that "within the bound" is no estimate.
"""

import datetime
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpkernel import PrivateKernelRidge, SeededNoise
from dpkernel.data.declared import n_declared, resolve_domain
from dpkernel.data.domain import Domain, Interval, Levels, clip_rows
from dpkernel.foundations.errors import CertificateError, DataError, ParameterError

LARGEST = 1.7976931348623157e308
PLAIN = settings(derandomize=True, deadline=None, max_examples=200)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
EDGES = [5e-324, 1e-310, 1e-160, 1e-150, 1.0, -3.0, 1e150, 1e160, 1e308, -LARGEST]
STRANGE = st.sampled_from([0.0, -0.0, *EDGES, math.inf, -math.inf, math.nan])
ENTRY = STRANGE | st.floats()
SHAPE = st.tuples(st.integers(1, 5), st.integers(1, 6))


class TestInterval:
    @pytest.mark.parametrize(
        ("low", "high"),
        [
            (1, 1),
            (2, 1),
            (math.nan, 1),
            (0, math.nan),
            (0, math.inf),
            (-math.inf, 0),
            ("0", 1),
            (0, None),
            (False, True),
            pytest.param(0, 10**400, id="an int that no float holds"),
        ],
    )
    def test_refused(self, low, high):
        with pytest.raises(ParameterError) as error:
            Interval(low, high)
        assert str(error.value) == (
            "The 'low, high' parameter of Interval must be two finite numbers with low < high."
            f" Got {(low, high)!r}."
        )

    @pytest.mark.parametrize("end", [1e308, pytest.param(10**308, id="int")])
    def test_too_wide(self, end):
        with pytest.raises(ParameterError) as error:
            Interval(-end, end)
        assert str(error.value) == (
            "The 'low, high' parameter of Interval must be less than 1.7e308 apart."
            f" Got {(-end, end)!r}."
        )

    def test_values(self):
        column = Interval(np.int64(0), np.float32(10))
        assert (type(column.low), type(column.high)) == (float, float)
        assert (column.middle, column.half_width) == (5.0, 5.0)
        assert column.to_dict() == {"low": 0.0, "high": 10.0}
        unit = column.to_unit(np.array([-3.0, 0.0, 2.5, 10.0, 1e308, -math.inf, math.inf]))
        assert unit.tolist() == [-1.0, -1.0, -0.5, 1.0, 1.0, -1.0, 1.0]
        assert column.from_unit(np.array([-1.0, 0.0, 1.0, 2.0])).tolist() == [0.0, 5.0, 10.0, 15.0]

    @PLAIN
    @given(
        ends=st.tuples(FINITE, FINITE).filter(lambda e: 1e-322 < e[1] - e[0] < math.inf),
        values=arrays(np.float64, 5, elements=FINITE | st.sampled_from([math.inf, -math.inf])),
    )
    def test_unit_box_is_never_left(self, ends, values):
        column = Interval(*ends)
        unit = column.to_unit(values)
        assert np.all(np.abs(unit) <= 1)
        assert np.all(unit[values >= column.high] >= unit[values <= column.low].max(initial=-1))
        box = Domain.box(*ends, n_columns=2).to_unit(np.column_stack([values, values]))
        assert np.array_equal(box, np.column_stack([unit, unit]))

    def test_an_interval_without_a_half(self):
        with pytest.raises(ParameterError, match="more than 5e-324 apart"):
            Interval(0.0, 5e-324)
        assert Interval(0.0, 1e-323).to_unit(np.array([0.0, 1.0])).tolist() == [-1.0, 1.0]

    @PLAIN
    @given(
        low=st.floats(-1e6, 1e6),
        width=st.floats(1e-3, 1e6),
        values=arrays(np.float64, 4, elements=FINITE),
    )
    def test_there_and_back(self, low, width, values):
        column = Interval(low, low + width)
        inside = np.clip(values, column.low, column.high)
        back = column.from_unit(column.to_unit(values))
        assert np.allclose(back, inside, rtol=0, atol=1e-15 * (abs(low) + width) * 4)


class TestLevels:
    @pytest.mark.parametrize("values", [(), ("a", "a"), (1, True), (0, 0.0)])
    def test_refused(self, values):
        with pytest.raises(ParameterError) as error:
            Levels(values)
        assert str(error.value) == (
            "The 'values' parameter of Levels must be one or more different values, where numbers are"
            f" compared in double precision. Got {list(values)!r}."
        )

    def test_indices(self):
        levels = Levels(("red", "green", 3, None))
        found = levels.indices(["green", "blue", 3, 3.0, "red", None, math.nan])
        assert found.dtype == np.int64
        assert found.tolist() == [
            1,
            -1,
            2,
            2,
            0,
            3,
            3,
        ]  # pandas turns one kind of missing into another

    def test_parts_of_tuples_are_compared_like_cells(self):
        levels = Levels((("a", None), ("b", 1)))
        cells = [("a", math.nan), ("a", None), ("b", Fraction(1)), ("b", np.array(1.0)), ("b", 2)]
        assert levels.indices(cells).tolist() == [0, 0, 1, 1, -1]

    def test_indices_of_arrays(self):
        assert Levels((0.5, 2)).indices(np.array([2.0, 0.5, 1.0])).tolist() == [1, 0, -1]
        assert Levels(("a", "b")).indices(np.array(["b", "c"])).tolist() == [1, -1]

    def test_dict(self):
        assert Levels(("a", 1)).to_dict() == {"levels": ["a", 1]}


class TestDomain:
    @pytest.mark.parametrize("n_max", [0, -1, 0.5, 1.5, math.nan, math.inf, True, "9", 2**53])
    def test_bad_n_max(self, n_max):
        with pytest.raises(ParameterError) as error:
            Domain(n_max=n_max)
        assert str(error.value).startswith("The 'n_max' parameter of Domain must be an int >= 1")
        assert str(error.value).endswith(f"Got {n_max!r}.")

    def test_good_n_max(self):
        assert Domain(n_max=1).n_max == 1
        assert Domain(n_max=2**53 - 1).n_max == 2**53 - 1

    def test_bad_names(self):
        with pytest.raises(ParameterError) as error:
            Domain((Interval(0, 1), Interval(0, 1)), names=("a",))
        assert str(error.value) == (
            "The 'names' parameter of Domain must be 2 names, one per column. Got '1 names'."
        )

    @pytest.mark.parametrize(
        ("low", "high", "options", "text"),
        [
            ([0, 0], [1, 1, 1], {}, "'low' parameter of Domain.box must be a number or 3 numbers"),
            (0, [1, 2], {"n_columns": 3}, "Got 'shape (2,)'."),
            ([[0]], 1, {}, "Got 'shape (1, 1)'."),
            ("a", 1, {}, "'low' parameter of Domain.box must be numbers. Got 'dtype <U1'."),
            (0, [True], {}, "'high' parameter of Domain.box must be numbers. Got 'dtype bool'."),
            ([0, 5], [1, 5], {}, "Column 1: The 'low, high' parameter of Interval must be"),
            (0, math.nan, {}, "Column 0: The 'low, high' parameter of Interval must be"),
        ],
    )
    def test_bad_box(self, low, high, options, text):
        with pytest.raises(ParameterError) as error:
            Domain.box(low, high, **options)
        assert text in str(error.value)

    def test_box(self):
        target = Levels(("no", "yes"))
        domain = Domain.box(0, [1, 2], target=target, n_max=7, names=("a", "b"))
        assert domain == Domain((Interval(0, 1), Interval(0, 2)), target, 7, ("a", "b"))
        assert Domain.box(-1, 1, n_columns=3).columns == (Interval(-1, 1),) * 3

    def test_unit_box_with_levels(self):
        domain = Domain((Interval(0, 10), Levels(("a", "b")), Interval(-1, 1)))
        assert domain.n_unit_columns == 4
        rows = [[5.0, "b", 9.0], [-2.0, "a", 0.0], [10.0, "undeclared", -9.0]]
        assert domain.to_unit(rows).tolist() == [
            [0.0, 0.0, 1.0, 1.0],
            [-1.0, 1.0, 0.0, 0.0],
            [1.0, 0.0, 0.0, -1.0],
        ]

    def test_unit_box_of_an_empty_table(self):
        assert Domain.box(0, 1, n_columns=2).to_unit(np.empty((0, 2))).shape == (0, 2)

    def test_no_columns_declared(self):
        with pytest.raises(ParameterError) as error:
            Domain().to_unit([[1.0]])
        expected = "This domain declares no columns, so X can't be mapped to a box."
        assert str(error.value) == expected
        assert Domain().n_unit_columns == 0

    @pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 3), (3, 2, 1)])
    def test_wrong_shape(self, shape):
        with pytest.raises(DataError) as error:
            Domain.box(0, 1, n_columns=2).to_unit(np.zeros(shape))
        assert str(error.value) == (
            f"X has shape {shape}, but the domain declares 2 column(s)."
            " Declare one interval or list of levels per column."
        )

    def test_an_error_never_shows_a_value(self):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            Domain.box(0, 1, n_columns=1).to_unit(np.array([["secret"]], dtype=object))
        assert "secret" not in str(error.value)

    @pytest.mark.parametrize(
        "domain",
        [
            Domain(),
            Domain.box([0, -1e300], [1, 1e-300], target=Interval(0, 0.1), n_max=10),
            Domain((Levels(("a", 2, 0.5, False)),), Levels((True, "x")), None, ("only",)),
        ],
    )
    def test_round_trip(self, domain):
        assert Domain.from_dict(domain.to_dict()) == domain

    @pytest.mark.parametrize(
        "change",
        [
            {"columns": 5},
            {"columns": ["x"]},
            {"columns": [{"low": 0}]},
            {"columns": [{"low": 1, "high": 0}]},
            {"columns": [{"levels": 5}]},
            {"columns": [{"levels": []}]},
            {"columns": [{"levels": [{}]}]},
            {"columns": [None]},
            {"target": "x"},
            {"target": {"low": "0", "high": 1}},
            {"n_max": "x"},
            {"n_max": 0},
            {"names": 3},
            {"names": ["one", "two"]},
            pytest.param({"target": {"low": 0, "high": 10**400}}, id="an int that no float holds"),
        ],
    )
    def test_a_bad_dict(self, change):
        good = Domain.box(0, 1, target=Interval(0, 1)).to_dict()
        with pytest.raises(CertificateError, match=r"^The domain can't be read \(.*\)\.$"):
            Domain.from_dict(good | change)

    @pytest.mark.parametrize("name", ["columns", "target", "n_max", "names"])
    def test_a_key_is_missing(self, name):
        data = Domain().to_dict()
        del data[name]
        with pytest.raises(CertificateError, match=rf"can't be read \('{name}'\)"):
            Domain.from_dict(data)


# --- norm clipping --------------------------------------------------------------------------


def exact_square(row):
    return sum(Fraction(float(x)) ** 2 for x in row)


def within(row, bound):
    return exact_square(row) <= Fraction(bound) ** 2


def same_bits(a, b):
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


BOUNDS = [1e-140, 1e-3, 0.1, 1.0, 7.3, 1e10, 1e140]


class TestClipRows:
    @PLAIN
    @given(rows=arrays(np.float64, SHAPE, elements=ENTRY), bound=st.sampled_from(BOUNDS))
    def test_within_the_bound_and_no_more(self, rows, bound):
        self.check(rows, bound)

    @PLAIN
    @given(
        rows=arrays(np.float64, (4, 6), elements=st.floats(-1, 1)),
        bound=st.floats(0.01, 3),
        scale=st.sampled_from([1e-140, 1e-100, 1.0, 1e100, 1e140]),
    )
    def test_around_the_bound(self, rows, bound, scale):
        self.check(rows * scale, bound * scale)

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")
    @pytest.mark.parametrize(
        "bound", [5e-324, 1e-310, 2.3e-308, 1e-300, 1e-200, 5e-156, 1e155, 1e200, 1e300, LARGEST]
    )
    def test_extreme_bounds(self, bound):
        try:
            clip_rows(np.zeros((1, 6)), bound)
        except ParameterError:
            return  # a bound may be refused, but not because of what the rows hold
        draws = np.random.default_rng(0)
        ordinary = draws.uniform(-1e9, 1e9, (100, 6))
        near = draws.uniform(-1, 1, (100, 6)) * bound
        for rows in (ordinary, near, np.full((1, 6), bound), np.full((1, 6), LARGEST)):
            assert all(within(row, bound) for row in clip_rows(rows, bound))

    def check(self, rows, bound):
        before = rows.copy()
        out = clip_rows(rows, bound)
        assert same_bits(rows, before)  # the argument is left alone
        assert out.shape == rows.shape
        d = rows.shape[1]
        for row, clipped in zip(rows, out, strict=True):
            assert within(clipped, bound)
            if not np.isfinite(row).all():
                assert not clipped.any()
                continue
            margin = 1 - Fraction(2 * (d + 4), 2**53)
            if exact_square(row) <= (Fraction(bound) * margin) ** 2:
                assert same_bits(row, clipped)
                continue
            # on the sphere, in the old direction
            assert exact_square(clipped) >= (Fraction(bound) * (1 - Fraction(1, 10**12))) ** 2
            peak = max(abs(Fraction(float(x))) for x in row)
            new_peak = max(abs(Fraction(float(x))) for x in clipped)
            for x, y in zip(row, clipped, strict=True):
                turned = abs(Fraction(float(y)) / new_peak - Fraction(float(x)) / peak)
                assert turned <= Fraction(1, 10**12)

    def test_rows_a_little_too_long_are_cut_and_shorter_ones_are_kept(self):
        for length in (1 + 1e-12, 1.01, 1.4, 2.0, 1e9):
            (found,) = clip_rows(length * np.array([[0.6, 0.8]]), 1.0)
            assert sum(Fraction(float(v)) ** 2 for v in found) <= 1
            assert np.allclose(found, [0.6, 0.8], rtol=1e-12)
        short = np.array([[0.59, 0.8], [0.0, 0.0]])
        assert np.array_equal(clip_rows(short, 1.0), short)

    def test_rows_that_are_not_finite_become_zero(self):
        rows = [[math.nan, 1.0], [math.inf, 0.0], [-math.inf, math.inf], [0.25, 0.5]]
        assert clip_rows(rows, 1.0).tolist() == [[0, 0], [0, 0], [0, 0], [0.25, 0.5]]

    def test_empty_shapes(self):
        assert clip_rows(np.empty((0, 3)), 1.0).shape == (0, 3)
        assert clip_rows(np.empty((3, 0)), 1.0).shape == (3, 0)

    def test_plain_scaling_would_exceed(self):
        draws = np.random.default_rng(1)
        rows = draws.standard_normal((200, 5)) * 10
        plain = rows / np.linalg.norm(rows, axis=1)[:, None]
        assert not all(within(row, 1.0) for row in plain)
        assert all(within(row, 1.0) for row in clip_rows(rows, 1.0))

    @pytest.mark.parametrize("bound", [math.nan, -1.0])
    def test_a_bound_that_bounds_nothing(self, bound):
        with pytest.raises(ParameterError, match="'bound'"):
            clip_rows(np.array([[1e100]]), bound)

    @PLAIN
    @given(
        rows=arrays(np.float64, SHAPE, elements=ENTRY),
        other=st.lists(ENTRY, min_size=6, max_size=6),
        place=st.integers(0, 4),
        bound=st.sampled_from(BOUNDS),
        order=st.sampled_from("CF"),
    )
    def test_no_row_feels_another(self, rows, other, place, bound, order):
        place %= len(rows)
        rows = np.asarray(rows, order=order)
        changed = rows.copy(order="K")
        changed[place] = other[: rows.shape[1]]
        others = np.arange(len(rows)) != place
        assert same_bits(clip_rows(rows, bound)[others], clip_rows(changed, bound)[others])

    @pytest.mark.parametrize("columns", [3, 100, 5000, 8192, 9001])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_no_wide_row_feels_another(self, columns, order):
        draws = np.random.default_rng(columns)
        for _ in range(40):
            rows = np.asarray(draws.standard_normal((2, columns)) * 10, order=order)
            changed = rows.copy(order="K")
            changed[1] = 0.0
            assert same_bits(clip_rows(rows, 1.0)[0], clip_rows(changed, 1.0)[0])


COLUMNS = (Interval(0, 1), Interval(-5, 5), Interval(10, 20))
NAMES = ["a", "b", "c"]
PAIRS = [(0, 1), (-5, 5), (10, 20)]


def frame(rows=("low", "high")):
    return pd.DataFrame({"c": PAIRS[2], "a": PAIRS[0], "b": PAIRS[1]}, index=list(rows))


@pytest.mark.parametrize(
    "bounds",
    [
        ([0, -5, 10], [1, 5, 20]),
        PAIRS,
        list(COLUMNS),
        dict(zip(NAMES, PAIRS, strict=True)),
        {"c": Interval(10, 20), "b": [-5, 5], "a": (0, 1), "unused": (0, 9)},
        frame(),
        frame(("min", "max")).T,
    ],
)
def test_bounds_in_any_form_are_the_same_domain(bounds):
    assert resolve_domain(bounds, None, 3, "Model", NAMES).columns == COLUMNS


def test_bounds_by_name_follow_the_columns_of_the_table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.uniform(0, 1, 50), "y": rng.uniform(0, 900, 50)})
    found = []
    for bounds in (([0, 0], [1, 900]), {"y": (0, 900), "x": (0, 1)}):
        model = PrivateKernelRidge(bounds=bounds, y_bounds=(0, 1), noise=SeededNoise(0))
        found.append(model.fit(X, X["x"]).predict(X))
    assert np.array_equal(*found)


def test_a_column_of_texts_that_bounds_by_name_do_not_declare_is_named():
    X = pd.DataFrame({"x": [0.0, 1.0] * 20, "ward": ["north", "south"] * 20})
    model = PrivateKernelRidge(bounds={"x": (0, 1)}, y_bounds=(0, 1))
    with pytest.raises(ParameterError, match="the column 'ward' is missing in them"):
        model.fit(X, X["x"])


@pytest.mark.parametrize(
    ("bounds", "names", "words"),
    [
        (
            {"a": (0, 1), "b": (0, 1)},
            NAMES,
            "the column 'c' is missing in them. Declare it, or leave it",
        ),
        ({"a": (0, 1), "b": (0, 1)}, ["a", "a", "b"], "two columns have the same name"),
        ({"a": (0, 1)}, None, "they name 1 columns, and X has 3 without names. Behind a"),
        ({"a": (0, 1), "b": (0, 1), "c": 3}, NAMES, "for column 'c'. Got int"),
        ({"a": (0, 1), "b": (2, 1), "c": (0, 1)}, NAMES, "for column 'b': .*low < high"),
        ([*PAIRS, (0, 1)], NAMES, "declare 4 columns, but X has 3"),
        (pd.DataFrame({"a": [0, 1]}), NAMES, "needs 'low' and 'high'"),
        ("ab", NAMES, "must be a pair"),
        ({"a": ("2020-01-01", "2026-12-31"), "b": (0, 1), "c": (0, 1)}, NAMES, "are two dates"),
        (
            {"a": (datetime.date(2020, 1, 1),) * 2, "b": (0, 1), "c": (0, 1)},
            NAMES,
            "Count the days",
        ),
    ],
)
def test_wrong_bounds_are_one_sentence(bounds, names, words):
    with pytest.raises(ParameterError, match=words):
        resolve_domain(bounds, None, 3, "Model", names)


def test_bounds_tell_how_many_columns_they_declare():
    frame = pd.DataFrame({"low": [0, 1], "high": [1, 2]}, index=["a", "b"])
    for bounds in (dict(zip("ab", PAIRS, strict=False)), PAIRS[:2], frame, Domain(COLUMNS[:2])):
        assert n_declared(bounds, "Model") == 2
    for bounds in (None, (0, 1), [0, 1], ([0, 0], [1, 1]), Domain()):
        with pytest.raises(ParameterError, match="State n_columns"):
            n_declared(bounds, "Model")


def test_a_column_of_a_frame_is_named_in_its_error():
    X = pd.DataFrame({"a": [0.5, 0.1], "ward": ["north", "south"], "crp": ["<0,5", "1"]})
    bounds = {"a": (0, 1), "ward": ["north", "south"], "crp": (0, 1)}
    with pytest.raises(DataError, match="Column 'crp' of X is declared as numbers"):
        PrivateKernelRidge(bounds=bounds, y_bounds=(0, 1)).fit(X, [0.0, 1.0])


def test_two_tuples_for_two_columns_are_ambiguous():
    with pytest.raises(ParameterError, match="two tuples in a list for two columns"):
        resolve_domain([(0, 10), (5, 100)], None, 2, "Model", ["a", "b"])
    as_before = resolve_domain(([0, 10], [5, 100]), None, 2, "Model", ["a", "b"])
    assert as_before.columns == (Interval(0, 5), Interval(10, 100))
    assert resolve_domain([[0, 10], [5, 100]], None, 2, "Model").columns == as_before.columns
    assert resolve_domain([(0, -5, 10), (1, 5, 20)], None, 3, "Model").columns == COLUMNS
    assert resolve_domain([(0,), (1,)], None, 1, "Model").columns == COLUMNS[:1]
    assert resolve_domain([(0, 1)], None, 1, "Model").columns == COLUMNS[:1]
