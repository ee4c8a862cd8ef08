"""Budgets, their splits, neighbouring relations, and what counts as a real number."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Budget, Neighbours, is_real

NOT_EPSILON = [
    math.nan,
    math.inf,
    -math.inf,
    0,
    0.0,
    -1.0,
    True,
    np.True_,
    "1",
    None,
    1j,
    np.float64("nan"),
    Fraction(1, 2),
    np.array([1.0]),
    pytest.param(10**400, id="an int that no float holds"),
]
NOT_DELTA = [math.nan, math.inf, 1, 1.0, -1e-300, -1, False, True, "0", None, 2.0]


class TestBudget:
    @pytest.mark.parametrize("epsilon", NOT_EPSILON)
    def test_bad_epsilon(self, epsilon):
        with pytest.raises(ParameterError) as error:
            Budget(epsilon, 1e-6)
        assert str(error.value) == (
            "The 'epsilon' parameter of Budget must be a float in the range (0, inf)."
            f" Got {'ndarray' if isinstance(epsilon, np.ndarray) else epsilon!r}. Pass a positive"
            " finite number."
        )

    @pytest.mark.parametrize("delta", NOT_DELTA)
    def test_bad_delta(self, delta):
        with pytest.raises(ParameterError) as error:
            Budget(1.0, delta)
        assert str(error.value) == (
            f"The 'delta' parameter of Budget must be a float in the range [0, 1). Got {delta!r}."
        )

    @pytest.mark.parametrize("epsilon", [1, np.int64(1), np.float32(1), np.float64(1)])
    def test_numbers_become_floats(self, epsilon):
        budget = Budget(epsilon, 0)
        assert (type(budget.epsilon), type(budget.delta)) == (float, float)
        assert budget == Budget(1.0)
        assert hash(budget) == hash(Budget(1.0))

    def test_ends_of_the_range(self):
        smallest, below_one = 5e-324, math.nextafter(1.0, 0.0)
        assert Budget(smallest, below_one).delta == below_one
        assert Budget(1.7e308, smallest).delta == smallest

    def test_pure_and_text(self):
        assert Budget(0.5).pure
        assert not Budget(0.5, 5e-324).pure
        assert str(Budget(0.5, 1e-6)) == "epsilon = 0.5, delta = 1e-06"

    def test_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            Budget(1.0).epsilon = 2.0


class TestSplit:
    @settings(derandomize=True, deadline=None, max_examples=300)
    @given(
        epsilon=st.floats(1e-12, 1e6),
        delta=st.just(0.0) | st.floats(1e-290, 1.0, exclude_max=True),
        weights=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50),
    )
    def test_parts_never_exceed_the_whole(self, epsilon, delta, weights):
        parts = Budget(epsilon, delta).split(weights)
        assert len(parts) == len(weights)
        for name, whole in (("epsilon", Fraction(epsilon)), ("delta", Fraction(delta))):
            shares = [Fraction(getattr(part, name)) for part in parts]
            assert sum(shares) <= whole
            assert sum(shares) >= whole * (1 - Fraction(1, 10**14))
            total = sum(Fraction(w) for w in weights)
            for share, weight in zip(shares, weights, strict=True):
                fair = whole * Fraction(weight) / total
                assert fair * (1 - Fraction(1, 10**14)) <= share <= fair

    def test_tenths_would_exceed_without_rounding_down(self):
        naive = [0.1 * (1 / 10)] * 10
        assert sum(map(Fraction, naive)) > Fraction(0.1)
        parts = Budget(0.1).split([1] * 10)
        assert sum(Fraction(part.epsilon) for part in parts) <= Fraction(0.1)

    def test_pure_stays_pure(self):
        assert all(part.pure for part in Budget(1.0).split([1, 2]))

    @pytest.mark.parametrize("weights", [[], [0.0], [1, -1], [math.nan], [1, math.inf], ["a"]])
    def test_bad_weights(self, weights):
        with pytest.raises(ParameterError) as error:
            Budget(1.0).split(weights)
        assert str(error.value) == (
            "The 'weights' parameter of Budget.split must be positive finite numbers."
            f" Got {weights!r}."
        )

    def test_weights_near_the_largest_float(self):
        first, second = Budget(1.0).split([1.5e308, 1.5e308])
        assert first == second
        assert 0.5 * (1 - 1e-14) <= first.epsilon <= 0.5


class TestNeighbours:
    @pytest.mark.parametrize("relation", Neighbours)
    def test_resolve(self, relation):
        assert Neighbours.resolve(relation) is relation
        assert Neighbours.resolve(relation.value) is relation

    @pytest.mark.parametrize("value", ["replace_one", "REPLACE_ONE", "", None, 3])
    def test_resolve_refuses(self, value):
        with pytest.raises(ParameterError) as error:
            Neighbours.resolve(value)
        assert str(error.value) == (
            "The 'value' parameter of Neighbours must be one of 'replace-one', 'zero-out',"
            f" 'add-remove'. Got {value!r}."
        )

    def test_n_is_private_only_under_add_remove(self):
        private = [relation for relation in Neighbours if not relation.n_is_public]
        assert private == [Neighbours.ADD_REMOVE]


@pytest.mark.parametrize("value", [0, -1.5, math.nan, math.inf, np.int8(3), np.float32(1)])
def test_is_real(value):
    assert is_real(value)


@pytest.mark.parametrize("value", [True, np.False_, "1", None, 1j, [1.0], np.array(1.0)])
def test_is_not_real(value):
    assert not is_real(value)
