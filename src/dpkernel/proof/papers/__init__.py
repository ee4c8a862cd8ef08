"""The published algorithms as printed, with their constants and errata. They are baselines only.

There is one package per paper. It has the algorithms, and the theorems as functions: rates,
schedules, sensitivities and noise, as printed and as corrected. Every algorithm leaves a
certificate that names what is wrong with the printed claim. The certificate is never valid if the
claim is false or has no proof. To protect data, use the estimators of ``dpkernel``.
"""

from dpkernel.proof.papers.gaussian import GaussianLemma, gaussian_lemma
from dpkernel.proof.papers.lee_park_ahn_2025 import (
    PublishedAlgorithm1,
    PublishedAlgorithm2,
    PublishedAlgorithm3,
    PublishedAlgorithm4,
    PublishedAlgorithm5,
    PublishedCanonicalEstimator,
)
from dpkernel.proof.papers.ma_2024 import PublishedSketchedERM
from dpkernel.proof.papers.nie_wang_2016 import PublishedPerturbedRisk
from dpkernel.proof.papers.wang_guo_2024 import PublishedRandomFeatureSGD
from dpkernel.proof.papers.wang_lei_ying_zhang_2022 import PublishedGradientSGD, PublishedOutputSGD

__all__ = [
    "GaussianLemma",
    "PublishedAlgorithm1",
    "PublishedAlgorithm2",
    "PublishedAlgorithm3",
    "PublishedAlgorithm4",
    "PublishedAlgorithm5",
    "PublishedCanonicalEstimator",
    "PublishedGradientSGD",
    "PublishedOutputSGD",
    "PublishedPerturbedRisk",
    "PublishedRandomFeatureSGD",
    "PublishedSketchedERM",
    "gaussian_lemma",
]
