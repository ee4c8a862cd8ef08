"""The excess risks of Theorems 10, 11, 17 to 19, 21 to 23 and 63 to 65, with the choices that give them.

All of them hide constants. The functions return the expression inside O() with all constants set to
1. It says how a bound grows with n, not how large it is. The names are those of the paper:

    r in [1/2, 1]       smoothness of the best function (Assumption 4)
    gamma in [0, 1]     capacity: N(lambda) <= Q lambda^-gamma (Assumption 3)
    beta in [gamma, 1]  how far the eigenfunctions fluctuate (Assumption 7)
    alpha in [gamma, 1] how badly random features fit the kernel (Assumption 9)

The theorems about privacy (8, 9, 16 and 20) are in ``constants``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import is_real
from dpkernel.foundations.validation import Constraint, Real, Whole
from dpkernel.proof.papers.arguments import check
from dpkernel.proof.papers.arguments import reading as one_of
from dpkernel.solvers.erm_schedules import curved, linear, lipschitz, mixed, whole_function

_CERTAIN = 1.0  # no logarithm


@dataclass(frozen=True)
class KernelRate:
    """An excess risk up to constants, its terms, and the choices that give it.

    Attributes
    ----------
    statistics, privacy : float
        The term that remains without privacy, and the term with epsilon.
    logarithms : float
        The factor of logarithms that the theorem states; 1 for a lower bound.
    lam, n_features : float or None
        lambda, and M before its logarithm; None if the theorem chooses none.
    """

    statistics: float
    privacy: float
    logarithms: float = _CERTAIN
    lam: float | None = None
    n_features: float | None = None

    @property
    def total(self) -> float:
        """(statistics + privacy) times the logarithms."""
        return (self.statistics + self.privacy) * self.logarithms

    @property
    def privacy_leads(self) -> bool:
        """Whether the term with epsilon is the larger one."""
        return self.privacy > self.statistics


# --- lower bounds ---------------------------------------------------------------------------


def theorem_10(n_rows: int, epsilon: float, *, r: float, gamma: float, beta: float) -> KernelRate:
    r"""Return the minimax rate of Theorem 10, squared loss, delta = o(1/n).

    The rate is n^(-2r/(2r+gamma)) + min((n epsilon)^(-4r/(gamma+2r+beta)), 1). No private method does
    better. The canonical estimator attains it if the kernel with the eigenvalues mu^beta is bounded, but
    it needs to know the eigenfunctions (``canonical_estimator``).
    """
    check_numbers("theorem_10", n_rows, epsilon, r=r, gamma=gamma, beta=beta)
    power = 4 * r / (gamma + 2 * r + beta)
    private = min((n_rows * epsilon) ** -power, 1.0)
    return KernelRate(_known(n_rows, r, gamma), private)


def theorem_23(n_rows: int, epsilon: float, *, r: float, gamma: float, beta: float) -> KernelRate:
    """Return the lower bound of Theorem 23 for some locally strongly convex loss: that of Theorem 10."""
    check_numbers("theorem_23", n_rows, epsilon, r=r, gamma=gamma, beta=beta)
    return theorem_10(n_rows, epsilon, r=r, gamma=gamma, beta=beta)


@dataclass(frozen=True)
class CanonicalEstimator:
    """The number of coefficients of the estimator behind Theorem 10, and the noise on each."""

    n_coefficients: int
    noise_scale: float


def canonical_estimator(
    n_rows: int,
    epsilon: float,
    delta: float,
    *,
    r: float,
    gamma: float,
    beta: float,
    c_beta: float = 1.0,
    q_1: float = 1.0,
    n_coefficients: int | None = None,
    reading: str = "corrected",
) -> CanonicalEstimator:
    r"""Return the numbers of the estimator in the proof of Theorem 10, for y in [-1, 1] and gamma > 0.

    d is ``n_coefficients``. By default it is the whole number nearest to
    min((n epsilon)^(2 gamma/(2r+beta+gamma)), n^(gamma/(2r+gamma))), at least 1. The estimator adds
    N(0, s^2) to the means of y phi_l(x), l <= d. With the eigenvalues mu_l >= q_1 l^(-1/gamma),

        "printed"     s = 2 c_beta d^(beta/2) (1 + sqrt(2 log(1/delta))) / (n epsilon)
        "corrected"   s = 2 sqrt(c_beta) (q_1^-1 d^(1/gamma))^(beta/2) (1 + sqrt(...)) / (n epsilon)

    The proof bounds sum_(l<=d) phi_l(x)^2 by c_beta mu_d^-beta = c_beta (q_1^-1 d^(1/gamma))^beta. The
    printed step has d^beta instead, and the root of c_beta is missing. For gamma < 1 and d > 1 the
    printed noise is too small by a factor d^(beta (1/gamma - 1)/2); the rate uses the right noise. Both
    use the multiplier of Nikolov, Talwar & Zhang; ``dpkernel.mechanisms.Gaussian`` needs less.
    """
    owner = "canonical_estimator"
    gammas: dict[str, Constraint] = {"gamma": Real(0, 1, closed_high=True)}
    check(owner, gammas, gamma=gamma)
    check_numbers(owner, n_rows, epsilon, r=r, gamma=gamma, beta=beta)
    check(
        owner, one_of("printed", "corrected"), delta=delta, c_beta=c_beta, q_1=q_1, reading=reading
    )
    private = (n_rows * epsilon) ** (2 * gamma / (2 * r + beta + gamma))
    kept = max(1, round(min(private, n_rows ** (gamma / (2 * r + gamma)))))
    if n_coefficients is not None:
        check(owner, {"n_coefficients": Whole(1)}, n_coefficients=n_coefficients)
        kept = int(n_coefficients)
    moved = sqrt(c_beta) * (kept ** (1 / gamma) / q_1) ** (beta / 2)
    if reading == "printed":
        moved = c_beta * kept ** (beta / 2)
    scale = 2 * moved * (1 + sqrt(2 * log(1 / delta))) / (n_rows * epsilon)
    return CanonicalEstimator(kept, scale)


# --- squared loss: Algorithms 1 and 3 -------------------------------------------------------


def theorem_11(
    n_rows: int, epsilon: float, *, r: float, gamma: float, confidence: float = 0.05
) -> KernelRate:
    r"""Return the rate of Theorem 11: Algorithm 1, sufficient statistics on a random projection.

    (n^(-2r/(2r+gamma)) + (n epsilon)^(-4r/(4r+gamma))) log^2(1/t), with probability 1 - t, t =
    ``confidence`` <= 1/e, for epsilon >= 1/n and n large enough. lambda is the larger of
    n^(-1/(2r+gamma)) and (n epsilon)^(-2/(4r+gamma)), M = lambda^-(2r+gamma-1). The two meet at
    epsilon = n^(-gamma/(4r+2gamma)). For r = 1/2 it is the lower bound with beta = 1.
    """
    check_numbers("theorem_11", n_rows, epsilon, confidence, r=r, gamma=gamma)
    return _curved(n_rows, epsilon, r, gamma, gamma, log(1 / confidence) ** 2)


def theorem_17(
    n_rows: int, epsilon: float, *, r: float, gamma: float, alpha: float, confidence: float = 0.05
) -> KernelRate:
    r"""Return the rate of Theorem 17: Algorithm 3, with random features whose fit is given by alpha.

    It is that of Theorem 11 with g = (2r-1) gamma + (2-2r) alpha in place of gamma in the private term:
    n^(-2r/(2r+gamma)) + (n epsilon)^(-4r/(4r+g)). lambda is the larger of n^(-1/(2r+gamma)) and
    (n epsilon)^(-2/(4r+g)), and M = lambda^-(2r+g-1). The theorem has log^2(1/t) on the second term only
    and hides other logarithms; here it multiplies both, as in its proof. Random Fourier features have
    alpha = 1 in general; alpha = gamma gives Theorem 11.
    """
    check_numbers("theorem_17", n_rows, epsilon, confidence, r=r, gamma=gamma, alpha=alpha)
    return _curved(n_rows, epsilon, r, gamma, mixed(r, gamma, alpha), log(1 / confidence) ** 2)


# --- Lipschitz and smooth losses: Algorithms 2, 4 and 5 -------------------------------------


def theorem_18(
    n_rows: int,
    epsilon: float,
    *,
    gamma: float,
    alpha: float | None = None,
    confidence: float = 0.05,
) -> KernelRate:
    r"""Return the rate of Theorem 18: Algorithm 2, any convex Lipschitz and smooth loss.

    The rate is (n^(-1/2) + (n epsilon)^(-2/(2+gamma))) log^2(1/t). With ``alpha`` it is for
    Algorithm 4 on random features, with alpha in place of gamma in the second term. lambda is the
    larger of n^(-1/2) and the second term, and M = lambda^-gamma, or lambda^-alpha. The proof has
    (n epsilon)^(-2/(2r+1+gamma)), which equals the second term at r = 1/2, where it is smallest; a
    larger r does not improve it.
    """
    others = {} if alpha is None else {"alpha": alpha}
    check_numbers("theorem_18", n_rows, epsilon, confidence, gamma=gamma, **others)
    power = gamma if alpha is None else alpha
    private = (n_rows * epsilon) ** (-2 / (2 + power))
    lam, features = lipschitz(n_rows, epsilon, power)
    return KernelRate(n_rows**-0.5, private, log(1 / confidence) ** 2, lam, features)


def theorem_19(n_rows: int, epsilon: float, *, r: float, gamma: float) -> KernelRate:
    r"""Return the rate of Theorem 19: Algorithm 2 under local strong convexity.

    It is that of Theorem 11 with log^2 n in place of log^2(1/t), with probability 1 - n^-c for any c.
    """
    check_numbers("theorem_19", n_rows, epsilon, r=r, gamma=gamma)
    return _curved(n_rows, epsilon, r, gamma, gamma, log(n_rows) ** 2)


def theorem_58(n_rows: int, epsilon: float, *, r: float, gamma: float) -> KernelRate:
    r"""Return the rate of Theorem 58: Theorem 19 under Assumption 11 instead of Assumption 10.

    Assumption 11 asks for strong convexity at all f with sup \|f\| <= e_inf times the norm of the best
    function, for some e_inf > 4. The rate is that of Theorem 19.
    """
    check_numbers("theorem_58", n_rows, epsilon, r=r, gamma=gamma)
    return theorem_19(n_rows, epsilon, r=r, gamma=gamma)


def theorem_21(n_rows: int, epsilon: float, *, r: float, gamma: float, alpha: float) -> KernelRate:
    """Return the rate of Theorem 21: Algorithm 4 under local strong convexity.

    It is that of Theorem 17 with log^2 n in place of log^2(1/t).
    """
    check_numbers("theorem_21", n_rows, epsilon, r=r, gamma=gamma, alpha=alpha)
    return _curved(n_rows, epsilon, r, gamma, mixed(r, gamma, alpha), log(n_rows) ** 2)


def theorem_22(n_rows: int, epsilon: float, *, r: float, gamma: float) -> KernelRate:
    r"""Return the rate of Theorem 22: Algorithm 5, Gaussian process noise on the whole function.

    The rate is (n^(-2r/(2r+gamma)) + (n epsilon)^(-4r/(2r+2))) log^2 n. lambda is the larger of
    n^(-1/(2r+gamma)) and (n epsilon)^(-1/(r+1)). The last lines of its proof print the second power
    without its minus sign. The noise of Algorithm 5 is half of what it must be (``algorithm_5_noise``),
    but twice the noise does not change the rate.
    """
    check_numbers("theorem_22", n_rows, epsilon, r=r, gamma=gamma)
    lam, _ = whole_function(n_rows, epsilon, r, gamma)
    private = (n_rows * epsilon) ** (-4 * r / (2 * r + 2))
    return KernelRate(_known(n_rows, r, gamma), private, log(n_rows) ** 2, lam)


# --- linear models --------------------------------------------------------------------------


def theorem_63(n_rows: int, epsilon: float, rank: int, *, confidence: float = 0.05) -> KernelRate:
    r"""Return the rate of Theorem 63: Algorithm 1 for linear regression, Sigma = E[x x^T].

    (min(rank/n, n^(-1/2)) + min(sqrt(rank)/(n epsilon), (n epsilon)^(-2/3))) log^2(1/t): free of the
    dimension. lambda is the larger of the two, M = n epsilon lambda sqrt(N(lambda)).
    """
    _check_linear("theorem_63", n_rows, epsilon, rank, confidence)
    return _linear(n_rows, epsilon, rank, min(rank / n_rows, n_rows**-0.5), confidence)


def theorem_64(n_rows: int, epsilon: float, rank: int, *, confidence: float = 0.05) -> KernelRate:
    r"""Return the rate of Theorem 64: Lipschitz and smooth losses on linear models.

    The rate is (n^(-1/2) + min(sqrt(rank)/(n epsilon), (n epsilon)^(-2/3))) log^2(1/t). Its text says
    Algorithm 1, but its proof is for Algorithm 2.
    """
    _check_linear("theorem_64", n_rows, epsilon, rank, confidence)
    found = _linear(n_rows, epsilon, rank, n_rows**-0.5, confidence)
    return KernelRate(found.statistics, found.privacy, found.logarithms, found.lam)


def theorem_65(n_rows: int, epsilon: float, rank: int, *, reading: str = "stated") -> KernelRate:
    r"""Return the rate of Theorem 65: Theorem 64 under local strong convexity, with log^2 n.

    The stated rate is (min(rank/n, n^(-1/2)) + min(sqrt(rank)/(n epsilon), (n epsilon)^(-2/3))) log^2 n.
    The last line of its proof has 1/n for the first term (``reading="proof"``). It drops N(lambda)/n,
    which is rank/n, and no method does better than that. So use the statement.
    """
    _check_linear("theorem_65", n_rows, epsilon, rank, 0.05)
    check("theorem_65", one_of("stated", "proof"), reading=reading)
    known = min(rank / n_rows, n_rows**-0.5) if reading == "stated" else 1 / n_rows
    found = _linear(n_rows, epsilon, rank, known, 0.05)
    return KernelRate(known, found.privacy, log(n_rows) ** 2, found.lam)


@dataclass(frozen=True)
class EffectiveDimension:
    """N(lambda), and the bound of Lemma 66 on it, as printed and with the trace that it needs."""

    exact: float
    printed: float
    corrected: float


def lemma_66(eigenvalues: Sequence[float], lam: float) -> EffectiveDimension:
    r"""Return N(lambda) = sum mu/(mu + lambda) and the bounds of Lemma 66 on it.

    The printed bound is min(||Sigma||/lambda, rank), whose proof takes a trace for a norm. It is false
    for every lambda > mu_1/(d-1) if all d eigenvalues are equal. The right bound, which the text uses
    before, is min(tr(Sigma)/lambda, rank). Rates do not change, because the trace is at most 1 if
    ||x|| <= 1.
    """
    check("lemma_66", lam=lam)
    values, rank = list(eigenvalues), len(eigenvalues)
    if not rank or not all(is_real(value) and 0 < value < inf for value in values):
        allowed = "at least one number, each in the range (0, inf)"
        got = type(eigenvalues).__name__
        raise ParameterError(parameter_message("lemma_66", "eigenvalues", allowed, got))
    exact = sum(value / (value + lam) for value in values)
    return EffectiveDimension(exact, min(max(values) / lam, rank), min(sum(values) / lam, rank))


# --- parts ----------------------------------------------------------------------------------


def _known(n_rows: int, r: float, gamma: float) -> float:
    """Return n^(-2r/(2r+gamma)), the rate without privacy."""
    return float(n_rows ** (-2 * r / (2 * r + gamma)))


def _curved(
    n_rows: int, epsilon: float, r: float, gamma: float, fit: float, logarithms: float
) -> KernelRate:
    """Return the rate of the squared loss and of losses with curvature. ``fit`` is gamma_alpha."""
    total = n_rows * epsilon
    lam, features = curved(n_rows, epsilon, r, gamma, fit)
    private = total ** (-4 * r / (4 * r + fit))
    return KernelRate(_known(n_rows, r, gamma), private, logarithms, lam, features)


def _linear(n_rows: int, epsilon: float, rank: int, known: float, confidence: float) -> KernelRate:
    total = n_rows * epsilon
    private = min(sqrt(rank) / total, total ** (-2 / 3))
    lam, features = linear(n_rows, epsilon, rank, known)
    return KernelRate(known, private, log(1 / confidence) ** 2, lam, features)


def check_numbers(
    owner: str, n_rows: int, epsilon: float, confidence: float = 0.05, **exponents: float
) -> None:
    """Raise for numbers that the theorems do not cover."""
    check(owner, n_rows=n_rows)
    allowed: dict[str, Constraint] = {
        "epsilon": Real(1 / n_rows, inf, closed_low=True),
        "confidence": Real(0, exp(-1), closed_high=True),
        "r": Real(0.5, 1, closed_low=True, closed_high=True),
        "gamma": Real(0, 1, closed_low=True, closed_high=True),
    }
    gamma = exponents.get("gamma", 0.0)
    check(owner, allowed, epsilon=epsilon, confidence=confidence, gamma=gamma)
    for name in ("alpha", "beta"):
        allowed[name] = Real(gamma, 1, closed_low=True, closed_high=True)
    check(owner, allowed, **exponents)


def _check_linear(owner: str, n_rows: int, epsilon: float, rank: int, confidence: float) -> None:
    check_numbers(owner, n_rows, epsilon, confidence)
    check(owner, {"rank": Whole(1)}, rank=rank)
