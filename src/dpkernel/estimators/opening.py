"""How the rows, people and weights that ``fit`` is given become one checked table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.blocks import BlockStream, library_of, off_device
from dpkernel.data.cells import column_names, shape_of
from dpkernel.data.declared import columns_of, has_words, interval_of, resolve_domain
from dpkernel.data.domain import Domain, Interval, Levels, with_positions
from dpkernel.data.labels import LabelShares, classes_of
from dpkernel.data.people import (
    RECORDS,
    People,
    PersonRule,
    is_in_memory,
    row_numbers,
    table_of_people,
)
from dpkernel.data.places import in_places, one_row, refuse_lists
from dpkernel.data.sources import Source
from dpkernel.data.tables import checked_table, framed, sizes_hidden
from dpkernel.data.weights import PEOPLE_OR_WEIGHTS, checked_weights, with_sample_weight
from dpkernel.foundations.errors import NoRowsError, ParameterError, parameter_message
from dpkernel.foundations.types import AddRemove, IntArray, Neighbours, no_add_remove
from dpkernel.privacy.certificate import of_people, of_places
from dpkernel.privacy.noise import NoiseSource, secret_order

Order = Callable[[int], IntArray]  # draws the secret order of n records


@dataclass(frozen=True)
class Opened:
    """A table that was checked before anything is spent, and what its records are.

    Parameters
    ----------
    table : Source, StepTable or FunctionTable
        It has ``n_rows`` and ``columns``, which are public.
    people : bool
        Whether ``groups`` were passed.
    record : str
        How the rows of a person became one record; "" if records are rows.
    in_places : bool
        Whether the rows are places, of which some are empty, because the number of records is private.
    """

    table: Any
    people: bool = False
    record: str = ""
    in_places: bool = False

    def stated(self, public: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a certificate states in public: about people, and about places."""
        found = of_people(public, self.record) if self.record else public
        return of_places(found) if self.in_places else found


class TableOpener:
    """What an estimator accepts as a table. Subclasses say how they read rows (``_open_table``)."""

    _places: ClassVar[bool] = False  # whether the estimator can be fitted to a table of places
    _person_records: ClassVar[tuple[str, ...]] = RECORDS  # the first is the default with bounds
    _label_shares: ClassVar[bool] = False  # whether a record may have several labels in parts

    get_params: Callable[..., dict[str, Any]]
    neighbours: Any

    def _open_table(self, X: Any, y: Any) -> Any:
        """Return the checked table with its public sizes, or raise before anything is spent."""
        raise NotImplementedError

    def _opened(
        self,
        X: Any,
        y: Any,
        groups: Any,
        sample_weight: Any,
        relation: Neighbours,
        source: NoiseSource | None,
    ) -> Opened:
        """Return the opened table; ``source`` draws the order of records where it is secret."""
        X = self._coded(X, getattr(self, "bounds", None))
        if groups is not None and sample_weight is not None:
            raise ParameterError(PEOPLE_OR_WEIGHTS)
        people = None if groups is None else People.of(groups)
        if not relation.n_is_public:
            return self._open_places(X, y, people, sample_weight, source)
        if people is not None:
            table, record = self._open_people(X, y, people, secret_order(source))
            return Opened(table, True, record)
        if sample_weight is not None:
            X, y = self._in_memory(X, y)
        return Opened(self._weighted(self._open_table(X, y), sample_weight))

    def _in_memory(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return a stream, a Dask table or tensors in main memory, in the order of their rows."""
        if library_of(X) == "torch":
            X, y = off_device(X), off_device(y)
        if is_in_memory(X):
            return X, y
        return self._people(X, y, People(row_numbers(X), "one"), np.arange)[:2]

    def _weighted(self, table: Any, sample_weight: Any) -> Any:
        """Return the table with the weights of its rows if there are any."""
        return table if sample_weight is None else with_sample_weight(table, sample_weight)

    def _coded(self, X: Any, bounds: Any) -> Any:
        """Return a table in memory with positions in place of texts, where levels are texts."""
        owner = type(self).__name__
        if not has_words(bounds):
            names = column_names(X) if isinstance(bounds, Mapping) else None
            if names is not None:  # a column of texts that is not declared is named as any other
                columns_of(bounds, len(names), names, owner)
            return X
        if isinstance(X, BlockStream) or library_of(X) in ("dask", "torch"):
            raise ParameterError(
                f"The 'bounds' of {owner} declare levels that are texts. This needs a table in memory;"
                " for other tables, encode the levels as columns of 0 and 1 first."
            )
        shape, names = shape_of(X), column_names(X)
        domain = resolve_domain(bounds, None, shape[1] if len(shape) == 2 else 0, owner, names)
        values = with_positions(X, domain)
        return values if names is None else framed(values, X)

    def _check_new_data(self, X: Any) -> Any:
        """Return new rows as a float array, or as CSR."""
        check_is_fitted(self)
        known = getattr(self, "_domain", None)
        X = self._coded(X, known if isinstance(known, Domain) else None)
        return checked_table(self, X, sparse_too=True, reset=False)

    # --- people with several rows -----------------------------------------------------------------

    def _open_people(self, X: Any, y: Any, people: People, order: Order) -> tuple[Any, str]:
        """Return the opened table of people, and how their rows became records."""
        X, y, record = self._people(X, y, people, order)
        return self._open_table(X, y), record

    def _records_of(
        self, X: Any, y: Any, groups: Any, source: NoiseSource | None
    ) -> tuple[Any, Any, str]:
        """Return X and y with one record per person in a secret order, and the rule."""
        return self._people(X, y, People.of(groups), secret_order(source))

    def _people(self, X: Any, y: Any, people: People, order: Order) -> tuple[Any, Any, str]:
        """Return X and y with one record per person, and the rule that was followed."""
        rule = self._person_rule(people.record)
        return *table_of_people(self, X, y, people.ids, rule, order), rule.record

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
            first = "near" if self._label_shares else self._person_records[0]
            record = first if boxed else "one"
        if record not in self._person_records:
            allowed = " or ".join(repr(name) for name in sorted(self._person_records))
            all_rows = (
                "All rows of a person suit sums and noise on gradients: fits of PrivateKernelRidge and"
                " of SGD. All other fits, and searches, need one record per person."
            )
            advice = all_rows if record == "all" else ""
            raise ParameterError(
                parameter_message("People", "record", f"{allowed} for {owner}", record, advice)
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
            self._label_shares,
        )

    # --- a table whose number of records is private -----------------------------------------------

    def _check_places(self) -> None:
        """Raise if this estimator can't hide the number of records."""
        if not self._places:
            raise ParameterError(no_add_remove(type(self).__name__))
        self._n_max()

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

    def _open_places(
        self, X: Any, y: Any, people: People | None, sample_weight: Any, source: NoiseSource | None
    ) -> Opened:
        """Return the records at secret places of a table of public length (``data/places.py``)."""
        n_max = self._n_max()
        refuse_lists(X, y)
        with sizes_hidden():
            found = None
            with contextlib.suppress(NoRowsError):
                found = self._open_records(X, y, people, sample_weight)
            if found is None:  # not while the error is handled, which a later one would tell of
                found = self._open_no_records(X, y, people, sample_weight)
        table, record = found
        table = in_places(table, n_max, secret_order(source))
        return Opened(table, people is not None, record, True)

    def _open_records(
        self, X: Any, y: Any, people: People | None, sample_weight: Any
    ) -> tuple[Source, str]:
        """Return the opened table of records, and how the rows of a person became one."""
        record = ""
        if people is not None and people.record == "all":
            raise ParameterError(
                "People(ids, record='all') needs a public number of people. Use record='near' or"
                " record='one' with neighbours='add-remove'. Or use 'zero-out', which hides what the"
                " rows of a person say, but not how many people there are."
            )
        if people is None or library_of(X) == "torch":
            X, y = self._in_memory(X, y)
        if people is not None:
            # the places are in a secret order, so the people may stand as they come
            X, y, record = self._people(X, y, people, np.arange)
        return self._weighted(self._open_table(X, y), sample_weight), record

    def _open_no_records(
        self, X: Any, y: Any, people: People | None, sample_weight: Any
    ) -> tuple[Source, str]:
        """Return an opened table without records, which is fitted like any other."""
        if sample_weight is not None:
            checked_weights(sample_weight, 0)
        rule = self._person_rule("one" if people is None else people.record)
        classes = rule.target if isinstance(rule.target, Levels) else None
        X, y = one_row(X, y, classes)
        y = LabelShares(np.zeros((1, rule.n_shares))) if rule.n_shares else y
        table = self._open_table(X, y)
        table = replace(table, n_rows=0, X=table.X[:0], y=table.y[:0])
        return table, "" if people is None else rule.record
