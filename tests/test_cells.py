"""Cells: every mechanism, sensitivity and profile against data sets that nobody had in mind.

The tables of cells are made from the registries. A mechanism, an option of its constructor, a
formula or a kind of profile without a cell fails here. Each cell states the largest ratio of what a
search found to what was claimed; it must not exceed 1 (NOISE is for sums of floats). Each family
has broken twins that its cells must reject. Run with ``-s`` to see the table.
"""

from __future__ import annotations

import inspect
import itertools
from dataclasses import fields

import numpy as np
import pytest
from scipy.special import logsumexp

import mechanism_cells
import profile_cells
import sensitivity_cells
from dpkernel.foundations.errors import NoiseError
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.privacy import noise as noise_module
from dpkernel.privacy import profiles
from dpkernel.privacy.certificate import Certificate, Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import PROCEDURES, REGISTRY, Gaussian
from dpkernel.privacy.mechanisms.selection import Line, fit_profile
from dpkernel.privacy.noise import Part, Plan
from dpkernel.privacy.profiles import GaussianProfile, compose
from dpkernel.privacy.sensitivity import bounded_sum
from dpkernel.privacy.sensitivity.base import _FORMULAS, _LAWS
from oracles import EPSILONS, claims, ratio, shifted

NOISE = 1e-9  # of float sums, relative
REJECTED = 1.01  # a broken twin exceeds its claim by more than a hundredth
REPLACE, ZERO, ADD = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE
MECHANISMS = {**REGISTRY, **PROCEDURES}
SIGNED = {"accept", "accepted"}  # assumptions have one value that is allowed
TABLE: dict[str, float] = {}


def say(name, found):
    TABLE[name] = max(found, TABLE.get(name, 0.0))
    assert found <= 1 + NOISE, f"{name}: {found:.6g} times the claim"
    return found


@pytest.fixture(scope="module", autouse=True)
def table():
    """Print the largest ratios when all cells are done."""
    yield
    width = max((len(name) for name in TABLE), default=0)
    for name, found in sorted(TABLE.items()):
        print(f"\n{name:<{width}}  {found:.6f}", end="")


# --- mechanisms -------------------------------------------------------------------------------


def cells_of(kind, relation):
    return list(mechanism_cells.CELLS[kind](relation))


@pytest.mark.parametrize("relation", Neighbours, ids=lambda r: r.value)
@pytest.mark.parametrize("kind", MECHANISMS)
def test_mechanism(kind, relation):
    """No neighbours exceed the claim; half the noise is seen, and so is the wrong relation."""
    every = cells_of(kind, relation)
    for cell in every:
        say(f"{kind}, {relation.value}", cell.ratio())
    assert any(cell.ratio(mechanism_cells.half(cell.mechanism)) > REJECTED for cell in every)
    if relation is ZERO:
        assert any(cell.ratio(relation=REPLACE) > REJECTED for cell in every)


@pytest.mark.parametrize("kind", MECHANISMS)
def test_every_option_of_a_mechanism_has_cells(kind):
    """Each field of the class and each argument of ``calibrate`` or ``build`` takes two values."""
    every = [cell for relation in Neighbours for cell in cells_of(kind, relation)]
    cls = MECHANISMS[kind]
    for option in {field.name for field in fields(cls)} - SIGNED:
        values = {repr(getattr(cell.mechanism, option)) for cell in every}
        assert len(values) > 1, f"{kind} has no two cells with different {option!r}"
    make = getattr(cls, "calibrate", getattr(cls, "build", None))
    if make is not None:
        wanted = set(inspect.signature(make).parameters) - {"sensitivity", "budget"}
        given = {name for cell in every for name in cell.options}
        assert wanted == given, f"{kind} has no cell with {sorted(wanted - given)}"
    assert any(cell.draws > 1 for cell in every) or kind in PROCEDURES
    if "dimension" in {field.name for field in fields(cls)}:
        assert {cell.mechanism.dimension for cell in every} >= {1, 2}


def test_every_mechanism_has_cells():
    assert set(mechanism_cells.CELLS) == {*REGISTRY, *PROCEDURES}


def test_exchanged_records_forgotten():
    """Fixed batches under zero-out, charged as if a blanked record met its own blank only."""

    class Forgotten(mechanism_cells.SampledGaussian):
        def profile(self):
            one = super().profile()
            return profiles.SampledGaussianProfile(one.mu_value, one.rate, "fixed")

    found = []
    for cell in cells_of("sampled-gaussian", ZERO):
        if cell.mechanism.sampling == "fixed" and cell.mechanism.rate < 1:
            values = {f.name: getattr(cell.mechanism, f.name) for f in fields(cell.mechanism)}
            cell.mechanism = Forgotten(**values)
            found.append(cell.ratio())
    assert max(found) > REJECTED


def test_roundings_forgotten():
    """Each mechanism with a ``rounding`` is seen to need it."""
    for kind, relation in itertools.product(MECHANISMS, (REPLACE, ZERO)):
        for cell in cells_of(kind, relation) if hasattr(MECHANISMS[kind], "rounding") else ():
            mechanism = cell.mechanism
            if mechanism.rounding:
                values = {f.name: getattr(mechanism, f.name) for f in fields(mechanism)}
                bare = type(mechanism)(**{**values, "rounding": 0.0})
                search = cell.search
                cell.mechanism = bare
                cell.search = lambda _, r, s=search, m=mechanism: s(m, r)
                assert cell.ratio() > REJECTED, (kind, relation, mechanism)


# --- sensitivities ----------------------------------------------------------------------------

SAME_FOR_ALL = {"declared", "record-norm"}  # the relation does not enter


@pytest.mark.parametrize("relation", Neighbours, ids=lambda r: r.value)
@pytest.mark.parametrize("name", [*_FORMULAS, *_LAWS])
def test_sensitivity(name, relation):
    """No query moves further than its formula says; half of it is seen to be too little."""
    search = sensitivity_cells.SEARCHES[name]
    found = say(f"{name}, {relation.value}", sensitivity_cells.furthest(search, relation))
    assert found > 0.5 * REJECTED  # so that half the formula is rejected
    if relation is ZERO and name not in SAME_FOR_ALL:
        assert sensitivity_cells.furthest(search, REPLACE, ZERO) > REJECTED


def test_every_formula_has_a_search():
    assert set(sensitivity_cells.SEARCHES) == {*_FORMULAS, *_LAWS}


# --- profiles ---------------------------------------------------------------------------------

EXAMPLES = profile_cells.EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_profile(name):
    """Both directions of every way stay below the profile; several releases for one do not."""
    example = EXAMPLES[name]
    claimed = claims(example.profile)
    for way in example.ways:
        say(f"profile {name}", ratio(claimed, way))
    assert max(ratio(claimed, way * example.slack) for way in example.ways) > REJECTED


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "maximum"])
def test_repeated_profile(name):
    example = EXAMPLES[name]
    claimed = claims(example.profile.repeat(3))
    for way in example.ways:
        say(f"profile {name}, three times", ratio(claimed, way * 3))


def _pairs_of_profiles():
    """Return every two kinds; those beside a Gaussian or a neighbour in the table are quick."""
    names = list(EXAMPLES)
    for i, j in itertools.combinations(range(len(names)), 2):
        quick = (i == 0 or j == i + 1) and "maximum" not in (names[i], names[j])
        marks = [] if quick or (i, names[j]) == (0, "maximum") else [pytest.mark.slow]
        yield pytest.param(names[i], names[j], marks=marks, id=f"{names[i]} + {names[j]}")


@pytest.mark.parametrize(("one", "other"), list(_pairs_of_profiles()))
def test_composed_profiles(one, other):
    """Two different releases in a row, exactly; neither may be forgotten."""
    first, second = EXAMPLES[one], EXAMPLES[other]
    claimed = claims(compose([first.profile, second.profile]))
    for way, then in itertools.product(first.ways, second.ways):
        found = ratio(claimed, way + then)
        say(f"profile {one}, composed", found)
        say(f"profile {other}, composed", found)
    for kept in (first, second):
        alone = kept.profile
        assert any(claimed[e] > alone.delta(e) * (1 + 1e-6) for e in EPSILONS)


def renyi(pair, order):
    """Return the divergence of this order: of cells, so at most that of the laws they cut up."""
    seen = (pair.first > 0) & (pair.second > 0)
    if pair.first[~seen].sum() > 1e-12:
        return np.inf
    logs = order * np.log(pair.first[seen]) - (order - 1) * np.log(pair.second[seen])
    return float(logsumexp(logs)) / (order - 1)


@pytest.mark.parametrize("name", EXAMPLES)
def test_divergences_of_a_profile(name):
    """What a Renyi ledger adds up is no less than the divergence, in both directions."""
    example = EXAMPLES[name]
    found = []
    for order, way in itertools.product((1.5, 2.0, 4.0, 8.0), example.ways):
        bound = example.profile.rdp(order)
        for pairs in (way, [pair.swapped for pair in way]):
            exact = sum(renyi(pair, order) for pair in pairs)
            assert exact <= bound * (1 + NOISE) + 1e-12, (order, exact, bound)
            if bound < np.inf:
                found.append(exact / bound)
    if found:
        say(f"profile {name}, Renyi", max(found))


@pytest.mark.parametrize("name", [n for n, e in EXAMPLES.items() if e.profile.mu is not None])
def test_gaussian_pair_of_a_profile(name):
    """What a ledger adds up as mu^2 bounds the release, alone and three times."""
    example = EXAMPLES[name]
    for count, way in itertools.product((1, 3), example.ways):
        claimed = claims(GaussianProfile(example.profile.mu).repeat(count))
        say(f"profile {name}, by its mu", ratio(claimed, way * count))


def test_every_profile_has_an_example():
    kinds = {name.split(",")[0] for name in EXAMPLES}
    assert kinds == set(profiles._REGISTRY)
    assert kinds == {example.profile.kind for example in EXAMPLES.values()}
    found = {e.profile.sampling for n, e in EXAMPLES.items() if n.startswith("sampled")}
    assert found == set(profiles.sampled.SAMPLINGS)


# --- draws and folds --------------------------------------------------------------------------


@pytest.mark.parametrize(("draws", "folds"), [(1, 1), (4, 1), (1, 3), (3, 2)])
def test_draws_and_folds_are_counted(draws, folds):
    """A record is in one fold, and meets every draw there: no more, no less.

    The noise can be drawn draws * folds times. The plan, the certificate, its JSON and a line of a
    search charge the draws that one record meets.
    """
    moved = bounded_sum(ZERO, bound=64.0)
    mechanism = Gaussian(moved, 1, 128.0, integer=True)
    plan = Plan((Part("a", mechanism.profile(), draws, folds), Part("b", GaussianProfile(0.1))))
    noise = Ledger(neighbours=ZERO).spend(plan, "fit")
    for _ in range(draws * folds):
        mechanism.release(np.zeros(1, int), noise)
    with pytest.raises(NoiseError):
        mechanism.release(np.zeros(1, int), noise)
    other = Gaussian(moved, 1, 640.0, integer=True)
    plan = Plan((Part("a", mechanism.profile(), draws, folds), Part("b", other.profile())))
    paid = Ledger(neighbours=ZERO).spend(plan, "fit")
    releases = [Release("a", mechanism, draws, folds), Release("b", other)]
    certificate = Certificate.issue("a fit", Budget(9.0, 1e-5), releases, paid, public={})
    lines = (Line("a", mechanism, draws, folds), Line("b", other))
    joined = Plan.joined({"x": plan, "y": Plan((Part("c", other.profile(), 2),))})
    exact = [shifted(0.5)] * draws + [shifted(0.1)]
    for profile, pairs in (
        (plan.profile, exact),
        (certificate.profile, exact),
        (Certificate.from_json(certificate.to_json()).profile, exact),
        (fit_profile(lines), exact),
        (joined.profile, exact + [shifted(0.1)] * 2),
        (noise_module.Plan.of(plan, "p").profile, exact),
    ):
        found = ratio(profile, pairs)
        assert 0.98 < found <= 1 + NOISE  # more draws would exceed it, fewer would fall behind
    TABLE["draws and folds"] = max(found, TABLE.get("draws and folds", 0.0))
