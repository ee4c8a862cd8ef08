"""Steps on random batches as a mechanism: golden noise, what a release draws, and the cache."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import oracles
from dpkernel import SeededNoise, SystemNoise
from dpkernel.foundations.errors import CertificateError, ParameterError
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.privacy.certificate import Certificate, Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import Gaussian, SampledGaussian, sampled
from dpkernel.privacy.noise import Part, Plan
from dpkernel.privacy.profiles import SampledGaussianProfile
from dpkernel.privacy.sensitivity import bounded_sum, declared

REPLACE, ZERO, ADD = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE
BUDGET = Budget(1.0, 1e-6)


def calibrated(budget=BUDGET, neighbours=REPLACE, bound=1, **options):
    options = {"dimension": 2, "n_rows": 50, "batch": 5, "steps": 10} | options
    return SampledGaussian.calibrate(bounded_sum(neighbours, bound=bound), budget, **options)


def composed(mechanism, steps):
    return mechanism.profile().repeat(steps)


# --- calibration --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "steps", "epsilon", "delta", "noise"),
    [
        (10**3, 10**3, 1.0, 1e-6, 1.400),
        (10**4, 10**4, 1.0, 1e-8, 1.261),
        (10**4, 10**4, 4.0, 1e-8, 0.974),
        (10**4, 10**5, 1.0, 1e-8, 1.343),
    ],
)
def test_golden_noise_of_batches_of_one(n, steps, epsilon, delta, noise):
    budget = Budget(epsilon, delta)
    found = calibrated(budget, n_rows=n, batch=1, steps=steps)
    assert found.sigma <= noise
    assert composed(found, steps).supports(budget)
    assert not composed(replace(found, sigma=found.sigma * 0.995), steps).supports(budget)
    assert not composed(replace(found, sigma=found.sigma * (1 - 3e-4)), steps).supports(budget)
    # rounding to the nearest hundredth is not harmless, and nothing below the oracle is private
    assert found.sigma > noise * (1 - 2e-3)


@pytest.mark.parametrize(
    ("batch", "steps", "noise"),
    [(1, 10_000, 0.630), (100, 100, 0.0114), (100, 1000, 0.0184), (1000, 200, 0.0074)],
)
def test_golden_noise_of_poisson_batches(batch, steps, noise):
    """Of an averaged gradient, clipped to norm 1."""
    budget = Budget(1.0, 1e-8)
    found = calibrated(budget, ZERO, n_rows=10_000, batch=batch, sampling="poisson", steps=steps)
    assert found.sigma / batch <= noise
    assert composed(found, steps).supports(budget)
    assert not composed(replace(found, sigma=found.sigma * 0.995), steps).supports(budget)
    assert found.sigma / batch > noise * 0.99


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("steps", [1, 2, 30])
def test_the_private_side_and_tight(sampling, steps):
    for epsilon, delta in ((0.05, 1e-5), (1.0, 1e-9), (8.0, 1e-3), (60.0, 1e-6)):
        budget = Budget(epsilon, delta)
        found = calibrated(budget, ZERO, sampling=sampling, steps=steps, bound=1000)
        whole = composed(found, steps)
        assert whole.supports(budget) and whole.epsilon(delta) <= epsilon
        less = replace(found, sigma=found.sigma * (1 - 1e-5))
        assert not composed(less, steps).supports(budget)


def test_full_batches_need_the_noise_of_a_gaussian():
    for sampling, neighbours in (("fixed", REPLACE), ("poisson", ZERO)):
        found = calibrated(neighbours=neighbours, batch=50, sampling=sampling, steps=7)
        single = Gaussian.calibrate(
            bounded_sum(neighbours, bound=1), BUDGET, dimension=2, integer=True
        )
        assert found.sigma == pytest.approx(single.sigma * math.sqrt(7), rel=3e-7)
        assert found.profile().mu is not None


def test_poisson_batches_need_half_the_noise_of_a_replaced_record():
    replaced, fixed = calibrated(steps=1), calibrated(neighbours=ZERO, steps=1)
    poisson = calibrated(neighbours=ZERO, steps=1, sampling="poisson")
    assert poisson.sigma == pytest.approx(replaced.sigma / 2, rel=1e-6)
    assert 1.5 * poisson.sigma < fixed.sigma < replaced.sigma


def test_a_blanked_record_among_opposite_ones():
    """Record j = +C, all others -C, j blanked: a batch of 10 of 1000 rows, 100 steps.

    A batch without j adds up to -10 C, one with j to -8 C, one with the blank to -9 C. The exact
    composition of these mixtures, rounded down, is within the claim of (1, 1e-5).
    """
    budget, bound, steps = Budget(1.0, 1e-5), 1 << 12, 100
    sensitivity = bounded_sum(ZERO, bound=bound)
    found = SampledGaussian.calibrate(
        sensitivity, budget, dimension=1, n_rows=1000, batch=10, steps=steps
    )
    edges = np.linspace(-9, 13, 60_001)
    means, weights = np.array([0, 2, 1]) * bound / found.sigma, (0.99, 0.01)
    pair = oracles.Pair(
        oracles.mixture(edges, means[:2], weights), oracles.mixture(edges, means[::2], weights)
    )
    claimed = composed(found, steps)
    assert claimed.delta(1.0) <= 1e-5
    assert oracles.composed([pair] * steps, [1.0])[0] <= claimed.delta(1.0)
    assert oracles.ratio(claimed, [pair] * steps) <= 1


def test_certificates_of_the_smaller_claim_are_refused():
    """What was written while a blanked record was taken for a replaced one of half the distance."""
    budget, steps = Budget(1.0, 1e-5), 100
    half = calibrated(budget, REPLACE, bound=0.5, n_rows=1000, batch=10, steps=steps)
    noise = Ledger(neighbours=REPLACE).spend(
        Plan((Part("steps", half.profile(), draws=steps),)), "old"
    )
    release = Release("steps", half, steps)
    new = Certificate.issue("a fit", budget, [release], noise, public={"n_rows": 1000})
    assert Certificate.from_json(new.to_json()).verify().epsilon <= 1
    old = json.loads(new.to_json().replace("replace-one", "zero-out"))
    old["releases"][0]["sensitivity"]["parameters"]["bound"] = 1.0
    assert old["profile"]["sampling"] == "fixed"
    with pytest.raises(CertificateError):
        Certificate.from_json(json.dumps(old)).verify()


def test_the_rate_is_rounded_up():
    for n in (3, 7, 49, 10**6 + 3):
        found = calibrated(Budget(1.0, 1e-9), n_rows=n, batch=1, steps=1)
        assert found.profile().rate == found.rate
        assert Fraction(found.rate) >= Fraction(1, n)


def test_steps_that_the_transform_can_not_account_for():
    with pytest.raises(
        ParameterError, match="at least 1e-13 per step, 1e-08 for these. Got 1e-10. Take"
    ):
        calibrated(Budget(1.0, 1e-10), n_rows=10**5, batch=1, steps=10**5)
    calibrated(Budget(1.0, 1e-10), batch=50, steps=10**5)  # full batches need no transform


def test_a_delta_that_would_allow_publication():
    """A record that is used with probability delta needs no noise at all: refused."""
    with pytest.raises(ParameterError) as error:
        calibrated(Budget(1.0, 2e-3), n_rows=10_000, batch=1, steps=10)
    assert str(error.value) == (
        "The 'delta' parameter of SampledGaussian must be below 0.00099955, the probability that a"
        " record is used. Got 0.002. Otherwise every used record could be published as it is. Pass a"
        " smaller delta."
    )
    calibrated(Budget(1.0, 9.9e-4), n_rows=10_000, batch=1, steps=10)


@pytest.mark.parametrize("steps", [0, -1, 1.0, True, None])
def test_bad_steps(steps):
    with pytest.raises(ParameterError, match="The 'steps' parameter of SampledGaussian must be an"):
        calibrated(steps=steps)


@pytest.mark.parametrize("batch", [0, 51, 2.5, True, None, math.nan])
def test_bad_batches(batch):
    with pytest.raises(
        ParameterError, match="'batch' parameter of SampledGaussian must be an int f"
    ):
        calibrated(batch=batch)


@pytest.mark.parametrize("batch", [0, -1.0, 50.5, "5", math.nan])
def test_bad_poisson_batches(batch):
    with pytest.raises(ParameterError, match=r"must be a float in \(0, n_rows\]"):
        calibrated(neighbours=ZERO, batch=batch, sampling="poisson")


def test_a_mean_batch_may_be_a_fraction():
    found = calibrated(neighbours=ZERO, batch=0.5, sampling="poisson")
    assert found.rate == pytest.approx(0.01)


def test_relations_without_a_bound():
    with pytest.raises(ParameterError) as error:
        calibrated(sampling="poisson")
    assert str(error.value) == (
        "The 'sampling' parameter of SampledGaussian must be 'fixed' for replace-one. Got 'poisson'."
        " Pass 'fixed': for a replaced record, no bound for Poisson batches is known here."
    )
    for kind in ("fixed", "poisson"):  # places of a table of public length
        removed, blanked = (calibrated(neighbours=one, sampling=kind) for one in (ADD, ZERO))
        assert removed.profile() == blanked.profile() and removed.sigma == blanked.sigma
    with pytest.raises(
        ParameterError, match="'sampling' .* must be 'fixed' or 'poisson'. Got 'all'"
    ):
        calibrated(sampling="all")
    with pytest.raises(ParameterError, match="Gaussian noise needs delta > 0"):
        calibrated(Budget(1.0))


# --- release ------------------------------------------------------------------------------


def spend(mechanism, steps, source=None):
    plan = Plan((Part("steps", mechanism.profile(), steps),))
    return Ledger(neighbours=mechanism.sensitivity.neighbours).spend(
        plan, "fit", noise=source or SeededNoise(0)
    )


def batches_of(mechanism, steps, source=None):
    """Return the batches that a query is asked for."""
    seen, noise = [], spend(mechanism, steps, source)

    def query(batch):
        seen.append(batch)
        return np.zeros(mechanism.dimension, dtype=np.int64)

    for _ in range(steps):
        mechanism.release(query, noise)
    return seen


def test_each_step_draws_a_batch_of_its_own():
    seen = batches_of(calibrated(), 200)
    assert all(len(batch) == 5 and np.all(np.diff(batch) > 0) for batch in seen)
    assert len({tuple(batch) for batch in seen}) == 200
    hits = np.bincount(np.concatenate(seen), minlength=50)  # 20 each, with a deviation of 4.2
    assert len(hits) == 50 and hits.min() > 0 and hits.max() < 50
    again = batches_of(calibrated(), 1, SystemNoise()), batches_of(calibrated(), 1, SystemNoise())
    assert not np.array_equal(*again)  # 1 in 2 million by chance


def test_poisson_batches_have_random_sizes():
    found = calibrated(neighbours=ZERO, sampling="poisson", batch=5.0)
    sizes = [len(batch) for batch in batches_of(found, 200)]
    assert len(set(sizes)) > 5 and abs(np.mean(sizes) - 5) < 1


def test_full_batches_hold_everything():
    for sampling, neighbours in (("fixed", REPLACE), ("poisson", ZERO)):
        found = calibrated(neighbours=neighbours, batch=50, sampling=sampling)
        (batch,) = batches_of(found, 1)
        assert batch.tolist() == list(range(50))


@pytest.mark.parametrize("batch", [5, 50])
def test_the_noise_is_discrete_and_as_large_as_stated(batch):
    scales = []

    class Recorder(SeededNoise):
        def discrete_gaussian(self, scale, size):
            scales.append((scale, size))
            return super().discrete_gaussian(scale, size)

    found, rows = calibrated(bound=100, batch=batch), np.full((50, 2), 7)
    noise = spend(found, 300, Recorder(1))
    out = np.array([found.release(lambda b: rows[b].sum(axis=0), noise) for _ in range(300)])
    assert out.dtype == np.int64
    assert set(scales) == {(scales[0][0], 2)}
    assert scales[0][0] == pytest.approx(math.sqrt(found.sigma**2 + 4), rel=1e-12)
    assert scales[0][0] ** 2 >= found.sigma**2 + 4
    assert abs(out.mean() - 7 * batch) < 6 * found.sigma / math.sqrt(600)
    assert out.std() == pytest.approx(found.sigma, rel=0.15)


def test_wrap_around_is_silent():
    found = calibrated()
    top = np.full(2, np.iinfo(np.int64).max)
    outs = [found.release(lambda b: top, spend(found, 1, SeededNoise(s)))[0] for s in range(20)]
    assert min(outs) < 0 < max(outs)


def test_a_query_that_returns_floats():
    found = calibrated()
    with pytest.raises(ParameterError) as error:
        found.release(lambda batch: np.full(2, 0.25), spend(found, 1))
    assert str(error.value) == (
        "The 'value' parameter of SampledGaussian must be a function that returns integers of shape"
        " (2,). Got 'shape (2,), dtype float64'."
    )


def test_a_fit_of_many_steps_is_one_profile_and_its_certificate_verifies():
    found = calibrated(steps=40)
    noise = spend(found, 40, SystemNoise())
    assert noise.plan.profile == SampledGaussianProfile(
        found.profile().mu_value, found.rate, "fixed", 40
    )
    for _ in range(40):
        found.release(lambda batch: np.zeros(2, dtype=np.int64), noise)
    issued = Certificate.issue(
        "test", BUDGET, [Release("steps", found, 40)], noise, public={"n": 50}
    )
    again = Certificate.from_json(issued.to_json())
    assert again.verify().epsilon <= BUDGET.epsilon
    assert issued.private and issued.epsilon <= BUDGET.epsilon


# --- the cache ----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DPKERNEL_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_a_multiplier_is_found_once(folder, monkeypatch):
    first = calibrated()
    (file,) = folder.iterdir()
    assert json.loads(file.read_text()) == {"multiplier": first.sigma / 2}
    monkeypatch.setattr(sampled, "_least", None)  # a second search would fail
    assert calibrated() == first
    assert calibrated(bound=8).sigma == pytest.approx(8 * first.sigma)
    with pytest.raises(TypeError):
        calibrated(Budget(1.0, 2e-6))
    with pytest.raises(TypeError):
        calibrated(steps=11)
    with pytest.raises(TypeError):
        calibrated(neighbours=ZERO, sampling="poisson")


@pytest.mark.parametrize(
    "poison",
    [
        '{"multiplier": 0.5}',  # too little noise
        '{"multiplier": 1e-5}',
        '{"multiplier": 1e-300}',
        '{"multiplier": 500.0}',  # far too much
        '{"multiplier": NaN}',
        '{"multiplier": Infinity}',
        '{"multiplier": -1.0}',
        '{"multiplier": "1"}',
        '{"multiplier": true}',
        '{"multiplier": 1' + "0" * 400 + "}",
        "[1.0]",
        "[" * 100_000,
        "3",
        "",
        "\udcff",
    ],
    ids=range(15),
)
def test_a_poisoned_cache_changes_nothing(folder, poison):
    first = calibrated()
    (file,) = folder.iterdir()
    file.write_bytes(poison.encode(errors="surrogateescape"))
    assert calibrated() == first
    assert json.loads(file.read_text()) == {"multiplier": first.sigma / 2}  # and is put right
    assert len(list(folder.iterdir())) == 1


def test_a_number_barely_too_small_is_refused(folder):
    first = calibrated()
    (file,) = folder.iterdir()
    file.write_text(json.dumps({"multiplier": first.sigma / 2 * (1 - 1e-6)}))
    again = calibrated()
    assert again == first and composed(again, 10).supports(BUDGET)


def test_a_folder_that_can_not_be_used(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    expected = calibrated()
    for place in (tmp_path / "file" / "below", tmp_path / "file", "/proc/none"):
        monkeypatch.setenv("DPKERNEL_CACHE", str(place))
        # computed again, the last digits may differ: a Fourier transform depends on its memory
        found = calibrated()
        assert found.sigma == pytest.approx(expected.sigma, rel=1e-9)
        assert replace(found, sigma=expected.sigma) == expected


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.delenv("DPKERNEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    calibrated()
    assert [f.suffix for f in (tmp_path / "xdg" / "dpkernel").iterdir()] == [".json"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    calibrated()
    assert (tmp_path / "home" / ".cache" / "dpkernel").is_dir()


def test_a_declared_sensitivity_and_its_relation():
    found = SampledGaussian.calibrate(declared(3.0), BUDGET, dimension=1, n_rows=9, batch=3)
    assert found.sensitivity.neighbours is REPLACE
    assert found.noise_scale == found.sigma


def test_closed_forms_are_not_kept(folder):
    calibrated(steps=1)
    calibrated(batch=50)
    assert not folder.exists()
