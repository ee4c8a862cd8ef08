r"""Wang, Lei, Ying & Zhang (2022), "Differentially private SGD with non-smooth losses".

Algorithms 1 and 2 as printed, for convex losses whose gradient is Hölder continuous:

    PublishedOutputSGD     Algorithm 1: noise on the mean of the iterates
    PublishedGradientSGD   Algorithm 2: noise on every gradient, projected iterates

They are baselines. Their certificates name these errata:

    002-0  the Gaussian lemma, stated for every epsilon, is proved for epsilon <= 1
    002-1  C_alpha of Lemma 20 drops the step size: it is unbounded for alpha -> 1 and L > 1
    002-2  Theorem 7's sensitivity is valid and loose (x41 for alpha >= 1/2, x2.7 for alpha = 0)
    002-3  Theorem 11 holds under (32)-(33), which force a small beta, so the noise is x2 to x5
    002-4  Lemma 13 promises a beta at its threshold, but for n from 18 to 43 there is none

The certificate of Algorithm 1 is valid if this library's own bound supports the claim. That of
Algorithm 2 is never valid. It says whether (32)-(33) hold and what is proved for the same noise.
"""

from dpkernel.proof.papers.wang_lei_ying_zhang_2022.constants import (
    HolderConstants,
    PrintedGradientNoise,
    algorithm_1_noise,
    algorithm_2_noise,
    best_beta,
    beta_exists,
    corrected_c_alpha,
    lemma_13_holds,
    lemma_13_threshold,
    printed_c_alpha,
    printed_gradient_bound,
    step_expansion,
    theorem_7_sensitivity,
    theorem_11_holds,
    theorem_11_multiplier,
)
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.gradient_perturbation import (
    PublishedGradientSGD,
    subsampled_delta,
)
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.lemmas import (
    lemma_3,
    lemma_5,
    lemma_19,
    lemma_22,
    lemma_24,
    lemma_26,
)
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.output_perturbation import PublishedOutputSGD
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.rates import (
    ExcessRate,
    FigurePoint,
    Generalisation,
    TableRow,
    figure_1,
    gradient_complexity,
    lemma_1,
    smallest_epsilon,
    table_1,
    theorem_9_excess,
    theorem_10_excess,
    theorem_12_excess,
)

__all__ = [
    "ExcessRate",
    "FigurePoint",
    "Generalisation",
    "HolderConstants",
    "PrintedGradientNoise",
    "PublishedGradientSGD",
    "PublishedOutputSGD",
    "TableRow",
    "algorithm_1_noise",
    "algorithm_2_noise",
    "best_beta",
    "beta_exists",
    "corrected_c_alpha",
    "figure_1",
    "gradient_complexity",
    "lemma_1",
    "lemma_3",
    "lemma_5",
    "lemma_13_holds",
    "lemma_13_threshold",
    "lemma_19",
    "lemma_22",
    "lemma_24",
    "lemma_26",
    "printed_c_alpha",
    "printed_gradient_bound",
    "smallest_epsilon",
    "step_expansion",
    "subsampled_delta",
    "table_1",
    "theorem_7_sensitivity",
    "theorem_9_excess",
    "theorem_10_excess",
    "theorem_11_holds",
    "theorem_11_multiplier",
    "theorem_12_excess",
]
