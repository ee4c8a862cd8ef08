"""The contract that every registered mechanism keeps, and what each one promises on top of it.

Noise is seeded, so no test here can fail by chance. Deltas are recomputed with 60 digits.
"""

import json
import math
import warnings
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from functools import lru_cache

import mpmath
import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import binom

from dpkernel.foundations.errors import (
    AssumptionError,
    CertificateError,
    DataError,
    NoiseError,
    ParameterError,
)
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.privacy import mechanisms
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import (
    IDEALISED,
    REGISTRY,
    Exponential,
    FunctionalGaussian,
    Gaussian,
    GaussianMixing,
    L2Gamma,
    Laplace,
    MixtureGaussian,
    ObjectivePerturbation,
    PureObjectivePerturbation,
    SampledGaussian,
    SymmetricGaussian,
    mechanism_from_dict,
    require_accepted,
)
from dpkernel.privacy.noise import NoiseSource, Part, Plan, SeededNoise
from dpkernel.privacy.profiles import gaussian_mu, mixing_ratio, objective_multiplier
from dpkernel.privacy.sensitivity import (
    RandomSensitivity,
    Sensitivity,
    augmented_gram,
    declared,
    histogram,
)

REPLACE, ZERO, ADD = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE
BUDGET = Budget(1.0, 1e-6)


def law(scale=1.0, tail=0.0):
    """Return a sensitivity of 0, scale or twice the scale."""
    return RandomSensitivity(REPLACE, (0.0, scale, 2 * scale), (0.5, 0.4, 0.1 - tail), tail)


CALIBRATE = {  # one way to calibrate each kind: (budget, sensitivity, dimension)
    "gaussian": lambda b, s, d: Gaussian.calibrate(s, b, dimension=d),
    "symmetric-gaussian": lambda b, s, d: SymmetricGaussian.calibrate(s, b, dimension=d),
    "mixture-gaussian": lambda b, s, d: MixtureGaussian.calibrate(law(s), b, dimension=d),
    "sampled-gaussian": lambda b, s, d: SampledGaussian.calibrate(
        s, b, dimension=d, n_rows=10, batch=4
    ),
    "laplace": lambda b, s, d: Laplace.calibrate(s, b, dimension=d),
    "l2-gamma": lambda b, s, d: L2Gamma.calibrate(s, b, dimension=d, accept=(IDEALISED,)),
    "functional-gaussian": lambda b, s, d: FunctionalGaussian.calibrate(
        s, b, dimension=d, accept=(IDEALISED,)
    ),
    "exponential": lambda b, s, d: Exponential.calibrate(s, b, candidates=d),
    "gaussian-mixing": lambda b, s, d: GaussianMixing.calibrate(
        s, b, rows=5, dimension=d, accept=(IDEALISED,)
    ),
}


def objective(budget, sensitivity, dimension, cls):
    """Return noise inside an optimisation problem whose solver reaches 1e-3 of the noise scale."""
    if not isinstance(sensitivity, Sensitivity):
        sensitivity = declared(sensitivity)
    x = math.expm1(min(budget.epsilon, 8.0) / 4)
    options = {
        "dimension": dimension,
        "curvature": x,
        "ridge": 1.0,
        "error": lambda scale, reach: 1e-3 * scale,
    }
    if cls is PureObjectivePerturbation:
        return cls.build(sensitivity, budget.epsilon, **options)
    limits = {"slack": 1e-9, "log_miss": -60.0}
    x = [x * (1 + 1e-15)]
    m = objective_multiplier(budget, [1.0], x, sensitivity.neighbours, gaussian=0.01, **limits)
    return cls.build(sensitivity, m=m, output_mu=0.1 * m, log_miss=-60.0, **options)


BUILD = {  # kinds that are built around a solver instead of being calibrated
    "objective-perturbation": lambda b, s, d: objective(b, s, d, ObjectivePerturbation),
    "pure-objective-perturbation": lambda b, s, d: objective(b, s, d, PureObjectivePerturbation),
}
GAUSSIANS = (
    "gaussian",
    "symmetric-gaussian",
    "mixture-gaussian",
    "sampled-gaussian",
    "functional-gaussian",
    "objective-perturbation",
    "gaussian-mixing",
)
ASSUMING = ("l2-gamma", "functional-gaussian", "pure-objective-perturbation", "gaussian-mixing")
every_kind = pytest.mark.parametrize("kind", REGISTRY)
calibrated_kinds = pytest.mark.parametrize("kind", CALIBRATE)


def build(kind, budget=BUDGET, sensitivity=1.0, dimension=3):
    return {**CALIBRATE, **BUILD}[kind](budget, sensitivity, dimension)


calibrated = lru_cache(maxsize=1000)(build)


def noise_for(mechanism, source=None):
    return Ledger().spend(mechanism.profile(), "release", noise=source or SeededNoise(0))


def array_of(mechanism, fill=0.0):
    """Return a value of the right shape with this number everywhere."""
    if mechanism.kind == "gaussian-mixing":  # records, as many as the sketch has rows
        return np.full((mechanism.rows, mechanism.dimension), fill)
    size = mechanism.candidates if mechanism.kind == "exponential" else mechanism.dimension
    return np.full((size, size) if mechanism.kind == "symmetric-gaussian" else (size,), fill)


def to_release(mechanism, array):
    """Return what the mechanism takes: the array, or a function that gives it whatever it is asked."""
    if mechanism.kind == "sampled-gaussian":  # sums of clipped integers
        whole = np.nan_to_num(np.clip(array, -1e9, 1e9)).astype(np.int64)
        return lambda batch: whole
    return (lambda b: array) if mechanism.kind in BUILD else array


def value_of(mechanism, fill=0.0):
    """Return a value to release, with this number everywhere."""
    return to_release(mechanism, array_of(mechanism, fill))


def grid_of(mechanism):
    return getattr(mechanism, "output_grid", None) or getattr(mechanism, "grid", 1.0)


def with_less_noise(mechanism, share):
    """Return the mechanism with its noise reduced by this share."""
    if mechanism.kind == "exponential":
        return replace(mechanism, rate=mechanism.rate * (1 + share))
    name = "sigma" if mechanism.kind in GAUSSIANS else "scale"
    return replace(mechanism, **{name: getattr(mechanism, name) * (1 - share)})


def exact_delta(epsilon, mu):
    """Return G(epsilon; mu) with 60 digits."""
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        if m == 0:
            return mpmath.mpf(0)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def exact_mu(mechanism, sensitivity):
    """Return (Delta + 2 rounding + spread h) / (h sigma) with 60 digits."""
    with mpmath.workdps(60):
        total = mpmath.mpf(sensitivity)
        if not mechanism.integer:
            d = mpmath.mpf(mechanism.dimension)
            spread = d if mechanism.kind == "symmetric-gaussian" else mpmath.sqrt(d)
            total += 2 * mpmath.mpf(mechanism.rounding) + spread * mpmath.mpf(mechanism.grid)
        return total / (mpmath.mpf(mechanism.grid) * mpmath.mpf(mechanism.sigma))


class Silence(NoiseSource):
    """Draws zeros: shows what a mechanism adds its noise to."""

    def __init__(self):
        super().__init__(SeededNoise(0)._entropy)

    def discrete_gaussian(self, scale, size):
        return np.zeros(size, dtype=np.int64)

    discrete_laplace = discrete_gaussian


class Recorder(SeededNoise):
    """Seeded noise that remembers what was drawn."""

    def __init__(self):
        super().__init__(0)
        self.draws = []

    def discrete_gaussian(self, scale, size):
        self.draws.append((scale, size))
        return super().discrete_gaussian(scale, size)

    def discrete_laplace(self, scale, size):
        self.draws.append((scale, size))
        return super().discrete_laplace(scale, size)


# --- the contract ---------------------------------------------------------------------------


def test_the_table_covers_the_registry():
    assert set(CALIBRATE) | set(BUILD) == set(REGISTRY)
    assert all(build(kind).kind == kind for kind in REGISTRY)
    assert all(type(build(kind)) is REGISTRY[kind] for kind in REGISTRY)


GRID = [
    (Budget(epsilon, delta), sensitivity, dimension)
    for epsilon in (1e-3, 0.1, 1.0, 30.0, 1e3)
    for delta in (1e-2, 1e-6, 1e-12)
    for sensitivity in (1e-9, 1.0, 1e9)
    for dimension in (1, 300, 10**6)
]


def grid_for(kind):
    """Return the cases of a kind; mixing knows neither units nor columns, and is slower."""
    return GRID if kind != "gaussian-mixing" else [c for c in GRID if c[1:] == (1.0, 300)]


@calibrated_kinds
class TestCalibrationContract:
    def test_private_side_and_tight(self, kind):
        for budget, sensitivity, dimension in grid_for(kind):
            found = calibrated(kind, budget, sensitivity, dimension)
            assert found.profile().epsilon(budget.delta) <= budget.epsilon
            assert found.profile().supports(budget)
            at = budget.delta if kind in GAUSSIANS else 0.0
            assert found.profile().epsilon(at) <= budget.epsilon
            assert with_less_noise(found, 1e-6).profile().epsilon(at) > budget.epsilon

    def test_costs_of_the_grid_are_small(self, kind):
        """At most 2e-6 more noise than the ideal, continuous mechanism."""
        for budget, sensitivity, dimension in grid_for(kind):
            found = calibrated(kind, budget, sensitivity, dimension)
            if kind == "sampled-gaussian":  # less than without sampling, and not by the grid alone
                ideal = sensitivity / gaussian_mu(budget.epsilon, budget.delta)
                assert found.noise_scale < ideal
                continue
            if kind == "mixture-gaussian":
                ideal = 2 * sensitivity / gaussian_mu(budget.epsilon, budget.delta)
                assert found.noise_scale <= ideal * (1 + 2e-6)
                continue
            ideal = {
                "gaussian": lambda b, s: s / gaussian_mu(b.epsilon, b.delta),
                "symmetric-gaussian": lambda b, s: s / gaussian_mu(b.epsilon, b.delta),
                "functional-gaussian": lambda b, s: s / gaussian_mu(b.epsilon, b.delta),
                "laplace": lambda b, s: s / b.epsilon,
                "l2-gamma": lambda b, s: s / b.epsilon,
                "exponential": lambda b, s: 2 * s / b.epsilon,
                "gaussian-mixing": lambda b, s: (
                    s / math.sqrt(mixing_ratio(b.epsilon, b.delta, 5, REPLACE))
                ),
            }[kind](budget, sensitivity)
            assert ideal * (1 - 1e-15) <= found.noise_scale <= ideal * (1 + 2e-6)


@every_kind
class TestParameterContract:
    def test_the_profile_follows_from_the_parameters(self, kind):
        found = build(kind)
        assert found.profile() == found.profile()
        assert replace(found).profile() == found.profile()
        with pytest.raises(FrozenInstanceError):
            found.sensitivity = None

    def test_numpy_integers_are_written_as_json(self, kind):
        found = build(kind, dimension=np.int64(3))
        assert mechanism_from_dict(json.loads(json.dumps(found.to_dict()))) == build(kind)

    @pytest.mark.parametrize("dimension", [0, -1, 2.0, True, "3", None, 10**13 + 1])
    def test_bad_dimension(self, kind, dimension):
        name = "candidates" if kind == "exponential" else "dimension"
        with pytest.raises(ParameterError) as error:
            build(kind, dimension=dimension)
        assert str(error.value).startswith(f"The '{name}' parameter of {REGISTRY[kind].__name__}")
        assert str(error.value).endswith(f"must be an int >= 1. Got {dimension!r}.")


@pytest.mark.parametrize("kind", [k for k in REGISTRY if k != "mixture-gaussian"])
@pytest.mark.parametrize("sensitivity", [0.0, -1.0, math.nan, math.inf, "1", True])
def test_bad_sensitivity(kind, sensitivity):
    with pytest.raises(ParameterError) as error:
        build(kind, sensitivity=sensitivity)
    assert str(error.value) == (
        "The 'value' parameter of declared must be a float in the range (0, inf)."
        f" Got {sensitivity!r}."
    )


@pytest.mark.parametrize("kind", [k for k in CALIBRATE if k != "mixture-gaussian"])
def test_a_sensitivity_in_another_norm(kind):
    norm = {"laplace": "l1", "exponential": "score"}.get(kind, "l2")
    for other in {"l1", "l2", "score"} - {norm}:
        with pytest.raises(ParameterError) as error:
            build(kind, sensitivity=declared(1.0, norm=other))
        assert str(error.value) == (
            f"The 'sensitivity' parameter of calibrate must be one in the {norm} norm."
            f" Got '{other}'."
        )


@every_kind
class TestReleaseContract:
    def test_needs_the_noise_of_a_spend(self, kind):
        class Pretender:
            def claim(self, profile, label=None):
                return SeededNoise(0)

        found = build(kind)
        for fake in (None, SeededNoise(0), Pretender(), Ledger(), 0):
            with pytest.raises(NoiseError) as error:
                found.release(value_of(found), fake)
            assert str(error.value) == (
                f"{type(found).__name__}.release needs the noise of a recorded spend. Call"
                " noise = ledger.spend(mechanism.profile(), label) first."
            )

    def test_a_wrong_shape_is_refused_before_anything_is_drawn(self, kind):
        found, ledger = build(kind), Ledger()
        noise = ledger.spend(found.profile(), "release", noise=SeededNoise(0))
        if kind in BUILD:  # what a solver returns is seen after b was drawn
            with pytest.raises(ParameterError, match="a function from b to the minimiser. Got 'nd"):
                found.release(np.zeros(3), noise)
            assert ledger.spends[0].state == "recorded, not drawn"
            with pytest.raises(ParameterError, match=r"shape \(3,\). Got 'shape \(2,\)'"):
                found.release(lambda b: b[:2], noise)
            assert ledger.spends[0].state == "drawn"
            return
        if kind == "sampled-gaussian":  # what a query returns is seen after its batch was drawn
            with pytest.raises(ParameterError, match="a function from the indices of a batch to"):
                found.release(np.zeros(3, dtype=np.int64), noise)
            assert ledger.spends[0].state == "recorded, not drawn"
            with pytest.raises(
                ParameterError, match=r"integers of shape \(3,\). Got 'shape \(2,\)"
            ):
                found.release(lambda batch: np.zeros(2, dtype=np.int64), noise)
            assert ledger.spends[0].state == "drawn"
            return
        shape = value_of(found).shape
        wrongs = [(), (2,), (4,), (1, 3), (3, 4), (3, 3, 3), (0,)]
        if kind == "gaussian-mixing":  # any number of records
            shape = "(n, 3)"
            wrongs.remove((1, 3))
        for wrong in wrongs:
            with pytest.raises(ParameterError) as error:
                found.release(np.zeros(wrong), noise)
            assert str(error.value) == (
                f"The 'value' parameter of {type(found).__name__} must be an array of shape"
                f" {shape}. Got 'shape {wrong}'."
            )
            assert ledger.spends[0].state == "recorded, not drawn"
        found.release(value_of(found), noise)
        assert ledger.spends[0].state == "drawn"

    def test_one_release_a_spend(self, kind):
        found = build(kind)
        noise = noise_for(found)
        found.release(value_of(found), noise)
        with pytest.raises(NoiseError) as error:
            found.release(value_of(found), noise)
        assert str(error.value) == (
            "No undrawn part of this spend has the profile of the release: it was drawn already,"
            " or another profile was recorded. Spend the mechanism's own profile() once per release."
        )

    def test_the_spend_must_be_of_this_profile(self, kind):
        found = build(kind)
        more_noise = with_less_noise(found, -0.5)
        with pytest.raises(NoiseError, match="another profile was recorded"):
            found.release(value_of(found), noise_for(more_noise))

    def test_released_values_lie_on_the_grid(self, kind):
        found = build(kind)
        for fill in (0.0, 1 / 3, -1e6, math.pi * 1e-9):
            out = found.release(value_of(found, fill), noise_for(found))
            if kind == "exponential":
                assert type(out) is int
                assert 0 <= out < found.candidates
                continue
            assert out.shape == array_of(found).shape
            assert out.dtype == (np.int64 if kind == "sampled-gaussian" else np.float64)
            grid = grid_of(found)
            assert math.frexp(grid)[0] == 0.5  # a power of two: the division is exact
            steps = out / grid
            assert np.array_equal(steps, np.rint(steps))
            assert np.unique(steps).size > 1

    def test_seeded_noise_repeats(self, kind):
        found = build(kind, dimension=50)
        value = value_of(found)
        first, again = (found.release(value, noise_for(found)) for _ in range(2))
        other = found.release(value, noise_for(found, SeededNoise(1)))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)

    @pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf, 5e-324, 1e200, 1e300, -1e308])
    def test_no_value_raises_or_warns(self, kind, fill):
        """An error or a warning that depends on the data would be a release without noise."""
        found = build(kind)
        value = array_of(found)
        value[..., 0] = fill
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            out = found.release(to_release(found, value), noise_for(found))
        assert np.all(np.isfinite(out))


@every_kind
class TestDictContract:
    def test_round_trip(self, kind):
        for budget in (BUDGET, Budget(0.1, 1e-9), Budget(30.0, 1e-2)):
            found = build(kind, budget, sensitivity=0.1)
            again = mechanism_from_dict(json.loads(json.dumps(found.to_dict())))
            assert again == found
            assert again.profile() == found.profile()

    def test_what_it_says(self, kind):
        found = build(kind)
        data = found.to_dict()
        assert data["kind"] == kind
        assert data["noise_scale"] == found.noise_scale
        assert data["assumptions"] == ([IDEALISED] if kind in ASSUMING else [])
        assert data["sensitivity"]["value"] == found.sensitivity.value
        assert data["reference"]

    def test_a_key_is_missing(self, kind):
        data = build(kind).to_dict()
        for name in set(data) - {"noise_scale", "assumptions", "reference"}:
            with pytest.raises(CertificateError) as error:
                mechanism_from_dict({k: v for k, v in data.items() if k != name})
            assert str(error.value) == (
                f"A mechanism of this certificate can't be read (KeyError: '{name}'). Its 'kind'"
                f" must be one of {', '.join(sorted(REGISTRY))}, with that kind's parameters."
            )

    @pytest.mark.parametrize("bad", ["x", None, math.nan, -0.5, -1.0, [], {}])
    def test_the_scale_is_no_scale(self, kind, bad):
        name = next(n for n in ("sigma", "scale", "rate") if n in build(kind).to_dict())
        with pytest.raises(CertificateError, match="A mechanism of this certificate can't be read"):
            mechanism_from_dict(build(kind).to_dict() | {name: bad})

    @pytest.mark.parametrize(
        "change",
        [
            {"kind": "unknown"},
            {"kind": ["gaussian"]},
            {"sensitivity": None},
            {"sensitivity": {}},
            {"sensitivity": 1.0},
        ],
    )
    def test_other_nonsense(self, kind, change):
        with pytest.raises(CertificateError):
            mechanism_from_dict(build(kind).to_dict() | change)

    def test_a_sensitivity_below_its_formula(self, kind):
        data = build(kind).to_dict()
        data["sensitivity"]["value"] *= 0.999
        with pytest.raises(CertificateError, match="but the certificate claims"):
            mechanism_from_dict(data)

    def test_a_relation_that_does_not_exist(self, kind):
        data = build(kind).to_dict()
        data["sensitivity"]["neighbours"] = "nobody"
        with pytest.raises(CertificateError, match="'replace-one', 'zero-out', 'add-remove'"):
            mechanism_from_dict(data)


UNROUNDED = ("l2-gamma", "functional-gaussian", "sampled-gaussian", "gaussian-mixing")
IMPOSSIBLE = [  # parameters no calibration gives; those that understate epsilon come first
    *((kind, {"rounding": -0.4}) for kind in CALIBRATE if kind not in UNROUNDED),
    *(
        ("sampled-gaussian", {name: bad})
        for name in ("batch", "n_rows", "dimension")
        for bad in (0, -1, 2.5, math.nan, "1", None, True)
    ),
    ("sampled-gaussian", {"batch": 11}),  # of 10 rows
    ("sampled-gaussian", {"n_rows": 3}),  # for batches of 4
    ("sampled-gaussian", {"sampling": "shuffled"}),
    ("sampled-gaussian", {"sampling": "poisson"}),  # for replace-one
    ("sampled-gaussian", {"sensitivity": declared(1.0, norm="l1").to_dict()}),
    *(
        (kind, {name: bad})
        for kind in BUILD
        for name in ("error", "curvature", "ridge", "reach")
        for bad in (-1.0, 0.0, math.nan, math.inf, "1", None, True)
    ),
    ("objective-perturbation", {"reach": 3.0}),  # b would be drawn again all the time
    ("objective-perturbation", {"grid": 1.0}),  # too coarse for the bound on its law
    ("objective-perturbation", {"grid": 3e-12}),
    ("objective-perturbation", {"output_grid": 0.3}),
    ("objective-perturbation", {"output_grid": -0.5}),
    ("objective-perturbation", {"output_grid": True}),
    ("objective-perturbation", {"output_sigma": 0.0}),
    ("objective-perturbation", {"output_sigma": -1.0}),
    ("objective-perturbation", {"dimension": 0}),
    ("objective-perturbation", {"reach": 1e200}),
    ("objective-perturbation", {"sensitivity": declared(1.0, norm="l1").to_dict()}),
    ("pure-objective-perturbation", {"output_scale": 0.0}),
    ("pure-objective-perturbation", {"output_scale": "x"}),
    ("pure-objective-perturbation", {"dimension": 0}),
    ("exponential", {"monotone": True}),
    ("gaussian", {"sigma": math.inf}),
    ("gaussian", {"sigma": 0.0}),
    ("laplace", {"scale": 0.0}),
    ("l2-gamma", {"scale": 0.0}),
    ("laplace", {"sensitivity": declared(1.0, norm="l2").to_dict()}),
    ("gaussian", {"sensitivity": declared(1.0, norm="score").to_dict()}),
    ("mixture-gaussian", {"sensitivity": declared(1.0).to_dict()}),
    ("gaussian", {"sigma": -8e6, "grid": -(2.0**-21)}),
    ("laplace", {"scale": -4e6, "grid": -(2.0**-22)}),
    ("gaussian", {"grid": 0.3}),
    ("gaussian", {"integer": True}),  # with a grid that is not 1
    ("gaussian", {"integer": "no"}),
    ("gaussian", {"sigma": 10**400}),
    ("gaussian", {"dimension": 0}),
    ("gaussian", {"dimension": 2.5}),
    ("symmetric-gaussian", {"dimension": -1}),
    ("symmetric-gaussian", {"dimension": "3"}),
    ("laplace", {"dimension": -1}),
    ("l2-gamma", {"dimension": -1}),
    ("l2-gamma", {"grid": "x"}),
    ("exponential", {"candidates": -1}),
    ("gaussian-mixing", {"sigma": 0.0}),
    ("gaussian-mixing", {"rows": 0}),
    ("gaussian-mixing", {"rows": 2.5}),
    ("gaussian-mixing", {"grid": 0.3}),
    ("gaussian-mixing", {"accepted": []}),
    ("gaussian-mixing", {"sensitivity": declared(1.0, norm="l1").to_dict()}),
]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param(*case, id=f"{case[0]}-{'-'.join(case[1])}-{i}")
        for i, case in enumerate(IMPOSSIBLE)
    ],
)
def test_impossible_parameters_are_refused(kind, change):
    with pytest.raises(CertificateError):
        mechanism_from_dict(build(kind).to_dict() | change)


def test_narrow_numbers_do_not_round_a_claim_down():
    plain = mechanisms.Exponential.calibrate(2048.9, Budget(1.0), candidates=3)
    narrow = mechanisms.Exponential.calibrate(
        2048.9, Budget(1.0), candidates=np.int8(3), rounding=np.float16(0)
    )
    assert narrow == plain and narrow.profile() == plain.profile()
    wide = mechanisms.Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=1)
    thin = mechanisms.Gaussian.calibrate(
        1.0, Budget(1.0, 1e-6), dimension=np.int16(1), rounding=np.float32(0)
    )
    assert thin.profile().mu == wide.profile().mu
    json.dumps(thin.to_dict())


@pytest.mark.parametrize(("scale", "grid"), [(0.51, 5e-324), (1e-290, 1.0), (1e200, 2.0**900)])
def test_claims_at_the_ends_of_the_float_range_are_refused(scale, grid):
    tiny = declared(1e-320, norm="l1") if grid < 1 else declared(1.0, norm="l1")
    with pytest.raises(ParameterError):
        mechanisms.Laplace(tiny, 1, scale, grid)


def test_l2_gamma_rounds_after_the_noise_and_needs_a_signature():
    """Rounding before the noise would tell values apart that lie on two sides of a grid's middle."""
    accept = (mechanisms.IDEALISED,)
    coarse = mechanisms.L2Gamma(declared(1.0), 1, 1.0, 2.0**10, accept)
    middle = 2.0**9
    sides = []
    for value in (middle - 0.4, middle + 0.4):
        noise = Ledger().spend(Plan((Part("x", coarse.profile(), 400),)), "x", noise=SeededNoise(1))
        sides.append(np.mean([coarse.release([value], noise)[0] > 0 for _ in range(400)]))
    assert 0.2 < sides[0] < sides[1] < 0.8
    with pytest.raises(AssumptionError, match="idealised-arithmetic"):
        mechanisms.L2Gamma(declared(1.0), 1, 1.0, 1.0)


def test_released_values_are_not_quoted():
    mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=2)
    noise = Ledger().spend(mechanism.profile(), "x")
    with pytest.raises(DataError, match="not a number") as error:
        mechanism.release(np.array(["secret", "1"]), noise)
    assert "secret" not in str(error.value)


def test_not_a_dict():
    for data in (None, [], "gaussian", 3):
        with pytest.raises(CertificateError, match="A mechanism of this certificate can't be read"):
            mechanism_from_dict(data)


# --- the grid -------------------------------------------------------------------------------


class TestGrid:
    def test_oracle(self):
        found = Gaussian.calibrate(0.01, BUDGET, dimension=300, rounding=1e-9)
        assert found.grid == 2.0**-31
        enlarged = found.profile().mu * found.sigma * found.grid
        assert enlarged == pytest.approx(0.0100000100655, rel=1e-12)
        source = Recorder()
        found.release(np.zeros(300), noise_for(found, source))
        [(scale, size)] = source.draws
        assert size == 300
        assert scale == pytest.approx(9.07244e7, rel=1e-5)

    @pytest.mark.parametrize(("sensitivity", "oracle"), [(1, 4.67417), (10, 42.2941)])
    def test_oracle_of_integers(self, sensitivity, oracle):
        found = Gaussian.calibrate(sensitivity, BUDGET, dimension=1, integer=True)
        source = Recorder()
        out = found.release(np.array([5]), noise_for(found, source))
        assert out.dtype == np.int64
        [(scale, _)] = source.draws
        assert scale == pytest.approx(oracle, rel=1e-5)
        assert exact_delta(1.0, exact_mu(found, sensitivity)) <= BUDGET.delta

    @pytest.mark.parametrize(("sensitivity", "epsilon"), [(1, 1.0), (4, 8.0), (3, 4.0), (7, 30.0)])
    def test_the_discrete_law_itself_is_private(self, sensitivity, epsilon):
        """Sums the integer law with 60 digits; half the noise fails the same sum."""

        def delta(scale):
            with mpmath.workdps(60):
                s = mpmath.mpf(scale)
                reach = range(-int(14 * scale) - 60, int(14 * scale) + 60)
                weight = {y: mpmath.exp(-mpmath.mpf(y * y) / (2 * s * s)) for y in reach}
                total = mpmath.fsum(weight.values())
                zero, growth = mpmath.mpf(0), mpmath.exp(epsilon)
                gaps = (w - growth * weight.get(y - sensitivity, zero) for y, w in weight.items())
                return mpmath.fsum(max(gap, zero) for gap in gaps) / total

        budget = Budget(epsilon, 1e-6)
        found = Gaussian.calibrate(sensitivity, budget, dimension=1, integer=True)
        source = Recorder()
        found.release(np.array([0]), noise_for(found, source))
        [(scale, _)] = source.draws
        assert delta(scale) <= budget.delta
        assert delta(scale / 2) > budget.delta

    def test_private_side_with_sixty_digits(self):
        for epsilon in (1e-3, 0.1, 1.0, 10.0, 1e3):
            for delta in (1e-2, 1e-6, 1e-12):
                for cls, dimension in ((Gaussian, 1), (Gaussian, 10**6), (SymmetricGaussian, 50)):
                    budget = Budget(epsilon, delta)
                    found = cls.calibrate(0.3, budget, dimension=dimension, rounding=1e-7)
                    reached = exact_delta(epsilon, exact_mu(found, 0.3))
                    assert delta * (1 - 2e-6) <= reached <= delta

    @pytest.mark.parametrize("rounding", [0.0, 1e-9, 0.25])
    @pytest.mark.parametrize("dimension", [1, 7, 10**6])
    def test_enlarged_sensitivity(self, rounding, dimension):
        options = {"dimension": dimension, "rounding": rounding}
        for cls, spread in (
            (Gaussian, mpmath.sqrt(dimension)),
            (SymmetricGaussian, dimension),
            (Laplace, dimension),
        ):
            found = cls.calibrate(1.5, BUDGET, **options)
            exact = mpmath.mpf(1.5) + 2 * mpmath.mpf(rounding) + spread * mpmath.mpf(found.grid)
            if cls is Laplace:
                scale, ratio = found.scale, found.profile().epsilon_value
            else:
                scale, ratio = found.sigma, found.profile().mu
            used = mpmath.mpf(ratio) * mpmath.mpf(scale) * mpmath.mpf(found.grid)
            assert exact <= used <= exact * (1 + 1e-14)

    def test_integers_are_not_enlarged(self):
        for cls in (Gaussian, SymmetricGaussian):
            found = cls.calibrate(1000, BUDGET, dimension=9, integer=True)
            assert found.grid == 1.0
            assert found.profile().mu * found.sigma == pytest.approx(1000, rel=1e-14)

    @pytest.mark.parametrize("kind", ["gaussian", "laplace", "symmetric-gaussian"])
    def test_neighbours_stay_within_the_enlarged_sensitivity(self, kind):
        """Values at the stated distance, computed with the stated error, after rounding."""
        draws = np.random.default_rng(5)
        cls, d = REGISTRY[kind], 4
        for trial in range(300):
            sensitivity, rounding = 10 ** draws.uniform(-3, 3), draws.choice([0.0, 1e-7, 0.1])
            options = {"dimension": d, "rounding": rounding * sensitivity}
            found = cls.calibrate(sensitivity, BUDGET, **options)
            if trial % 2:  # a grid so coarse that it matters
                found = replace(found, grid=2.0 ** math.floor(math.log2(sensitivity / 3)))
            first = draws.uniform(-1, 1, value_of(found).shape) * 10 ** draws.uniform(-2, 6)
            first = (
                np.rint(first / found.grid) * found.grid
                + draws.choice([0.5, 0.49, 0.0]) * found.grid
            )
            second = first + step_of(found, draws, sensitivity)
            computed = [x + step_of(found, draws, found.rounding) for x in (first, second)]
            if kind == "symmetric-gaussian":
                computed = [np.tril(x) + np.tril(x, -1).T for x in computed]
            steps = [
                [
                    int(s)
                    for s in (found.release(x, noise_for(found, Silence())) / found.grid).ravel()
                ]
                for x in computed
            ]
            moved = [abs(a - b) for a, b in zip(*steps, strict=True)]
            noise = found.scale if kind == "laplace" else found.sigma
            p = found.profile()
            stated = Fraction(p.epsilon_value if kind == "laplace" else p.mu) * Fraction(noise)
            if kind == "laplace":
                assert sum(moved) <= stated
            else:
                assert sum(m * m for m in moved) <= stated**2

    def test_the_spread_of_the_grid_is_attained(self):
        """Without the term sqrt(d) h these neighbours would be further apart than stated."""
        found = Gaussian(declared(1.0), dimension=4, sigma=10.0, grid=0.25)
        down = np.full(4, (0.5 - 1e-9) * 0.25)  # each entry rounds down, and 2 steps on up
        up = down + np.full(4, 0.5) + 2e-9 * 0.25
        steps = [found.release(x, noise_for(found, Silence())) for x in (down, up)]
        distance = float(np.linalg.norm(steps[1] - steps[0]))
        assert distance == 1.5
        assert distance <= found.profile().mu * found.sigma * found.grid <= 1.5 * (1 + 1e-14)

    def test_huge_values_are_clamped_where_62_bits_end(self):
        found = build("gaussian")
        value = np.array([1e300, -1e300, 1e300 * (1 - 1e-15)])
        out = found.release(value, noise_for(found, Silence()))
        edge = 2.0**62 * found.grid
        assert out.tolist() == [edge, -edge, edge]

    def test_what_is_not_a_number_counts_as_zero(self):
        for kind in ("gaussian", "laplace", "mixture-gaussian"):
            found = build(kind)
            out = found.release([math.nan, 1.0, math.nan], noise_for(found, Silence()))
            assert out.tolist() == [0.0, 1.0, 0.0]

    def test_magnitude_makes_the_grid_coarser(self):
        fine = Gaussian.calibrate(1.0, BUDGET, dimension=1)
        same = Gaussian.calibrate(1.0, BUDGET, dimension=1, magnitude=10.0)
        coarse = Gaussian.calibrate(1.0, BUDGET, dimension=1, magnitude=1e17)
        assert fine.grid == same.grid < coarse.grid
        assert 1e17 / coarse.grid < 2**62
        assert coarse.profile().epsilon(1e-6) <= 1.0

    @pytest.mark.parametrize("magnitude", [-1.0, math.nan, math.inf])
    def test_bad_magnitude(self, magnitude):
        with pytest.raises(ParameterError) as error:
            Gaussian.calibrate(1.0, BUDGET, dimension=1, magnitude=magnitude)
        assert str(error.value) == (
            f"The 'magnitude' parameter of calibrate must be a finite float >= 0. Got {magnitude}."
        )

    @pytest.mark.parametrize("options", [{"magnitude": 1e30}, {"s": 1e-300}, {"s": 1.5e308}])
    def test_no_grid_fits(self, options):
        sensitivity = options.pop("s", 1.0)
        with pytest.raises(ParameterError) as error:
            Gaussian.calibrate(sensitivity, BUDGET, dimension=1, **options)
        assert str(error.value) == (
            "The 'sensitivity' parameter of calibrate must be such that value and noise fit on one"
            f" 62-bit grid. Got {sensitivity}. Rescale the query, lower epsilon, or state a smaller"
            " magnitude."
        )

    @pytest.mark.parametrize("cls", [Gaussian, SymmetricGaussian, Laplace])
    @pytest.mark.parametrize("rounding", [-1e-300, math.nan, math.inf])
    def test_bad_rounding(self, cls, rounding):
        with pytest.raises(ParameterError) as error:
            cls.calibrate(1.0, BUDGET, dimension=1, rounding=rounding)
        assert str(error.value) == (
            f"The 'rounding' parameter of {cls.__name__} must be a finite float >= 0."
            f" Got {rounding}."
        )

    def test_integers_are_asked_for_before_anything_is_drawn(self):
        for cls in (Gaussian, SymmetricGaussian):
            found = cls.calibrate(1.0, BUDGET, dimension=2, integer=True)
            noise = noise_for(found)
            for dtype in (np.float64, bool, object):
                with pytest.raises(ParameterError) as error:
                    found.release(value_of(found).astype(dtype), noise)
                assert str(error.value) == (
                    f"The 'value' parameter of {cls.__name__} must be an array of integers."
                    f" Got 'dtype {np.dtype(dtype)}'."
                )
            assert found.release(value_of(found).astype(np.int32), noise).dtype == np.int64

    def test_pure_budgets_have_no_gaussian(self):
        with pytest.raises(ParameterError) as error:
            Gaussian.calibrate(1.0, Budget(1.0), dimension=1)
        assert str(error.value).endswith(
            "Gaussian noise needs delta > 0; ask for pure epsilon with another mechanism."
        )


def step_of(mechanism, draws, length):
    """Return a random displacement whose norm, in real arithmetic, is just below ``length``."""
    step = draws.standard_normal(array_of(mechanism).shape)
    if draws.integers(2):
        step = np.sign(step)
    if mechanism.kind == "symmetric-gaussian":
        step = np.tril(step) + np.tril(step, -1).T
    norm = np.abs(step).sum() if mechanism.kind == "laplace" else np.linalg.norm(step)
    return step / norm * length * (1 - 1e-6)


# --- one mechanism at a time ----------------------------------------------------------------


class TestGaussian:
    def test_spread_of_the_noise(self):
        found = build("gaussian", dimension=20_000)
        out = found.release(value_of(found, 7.0), noise_for(found)) - 7.0

        def plausible(noise):  # within 6 deviations of the mean square and of the mean
            n = len(noise)
            square = np.mean((noise / found.noise_scale) ** 2)
            mean = np.mean(noise) / found.noise_scale
            return abs(square - 1) < 6 * math.sqrt(2 / n) and abs(mean) < 6 / math.sqrt(n)

        assert plausible(out)
        assert not plausible(out / 2)
        assert not plausible(out * 1.1)

    def test_named_sensitivities_are_kept(self):
        named = augmented_gram(ZERO, row=1.0, target=0.5)
        assert Gaussian.calibrate(named, BUDGET, dimension=2).sensitivity is named
        assert build("gaussian").sensitivity == declared(1.0)


class TestSymmetricGaussian:
    def test_oracle_of_the_gram_matrix(self):
        named = augmented_gram(REPLACE, row=2**20, target=741455)
        found = SymmetricGaussian.calibrate(named, BUDGET, dimension=3, integer=True)
        assert found.sigma == pytest.approx(9.85371e12, rel=1e-5)
        source = Recorder()
        found.release(np.zeros((3, 3), dtype=np.int64), noise_for(found, source))
        (diagonal, _), (off, _) = source.draws
        assert diagonal == pytest.approx(9.85371e12, rel=1e-5)
        assert off == pytest.approx(6.96762e12, rel=1e-5)
        assert exact_delta(1.0, exact_mu(found, named.value)) <= BUDGET.delta

    @pytest.mark.parametrize("side", [1, 2, 5, 40])
    def test_draws_and_their_scales(self, side):
        found = SymmetricGaussian.calibrate(3, Budget(8.0, 1e-6), dimension=side, integer=True)
        source = Recorder()
        found.release(np.zeros((side, side), dtype=np.int64), noise_for(found, source))
        (diagonal, count), (off, pairs) = source.draws
        assert (count, count + pairs) == (side, side * (side + 1) // 2)
        assert Fraction(diagonal) ** 2 >= Fraction(found.sigma) ** 2 + 4
        assert Fraction(off) ** 2 >= (Fraction(found.sigma) ** 2 / 2) * (1 - Fraction(1, 2**51)) + 4
        assert diagonal == pytest.approx(math.sqrt(found.sigma**2 + 4), rel=1e-14)
        assert off == pytest.approx(math.sqrt(found.sigma**2 / 2 + 4), rel=1e-14)

    def test_symmetric_with_half_the_variance_off_the_diagonal(self):
        found = build("symmetric-gaussian", dimension=250)
        diagonal, off = [], []
        for seed in range(4):
            out = found.release(value_of(found), noise_for(found, SeededNoise(seed)))
            assert np.array_equal(out, out.T)
            diagonal.extend(np.diag(out) / found.noise_scale)
            off.extend(out[np.tril_indices(250, -1)] / found.noise_scale)
        assert np.mean(np.square(diagonal)) == pytest.approx(1, abs=6 * math.sqrt(2 / 1000))
        assert np.mean(np.square(off)) == pytest.approx(0.5, abs=3 * math.sqrt(2 / 124_500))

    def test_the_value_stays_in_place(self):
        found = build("symmetric-gaussian")
        value = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
        assert np.array_equal(found.release(value, noise_for(found, Silence())), value)


class TestMixture:
    @pytest.mark.parametrize(
        ("trials", "chance", "delta", "oracle"),
        [
            (10**3, 1e-3, 1e-5, 12.4817),
            (10**4, 1e-4, 1e-6, 15.9642),
            (5 * 10**4, 1e-4, 1e-6, 39.9361),
        ],
    )
    def test_oracles(self, trials, chance, delta, oracle):
        """A record is used K times, K binomial, and moves the value by K."""
        counts = np.arange(41)
        weights = binom.pmf(counts, trials, chance)
        found = MixtureGaussian.calibrate(
            RandomSensitivity(REPLACE, tuple(counts.tolist()), tuple(weights.tolist())),
            Budget(1.0, delta),
            dimension=1,
            integer=True,
        )
        assert found.noise_scale == pytest.approx(oracle, rel=1e-5)
        with mpmath.workdps(60):
            mean = mpmath.mpf(0)
            for k in range(1, 41):
                p = mpmath.binomial(trials, k) * mpmath.mpf(chance) ** k
                p *= (1 - mpmath.mpf(chance)) ** (trials - k)
                mean += p * exact_delta(1.0, k / mpmath.mpf(found.sigma))
            assert delta * (1 - 1e-5) <= mean <= delta

    @pytest.mark.parametrize("tail", [0.0, 3e-7])
    @pytest.mark.parametrize("epsilon", [1e-2, 1.0, 20.0])
    def test_calibration_against_exact_sums(self, epsilon, tail):
        given = law(0.7, tail)
        for dimension in (1, 1000):
            found = MixtureGaussian.calibrate(given, Budget(epsilon, 1e-6), dimension=dimension)
            mean = mpmath.mpf(tail)
            for value, p in zip(given.values, given.probabilities, strict=True):
                mean += mpmath.mpf(p) * exact_delta(epsilon, exact_mu(found, value))
            assert 1e-6 * (1 - 1e-6) <= mean <= 1e-6
            profile = found.profile()
            assert profile.tail == tail
            assert profile.epsilon(1e-6) <= epsilon

    def test_less_noise_than_the_worst_case(self):
        rare = RandomSensitivity(REPLACE, (1.0, 2.0), (1 - 1e-9, 1e-9))
        found = MixtureGaussian.calibrate(rare, BUDGET, dimension=1)
        assert found.noise_scale < 0.51 * Gaussian.calibrate(2.0, BUDGET, dimension=1).noise_scale
        assert found.noise_scale > Gaussian.calibrate(1.0, BUDGET, dimension=1).noise_scale

    def test_one_atom_is_the_gaussian(self):
        one = RandomSensitivity(REPLACE, (2.0,), (1.0,))
        found = MixtureGaussian.calibrate(one, BUDGET, dimension=5)
        plain = Gaussian.calibrate(2.0, BUDGET, dimension=5)
        assert found.grid == plain.grid
        assert found.sigma == pytest.approx(plain.sigma, rel=1e-8)
        value = np.arange(5.0)
        assert np.allclose(
            found.release(value, noise_for(found)),
            plain.release(value, noise_for(plain)),
            rtol=0,
            atol=1e-4,
        )

    @pytest.mark.parametrize(("tail", "delta"), [(1e-5, 1e-6), (1e-6, 1e-6), (0.0, 0.0)])
    def test_the_tail_needs_room(self, tail, delta):
        with pytest.raises(ParameterError) as error:
            MixtureGaussian.calibrate(law(tail=tail), Budget(1.0, delta), dimension=1)
        assert str(error.value) == (
            f"The 'delta' parameter of MixtureGaussian must be above the probability {tail:g} that"
            f" the law leaves out. Got {delta!r}."
        )

    @pytest.mark.parametrize("sensitivity", [1.0, declared(1.0)])
    def test_needs_a_law(self, sensitivity):
        with pytest.raises(ParameterError, match="'sensitivity'"):
            MixtureGaussian.calibrate(sensitivity, BUDGET, dimension=1)


class TestLaplace:
    def test_spread_of_the_noise(self):
        found = build("laplace", dimension=20_000)
        out = found.release(value_of(found), noise_for(found)) / found.noise_scale
        assert np.mean(np.abs(out)) == pytest.approx(1, abs=6 / math.sqrt(20_000))
        assert np.mean(out) == pytest.approx(0, abs=6 * math.sqrt(2 / 20_000))
        assert np.mean(np.abs(out)) / 2 != pytest.approx(1, abs=6 / math.sqrt(20_000))

    def test_pure_epsilon_on_the_integers(self):
        """The ratio of the law at two integers k steps apart is exactly e^(k / scale)."""
        found = Laplace.calibrate(1.0, Budget(0.5), dimension=3)
        steps = (1.0 + 3 * found.grid) / found.grid
        assert steps / found.scale <= found.profile().epsilon_value <= 0.5
        source = Recorder()
        found.release(np.zeros(3), noise_for(found, source))
        assert source.draws == [(found.scale, 3)]

    def test_delta_is_not_used(self):
        assert Laplace.calibrate(1.0, BUDGET) == Laplace.calibrate(1.0, Budget(1.0))


class TestL2Gamma:
    @pytest.mark.parametrize("accept", [(), ("something-else",), ["idealised"]])
    def test_the_assumption_must_be_signed(self, accept):
        with pytest.raises(AssumptionError) as error:
            L2Gamma.calibrate(1.0, BUDGET, dimension=3, accept=accept)
        assert str(error.value) == (
            "The l2-gamma mechanism rests on the assumption 'idealised-arithmetic', which this library"
            " can't prove. Pass accept=('idealised-arithmetic',) to accept it; the certificate will name"
            " it."
        )

    def test_others_rest_on_nothing(self):
        for kind, cls in REGISTRY.items():
            if kind not in ASSUMING:
                require_accepted(cls, ())
                assert cls.assumptions == ()
        require_accepted(L2Gamma, iter([IDEALISED]))

    def test_radius_and_direction(self):
        found = build("l2-gamma")
        draws = np.array(
            [found.release(np.zeros(3), noise_for(found, SeededNoise(i))) for i in range(400)]
        )
        radii = np.linalg.norm(draws, axis=1) / found.scale
        assert np.mean(radii) == pytest.approx(3, abs=5 * math.sqrt(3 / 400))
        assert np.var(radii) == pytest.approx(3, rel=0.5)
        directions = draws / np.linalg.norm(draws, axis=1)[:, None]
        assert np.abs(directions.mean(axis=0)).max() < 5 / math.sqrt(3 * 400)

    def test_smaller_than_gaussian_noise_up_to_dimension_17(self):
        for d in (10, 17, 18, 100):
            pure = build("l2-gamma", dimension=d)
            mean_radius = d * pure.noise_scale
            gaussian_radius = math.sqrt(d) * build("gaussian", dimension=d).noise_scale
            assert (mean_radius < gaussian_radius) == (d <= 17)


class TestExponential:
    @pytest.mark.parametrize("monotone", [True, False])
    def test_errors_of_the_utilities_follow_no_sign(self, monotone):
        """Two candidates whose computed utilities are off by the whole rounding, in four ways."""
        score, rounding = declared(1.0, Neighbours.ZERO_OUT, "score"), 0.4
        found = Exponential.calibrate(
            score, BUDGET, candidates=2, monotone=monotone, rounding=rounding
        )
        moved = np.array([1.0, 0.0 if monotone else -1.0])  # the record's own share
        errors = rounding * np.array([1.0, -1.0])
        others = np.array([-1000.0, 0.0])  # so that the first candidate is hardly ever chosen
        logs = [log_softmax(found.rate * (others + u)) for u in (moved + errors, -errors)]
        loss = float(np.abs(logs[0] - logs[1]).max())
        assert loss == pytest.approx(found.profile().epsilon_value, rel=1e-12)
        assert found.profile().epsilon_value <= BUDGET.epsilon

    @pytest.mark.parametrize("monotone", [True, np.True_])
    def test_monotone_is_refused_under_replace_one(self, monotone):
        with pytest.raises(ParameterError) as error:
            Exponential.calibrate(1.0, BUDGET, candidates=3, monotone=monotone)
        assert str(error.value) == (
            "The 'monotone' parameter of Exponential must be False under replace-one."
            f" Got {monotone!r}. A replaced record moves one sum up and another down."
        )

    @pytest.mark.parametrize("relation", [ZERO, ADD])
    def test_monotone_scores_cost_half(self, relation):
        score = declared(2.0, relation, "score")
        plain = Exponential.calibrate(score, BUDGET, candidates=3)
        monotone = Exponential.calibrate(score, BUDGET, candidates=3, monotone=True)
        assert plain.rate == pytest.approx(1 / 4, rel=1e-14)
        assert monotone.rate == pytest.approx(1 / 2, rel=1e-14)
        assert max(m.profile().epsilon_value for m in (plain, monotone)) <= 1.0
        assert plain.noise_scale == pytest.approx(4, rel=1e-14)

    def test_the_error_of_the_scores_counts_twice(self):
        found = Exponential.calibrate(1.0, BUDGET, candidates=3, rounding=0.25)
        assert found.rate == pytest.approx(1 / 3, rel=1e-14)
        assert found.profile().epsilon_value <= 1.0
        with pytest.raises(ParameterError, match="'rounding' parameter of Exponential"):
            Exponential.calibrate(1.0, BUDGET, candidates=3, rounding=-1.0)

    def test_the_law_itself_is_private(self):
        """One score up and all others down: 2 rate Delta is needed, and enough."""

        def loss(rate, up, down, n=10**6):
            one, rest = math.exp(rate * up), (n - 1) * math.exp(-rate * down)
            return math.log(n * one / (one + rest))

        score = declared(1.0, ZERO, "score")
        plain = Exponential.calibrate(score, BUDGET, candidates=10**6)
        monotone = Exponential.calibrate(score, BUDGET, candidates=10**6, monotone=True)
        assert 0.99 < loss(plain.rate, 1, 1) <= plain.profile().epsilon_value
        assert 0.99 < loss(monotone.rate, 1, 0) <= monotone.profile().epsilon_value
        assert loss(monotone.rate, 1, 1) > 1.9  # the broken twin: not monotone after all

    def test_frequencies(self):
        found = Exponential.calibrate(1.0, Budget(2.0), candidates=3)
        scores = np.array([0.0, 1.0, 2.0])
        weights = np.exp(found.rate * scores)
        chances = weights / weights.sum()
        n = 2000
        hits = [found.release(scores, noise_for(found, SeededNoise(i))) for i in range(n)]
        counts = np.bincount(hits, minlength=3)

        def plausible(chances):
            spread = np.sqrt(n * chances * (1 - chances))
            return bool(np.all(np.abs(counts - n * chances) < 5 * spread))

        assert plausible(chances)
        assert not plausible(weights**2 / np.sum(weights**2))  # half the noise

    def test_strange_scores(self):
        found = Exponential.calibrate(1.0, BUDGET, candidates=3)
        for scores, best in (
            ([math.inf, 0.0, -math.inf], 0),
            ([math.nan, -math.inf, 1e308], 2),
            ([-1e308, math.nan, -1e308], 1),
        ):
            assert found.release(np.array(scores), noise_for(found)) == best


@pytest.mark.parametrize("epsilon", [1.0, 30.0, 3000.0])
def test_the_stated_deviation_is_that_of_the_noise(epsilon):
    """On whole numbers the noise is never much smaller than 2, however little is needed."""
    moved = histogram(REPLACE)
    counts = Gaussian.calibrate(moved, Budget(epsilon, 1e-6), dimension=100_000, integer=True)
    drawn = counts.release(np.zeros(100_000, dtype=np.int64), noise_for(counts))
    assert abs(np.std(drawn) / counts.deviation - 1) < 0.01
    numbers = Gaussian.calibrate(1.0, Budget(epsilon, 1e-6), dimension=10)
    assert numbers.noise_scale <= numbers.deviation <= numbers.noise_scale * (1 + 1e-9)
