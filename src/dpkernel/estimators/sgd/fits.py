"""A planned run of SGD on a table. It is prepared before the spend and released after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from dpkernel.estimators.progress import counted
from dpkernel.estimators.records import Targets
from dpkernel.estimators.sgd.plan import SGDSetting, plan_gradient, plan_output
from dpkernel.estimators.sgd.table import RecordTable, sum_gradients
from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import JSON, Array, IntArray
from dpkernel.privacy.mechanisms import Gaussian, MixtureGaussian, SampledGaussian
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.solvers.sgd_gradient import Query
from dpkernel.solvers.sgd_output import OutputSGD, Part, public_orders


class OutputFit:
    """SGD with noise on its output."""

    label = "coefficients"
    draws = 1

    def __init__(
        self,
        setting: SGDSetting,
        table: RecordTable,
        tasks: list[Targets],
        random_state: int | None,
        verbose: bool,
    ) -> None:
        self.plan, self.mechanism = plan_output(setting)
        self._table, self._tasks = table, tasks
        self._seed, self._verbose = int(random_state or 0), verbose
        self._value: Array | None = None

    def prepare(self) -> None:
        """Make the records, and run if the order is public. A failure here costs nothing."""
        self._table.prepare()
        if not isinstance(self.mechanism, MixtureGaussian):
            self._value = self._output(None)

    def release(self, noise: Noise) -> Array:
        """Return the noisy coefficients, one row per problem, inside the ball if there is one."""
        if isinstance(self.mechanism, MixtureGaussian):
            found = self.mechanism.release(self._output, noise)
        else:
            assert self._value is not None
            found = self.mechanism.release(self._value, noise)
        found = np.asarray(found).reshape(len(self._tasks), -1)
        norms = np.sqrt(np.sum(found * found, axis=1, keepdims=True))
        return np.asarray(found * np.minimum(1.0, self.plan.radius / np.maximum(norms, 1e-300)))

    def _output(self, source: NoiseSource | None) -> Array:
        orders = self._orders(source)
        total = self.plan.n_steps * len(self._tasks)
        with counted("SGD", total, verbose=self._verbose) as told:
            found = []
            for number, task in enumerate(self._tasks):
                tell = partial(_tell, told, number * self.plan.n_steps)
                found.append(self.plan.run(self._passes(orders, task), tell))
        return np.concatenate(found)

    def _passes(
        self, orders: Callable[[], Iterator[IntArray | None]], task: Targets
    ) -> Iterator[Iterator[Part]]:
        return (self._table.parts(order, task) for order in orders())

    def _orders(self, source: NoiseSource | None) -> Callable[[], Iterator[IntArray | None]]:
        """Return a function that yields the order of every epoch, the same at each call.

        If the guarantee relies on a secret order, the order is drawn from the noise source.
        Otherwise it is public.
        """
        plan = self.plan
        if plan.order == "fixed":
            return lambda: iter([None] * plan.epochs)
        if plan.order == "replacement":
            assert source is not None
            drawn = _batches(plan, source)
            return lambda: iter([drawn])
        if source is not None:
            secret = [source.permutation(plan.n_rows) for _ in range(plan.epochs)]
            return lambda: iter(secret)

        return lambda: public_orders(plan, self._seed)

    def scheme(self) -> JSON:
        """Return what the certificate states about the run."""
        path, plan = self.plan.path, self.plan
        return {
            "perturbation": "output",
            "sampling": plan.order,
            "batch": plan.batch,
            "steps": plan.n_steps,
            "most_hits": path.hits if plan.order != "replacement" else None,
            "step": plan.eta,
            "decreasing_steps": plan.decreasing,
            "ridge": plan.ridge,
            "radius": None if plan.radius == math.inf else plan.radius,
            "averaged": plan.averaged,
            "gradient_bound": plan.gradient,
            "sensitivity": self.mechanism.sensitivity.value,
            "sigma": self.mechanism.noise_scale,
        }


class GradientFit:
    """Gradient descent with noise on every step."""

    label = "gradient"

    def __init__(
        self,
        setting: SGDSetting,
        table: RecordTable,
        tasks: list[Targets],
        random_state: int | None,
        verbose: bool,
    ) -> None:
        self.plan, self.mechanism = plan_gradient(setting)
        self.draws = self.plan.n_steps
        self._integers = table.integers(self.plan, tasks)
        kept = all(table.keeps for table in self._integers)
        if isinstance(self.mechanism, SampledGaussian) and not kept:  # a device may have less room
            raise no_random_batches(setting.owner)
        self._verbose = verbose

    def prepare(self) -> None:
        """Make the records."""
        for table in self._integers:
            table.prepare()

    def release(self, noise: Noise) -> Array:
        """Return the coefficients, one row per problem."""
        mechanism = self.mechanism

        def query(w: Array) -> Query:
            return lambda rows: sum_gradients(self._integers, self.plan, w, rows)

        def step(sums: Query) -> Array:
            if isinstance(mechanism, SampledGaussian):
                return np.asarray(mechanism.release(sums, noise))
            return mechanism.release(sums(None), noise)  # type: ignore[arg-type]

        with counted("SGD", self.plan.n_steps, verbose=self._verbose) as told:
            return self.plan.run(query, step, told)

    def scheme(self) -> JSON:
        """Return what the certificate states about the run."""
        plan, mechanism = self.plan, self.mechanism
        full = isinstance(mechanism, Gaussian)
        unit = plan.row_unit * plan.slope_unit
        return {
            "perturbation": "gradient",
            "sampling": "full" if full else _named(mechanism.sampling),  # type: ignore[union-attr]
            "batch": plan.batch,
            "steps": plan.n_steps,
            "step": plan.step,
            "ridge": plan.ridge,
            "radius": None if plan.radius == math.inf else plan.radius,
            "averaged": plan.averaged,
            "clip": plan.clip,
            "momentum": plan.momentum,
            "sensitivity": mechanism.sensitivity.value / unit,
            "sigma": mechanism.noise_scale / unit,
        }


def no_random_batches(owner: str) -> ParameterError:
    """Return the error of a fit with random batches of records that can't be kept."""
    return ParameterError(
        f"{owner} needs features that fit in memory for random batches. Leave 'batch_size' at 'auto', or"
        " take fewer features."
    )


def _named(sampling: str) -> str:
    """Return the name that estimators use for a kind of sampling of the mechanism."""
    return "uniform" if sampling == "fixed" else sampling


def _batches(plan: OutputSGD, source: NoiseSource) -> IntArray:
    """Return fresh uniform batches, one after the other."""
    if plan.batch == 1:
        return source.uniform_indices(plan.n_rows, plan.n_steps)
    return np.concatenate([source.subset(plan.n_rows, plan.batch) for _ in range(plan.n_steps)])


def _tell(told: Callable[[int], None], before: int, steps: int) -> None:
    told(before + steps)
