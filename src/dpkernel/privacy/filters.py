r"""Ceilings that stay valid when each spend is chosen after seeing the earlier results.

A composition theorem assumes a plan that is fixed in advance. A ledger, however, records spends
that people choose as they go. A *filter* is a rule that admits or refuses each spend such that the
whole stays (epsilon, delta)-DP whatever is chosen::

    gaussian   sum of mu^2 at most mu_*(epsilon, delta)^2; for Gaussian and pure spends
    renyi      sum of Renyi divergences at one order, fixed by the ceiling alone; for any spend
    basic      sum of epsilons and sum of deltas; for any spend

Only one rule may govern a ledger. "Whichever rule admits it" is not a filter: an adversary could
pick the rule after seeing results, and then the deltas of the rules would add up. With
``accounting="auto"`` the first spend fixes the rule, because it is chosen before any result was
seen. The rule is "renyi" or "basic", whichever charges that spend the smaller share of the ceiling.
Both admit every kind of spend. The Renyi rule usually charges less, but it can't admit a single
spend that fills the ceiling, and it charges more for large releases of pure epsilon. (A Gaussian
spend that both would refuse is added up as mu^2.)

References
----------
Basic: Rogers, Roth, Ullman & Vadhan (2016). Renyi at a fixed order: Feldman & Zrnic (2021) and
Lecuyer (2021). Gaussian: Smith & Thakurta (2022) and Koskela, Tobaben & Honkela (2023).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np

from dpkernel.foundations.errors import LedgerError, ParameterError, parameter_message
from dpkernel.foundations.types import Budget, round_down
from dpkernel.privacy.profiles import GaussianProfile, PrivacyProfile, PureProfile, gaussian_mu
from dpkernel.privacy.profiles.base import hypot_up
from dpkernel.version import __version__

# share of a Renyi ledger's delta that is kept for the events on which its bounds may fail, and the
# share of that which one spend may use
LEAK_SHARE, _LEAK = 0.1, 1e-3
_FEW = 3  # spends that may add up to less by the plain sum


Price = tuple[float, ...]  # the numbers of one spend that a rule adds up


class Charged(Protocol):
    """What a filter needs to know about a spend.

    These are its profile, the point that it claims, and the prices that were already computed, by
    the rule and the version of dpkernel that computed them.
    """

    @property
    def profile(self) -> PrivacyProfile: ...  # noqa: D102

    @property
    def claim(self) -> Budget | None: ...  # noqa: D102

    @property
    def prices(self) -> dict[str, Price]: ...  # noqa: D102


@dataclass(frozen=True)
class Charge:
    """A spend that is not on record.

    Parameters
    ----------
    profile : PrivacyProfile
        The profile of the spend.
    claim : Budget, optional
        The point of the profile that the spend claims.
    prices : dict
        What accounting rules have already computed from it.
    """

    profile: PrivacyProfile
    claim: Budget | None = None
    prices: dict[str, Price] = field(default_factory=dict, compare=False, repr=False)


class Filter(ABC):
    """Base class of the rules that admit or refuse spends under a ceiling."""

    name: ClassVar[str]

    def __init__(self, ceiling: Budget) -> None:
        self.ceiling = ceiling
        # a later version may compute another price for the same profile, so it must not use this one
        self.key = f"{self.name} {__version__}"

    def price(self, charge: Charged) -> Price:
        """Return the numbers of a spend that this rule adds up, remembered in the spend."""
        found = charge.prices.get(self.key)
        if found is None:
            found = charge.prices[self.key] = self._price(charge)
        return found

    @abstractmethod
    def _price(self, charge: Charged) -> Price:
        """Compute the numbers from the profile and the claim."""

    @abstractmethod
    def spent(self, charges: Sequence[Charged]) -> Budget | None:
        """Return the total at a delta of at most the ceiling's, or None if nothing was spent."""

    @abstractmethod
    def share(self, charge: Charged) -> float:
        """Return the share of the ceiling that one spend takes; it fits alone if this is at most 1."""

    @abstractmethod
    def _estimate(self, charges: Sequence[Charged]) -> Budget | None:
        """Return what is left, up to rounding errors."""

    def remaining(self, charges: Sequence[Charged]) -> Budget | None:
        """Return the largest further spend that certainly fits, or None if nothing is left.

        For the Gaussian and Renyi rules this is a Gaussian release at the ceiling's delta. For
        basic composition it is what is left of the two sums.
        """
        found, shrink = self._estimate(charges), 1e-15
        while found is not None and shrink < 1e-3:
            if self.admits([*charges, Charge(_usual_release(found), found)]):
                return found
            epsilon = found.epsilon * (1 - shrink)
            found = Budget(epsilon, found.delta) if epsilon > 1e-11 else None
            shrink *= 4
        return None

    def admits(self, charges: Sequence[Charged]) -> bool:
        """Return whether these spends together stay under the ceiling."""
        total = self.spent(charges)
        if total is None:
            return True
        return total.epsilon <= self.ceiling.epsilon and total.delta <= self.ceiling.delta


class GaussianFilter(Filter):
    """Add up mu^2 and report the total at the ceiling's delta.

    Parameters
    ----------
    ceiling : Budget
        What all spends together must not exceed.

    Examples
    --------
    >>> from dpkernel import Budget, Ledger
    >>> ledger = Ledger(budget=Budget(1.0, 1e-6), accounting="gaussian")
    >>> ledger.rule
    'gaussian'
    """

    name = "gaussian"

    def __init__(self, ceiling: Budget) -> None:
        super().__init__(ceiling)
        _needs_delta(ceiling, self.name)

    def _estimate(self, charges: Sequence[Charged]) -> Budget | None:
        """Return the epsilon, at the ceiling's delta, of the mu that is left."""
        whole = gaussian_mu(self.ceiling.epsilon, self.ceiling.delta)
        used = math.fsum(self.price(charge)[0] ** 2 for charge in charges)
        return _gaussian_left(whole**2 - used, self.ceiling.delta)

    def _price(self, charge: Charged) -> Price:
        mu = charge.profile.mu
        if mu is None:
            raise LedgerError(
                "This ledger adds up mu^2 (accounting='gaussian'), but this spend has no mu. A ledger"
                " with accounting='auto', 'renyi' or 'basic' admits every kind of spend. Its rule can't"
                " be changed afterwards, and a second ledger is a second budget, which the data's owner"
                " has to grant on top of this one. Nothing was spent."
            )
        return (mu,)

    def share(self, charge: Charged) -> float:
        """Return the share of mu^2."""
        return (self.price(charge)[0] / gaussian_mu(self.ceiling.epsilon, self.ceiling.delta)) ** 2

    def _total(self, charges: Sequence[Charged]) -> GaussianProfile:
        """Return the composition of the Gaussian pairs that dominate the spends."""
        mus = [self.price(charge)[0] for charge in charges]
        return GaussianProfile(mus[0] if len(mus) == 1 else hypot_up(mus))

    def spent(self, charges: Sequence[Charged]) -> Budget | None:
        """Return the epsilon of the composed Gaussian at the ceiling's delta."""
        return _at_delta(self._total(charges), self.ceiling.delta) if charges else None

    def admits(self, charges: Sequence[Charged]) -> bool:
        """Return whether the composed Gaussian supports the ceiling."""
        return not charges or self._total(charges).supports(self.ceiling)


class RenyiFilter(Filter):
    """Add up Renyi divergences at one order: the best one for a Gaussian that fills the ceiling.

    Parameters
    ----------
    ceiling : Budget
        What all spends together must not exceed.
    order : float, optional
        The order; by default the best one for this ceiling.
    leak_share : float
        The share of delta that is kept for the events that the two bounds leave out.

    Notes
    -----
    A spend is charged for one of two bounds, whichever takes less of the ceiling. Both are functions
    of its profile alone.

    - ``rdp``, which may fail on an event of probability ``rdp_miss``. Let m be the sum of these
      probabilities along a path. Then both distributions of the whole are within m of distributions
      to which the Renyi filter applies.
    - ``rdp_outside``, which leaves out an event of a given probability t, the same for both data
      sets. Let c be the product of 1 - t along a path. The whole has the densities c p and c q on
      paths without such an event, where the Renyi filter applies to p and q. So P(S) <= integral of
      c p over S + sum of t, and as 0 <= c <= 1, the integral of c (p - e^epsilon q) over S is at
      most delta'.

    Together, P(S) <= e^epsilon Q(S) + delta' + sum of t + (1 + e^epsilon) m. A tenth of delta is
    kept for the last two terms (less in ledgers of older versions), and a spend that would need
    more is refused. The split of delta depends on the ceiling alone, as a filter requires.

    Examples
    --------
    >>> from dpkernel import Budget, Ledger
    >>> ledger = Ledger(budget=Budget(1.0, 1e-6), accounting="renyi")
    >>> ledger.rule
    'renyi'
    """

    name = "renyi"

    def __init__(
        self, ceiling: Budget, order: float | None = None, leak_share: float = LEAK_SHARE
    ) -> None:
        super().__init__(ceiling)
        _needs_delta(ceiling, self.name)
        self._share = leak_share
        self.order = self._best_order() if order is None else order
        self.key = f"{self.key} order {self.order!r} with leaks"
        self._offset = self._offset_at(self.order)
        self._leaks = leak_share * ceiling.delta

    def _offset_at(self, order: float) -> float:
        """Return epsilon - rho of the conversion at the delta that is not kept for events."""
        spent = math.log(self.ceiling.delta * (1 - self._share)) + math.log(order)
        return math.log1p(-1 / order) - spent / (order - 1)

    def _best_order(self) -> float:
        """Return the order at which the largest Gaussian fits, from a fixed public grid."""
        orders = [float(1 + 10.0 ** (e / 100)) for e in range(-300, 601)]
        return max(orders, key=lambda a: (self.ceiling.epsilon - self._offset_at(a)) / a)

    def _price(self, charge: Charged) -> Price:
        """Return the divergence, the probability of the missed event, and that of the leak."""
        profile = charge.profile
        found: list[Price] = [(profile.rdp(self.order), profile.rdp_miss, 0.0)]
        if profile.mu is None or not found[0][0] < math.inf:  # otherwise it is tight
            leaks = [_LEAK * self._leaks]
            if charge.claim is not None and 0 < charge.claim.delta <= self._leaks:
                leaks.append(charge.claim.delta)
            found += [(profile.rdp_outside(self.order, leak), 0.0, leak) for leak in leaks]
        return min(found, key=self._cost)

    def _cost(self, price: Price) -> float:
        rho, missed, leaked = price
        room = self.ceiling.epsilon - self._offset
        return rho / room + self._lost(missed, leaked) / self._leaks if room > 0 else math.inf

    def _lost(self, missed: float, leaked: float) -> float:
        """Return leaked + (1 + e^epsilon) missed; the second term counts as 1 if it is larger."""
        if not missed > 0:
            return leaked
        growth = float(np.logaddexp(0.0, self.ceiling.epsilon))
        return math.exp(min(growth + math.log(missed) + 1e-15 * (growth + 800), 0.0)) + leaked

    def share(self, charge: Charged) -> float:
        """Return the larger of the shares of the divergence and of the delta for events."""
        rho, missed, leaked = self.price(charge)
        room = self.ceiling.epsilon - self._offset
        lost = self._lost(missed, leaked) / self._leaks
        return max(rho / room, lost) if room > 0 else math.inf

    def _sum(self, charges: Sequence[Charged]) -> float:
        """Return the sum of Renyi divergences, converted to epsilon at the ceiling's delta."""
        rhos, misses, leaks = zip(*(self.price(charge) for charge in charges), strict=True)
        rho = math.fsum(rhos)
        if not rho < math.inf:
            raise LedgerError(
                "This ledger adds up Renyi divergences (accounting='renyi', asked for or fixed by its"
                " first spend), but this spend has none: its delta never falls below a tenth of the"
                " ledger's delta. Calibrate it for a smaller delta. Nothing was spent."
            )
        if not self._lost(math.fsum(misses), math.fsum(leaks)) <= self._leaks:
            raise LedgerError(
                "The Renyi bounds of this ledger's spends leave out events that are too likely for"
                " its ceiling, of which a tenth of delta is kept for them. Calibrate the spend for a"
                " smaller delta, or agree on a larger delta with the data's owner. Nothing was spent."
            )
        return max((rho + self._offset) * (1 + 1e-12), 1e-12)

    def spent(self, charges: Sequence[Charged]) -> Budget | None:
        """Return the smaller of the converted sum and the plain sum at equal shares of delta.

        The order is the best one for a full ledger. So the converted sum of a few spends is large,
        and what they add up to is better described by the plain sum. Whether a further spend fits
        depends on the converted sum alone.
        """
        if not charges:
            return None
        found, delta = self._sum(charges), self.ceiling.delta
        each = [charge.profile for charge in charges] if len(charges) <= _FEW else []
        plain = _sum_up([epsilon_at(p, delta / len(each)) for p in each]) if each else found
        return Budget(max(min(found, plain), 1e-12), delta)

    def admits(self, charges: Sequence[Charged]) -> bool:
        """Return whether the converted sum stays under the ceiling."""
        return not charges or self._sum(charges) <= self.ceiling.epsilon

    def _estimate(self, charges: Sequence[Charged]) -> Budget | None:
        """Return the epsilon, at the ceiling's delta, of the Gaussian that still fits."""
        used = math.fsum(self.price(charge)[0] for charge in charges)
        left = self.ceiling.epsilon - self._offset - used
        return _gaussian_left(2 * left / self.order, self.ceiling.delta)


class BasicFilter(Filter):
    """Add up the epsilons and the deltas that the spends claim.

    Parameters
    ----------
    ceiling : Budget
        What all spends together must not exceed.

    Examples
    --------
    >>> from dpkernel import Budget, Ledger
    >>> ledger = Ledger(budget=Budget(1.0, 1e-6), accounting="basic")
    >>> ledger.rule
    'basic'
    """

    name = "basic"

    def spent(self, charges: Sequence[Charged]) -> Budget | None:
        """Return the two sums. A spend without a claim takes half of the delta that is left."""
        if not charges:
            return None
        epsilons: list[float] = []
        deltas: list[float] = []
        for charge in charges:
            epsilon, delta = self._point(charge, deltas)
            epsilons.append(epsilon)
            deltas.append(delta)
        return Budget(_sum_up(epsilons), min(_sum_up(deltas), 1 - 2.0**-53))

    def share(self, charge: Charged) -> float:
        """Return the larger of the shares of epsilon and of delta."""
        total = self.spent([charge])
        assert total is not None
        of_delta = total.delta / self.ceiling.delta if total.delta > 0 else 0.0
        return max(total.epsilon / self.ceiling.epsilon, of_delta)

    def _point(self, charge: Charged, deltas: Sequence[float]) -> Price:
        """Return the point that is charged for a spend after spends with these deltas."""
        priced = self.key in charge.prices or charge.claim is not None
        if priced or epsilon_at(charge.profile, 0.0) < math.inf:
            return self.price(charge)
        left = max(self.ceiling.delta - math.fsum(deltas), 0.0)
        return _point_at(charge.profile, left / 2)

    def _price(self, charge: Charged) -> Price:
        return _point_at(charge.profile, 0.0 if charge.claim is None else charge.claim.delta)

    def _estimate(self, charges: Sequence[Charged]) -> Budget | None:
        """Return what is left of the two sums."""
        total = self.spent(charges)
        if total is None:
            return self.ceiling
        epsilon = _difference_down(self.ceiling.epsilon, total.epsilon)
        delta = _difference_down(self.ceiling.delta, total.delta)
        return Budget(epsilon, delta) if epsilon > 0 else None


def resolve_filter(
    accounting: str,
    ceiling: Budget,
    renyi_order: float | None = None,
    leak_share: float = LEAK_SHARE,
) -> Filter:
    """Return the filter of this name.

    Parameters
    ----------
    accounting : str
        The name: "basic", "gaussian" or "renyi".
    ceiling : Budget
        The present ceiling.
    renyi_order : float, optional
        The order of the first ceiling, which is kept even if the ceiling has changed.
    leak_share : float
        The share of delta that a Renyi filter keeps for the events that its bounds leave out.
    """
    if accounting == RenyiFilter.name:
        return RenyiFilter(ceiling, renyi_order, leak_share)
    return FILTERS[accounting](ceiling)


def rule_for(first: Charged, ceiling: Budget) -> str:
    """Return the rule of an "auto" ledger: the one that charges the first spend least.

    If both rules refuse it and it has a mu, it may still fit by Gaussian accounting, exactly. Then
    it fills the ceiling.

    Parameters
    ----------
    first : Charged
        The first spend.
    ceiling : Budget
        The ceiling of the ledger.

    Returns
    -------
    str
        The name of the rule, which then stays.
    """
    if ceiling.delta == 0:
        return BasicFilter.name
    rules = [RenyiFilter(ceiling), BasicFilter(ceiling)]
    share, rule = min(((_share_or_inf(rule, first), rule) for rule in rules), key=lambda r: r[0])
    exact = share > 1 and first.profile.mu is not None
    return GaussianFilter.name if exact else rule.name


def _share_or_inf(rule: Filter, charge: Charged) -> float:
    try:
        return rule.share(charge)
    except LedgerError:
        return math.inf


@lru_cache(maxsize=65_536)
def epsilon_at(profile: PrivacyProfile, delta: float) -> float:
    """Return ``profile.epsilon(delta)``, cached because the same profiles recur in a history.

    Parameters
    ----------
    profile : PrivacyProfile
        The profile.
    delta : float
        The delta at which it is asked.
    """
    return profile.epsilon(delta)


def _point_at(profile: PrivacyProfile, delta: float) -> Price:
    """Return the point of a spend's profile that basic accounting charges."""
    found = epsilon_at(profile, delta)
    if not found < math.inf:
        raise LedgerError(
            f"The spend has no finite epsilon at delta = {delta:g}, which is what is left of"
            " this ledger's delta. Nothing was spent."
        )
    return max(found, 1e-12), delta


def _sum_up(values: Sequence[float]) -> float:
    """Return the smallest float that is not below the exact sum."""
    try:
        total = math.fsum(values)
    except OverflowError:
        return math.inf
    if not total < math.inf:
        return total
    return math.nextafter(total, math.inf) if math.fsum([*values, -total]) > 0 else total


def _usual_release(budget: Budget) -> PrivacyProfile:
    """Return the profile of a release with this budget; Gaussian if delta is positive."""
    if budget.delta == 0:
        return PureProfile(budget.epsilon)
    # a mechanism's own mu may end a few ulps above the mu that it was calibrated to
    return GaussianProfile(gaussian_mu(budget.epsilon, budget.delta) * (1 + 1e-14))


def _at_delta(profile: PrivacyProfile, delta: float) -> Budget:
    epsilon = profile.epsilon(delta)
    if not epsilon < math.inf:
        raise LedgerError("This spend has no epsilon at the ledger's delta. Nothing was spent.")
    return Budget(max(epsilon, 1e-12), delta)


def _gaussian_left(mu_squared: float, delta: float) -> Budget | None:
    if not mu_squared > 0:
        return None
    epsilon = GaussianProfile(math.sqrt(mu_squared)).epsilon(delta)
    return Budget(epsilon, delta) if epsilon > 0 else None


def _difference_down(a: float, b: float) -> float:
    """Return the largest float not above a - b, or 0."""
    return max(round_down(Fraction(a) - Fraction(b)), 0.0)


def _needs_delta(ceiling: Budget, name: str) -> None:
    if ceiling.delta == 0:
        allowed = "'basic' for a ceiling with delta = 0"
        raise ParameterError(parameter_message("Ledger", "accounting", allowed, name))


FILTERS: dict[str, type[Filter]] = {f.name: f for f in (GaussianFilter, RenyiFilter, BasicFilter)}
