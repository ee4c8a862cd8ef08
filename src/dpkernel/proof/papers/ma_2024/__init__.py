r"""Ma (2024), "Differential privacy via randomized sketching".

Algorithm 1 as printed, the constants of Theorem 12, and two neighbouring tables that show the theorem
to be false. The paper calls itself a failed attempt; this package says by how much.

    001-1   Theorem 12 (the output of Algorithm 1 is private) is false as written: with the square loss
            and y = 0 the output is 0 whatever the sketch is, and with one label changed it is almost
            surely not 0. The total variation is 1, so it is not private at any epsilon for delta < 1
    001-2   delta of Theorem 12 has n^(nu (m - h) m / 2) where its proof gives n^(nu (h - m)(m + 2)/2),
            with d where h should stand, and it exceeds 1 unless h is small
    001-3   Lemma 27 takes c_L, which bounds how fast slopes change, for a bound on slopes
    001-4   epsilon of Theorem 12 has a quarter of the term of (17) that leads for large n

Besides, the density of Lemma 13 does not integrate to 1 (``lemma_13``), Lemma 16 needs a condition that
Definition 14 lacks (``lemma_16``), and Lemma 19 drops a constant of its proof (``lemma_19``).

The affine variant (7) escapes the first counterexample but not ``affine_counterexample``, nor
``full_counterexample`` if m = h, nor ``affine_divergence`` if m < h. A sketch with noise is private:
``dpkernel.privacy.mechanisms.GaussianMixing`` and ``dpkernel.methods.PrivateSketchedRidge``. It serves
the squared loss only, and no sketch of this kind can serve another one (``equal_sketches``).
"""

from dpkernel.proof.papers.ma_2024.affine import AffineDivergence, affine_divergence, axis_table
from dpkernel.proof.papers.ma_2024.algorithm import PublishedSketchedERM
from dpkernel.proof.papers.ma_2024.geometry import (
    AffineOptimum,
    lemma_13,
    lemma_16,
    lemma_19,
    lemma_25,
    lemma_26,
    lemma_28,
)
from dpkernel.proof.papers.ma_2024.theorem import (
    Distinguished,
    GradientStep,
    PrintedClaim,
    UtilitySchedule,
    affine_counterexample,
    counterexample,
    equal_sketches,
    full_counterexample,
    lemma_27,
    theorem_5,
    theorem_12,
)

__all__ = [
    "AffineDivergence",
    "AffineOptimum",
    "Distinguished",
    "GradientStep",
    "PrintedClaim",
    "PublishedSketchedERM",
    "UtilitySchedule",
    "affine_counterexample",
    "affine_divergence",
    "axis_table",
    "counterexample",
    "equal_sketches",
    "full_counterexample",
    "lemma_13",
    "lemma_16",
    "lemma_19",
    "lemma_25",
    "lemma_26",
    "lemma_27",
    "lemma_28",
    "theorem_5",
    "theorem_12",
]
