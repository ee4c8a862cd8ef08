"""Print the counterexample."""

from __future__ import annotations

from rich.console import Console

from dpkernel.proof.papers.nie_wang_2016.counterexample import counterexample

if __name__ == "__main__":
    console = Console()
    for epsilon in (1.0, 0.1, 0.001):
        found = counterexample(epsilon)
        here, there = found.differences
        console.print(
            f"epsilon = {epsilon:g}: noise of scale {found.noise_scale:.3g}, yet r(-1) - r(1) is"
            f" {here:.6f} on one data set and {there:.6f} on its neighbour (spread {found.spread:.0e});"
            f" the attacker was right in {found.guessed:.0%} of {found.trials} releases"
        )
