"""The base class of both algorithms: a loss with Hölder constants, declared classes, a radius."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from dpkernel.foundations.types import Array
from dpkernel.foundations.validation import Choice, Kind, Real
from dpkernel.models.features import FeatureMap
from dpkernel.models.losses import REGISTRY, Loss
from dpkernel.proof.papers.classes import ClassPredictor
from dpkernel.proof.papers.sgd import PublishedSGD
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.constants import HolderConstants


class HolderSGD(ClassPredictor, PublishedSGD):
    """Base class of both algorithms: a loss with known constants, classes, a radius."""

    _constraints: ClassVar = {
        **PublishedSGD._constraints,
        "features": (Choice("linear"), Kind(FeatureMap)),
        "radius": (Choice(None), Real(1e-100, 1e100)),
    }
    _paper: ClassVar[str] = "Wang, Lei, Ying & Zhang (2022)"

    radius: float | None

    def fit(self, X: Any, y: Any) -> Any:
        """Run the algorithm on (X, y), and return the estimator."""
        super().fit(X, y)
        self._set_classes()
        return self

    def _loss(self) -> Loss:
        loss = self.loss
        if isinstance(loss, str) and loss in REGISTRY:
            return REGISTRY[loss]()
        if not isinstance(loss, Loss) or type(loss) not in REGISTRY.values():
            names = ", ".join(repr(name) for name in REGISTRY)
            got = loss if isinstance(loss, str) else type(loss).__name__
            advice = "Proofs use the constants of a loss, and those of other losses are not known."
            raise self._refused("loss", f"one of {names}, or one of these losses", got, advice)
        return loss

    def _constants(self, kappa: float) -> HolderConstants:
        return HolderConstants.of(self._loss(), kappa=kappa, target_bound=self._bound)

    def _check_theorem_7(self, constants: HolderConstants) -> None:
        self._check_step(min(1.0, 1 / constants.L), "min(1, 1/L) for the loss and features in use")

    def _public(self, n_rows: int, n_steps: int, features: FeatureMap, printed: Any) -> Any:
        loss = self._loss()
        return {
            "n_rows": n_rows,
            "n_steps": n_steps,
            "radius": None if self.radius is None else float(self.radius),
            "loss": loss.to_dict(),
            "classes": self._labels if loss.labels else None,
            "features": features,
            "printed": asdict(printed),
        }

    def predict(self, X: Any) -> Array:
        """Return the declared class by the sign of <w, phi(x)>, or <w, phi(x)> for a regression."""
        return self._predictions(self.decision_function(X))
