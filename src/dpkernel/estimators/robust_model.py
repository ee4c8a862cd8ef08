"""Regression with a loss of bounded slope: bounded targets, and one fit for several losses."""

from __future__ import annotations

from typing import Any, ClassVar

from dpkernel.data.declared import interval_of
from dpkernel.data.domain import Domain, Interval, Intervals
from dpkernel.data.sources import Source, open_source
from dpkernel.estimators.kernel_model import NumberModel
from dpkernel.estimators.objective_model import ObjectiveModel, Problems, Task
from dpkernel.estimators.records import NUMBER_SIGNAL, UnitTarget, unit_targets
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON


class RobustModel(NumberModel, ObjectiveModel):
    """Base class of the regressors here: bounded targets, and one fit for several losses."""

    _in_units: ClassVar[
        tuple[str, ...]
    ] = ()  # parameters of the loss that users state in units of y
    l1: float = 0.0
    norm: float = 2.0

    def _open_table(self, X: Any, y: Any) -> Source:
        self._problems()  # refuses bad parameters before it looks at the data
        return open_source(self, X, y, again=True, several=self._single)

    def _problems(self, target_shape: tuple[int, ...] = ()) -> Problems:
        target = interval_of(self.y_bounds, self.bounds, type(self).__name__)
        views = unit_targets(target, target_shape)
        tasks = [task for view in views for task in self._tasks(view)]
        if len(views) > 1 and len({loss for _, loss, _ in tasks}) > 1:
            tasks = [(f"{name}, target {j}", *rest) for j, (name, *rest) in enumerate(tasks, 1)]  # type: ignore[misc]
        return Problems(
            target,
            tuple(tasks),
            signal=NUMBER_SIGNAL,
            solver=self.solver,
            ridge=self._ridge,
            accept=tuple(self.accept),
            single=self._single and not target_shape,
            l1=float(self.l1),
            norm=float(self.norm),
        )

    @property
    def _single(self) -> bool:
        """Whether there is one problem per target."""
        return True

    def _tasks(self, view: UnitTarget) -> list[Task]:
        """Return the problems of one target."""
        raise NotImplementedError

    def _in_units_of(self, name: str, auto: float, target: Interval) -> float:
        """Convert the parameter ``name`` from units of y to units of half the declared range."""
        given = getattr(self, name)
        scaled = 2 * auto if given == "auto" else float(given) / target.half_width
        if not 1e-6 <= scaled <= 1e6:
            allowed = "'auto', or between 1e-6 and 1e6 times half the declared range of y"
            raise ParameterError(parameter_message(type(self).__name__, name, allowed, given))
        return scaled

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        assert isinstance(domain.target, Interval)
        found = super()._saved_parameters(header, domain)
        losses = header["certificate"]["public"].get("losses")
        if losses is None or isinstance(domain.target, Intervals):
            return found  # the file has what was given
        half = domain.target.half_width
        return {**found, **{name: losses[0][name] * half for name in cls._in_units}}
