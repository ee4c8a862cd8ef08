"""Lemmas 12, 13, 14 and 77 and Theorem 38, with hidden constants set to 1."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.validation import Constraint, Real
from dpkernel.proof.papers.arguments import check
from dpkernel.proof.papers.arguments import reading as one_of
from dpkernel.proof.papers.lee_park_ahn_2025.rates import check_numbers as _check


@dataclass(frozen=True)
class FeatureWindow:
    """The numbers of features and of rows for which Lemma 14 holds, up to constants."""

    least: float
    most: float
    least_rows: float

    def holds(self, n_rows: int, n_features: int) -> bool:
        """Whether these numbers are allowed, with all constants set to 1."""
        return self.least <= n_features <= self.most and n_rows >= self.least_rows


def lemma_14(
    n_rows: int,
    epsilon: float,
    delta: float,
    lam: float,
    effective_dimension: float,
    *,
    gram_sensitivity: float = 2.0,
    kappa: float = 1.0,
    operator_norm: float = 1.0,
    height: float = 1.0,
    confidence: float = 0.05,
) -> FeatureWindow:
    r"""Return the conditions of Lemma 14 (used by Theorem 11), with hidden constants set to 1.

    max((kappa/||L|| + N(lambda)) log(2/t), log(2/t)) <= M <= (n lambda epsilon)^2 / (Delta_1
    log(1/delta))^2 and n >= (H^2/lambda) log(N(lambda)/t). ``height`` is H of Lemma 12, a bound on the
    projected features, and ``gram_sensitivity`` is Delta_1. With few rows or a small epsilon no M is
    allowed, and lambda must be larger.
    """
    owner = "lemma_14"
    _check(owner, n_rows, epsilon, confidence)
    check(
        owner,
        delta=delta,
        lam=lam,
        effective_dimension=effective_dimension,
        gram_sensitivity=gram_sensitivity,
        kappa=kappa,
        operator_norm=operator_norm,
        height=height,
    )
    doubt = log(2 / confidence)
    least = max((kappa / operator_norm + effective_dimension) * doubt, doubt)
    most = (n_rows * lam * epsilon / (gram_sensitivity * log(1 / delta))) ** 2
    rows = height**2 / lam * max(log(effective_dimension / confidence), 0.0)
    return FeatureWindow(least, most, rows)


def lemma_12(
    n_features: int,
    n_columns: int,
    *,
    diameter: float = 1.0,
    c_k: float = 1.0,
    kappa: float = 1.0,
    universal: tuple[float, float] = (1.0, 1.0),
    confidence: float = 0.05,
    reading: str = "stated",
) -> float:
    r"""Return H of Lemma 12, which bounds all M paths on all of X with probability 1 - t::

        H = K kappa sqrt(d) sqrt(log C + log 2 c_k + log ||X||) + 2 log(e/kappa)
            + kappa sqrt(2 log(2M/t))

    t is ``confidence``, ||X|| is ``diameter``, and (K, C) are the ``universal`` constants that the paper
    does not state. A negative sum of logarithms counts as 0. The proof has 2 log(e/kappa) inside the
    first root, which is what the integral gives (``reading="proof"``).
    """
    owner, numbers = "lemma_12", {"diameter": diameter, "c_k": c_k, "kappa": kappa}
    check(owner, None, n_features=n_features, n_columns=n_columns, confidence=confidence, **numbers)
    first, second = universal
    check(owner, one_of("stated", "proof"), K=first, C=second, reading=reading)
    entropy, rest = log(second) + log(2 * c_k) + log(diameter), 2 * log(exp(1) / kappa)
    if reading == "proof":
        entropy, rest = entropy + rest, 0.0
    spread = first * kappa * sqrt(n_columns * max(entropy, 0.0))
    return spread + rest + kappa * sqrt(2 * log(2 * n_features / confidence))


def lemma_13(
    n_rows: int,
    n_features: int,
    lam: float,
    effective_dimension: float,
    *,
    r: float,
    height: float = 1.0,
    confidence: float = 0.05,
) -> float:
    r"""Return the bound of Lemma 13 on ||f_H - f^_(M, lambda)||, with the hidden constant set to 1::

        H^2 log(1/t)/(n sqrt(lambda)) + sqrt(H^2 N log(1/t)/n) + sqrt(lambda N/M) log(1/t) + lambda^r

    It is the error without privacy. ``height`` is H of Lemma 12 and ``effective_dimension`` is
    N = N(lambda). Its conditions on n and M are those of ``lemma_14``.
    """
    owner = "lemma_13"
    _check(owner, n_rows, 1.0, confidence, r=r, gamma=0.0)
    given = {"lam": lam, "effective_dimension": effective_dimension, "height": height}
    check(owner, None, n_features=n_features, **given)
    doubt, square = log(1 / confidence), height**2
    found = square * doubt / (n_rows * sqrt(lam))
    found += sqrt(square * effective_dimension * doubt / n_rows)
    return float(found + sqrt(lam * effective_dimension / n_features) * doubt + lam**r)


def lemma_14_truncation(
    n_rows: int,
    *,
    r: float = 0.5,
    radius: float = 1.0,
    tail: float = 1.0,
    sigma: float = 1.0,
    kappa: float = 1.0,
    confidence: float = 0.05,
    reading: str = "corrected",
) -> float:
    r"""Return T of Lemma 14, beyond which no target lies with probability 1 - t.

    R is ``radius``, and B and sigma are ``tail`` and ``sigma`` of Assumption 2::

        "printed"     T = kappa R + 2 B log(n/t) + sigma sqrt(2 log(n/t))
        "corrected"   T = kappa^(2r) R + 2 B log(2n/t) + sigma sqrt(2 log(2n/t))

    The best function is L^r g with ||g|| <= R, so its values are up to kappa^(2r) R, which is more than
    kappa R if kappa and 2r are above 1. The 2 is for both signs of the noise.
    """
    owner, given = "lemma_14_truncation", {"radius": radius, "tail": tail, "sigma": sigma}
    _check(owner, n_rows, 1.0, confidence, r=r, gamma=0.0)
    check(owner, one_of("printed", "corrected"), kappa=kappa, reading=reading, **given)
    right = reading == "corrected"
    doubt = log((2 if right else 1) * n_rows / confidence)
    size = kappa ** (2 * r if right else 1.0) * radius
    return float(size + 2 * tail * doubt + sigma * sqrt(2 * doubt))


def theorem_38(
    n_rows: int,
    n_features: int,
    lam: float,
    effective_dimension: float,
    *,
    r: float,
    radius: float = 1.0,
    tail: float = 1.0,
    sigma: float = 1.0,
    height: float = 1.0,
    kappa: float = 1.0,
    operator_norm: float = 1.0,
    confidence: float = 0.05,
    reading: str = "corrected",
) -> float:
    r"""Return the bound of Theorem 38 on the root of the excess risk, with the hidden constant set to 1.

    It is Lemma 13 with the numbers of the problem, without privacy::

        (B + kappa^(2r-1) R) H log(2/t)/(n sqrt(lambda)) + (sigma + H) sqrt(N log(2/t)/n)
            + (kappa^(2r-1) + (kappa ||L||)^(r-1/2)) R sqrt(lambda N log(2/t)/M) + R lambda^r

    R is ``radius``, B and sigma are ``tail`` and ``sigma`` of Assumption 2, H is ``height`` of Lemma 12
    and N is N(lambda). The theorem prints the third term without lambda ("printed"). The bounds that it
    adds up have it, and so has Lemma 13; without it the rate of Theorem 11 would not follow.
    """
    owner = "theorem_38"
    _check(owner, n_rows, 1.0, confidence, r=r, gamma=0.0)
    given = {"lam": lam, "effective_dimension": effective_dimension, "radius": radius}
    given |= {"tail": tail, "sigma": sigma, "height": height, "kappa": kappa}
    numbers: dict[str, object] = {**given, "operator_norm": operator_norm, "reading": reading}
    check(owner, one_of("printed", "corrected"), n_features=n_features, **numbers)
    doubt, smooth = log(2 / confidence), kappa ** (2 * r - 1)
    found = (tail + smooth * radius) * height * doubt / (n_rows * sqrt(lam))
    found += (sigma + height) * sqrt(effective_dimension * doubt / n_rows)
    lost = sqrt(effective_dimension * doubt / n_features)
    lost *= 1.0 if reading == "printed" else sqrt(lam)
    found += (smooth + (kappa * operator_norm) ** (r - 0.5)) * radius * lost
    return float(found + radius * lam**r)


def lemma_14_error(
    n_rows: int,
    epsilon: float,
    n_features: int,
    lam: float,
    effective_dimension: float,
    *,
    r: float = 0.5,
    radius: float = 1.0,
    target_bound: float = 1.0,
    tail: float = 1.0,
    sigma: float = 1.0,
    height: float = 1.0,
    kappa: float = 1.0,
    confidence: float = 0.05,
) -> float:
    r"""Return the bound of Lemma 14 on ||f^_(M, lambda) - f~||, with the hidden constant set to 1::

        sqrt(M)/(n sqrt(lambda) epsilon) (kappa^(2r-1) R + T + B H log(1/t)/(n lambda)
            + sqrt(sigma^2 N log(1/t)/(n lambda)) + sqrt(M)/(n lambda epsilon))

    It is the price of privacy of Algorithm 1. R is ``radius``, and B and sigma are ``tail`` and
    ``sigma`` of Assumption 2. Its conditions are those of ``lemma_14``.
    """
    owner = "lemma_14_error"
    _check(owner, n_rows, epsilon, confidence, r=r, gamma=0.0)
    given = {"lam": lam, "radius": radius, "target_bound": target_bound, "tail": tail}
    given |= {"sigma": sigma, "height": height, "kappa": kappa, "n_features": n_features}
    check(owner, None, effective_dimension=effective_dimension, **given)
    doubt, total = log(1 / confidence), n_rows * lam
    size = kappa ** (2 * r - 1) * radius + target_bound + tail * height * doubt / total
    size += sqrt(sigma**2 * effective_dimension * doubt / total) + sqrt(n_features) / (
        total * epsilon
    )
    return float(sqrt(n_features / lam) / (n_rows * epsilon) * size)


@dataclass(frozen=True)
class LocalConvexity:
    """The constant of Lemma 77, as printed and corrected, and whether its conditions hold."""

    printed: float
    constant: float
    holds: bool


def lemma_77(
    half: float, *, inside: tuple[float, float], largest: float, eta_min: float = 1.0
) -> LocalConvexity:
    r"""Return eta_min c_lsc / 2 of Lemma 77 for the hinge that is a parabola on [1 - h, 1 + h]::

        c_lsc = c_3 - c_4 max((a + R)^2/(a' + R)^2, (R - b)^2/(R - b')^2),   c_3 = c_4 = 1/(2h)

    h is ``half``, a = 1 - h, b = 1 + h, [a', b'] = ``inside`` is the range of the best function, R =
    ``largest`` bounds the functions that are compared, and eta_min is the least probability that a
    margin lies in [a, b]. ``holds`` says whether the lemma's conditions a < 0 < b, R > max(\|a\|, \|b\|)
    and [a', b'] inside [a, b] hold. a < 0 needs h > 1. The constant is positive only if [a', b'] is
    strictly inside. R may then be as large as one wants, as the paper says, but the constant falls to
    0 as R grows.

    Erratum 003-14: the proof treats the margins of the class -1 "similarly". But they are -f, which
    lie in [-b', -a'] and not in [a', b']. ``constant`` takes the maximum over both ranges, as far as
    they meet [a, b], and holds. ``printed`` takes it over [a', b'] alone and is false in general: for
    h = 2, labels of 1 with probability 2/3 and constant functions up to R = 4, it promises that the
    risk of f = 4 exceeds the least risk by .72, but it exceeds it by .667.
    """
    share: dict[str, Constraint] = {"eta_min": Real(0, 1, closed_low=True, closed_high=True)}
    check("lemma_77", share, half=half, largest=largest, eta_min=eta_min)
    low, high = (float(v) for v in inside)
    a, b = 1 - half, 1 + half
    fine = a < 0 < b and largest > max(abs(a), abs(b)) and a <= low <= high <= b
    if not (largest > -low and largest > high):
        allowed = "larger than every value of the best function"
        raise ParameterError(parameter_message("lemma_77", "largest", allowed, largest))

    def ratio(low: float, high: float) -> float:
        below, above = (a + largest) / (low + largest), (largest - b) / (largest - high)
        return max(below**2, above**2)

    def share_of(worst: float) -> float:
        return eta_min * (1 - worst) / (2 * half) / 2

    printed = worst = ratio(low, high)
    if -low >= a:  # some margins of the class -1 are in [a, b], too
        worst = max(worst, ratio(max(-high, a), min(-low, b)))
    return LocalConvexity(share_of(printed), share_of(worst), fine)
