"""How a regressor shares its budget among its parts."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from dpkernel.errors import ParameterError, parameter_message
from dpkernel.types import JSON, is_real

_LEAST_INPUTS = 500.0  # the n mu from which second moments of the inputs are worth their price
OUTPUT_SHARE = 0.05  # the mu of a stage's output noise as a share of its m


@dataclass(frozen=True)
class BudgetPlan:
    """Weights of the parts, of which each gets its share of mu^2; a part of weight 0 is left out.

    Parameters
    ----------
    location : float
        The histogram of y: where to start, and the scale of everything after. Cannot be left out.
    inputs : float
        Second moments of the inputs, which adapt the features to where the data are. Without them
        the features are made for inputs that fill the declared box evenly.
    stages : tuple of floats
        Robust fits, each of what the ones before left over. Later ones have a smaller scale to hide
        and are worth more.
    scale : float
        Each of the queries for the scale of the residuals, one after every stage.
    calibration : float
        The mean of the last residuals.
    determinant : float
        The share of epsilon that all stages together pay for their ridge.
    clip : float
        Residuals are clipped at this many times their scale.
    """

    location: float
    inputs: float
    stages: tuple[float, ...]
    scale: float
    calibration: float
    determinant: float = 0.1
    clip: float = 1.5

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "stages", tuple(float(weight) for weight in self.stages))
        except (TypeError, ValueError):
            object.__setattr__(self, "stages", ())
        weights = (self.location, *self.stages)
        free = (self.inputs, self.scale, self.calibration)
        fine = all(is_real(w) and 0 < w < math.inf for w in weights) and 1 <= len(self.stages) <= 8
        fine = fine and all(is_real(w) and 0 <= w < math.inf for w in free)
        fine = fine and is_real(self.determinant) and 0 < self.determinant < 0.9
        if not fine or not is_real(self.clip) or not 0.1 <= self.clip <= 100:
            raise ParameterError(
                parameter_message(
                    "BudgetPlan",
                    "weights",
                    "location and 1 to 8 stages above 0, the others >= 0, 0 < determinant < 0.9 and"
                    " 0.1 <= clip <= 100",
                    str(self),
                )
            )

    @classmethod
    def choose(cls, signal: float, n_inputs: int) -> BudgetPlan | None:
        """Return the plan for n mu = ``signal`` and so many inputs: public numbers.

        None where the noise hides even a linear function of so many inputs: then a private mean is
        the best there is.
        """
        if signal < max(40.0, 1.6 * n_inputs):
            return None
        count = 1 if signal < 100 else 2 if signal < 800 else 3
        moments = (n_inputs + 1) * (n_inputs + 2) // 2
        return cls(
            location={1: 0.2, 2: 0.08, 3: 0.03}[count],
            inputs=0.1 if signal >= max(_LEAST_INPUTS, 20 * moments) else 0.0,
            stages=tuple(1.2**j for j in range(count)),
            scale={1: 0.0, 2: 0.025, 3: 0.01}[count],
            calibration=0.03,
            clip=0.8 if count == 1 else min(max(0.7 * math.sqrt(signal / 700), 0.7), 2.5),
        ).filled()

    def filled(self) -> BudgetPlan:
        """Return the plan in which the stages share what the other weights leave of 1."""
        others = self.location + self.inputs + self.scale * len(self.stages) + self.calibration
        if not others < 1:
            raise ParameterError(
                parameter_message("BudgetPlan", "weights", "less than 1 without the stages", others)
            )
        total = sum(self.stages)
        stages = tuple(weight / total * (1 - others) for weight in self.stages)
        return BudgetPlan(
            self.location,
            self.inputs,
            stages,
            self.scale,
            self.calibration,
            self.determinant,
            self.clip,
        )

    def parts(self) -> dict[str, float]:
        """Return the weight of every release of one target, by its label; they add up to 1."""
        plan = self.filled()
        weights = {"location": plan.location, "inputs": plan.inputs}
        for j, weight in enumerate(plan.stages, 1):
            weights[f"stage {j}"] = weight
            weights[f"scale {j}"] = plan.scale
        weights["calibration"] = plan.calibration
        return {label: weight for label, weight in weights.items() if weight > 0}

    def to_dict(self) -> JSON:
        """Return the weights as JSON values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "stages": list(self.stages)}
