"""Gaussian noise on sums over random batches: the step of noisy gradient descent."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import brentq

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Budget, IntArray, Neighbours, is_real, is_whole
from dpkernel.privacy.mechanisms.base import (
    UP,
    Mechanism,
    as_sensitivity,
    check_numbers,
    check_sensitivity,
    register,
    scale,
)
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles import SampledGaussianProfile, gaussian_mu
from dpkernel.privacy.profiles.sampled import BLANKED
from dpkernel.privacy.sensitivity import Sensitivity, round_up

_FLOOR = 1e-13  # smallest delta per step: a hundred times what composition by FFT adds
_CLOSE = 1e-7  # relative distance of a calibrated sigma to the smallest possible one
_OFFERED = ("fixed", "poisson")
_SCHEMA = 2  # version of the cache files, to be increased when the accounting changes


@register
@dataclass(frozen=True)
class SampledGaussian(Mechanism):
    r"""Add discrete N(0, sigma^2 I) to an integer sum over a random batch that it draws itself.

    Parameters
    ----------
    sensitivity : Sensitivity
        The l2 sensitivity of the sum over one batch.
    dimension : int
        The length of the sum.
    sigma : float
        The standard deviation of the continuous calibration, in units of the integers.
    n_rows : int
        The number of records, which is public.
    batch : int or float
        The size of a batch; for Poisson batches its mean.
    sampling : {"fixed", "poisson"}
        With "fixed", all sets of ``batch`` records are equally likely; for replace-one and
        zero-out. With "poisson", each record is included independently with probability batch /
        n_rows; for zero-out, where it needs at most about half the noise of "fixed".

    Notes
    -----
    Guarantee
        One step has delta(eps) = p G(log(1 + (e^eps - 1)/p); mu) for eps >= 0, mirrored below 0,
        where mu = Delta/sigma and p is the probability that a record is in the batch. Under
        zero-out, batches of fixed size cost more: a batch with the record is also compared with a
        batch that holds another record in its place, 2 Delta away. Many steps compose by their
        privacy losses (``SampledGaussianProfile``). Each step draws its own batch, which stays
        secret.
    Sensitivity
        L2: Delta is how far the sum over one batch that holds the record moves, for example
        ``bounded_sum`` for records clipped to a norm. Under zero-out, no record may add more than
        Delta.
    Numerics
        Sums are exact integers. The noise is an exact discrete Gaussian with parameter
        sqrt(sigma^2 + 4), a post-processing of N(0, sigma^2) up to 2e-34 per coordinate. Sum and
        noise wrap around at 2^64, which can spoil a value but not its privacy.

    References
    ----------
    Balle, Barthe & Gaboardi (2018) for batches of fixed size; Zhu, Dong & Wang (2022) for Poisson
    batches.

    Examples
    --------
    >>> from dpkernel import Budget, mechanisms
    >>> mechanism = mechanisms.SampledGaussian.calibrate(
    ...     1.0, Budget(1.0, 1e-6), dimension=2, n_rows=1000, batch=100
    ... )
    >>> mechanism.profile().epsilon(1e-6) <= 1.0
    True
    """

    sensitivity: Sensitivity
    dimension: int
    sigma: float
    n_rows: int
    batch: float
    sampling: str = "fixed"

    kind: ClassVar[str] = "sampled-gaussian"
    reference: ClassVar[str] = (
        "Balle, Barthe & Gaboardi (2018); Zhu, Dong & Wang (2022); discrete on the integers"
    )

    def __post_init__(self) -> None:
        check_sensitivity(self, Sensitivity, "l2")
        check_numbers(self, positive=("sigma",), counts=("dimension", "n_rows"))
        _check_sampling(self.sampling, self.sensitivity.neighbours)
        whole = self.sampling == "fixed"
        allowed = f"an int from 1 to {self.n_rows}" if whole else "a float in (0, n_rows]"
        if not (is_whole(self.batch) if whole else is_real(self.batch)) or not (
            (1 if whole else 0) <= self.batch <= self.n_rows and self.batch > 0
        ):
            raise ParameterError(
                parameter_message(type(self).__name__, "batch", allowed, self.batch)
            )
        object.__setattr__(self, "batch", int(self.batch) if whole else float(self.batch))

    @cached_property
    def rate(self) -> float:
        """The probability that a given record is in a batch, rounded up."""
        return min(round_up(Fraction(self.batch) / self.n_rows), 1.0)

    @property
    def noise_scale(self) -> float:
        """The standard deviation of the continuous calibration."""
        return self.sigma

    def profile(self) -> SampledGaussianProfile:
        """Return the profile of one step."""
        return self._profile

    @cached_property
    def _profile(self) -> SampledGaussianProfile:  # cached, because every step needs it
        mu = self.sensitivity.value / self.sigma * UP
        relation = self.sensitivity.neighbours
        blanked = relation is not Neighbours.REPLACE_ONE and self.sampling == "fixed"
        return SampledGaussianProfile(mu, self.rate, BLANKED if blanked else self.sampling)

    def release(self, value: Any, noise: Noise) -> IntArray:
        """Return the noisy sum over a batch that is drawn here.

        ``value`` is called once with the indices of the batch in increasing order. It returns the
        exact integer sum over these records, an array of ``dimension`` integers. It must not keep,
        show or use the indices in any other way: the guarantee requires that they stay secret.
        """
        if not callable(value):
            got = type(value).__name__
            allowed = "a function from the indices of a batch to the sum over it"
            raise ParameterError(parameter_message(type(self).__name__, "value", allowed, got))
        source = self._claim(noise)
        if self.rate == 1:
            batch = np.arange(self.n_rows)
        elif self.sampling == "fixed":
            batch = source.subset(self.n_rows, int(self.batch))
        else:
            batch = source.poisson_subset(self.n_rows, self.rate)
        total = np.asarray(value(batch))
        if total.shape != (self.dimension,) or not np.issubdtype(total.dtype, np.integer):
            allowed = f"a function that returns integers of shape ({self.dimension},)"
            got = f"shape {total.shape}, dtype {total.dtype}"
            raise ParameterError(parameter_message(type(self).__name__, "value", allowed, got))
        draws = source.discrete_gaussian(scale(self.sigma), self.dimension)
        return np.asarray(total.astype(np.int64) + draws)

    @classmethod
    def calibrate(
        cls,
        sensitivity: Sensitivity | float,
        budget: Budget,
        *,
        dimension: int,
        n_rows: int,
        batch: float,
        sampling: str = "fixed",
        steps: int = 1,
    ) -> SampledGaussian:
        """Return the step with the least noise such that ``steps`` of them fit the budget.

        Parameters
        ----------
        sensitivity : Sensitivity or float
            The l2 sensitivity of the sum over one batch. A plain float is recorded as "declared".
        budget : Budget
            The budget of all steps together. Its delta must be positive, and at least 1e-13 per
            step unless the batches hold all rows.
        steps : int
            The planned number of releases. Spend ``profile()`` that often.

        Notes
        -----
        The result is kept in a cache folder ($DPKERNEL_CACHE, else dpkernel in $XDG_CACHE_HOME or
        ~/.cache). A number read from the cache is only a guess: it is used if the composed profile
        supports the budget and the profile with slightly less noise does not.
        """
        sensitivity = as_sensitivity(sensitivity)
        unit = cls(sensitivity, dimension, sensitivity.value, n_rows, batch, sampling)
        if not is_whole(steps) or steps < 1:
            raise ParameterError(parameter_message(cls.__name__, "steps", "an int >= 1", steps))
        steps = int(steps)
        budget = Budget(min(budget.epsilon, 1e11), budget.delta)
        mu = gaussian_mu(budget.epsilon, budget.delta)  # raises for delta = 0
        composed = steps > 1 and unit.rate < 1  # otherwise there is a closed form
        if composed and not budget.delta >= _FLOOR * steps * (1 - 1e-9):
            advice = "Take fewer steps with larger batches, full batches, or a larger delta."
            allowed = f"at least 1e-13 per step, {_FLOOR * steps:g} for these"
            raise ParameterError(
                parameter_message(cls.__name__, "delta", allowed, budget.delta, advice)
            )

        looked_at = 1.0 if unit.rate == 1 else -math.expm1(steps * math.log1p(-unit.rate))
        if not budget.delta < looked_at:
            advice = (
                "Otherwise every used record could be published as it is. Pass a smaller delta."
            )
            allowed = f"below {looked_at:g}, the probability that a record is used"
            raise ParameterError(
                parameter_message(cls.__name__, "delta", allowed, budget.delta, advice)
            )

        def excess(multiplier: float) -> float:
            found = replace(unit, sigma=multiplier * sensitivity.value)
            return _excess(found.profile(), steps, budget)

        key = (unit.rate, unit.profile().sampling, steps, budget.epsilon, budget.delta)
        multiplier = _recall(key) if composed else None
        if multiplier is None or not (
            excess(multiplier) <= 0 < excess(multiplier * (1 - 10 * _CLOSE))
        ):
            full = math.sqrt(steps) / mu  # the noise for full batches; small batches need less
            multiplier = _least(excess, max(unit.rate * full, min(0.3, full)))
            if composed:
                _remember(key, multiplier)
        return replace(unit, sigma=multiplier * sensitivity.value)


def _excess(step: SampledGaussianProfile, steps: int, budget: Budget) -> float:
    """Return log(delta / allowed) of the steps, with a margin for rounding on other machines."""
    room = 0.0 if steps == 1 or step.rate == 1 else 5e-16 * steps
    allowed = budget.delta * (1 - 1e-9) - room
    return math.log(max(step.repeat(steps).delta(budget.epsilon), 1e-320) / allowed)


def _least(excess: Callable[[float], float], guess: float) -> float:
    """Return a multiplier that fits and is close to the smallest one."""
    low = high = guess
    while excess(high) > 0:
        low, high = high, 2 * high
    while not excess(low) > 0:
        low, high = low / 2, low
    near = math.exp(
        brentq(lambda x: excess(math.exp(x)), math.log(low), math.log(high), xtol=_CLOSE / 4)
    )
    # the root of brentq is near the edge, which the grid of losses may have shifted a little
    width, high = _CLOSE / 2, near
    while excess(high) > 0:
        high, width = high * (1 + width), 2 * width
    width, low = _CLOSE / 2, high * (1 - _CLOSE / 2)
    while not excess(low) > 0:
        low, high, width = low * (1 - width), low, 2 * width
    while high > low * (1 + _CLOSE):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if excess(middle) <= 0 else (middle, high)
    return high


def _check_sampling(sampling: str, neighbours: Neighbours) -> None:
    if sampling not in _OFFERED:
        raise ParameterError(
            parameter_message("SampledGaussian", "sampling", "'fixed' or 'poisson'", sampling)
        )
    if sampling == "poisson" and neighbours is Neighbours.REPLACE_ONE:
        advice = "Pass 'fixed': for a replaced record, no bound for Poisson batches is known here."
        raise ParameterError(
            parameter_message(
                "SampledGaussian", "sampling", "'fixed' for replace-one", sampling, advice
            )
        )


# --- multipliers found before ---------------------------------------------------------------


def _place(key: tuple[Any, ...]) -> Path:
    folder = os.environ.get("DPKERNEL_CACHE")
    if not folder:
        folder = os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dpkernel"
        )
    digest = hashlib.sha256(repr((_SCHEMA, *key)).encode()).hexdigest()[:32]
    return Path(folder) / f"sampled-gaussian-{digest}.json"


def _recall(key: tuple[Any, ...]) -> float | None:
    """Return a plausible multiplier from the cache, or None; the caller must still prove it."""
    try:
        found = json.loads(_place(key).read_text(encoding="utf-8"))["multiplier"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return float(found) if is_real(found) and 1e-6 < found < 1e12 else None


def _remember(key: tuple[Any, ...], multiplier: float) -> None:
    """Write the multiplier by atomic replacement; ignore a folder that can't be written to."""
    place = _place(key)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=place.parent, suffix=".tmp", delete=False
        ) as file:
            json.dump({"multiplier": multiplier}, file)
        os.replace(file.name, place)
    except OSError:
        return
