r"""Nie & Wang (2017), "Perturbation of convex risk minimization".

The full title is "Perturbation of convex risk minimization and its application in differential private
learning algorithms" (accepted in 2016, in print in January 2017). Algorithm (2) as printed releases
f_z + b, a regularised risk minimiser in a reproducing kernel space plus one Laplace number. It is a
baseline. Its certificates name these errata::

    004-1  Lemma 1 adds one number to a function. Differences of its values are released without noise,
           so it protects nothing, at any epsilon and delta < 1
    004-2  Proposition 1 prints half the scale, so even one value has 2 epsilon
    004-3  Proposition 1 requires the conditions of Theorem 1 and uses Theorem 2
    004-4  Theorem 1's sqrt(16 B/(lambda gamma m)) is valid; sqrt(2 B/(lambda gamma m)) suffices
    004-5  Theorem 2's 2 kappa C_L/(lambda gamma m) is right, and attained
    004-6  the slope C_L = 2 M (kappa + 1)/sqrt(lambda) of least squares holds for lambda <= 1 only

``PublishedPerturbedRisk`` never has a valid certificate; ``counterexample`` shows why. The useful parts
of its theorems are in ``dpkernel.methods``: PrivateKernelSVC, PrivateKernelSVR, PrivateCurator.
"""

from dpkernel.proof.papers.nie_wang_2016.constants import (
    corrected_scale,
    corrected_theorem_1,
    general_lipschitz,
    printed_lipschitz,
    printed_scale,
    printed_theorem_1,
    theorem_2,
)
from dpkernel.proof.papers.nie_wang_2016.counterexample import Counterexample, counterexample
from dpkernel.proof.papers.nie_wang_2016.perturbed_risk import PublishedPerturbedRisk
from dpkernel.proof.papers.nie_wang_2016.rates import (
    ExcessBound,
    RuleOfSection5,
    excess_bound,
    section_5_1,
    section_5_2,
    theorem_3,
    theorem_4,
)
from dpkernel.proof.papers.nie_wang_2016.regularisers import strong_convexity

__all__ = [
    "Counterexample",
    "ExcessBound",
    "PublishedPerturbedRisk",
    "RuleOfSection5",
    "corrected_scale",
    "corrected_theorem_1",
    "counterexample",
    "excess_bound",
    "general_lipschitz",
    "printed_lipschitz",
    "printed_scale",
    "printed_theorem_1",
    "section_5_1",
    "section_5_2",
    "strong_convexity",
    "theorem_2",
    "theorem_3",
    "theorem_4",
]
