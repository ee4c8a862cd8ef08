r"""The profile of objective perturbation: one release or many, together with Gaussian releases.

One release minimises sum_i loss(y_i, <h_i, beta>) + Lambda ||beta||^2 / 2 + <b, beta> with a
Gaussian b. Its privacy loss is bounded by a random variable with a known distribution, whatever the
data and whatever was released before::

    replace-one          log(1 + x) + m^2/2 + m R,  m = 2 c_1 B / sigma,  P(R > t) <= S(t)
    zero-out, adding     log(1 + x) + max(0, m^2/2 + m Z),  m = c_1 B / sigma
    zero-out, removing   m^2/2 + m |Z|

with x = c_2 B^2 / Lambda, Z standard normal, and S(t) the smaller of ::

    sup over phi in [0, pi/4] of 1 - (1 - 2 Q(t / cos phi)) (1 - 2 Q(t / sin phi))
    sup over phi in [0, pi/4] of N(t / cos phi, tan phi) + N(t / sin phi, cot phi) + 2 Q(2 t),

where N(a, s) = P(Z + s |W| > a sqrt(1 + s^2)) for independent standard normal Z and W.

Proof of the second one. Let z and z' be the two rows of features, g and g' the slopes of their
losses at the minimiser, and L = c_1 B, so that g |z| and g' |z'| lie in [-L, L]. The loss is at most
log(1 + x) + m^2/2 + (g <z, b> - g' <z', b>) / sigma^2, because ``|g z - g' z'| <= 2 L``. If b moves
along z, then <z, beta> decreases, and so does the slope g of a convex loss. Fix the part of b that
is orthogonal to z, and let c be the sign of g where <z, b> = 0. If c is positive, then g >= 0 for
all smaller <z, b>, so g <z, b> <= L sigma max(0, Z) for Z = <z, b> / (|z| sigma); otherwise
g <z, b> <= L sigma max(0, -Z). Hence the loss is at most log(1 + x) + m^2/2 + m R with
R = (max(0, c Z) + |Z'|) / 2, where Z' = cos(theta) Z + sin(theta) W belongs to z', and c may depend
on W, but not on Z. The event R > t is covered by three others, for the worse sign c at every W:
(1 + cos theta) Z + sin(theta) |W| > 2 t, then (1 - cos theta) Z + sin(theta) |W| > 2 t, and
|Z'| > 2 t on the side where max(0, c Z) = 0. With theta = 2 phi, their probabilities are the three
terms; a theta beyond pi/2 exchanges the first two.

Several such releases, and Gaussian ones of total mu, compose to delta(epsilon) = E G(epsilon - sum
of these losses; mu). The reason: given the first release, the hockey-stick divergence of the rest
is the expectation of a decreasing function of the loss, so a larger loss is worse. For Gaussian
releases this function is convex in e^epsilon, and the Gaussian pair is the worst one. Under
zero-out, all releases together have the same direction, so the larger of the two totals counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import log_ndtr, logsumexp, ndtr

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, Budget, Neighbours, is_real
from dpkernel.privacy.profiles.base import PrivacyProfile, hypot_up, narrowed, renyi_delta
from dpkernel.privacy.profiles.gaussian import gaussian_delta

_FAR = 12.0  # a normal variable exceeds it with probability 4e-33, which is added to delta
_STEPS = 12 * 1024
_ANGLES = 250
_COARSE = 4  # moments are taken on every fourth edge
_CELLS = 8192  # grid cells for the loss of the largest stage when several stages are convolved
_DIRECT = 3  # up to this many stages are convolved without FFT, which has absolute errors
_MOST_STAGES = 128  # with more stages the Renyi bound is used
_LARGEST_M = 100.0  # epsilon would be 5000 there, so nothing is claimed for a larger m
_GOLDEN = (math.sqrt(5) - 1) / 2
_NEVER = -1e300  # log-probability of an event that does not happen

Stage = tuple[float, float]  # m and x


@dataclass(frozen=True)
class ObjectiveProfile(PrivacyProfile):
    """Objective perturbations and Gaussian releases in any order, each chosen adaptively.

    Parameters
    ----------
    stages : tuple of (m, x)
        The objective perturbations, fixed in advance; see the head of this module.
    neighbours : str
        "replace-one", "zero-out" or "add-remove". The last two share their distributions.
    mu_value : float
        The total mu of all Gaussian releases, including the output noise.
    slack, log_miss : float
        The drawn noise has probabilities within a factor e^slack (counted for both data sets) of
        those of the ideal noise, except on an event of probability e^log_miss.

    Notes
    -----
    Guarantee
        delta(epsilon) as above at epsilon - slack, plus e^(epsilon + log_miss), times e^slack; or
        the same at a smaller epsilon.
    Numerics
        Distributions are tabulated with the mass of every cell on its upper edge, and S(t) is
        bounded from above on cells of phi. What is cut off is added. The profile has no mu, because
        it does not compose by mu^2.
    """

    kind: ClassVar[str] = "objective-perturbation"
    precision: ClassVar[float] = 1e-10
    stages: tuple[Stage, ...]
    neighbours: str = Neighbours.REPLACE_ONE.value
    mu_value: float = 0.0
    slack: float = 0.0
    log_miss: float = _NEVER

    def __post_init__(self) -> None:
        numbers = [*(v for stage in self.stages for v in stage), self.mu_value, self.slack]
        fine = len(self.stages) > 0 and all(len(stage) == 2 for stage in self.stages)
        fine = fine and all(is_real(v) and 0 <= v < math.inf for v in numbers)
        fine = fine and all(m > 0 for m, _ in self.stages) and self.slack < 1
        if not fine or not is_real(self.log_miss) or not self.log_miss <= 0:
            raise ParameterError(
                parameter_message(
                    "ObjectiveProfile",
                    "stages",
                    "pairs (m, x) with m > 0 and x >= 0, with mu >= 0, 0 <= slack < 1 and"
                    " log_miss <= 0",
                    (self.stages, self.mu_value, self.slack, self.log_miss),
                )
            )
        object.__setattr__(self, "neighbours", Neighbours.resolve(self.neighbours).value)
        stages = sorted((float(m), float(x)) for m, x in self.stages)
        object.__setattr__(self, "stages", tuple(stages))
        for name in ("mu_value", "slack", "log_miss"):
            object.__setattr__(self, name, float(getattr(self, name)))

    def delta(self, epsilon: float) -> float:
        """Return the bound at the head of this module, rounded up.

        For a very large epsilon the bound would rise again, because the missed event dominates it.
        The smallest value then holds for every larger epsilon. Each of the two bounds is convex in
        e^epsilon, and the missed event dominates both from about the same epsilon on.
        """
        found, missed = _bound_of(self, epsilon)
        if missed > 1e-15 * found and _bound_of(self, epsilon + 0.01)[0] >= found:
            return _bound_of(self, min(epsilon, _lowest_at(self)))[0]
        return found

    def _bound(self, epsilon: float) -> tuple[float, float]:
        """Return the bound at exactly this epsilon, and the contribution of the missed event."""
        missed = math.exp(min(epsilon + self.log_miss, 0.0))
        if self.stages[-1][0] > _LARGEST_M:
            return 1.0, missed
        best = 1.0
        if len(self.stages) > _DIRECT:
            # distributions that were convolved by FFT are accurate to 1e-12 only
            best = renyi_delta(self.renyi_curve, epsilon) + self.renyi_missed(epsilon)
        if len(self.stages) > _MOST_STAGES:
            return min(1.0, best), missed
        shift = epsilon - self.slack
        worst = 0.0
        for shifts, losses, weights, cut in _laws(self.stages, self.neighbours):
            tail = (
                gaussian_delta(shift - shifts - losses, self.mu_value)
                if self.mu_value
                else (-np.expm1(np.minimum(shift - shifts - losses, 0.0)))
            )
            worst = max(worst, float(np.sum(tail * weights)) + cut)
        return min(1.0, best, math.exp(self.slack) * (worst * (1 + 1e-11) + missed)), missed

    def proves(self, epsilon: float, delta: float) -> bool:
        """Return whether ``self.delta(epsilon) <= delta``, usually by the bound at this epsilon."""
        return _bound_of(self, epsilon)[0] <= delta or super().proves(epsilon, delta)

    @property
    def spread(self) -> float:
        """The sum of seven standard deviations over all releases."""
        total = math.fsum(math.log1p(x) + m * m / 2 + 7 * m for m, x in self.stages)
        return min(total + self.mu_value * (self.mu_value / 2 + 7), 1e3)

    def rdp(self, order: float) -> float:
        r"""Return the sum of the Renyi bounds of the stages, outside the missed event.

        For replace-one: log(1 + x) + log(K) / (a - 1), where K is the smaller of the moment of the
        loss and 2 e^(a (a-1) m^2 / 2) + 2. For zero-out: the larger of the two directions, each by
        the moment of its loss.
        """
        total = order * self.mu_value**2 / 2
        for (m, x), count in Counter(self.stages).items():
            half = order * (order - 1) * m * m / 2
            if self.neighbours == Neighbours.REPLACE_ONE.value:
                moment = float(np.logaddexp(half + math.log(2), math.log(2)))
                moment = min(moment, _moment_of_two(m, order - 1))
                total += count * (math.log1p(x) + moment / (order - 1))
                continue
            shifted = (order - 1) * m
            add = np.logaddexp(log_ndtr(-m / 2), half + log_ndtr(m / 2 + shifted))
            remove = math.log(2) + log_ndtr(shifted)
            total += count * max(
                math.log1p(x) + (float(add) + 1e-15) / (order - 1),
                order * m * m / 2 + (float(remove) + 1e-15) / (order - 1),
            )
        slack = self.slack * order / (order - 1)
        return (total + slack) * (1 + 1e-12)

    @property
    def rdp_miss(self) -> float:
        """The probability of the event on which ``rdp`` may fail.

        Proof: let b follow the drawn distribution where it is drawn and the ideal one elsewhere,
        rescaled. This distribution is within e^slack of the ideal one everywhere, and the drawn
        distribution is the same one, conditioned on that event.
        """
        found = math.exp(self.log_rdp_miss)
        # a probability that underflowed is not really zero
        return max(found, 5e-324) if self.log_miss > _NEVER else found

    @property
    def log_rdp_miss(self) -> float:
        """The logarithm of ``rdp_miss``."""
        return min(self.log_miss + self.slack, 0.0)

    def combine(self, *others: ObjectiveProfile) -> ObjectiveProfile:
        """Return the composition of these profiles, which must have the same relation."""
        every = (self, *others)
        if len({profile.neighbours for profile in every}) > 1:
            raise ParameterError(
                "Objective perturbations for different neighbours can't be composed."
            )
        mus = [profile.mu_value for profile in every if profile.mu_value > 0]
        missed = [profile.log_miss for profile in every if profile.log_miss > _NEVER]
        log_miss = float(logsumexp(missed)) if missed else _NEVER
        return ObjectiveProfile(
            tuple(stage for profile in every for stage in profile.stages),
            self.neighbours,
            hypot_up(mus) if len(mus) > 1 else sum(mus),
            math.fsum(profile.slack for profile in every) * (1 + 1e-15),
            min(log_miss + (1e-15 * abs(log_miss) + 1e-15 if len(missed) > 1 else 0.0), 0.0),
        )

    def repeat(self, count: int) -> PrivacyProfile:
        """Return the profile of ``count`` releases like this one."""
        return self.combine(*(self,) * (count - 1)) if count else super().repeat(0)

    def with_gaussian(self, mu: float) -> ObjectiveProfile:
        """Return the composition with a Gaussian release."""
        total = hypot_up([self.mu_value, mu]) if self.mu_value else mu
        return ObjectiveProfile(self.stages, self.neighbours, total, self.slack, self.log_miss)

    def to_dict(self) -> JSON:
        """Return the kind and the parameters."""
        return {
            "kind": self.kind,
            "stages": [list(stage) for stage in self.stages],
            "neighbours": self.neighbours,
            "mu": self.mu_value,
            "slack": self.slack,
            "log_miss": self.log_miss,
        }

    @classmethod
    def from_dict(cls, data: JSON) -> ObjectiveProfile:
        """Return the profile that ``to_dict`` described."""
        stages: Any = tuple(tuple(stage) for stage in data["stages"])
        return cls(stages, data["neighbours"], data["mu"], data["slack"], data["log_miss"])


def objective_multiplier(
    budget: Budget,
    weights: Sequence[float],
    x: Sequence[float],
    neighbours: Neighbours,
    *,
    gaussian: float = 0.0,
    slack: float = 0.0,
    log_miss: float = _NEVER,
    precision: float = 1e-7,
) -> float:
    """Return the largest kappa for which stages m_j = kappa sqrt(weights_j) fit the budget.

    ``gaussian`` is the weight of all Gaussian releases together: their mu is kappa sqrt(gaussian).
    The result is the lower end of a bisection to the given relative precision. It is 0 if nothing
    fits; then x is too large, because log(1 + x) must stay below epsilon.

    Parameters
    ----------
    budget : Budget
        The budget of all releases together.
    weights, x : sequence of float
        The weight and the x of each stage.
    neighbours : Neighbours
        The neighbouring relation.
    gaussian : float
        The weight of all Gaussian releases together.
    slack, log_miss : float
        See ``ObjectiveProfile``.
    precision : float
        The relative precision of the bisection.
    """
    stages = tuple(weights), tuple(x)
    return _multiplier(budget, *stages, neighbours.value, gaussian, slack, log_miss, precision)


@lru_cache(maxsize=1024)
def _multiplier(
    budget: Budget,
    weights: tuple[float, ...],
    x: tuple[float, ...],
    neighbours: str,
    gaussian: float,
    slack: float,
    log_miss: float,
    precision: float,
) -> float:
    def profile(kappa: float) -> ObjectiveProfile:
        stages = tuple((kappa * math.sqrt(w), v) for w, v in zip(weights, x, strict=True))
        return ObjectiveProfile(stages, neighbours, kappa * math.sqrt(gaussian), slack, log_miss)

    def fits(kappa: float) -> bool:
        return profile(kappa).supports(budget)

    def gap(kappa: float) -> float:
        found, _ = _bound_of(profile(kappa), budget.epsilon)
        return math.log(found / budget.delta) if found > 0 and budget.delta > 0 else -math.inf

    low, high = 0.0, 1.0
    while fits(high):
        low, high = high, 2 * high
        if high > 1e9:
            return low
    while high > 1e-9 and not fits(high / 2):
        high /= 2
    if high <= 1e-9:
        return 0.0
    low = max(low, high / 2)
    known = narrowed(fits, gap, low, high)
    while high - low > precision * high:
        middle = (low + high) / 2
        low, high = (middle, high) if known(middle) else (low, middle)
    return low


@lru_cache(maxsize=4096)  # a certificate is issued and verified at the same points
def _bound_of(profile: ObjectiveProfile, epsilon: float) -> tuple[float, float]:
    return profile._bound(float(epsilon))


# --- distributions of the losses ------------------------------------------------------------------

TotalLaw = tuple[float, Array, Array, float]  # shift, losses, probabilities, cut-off


def _laws(stages: tuple[Stage, ...], neighbours: str) -> list[TotalLaw]:
    """Return the distribution of the total loss, for each direction that has to be covered."""
    two = neighbours == Neighbours.REPLACE_ONE.value
    names = ["two records"] if two else ["add", "remove"]
    return [_total_law(stages, name) for name in names]


@lru_cache(maxsize=256)
def _lowest_at(profile: ObjectiveProfile) -> float:
    """Return the epsilon at which the bound is lowest, by golden section.

    Two equal values are both 1, so the search then moves on to larger epsilons.
    """
    low, high = -50.0, max(-profile.log_miss, 0.0)
    one, two = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_one, at_two = profile._bound(one)[0], profile._bound(two)[0]
    for _ in range(50):
        if at_one < at_two:
            high, two, at_two = two, one, at_one
            one = high - _GOLDEN * (high - low)
            at_one = profile._bound(one)[0]
        else:
            low, one, at_one = one, two, at_two
            two = low + _GOLDEN * (high - low)
            at_two = profile._bound(two)[0]
    return low


@lru_cache(maxsize=64)
def _total_law(stages: tuple[Stage, ...], name: str) -> TotalLaw:
    """Return shift, losses and probabilities of the total loss of all stages, bounded from above."""
    shift = 0.0 if name == "remove" else math.fsum(math.log1p(x) for _, x in stages)
    ms = [m for m, _ in stages]
    top = max(ms)
    if name == "add":
        losses, weights, cut = _sum_law(tuple(ms), name, _FAR * top / _CELLS)
    else:  # m^2/2 + m R: one distribution of the weighted sum of the R serves every noise scale
        ratios = tuple(min(math.ceil(m / top * 2**40) / 2**40, 1.0) for m in ms)
        values, weights, cut = _sum_law(ratios, name, _FAR / _CELLS)
        losses = (math.fsum(m * m / 2 for m in ms) + top * values) * (1 + 1e-12)
    return shift * (1 + 1e-15), losses, weights, cut


@lru_cache(maxsize=64)
def _sum_law(ms: tuple[float, ...], name: str, step: float) -> tuple[Array, Array, float]:
    """Return values, probabilities and the cut-off probability of the sum over stages.

    A single stage keeps its own fine grid. Several stages are put on a common grid with this step.
    """
    if len(ms) == 1:
        return _stage_law(name, ms[0])
    total: tuple[Array, float] = np.ones(1), 0.0
    for m, count in Counter(ms).items():
        losses, weights, missing = _stage_law(name, m)
        places = np.ceil(losses / step * (1 - 1e-13)).astype(np.int64)
        power = np.bincount(places, weights).astype(np.float64), missing
        while count:  # powers by squaring
            if count % 2:
                total = _convolve(total, power, direct=len(ms) <= _DIRECT)
            count //= 2
            power = _convolve(power, power, direct=len(ms) <= _DIRECT) if count else power
    kept = np.flatnonzero(total[0] > 0)
    values = kept.astype(np.float64) * (step * (1 + 1e-12))
    return values, total[0][kept], total[1] * (1 + 1e-9)


def _stage_law(name: str, m: float) -> tuple[Array, Array, float]:
    """Return values, probabilities and the cut-off probability of max(0, m^2/2 + m Z) or m R."""
    if name == "add":
        edges = np.linspace(-m / 2, _FAR, _STEPS + 1)
        survival = ndtr(-edges) * (1 + 1e-12)
        probabilities = np.concatenate(([1 - survival[0]], -np.diff(survival)))
        values = np.maximum(m * m / 2 + m * edges, 0.0)
        return values, np.maximum(probabilities, 0.0), float(survival[-1])
    edges = np.linspace(0.0, _FAR, _STEPS + 1)
    survival = np.minimum(2 * ndtr(-edges) * (1 + 1e-12), 1.0)
    if name == "two records":
        survival = _survival_of_two()
    return m * edges[1:], np.maximum(-np.diff(survival), 0.0), float(survival[-1])


@lru_cache(maxsize=1)
def _survival_of_two() -> Array:
    """Return a non-increasing upper bound of S(t) on the grid of t."""
    edges = np.linspace(0.0, _FAR, _STEPS + 1)
    angles = math.pi / 4 * np.linspace(0.0, 1.0, _ANGLES + 1) ** 1.5  # the worst ones are small
    either, one_sided = np.zeros_like(edges), np.zeros_like(edges)
    for low, high in pairwise(angles):
        near, far = edges / math.cos(low), edges / math.sin(high)
        first, second = 2 * ndtr(-near), 2 * ndtr(-far)
        either = np.maximum(either, first + second - first * second)
        # the second event counts twice, which is what its slope 1 / tan(low) can do at most
        one_sided = np.maximum(one_sided, _skewed_tail(near, math.tan(high)) + second)
    one_sided += 2 * ndtr(-2 * edges)
    best = np.minimum(np.minimum(either, one_sided) * (1 + 1e-12), 1.0)
    return np.maximum.accumulate(best[::-1])[::-1]


def _moment_of_two(m: float, power: float) -> float:
    """Return an upper bound of log E e^(power (m^2/2 + m R)).

    Beyond the grid, S(t) is at most 2 Q(t), which is integrated exactly. Proof for t >= 12: the terms
    with t / sin phi and 2 t are below e^-70 Q(t). With k = t tan(phi) and a = t / cos(phi),
    N(a, tan phi) <= 2 Q(a) <= 2 e^(-k^2 / 2) Q(t), which is below 1.3 Q(t) for k >= 1. For k < 1 the
    bound of ``_skewed_tail`` is below (1 + 2 * 0.345) Q(a) < 1.7 Q(t).
    """
    rate = power * m
    edges = np.linspace(0.0, _FAR, _STEPS + 1)[::_COARSE]
    weights = np.maximum(-np.diff(_survival_of_two()[::_COARSE]), 1e-300)
    inside = float(logsumexp(rate * edges[1:], b=weights))
    beyond = math.log(2) + rate * rate / 2 + float(log_ndtr(rate - _FAR))
    return float(np.logaddexp(inside, beyond)) + power * m * m / 2 + 1e-11


def _skewed_tail(a: Array, slope: float) -> Array:
    """Return an upper bound of N(a, slope) for a >= 0 and a slope in [0, 1].

    N(a, s) = Q(a) + 2 T(a, s) with Owen's function T, which integrates e^(-a^2 (1 + v^2) / 2) / (2 pi
    (1 + v^2)) over v in [0, s]. There 1 / (1 + v^2) <= e^(-v^2 (1 - s^2 / 2)), and what is left is a
    normal integral. Besides, 2 T(a, s) <= Q(a).
    """
    tail = ndtr(-a)
    wider = np.sqrt(a * a + 2 - slope * slope)
    density = np.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    return np.asarray(tail + np.minimum(tail, 2 * density / wider * (ndtr(wider * slope) - 0.5)))


def _convolve(
    one: tuple[Array, float], two: tuple[Array, float], *, direct: bool
) -> tuple[Array, float]:
    """Return the distribution of the sum, and a bound on the probability that it misses.

    With FFTs the entries err by at most 24 log2(n) u ||a|| ||b|| sqrt(n) in Euclidean norm (Higham
    2002, Theorem 24.2, for three transforms and a product), and hence by sqrt(n) times that in
    total. The atoms at 0 would make these norms large, so they are multiplied separately.
    """
    (a, cut_a), (b, cut_b) = one, two
    size = len(a) + len(b) - 1
    if min(len(a), len(b)) < 64 or (direct and len(a) * len(b) < 2**31):
        return np.convolve(a, b) * (1 + 1e-11), cut_a + cut_b
    fast = next_fast_len(size, real=True)
    rest_a, rest_b = np.concatenate(([0.0], a[1:])), np.concatenate(([0.0], b[1:]))
    out = np.maximum(irfft(rfft(rest_a, fast) * rfft(rest_b, fast), fast)[:size], 0.0)
    out[: len(a)] += b[0] * a
    out[: len(b)] += a[0] * rest_b
    norms = float(np.linalg.norm(rest_a) * np.linalg.norm(rest_b))
    error = 24 * math.log2(fast) * 2.0**-53 * norms * fast
    return out * (1 + 1e-14), cut_a + cut_b + error
