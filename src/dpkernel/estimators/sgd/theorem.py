"""The schedule of a theorem for the numbers of one fit, and how the fit differs from the theorem."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any

from dpkernel.estimators.records import ROW_BOUND
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Budget
from dpkernel.foundations.validation import is_auto
from dpkernel.models.features import FeatureMap, FourierFeatures
from dpkernel.models.kernels import ShiftInvariant, resolve_kernel
from dpkernel.models.losses import Loss, Squared
from dpkernel.solvers.erm_schedules import MOST_FEATURES
from dpkernel.solvers.sgd_presets import PRESETS, Preset, preset

_RECORDS = (
    "rows are centred, scaled to a mean square of 1 under the uniform law on the declared box and"
    " joined with a constant, so that the model has an intercept; rows that are longer than 1 get a"
    " weight below 1"
)


@dataclass(frozen=True)
class Theorem:
    """A preset of an SGD estimator, and everything in which a fit differs from its theorem.

    Parameters
    ----------
    model : SGDModel
        The estimator, whose parameters are public.
    loss : Loss
    budget : Budget
    n_rows : int
    """

    model: Any
    loss: Loss
    budget: Budget
    n_rows: int

    @property
    def _own(self) -> bool:
        """Whether the user passed a schedule instead of a name."""
        return isinstance(self.model.preset, Preset)

    def schedule(self, dimension: int) -> Preset:
        """Return the schedule for this number of coefficients."""
        model = self.model
        found: Any = model.preset
        if not self._own:
            alpha, L = self.loss.holder(ROW_BOUND)
            numbers: dict[str, Any] = {
                "n_rows": self.n_rows,
                "kappa": ROW_BOUND,
                "dimension": dimension,
                "epsilon": self.budget.epsilon,
                "delta": self.budget.delta,
                "alpha": alpha,
                "L": L,
                "radius": model.radius or 1.0,
                "r": float(model.r),
                "capacity": float(model.capacity),
            }
            wanted = signature(PRESETS[found]).parameters
            found = preset(found, **{k: v for k, v in numbers.items() if k in wanted})
        if found.perturbs != model.perturbation:
            allowed = f"{found.perturbs!r} for the preset {found.name!r}"
            raise ParameterError(
                parameter_message(type(model).__name__, "perturbation", allowed, model.perturbation)
            )
        assert isinstance(found, Preset)
        return found

    def size(self, otherwise: int) -> int:
        """Return the theorem's number M of features; it is even, and at most ``MOST_FEATURES``."""
        wanted = self.schedule(otherwise).n_features
        if wanted is None:
            return otherwise
        return min(max(wanted + wanted % 2, 2), MOST_FEATURES)

    @property
    def features(self) -> Any:
        """The features for "auto": random ones if the theorem is about them and the kernel has some."""
        given = self.model.features
        if not is_auto(given) or self.schedule(1).n_features is None:
            return given
        kernel = resolve_kernel("gaussian" if is_auto(self.model.kernel) else self.model.kernel)
        return "fourier" if isinstance(kernel, ShiftInvariant) else given

    def differences(self, features: FeatureMap) -> list[str]:
        """Return one sentence for everything in which the fit is not that of the theorem."""
        found = self.schedule(features.n_outputs + 1)
        notes = [*found.notes, _RECORDS]
        if found.n_features is not None:
            notes += self._other_features(found.n_features, features)
            if not isinstance(self.loss, Squared):
                notes.append(f"the loss is {self.loss.kind}; the theorem is about the squared loss")
        batch = self.model.batch_size
        if not is_auto(batch) and int(batch) > 1:
            notes.append(f"a step takes {int(batch)} rows; the theorem takes one")
        if found.radius is not None and self.model.radius is None and not self._own:
            notes.append("no radius was given, so it is 1; the theorem leaves it open")
        if found.perturbs == "gradient":
            notes.append(
                "gradients are clipped to 'clip'; the theorem bounds them by M + L R^alpha instead"
            )
        return notes

    @staticmethod
    def _other_features(wanted: int, features: FeatureMap) -> list[str]:
        notes, taken = [], features.n_outputs
        if not isinstance(features, FourierFeatures):
            notes.append(f"features are of kind {features.kind}; the theorem is about random ones")
        if taken == wanted + wanted % 2:
            if wanted % 2:
                notes.append(f"M = {wanted} became {taken}, because Fourier features come in pairs")
        elif taken == MOST_FEATURES < wanted:
            notes.append(f"M = {wanted} was cut to {taken}, the most features of an estimator")
        else:
            notes.append(f"there are {taken} features; the theorem asks for M = {wanted}")
        return notes
