"""Gram statistics: exact integer records and sums, and the sensitivity they are released with.

Everything that carries the guarantee is compared with Python integers, which don't round.
"""

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpkernel.foundations.errors import DataError, LedgerError, NoiseError, ParameterError
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import Gaussian, SymmetricGaussian
from dpkernel.privacy.noise import SeededNoise
from dpkernel.privacy.samplers import LARGEST_SCALE
from dpkernel.privacy.sensitivity import augmented_gram
from dpkernel.privacy.statistics import GramLayout, GramSum

REPLACE, ZERO, ADD = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE
BUDGET = Budget(1.0, 1e-6)
PLAIN = settings(derandomize=True, deadline=None, max_examples=200)
EDGES = [5e-324, 1e-310, 1e-160, 1e-150, 1.0, -3.0, 1e150, 1e160, 1e308, -1.7976931348623157e308]
STRANGE = st.sampled_from([0.0, -0.0, *EDGES, math.inf, -math.inf, math.nan])
ENTRY = STRANGE | st.floats()


def layout_of(n_features=3, n_targets=1, row_bound=1.0, neighbours=REPLACE, n_max=10_000):
    return GramLayout.choose(n_features, n_targets, row_bound, neighbours, n_max, BUDGET)


def coarse(n_features, n_targets=1, neighbours=REPLACE, row=256):
    """Return a layout whose steps are so large that rounding shows."""
    return GramLayout(n_features, n_targets, 1.0, row, int(row * 0.7), row // 2, neighbours)


def integers(records):
    """Return float records, which hold integers, as lists of Python ints."""
    return [[int(x) for x in row] for row in records.tolist()]


def exact_sum(records):
    """Return sum v v^T in Python ints."""
    table = np.array(integers(records), dtype=object)
    return table.T @ table


def dot(v, w):
    return sum(a * b for a, b in zip(v, w, strict=True))


def noise_for(mechanism, seed=0):
    ledger = Ledger(neighbours=mechanism.sensitivity.neighbours)
    return ledger.spend(mechanism.profile(), "gram", noise=SeededNoise(seed))


def rows_of(n, m, k, seed=0, scale=1.0):
    draws = np.random.default_rng(seed)
    return draws.standard_normal((n, m)) * scale, draws.uniform(-1.5, 1.5, (n, k))


# --- the layout -----------------------------------------------------------------------------


class TestLayout:
    def test_oracle_of_the_target_radius(self):
        layout = layout_of()
        assert (layout.row, layout.target, layout.constant) == (2**20, 741455, 2**19)
        assert layout.side == 5
        assert layout.norm_square == 2**40 + 741455**2 + 2**38

    def test_oracle_of_the_noise_without_a_constant(self):
        found = augmented_gram(REPLACE, row=2**20, target=741455)
        mechanism = SymmetricGaussian.calibrate(found, BUDGET, dimension=11, integer=True)
        assert mechanism.sigma == pytest.approx(9.85371e12, rel=1e-5)
        assert math.sqrt(mechanism.sigma**2 / 2 + 4) == pytest.approx(6.96762e12, rel=1e-5)
        assert mechanism.profile().epsilon(BUDGET.delta) <= BUDGET.epsilon

    def test_sensitivity_is_above_the_real_number(self):
        for relation in Neighbours:
            layout = layout_of(n_targets=2, neighbours=relation)
            square = 2 * layout.norm_square**2 if relation is REPLACE else layout.norm_square**2
            assert Fraction(layout.sensitivity.value) ** 2 >= square
            assert layout.sensitivity.value <= math.sqrt(square) * (1 + 1e-15)

    def test_targets_share_one_radius(self):
        for k in (1, 2, 7, 100):
            layout = layout_of(n_targets=k)
            assert k * layout.target**2 <= layout.row**2 / 2 < k * (layout.target + 1) ** 2

    def test_blocks_are_as_long_as_exact_products_allow(self):
        for layout in (layout_of(), layout_of(n_max=10**9), coarse(4)):
            assert layout.block_rows * layout.norm_square <= 2**53
            assert (layout.block_rows + 1) * layout.norm_square > 2**53

    @pytest.mark.parametrize("n_max", [1, 10**6, 10**9, 10**13])
    @pytest.mark.parametrize("epsilon", [1e-3, 1.0, 100.0])
    @pytest.mark.parametrize("delta", [1e-2, 1e-12])
    def test_sums_and_noise_fit(self, n_max, epsilon, delta):
        budget = Budget(epsilon, delta)
        layout = GramLayout.choose(4, 1, 1.0, REPLACE, n_max, budget)
        assert 2**8 <= layout.row <= 2**20
        largest = n_max * layout.norm_square
        scale = math.sqrt(layout.mechanism(budget).sigma ** 2 + 4)
        assert scale < LARGEST_SCALE
        assert largest + 20 * scale < 2**63  # 20 deviations: never in this universe

    @pytest.mark.parametrize("epsilon", [1e-3, 100.0])
    def test_the_fullest_sum_does_not_wrap(self, epsilon):
        budget, n = Budget(epsilon, 1e-6), 10**9
        layout = GramLayout.choose(1, 1, 1.0, ZERO, n, budget)
        row, targets = np.array([[1.0]]), np.array([[1.0]])
        statistics = GramSum(layout).update(row, targets)
        statistics._sum *= n  # a billion equal rows
        released = statistics.release(mechanism := layout.mechanism(budget), noise_for(mechanism))
        unit = (1 / layout.constant) ** 2
        assert abs(released.count - n) <= 8 * mechanism.sigma * unit
        assert released.features[0, 0] == pytest.approx(n, abs=8 * mechanism.sigma * unit + n / 50)

    @pytest.mark.parametrize(("epsilon", "n_max"), [(1.0, 10**14), (1e-14, 10)])
    def test_what_does_not_fit_is_refused(self, epsilon, n_max):
        with pytest.raises(ParameterError) as error:
            GramLayout.choose(3, 1, 1.0, REPLACE, n_max, Budget(epsilon, 1e-15))
        assert str(error.value) == (
            "The 'epsilon, n_max' parameter of GramLayout must be such that sums and noise fit in"
            f" 62 bits. Got ({epsilon!r}, {n_max}). Raise epsilon or declare fewer rows."
        )

    @pytest.mark.parametrize("row_bound", [0.0, -1.0, math.nan, math.inf])
    def test_a_row_bound_that_bounds_nothing(self, row_bound):
        with pytest.raises(ParameterError, match="'row_bound'"):
            layout_of(row_bound=row_bound)

    def test_so_many_targets_that_their_radius_vanishes(self):
        with pytest.raises(ParameterError, match="'n_targets'"):
            GramLayout.choose(1, 10**6, 1.0, REPLACE, 10**13, BUDGET)

    def test_read_in_natural_units(self):
        features, targets = rows_of(50, 3, 2, scale=0.1)
        layout = layout_of(n_targets=2, row_bound=2.0)
        gram = layout.read(exact_sum(layout.quantise(features, targets)))
        y = np.clip(targets, -1, 1)
        assert np.allclose(gram.features, features.T @ features, atol=1e-4)
        assert np.allclose(gram.cross, features.T @ y, atol=1e-4)
        assert np.allclose(gram.targets, y.T @ y, atol=1e-3)
        assert np.allclose(gram.feature_sum, features.sum(axis=0), atol=1e-3)
        assert np.allclose(gram.target_sum, y.sum(axis=0), atol=1e-3)
        assert gram.count == pytest.approx(50, abs=1e-9)


# --- records --------------------------------------------------------------------------------


class TestQuantise:
    @staticmethod
    def check(layout, features, targets):
        m, k = layout.n_features, layout.n_targets
        before = features.tobytes(), targets.tobytes()
        out = layout.quantise(features, targets)
        assert (features.tobytes(), targets.tobytes()) == before
        assert out.shape == (len(features), layout.side)
        assert np.array_equal(out, np.trunc(out))
        for row, record in zip(features, integers(out), strict=True):
            assert dot(record[:m], record[:m]) <= layout.row**2
            assert all(abs(y) <= layout.target for y in record[m : m + k])
            assert record[-1] == layout.constant
            assert dot(record, record) <= layout.norm_square
            if not np.isfinite(row).all():
                assert not any(record[:m])
        return out

    @PLAIN
    @given(
        features=arrays(np.float64, st.tuples(st.integers(1, 5), st.just(4)), elements=ENTRY),
        targets=arrays(np.float64, (5, 2), elements=ENTRY),
        row_bound=st.sampled_from([1e-3, 0.1, 1.0, 7.3, 1e3]),
        row=st.sampled_from([256, 36199, 2**20]),
    )
    def test_strange_records_stay_inside(self, features, targets, row_bound, row):
        layout = GramLayout(4, 2, row_bound, row, int(row / 2), row // 2, REPLACE)
        self.check(layout, features, targets[: len(features)])

    @PLAIN
    @given(
        direction=arrays(np.float64, (3, 6), elements=st.just(0.0) | st.floats(0.01, 1)),
        signs=arrays(np.float64, (3, 6), elements=st.sampled_from([-1.0, 1.0])),
        stretch=st.sampled_from([0.5, 1 - 1e-15, 1.0, 1 + 1e-15, 3.0]),
        row_bound=st.sampled_from([0.1, 1.0, 3.0]),
    )
    def test_records_at_the_edge_stay_inside(self, direction, signs, stretch, row_bound):
        norms = np.maximum(np.linalg.norm(direction, axis=1), 0.01)
        features = signs * direction / norms[:, None] * row_bound * stretch
        layout = GramLayout(6, 1, row_bound, 2**20, 741455, 2**19, REPLACE)
        out = self.check(layout, features, np.ones((3, 1)))
        wanted = features * (2**20 / row_bound) / max(stretch, 1.0)
        assert np.all(np.abs(out[:, :6] - wanted) <= 1.001)  # truncation and no more

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")
    @pytest.mark.parametrize("row_bound", [1e-305, 1e-200, 1e-170, 1e-155, 1e160, 1e300])
    def test_extreme_row_bounds(self, row_bound):
        try:
            layout = GramLayout(4, 1, row_bound, 2**20, 741455, 2**19, REPLACE)
        except ParameterError:
            return  # a bound may be refused, but not because of what the rows hold
        near = np.random.default_rng(0).uniform(-2, 2, (20, 4)) * row_bound
        wide = np.array([[0.0] * 4, [1e150, 0, 0, 0], [1e308] * 4, [1.0] * 4, [5e-324] * 4])
        for features in (near, wide):
            self.check(layout, features, np.ones((len(features), 1)))

    def test_known_records(self):
        layout = GramLayout(2, 1, 2.0, 1000, 700, 500, REPLACE)
        features = np.array([[0.0, 0.0], [1.0, -1.0], [30.0, 40.0], [math.nan, 1], [math.inf, 0]])
        targets = np.array([[0.5], [9.0], [-math.inf], [math.nan], [-0.9999]])
        assert layout.quantise(features, targets).tolist() == [
            [0, 0, 350, 500],
            [499, -499, 700, 500],
            [599, 799, -700, 500],
            [0, 0, 0, 500],
            [0, 0, -699, 500],
        ]

    @PLAIN
    @given(
        features=arrays(np.float64, (4, 3), elements=ENTRY),
        other=st.lists(ENTRY, min_size=3, max_size=3),
        place=st.integers(0, 3),
        order=st.sampled_from("CF"),
    )
    def test_no_record_feels_another(self, features, other, place, order):
        layout = layout_of()
        features, targets = np.asarray(features, order=order), np.ones((4, 1))
        changed = features.copy(order="K")
        changed[place] = other
        others = np.arange(4) != place
        before = layout.quantise(features, targets)[others]
        after = layout.quantise(changed, targets)[others]
        assert before.tobytes() == after.tobytes()

    @pytest.mark.parametrize(("columns", "order"), [(20, "C"), (20, "F"), (9001, "C")])
    def test_a_record_does_not_depend_on_the_length_of_its_block(self, columns, order):
        layout, ones = layout_of(n_features=columns), np.ones((2, 1))
        for features in on_the_edge(layout, order):
            alone = np.asarray(features[:1], order=order)
            both = layout.quantise(features, ones)[0]
            assert both.tolist() == layout.quantise(alone, ones[:1])[0].tolist()

    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("other", [1e160, math.nan, 0.0])
    def test_no_record_on_the_edge_feels_another(self, order, other):
        layout, ones = layout_of(n_features=20), np.ones((2, 1))
        for features in on_the_edge(layout, order):
            changed = features.copy(order="K")
            changed[1] = other
            before = layout.quantise(features, ones)[0]
            assert before.tolist() == layout.quantise(changed, ones)[0].tolist()


def on_the_edge(layout, order):
    """Yield pairs of rows; in the first, one ulp of the norm decides how an entry truncates."""
    draws = np.random.default_rng(layout.n_features)
    for _ in range(30):
        features = np.asarray(draws.standard_normal((2, layout.n_features)), order=order)
        for _ in range(4):  # a fixed point: the entry is part of the norm
            norm = math.sqrt(math.fsum(x * x for x in features[0].tolist()))
            features[0, 0] = start = norm / (layout.row * (1 - 2.0**-40))
        for ulps in range(-6, 7):
            features[0, 0] = start * (1 + ulps * 2.0**-52)
            yield features


# --- sums -----------------------------------------------------------------------------------


class TestSum:
    def test_equals_python_integers(self):
        features, targets = rows_of(9001, 5, 2)  # two full blocks and a rest
        layout = layout_of(5, 2)
        assert len(features) > 2 * layout.block_rows - 500
        found = GramSum(layout).update(features, targets)._sum
        assert found.dtype == np.int64
        assert found.tolist() == exact_sum(layout.quantise(features, targets)).tolist()

    def test_equals_python_integers_at_the_longest_exact_block(self):
        layout = layout_of(2, 1)
        features = np.full((layout.block_rows, 2), 1e9) * np.array([1.0, 1e-3])
        targets = np.ones((layout.block_rows, 1))
        found = GramSum(layout).update(features, targets)._sum
        assert found.tolist() == exact_sum(layout.quantise(features, targets)).tolist()
        assert int(np.trace(found)) > 0.999 * 2**53

    @PLAIN
    @given(
        features=arrays(np.float64, (12, 3), elements=ENTRY),
        targets=arrays(np.float64, (12, 1), elements=ENTRY),
        cuts=st.lists(st.integers(0, 12), max_size=4),
        order=st.permutations(range(12)),
    )
    def test_order_blocks_and_merging_change_nothing(self, features, targets, cuts, order):
        layout = layout_of()
        whole = GramSum(layout).update(features, targets)._sum
        assert whole.tolist() == exact_sum(layout.quantise(features, targets)).tolist()
        order = np.array(order)
        merged, updated = GramSum(layout), GramSum(layout)
        for piece in np.split(order, sorted(cuts)):
            part = GramSum(layout).update(features[piece], targets[piece])
            assert merged.merge(part) is merged
            assert updated.update(features[piece], targets[piece]) is updated
        assert merged._sum.tolist() == updated._sum.tolist() == whole.tolist()

    def test_merge_takes_the_rows_of_the_other(self):
        layout = layout_of()
        one, two = (GramSum(layout).update(*rows_of(5, 3, 1, seed)) for seed in (1, 2))
        one.merge(two)
        assert not two._sum.any()
        for attempt in (
            lambda: two.update(*rows_of(5, 3, 1, 3)),
            lambda: two.merge(GramSum(layout)),
            lambda: one.merge(two),
        ):
            with pytest.raises(DataError, match="merged into another|count twice"):
                attempt()

    def test_only_one_layout_merges(self):
        with pytest.raises(DataError) as error:
            GramSum(layout_of()).merge(GramSum(layout_of(row_bound=2.0)))
        assert str(error.value) == "Only statistics with the same layout can be merged."

    @pytest.mark.parametrize(
        ("features", "targets"),
        [((5, 2), (5, 1)), ((5, 3), (5,)), ((5, 3), (4, 1)), ((3,), (3, 1))],
    )
    def test_wrong_shapes(self, features, targets):
        statistics = GramSum(layout_of())
        with pytest.raises(DataError) as error:
            statistics.update(np.ones(features), np.ones(targets))
        assert str(error.value) == (
            "The statistic expects 3 feature(s) and 1 target(s), got shapes"
            f" {features} and {targets}."
        )
        assert not statistics._sum.any()


# --- sensitivity ----------------------------------------------------------------------------


def search(layout, quantise, draws):
    """Return the largest squared Frobenius distance found between neighbouring sums, as an int.

    Replace-one: pairs of records, among them pairs at every angle; otherwise one record alone.
    """
    m, k, bound = layout.n_features, layout.n_targets, layout.row_bound
    features, targets = [], []
    for step in range(400):
        a, b = draws.standard_normal((2, m))
        if step % 4 == 0:
            a, b = draws.choice([-1.0, 1.0], (2, m))  # all entries alike: rounding adds up
        a /= np.linalg.norm(a)
        if step % 4 >= 2 and m > 1:  # b at a chosen angle to a
            b -= (a @ b) * a
            cosine = draws.choice(np.linspace(-1, 1, 41))
            b = cosine * a + math.sqrt(1 - cosine**2) * b / np.linalg.norm(b)
        lengths = draws.choice([1e-3, 0.5, 1 + 1e-12, 3.0, 1e160], 2, p=[0.1, 0.1, 0.4, 0.3, 0.1])
        b /= np.linalg.norm(b)
        features += [a * bound * lengths[0], b * bound * lengths[1]]
        y = draws.choice([-1.0, 1.0], k)
        targets += [y, y * draws.choice([-1.0, 1.0, 0.0, 1e9])]
    records = integers(quantise(np.array(features), np.array(targets).reshape(len(targets), k)))
    largest = 0
    for v, w in zip(records[::2], records[1::2], strict=True):
        moved = dot(v, v) ** 2
        if layout.neighbours is REPLACE:
            moved += dot(w, w) ** 2 - 2 * dot(v, w) ** 2
        largest = max(largest, moved)
    return largest


def rounded(layout):
    """Return a broken twin of quantise: rounds to nearest and does not look again."""

    def quantise(features, targets):
        out = layout.quantise(features, targets)
        tame = np.clip(features, -1e6, 1e6)
        norms = np.maximum(np.linalg.norm(tame, axis=1), layout.row_bound)
        out[:, : layout.n_features] = np.rint(tame * (layout.row / norms)[:, None])
        return out

    return quantise


def unclipped(layout):
    """Return a broken twin of quantise: no clipping of the features."""

    def quantise(features, targets):
        out = layout.quantise(features, targets)
        tame = np.clip(features, -1e6, 1e6)
        out[:, : layout.n_features] = np.trunc(tame * (layout.row / layout.row_bound))
        return out

    return quantise


SEARCHED = [layout_of(m, k, 1.5, r) for m in (2, 5, 30) for k in (0, 1, 3) for r in Neighbours]


class TestSensitivity:
    @pytest.mark.parametrize("layout", [*SEARCHED, coarse(100), coarse(100, 1, ZERO)])
    def test_neighbours_never_exceed_it_and_come_close(self, layout):
        found = search(layout, layout.quantise, np.random.default_rng(0))
        stated = Fraction(layout.sensitivity.value)
        assert found <= stated**2
        if layout.row == 2**20:
            assert found >= (stated * Fraction(99, 100)) ** 2

    @pytest.mark.parametrize("twin", [rounded, unclipped])
    @pytest.mark.parametrize("relation", Neighbours)
    def test_the_search_rejects_broken_twins(self, twin, relation):
        layout = coarse(100, 1, relation)
        found = search(layout, twin(layout), np.random.default_rng(0))
        assert found > Fraction(layout.sensitivity.value) ** 2

    def test_whole_data_sets(self):
        """The difference of two released sums, not only of two records."""
        draws = np.random.default_rng(3)
        layout = layout_of(4, 1)
        for _ in range(50):
            features = draws.standard_normal((30, 4)) * 10 ** draws.uniform(-3, 3)
            targets = draws.uniform(-2, 2, (30, 1))
            sums = []
            for _ in range(2):
                features[7], targets[7] = draws.standard_normal(4) * 9, draws.uniform(-2, 2)
                sums.append(GramSum(layout).update(features, targets)._sum.astype(object))
            moved = sum(x * x for x in (sums[0] - sums[1]).ravel())
            assert moved <= Fraction(layout.sensitivity.value) ** 2

    @pytest.mark.parametrize(
        ("scale", "supremum", "bound"),
        [
            (0.5, 1.76777, 1.76777),
            (1.5, 4.24264, 4.59619),
            (2.5, 7.34847, 10.2530),
            (4.0, 17.0335, 24.0416),
        ],
    )
    def test_oracles_of_the_augmented_gram(self, scale, supremum, bound):
        """Unit features and targets, target scale s: the true supremum and the bound above it."""
        stated = augmented_gram(REPLACE, row=1, target=scale).value
        assert stated == pytest.approx(bound, rel=1e-5)
        assert Fraction(stated) ** 2 >= 2 * (1 + Fraction(scale) ** 2) ** 2
        # all pairs v = (1, 0, s), v' = (r cos, r sin, s y) on a grid, then the best one exactly
        r, cosine, y = np.meshgrid(
            np.linspace(0, 1, 21), np.linspace(-1, 1, 201), np.linspace(-1, 1, 401)
        )
        v2, w2 = 1 + scale**2, r**2 + (scale * y) ** 2
        moved = v2**2 + w2**2 - 2 * (r * cosine + scale**2 * y) ** 2
        best = np.unravel_index(np.argmax(moved), moved.shape)
        row = 2**20
        layout = GramLayout(2, 1, 1.0, row, int(scale * row), 0, REPLACE)
        sine = math.sqrt(max(0.0, 1 - cosine[best] ** 2))
        features = np.array([[1.0, 0.0], [r[best] * cosine[best], r[best] * sine]])
        v, w = integers(layout.quantise(features, np.array([[1.0], [y[best]]])))
        found = dot(v, v) ** 2 + dot(w, w) ** 2 - 2 * dot(v, w) ** 2
        assert math.sqrt(found) / row**2 == pytest.approx(supremum, rel=2e-4)
        assert found <= Fraction(layout.sensitivity.value) ** 2

    @pytest.mark.parametrize(
        ("scale", "row", "target", "value"),
        [(0.3, 1.0, 1.0, 1.47785), (1.0, 1.0, 1.0, 2.12132), (0.5, 1.5, 3.0, 4.77297)],
    )
    def test_oracles_of_the_pair_under_replace_one(self, scale, row, target, value):
        """The sum of squared targets is free: scale s of the pair is s / sqrt(2) here."""
        found = augmented_gram(REPLACE, row=row, target=scale / math.sqrt(2) * target)
        assert found.value == pytest.approx(value, rel=1e-5)

    @pytest.mark.parametrize(("scale", "value"), [(0.3, 1.04403), (1.0, 1.41421), (2.0, 2.23607)])
    def test_oracles_of_the_pair_under_zero_out(self, scale, value):
        """The pair is a part of the augmented matrix, so it can't move further."""
        for relation in (ZERO, ADD):
            found = augmented_gram(relation, row=1, target=scale / math.sqrt(2))
            assert found.value == pytest.approx(1 + scale**2 / 2, rel=1e-12)
            assert found.value >= value

    def test_bounds_whose_square_is_no_float(self):
        with pytest.raises(ParameterError, match="'value' parameter of Sensitivity"):
            augmented_gram(REPLACE, row=1e200)


# --- the way out ----------------------------------------------------------------------------


class TestRelease:
    def statistics(self):
        return GramSum(layout_of()).update(*rows_of(20, 3, 1))

    def test_noise_is_added_to_the_exact_sum(self):
        statistics = self.statistics()
        mechanism = statistics.layout.mechanism(BUDGET)
        released = statistics.release(mechanism, noise_for(mechanism))
        direct = mechanism.release(statistics._sum, noise_for(mechanism))
        assert np.array_equal(released.matrix, statistics.layout.read(direct).matrix)
        assert np.array_equal(released.matrix, released.matrix.T)
        assert not np.array_equal(direct, statistics._sum)

    def test_a_second_release_needs_a_second_spend(self):
        statistics = self.statistics()
        mechanism = statistics.layout.mechanism(BUDGET)
        noise = noise_for(mechanism)
        statistics.release(mechanism, noise)
        with pytest.raises(NoiseError, match="No undrawn part of this spend"):
            statistics.release(mechanism, noise)

    def test_no_noise_no_release(self):
        statistics = self.statistics()
        with pytest.raises(NoiseError, match="needs the noise of a recorded spend"):
            statistics.release(statistics.layout.mechanism(BUDGET), SeededNoise(0))

    def test_wrong_mechanisms(self):
        statistics = self.statistics()
        layout, side = statistics.layout, statistics.layout.side
        zero_out = layout_of(neighbours=ZERO)
        for mechanism in (
            zero_out.mechanism(BUDGET),
            layout_of(n_max=10**9).mechanism(BUDGET),
            SymmetricGaussian.calibrate(1.0, BUDGET, dimension=side, integer=True),
        ):
            noise = noise_for(mechanism)
            with pytest.raises(LedgerError) as error:
                statistics.release(mechanism, noise)
            assert str(error.value) == (
                "The mechanism was not calibrated for the sensitivity of this statistic. Use"
                " layout.mechanism(budget)."
            )
        for mechanism in (
            Gaussian.calibrate(layout.sensitivity, BUDGET, dimension=side, integer=True),
            SymmetricGaussian.calibrate(
                layout.sensitivity, BUDGET, dimension=side + 1, integer=True
            ),
        ):
            with pytest.raises(ParameterError, match="must be an array of shape"):
                statistics.release(mechanism, noise_for(mechanism))

    @pytest.mark.parametrize("leave", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_can_not_be_pickled_or_copied(self, leave):
        with pytest.raises(LedgerError) as error:
            leave(self.statistics())
        assert str(error.value) == (
            "Un-noised statistics can't be pickled or copied. Release them instead."
        )

    def test_is_not_shown(self):
        statistics = self.statistics()
        expected = "<GramSum of 5 coordinates; the sum is not shown>"
        assert repr(statistics) == str(statistics) == f"{statistics}" == expected

    def test_mechanism_is_private_for_the_budget(self):
        for relation in Neighbours:
            mechanism = layout_of(neighbours=relation).mechanism(BUDGET)
            assert mechanism.integer
            assert mechanism.dimension == 5
            assert mechanism.sensitivity.neighbours is relation
            assert mechanism.profile().epsilon(BUDGET.delta) <= BUDGET.epsilon


class TestLongSums:
    def test_a_total_beyond_2_to_the_53_is_exact(self):
        """Adding in floats would round: the total is 40 times what a float holds exactly."""
        layout = layout_of(2, 1, n_max=200_000)
        features = np.array([[0.6, 0.3]]) * np.ones((layout.block_rows, 1))
        targets = np.full((layout.block_rows, 1), 0.7)
        statistics = GramSum(layout)
        for _ in range(40):
            statistics.update(features, targets)
        one = [int(v) for v in layout.quantise(features[:1], targets[:1])[0]]
        rows = 40 * layout.block_rows
        exact = [[rows * a * b for b in one] for a in one]
        assert max(map(max, exact)) > 2**55 and any(v % 64 for row in exact for v in row)
        assert statistics._sum.tolist() == exact


class TestNarrowNumbers:
    @pytest.mark.parametrize("bound", [1e-30, 1e-22, 1e-15, 1.0, 1e15, 1e25])
    def test_single_precision_rows_stay_in_the_ball_at_any_bound(self, bound):
        layout = GramLayout(3, 1, bound, 2**20, 741455, 2**19, REPLACE)
        rows = np.array([[1, 2, -3], [0.1, 0, 0], [1, 1e-6, 0]], dtype=np.float32)
        rows = (rows * np.float32(bound)).astype(np.float32)
        records = layout.quantise(rows, np.zeros((3, 1)))
        for row in records.tolist():
            assert sum(int(v) ** 2 for v in row[:3]) <= layout.row**2
        assert abs(records[0]).max() > 0.7 * layout.row

    def test_numpy_sizes_do_not_wrap(self):
        with pytest.raises(ParameterError, match="at most 2"):
            GramLayout(2, np.int64(1), 1.0, np.int64(2**32), np.int64(1), np.int64(1), REPLACE)
        layout = GramLayout(2, np.int16(1), np.float32(1), np.int16(300), np.int16(200), 1, REPLACE)
        assert layout.norm_square == 300**2 + 200**2 + 1 and type(layout.row) is int

    def test_entries_that_are_no_numbers_are_not_quoted(self):
        with pytest.raises(DataError, match="not a number") as error:
            GramSum(layout_of(1, 1)).update(np.array([["secret"]]), np.zeros((1, 1)))
        assert "secret" not in str(error.value)


class TestCounting:
    def test_rows_beyond_the_declared_number_are_refused(self):
        layout = layout_of(2, 1, n_max=10)
        statistics = GramSum(layout).update(np.zeros((8, 2)), np.zeros((8, 1)))
        with pytest.raises(DataError, match="at most 10 rows"):
            statistics.update(np.zeros((3, 2)), np.zeros((3, 1)))
        other = GramSum(layout).update(np.zeros((3, 2)), np.zeros((3, 1)))
        with pytest.raises(DataError, match="at most 10 rows"):
            statistics.merge(other)

    def test_a_statistic_is_merged_once(self):
        layout = layout_of(2, 1)
        total, part = GramSum(layout), GramSum(layout)
        part.update(np.ones((1, 2)), np.ones((1, 1)))
        total.merge(part)
        for again in (part, total):
            with pytest.raises(DataError, match="its rows would count twice"):
                total.merge(again)
