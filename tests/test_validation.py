"""Constraints as data, the check that reads them, and the one error sentence."""

import math

import numpy as np
import pandas as pd
import pytest

from dpkernel import (
    AddRemove,
    BlockStream,
    Budget,
    GramStatistics,
    Interval,
    People,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
)
from dpkernel.foundations import errors
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.validation import Choice, Kind, Real, Whole, check_parameters

HOLDS = [
    (Real(), [0, -1e308, np.float32(2), np.int64(2), 5e-324]),
    (Real(0, 1), [5e-324, 0.5, math.nextafter(1, 0)]),
    (Real(0, 1, closed_low=True), [0, 0.0, -0.0]),
    (Real(0, 1, closed_high=True), [1, 1.0, np.float64(1)]),
    (Real(closed_low=True, closed_high=True), [math.inf, -math.inf]),
    (Whole(1), [1, 10**400, np.int32(7)]),
    (Whole(0, 3), [0, 3, np.uint8(2)]),
    (Choice("a", None, 2), ["a", None, 2]),
    (Kind(str, dict), ["", {}]),
]
FAILS = [
    (Real(), [math.nan, math.inf, -math.inf, True, np.True_, "1", None, 1j, [1], np.ones(1)]),
    (Real(0, 1), [0, 1, -5e-324, math.nan]),
    (Real(0, 1, closed_low=True), [1, -5e-324, math.nan]),
    (Real(0, 1, closed_high=True), [0, math.nextafter(1, 2), math.nan]),
    (Real(closed_low=True, closed_high=True), [math.nan]),
    (Whole(1), [0, -1, 1.0, True, np.True_, "1", None, math.nan, np.float64(2)]),
    (Whole(0, 3), [-1, 4, np.int64(4)]),
    (Choice("a", None, 2), ["b", False, 2.0, True, np.ones(2), ["a"]]),
    (Choice(True), [1, 1.0]),
    (Kind(str, dict), [b"", [], None, str]),
]


def pairs(table):
    return [pytest.param(c, v, id=f"{c}-{v!r}"[:60]) for c, values in table for v in values]


@pytest.mark.parametrize(("constraint", "value"), pairs(HOLDS))
def test_holds(constraint, value):
    assert constraint.holds(value)


@pytest.mark.parametrize(("constraint", "value"), pairs(FAILS))
def test_fails(constraint, value):
    assert not constraint.holds(value)


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (Real(), "a float in the range (-inf, inf)"),
        (Real(0, 0.5, closed_low=True), "a float in the range [0, 0.5)"),
        (Real(0, 1, closed_high=True), "a float in the range (0, 1]"),
        (Whole(1), "an int >= 1"),
        (Whole(0, 3), "an int >= 0 and <= 3"),
        (Choice("a", None, 2), "one of 'a', None, 2"),
        (Kind(str), "an instance of str"),
        (Kind(str, dict), "an instance of str or dict"),
    ],
)
def test_text(constraint, text):
    assert str(constraint) == text


class TestCheckParameters:
    constraints = {  # noqa: RUF012
        "epsilon": Real(0, math.inf),
        "count": (Whole(1), Choice("auto")),
        "kind": Kind(str),
    }
    fine = {"epsilon": 1.0, "count": 3, "kind": "x"}  # noqa: RUF012

    def refused(self, **changes):
        with pytest.raises(ParameterError) as error:
            check_parameters("Thing", self.fine | changes, self.constraints)
        return str(error.value)

    def test_accepts_each_alternative(self):
        check_parameters("Thing", self.fine, self.constraints)
        check_parameters("Thing", self.fine | {"count": "auto"}, self.constraints)
        assert "'count'" in self.refused(count="automatic")

    def test_sentence(self):
        assert self.refused(epsilon=math.nan) == (
            "The 'epsilon' parameter of Thing must be a float in the range (0, inf). Got nan."
        )

    def test_alternatives_are_named(self):
        assert self.refused(count="many") == (
            "The 'count' parameter of Thing must be an int >= 1 or one of 'auto'. Got 'many'."
        )
        assert self.refused(count=True).endswith("Got True.")

    def test_first_wrong_one_is_reported(self):
        assert "'epsilon'" in self.refused(epsilon=-1, count=0)

    @pytest.mark.parametrize("value", [np.array([12345.0]), [12345.0], {"a": 12345.0}, 12345j])
    def test_data_are_not_shown(self, value):
        text = self.refused(epsilon=value)
        assert "12345" not in text
        assert text.endswith(f"Got {type(value).__name__!r}.")


def test_sentence_with_and_without_advice():
    plain = "The 'a' parameter of B must be an int >= 1. Got 'x'."
    assert parameter_message("B", "a", "an int >= 1", "x") == plain
    assert parameter_message("B", "a", "an int >= 1", "x", "Try 2.") == plain + " Try 2."


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (errors.ParameterError, ValueError),
        (errors.DataError, ValueError),
        (errors.AssumptionError, ValueError),
        (errors.CertificateError, ValueError),
        (errors.NoiseError, RuntimeError),
        (errors.LedgerError, RuntimeError),
        (errors.BudgetExceededError, errors.LedgerError),
    ],
)
def test_every_error_has_the_common_base(kind, also):
    assert issubclass(kind, errors.DPKernelError)
    assert issubclass(kind, also)


def test_privacy_warning_is_a_warning_and_no_error():
    assert issubclass(errors.PrivacyWarning, UserWarning)
    assert not issubclass(errors.PrivacyWarning, errors.DPKernelError)


TABLES = [np.full((9, 2), 12345.0), np.full(9, 12345.0), [12345.0] * 9, [[12345.0] * 2] * 9]
TABLES += [np.array(["12345"] * 9), pd.DataFrame(TABLES[0]), {"12345": 12345.0}, {12345.0}]
PLACES = {
    "People": lambda table: People("near", table),
    "BlockStream": lambda table: BlockStream([], table),
    "GramStatistics": lambda table: GramStatistics(
        PrivateKernelRidge(bounds=(0, 1), y_bounds=(0, 1)), table, 2
    ),
    "AddRemove": AddRemove,
    "Interval": lambda table: Interval(table, 1.0),
    "Budget": Budget,
    "PrivateQuantileRegressor": lambda table: PrivateQuantileRegressor(
        quantile=table, bounds=(0, 1), y_bounds=(0, 1)
    ).fit(np.zeros((9, 2)), np.zeros(9)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("table", TABLES, ids=lambda table: type(table).__name__)
def test_no_message_quotes_a_table_that_stands_in_the_place_of_a_parameter(place, table):
    with pytest.raises((TypeError, ValueError)) as caught:
        PLACES[place](table)
    assert "12345" not in str(caught.value)


def test_ids_are_never_quoted():
    """Not even those of a few people, who took the place of the rule."""
    with pytest.raises(ParameterError, match=r"Got 'list'\.$"):
        People("near", ["anna", "bert"])


def test_a_few_numbers_are_quoted():
    quoted = [(0.5, 1), ["a", None], [[1, 2], [3, 4]], np.float64(2.0), np.True_, 1 + 2j]
    for got in quoted:
        assert parameter_message("B", "a", "x", got).endswith(f"Got {got!r}.")
    for got in (np.ones(1), list(range(9)), [[0] * 3] * 3, {"a": 1}, object(), (object(),)):
        assert parameter_message("B", "a", "x", got).endswith(f"Got {type(got).__name__!r}.")
