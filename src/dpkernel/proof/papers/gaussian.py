"""The Gaussian mechanism as three of the papers quote it: without the condition on epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpkernel.foundations.validation import Choice
from dpkernel.privacy.profiles import gaussian_delta
from dpkernel.proof.papers.arguments import check


@dataclass(frozen=True)
class GaussianLemma:
    """The printed noise per unit of sensitivity, and the delta that it really gives at epsilon."""

    noise: float
    delta: float


def gaussian_lemma(epsilon: float, delta: float, form: str = "classical") -> GaussianLemma:
    r"""Return the noise of a Gaussian lemma, and the delta that this noise really gives.

    The forms are

        "classical"  sqrt(2 log(1.25/delta)) / epsilon     Wang & Guo, Lemma 1.1; Wang, Lei, Ying &
                                                           Zhang, Lemma 2
        "nikolov"    (1 + sqrt(2 log(1/delta))) / epsilon  Lee, Park & Ahn, Proposition 2

    The papers state them for every epsilon. They are proved for epsilon <= 1, where the true delta is
    far smaller. At delta = 1e-5 the true delta is larger from epsilon = 8.5 on (errata 000-4, 002-0),
    and from epsilon = 20.0 on (erratum 003-13). ``dpkernel.privacy.mechanisms.Gaussian`` is exact.
    """
    check(
        "gaussian_lemma",
        {"form": Choice("classical", "nikolov")},
        epsilon=epsilon,
        delta=delta,
        form=form,
    )
    noise = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    if form == "nikolov":
        noise = (1 + math.sqrt(2 * math.log(1 / delta))) / epsilon
    return GaussianLemma(noise, float(gaussian_delta(epsilon, 1 / noise)))
