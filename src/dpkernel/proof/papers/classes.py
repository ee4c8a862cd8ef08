"""Declared classes of a published algorithm whose loss may classify: labels, predictions, score."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags

from dpkernel.data.domain import Level, Levels
from dpkernel.data.labels import label_codes
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.foundations.validation import Real
from dpkernel.models.losses import Loss


class WithClasses(PrivateEstimator):
    """An algorithm with a loss. ``classes`` is used if the loss has labels."""

    loss: str | Loss
    classes: Sequence[Level]

    @abstractmethod
    def _loss(self) -> Loss:
        """Return the loss."""

    @property
    def _labels(self) -> list[Level]:
        """The declared classes as plain values."""
        return [v.item() if isinstance(v, np.generic) else v for v in self.classes]

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        found = super()._check_parameters()
        listed = isinstance(self.classes, (tuple, list, np.ndarray))
        given = self._labels if listed else []
        texts = all(isinstance(v, str) for v in given)
        numbers = all(isinstance(v, bool) or Real().holds(v) for v in given)
        fine = (texts or numbers) and len(given) == 2 and given[0] != given[1]
        if self._loss().labels and not fine:
            raise ParameterError(
                parameter_message(
                    type(self).__name__,
                    "classes",
                    "a pair (negative, positive) of two different texts or two different numbers",
                    type(self.classes).__name__,
                    "Declare both, because labels are not read from the data.",
                )
            )
        return found

    def _encoding(self) -> Callable[[Any], Array] | None:
        """Return what turns labels into -1 and 1, or None if targets are numbers."""
        if not self._loss().labels:
            return None
        return lambda found: 2 * label_codes(found, Levels(tuple(self._labels))) - 1

    def _set_classes(self) -> None:
        if self._loss().labels:
            self.classes_ = np.array(self._labels)

    def _predictions(self, scores: Array) -> Array:
        """Return the class by the sign of every score, or the scores if the loss regresses."""
        if not self._loss().labels:
            return scores
        return np.asarray(self.classes_[(scores >= 0).astype(np.int64)])


class ClassPredictor(WithClasses):
    """An algorithm that can predict at new points, and so has a score."""

    @abstractmethod
    def predict(self, X: Any) -> Array:
        """Return the class or the number at every row."""

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
