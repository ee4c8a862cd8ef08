r"""Wang & Guo (2024), "Differentially private SGD with random features".

Algorithm 1 as printed is least-squares SGD on random features with output perturbation. It is a
baseline. Its certificates name these errata::

    000-1  Theorem 2 states Delta^2 instead of Delta: a root is missing, and the claim is false
    000-2  Theorem 2 states c kappa + kappa^2 sqrt(eta T), but its proof has c kappa^2 sqrt(eta T)
    000-3  the proof's 2 eta G sqrt(e k (k+1)) with a Chernoff k and a union bound is valid, and 45
           to 52 times what a direct bound and a mixture over k need
    000-4  the Gaussian lemma, stated for every epsilon, is proved for epsilon <= 1

``PublishedRandomFeatureSGD(sensitivity="proof")`` takes the root. Its noise is enough, and its
certificate is valid if this library's own bound supports the claim.
"""

from dpkernel.proof.papers.wang_guo_2024.constants import (
    PrintedOutputNoise,
    Theorem1Rate,
    algorithm_1_noise,
    chernoff_hits,
    direct_sensitivity,
    iterate_bound,
    proved_sensitivity,
    stated_sensitivity,
    theorem_1,
)
from dpkernel.proof.papers.wang_guo_2024.excess import (
    ExcessParts,
    excess_parts,
    lemma_3_1,
    lemma_3_2,
    lemma_3_4,
)
from dpkernel.proof.papers.wang_guo_2024.features import CosineFeatures
from dpkernel.proof.papers.wang_guo_2024.random_feature_sgd import PublishedRandomFeatureSGD

__all__ = [
    "CosineFeatures",
    "ExcessParts",
    "PrintedOutputNoise",
    "PublishedRandomFeatureSGD",
    "Theorem1Rate",
    "algorithm_1_noise",
    "chernoff_hits",
    "direct_sensitivity",
    "excess_parts",
    "iterate_bound",
    "lemma_3_1",
    "lemma_3_2",
    "lemma_3_4",
    "proved_sensitivity",
    "stated_sensitivity",
    "theorem_1",
]
