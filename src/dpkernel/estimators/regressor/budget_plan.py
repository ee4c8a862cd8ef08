"""How a regressor shares its budget among its parts."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, is_real

_LEAST_SINGLE = 25.0  # the n mu from which one fit that knows no table beats a mean
_LEAST_SINGLE_EACH = 2.5  # the n mu per input that this needs in addition
_MOST_SINGLE = 150.0  # the n mu from which it pays to find where inputs and targets lie
_MUCH_NOISE = 40.0  # the n mu below which a histogram of y takes a quarter of the budget
_LEAST_INPUTS = 500.0  # the n mu from which second moments of the inputs are worth their cost
_LEAST_MIXTURE = 60.0  # the n mu from which a mixture of kernels can be fitted
_LEAST_MIXTURE_EACH = 8.0  # the n mu per input that this needs in addition
_MOST_MIXTURE_INPUTS = 20  # for more inputs, second moments cost more than they help
_LEAST_LEARNING = 700.0  # the n mu from which a kernel can be learned
_LEAST_LEARNING_EACH = 20.0  # the n mu per input that learning needs in addition
_SECOND_LOOK = 800.0
MOST_LEARNING_INPUTS = 500  # for more inputs, the law and the metric would not fit in a model file
DEPENDENCE = 0.03  # the weight of the moments of the scores of the columns
OUTPUT_SHARE = 0.05  # the mu of the output noise of a stage, as a share of its m


def column_looks(signal: float, n_inputs: int) -> tuple[float, ...]:
    """Return the weights of the histograms of all columns, for n mu = ``signal``."""
    # a second look is worth its cost if the noise of a cell is below about 1 % of the rows
    closer = signal >= _SECOND_LOOK * math.sqrt(2 * n_inputs)
    return (0.015, 0.015) if closer else (0.03,)


@dataclass(frozen=True)
class BudgetPlan:
    """The weights of the parts. Each part gets its share of mu^2; a part of weight 0 is left out.

    Parameters
    ----------
    location : float
        The weight of the histogram of y, which gives the start of the fit and the scale of
        everything after it. It can be left out only if there is one stage with ``mixture``: the fit
        then starts from the declared range.
    inputs : float
        The weight of the second moments of the inputs, which adapt the features to where the data
        lie. Without them (or ``columns``), the features are made for inputs that fill the declared
        box evenly.
    stages : tuple of floats
        The weights of the robust fits. Each stage fits what the stages before it left over. Later
        stages have a smaller scale to hide and are worth more.
    scale : float
        The weight of each query for the scale of the residuals. There is one after every stage.
    calibration : float
        The weight of the mean of the last residuals.
    determinant : float
        The share of epsilon that all stages together pay for their ridge.
    clip : float
        Residuals are clipped at this many times their scale.
    columns : tuple of floats
        The weights of the histograms of all columns. Each histogram looks closer than the one
        before. With them the kernel is learned: the first of at least two stages chooses the kernel
        of the later stages.
    dependence : float
        The weight of the moments of the scores of the columns, which join the histograms to one
        law. It is needed with ``columns``.
    mixture : bool
        Whether the features are those of a mixture of kernels of several families and scales, for
        the law that ``inputs`` describes. Without ``inputs`` they are made for inputs that fill the
        declared box evenly; there must then be one stage and no query for a scale.
    """

    location: float
    inputs: float
    stages: tuple[float, ...]
    scale: float
    calibration: float
    determinant: float = 0.1
    clip: float = 1.5
    columns: tuple[float, ...] = ()
    dependence: float = 0.0
    mixture: bool = False

    def __post_init__(self) -> None:
        for name in ("stages", "columns"):
            try:
                object.__setattr__(
                    self, name, tuple(float(weight) for weight in getattr(self, name))
                )
            except (TypeError, ValueError):
                object.__setattr__(self, name, (math.nan,))
        free = (self.location, self.inputs, self.scale, self.calibration)
        fine = all(is_real(w) and 0 < w < math.inf for w in self.stages)
        fine = fine and 1 <= len(self.stages) <= 8
        fine = fine and all(is_real(w) and 0 <= w < math.inf for w in free)
        fine = fine and (self.location > 0 or self.starts_in_public)
        looks = (*self.columns, self.dependence) if self.learns else ()
        fine = fine and all(is_real(w) and 0 < w < math.inf for w in looks) and len(looks) <= 4
        enough = len(self.stages) > 1 and self.scale > 0 and not self.inputs > 0
        fine = fine and (enough or not self.learns) and is_real(self.dependence)
        fine = fine and isinstance(self.mixture, bool)
        fine = fine and (not self.mixture or self.inputs > 0 or self.starts_in_public)
        fine = fine and is_real(self.determinant) and 0 < self.determinant < 0.9
        if not fine or not is_real(self.clip) or not 0.1 <= self.clip <= 100:
            raise ParameterError(
                parameter_message(
                    "BudgetPlan",
                    "weights",
                    "location and 1 to 8 stages above 0, the others >= 0, 0 < determinant < 0.9 and"
                    " 0.1 <= clip <= 100; with columns there must be 1 to 3 of them, dependence and"
                    " scale above 0, at least two stages, and inputs must be 0; mixture needs"
                    " inputs above 0, or a single stage whose scale and calibration are 0, which"
                    " does not need location either",
                    str(self),
                )
            )

    @property
    def learns(self) -> bool:
        """Whether the kernel is learned."""
        return len(self.columns) > 0

    @property
    def starts_in_public(self) -> bool:
        """Whether there is one fit that starts from what is declared, with features for the box."""
        only = self.mixture is True and len(self.stages) == 1 and not self.learns
        return only and not any((self.inputs, self.scale, self.calibration))

    @property
    def adapts(self) -> bool:
        """Whether the features are those of a mixture of kernels."""
        return self.learns or self.mixture

    @classmethod
    def choose(
        cls, signal: float, n_inputs: int, *, learn: bool = False, public_start: bool = False
    ) -> BudgetPlan | None:
        """Return the plan for n mu = ``signal`` and this number of inputs, both public.

        Returns None if the noise would hide even a linear function of this many inputs, because
        then only a private mean can be learned. With ``learn``, the kernel is learned if the signal
        is large enough; with less signal, a mixture of kernels is fitted. With ``public_start``, and
        even less signal, one fit starts from the declared range.
        """
        if public_start and signal < max(_MOST_SINGLE, _LEAST_SINGLE_EACH * n_inputs):
            return cls._single(signal, n_inputs)
        if signal < max(40.0, 1.6 * n_inputs):
            return None
        enough = signal >= max(_LEAST_LEARNING, _LEAST_LEARNING_EACH * n_inputs)
        if learn and enough and n_inputs <= MOST_LEARNING_INPUTS:
            return cls._learning(signal, n_inputs)
        enough = signal >= max(_LEAST_MIXTURE, _LEAST_MIXTURE_EACH * n_inputs)
        if learn and enough and n_inputs <= _MOST_MIXTURE_INPUTS:
            return cls._mixing(signal)
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

    @classmethod
    def _single(cls, signal: float, n_inputs: int) -> BudgetPlan | None:
        if signal < max(_LEAST_SINGLE, _LEAST_SINGLE_EACH * n_inputs):
            return None
        noisy = signal < _MUCH_NOISE
        return cls(
            location=0.25 if noisy else 0.1 if signal < 100 else 0.05,
            inputs=0.0,
            stages=(1.0,),
            scale=0.0,
            calibration=0.0,
            determinant=0.1 if noisy else 0.2,
            clip=0.5,
            mixture=True,
        ).filled()

    @classmethod
    def _mixing(cls, signal: float) -> BudgetPlan:
        several = signal >= 100
        return cls(
            location=0.05,
            inputs=0.1,
            stages=(1.0, 1.2) if several else (1.0,),
            scale=0.0175 if several else 0.0,
            calibration=0.015 if several else 0.0,
            determinant=0.15,
            clip=0.5,
            mixture=True,
        ).filled()

    @classmethod
    def _learning(cls, signal: float, n_inputs: int) -> BudgetPlan:
        location, scale = (0.08, 0.025) if signal < 800 else (0.03, 0.01)
        calibration, first, count = 0.03, 0.15, 3
        rest = 1 - location - 0.06 - scale * count - calibration - first
        later = [1.2**j for j in range(count - 1)]
        return cls(
            location=location,
            inputs=0.0,
            stages=(first, *(weight / sum(later) * rest for weight in later)),
            scale=scale,
            calibration=calibration,
            clip=0.7,
            columns=column_looks(signal, n_inputs),
            dependence=DEPENDENCE,
        )

    def filled(self) -> BudgetPlan:
        """Return the plan with all weights adding up to 1: the stages share what the others leave."""
        others = self.location + self.inputs + self.scale * len(self.stages) + self.calibration
        others += sum(self.columns) + self.dependence
        if not others < 1:
            raise ParameterError(
                parameter_message("BudgetPlan", "weights", "less than 1 without the stages", others)
            )
        total = sum(self.stages)
        stages = tuple(weight / total * (1 - others) for weight in self.stages)
        return replace(self, stages=stages)

    def parts(self) -> dict[str, float]:
        """Return the weight of every release of one target, by its label. They add up to 1."""
        plan = self.filled()
        weights = {f"columns {j}": weight for j, weight in enumerate(plan.columns, 1)}
        weights |= {"dependence": plan.dependence if plan.learns else 0.0}
        weights |= {"location": plan.location, "inputs": plan.inputs}
        for j, weight in enumerate(plan.stages, 1):
            weights[f"stage {j}"] = weight
            weights[f"scale {j}"] = plan.scale
        weights["calibration"] = plan.calibration
        return {label: weight for label, weight in weights.items() if weight > 0}

    def to_dict(self) -> JSON:
        """Return the weights as JSON values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "stages": list(self.stages), "columns": list(self.columns)}
