"""The one fit that every private estimator shares, from rows to a certified model.

``PrivateEstimator._fit`` is this fit. An estimator says what it plans (``_make_plan``) and how the
plan runs (its ``FitPlan``); it never says when. CONTRIBUTING.md lists the conventions, and
``tests/test_estimator_contract.py`` checks them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import uuid
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import _num_samples, check_is_fitted

from dpkernel.data.blocks import BlockStream, library_of
from dpkernel.data.cells import shape_of
from dpkernel.data.domain import (
    Domain,
    Interval,
    Intervals,
    Levels,
    columns_of,
    has_words,
    with_positions,
)
from dpkernel.data.labels import classes_of
from dpkernel.data.people import (
    RECORDS,
    People,
    PersonRule,
    is_in_memory,
    row_numbers,
    table_of_people,
)
from dpkernel.data.places import in_places, one_row
from dpkernel.data.sources import Source
from dpkernel.data.tables import checked_table, framed, sizes_hidden, without_traps
from dpkernel.data.weights import with_sample_weight
from dpkernel.estimators.resuming import Beside, Resumable
from dpkernel.estimators.surroundings import learned_before
from dpkernel.foundations.errors import (
    BudgetExceededError,
    DataError,
    NoRowsError,
    ParameterError,
    PrivacyWarning,
    parameter_message,
)
from dpkernel.foundations.types import (
    AddRemove,
    Array,
    Budget,
    IntArray,
    Neighbours,
    no_add_remove,
)
from dpkernel.foundations.validation import Constraint, check_parameters
from dpkernel.privacy.certificate import Certificate, Release, of_people, of_places
from dpkernel.privacy.ledger import OF_PEOPLE, Ledger
from dpkernel.privacy.noise import Noise, NoiseSource, Part, Plan, SeededNoise, secret_order

logger = logging.getLogger("dpkernel")


class CountedClones(BaseEstimator):
    """Base class of everything that is fitted privately.

    It warns if several clones are fitted without a ledger, because then nobody adds up their
    budgets.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Let ``fit`` look at its caller, and shield it from NumPy's error modes.

        An exception of NumPy could end a fit that has spent.
        """
        super().__init_subclass__(**options)
        if "fit" in cls.__dict__:
            cls.fit = _looking_around(without_traps(cls.__dict__["fit"]))

    def _given_ledger(self) -> Ledger | None:
        """Return the ledger that the user passed, or None."""
        found: Ledger | None = self.ledger
        return found

    def __sklearn_clone__(self) -> Any:
        """Clone with the same ledger. Clones without a ledger remember that they belong together."""
        found = super().__sklearn_clone__()
        if self._given_ledger() is None:
            found._family = _family_of(self)
        return found

    def __getstate__(self) -> Any:
        """Count an unfitted clone that is sent to another process as fitted, to warn in this one."""
        if not hasattr(self, "certificate_"):
            _count_fit(self)
        return super().__getstate__()


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
    record: str = ""  # how the rows of a person became one record; "" if records are rows
    in_places: bool = False  # whether the rows of the table are places, of which some are empty

    def prepare(self) -> None:  # noqa: B027 (a plan may have nothing to prepare)
        """Do all work that needs no noise. A table that fails here has cost nothing."""

    def pinned(self) -> Any:
        """Return public choices, as JSON values, without which a resumed fit would be another one."""
        return None

    @abstractmethod
    def run(self, noise: Noise) -> Fitted:
        """Draw every release and build the model. The budget has been spent by now."""


class PrivateEstimator(Resumable, CountedClones):
    """Base class of private estimators: parameters, data, ledger and certificate."""

    _constraints: ClassVar[Mapping[str, Constraint | tuple[Constraint, ...]]] = {}

    epsilon: float
    delta: float
    neighbours: Any
    ledger: Ledger | None
    noise: NoiseSource | None
    certificate_: Certificate
    _beside: Beside | None = None  # another release that the fit that is running makes

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        check_parameters(type(self).__name__, self.get_params(deep=False), self._constraints)
        relation = Neighbours.resolve(self.neighbours)
        if not relation.n_is_public:
            self._check_places()
        return Budget(self.epsilon, self.delta), relation

    _places: ClassVar[bool] = False  # whether the estimator can be fitted to a table of places

    def _check_places(self) -> None:
        """Raise if this estimator can't hide the number of records."""
        if not self._places:
            raise ParameterError(no_add_remove(type(self).__name__))
        self._n_max()

    def _check_training_data(
        self,
        X: Any,
        y: Any,
        *,
        encode: Callable[[Any], Array] | None = None,
        several: bool = False,
        missing: bool = False,
    ) -> tuple[Any, Array]:
        """Return X as an array of numbers or CSR and y as float64, or raise before anything is spent.

        The rows of X are read with ``blocks.dense_rows``. ``several`` allows a y of several
        columns, ``missing`` allows NaN in X, and ``encode`` turns labels into floats. Sizes and
        column names are put aside, and are set when the fit has succeeded.
        """
        scratch = object.__new__(type(self))
        scratch.__dict__.update(self.__dict__)
        if encode is not None and y is not None:
            try:
                y = encode(y)
            except DataError:
                checked_table(scratch, X, sparse_too=True)  # an error in X is reported first
                raise
        allowed = "nan" if missing else "refused"
        X, y = checked_table(
            scratch, X, y, sparse_too=True, missing=allowed, several=several, narrow=True
        )
        self._set_aside = {
            name: getattr(scratch, name, None) for name in ("n_features_in_", "feature_names_in_")
        }
        return X, y

    def _keep_columns(self, n_columns: int, names: Any = None) -> None:
        """Put sizes and names aside for a table that scikit-learn's ``validate_data`` can't read."""
        known = names is not None and all(isinstance(name, str) for name in names)
        self._set_aside = {
            "n_features_in_": n_columns,
            "feature_names_in_": np.asarray(list(names), dtype=object) if known else None,
        }

    def _set_columns(self) -> None:
        """Set sizes and names once the fit has succeeded."""
        for name, value in self.__dict__.pop("_set_aside").items():
            if value is not None:
                setattr(self, name, value)
            elif hasattr(self, name):
                delattr(self, name)

    def _check_new_data(self, X: Any) -> Any:
        """Return new rows as a float array, or as CSR."""
        check_is_fitted(self)
        known = getattr(self, "_domain", None)
        X = self._coded(X, known if isinstance(known, Domain) else None)
        return checked_table(self, X, sparse_too=True, reset=False)

    def _coded(self, X: Any, bounds: Any) -> Any:
        """Return a table in memory with positions in place of texts, where levels are texts."""
        if not has_words(bounds):
            return X
        owner = type(self).__name__
        if isinstance(X, BlockStream) or library_of(X) in ("dask", "torch"):
            raise ParameterError(
                f"The 'bounds' of {owner} declare levels that are texts. This needs a table in memory;"
                " for other tables, encode the levels as columns of 0 and 1 first."
            )
        shape = shape_of(X)
        named = hasattr(X, "columns")
        names = list(X.columns) if named else None
        domain = resolve_domain(bounds, None, shape[1] if len(shape) == 2 else 0, owner, names)
        values = with_positions(X, domain)
        return framed(values, X) if named else values

    # --- the one fit ------------------------------------------------------------------------------

    def _fit(
        self,
        X: Any,
        y: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        resume: Any = None,
    ) -> Self:
        """Check parameters, open the table, plan, ask the ledger, prepare, spend, run, certify."""
        with self._resuming(resume):
            try:
                return self._complete(*self._planned_fit(X, y, groups, sample_weight))
            finally:
                self.__dict__.pop("_set_aside", None)

    def _complete(self, budget: Budget, plan: FitPlan) -> Self:
        """Carry out a plan and take over its result."""
        found, certificate = self._carry_out(plan, budget)
        self._set_columns()
        self._adopt(found, certificate)
        return self

    def _planned_fit(
        self, X: Any, y: Any = None, groups: Any = None, sample_weight: Any = None
    ) -> tuple[Budget, FitPlan]:
        """Return the requested budget and the plan for this table, after checking both."""
        budget, relation = self._check_parameters()
        X = self._coded(X, getattr(self, "bounds", None))
        if groups is not None and sample_weight is not None:
            raise ParameterError(
                "sample_weight is a weight per row, but with groups the rows of a person become one"
                " record, and how many rows a person has is private. Leave out one of the two."
            )
        table, record = self._open_whole(X, y, groups, sample_weight, relation)
        beside = self._beside if relation.n_is_public else None  # it tells shares of their number

        if beside is not None and beside.of_people != (groups is not None):
            beside = None  # it is calibrated for other records
        if self._resumes is not None:
            self._recognise(X, table, beside)

        def make(smaller: Budget) -> FitPlan:
            return self._make_plan(table, smaller, relation)

        plan = make(budget) if beside is None else beside.joined(make, budget, relation)
        plan.record, plan.in_places = record, not relation.n_is_public
        return budget, plan

    def _open_whole(
        self, X: Any, y: Any, groups: Any, sample_weight: Any, relation: Neighbours
    ) -> tuple[Any, str]:
        """Return the opened table of the records that are protected, and how people became records."""
        if not relation.n_is_public:
            return self._open_places(X, y, groups, sample_weight)
        if groups is not None:
            return self._open_people(X, y, People.of(groups))
        return self._weighted_table(X, y, sample_weight), ""

    def _weighted_table(self, X: Any, y: Any, sample_weight: Any) -> Any:
        """Return the opened table, with the weights of its rows if there are any."""
        table = self._open_table(X, y)
        return table if sample_weight is None else with_sample_weight(table, sample_weight)

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

    def _carry_out(
        self, plan: FitPlan, budget: Budget, subject: str | None = None
    ) -> tuple[Fitted, Certificate]:
        """Pay for a plan and run it. This is the only place where an estimator spends."""
        label = (type(self).__name__ + OF_PEOPLE,) if plan.record else ()
        if self._resumes is None or not self._resumes.paid:
            self._check_ledger(plan.releases, budget, *label)
        plan.prepare()
        if self._resumes is not None:
            self._resumes.pinned = plan.pinned()
        noise = self._spend(plan.releases, budget, *label)
        found = plan.run(noise)
        certificate = Certificate.issue(
            subject or type(self).__name__,
            budget,
            plan.releases,
            noise,
            public=_stated(found.public, plan),
            free_statistics=found.free_statistics,
            reference=found.reference,
        )
        return found, certificate

    def _open_table(self, X: Any, y: Any) -> Any:
        """Return the checked table with its public sizes, or raise before anything is spent."""
        raise NotImplementedError

    # --- a table whose number of records is private -----------------------------------------------

    def _open_places(self, X: Any, y: Any, groups: Any, sample_weight: Any) -> tuple[Source, str]:
        """Return the records at secret places of a table of public length (``data/places.py``)."""
        n_max = self._n_max()
        with sizes_hidden():
            try:
                table, record = self._open_records(X, y, groups, sample_weight)
            except NoRowsError:
                table, record = self._open_no_records(X, y, groups)
        return in_places(table, n_max, secret_order(self._order_noise())), record

    def _open_records(self, X: Any, y: Any, groups: Any, sample_weight: Any) -> tuple[Source, str]:
        """Return the opened table of records, and how the rows of a person became one."""
        people, record = None if groups is None else People.of(groups), ""
        if people is not None and people.record == "all":
            raise ParameterError(
                "People(ids, record='all') needs a public number of people. Use record='near' or"
                " record='one' with neighbours='add-remove'. Or use 'zero-out', which hides what the"
                " rows of a person say, but not how many people there are."
            )
        if library_of(X) == "torch":
            X, y = (v.detach().cpu().numpy() if library_of(v) == "torch" else v for v in (X, y))
        if people is not None or not is_in_memory(X):
            if sample_weight is not None:
                with_sample_weight(Source("stream", 0, 0, (), X), sample_weight)  # says why not
            ids = People(row_numbers(X), "one") if people is None else people
            rule = self._person_rule(ids.record)
            X, y = table_of_people(self, X, y, ids.ids, rule, _as_they_come)
            record = "" if people is None else rule.record
        return self._weighted_table(X, y, sample_weight), record

    def _open_no_records(self, X: Any, y: Any, groups: Any) -> tuple[Source, str]:
        """Return an opened table without records, which is fitted like any other."""
        rule = self._person_rule("one" if groups is None else People.of(groups).record)
        classes = rule.target if isinstance(rule.target, Levels) else None
        table = self._open_table(*one_row(X, y, classes))
        table = replace(table, n_rows=0, X=table.X[:0], y=table.y[:0])
        return table, "" if groups is None else rule.record

    def _n_max(self) -> int:
        """Return the declared number of places."""
        own = self.get_params(deep=False)
        declared = getattr(own.get("bounds"), "n_max", None)
        found = self.neighbours.n_max if isinstance(self.neighbours, AddRemove) else declared
        if declared not in (None, found):
            raise ParameterError(
                f"{type(self).__name__} was given two numbers of records: neighbours=AddRemove({found})"
                f" and a domain with n_max={declared}. State it once, or the same number twice."
            )
        if found is None:
            raise ParameterError(
                parameter_message(
                    type(self).__name__,
                    "neighbours",
                    "AddRemove(n_max) if the number of records is private",
                    "add-remove",
                    "n_max is public: a number that the table is known not to exceed.",
                )
            )
        return int(found)

    # --- people with several rows -----------------------------------------------------------------

    _person_records: ClassVar[tuple[str, ...]] = RECORDS  # the first is the default with bounds

    def _open_people(self, X: Any, y: Any, people: People) -> tuple[Any, str]:
        """Return the opened table of people, and how their rows became records."""
        X, y, record = self._people(X, y, people, self._order_noise())
        return self._open_table(X, y), record

    def _order_noise(self) -> NoiseSource | None:
        """Return the source of a secret order; with a resume file, the order is always the same."""
        return self.noise if self._resumes is None else self._resumes.order()

    def _people(
        self, X: Any, y: Any, people: People, noise: NoiseSource | None
    ) -> tuple[Any, Any, str]:
        """Return X and y with one record per person, and the rule that was followed.

        The noise source draws the order of the people, which stays secret.
        """
        rule = self._person_rule(people.record)
        return *table_of_people(self, X, y, people.ids, rule, secret_order(noise)), rule.record

    def _person_rule(self, asked: str) -> PersonRule:
        """Return how the rows of a person become one record, for what the user asked for."""
        owner, own = type(self).__name__, self.get_params(deep=False)
        bounds = own.get("bounds")
        target: Interval | Levels | None = None
        if "classes" in own:
            target = classes_of(own["classes"], bounds, owner)
        elif "y_bounds" in own:
            target = interval_of(own["y_bounds"], bounds, owner)
        boxed = bounds is not None and not (isinstance(bounds, Domain) and bounds.columns is None)
        record = asked
        if asked == "auto":
            record = self._person_records[0] if boxed else "one"
        if record not in self._person_records:
            allowed = " or ".join(repr(name) for name in sorted(self._person_records))
            raise ParameterError(
                parameter_message("People", "record", f"{allowed} for {owner}", record)
            )
        if record == "near" and not boxed:
            raise ParameterError(
                f"{owner} needs 'bounds', the publicly known range of the columns, to tell which rows"
                " of a person are near each other. Declare them, or use People(ids, record='one')."
            )
        return PersonRule(
            record,
            lambda width, names: resolve_domain(
                bounds if boxed else None, None, width, owner, names
            ),
            target,
        )

    def _make_plan(self, table: Any, budget: Budget, relation: Neighbours) -> FitPlan:
        """Return the plan for a table of these public sizes. No row is read."""
        raise NotImplementedError

    def _adopt(self, found: Fitted, certificate: Certificate) -> None:
        """Take over the result of a fit."""
        for name, value in found.attributes.items():
            setattr(self, name, value)
        self.certificate_ = certificate

    def _planned(self, X: Any, y: Any) -> tuple[Release, ...]:
        """Return what a fit to these data would release, after checking them. Nothing is spent."""
        if type(self)._make_plan is PrivateEstimator._make_plan:
            raise ParameterError(
                f"{type(self).__name__} does not say in advance what a fit would release."
            )
        draft = clone(self)
        draft._beside = self._beside
        if not type(self).fit.__module__.startswith("dpkernel."):
            # let a fit that a user has written refuse the rows now: a ledger without budget ends it
            relation = Neighbours.resolve(self.neighbours)
            draft.ledger = Ledger(budget=Budget(5e-324), neighbours=relation)
            with _same_rows(draft, X), contextlib.suppress(BudgetExceededError):
                draft.fit(X, y)
        return tuple(draft._planned_fit(X, y)[1].releases)

    def _planned_spending(self, X: Any, y: Any) -> Plan:
        """Return what a fit to these data would ask of a ledger."""
        return self._spending(self._planned(X, y))[1]

    # --- the ledger -------------------------------------------------------------------------------

    def _spend(
        self, releases: Sequence[Release], request: Budget, label: str | None = None
    ) -> Noise:
        """Reserve every release of this fit in one atomic spend."""
        _count_fit(self)
        ledger, plan, relation = self._spending(releases)
        source = self.noise.restarted() if isinstance(self.noise, SeededNoise) else self.noise
        name, about = label or type(self).__name__, {"claim": request, "neighbours": relation}
        if self._resumes is not None:
            return self._spend_once(ledger, plan, name, about)
        return ledger.spend(plan, name, **about, noise=source)  # type: ignore[arg-type]

    def _check_ledger(
        self, releases: Sequence[Release], request: Budget, label: str | None = None
    ) -> None:
        """Raise now, before a long pass over the data, if the ledger would refuse the fit."""
        ledger, plan, relation = self._spending(releases)
        name = label or type(self).__name__
        ledger.check(plan, name, claim=request, neighbours=relation)

    def _spending(self, releases: Sequence[Release]) -> tuple[Ledger, Plan, Neighbours]:
        parts = tuple(Part(r.label, r.mechanism.profile(), r.draws, r.folds) for r in releases)
        relation: Neighbours = releases[0].mechanism.sensitivity.neighbours
        ledger = Ledger(neighbours=relation) if self.ledger is None else self.ledger
        return ledger, Plan(parts), relation


def _as_they_come(n: int) -> IntArray:
    return np.arange(n)


def _stated(public: Mapping[str, Any], plan: FitPlan) -> Mapping[str, Any]:
    """Return what the certificate states in public: about people, and about places."""
    found = of_people(public, plan.record) if plan.record else public
    return of_places(found) if plan.in_places else found


@contextlib.contextmanager
def _same_rows(draft: PrivateEstimator, X: Any) -> Iterator[None]:
    """Raise if a fit that a user has written plans for another number of rows than it was given.

    That number would be public although it depends on the contents of the rows.
    """
    planned = draft._planned_fit
    lengths: set[int] = set()

    def watched(table: Any, *rest: Any, **named: Any) -> Any:
        lengths.add(_num_samples(table))
        return planned(table, *rest, **named)

    draft.__dict__["_planned_fit"] = watched
    try:
        yield
    finally:
        del draft.__dict__["_planned_fit"]
    if lengths - {_num_samples(X)}:
        raise DataError(
            f"The fit of {type(draft).__name__} leaves out or adds rows. How many there are would then"
            " reveal something about their contents. Keep the number of rows, for example by replacing"
            " what is missing, or drop rows before the fit. Nothing was spent."
        )


def _looking_around(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``fit`` that warns, before it spends, if a pipeline around it learned without noise.

    The certificate then says that it covers the last step only.
    """

    @functools.wraps(fit)
    def watched(self: Any, *arguments: Any, **options: Any) -> Any:
        learned = learned_before(self)
        if learned:
            warnings.warn(
                f"{type(self).__name__} is a step of a pipeline of scikit-learn in which other steps"
                f" learned from the rows without noise or may have mixed them: {', '.join(learned)}. The"
                " certificate covers the last step only, so the whole is not private. Use"
                " dpkernel.preprocessing.PrivatePipeline and its transformers instead.",
                PrivacyWarning,
                stacklevel=2,
            )
        with _lock_of(self):
            found = fit(self, *arguments, **options)
            if learned and "certificate_" in self.__dict__:
                self.certificate_ = self.certificate_.without(
                    f"what other steps of the pipeline learned without noise: {', '.join(learned)};"
                    " this certificate covers the last step only"
                )
        return found

    return watched


_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_all_locks = threading.Lock()


def _lock_of(estimator: Any) -> threading.RLock:
    """Return the lock that lets threads fit one object after the other, and not at once.

    Otherwise a fit that has already spent could find the object in a state of another fit.
    """
    with _all_locks:
        return _locks.setdefault(estimator, threading.RLock())


_families: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_fits: dict[str, int] = {}


def _family_of(estimator: Any) -> str:
    """Return the name that all clones of one estimator share, even across processes."""
    own: str | None = getattr(estimator, "_family", None)
    return own or _families.setdefault(estimator, uuid.uuid4().hex)


def _count_fit(estimator: Any) -> None:
    """Warn once, when a second clone of one estimator is fitted without a ledger.

    Nobody would add up what the clones spend. Each clone counts once: when it is fitted, or when it
    is sent to another process to be fitted.
    """
    family = estimator.__dict__.get("_family")
    if (
        family is None
        or estimator._given_ledger() is not None
        or "_family_counted" in estimator.__dict__
    ):
        return
    estimator._family_counted = True
    _fits[family] = _fits.get(family, 0) + 1
    if _fits[family] == 2:
        warnings.warn(
            f"Several clones of one {type(estimator).__name__} are fitted without a ledger, as in"
            " cross-validation or a grid search: each spends its epsilon anew and nobody adds them up."
            " Pass ledger=... to record and limit the total. A choice by scikit-learn's own scores is"
            " not private.",
            PrivacyWarning,
            stacklevel=4,
        )


def resolve_domain(
    bounds: Any, target: Interval | Levels | None, n_columns: int, owner: str, names: Any = None
) -> Domain:
    """Return the domain that the parameter ``bounds`` and a declared target describe.

    ``bounds`` is None, a Domain, a pair (low, high) of numbers or of one number per column, or what
    ``columns_of`` reads: a dict by column name, a list of pairs or a data frame.
    """
    columns = None if isinstance(bounds, Domain) else columns_of(bounds, n_columns, names, owner)
    if columns is not None:
        bounds = Domain(columns)
    declared = bounds if isinstance(bounds, Domain) else None
    if declared is not None and declared.target is not None:
        if target is not None and not _same_target(declared.target, target):
            raise ParameterError(
                f"The target of the domain that {owner} was given differs from its parameters. State"
                " one of them."
            )
        target = declared.target if target is None else target
    if bounds is None:
        return Domain(target=target)
    if declared is None:
        low, high = _pair("bounds", bounds, owner)
        return Domain.box(low, high, n_columns=n_columns, target=target)
    if declared.columns is not None and len(declared.columns) != n_columns:
        raise DataError(
            f"X has {n_columns} column(s), but the domain declares {len(declared.columns)}."
        )
    if names is not None and declared.names is not None and list(names) != list(declared.names):
        raise DataError(
            f"The columns of X are {list(names)}, but the domain declares {list(declared.names)}."
        )
    return replace(declared, target=target)


def _same_target(one: Any, other: Any) -> bool:
    """Whether two targets are equal; the order of classes does not matter."""
    if isinstance(one, Levels) and isinstance(other, Levels):
        return set(one.values) == set(other.values)
    return bool(one == other)


def interval_of(y_bounds: Any, bounds: Any, owner: str) -> Interval:
    """Return the declared range of a real target: ``y_bounds``, or the one in the domain ``bounds``.

    ``y_bounds`` is a pair (low, high), or an array or a list with one pair per target.
    """
    if y_bounds is None and isinstance(bounds, Domain) and isinstance(bounds.target, Interval):
        return bounds.target
    if y_bounds is None:
        raise ParameterError(
            f"{owner} needs 'y_bounds', the publicly known range of the target, for example"
            " y_bounds=(0, 120). It is never read from the data: that would leak."
        )
    if isinstance(y_bounds, Interval):
        return y_bounds
    pairs = pairs_of(y_bounds)
    if pairs is None:
        return Interval(*_pair("y_bounds", y_bounds, owner))
    found = []
    for place, pair in enumerate(pairs, start=1):
        try:
            found.append(pair if isinstance(pair, Interval) else Interval(*pair))
        except ParameterError as error:
            raise ParameterError(
                f"The 'y_bounds' of {owner} for target {place}: {error}"
            ) from error
    return Intervals(found) if len(found) > 1 else found[0]


def pairs_of(y_bounds: Any) -> list[Any] | None:
    """Return one pair (low, high) or Interval per target, or None if there is one pair for all."""
    if isinstance(y_bounds, np.ndarray):
        y_bounds = y_bounds.tolist()
    several = isinstance(y_bounds, (list, tuple)) and len(y_bounds) > 0
    if not several or not all(
        isinstance(pair, Interval) or (isinstance(pair, (list, tuple)) and len(pair) == 2)
        for pair in y_bounds
    ):
        return None
    return list(y_bounds)


def _pair(name: str, value: Any, owner: str) -> tuple[Any, Any]:
    if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != 2:
        raise ParameterError(
            f"The '{name}' parameter of {owner} must be a pair (low, high). Got"
            f" {type(value).__name__}."
        )
    return value[0], value[1]
