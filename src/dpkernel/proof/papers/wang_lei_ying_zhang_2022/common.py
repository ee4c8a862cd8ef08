"""The base class of both algorithms: a loss with Hölder constants, declared classes, a radius."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags

from dpkernel.data.domain import Level, Levels
from dpkernel.data.labels import label_codes
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Kind, Real
from dpkernel.models.features import FeatureMap
from dpkernel.models.losses import REGISTRY, Loss
from dpkernel.proof.papers.sgd import PublishedSGD
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.constants import HolderConstants


class HolderSGD(PublishedSGD):
    """Base class of both algorithms: a loss with known constants, classes, a radius."""

    _constraints: ClassVar = {
        **PublishedSGD._constraints,
        "features": (Choice("linear"), Kind(FeatureMap)),
        "radius": (Choice(None), Real(1e-100, 1e100)),
    }
    _paper: ClassVar[str] = "Wang, Lei, Ying & Zhang (2022)"

    loss: str | Loss
    classes: Sequence[Level]
    radius: float | None

    def fit(self, X: Any, y: Any) -> Any:
        """Run the algorithm on (X, y), and return the estimator."""
        super().fit(X, y)
        if self._loss().labels:
            self.classes_ = np.array(self._labels)
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

    @property
    def _labels(self) -> tuple[Level, ...]:
        """The declared classes as plain values."""
        return tuple(v.item() if isinstance(v, np.generic) else v for v in self.classes)

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        loss = self._loss()
        if loss.labels:
            listed = isinstance(self.classes, (tuple, list, np.ndarray))
            found = self._labels if listed else ()
            texts = all(isinstance(v, str) for v in found)
            numbers = all(isinstance(v, bool) or Real().holds(v) for v in found)
            if not (texts or numbers) or len(found) != 2 or found[0] == found[1]:
                allowed = "a pair (negative, positive) of two different texts or two numbers"
                advice = "Declare both, because labels are not read from the data."
                raise self._refused("classes", allowed, type(self.classes).__name__, advice)
        return super()._check_parameters()

    def _encoding(self) -> Callable[[Any], Array] | None:
        if not self._loss().labels:
            return None
        return lambda found: 2 * label_codes(found, Levels(self._labels)) - 1

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
            "classes": list(self._labels) if loss.labels else None,
            "features": features,
            "printed": asdict(printed),
        }

    def predict(self, X: Any) -> Array:
        """Return the declared class by the sign of <w, phi(x)>, or <w, phi(x)> for a regression."""
        scores = self.decision_function(X)
        if not self._loss().labels:
            return scores
        return np.asarray(self.classes_[(scores >= 0).astype(np.int64)])

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy for a loss that classifies, or R^2 for one that regresses."""
        measure = accuracy_score if self._loss().labels else r2_score
        return float(measure(y, self.predict(X)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        if self._loss().labels:
            tags.estimator_type = "classifier"
            tags.classifier_tags = ClassifierTags(multi_class=False)
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        return tags
