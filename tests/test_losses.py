"""Losses: every registry entry against its own definition, its constants and exact arithmetic."""

from __future__ import annotations

import json
import math
import warnings
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpkernel.foundations.errors import CertificateError, ParameterError
from dpkernel.models.losses import (
    REGISTRY,
    Absolute,
    Hinge,
    Huber,
    HuberisedHinge,
    Logistic,
    Pinball,
    PowerAbsolute,
    PowerHinge,
    SmoothedHinge,
    SmoothedInsensitive,
    SmoothedPinball,
    Squared,
    SquaredHinge,
    loss_from_dict,
)
from dpkernel.models.losses.slope import RAMP, TUBE, slope_at

LOSSES = [
    Logistic(),
    SmoothedHinge(0.5),
    SmoothedHinge(1.0),
    SmoothedHinge(0.01),
    SquaredHinge(1.0),
    SquaredHinge(0.0),
    Hinge(),
    PowerHinge(1.0),
    PowerHinge(1.5),
    PowerHinge(2.0),
    Squared(),
    Huber(1.0),
    Huber(0.2),
    Pinball(0.5),
    Pinball(0.1),
    SmoothedPinball(0.5, 0.1),
    SmoothedPinball(0.9, 0.5),
    Absolute(0.0),
    Absolute(0.3),
    SmoothedInsensitive(0.1, 0.1),
    SmoothedInsensitive(0.0, 0.4),
    PowerAbsolute(1.0),
    PowerAbsolute(1.5),
    PowerAbsolute(2.0),
]
LOSSES += [cls() for cls in REGISTRY.values() if cls not in map(type, LOSSES)]  # each is tested
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
SMOOTH = [loss for loss in LOSSES if loss.smoothness < math.inf]
BOUNDED = [loss for loss in SMOOTH if loss.lipschitz < math.inf]


def draw(loss, rng, n=4000, c=1.0, reach=4.0):
    """Return targets and predictions, many of them near the places where slopes change."""
    y = rng.choice([-1.0, 1.0], n) if loss.labels else rng.uniform(-c, c, n)
    near = 10.0 ** rng.uniform(-9, 0, n) * rng.choice([-1.0, 1.0], n)
    kink = y if loss.labels else y + rng.choice([-1.0, 0.0, 1.0], n) * getattr(loss, "tube", 0.0)
    return y, np.where(rng.random(n) < 0.5, kink + near, rng.uniform(-reach, reach, n))


def test_every_loss_is_registered_under_its_kind():
    assert {loss.kind: type(loss) for loss in LOSSES} == REGISTRY


@every_loss
def test_the_scalar_form_is_the_derivative(loss, rng):
    y, s = draw(loss, rng)
    v = y * s if loss.labels else y - s
    found = np.array([slope_at(*loss.form, float(x)) for x in v])
    found *= y if loss.labels else -1.0
    largest = loss.lipschitz if loss.lipschitz < math.inf else 10.0
    # a jump, or the subtraction of a wide tube, may fall on the other side of a rounded margin
    steep = min(loss.smoothness, 1e12) * 8 * np.spacing(np.abs(y) + np.abs(s))
    smooth = np.abs(found - loss.derivative(y, s)) <= 8 * np.spacing(largest) + steep
    kinks = np.abs(np.abs(v) - (1.0 if loss.labels else getattr(loss, "tube", 0.0))) < 1e-12
    assert np.all(smooth | (kinks & (loss.smoothness == math.inf)))
    assert np.abs(found).max() <= loss.lipschitz


# --- value, derivative, curvature -------------------------------------------------------------


@every_loss
def test_derivatives_are_subgradients_of_a_convex_function(loss, rng):
    y, s = draw(loss, rng)
    t = np.where(
        rng.random(len(s)) < 0.5, s + rng.normal(0, 1e-3, len(s)), rng.uniform(-4, 4, 4000)
    )
    line = loss.value(y, s) + loss.derivative(y, s) * (t - s)
    assert np.all(loss.value(y, t) >= line - 1e-14 * (1 + np.abs(line)))
    assert np.all(loss.value(y, s) >= 0)


@every_loss
def test_derivatives_are_finite_differences(loss, rng):
    y, s = draw(loss, rng)
    h = 1e-6
    below, above = loss.derivative(y, s - h), loss.derivative(y, s + h)
    quotient = (loss.value(y, s + h) - loss.value(y, s - h)) / (2 * h)
    assert np.all(quotient >= below - 1e-8) and np.all(quotient <= above + 1e-8)
    straight = above - below < 1e-5 * min(loss.smoothness, 10.0)
    off = np.abs(quotient - loss.derivative(y, s))
    assert np.all((off <= above - below + 1e-8)[straight])
    assert straight.mean() > 0.5


@every_loss
def test_curvatures_are_finite_differences_of_derivatives(loss, rng):
    y, s = draw(loss, rng)
    h = 1e-7
    bends = np.array([loss.curvature(y, s + k * h) for k in (-1.5, -1, 0, 1, 1.5)])
    even = np.ptp(bends, axis=0) <= 1e-4 * bends.max(axis=0) + 1e-9
    change = (loss.derivative(y, s + h) - loss.derivative(y, s - h)) / (2 * h)
    jumps = loss.smoothness == math.inf
    away = even & (np.abs(change) < 1e6) if jumps else even
    assert away.mean() > 0.5
    assert np.all(np.abs(change - bends[2])[away] <= 1e-3 * bends[2][away] + 1e-6)
    assert np.all(bends >= 0)


@every_loss
def test_one_number_at_a_time_is_the_same(loss, rng):
    y, s = draw(loss, rng, n=20)
    for name in ("value", "derivative", "curvature"):
        whole = getattr(loss, name)(y, s)
        assert whole.shape == s.shape and whole.dtype == np.float64
        assert np.array_equal(
            whole, [getattr(loss, name)(y[i : i + 1], s[i : i + 1])[0] for i in range(20)]
        )


@every_loss
def test_no_argument_warns_or_gives_nan(loss):
    """A warning or a NaN for some records only would tell of them."""
    huge = np.array([0.0, 5e-324, 1e-200, 1e200, 1e308, 1.7e308, -1e-200, -1e200, -1e308, -1.7e308])
    targets = (-1.0, 1.0) if loss.labels else (0.0, 1.0, 1.7e308, -1.7e308)
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        with np.errstate(under="ignore"):
            for target in targets:
                y = np.full(len(huge), target)
                value, slope, bend = (
                    loss.value(y, huge),
                    loss.derivative(y, huge),
                    loss.curvature(y, huge),
                )
                assert np.all(value >= 0) and not np.any(np.isnan(slope))
                assert np.all(np.abs(slope) <= loss.lipschitz * (1 + 1e-15))
                assert np.all((bend >= 0) & (bend <= max(loss.smoothness, 1e13)))


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss.labels], ids=repr)
def test_a_record_with_both_labels_has_the_mean_of_their_losses(loss, rng):
    """Whose slope rises, as proofs need it. It changes no bit of the records beside it."""
    y, s = draw(loss, rng, n=400)
    parts, ones = np.append(0.3, y[1:]), np.ones_like(y)
    for name in ("value", "derivative", "curvature"):
        of = getattr(loss, name)
        for share in (-0.9, 0.0, 0.3):
            mean = (1 + share) / 2 * of(ones, s) + (1 - share) / 2 * of(-ones, s)
            np.testing.assert_allclose(of(share * ones, s), mean, rtol=1e-14)
        if name != "value":
            np.testing.assert_array_equal(of(parts, s)[1:], of(y, s)[1:])
    slopes, bends = loss.derivative(0.3 * ones, np.sort(s)), loss.curvature(0.3 * ones, s)
    assert np.all(np.diff(slopes) >= -1e-15 * np.abs(slopes).max())
    assert np.abs(slopes).max() <= loss.lipschitz and bends.max() <= max(loss.smoothness, 1e13)


# --- constants --------------------------------------------------------------------------------


@every_loss
def test_largest_slope(loss, rng):
    y, s = draw(loss, rng, reach=50.0)
    steepest = np.abs(loss.derivative(y, s)).max()
    if loss.lipschitz < math.inf:
        assert 0.999 * loss.lipschitz <= steepest <= loss.lipschitz * (1 + 2e-16)
    else:
        assert np.abs(loss.derivative(y, 1e8 * s)).max() > 1e3


@every_loss
def test_largest_curvature(loss, rng):
    y, s = draw(loss, rng)
    gap = 10.0 ** rng.uniform(-12, -1, len(s))
    quotients = (loss.derivative(y, s + gap) - loss.derivative(y, s)) / ((s + gap) - s)
    if loss.smoothness < math.inf:
        assert np.all(quotients <= loss.smoothness * (1 + 1e-15 / gap))
        assert 0.999 * loss.smoothness <= loss.curvature(y, s).max() <= loss.smoothness
    else:
        assert quotients.max() > 1e4


@every_loss
def test_holder_constants_are_never_exceeded_and_nearly_attained(loss, rng):
    kappa = 0.7
    alpha, bound = loss.holder(kappa)
    assert 0 <= alpha <= 1 and (alpha == 1) == (loss.smoothness < math.inf)
    y, _ = draw(loss, rng)
    phi = rng.normal(size=(len(y), 2))
    phi *= kappa / np.linalg.norm(phi, axis=1, keepdims=True) * rng.choice([1.0, 0.3], (len(y), 1))
    centre = y if loss.labels else y + getattr(loss, "tube", 0.0) * rng.choice([-1.0, 1.0], len(y))
    sizes = np.linalg.norm(phi, axis=1)[:, None]
    ratios = []
    for spread in (1e-3, 0.1, 1.0, 10.0):
        # predictions on both sides of a kink, and steps along phi or askew
        near = centre[:, None] * phi / sizes**2 + spread * rng.normal(size=phi.shape)
        step = np.where(rng.random(sizes.shape) < 0.5, phi / sizes, rng.normal(size=phi.shape))
        far = (
            near
            - 2
            * np.sum((near - centre[:, None] * phi / sizes**2) * phi, 1, keepdims=True)
            * phi
            / sizes**2
        )
        for other in (near + spread * step, far):
            slopes = [loss.derivative(y, np.sum(w * phi, axis=1)) for w in (near, other)]
            moved = sizes[:, 0] * np.abs(slopes[0] - slopes[1])
            apart = np.linalg.norm(near - other, axis=1)
            ratios.append(moved / np.maximum(apart, 1e-12) ** alpha)
    worst = np.max(ratios)
    assert 0.97 * bound <= worst <= bound * (1 + 1e-9)


@every_loss
@pytest.mark.parametrize("c", [0.05, 1.0, 3.0])
def test_loss_and_slope_of_the_prediction_zero(loss, c):
    y = np.array([-1.0, 1.0]) if loss.labels else np.linspace(-c, c, 2001)
    zero = np.zeros(len(y))
    assert loss.at_zero(c) == pytest.approx(loss.value(y, zero).max(), rel=1e-15)
    assert loss.slope_at_zero(c) == pytest.approx(np.abs(loss.derivative(y, zero)).max(), rel=1e-15)


@pytest.mark.parametrize(
    ("loss", "slope", "curvature", "holder", "at_zero", "slope_at_zero"),
    [
        (Logistic(), 1.0, 0.25, (1.0, 1.0), math.log(2), 0.5),
        (Huber(0.5), 0.5, 1.0, (1.0, 4.0), 0.5 * 3 - 0.125, 0.5),
        (Huber(5.0), 5.0, 1.0, (1.0, 4.0), 4.5, 3.0),
        (SmoothedHinge(0.5), 1.0, 2.0, (1.0, 8.0), 0.75, 1.0),
        (SmoothedPinball(0.9, 0.1), 0.9, 10.0, (1.0, 40.0), 2.7, 0.9),
        (Hinge(), 1.0, math.inf, (0.0, 2.0), 1.0, 1.0),
        (Pinball(0.9), 0.9, math.inf, (0.0, 2.0), 2.7, 0.9),
        (Absolute(0.1), 1.0, math.inf, (0.0, 4.0), 2.9, 1.0),
        (PowerHinge(1.5), math.inf, math.inf, (0.5, 1.5 * 2**1.5), 1.0, 1.5),
        (PowerAbsolute(1.5), math.inf, math.inf, (0.5, 1.5 * 4.0), 3**1.5, 1.5 * 3**0.5),
        (Squared(), math.inf, 1.0, (1.0, 4.0), 4.5, 3.0),
    ],
    ids=repr,
)
def test_the_table_of_constants(loss, slope, curvature, holder, at_zero, slope_at_zero):
    """At kappa = 2 and |y| <= 3."""
    assert (loss.lipschitz, loss.smoothness) == pytest.approx((slope, curvature))
    assert loss.holder(2.0) == pytest.approx(holder)
    assert loss.at_zero(3.0) == pytest.approx(at_zero)
    assert loss.slope_at_zero(3.0) == pytest.approx(slope_at_zero)


# --- accuracy ---------------------------------------------------------------------------------


def clip(value, low, high):
    value = value if low is None else max(value, low)
    return value if high is None else min(value, high)


def exact_form(form, v):
    """Return the slope of a scalar form, from exact numbers."""
    shape, a, b, low, high = form
    low, high = (None if math.isinf(end) else Fraction(end) for end in (low, high))
    if shape == RAMP:
        return clip((v - Fraction(a)) * Fraction(b), low, high)
    if shape == TUBE:
        out = clip((abs(v) - Fraction(a)) * Fraction(b), 0, high)
        return -out if v < 0 else out
    raise AssertionError("add the derivative of this loss to EXACT")


EXACT = {  # the derivative in s, from exact numbers
    "smoothed_hinge": lambda p, y, s: -y * clip((1 - y * s) / Fraction(p.width), 0, 1),
    "squared_hinge": lambda p, y, s: -y * clip(1 - y * s, 0, 1 + Fraction(p.reach)),
    "huber": lambda p, y, s: -clip(y - s, -Fraction(p.threshold), Fraction(p.threshold)),
    "squared": lambda p, y, s: s - y,
    "smoothed_pinball": lambda p, y, s: -(
        Fraction(p.quantile) - Fraction(1, 2)
        + clip((y - s) / Fraction(p.width), -Fraction(1, 2), Fraction(1, 2))
    ),
    "smoothed_insensitive": lambda p, y, s: (-1 if y > s else 1)
    * clip((abs(y - s) - Fraction(p.tube)) / Fraction(p.width), 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("loss", [x for x in BOUNDED if x.kind in EXACT], ids=repr)
def test_exact_forms_are_the_exact_derivatives(loss, rng):
    """So that a loss with such a form needs no entry above."""
    for y, s in zip(*draw(loss, rng, n=300), strict=True):
        y, s = Fraction(y), Fraction(s)
        v = y * s if loss.labels else y - s
        found = exact_form(loss.form, v) * (y if loss.labels else -1)
        assert abs(found - EXACT[loss.kind](loss, y, s)) <= Fraction(2.0**-53 * loss.lipschitz)


HARD = [  # parameters at which a careless formula cancels
    SmoothedHinge(1e-9),
    HuberisedHinge(1e-9),
    HuberisedHinge(1e5),
    SquaredHinge(1e5),
    Huber(1e-6),
    Huber(1e6),
    SmoothedPinball(1e-3, 1e-7),
    SmoothedPinball(0.999, 1e3),
    SmoothedInsensitive(1.0, 1e-9),
    SmoothedInsensitive(0.3, 1e-3),
]


@pytest.mark.parametrize("loss", [*BOUNDED, *HARD], ids=repr)
def test_derivatives_are_accurate_to_eight_units(loss, rng):
    """|computed - exact| <= 8 u c_1 with u = 2^-53: the solver's error bound rests on it."""
    y, s = draw(loss, rng, n=1500, c=3.0)
    width = getattr(loss, "width", getattr(loss, "threshold", 1.0))
    ramp = rng.uniform(-1.5, 1.5, 500) * width
    edge = np.abs(y[:500]) if loss.labels else getattr(loss, "tube", 0.0)
    s[:500] = (
        (y[:500] * (edge + ramp)) if loss.labels else y[:500] + np.copysign(edge + ramp, s[:500])
    )
    limit = 8 * 2.0**-53 * loss.lipschitz
    found = loss.derivative(y, s)
    if loss.kind == "logistic":
        s *= 10.0 ** rng.uniform(-3, 2.5, len(s))
        found = loss.derivative(y, s)
        with mpmath.workdps(40):
            for label, at, got in zip(y[:400], s[:400], found[:400], strict=True):
                exact = -label / (1 + mpmath.exp(mpmath.mpf(label) * mpmath.mpf(at)))
                assert abs(mpmath.mpf(got) - exact) <= limit
        return
    known = EXACT.get(loss.kind)
    for label, at, got in zip(y, s, found, strict=True):
        label, at = Fraction(label), Fraction(at)
        if known is not None:
            exact = known(loss, label, at)
        else:  # seven units, because the numbers of the form are rounded
            v = label * at if loss.labels else label - at
            exact = exact_form(loss.form, v) * (label if loss.labels else -1)
        assert abs(Fraction(got) - exact) <= Fraction(limit) * (1 if known else Fraction(7, 8))


# --- what is written and what is refused ------------------------------------------------------


@every_loss
def test_json_round_trip(loss):
    data = json.loads(json.dumps(loss.to_dict()))
    assert loss_from_dict(data) == loss
    assert hash(loss_from_dict(data)) == hash(loss)
    assert data["kind"] == loss.kind


def test_narrow_numbers_become_floats():
    assert Huber(np.float32(0.5)) == Huber(0.5)
    json.dumps(Huber(np.float32(0.1)).to_dict())
    assert type(SmoothedHinge(1).width) is float


BAD = [
    (SmoothedHinge, "width", (0.0, -0.1, 1.5, math.nan, math.inf, "1", None, True)),
    (SquaredHinge, "reach", (-0.1, 1e7, math.nan, "1")),
    (PowerHinge, "q", (0.99, 2.01, math.nan, None)),
    (PowerAbsolute, "q", (0.99, 2.01, math.nan, None)),
    (Huber, "threshold", (0.0, -1.0, math.inf, math.nan, 5e-324)),
    (Pinball, "quantile", (0.0, 1.0, math.nan, "0.5")),
    (SmoothedPinball, "quantile", (0.0, 1.0)),
    (SmoothedPinball, "width", (0.0, math.inf, 5e-324)),
    (Absolute, "tube", (-0.1, math.inf, math.nan)),
    (SmoothedInsensitive, "tube", (-0.1, math.nan)),
    (SmoothedInsensitive, "width", (0.0, math.nan)),
]


@pytest.mark.parametrize(
    ("cls", "name", "value"), [(cls, name, value) for cls, name, bad in BAD for value in bad]
)
def test_bad_parameters(cls, name, value):
    with pytest.raises(ParameterError) as error:
        cls(**{name: value})
    start = f"The '{name}' parameter of {cls.__name__} must be a float in the range "
    assert str(error.value).startswith(start)
    assert str(error.value).endswith(f"Got {value!r}.")


@pytest.mark.parametrize(
    "data",
    [
        {},
        None,
        [],
        {"kind": "magic"},
        {"kind": ["huber"]},
        {"kind": "huber", "threshold": -1.0},
        {"kind": "huber", "threshold": "1"},
        {"kind": "huber", "treshold": 1.0},
        {"kind": "logistic", "width": 1.0},
    ],
)
def test_malformed_losses_are_refused(data):
    with pytest.raises(
        CertificateError, match="A loss can't be read .*'kind' must be one of absolu"
    ):
        loss_from_dict(data)
