"""The base class of the two SGD estimators: from parameters to a run, its noise and certificate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dpkernel.data.domain import Domain, Interval, Levels
from dpkernel.data.people import People, open_slots
from dpkernel.data.sources import Source
from dpkernel.estimators.base import FitPlan, Fitted, logger
from dpkernel.estimators.feature_choice import size_for_records
from dpkernel.estimators.kernel_model import KernelModel, linear_model, public_sizes
from dpkernel.estimators.loss_choice import named_loss
from dpkernel.estimators.opening import Order
from dpkernel.estimators.records import ROW_BOUND, RecordRecipe, Targets
from dpkernel.estimators.sgd.fits import GradientFit, OutputFit, no_random_batches
from dpkernel.estimators.sgd.plan import SGDSetting
from dpkernel.estimators.sgd.table import RecordTable
from dpkernel.estimators.sgd.theorem import Theorem
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Constraint, Kind, Real, Whole
from dpkernel.models.losses import Loss, loss_from_dict
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.noise import Noise
from dpkernel.solvers.sgd_presets import PRESETS, Preset

_OUTPUT_ORDERS = ("auto", "shuffle", "fixed", "replacement")
_GRADIENT_ORDERS = ("auto", "uniform", "poisson")


class SGDModel(KernelModel):
    """Base class of private SGD on a public feature map, with noise on the output or on gradients."""

    _constraints: ClassVar[Mapping[str, Constraint | tuple[Constraint, ...]]] = {
        **{k: v for k, v in KernelModel._constraints.items() if k != "regularisation"},
        "epsilon": Real(1e-100, 1e10),
        "delta": Real(0, 1, closed_low=True),
        "perturbation": Choice("output", "gradient"),
        "preset": (Choice(None), Choice(*PRESETS), Kind(Preset)),
        "r": Real(0.5, 1, closed_high=True),
        "capacity": Real(0, 1),
        "max_iter": (Choice("auto"), Whole(1, 10**6)),
        "batch_size": (Choice("auto"), Whole(1)),
        "sampling": Choice(*dict.fromkeys((*_OUTPUT_ORDERS, *_GRADIENT_ORDERS))),
        "eta0": (Choice("auto"), Real(0, math.inf)),
        "alpha": (Choice("auto"), Real(0, math.inf, closed_low=True)),
        "radius": (Choice(None), Real(0, math.inf)),
        "clip": (Choice("auto"), Real(0, math.inf)),
        "momentum": (Choice("auto"), Real(0, 1, closed_low=True)),
        "average": Choice(False, True),
        "accept": Kind(tuple, list, set, frozenset),
    }

    _places = True
    loss: Any
    perturbation: str
    preset: Any
    r: float
    capacity: float
    max_iter: int | str
    batch_size: int | str
    sampling: str
    eta0: float | str
    alpha: float | str
    radius: float | None
    clip: float | str
    momentum: float | str
    average: bool
    accept: Any
    verbose: bool

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        budget, relation = super()._check_parameters()
        allowed = _OUTPUT_ORDERS if self.perturbation == "output" else _GRADIENT_ORDERS
        if self.sampling not in allowed:
            names = "one of " + ", ".join(repr(name) for name in allowed)
            message = f"{names} with perturbation={self.perturbation!r}"
            raise ParameterError(
                parameter_message(type(self).__name__, "sampling", message, self.sampling)
            )
        return budget, relation

    def _open_people(self, X: Any, y: Any, people: People, order: Order) -> tuple[Any, str]:
        if people.record != "all":
            return super()._open_people(X, y, people, order)
        if self.perturbation != "gradient":
            raise ParameterError(
                "People(ids, record='all') needs perturbation='gradient': the mean gradient of a person"
                " is short, and noise on gradients needs no more. Use record='near' or record='one' with"
                " perturbation='output'."
            )
        return open_slots(self, X, y, people.ids, order), "mean gradient"

    @property
    def n_iter_(self) -> int:
        """The number of passes over the data, rounded up. It is public: no run stops early."""
        public = self.certificate_.public
        records = public["scheme"]["steps"] * public["scheme"]["batch"]
        return int(max(1, math.ceil(records / self.certificate_.n_records)))

    @property
    def partial_fit(self) -> Any:
        """Raise, because each further call would pay again for the rows of earlier calls."""
        raise AttributeError(
            f"{type(self).__name__} has no partial_fit: every call would release a model that"
            " depends on all rows so far, and pay for them again. Fit a BlockStream in one call, or"
            " fit disjoint sets of rows by themselves under ledger.part(name), which costs the"
            " largest of them."
        )

    def _loss_named(self, labels: bool) -> Loss:
        """Return the loss: a registered one by name, or an object that the user passed."""
        return named_loss(type(self).__name__, self.loss, labels=labels, make=self._default)

    def _default(self, cls: type[Loss]) -> Loss:
        """Return a loss of this class with parameters that suit this estimator."""
        return cls()

    def _problem(self, target_shape: tuple[int, ...] = ()) -> SGDProblem:
        """Return what is minimised, for targets of this shape."""
        raise NotImplementedError

    def _make_plan(self, table: Source, budget: Budget, relation: Neighbours) -> FitPlan:
        problem, n = self._problem(table.target_shape), table.n_rows
        domain = self._resolve_domain(table, problem.target)
        n_inputs = table.n_columns if domain.columns is None else domain.n_unit_columns
        size = size_for_records(n, n_inputs, budget)
        preset, notes, wanted = None, [], self.features
        theorem = None if self.preset is None else Theorem(self, problem.loss, budget, n)
        if theorem is not None:
            size, wanted = theorem.size(size), theorem.features
        features = self._choose_features(domain, table, size, wanted)
        if theorem is not None:
            preset = theorem.schedule(features.n_outputs + 1)
            notes = theorem.differences(features)
        recipe, powers = RecordRecipe.choose(domain, features, n, ROW_BOUND)
        records = RecordTable(table, recipe)
        setting = self._setting(table, budget, relation, powers, problem, preset)
        if not (records.any_order if self.perturbation == "output" else records.kept):
            setting = _as_they_come(setting, self.perturbation, type(self).__name__)
        run = OutputFit if self.perturbation == "output" else GradientFit
        fit = run(setting, records, list(problem.tasks), self.random_state, self.verbose)
        return SGDPlan(fit, table, domain, recipe, records, problem, preset, notes)

    def _setting(
        self,
        source: Source,
        budget: Budget,
        relation: Neighbours,
        powers: Array,
        problem: SGDProblem,
        preset: Preset | None,
    ) -> SGDSetting:
        def given(name: str, kind: Callable[[Any], Any] = float) -> Any:
            value = getattr(self, name)
            return None if isinstance(value, str) else kind(value)

        batch = given("batch_size", int)
        if batch is not None and batch > source.n_rows:
            allowed = f"at most the number of rows, {source.n_rows}"
            raise ParameterError(
                parameter_message(type(self).__name__, "batch_size", allowed, batch)
            )
        values: dict[str, Any] = {
            "epochs": given("max_iter", int),
            "batch": batch,
            "step": given("eta0"),
            "ridge": given("alpha"),
            "clip": given("clip"),
            "momentum": given("momentum"),
            "radius": math.inf if self.radius is None else float(self.radius),
            "averaged": bool(self.average),
            "sampling": self.sampling,
        }
        if preset is not None:
            values |= {
                "steps": preset.n_steps,
                "step": preset.step,
                "ridge": 0.0,
                "radius": math.inf if preset.radius is None else preset.radius,
                "averaged": preset.average,
            }
            if self.perturbation == "output":
                values["sampling"] = preset.order
            else:
                values |= {"batch": batch or 1, "momentum": 0.0}
        return SGDSetting(
            type(self).__name__,
            budget,
            relation,
            source.n_rows,
            powers,
            problem.signal,
            problem.loss,
            len(problem.tasks),
            accept=tuple(self.accept),
            **values,
        )

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        public = header["certificate"]["public"]
        scheme = public["scheme"]
        return {
            "accept": tuple(header["certificate"]["assumptions"]),
            "loss": loss_from_dict(public["loss"]),
            "perturbation": scheme["perturbation"],
            "sampling": "auto" if scheme["sampling"] == "full" else scheme["sampling"],
            "radius": scheme["radius"],
            "average": scheme["averaged"],
            **_read_preset(header.get("preset")),
        }

    def _to_state(self) -> tuple[JSON, dict[str, Array]]:
        header, arrays = super()._to_state()
        own = asdict(self.preset) if isinstance(self.preset, Preset) else None
        return {**header, "preset": own}, arrays


@dataclass(frozen=True)
class SGDProblem:
    """What SGD minimises: one loss, for each of several views of the targets.

    ``signal`` is the variance that we assume for a good prediction. ``single`` is True if ``coef_``
    is a vector.
    """

    target: Interval | Levels
    loss: Loss
    tasks: tuple[Targets, ...]
    signal: float
    single: bool


class SGDPlan(FitPlan):
    """One run of SGD on a table."""

    def __init__(
        self,
        fit: OutputFit | GradientFit,
        source: Source,
        domain: Domain,
        recipe: RecordRecipe,
        records: RecordTable,
        problem: SGDProblem,
        preset: Preset | None,
        notes: list[str],
    ) -> None:
        self.releases = [Release(fit.label, fit.mechanism, fit.draws)]
        self._fit, self._source, self._domain = fit, source, domain
        self._recipe, self._records = recipe, records
        self._problem, self._preset, self._notes = problem, preset, notes

    def prepare(self) -> None:
        """Make the records."""
        logger.info("%d step(s) on %d rows", self._fit.plan.n_steps, self._source.n_rows)
        self._fit.prepare()

    def pinned(self) -> Any:
        """Return the schedule, which depends on whether rows can be read by their numbers."""
        return self._fit.scheme()

    def run(self, noise: Noise) -> Fitted:
        """Take the steps."""
        self._records.spent = True
        found = [self._recipe.coefficients(beta) for beta in self._fit.release(noise)]
        coef = np.column_stack([coefficients for coefficients, _ in found])
        intercept = np.array([b for _, b in found])
        single, features = self._problem.single, self._recipe.features
        return Fitted(
            linear_model(self._domain, features, coef, intercept, several=not single),
            {
                **public_sizes(self._source, self._domain, features),
                "loss": self._problem.loss.to_dict(),
                "scheme": self._fit.scheme(),
                "preset": None if self._preset is None else self._preset.name,
                **({"preset_differs": self._notes} if self._notes else {}),
            },
        )


def _read_preset(data: JSON | None) -> dict[str, Any]:
    """Return the user's own schedule. One given by name is stored with the other parameters."""
    return {} if data is None else {"preset": Preset(**{**data, "notes": tuple(data["notes"])})}


def _as_they_come(setting: SGDSetting, perturbation: str, owner: str) -> SGDSetting:
    """Return the setting for a table that can only be read from the first row to the last."""
    whole = (setting.batch or setting.n_rows) == setting.n_rows
    if perturbation == "gradient" and (not whole or setting.sampling == "poisson"):
        raise no_random_batches(owner)
    if perturbation == "output" and setting.sampling not in ("auto", "fixed"):
        raise ParameterError(
            f"{owner} can't take the rows of this table in random order: it is not an array, and its"
            " features do not fit in memory. Leave 'sampling' at 'auto', take fewer features, or pass"
            " an array or a memory map."
        )
    return replace(setting, sampling="fixed") if perturbation == "output" else setting
