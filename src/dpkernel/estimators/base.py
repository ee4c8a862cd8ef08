"""The one fit that every private estimator shares, from rows to a certified model.

``PrivateEstimator._fit`` is this fit. An estimator says which table it reads (``_open_table``), what it
plans (``_make_plan``) and how the plan runs (its ``FitPlan``); it never says when. CONTRIBUTING.md lists
the conventions, and ``tests/test_estimator_contract.py`` checks them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from sklearn.base import clone

from dpkernel.estimators.opening import Opened, TableOpener
from dpkernel.estimators.rehearsal import rehearsed
from dpkernel.estimators.resuming import Beside, journal_of, recognise, spend_once
from dpkernel.estimators.surroundings import CountedClones, count_fit
from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.foundations.validation import Constraint, check_parameters
from dpkernel.privacy.certificate import Certificate, Release
from dpkernel.privacy.ledger import OF_PEOPLE, Ledger
from dpkernel.privacy.noise import Noise, NoiseSource, Part, Plan, SeededNoise
from dpkernel.privacy.resume import ResumeFile

logger = logging.getLogger("dpkernel")


@dataclass(frozen=True)
class Fitted:
    """The result of a fit.

    Parameters
    ----------
    attributes : mapping
        The new attributes of the estimator, by name.
    public, free_statistics, reference
        What the certificate states in addition to the releases; see ``Certificate.issue``.
    """

    attributes: Mapping[str, Any]
    public: Mapping[str, Any]
    free_statistics: Mapping[str, Any] = field(default_factory=dict)
    reference: str = ""


class FitPlan(ABC):
    """What one fit will release, and how.

    A plan is made from public numbers, before any row is read.
    """

    releases: Sequence[Release]

    def prepare(self) -> None:  # noqa: B027 (a plan may have nothing to prepare)
        """Do all work that needs no noise. A table that fails here has cost nothing."""

    def pinned(self) -> Any:
        """Return public choices, as JSON values, without which a resumed fit would be another one."""
        return None

    @abstractmethod
    def run(self, noise: Noise) -> Fitted:
        """Draw every release and build the model. The budget has been spent by now."""


class PrivateEstimator(TableOpener, CountedClones):
    """Base class of private estimators: the one fit, and what it asks of an estimator."""

    _constraints: ClassVar[Mapping[str, Constraint | tuple[Constraint, ...]]] = {}

    epsilon: float
    delta: float
    neighbours: Any
    ledger: Ledger | None
    noise: NoiseSource | None
    certificate_: Certificate
    _beside: Beside | None = None  # another release that the fit that is running makes

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        """Return the requested budget and the neighbouring relation, after checking all parameters."""
        check_parameters(type(self).__name__, self.get_params(deep=False), self._constraints)
        relation = Neighbours.resolve(self.neighbours)
        if not relation.n_is_public:
            self._check_places()
        return Budget(self.epsilon, self.delta), relation

    def _make_plan(self, table: Any, budget: Budget, relation: Neighbours) -> FitPlan:
        """Return the plan for a table of these public sizes. No row is read."""
        raise NotImplementedError

    def _adopt(self, found: Fitted, certificate: Certificate) -> None:
        """Take over the result of a fit."""
        for name, value in found.attributes.items():
            setattr(self, name, value)
        self.certificate_ = certificate

    # --- the one fit ------------------------------------------------------------------------------

    def _fit(
        self,
        X: Any,
        y: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        resume: Any = None,
    ) -> Self:
        """Check parameters, open the table, plan, ask the ledger, prepare, spend, run, certify.

        A release beside the fit is left out if it is calibrated for other records than those of the fit,
        or if their number is private.
        """
        beside = self._beside
        budget, relation = self._check_parameters()
        with nullcontext() if resume is None else journal_of(self, resume) as journal:
            order = self.noise if journal is None else journal.order()  # a resumed fit has the same
            opened = self._opened(X, y, groups, sample_weight, relation, order)
            if opened.in_places or (beside is not None and beside.of_people != opened.people):
                beside = None
            if journal is not None:
                recognise(journal, X, opened.table, beside)

            def make(smaller: Budget) -> FitPlan:
                return self._make_plan(opened.table, smaller, relation)

            plan = make(budget) if beside is None else beside.joined(make, budget, relation)
            self._finish(opened, plan, budget, journal)
        return self

    def _finish(
        self, opened: Opened, plan: FitPlan, budget: Budget, journal: ResumeFile | None = None
    ) -> None:
        """Carry out a plan and take over its result."""
        found, certificate = self._carry_out(opened, plan, budget, journal=journal)
        opened.table.columns.set_on(self)
        self._adopt(found, certificate)

    def _carry_out(
        self,
        opened: Opened,
        plan: FitPlan,
        budget: Budget,
        *,
        subject: str = "",
        journal: ResumeFile | None = None,
    ) -> tuple[Fitted, Certificate]:
        """Pay for a plan and run it. This is the only place where an estimator spends."""
        label = type(self).__name__ + (OF_PEOPLE if opened.record else "")
        if self.ledger is not None and (journal is None or not journal.paid):
            ledger, asked, relation = self._spending(plan.releases)
            ledger.check(asked, label, claim=budget, neighbours=relation)  # before a long pass
        plan.prepare()
        if journal is not None:
            journal.pinned = plan.pinned()
        noise = self._spend(plan.releases, budget, label, journal)
        found = plan.run(noise)
        certificate = Certificate.issue(
            subject or type(self).__name__,
            budget,
            plan.releases,
            noise,
            public=opened.stated(found.public),
            free_statistics=found.free_statistics,
            reference=found.reference,
        )
        return found, certificate

    def _fit_beside(
        self, X: Any, y: Any, beside: Beside, groups: Any = None, resume: Any = None
    ) -> Self:
        """Fit, and make another release beside the fit, within the same budget and spend.

        The other release must be about the records of the fit: people with ``groups``, else rows.
        """
        self._beside = beside
        try:
            self.fit(X, y, groups, **({} if resume is None else {"resume": resume}))
        finally:
            del self._beside
        return self

    # --- the ledger -------------------------------------------------------------------------------

    def _spending(self, releases: Sequence[Release]) -> tuple[Ledger, Plan, Neighbours]:
        """Return the ledger, what the releases ask of it, and the relation that they protect."""
        parts = tuple(Part(r.label, r.mechanism.profile(), r.draws, r.folds) for r in releases)
        relation: Neighbours = releases[0].mechanism.sensitivity.neighbours
        ledger = Ledger(neighbours=relation) if self.ledger is None else self.ledger
        return ledger, Plan(parts), relation

    def _spend(
        self,
        releases: Sequence[Release],
        request: Budget,
        label: str = "",
        journal: ResumeFile | None = None,
    ) -> Noise:
        """Reserve every release of this fit in one atomic spend."""
        count_fit(self)
        ledger, plan, relation = self._spending(releases)
        name, about = label or type(self).__name__, {"claim": request, "neighbours": relation}
        if journal is not None:
            given = self._given_ledger() is not None
            return spend_once(journal, ledger, given, plan, name, about)
        source = self.noise.restarted() if isinstance(self.noise, SeededNoise) else self.noise
        return ledger.spend(plan, name, **about, noise=source)  # type: ignore[arg-type]

    # --- what a fit would release -----------------------------------------------------------------

    def _planned(self, X: Any, y: Any, sample_weight: Any = None) -> tuple[Release, ...]:
        """Return what a fit to these data would release, after checking them. Nothing is spent."""
        if type(self)._make_plan is PrivateEstimator._make_plan:
            raise ParameterError(
                f"{type(self).__name__} does not say in advance what a fit would release."
            )
        draft = clone(self)
        if not type(self).fit.__module__.startswith("dpkernel."):
            draft = rehearsed(draft, X, y, sample_weight)
        budget, relation = draft._check_parameters()
        table = draft._opened(X, y, None, sample_weight, relation, draft.noise).table

        def make(smaller: Budget) -> FitPlan:
            plan: FitPlan = draft._make_plan(table, smaller, relation)
            return plan

        beside = self._beside
        plan = make(budget) if beside is None else beside.joined(make, budget, relation)
        return tuple(plan.releases)

    def _planned_spending(self, X: Any, y: Any, **weights: Any) -> Plan:
        """Return what a fit to these data, and to their weights, would ask of a ledger."""
        return self._spending(self._planned(X, y, **weights))[1]
